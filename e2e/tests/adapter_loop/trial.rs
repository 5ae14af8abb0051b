//! A class, a backend in memory and the replicas of one test.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_controller::testing::death::Death;
use ayatori_controller::testing::fake::FakeBackend;
use ayatori_controller::testing::replica::Replica;
use ayatori_controller::testing::server::{Counts, Faults, Server};
use ayatori_core::conditions::{self, FINISHED, READY, STARTED};
use ayatori_core::execution::Windows;
use ayatori_core::job::{Job, JobSpec, JobStatus};
use ayatori_core::job_class::{JobClass, JobClassSpec, ParametersReference};
use ayatori_core::names::GROUP;
use ayatori_core::parameters::{
    CommandMode, OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec, SecretKeyReference,
};
use ayatori_e2e::api::{self, RUN_LABEL};
use futures::FutureExt;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ClusterResourceScope, DynamicObject};
use kube::discovery::ApiResource;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// How long anything that should happen may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);
/// The identity of a test's replica, unless it has several.
pub(crate) const ONE: &str = "one";
/// The times of the single-shot protocol: long enough for another replica to take over while a create request
/// could still be sent, so that a second request would be seen.
const WINDOWS: Windows = Windows {
    send: SignedDuration::from_secs(4),
    fence: SignedDuration::from_secs(6),
};

/// How a test's class starts commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Hold,
    SingleShot,
}

/// One test's part of the world. No other adapter owns its class.
pub(crate) struct Trial {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) mode: Mode,
    /// Controller of the test's classes.
    pub(crate) controller: String,
    /// The test's class, and its parameters object.
    pub(crate) class: String,
    pub(crate) server: Server,
    pub(crate) jobs: Api<Job>,
}

/// Runs a test for both protocols, each in a world of its own.
pub(crate) async fn with_both(test: impl AsyncFn(&Trial) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (hold, single_shot) = futures::join!(with(Mode::Hold, &test), with(Mode::SingleShot, &test));
    hold.and(single_shot)
}

/// Runs a test and cleans up however it ends. It fails if anything is left behind.
pub(crate) async fn with(mode: Mode, test: impl AsyncFn(&Trial) -> anyhow::Result<()>) -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        if std::env::var_os("ADAPTER_LOG").is_some() {
            let _ = ayatori_controller::telemetry::init_logs(
                ayatori_controller::telemetry::LogFormat::Text,
                &std::env::var("ADAPTER_LOG").unwrap_or_default(),
            );
        }
        let trial = Trial {
            jobs: Api::namespaced(run.client.clone(), &run.namespace),
            client: run.client,
            mode,
            controller: format!("{}.ayatori.example/fake", run.namespace),
            class: run.namespace.clone(),
            namespace: run.namespace,
            server: Server::new(),
        };
        let outcome = AssertUnwindSafe(trial.run(&test)).catch_unwind().await;
        let cleared = trial.clear().await;
        if cleared.is_err() {
            trial.force().await?;
        }
        match outcome {
            Ok(outcome) => outcome.and(cleared).with_context(|| format!("protocol {mode:?}")),
            Err(panic) => resume_unwind(panic),
        }
    })
    .await
}

impl Trial {
    async fn run(&self, test: &impl AsyncFn(&Trial) -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.create_class(&self.class, &self.controller).await?;
        let outcome = test(self).await;
        if outcome.is_err() {
            self.show().await;
        }
        outcome
    }

    /// What a person needs to see of a failed test.
    async fn show(&self) {
        for job in self.jobs.list(&ListParams::default()).await.into_iter().flatten() {
            let status = serde_yaml::to_string(&job.status).unwrap_or_default();
            eprintln!("{:?}: Job {}: {status}", self.mode, job.name_any());
        }
        eprintln!("{:?}: server: {:#?}", self.mode, self.server.executions());
    }

    /// A class and its parameters, of the same name.
    pub(crate) async fn create_class(&self, name: &str, controller: &str) -> anyhow::Result<()> {
        let parameters = OpenSandboxExecutionParametersSpec {
            endpoint: "https://sandbox.example".to_owned(),
            api_key_secret_ref: SecretKeyReference {
                namespace: self.namespace.clone(),
                name: "key".to_owned(),
                key: "key".to_owned(),
            },
            command_mode: (self.mode == Mode::Hold).then_some(CommandMode::Execd),
            ..OpenSandboxExecutionParametersSpec::default()
        };
        self.create_global(OpenSandboxExecutionParameters::new(name, parameters))
            .await?;
        let class = JobClassSpec {
            controller_name: controller.to_owned(),
            parameters_ref: ParametersReference {
                group: GROUP.to_owned(),
                kind: "OpenSandboxExecutionParameters".to_owned(),
                name: name.to_owned(),
            },
            ..JobClassSpec::default()
        };
        self.create_global(JobClass::new(name, class)).await?;
        Ok(())
    }

    /// Creates an object outside the namespace, cleaned up with the test.
    pub(crate) async fn create_global<K>(&self, mut object: K) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Serialize + DeserializeOwned,
        K: std::fmt::Debug,
    {
        object
            .labels_mut()
            .insert(RUN_LABEL.to_owned(), self.namespace.clone());
        let created = Api::all(self.client.clone())
            .create(&PostParams::default(), &object)
            .await;
        created.with_context(|| format!("creating {} {}", K::kind(&()), object.name_any()))
    }

    pub(crate) fn backend(&self) -> FakeBackend {
        FakeBackend::new(&self.controller, WINDOWS, self.server.clone())
    }

    /// Starts the adapter, and returns when its class is ready.
    pub(crate) async fn start(&self) -> anyhow::Result<Replica> {
        let replica = self.start_unready().await?;
        self.when_ready().await?;
        Ok(replica)
    }

    /// Starts the adapter.
    pub(crate) async fn start_unready(&self) -> anyhow::Result<Replica> {
        Replica::start(self.backend(), &self.namespace, ONE).await
    }

    /// Starts an adapter that dies at a chosen step.
    pub(crate) async fn start_mortal(&self, death: Death) -> anyhow::Result<Replica> {
        Replica::start_mortal(self.backend(), &self.namespace, ONE, death).await
    }

    /// Returns when the test's class is ready.
    pub(crate) async fn when_ready(&self) -> anyhow::Result<JobClass> {
        self.when_class("ready", |class| {
            let conditions = class.status.as_ref().map_or(&[][..], |s| &s.conditions);
            conditions::is_true(conditions, READY)
        })
        .await
    }

    /// Returns the test's class once `holds` says so of it.
    pub(crate) async fn when_class(
        &self,
        what: &str,
        holds: impl Fn(&JobClass) -> bool + Send,
    ) -> anyhow::Result<JobClass> {
        when(Api::all(self.client.clone()), &self.class, what, holds).await
    }

    /// Creates a Job of the test's class whose command does what `script` says.
    pub(crate) async fn create(&self, script: &str) -> anyhow::Result<Job> {
        self.create_with(script, |_| {}).await
    }

    /// The same, with more in its spec.
    pub(crate) async fn create_with(
        &self,
        script: &str,
        adjust: impl FnOnce(&mut JobSpec),
    ) -> anyhow::Result<Job> {
        let mut spec = JobSpec {
            job_class_name: Some(self.class.clone()),
            image: "app".to_owned(),
            command: vec!["fake".to_owned()],
            args: script.split_whitespace().map(str::to_owned).collect(),
            ..JobSpec::default()
        };
        adjust(&mut spec);
        let mut job = Job::new("", spec);
        job.metadata.name = None;
        job.metadata.generate_name = Some("job-".to_owned());
        self.jobs
            .create(&PostParams::default(), &job)
            .await
            .context("creating a Job")
    }

    pub(crate) async fn patch(&self, job: &Job, patch: Value) -> anyhow::Result<Job> {
        let patched = self
            .jobs
            .patch(&job.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.with_context(|| format!("patching Job {}", job.name_any()))
    }

    pub(crate) async fn cancel(&self, job: &Job) -> anyhow::Result<Job> {
        self.patch(job, json!({ "spec": { "cancelRequested": true } }))
            .await
    }

    pub(crate) async fn delete(&self, job: &Job) -> anyhow::Result<()> {
        let deleted = self.jobs.delete(&job.name_any(), &DeleteParams::default()).await;
        deleted
            .map(drop)
            .with_context(|| format!("deleting Job {}", job.name_any()))
    }

    /// Returns the Job once `holds` says so of it.
    pub(crate) async fn when(
        &self,
        job: &Job,
        what: &str,
        holds: impl Fn(&Job) -> bool + Send,
    ) -> anyhow::Result<Job> {
        when(self.jobs.clone(), &job.name_any(), what, holds).await
    }

    pub(crate) async fn when_started(&self, job: &Job) -> anyhow::Result<Job> {
        self.when(job, "started", |job| holds(job, STARTED)).await
    }

    pub(crate) async fn when_finished(&self, job: &Job) -> anyhow::Result<Job> {
        self.when(job, "finished", |job| holds(job, FINISHED)).await
    }

    pub(crate) async fn when_released(&self, job: &Job) -> anyhow::Result<Job> {
        self.when(job, "released", is_released).await
    }

    /// Returns the Job once the condition `type_` has this reason.
    pub(crate) async fn when_says(&self, job: &Job, type_: &str, reason: &str) -> anyhow::Result<Job> {
        let says = |job: &Job| condition(job, type_).is_some_and(|c| c.reason == reason);
        self.when(job, &format!("{type_} with reason {reason}"), says)
            .await
    }

    pub(crate) async fn when_gone(&self, job: &Job) -> anyhow::Result<()> {
        when_gone(self.jobs.clone(), &job.name_any()).await
    }

    pub(crate) fn counts(&self, job: &Job) -> Counts {
        self.server.counts(&job.uid().unwrap_or_default())
    }

    /// Deletes everything through a healthy adapter and a healthy server; fails if anything does not go.
    async fn clear(&self) -> anyhow::Result<()> {
        self.server.misbehave(|faults| *faults = Faults::default());
        let _replica = self.start_unready().await?;
        let (all, ours) = (ListParams::default(), self.ours());
        let classes: Api<JobClass> = Api::all(self.client.clone());
        let parameters: Api<OpenSandboxExecutionParameters> = Api::all(self.client.clone());
        self.jobs
            .delete_collection(&DeleteParams::default(), &all)
            .await
            .context("deleting Jobs")?;
        for job in self.jobs.list(&all).await? {
            self.when_gone(&job).await?;
        }
        classes
            .delete_collection(&DeleteParams::default(), &ours)
            .await
            .context("deleting classes")?;
        for class in classes.list(&ours).await? {
            when_gone(classes.clone(), &class.name_any()).await?;
        }
        parameters
            .delete_collection(&DeleteParams::default(), &ours)
            .await
            .context("deleting parameters")?;
        for object in parameters.list(&ours).await? {
            when_gone(parameters.clone(), &object.name_any()).await?;
        }
        let left = self.server.executions();
        ensure!(
            left.is_empty(),
            "the Jobs are gone, and their executions are not: {left:#?}"
        );
        Ok(())
    }

    /// Takes our finalizers off what did not go by itself, so that a failed test leaves nothing.
    async fn force(&self) -> anyhow::Result<()> {
        for crd in ayatori_core::crd::all() {
            let resource: ApiResource = api::resource(&crd);
            let (objects, list): (Api<DynamicObject>, _) = match crd.spec.scope.as_str() {
                "Namespaced" => (
                    Api::namespaced_with(self.client.clone(), &self.namespace, &resource),
                    ListParams::default(),
                ),
                _ => (Api::all_with(self.client.clone(), &resource), self.ours()),
            };
            for object in objects.list(&list).await? {
                let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
                // What has gone by now is fine.
                let _ = objects
                    .patch(&object.name_any(), &PatchParams::default(), &patch)
                    .await;
                let _ = objects.delete(&object.name_any(), &DeleteParams::default()).await;
            }
        }
        Ok(())
    }

    fn ours(&self) -> ListParams {
        ListParams::default().labels(&format!("{RUN_LABEL}={}", self.namespace))
    }
}

/// Returns an object once `holds` says so of it.
pub(crate) async fn when<K>(
    api: Api<K>,
    name: &str,
    what: &str,
    holds: impl Fn(&K) -> bool + Send,
) -> anyhow::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + DeserializeOwned + 'static,
{
    let what = || format!("{} {name}: {what}", K::kind(&()));
    let waiting = await_condition(api, name, |object: Option<&K>| object.is_some_and(&holds));
    let object = tokio::time::timeout(PATIENCE, waiting)
        .await
        .with_context(|| format!("not within {} s: {}", PATIENCE.as_secs(), what()))?;
    object?.with_context(what)
}

/// Returns once an object is gone.
pub(crate) async fn when_gone<K>(api: Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + DeserializeOwned + 'static,
{
    let waiting = await_condition(api, name, |object: Option<&K>| object.is_none());
    tokio::time::timeout(PATIENCE, waiting).await.with_context(|| {
        format!(
            "{} {name} is not gone within {} s",
            K::kind(&()),
            PATIENCE.as_secs()
        )
    })??;
    Ok(())
}

/// The Job's status; empty if there is none.
pub(crate) fn status(job: &Job) -> JobStatus {
    job.status.clone().unwrap_or_default()
}

pub(crate) fn condition<'a>(job: &'a Job, type_: &str) -> Option<&'a Condition> {
    conditions::find(&job.status.as_ref()?.conditions, type_)
}

pub(crate) fn holds(job: &Job, type_: &str) -> bool {
    condition(job, type_).is_some_and(|c| c.status == "True")
}

pub(crate) fn is_released(job: &Job) -> bool {
    status(job).execution.is_some_and(|e| e.release_time.is_some())
}

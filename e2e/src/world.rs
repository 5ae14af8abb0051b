//! A namespace with a class of the Kubernetes adapter, and the Jobs of one test in it.

use std::future::Future;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use ayatori_core::conditions::{self, FINISHED};
use ayatori_core::job::{Job, JobResult, JobSpec, Outcome};
use ayatori_core::job_class::{JobClass, JobClassSpec, ParametersReference};
use ayatori_core::names::{GROUP, JOB_UID_LABEL, KUBERNETES_CONTROLLER};
use ayatori_core::parameters::{KubernetesExecutionParameters, KubernetesExecutionParametersSpec};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

pub use crate::api::PATIENCE;
use crate::api::{self, Run};
use crate::counter::Counter;
use crate::transcript::{self, Transcript};

/// The image every command runs in.
pub const IMAGE: &str = "localhost/busybox:1";

/// One test's part of the cluster.
pub struct World {
    /// Client with every right.
    pub client: Client,
    /// The test's namespace.
    pub namespace: String,
    /// The test's class, of the Kubernetes adapter, with plain parameters.
    pub class: String,
    /// The test's Jobs.
    pub jobs: Api<Job>,
    /// Counts starts.
    pub counter: Counter,
    transcript: Arc<Transcript>,
}

/// Runs a test in a world of its own, leaves its transcript, and cleans up, however the test ends.
pub async fn with_world<F: Future<Output = anyhow::Result<()>>>(
    test: impl FnOnce(World) -> F,
) -> anyhow::Result<()> {
    api::in_namespace(async |run: Run| {
        let counter = Counter::listen(&run.client).await?;
        let class = run.namespace.clone();
        let world = World {
            jobs: Api::namespaced(run.client.clone(), &run.namespace),
            client: run.client,
            namespace: run.namespace,
            class: class.clone(),
            counter,
            transcript: Arc::default(),
        };
        world
            .create_class(&class, KubernetesExecutionParametersSpec::default(), |_| {})
            .await?;
        let (client, namespace) = (world.client.clone(), world.namespace.clone());
        let story = world.transcript.clone();
        let outcome = test(world).await;
        let text = story.render(&client, &namespace, &outcome).await;
        if outcome.is_err() {
            eprintln!("{text}");
        }
        transcript::keep(&text)?;
        outcome
    })
    .await
}

impl World {
    /// A class with parameters of the same name, both cleaned up with the test.
    pub async fn create_class(
        &self,
        name: &str,
        parameters: KubernetesExecutionParametersSpec,
        adjust: impl FnOnce(&mut JobClassSpec),
    ) -> anyhow::Result<()> {
        let mut object = KubernetesExecutionParameters::new(name, parameters);
        object
            .labels_mut()
            .insert(api::RUN_LABEL.to_owned(), self.namespace.clone());
        let create = PostParams::default();
        Api::all(self.client.clone())
            .create(&create, &object)
            .await
            .context("creating parameters")?;
        let mut spec = JobClassSpec {
            controller_name: KUBERNETES_CONTROLLER.to_owned(),
            parameters_ref: ParametersReference {
                group: GROUP.to_owned(),
                kind: "KubernetesExecutionParameters".to_owned(),
                name: name.to_owned(),
            },
            ..JobClassSpec::default()
        };
        adjust(&mut spec);
        let mut class = JobClass::new(name, spec);
        class
            .labels_mut()
            .insert(api::RUN_LABEL.to_owned(), self.namespace.clone());
        Api::all(self.client.clone())
            .create(&create, &class)
            .await
            .context("creating the class")?;
        Ok(())
    }

    /// A Job of the test's class that counts its start and then runs a shell line.
    pub fn job(&self, name: &str, then: &str) -> Job {
        Job::new(
            name,
            JobSpec {
                job_class_name: Some(self.class.clone()),
                image: IMAGE.to_owned(),
                command: self.counter.command(&self.key(name), then),
                ..JobSpec::default()
            },
        )
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.namespace)
    }

    /// How often the command of this Job has started.
    pub fn starts(&self, name: &str) -> u32 {
        self.counter.starts(&self.key(name))
    }

    /// Creates a Job.
    pub async fn create(&self, job: &Job) -> anyhow::Result<Job> {
        let created = self.jobs.create(&PostParams::default(), job).await;
        let created = created.with_context(|| format!("creating Job {}", job.name_any()))?;
        self.transcript.created(&created);
        Ok(created)
    }

    /// Changes a Job by a merge patch.
    pub async fn patch(&self, name: &str, patch: Value) -> anyhow::Result<Job> {
        let patch = Patch::Merge(patch);
        self.jobs
            .patch(name, &PatchParams::default(), &patch)
            .await
            .with_context(|| format!("patching Job {name}"))
    }

    /// Asks for the Job's end.
    pub async fn cancel(&self, name: &str) -> anyhow::Result<Job> {
        self.patch(name, json!({"spec": {"cancelRequested": true}})).await
    }

    /// Deletes the Job and does not wait.
    pub async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.jobs
            .delete(name, &DeleteParams::default())
            .await
            .with_context(|| format!("deleting Job {name}"))?;
        Ok(())
    }

    /// Returns the Job once `holds` says so of it.
    pub async fn when(&self, name: &str, what: &str, holds: impl Condition<Job>) -> anyhow::Result<Job> {
        let waiting = await_condition(self.jobs.clone(), name, holds);
        let Ok(job) = tokio::time::timeout(PATIENCE, waiting).await else {
            if let Some(job) = self.jobs.get_opt(name).await? {
                self.transcript.missed(&job);
            }
            bail!("Job {name}: not within {} s: {what}", PATIENCE.as_secs());
        };
        let job = job?.with_context(|| format!("Job {name} is gone: {what}"))?;
        self.transcript.seen(&job);
        Ok(job)
    }

    /// Returns the Job once its condition `type_` has this status and reason.
    pub async fn when_says(
        &self,
        name: &str,
        type_: &'static str,
        reason: &'static str,
    ) -> anyhow::Result<Job> {
        self.when(name, &format!("{type_} says {reason}"), says(type_, reason))
            .await
    }

    /// Returns once the Job's command runs.
    pub async fn when_started(&self, name: &str) -> anyhow::Result<Job> {
        self.when(name, "Started", |job: Option<&Job>| {
            job.and_then(|j| j.status.as_ref())
                .is_some_and(|s| conditions::is_true(&s.conditions, conditions::STARTED))
        })
        .await
    }

    /// Returns the Job once it is finished.
    pub async fn when_finished(&self, name: &str) -> anyhow::Result<Job> {
        self.when(name, "Finished", is_finished).await
    }

    /// Returns once the Job object is gone.
    pub async fn when_gone(&self, name: &str) -> anyhow::Result<()> {
        let gone = |job: Option<&Job>| job.is_none();
        tokio::time::timeout(PATIENCE, await_condition(self.jobs.clone(), name, gone))
            .await
            .with_context(|| format!("Job {name} does not go"))??;
        Ok(())
    }

    /// The batch Jobs of this Job.
    pub async fn batch_jobs(&self, job: &Job) -> anyhow::Result<Vec<BatchJob>> {
        let api = Api::<BatchJob>::namespaced(self.client.clone(), &self.namespace);
        Ok(api.list(&of(job)).await?.items)
    }

    /// The pods of this Job.
    pub async fn pods(&self, job: &Job) -> anyhow::Result<Vec<Pod>> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &self.namespace);
        Ok(api.list(&of(job)).await?.items)
    }

    /// Asks again until the answer is yes.
    pub async fn eventually(
        &self,
        what: &str,
        ask: impl AsyncFn() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        api::eventually(what, ask).await
    }
}

fn of(job: &Job) -> ListParams {
    ListParams::default().labels(&format!("{JOB_UID_LABEL}={}", job.uid().unwrap_or_default()))
}

/// Whether a Job is there and finished.
pub fn is_finished(job: Option<&Job>) -> bool {
    job.and_then(|j| j.status.as_ref())
        .is_some_and(|s| conditions::is_true(&s.conditions, FINISHED))
}

fn says(type_: &'static str, reason: &'static str) -> impl Condition<Job> {
    move |job: Option<&Job>| {
        job.and_then(|j| j.status.as_ref())
            .and_then(|s| conditions::find(&s.conditions, type_))
            .is_some_and(|c| c.reason == reason)
    }
}

/// The result of a finished Job.
pub fn result(job: &Job) -> anyhow::Result<&JobResult> {
    job.status
        .as_ref()
        .and_then(|s| s.result.as_ref())
        .context("the Job has no result")
}

/// Fails unless the Job ended like this.
pub fn expect(job: &Job, outcome: Outcome, reason: &str, exit_code: Option<i32>) -> anyhow::Result<()> {
    let result = result(job)?;
    let seen = (result.outcome, result.reason.as_str(), result.exit_code);
    ensure!(
        seen == (outcome, reason, exit_code),
        "Job {} ended as {seen:?} ({}), not as {:?}",
        job.name_any(),
        result.message.as_deref().unwrap_or("no message"),
        (outcome, reason, exit_code)
    );
    Ok(())
}

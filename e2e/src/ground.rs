//! A namespace and a class for an adapter that runs in the test's own process, and the Jobs of one test in it.

use std::time::Duration;

use anyhow::Context;
use ayatori_core::conditions::{self, FINISHED, READY, STARTED};
use ayatori_core::job::{Job, JobSpec, JobStatus};
use ayatori_core::job_class::{JobClass, JobClassSpec, JobClassStatus, ParametersReference};
use ayatori_core::names::GROUP;
use ayatori_core::parameters::{OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec};
use futures::{StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ClusterResourceScope, DynamicObject};
use kube::discovery::ApiResource;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::api::{self, PATIENCE, RUN_LABEL, Run};

/// How many requests are under way at a time where there are many to send.
const AT_ONCE: usize = 20;

/// One test's part of the cluster. Its classes have a controller of their own, so no other adapter touches them.
pub struct Ground {
    /// Client with every right.
    pub client: Client,
    /// The test's namespace.
    pub namespace: String,
    /// Controller of the test's classes.
    pub controller: String,
    /// The test's class, and its parameters object.
    pub class: String,
    /// The test's Jobs.
    pub jobs: Api<Job>,
}

impl Ground {
    /// The part of one run, whose controller is called after the adapter.
    pub fn of(run: Run, adapter: &str) -> Self {
        Self {
            jobs: Api::namespaced(run.client.clone(), &run.namespace),
            client: run.client,
            controller: format!("{}.ayatori.example/{adapter}", run.namespace),
            class: run.namespace.clone(),
            namespace: run.namespace,
        }
    }

    /// Creates a class and its parameters, of the same name.
    pub async fn create_class(
        &self,
        name: &str,
        parameters: OpenSandboxExecutionParametersSpec,
    ) -> anyhow::Result<()> {
        self.create_global(OpenSandboxExecutionParameters::new(name, parameters))
            .await?;
        let class = JobClassSpec {
            controller_name: self.controller.clone(),
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
    pub async fn create_global<K>(&self, mut object: K) -> anyhow::Result<K>
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

    /// Returns the test's class once it is ready.
    pub async fn when_ready(&self) -> anyhow::Result<JobClass> {
        self.when_class("ready", |class| {
            conditions::is_true(&class_status(class).conditions, READY)
        })
        .await
    }

    /// Returns the test's class once its condition `type_` has this reason.
    pub async fn when_class_says(&self, type_: &str, reason: &str) -> anyhow::Result<JobClass> {
        self.when_class(&format!("{type_} with reason {reason}"), |class| {
            class_condition(class, type_).is_some_and(|c| c.reason == reason)
        })
        .await
    }

    /// Returns the test's class once `holds` says so of it.
    pub async fn when_class(
        &self,
        what: &str,
        holds: impl Fn(&JobClass) -> bool + Send,
    ) -> anyhow::Result<JobClass> {
        when(Api::all(self.client.clone()), &self.class, what, holds).await
    }

    /// A Job of this name, of the test's class, whose command does what `script` says.
    pub fn job(&self, name: &str, script: &str) -> Job {
        let spec = JobSpec {
            job_class_name: Some(self.class.clone()),
            image: "app".to_owned(),
            command: vec!["fake".to_owned()],
            args: script.split_whitespace().map(str::to_owned).collect(),
            ..JobSpec::default()
        };
        Job::new(name, spec)
    }

    /// Creates a Job of the test's class whose command does what `script` says.
    pub async fn create(&self, script: &str) -> anyhow::Result<Job> {
        self.create_with(script, |_| {}).await
    }

    /// The same, with more in its spec.
    pub async fn create_with(&self, script: &str, adjust: impl FnOnce(&mut JobSpec)) -> anyhow::Result<Job> {
        let mut job = self.job("", script);
        adjust(&mut job.spec);
        job.metadata.name = None;
        job.metadata.generate_name = Some("job-".to_owned());
        self.jobs
            .create(&PostParams::default(), &job)
            .await
            .context("creating a Job")
    }

    /// Changes a Job by a merge patch.
    pub async fn patch(&self, job: &Job, patch: Value) -> anyhow::Result<Job> {
        let patched = self
            .jobs
            .patch(&job.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.with_context(|| format!("patching Job {}", job.name_any()))
    }

    /// Asks for the Job's end.
    pub async fn cancel(&self, job: &Job) -> anyhow::Result<Job> {
        self.patch(job, json!({ "spec": { "cancelRequested": true } }))
            .await
    }

    /// Deletes the Job and does not wait.
    pub async fn delete(&self, job: &Job) -> anyhow::Result<()> {
        let deleted = self.jobs.delete(&job.name_any(), &DeleteParams::default()).await;
        deleted
            .map(drop)
            .with_context(|| format!("deleting Job {}", job.name_any()))
    }

    /// Returns the Job once `holds` says so of it.
    pub async fn when(
        &self,
        job: &Job,
        what: &str,
        holds: impl Fn(&Job) -> bool + Send,
    ) -> anyhow::Result<Job> {
        when(self.jobs.clone(), &job.name_any(), what, holds).await
    }

    /// Returns the Job once its command runs.
    pub async fn when_started(&self, job: &Job) -> anyhow::Result<Job> {
        self.when(job, "started", |job| holds(job, STARTED)).await
    }

    /// Returns the Job once it is finished.
    pub async fn when_finished(&self, job: &Job) -> anyhow::Result<Job> {
        self.when(job, "finished", |job| holds(job, FINISHED)).await
    }

    /// Returns the Job once what it had in the backend is given back.
    pub async fn when_released(&self, job: &Job) -> anyhow::Result<Job> {
        self.when(job, "released", is_released).await
    }

    /// Returns the Job once the condition `type_` has this reason.
    pub async fn when_says(&self, job: &Job, type_: &str, reason: &str) -> anyhow::Result<Job> {
        let says = |job: &Job| condition(job, type_).is_some_and(|c| c.reason == reason);
        self.when(job, &format!("{type_} with reason {reason}"), says)
            .await
    }

    /// Returns once the Job object is gone.
    pub async fn when_gone(&self, job: &Job) -> anyhow::Result<()> {
        when_gone(self.jobs.clone(), &job.name_any()).await
    }

    /// What a person needs to see of a failed test.
    pub async fn show(&self) {
        let all = ListParams::default();
        for class in Api::<JobClass>::all(self.client.clone())
            .list(&self.ours())
            .await
            .into_iter()
            .flatten()
        {
            let status = serde_yaml::to_string(&class.status).unwrap_or_default();
            eprintln!("JobClass {}: {status}", class.name_any());
        }
        for job in self.jobs.list(&all).await.into_iter().flatten() {
            let status = serde_yaml::to_string(&job.status).unwrap_or_default();
            eprintln!("Job {}: {status}", job.name_any());
        }
    }

    /// Deletes everything, which an adapter that runs lets go; fails if anything does not go.
    pub async fn clear(&self) -> anyhow::Result<()> {
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
        Ok(())
    }

    /// Takes our finalizers off what did not go by itself, so that a failed test leaves nothing.
    pub async fn force(&self) -> anyhow::Result<()> {
        for crd in ayatori_core::crd::all() {
            let resource: ApiResource = api::resource(&crd);
            let (objects, list): (Api<DynamicObject>, _) = match crd.spec.scope.as_str() {
                "Namespaced" => (
                    Api::namespaced_with(self.client.clone(), &self.namespace, &resource),
                    ListParams::default(),
                ),
                _ => (Api::all_with(self.client.clone(), &resource), self.ours()),
            };
            let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            let all = stream::iter(objects.list(&list).await?);
            all.for_each_concurrent(AT_ONCE, async |object| {
                // What has gone by now is fine.
                let _ = objects
                    .patch(&object.name_any(), &PatchParams::default(), &patch)
                    .await;
                let _ = objects.delete(&object.name_any(), &DeleteParams::default()).await;
            })
            .await;
        }
        Ok(())
    }

    fn ours(&self) -> ListParams {
        ListParams::default().labels(&format!("{RUN_LABEL}={}", self.namespace))
    }
}

/// Returns an object once `holds` says so of it.
pub async fn when<K>(
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
    let object = within(PATIENCE, waiting).await.with_context(what)?;
    object?.with_context(what)
}

/// Returns once an object is gone.
pub async fn when_gone<K>(api: Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + DeserializeOwned + 'static,
{
    let waiting = await_condition(api, name, |object: Option<&K>| object.is_none());
    within(PATIENCE, waiting)
        .await
        .with_context(|| format!("{} {name}: gone", K::kind(&())))??;
    Ok(())
}

/// What something comes to, unless it takes longer.
pub async fn within<T>(time: Duration, what: impl Future<Output = T>) -> anyhow::Result<T> {
    tokio::time::timeout(time, what)
        .await
        .with_context(|| format!("not within {} s", time.as_secs()))
}

/// The Job's status; empty if there is none.
pub fn status(job: &Job) -> JobStatus {
    job.status.clone().unwrap_or_default()
}

/// One of the Job's conditions.
pub fn condition<'a>(job: &'a Job, type_: &str) -> Option<&'a Condition> {
    conditions::find(&job.status.as_ref()?.conditions, type_)
}

/// Whether one of the Job's conditions is True.
pub fn holds(job: &Job, type_: &str) -> bool {
    condition(job, type_).is_some_and(|c| c.status == "True")
}

/// Whether what the Job had in the backend is given back.
pub fn is_released(job: &Job) -> bool {
    status(job).execution.is_some_and(|e| e.release_time.is_some())
}

/// One of the class's conditions.
pub fn class_condition<'a>(class: &'a JobClass, type_: &str) -> Option<&'a Condition> {
    conditions::find(&class.status.as_ref()?.conditions, type_)
}

fn class_status(class: &JobClass) -> JobClassStatus {
    class.status.clone().unwrap_or_default()
}

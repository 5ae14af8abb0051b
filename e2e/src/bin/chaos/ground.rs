//! The Jobs, and what their callers do with them.

use std::time::Duration;

use ayatori_core::job::{Job, JobSpec};
use ayatori_e2e::counter::Counter;
use ayatori_e2e::replica::Adapter;
use ayatori_e2e::witness::Witness;
use ayatori_e2e::world::IMAGE;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::sleep;

use crate::observer::TOKEN_LABEL;
use crate::persist::{gone_already, persist};
use crate::plan::{Class, Deed, Fate, PlannedJob};

/// What the second Job of a name does.
pub(crate) const SUCCESSOR: Deed = Deed::Exits {
    after: Duration::from_millis(200),
    code: 7,
};

/// Everything a Job's task needs.
pub(crate) struct Ground {
    pub(crate) client: Client,
    pub(crate) jobs: Api<Job>,
    pub(crate) namespace: String,
    pub(crate) pods: Counter,
}

impl Ground {
    /// The name of a class.
    pub(crate) fn class(&self, class: Class) -> String {
        let backend = match class.adapter {
            Adapter::Kubernetes => "pods",
            Adapter::OpenSandbox => "sandboxes",
        };
        let again = if class.recreated { "-again" } else { "" };
        format!("{}-{backend}{again}", self.namespace)
    }

    /// One Job of the plan, under a token of its own.
    fn job(&self, planned: &PlannedJob, token: &str, deed: Deed) -> Job {
        let then = match deed {
            Deed::Exits { after, code } => format!("sleep {}; exit {code}", after.as_secs_f32()),
            Deed::Sleeps => "sleep 600".to_owned(),
            Deed::Obeys => "trap 'exit 0' TERM; sleep 600 & wait".to_owned(),
        };
        let (command, grace) = match planned.class.adapter {
            Adapter::Kubernetes => (
                self.pods.command(&format!("{}/{token}", self.namespace), &then),
                Some(2),
            ),
            Adapter::OpenSandbox => (Witness::command(&then), None),
        };
        let mut spec = JobSpec {
            job_class_name: Some(self.class(planned.class)),
            image: IMAGE.to_owned(),
            command,
            termination_grace_period_seconds: grace,
            ..JobSpec::default()
        };
        match planned.fate {
            Fate::Deadline { seconds } => spec.active_deadline_seconds = Some(seconds),
            Fate::StartingDeadline { seconds } => spec.starting_deadline_seconds = Some(seconds),
            Fate::Expires { seconds } => spec.ttl_seconds_after_finished = Some(seconds),
            Fate::Left | Fate::Cancelled { .. } | Fate::Deleted { .. } | Fate::Recreated { .. } => {}
        }
        let mut job = Job::new(&planned.name, spec);
        job.labels_mut().insert(TOKEN_LABEL.to_owned(), token.to_owned());
        job
    }

    /// Creates it, whatever stands in the way.
    async fn create(&self, job: &Job) -> anyhow::Result<()> {
        let token = job.labels().get(TOKEN_LABEL);
        persist("creating a Job", async || {
            match self.jobs.create(&PostParams::default(), job).await {
                // By the try before, whose answer was lost; or an earlier one of that name is not gone yet.
                Err(kube::Error::Api(status)) if status.is_already_exists() => {
                    let there = self.jobs.get(&job.name_any()).await?;
                    if there.labels().get(TOKEN_LABEL) == token {
                        Ok(())
                    } else {
                        Err(kube::Error::Api(status))
                    }
                }
                other => other.map(drop),
            }
        })
        .await
    }

    /// The life of one planned Job, as far as it is not the adapters'.
    pub(crate) async fn live(&self, planned: &PlannedJob) -> anyhow::Result<()> {
        let name = planned.name.clone();
        self.create(&self.job(planned, &name, planned.deed)).await?;
        match planned.fate {
            Fate::Left | Fate::Deadline { .. } | Fate::StartingDeadline { .. } | Fate::Expires { .. } => {}
            Fate::Cancelled { after } => {
                sleep(after).await;
                let patch = Patch::Merge(json!({"spec": {"cancelRequested": true}}));
                persist("cancelling a Job", async || {
                    let patched = self.jobs.patch(&name, &PatchParams::default(), &patch).await;
                    patched.map(drop)
                })
                .await?;
            }
            Fate::Deleted { after } => {
                sleep(after).await;
                self.delete(&name).await?;
            }
            Fate::Recreated { after } => {
                sleep(after).await;
                self.delete(&name).await?;
                let successor = PlannedJob {
                    fate: Fate::Left,
                    ..planned.clone()
                };
                self.create(&self.job(&successor, &second(&name), SUCCESSOR))
                    .await?;
            }
        }
        Ok(())
    }

    async fn delete(&self, name: &str) -> anyhow::Result<()> {
        persist("deleting a Job", async || {
            gone_already(self.jobs.delete(name, &DeleteParams::default()).await.map(drop))
        })
        .await
    }
}

/// The token of the second Job of a name.
pub(crate) fn second(name: &str) -> String {
    format!("{name}.second")
}

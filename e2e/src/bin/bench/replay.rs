//! What our Jobs cost whoever decides nothing: the writes of one real life, made again for Jobs that no adapter looks
//! after. What is left of the difference to native is what the API server takes for the writes themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use ayatori_core::conditions::{FINISHED, STARTED};
use ayatori_core::job::Job;
use ayatori_core::names::{JOB_NAME_LABEL, RESULT_FINALIZER};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::arena::Arena;
use crate::chronicle::Watching;
use crate::peer::{self, Peer, Work};

/// How long a life may take to be over and told.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many lives are led at the same time: enough for the API server never to wait for the next write.
const AT_ONCE: usize = 200;

/// The life that is led again and again.
pub(crate) struct Life {
    /// Its batch Job as it was created, as text.
    batch_job: String,
    /// What its texts are replaced in: the names of both.
    names: [String; 2],
    /// What was written to the Job, in order.
    writes: Vec<Write>,
}

/// One write to a Job.
struct Write {
    /// The merge patch.
    patch: Value,
    /// Of the status; else of the metadata.
    status: bool,
    /// What has to have happened before.
    after: Step,
}

/// How far the execution is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    #[default]
    Nothing,
    /// The batch Job was created.
    Created,
    /// There is a pod that may not start yet.
    Gated,
    /// The pod runs.
    Runs,
    /// The pod has ended.
    Ended,
    /// Our finalizer was taken off the pod.
    Released,
}

/// The pod of a Job, as far as it is seen.
#[derive(Clone, Default)]
struct Seen {
    step: Step,
    pod: String,
    finalizers: Vec<String>,
}

impl Life {
    /// Records a life that an adapter leads.
    pub(crate) async fn record(arena: &Arena<'_>) -> anyhow::Result<Self> {
        let namespace = Peer::Ours.namespace();
        let name = "model-000000";
        let jobs = Api::<Job>::namespaced(arena.client.clone(), namespace);
        let versions = watcher(
            jobs,
            watcher::Config::default().fields(&format!("metadata.name={name}")),
        );
        let mut versions = std::pin::pin!(versions.default_backoff());
        let mut writes = Vec::new();
        let mut before = peer::ours(name, &Work::NOTHING);
        let whole = async {
            while let Some(event) = versions.next().await {
                let job = match event? {
                    Event::Apply(job) => job,
                    Event::InitDone => {
                        // Not before, so that no version is missed.
                        Peer::Ours
                            .create(&arena.client, namespace, name, &Work::NOTHING)
                            .await?;
                        continue;
                    }
                    Event::Init | Event::InitApply(_) | Event::Delete(_) => continue,
                };
                if let Some(write) = Write::between(&before, &job)? {
                    writes.push(write);
                }
                let released = status(&job)?["execution"].get("releaseTime").is_some();
                before = job;
                if released {
                    return Ok(());
                }
            }
            anyhow::bail!("the watch has ended")
        };
        let whole = tokio::time::timeout(PATIENCE, whole).await;
        whole.context("the life to record takes too long")??;
        let of_it = ListParams::default().labels(&format!("{JOB_NAME_LABEL}={name}"));
        let all = Api::<BatchJob>::namespaced(arena.client.clone(), namespace);
        let batch_job = all.list(&of_it).await?.items.into_iter().next();
        let batch_job = batch_job.context("the life to record has no batch Job")?;
        Ok(Self {
            names: [batch_job.name_any(), name.to_owned()],
            batch_job: as_created(&batch_job)?.to_string(),
            writes,
        })
    }

    /// How many writes to a Job there are.
    pub(crate) fn writes(&self) -> usize {
        // The batch Job, the gate and the finalizer of the pod.
        self.writes.len() + 3
    }

    /// Lets Jobs live it, all at once, and returns how long it took until the last one was finished.
    pub(crate) async fn led(&self, arena: &Arena<'_>, name: &str, jobs: u32) -> anyhow::Result<Duration> {
        let namespace = Peer::Ours.namespace();
        let pods = Pods::default();
        let watching = Watching(vec![tokio::spawn(pods.clone().follow(arena.client.clone()))]);
        let begin = Instant::now();
        let lives = (0..jobs).map(async |number| {
            let name = format!("{name}-{number:06}");
            let led = self.led_by(&arena.client, namespace, &name, &pods).await;
            led.with_context(|| format!("leading the life of {name}"))
        });
        let ended = futures::stream::iter(lives).buffer_unordered(AT_ONCE);
        let ended: Vec<Instant> = futures::TryStreamExt::try_collect(ended).await?;
        drop(watching);
        let last = ended.into_iter().max().context("no Job has ended")?;
        Ok(last.duration_since(begin))
    }

    async fn led_by(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
        pods: &Pods,
    ) -> anyhow::Result<Instant> {
        let jobs = Api::<Job>::namespaced(client.clone(), namespace);
        let batch_jobs = Api::<BatchJob>::namespaced(client.clone(), namespace);
        let all_pods = Api::<Pod>::namespaced(client.clone(), namespace);
        let params = PatchParams::apply("bench-replay");
        let patch_pod = async |pod: &str, patch: Value| {
            let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
            anyhow::Ok(
                all_pods
                    .patch_metadata(pod, &PatchParams::default(), &patch)
                    .await
                    .map(drop)?,
            )
        };
        let mut seen = pods.of(name);
        let mut done = Step::Nothing;
        let mut finished = None;
        Peer::Ours.create(client, namespace, name, &Work::NOTHING).await?;
        for write in &self.writes {
            while done < write.after {
                done = match done {
                    Step::Nothing => {
                        let [batch_name, own] = &self.names;
                        let text = self.batch_job.replace(batch_name, name).replace(own, name);
                        let batch_job = serde_json::from_str(&text)?;
                        batch_jobs.create(&PostParams::default(), &batch_job).await?;
                        Step::Created
                    }
                    Step::Created => {
                        let pod = seen.wait_for(|seen| seen.step >= Step::Gated).await?.pod.clone();
                        let path = "/spec/schedulingGates/0";
                        patch_pod(&pod, json!([{"op": "remove", "path": path}])).await?;
                        Step::Gated
                    }
                    Step::Gated => seen
                        .wait_for(|seen| seen.step >= Step::Runs)
                        .await?
                        .step
                        .min(Step::Runs),
                    Step::Runs => seen.wait_for(|seen| seen.step >= Step::Ended).await?.step,
                    Step::Ended | Step::Released => {
                        let Seen { pod, finalizers, .. } = seen.borrow().clone();
                        let index = finalizers.iter().position(|f| f == RESULT_FINALIZER);
                        let path = format!(
                            "/metadata/finalizers/{}",
                            index.context("our finalizer is not there")?
                        );
                        let patch = json!([
                            {"op": "test", "path": path, "value": RESULT_FINALIZER}, {"op": "remove", "path": path},
                        ]);
                        patch_pod(&pod, patch).await?;
                        finished = Some(Instant::now());
                        Step::Released
                    }
                };
            }
            let patch = Patch::Merge(&write.patch);
            if write.status {
                jobs.patch_status(name, &params, &patch).await?;
            } else {
                jobs.patch(name, &params, &patch).await?;
            }
        }
        finished.context("the life that was recorded has no end")
    }
}

impl Write {
    /// What turned one version into the next, if anything that is written.
    fn between(before: &Job, after: &Job) -> anyhow::Result<Option<Self>> {
        let (old, new) = (status(before)?, status(after)?);
        let execution = &new["execution"];
        let says = |condition: &str| {
            let all = new["conditions"].as_array().into_iter().flatten();
            all.into_iter()
                .any(|c| c["type"] == condition && c["status"] == "True")
        };
        let after_which = if execution.get("releaseTime").is_some() {
            Step::Released
        } else if says(FINISHED) {
            Step::Ended
        } else if says(STARTED) {
            Step::Runs
        } else if execution.get("uid").is_some() {
            Step::Created
        } else {
            Step::Nothing
        };
        let write = |patch: Value, status: bool| {
            Some(Self {
                patch,
                status,
                after: after_which,
            })
        };
        let finalizers = &after.metadata.finalizers;
        Ok(if before.metadata.finalizers != *finalizers {
            write(json!({"metadata": {"finalizers": finalizers}}), false)
        } else if before.metadata.uid.is_some() && old != new {
            write(json!({"status": new}), true)
        } else {
            None
        })
    }
}

fn status(job: &Job) -> anyhow::Result<Value> {
    Ok(serde_json::to_value(&job.status)?)
}

/// A batch Job without what the API server and the Job controller have added.
fn as_created(batch_job: &BatchJob) -> anyhow::Result<Value> {
    let metadata = &batch_job.metadata;
    let own = |labels: Option<&std::collections::BTreeMap<String, String>>| {
        let labels = labels.into_iter().flatten();
        let own = labels.filter(|(key, _)| !key.contains("job-name") || key.as_str() == JOB_NAME_LABEL);
        let own = own.filter(|(key, _)| !key.contains("controller-uid"));
        own.map(|(key, value)| (key.clone(), value.clone()))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    let mut spec = batch_job.spec.clone().context("the batch Job has no spec")?;
    spec.selector = None;
    let mut template = spec.template.metadata.take().unwrap_or_default();
    template.labels = Some(own(template.labels.as_ref()));
    spec.template.metadata = Some(template);
    Ok(json!({
        "metadata": {
            "name": batch_job.name_any(), "labels": own(metadata.labels.as_ref()), "annotations": metadata.annotations,
            "finalizers": metadata.finalizers,
        },
        "spec": spec,
    }))
}

/// The pods of all Jobs, by the names of these.
#[derive(Clone, Default)]
struct Pods(Arc<Mutex<HashMap<String, watch::Sender<Seen>>>>);

impl Pods {
    fn of(&self, name: &str) -> watch::Receiver<Seen> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name.to_owned()).or_default().subscribe()
    }

    async fn follow(self, client: Client) {
        let pods = Api::<Pod>::namespaced(client, Peer::Ours.namespace());
        let events = watcher(pods, watcher::Config::default())
            .default_backoff()
            .applied_objects();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(pod) => self.note(&pod),
                Err(error) => eprintln!("a watch of the bench: {error}"),
            }
        }
    }

    fn note(&self, pod: &Pod) {
        let Some((_, name)) = peer::subject(pod) else {
            return;
        };
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        let seen = Seen {
            step: match phase {
                Some("Succeeded" | "Failed") => Step::Ended,
                Some("Running") => Step::Runs,
                _ => Step::Gated,
            },
            pod: pod.name_any(),
            finalizers: pod.finalizers().to_vec(),
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(name).or_default().send_replace(seen);
    }
}

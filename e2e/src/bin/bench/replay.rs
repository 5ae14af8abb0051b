//! What our Jobs cost whoever decides nothing: the writes of one real life, made again for Jobs that no adapter looks
//! after. What is left of the difference to native is what the API server takes for the writes themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use ayatori_controller::status_writer::difference;
use ayatori_core::conditions::{self, FINISHED, STARTED};
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
use crate::figures::{Figure, Spread};
use crate::herd;
use crate::measure::PAUSE;
use crate::peer::{self, Peer, Work};

/// How long a life may take to be over and told.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the writes alone are made.
const ROUNDS: u32 = 3;
/// How many lives are led at the same time: enough for the API server never to wait for the next write.
const AT_ONCE: usize = 200;

/// The life that is led again and again.
pub(crate) struct Life {
    work: Work,
    /// Its batch Job, if it has one.
    batch_job: Option<Copied>,
    /// What was written to the Job, in order.
    writes: Vec<Write>,
}

/// A batch Job as it was created.
struct Copied {
    text: String,
    /// What a copy has its own name in place of: that of the batch Job, and that of its Job.
    names: [String; 2],
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
    /// Records a life that an adapter leads, doing this.
    pub(crate) async fn record(arena: &Arena<'_>, work: &Work) -> anyhow::Result<Self> {
        let namespace = Peer::Ours.namespace();
        let name = "model-000000";
        let jobs = Api::<Job>::namespaced(arena.client.clone(), namespace);
        let versions = watcher(
            jobs,
            watcher::Config::default().fields(&format!("metadata.name={name}")),
        );
        let mut versions = std::pin::pin!(versions.default_backoff());
        let mut writes = Vec::new();
        let mut before = peer::ours(name, work);
        let whole = async {
            while let Some(event) = versions.next().await {
                let job = match event? {
                    Event::Apply(job) => job,
                    Event::InitDone => {
                        // Not before, so that no version is missed.
                        Peer::Ours.create(&arena.client, namespace, name, work).await?;
                        continue;
                    }
                    Event::Init | Event::InitApply(_) | Event::Delete(_) => continue,
                };
                writes.extend(Write::between(&before, &job)?);
                before = job;
                if writes.last().is_some_and(|write| write.after == Step::Released) {
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
        let copied = |batch_job: BatchJob| {
            anyhow::Ok(Copied {
                names: [batch_job.name_any(), name.to_owned()],
                text: as_created(&batch_job)?.to_string(),
            })
        };
        Ok(Self {
            work: work.clone(),
            batch_job: batch_job.map(copied).transpose()?,
            writes,
        })
    }

    /// How many Jobs a second there are when their writes are made and nothing is decided.
    pub(crate) async fn bound(&self, arena: &Arena<'_>, jobs: u32) -> anyhow::Result<Figure> {
        let mut rates = Vec::new();
        for round in 0..ROUNDS {
            let took = self.led(arena, &format!("replay{round}"), jobs).await?;
            let rate = f64::from(jobs) / took.as_secs_f64();
            eprintln!("bare writes: {rate:.1} Jobs/s");
            rates.push(rate);
            herd::forget(&arena.store, Peer::Ours.namespace()).await?;
            tokio::time::sleep(PAUSE).await;
        }
        let what = format!(
            "bound: the {} writes of a Job of ours, by a client that decides nothing",
            self.writes()
        );
        Ok(Figure::new(&what, "Jobs/s", Spread::of(&rates)))
    }

    /// How many writes there are after the creation of a Job.
    fn writes(&self) -> usize {
        // The batch Job, the gate and the finalizer of the pod.
        self.writes.len() + if self.batch_job.is_some() { 3 } else { 0 }
    }

    /// Lets Jobs live it, many at a time, and returns how long it took until the last one was finished.
    async fn led(&self, arena: &Arena<'_>, name: &str, jobs: u32) -> anyhow::Result<Duration> {
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

    /// Leads one life, and returns when it was finished.
    async fn led_by(
        &self,
        client: &Client,
        namespace: &str,
        name: &str,
        pods: &Pods,
    ) -> anyhow::Result<Instant> {
        let jobs = Api::<Job>::namespaced(client.clone(), namespace);
        let params = PatchParams::apply("bench-replay");
        let mut execution = self.batch_job.as_ref().map(|copied| Execution {
            batch_jobs: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            copied,
            seen: pods.of(name),
            done: Step::Nothing,
        });
        let mut finished = None;
        Peer::Ours.create(client, namespace, name, &self.work).await?;
        for write in &self.writes {
            if let Some(execution) = &mut execution {
                execution.advance(write.after, name).await?;
            }
            let patch = Patch::Merge(&write.patch);
            if write.status {
                jobs.patch_status(name, &params, &patch).await?;
            } else {
                jobs.patch(name, &params, &patch).await?;
            }
            if finished.is_none() && write.after >= Step::Ended {
                finished = Some(Instant::now());
            }
        }
        finished.context("the life that was recorded has no end")
    }
}

/// The execution of a Job whose life is led.
struct Execution<'a> {
    batch_jobs: Api<BatchJob>,
    pods: Api<Pod>,
    copied: &'a Copied,
    seen: watch::Receiver<Seen>,
    done: Step,
}

impl Execution<'_> {
    /// Does and waits for everything until then.
    async fn advance(&mut self, then: Step, name: &str) -> anyhow::Result<()> {
        while self.done < then {
            self.done = match self.done {
                Step::Nothing => {
                    let Copied { text, names } = self.copied;
                    let text = names
                        .iter()
                        .fold(text.clone(), |text, old| text.replace(old, name));
                    let batch_job = serde_json::from_str(&text)?;
                    self.batch_jobs.create(&PostParams::default(), &batch_job).await?;
                    Step::Created
                }
                Step::Created => {
                    self.seen(Step::Gated).await?;
                    self.patch_pod(json!([{"op": "remove", "path": "/spec/schedulingGates/0"}]))
                        .await?;
                    Step::Gated
                }
                Step::Gated => self.seen(Step::Runs).await?,
                Step::Runs => self.seen(Step::Ended).await?,
                Step::Ended | Step::Released => {
                    let index = self
                        .seen
                        .borrow()
                        .finalizers
                        .iter()
                        .position(|f| f == RESULT_FINALIZER);
                    let path = format!(
                        "/metadata/finalizers/{}",
                        index.context("our finalizer is not there")?
                    );
                    let patch = json!([
                        {"op": "test", "path": path, "value": RESULT_FINALIZER}, {"op": "remove", "path": path},
                    ]);
                    self.patch_pod(patch).await?;
                    Step::Released
                }
            };
        }
        Ok(())
    }

    /// Returns once the pod is seen to be that far.
    async fn seen(&mut self, step: Step) -> anyhow::Result<Step> {
        self.seen.wait_for(|seen| seen.step >= step).await?;
        Ok(step)
    }

    async fn patch_pod(&self, patch: Value) -> anyhow::Result<()> {
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
        let pod = self.seen.borrow().pod.clone();
        self.pods
            .patch_metadata(&pod, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }
}

impl Write {
    /// What turned one version into the next, if anything that is written.
    fn between(before: &Job, after: &Job) -> anyhow::Result<Option<Self>> {
        let (old, new) = (status(before)?, status(after)?);
        let shown = after.status.clone().unwrap_or_default();
        let says = |condition| conditions::is_true(&shown.conditions, condition);
        let execution = shown.execution.as_ref();
        let after_which = if execution.is_some_and(|e| e.release_time.is_some()) {
            Step::Released
        } else if says(FINISHED) {
            Step::Ended
        } else if says(STARTED) {
            Step::Runs
        } else if execution.is_some_and(|e| e.uid.is_some()) {
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
            write(json!({"status": difference(&old, &new)}), true)
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

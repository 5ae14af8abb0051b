//! The watches of the backend: what they fill, and which Jobs and classes each change concerns.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ayatori_controller::backoff::WatchBackoff;
use ayatori_controller::failure::brief;
use ayatori_core::conditions::clean;
use ayatori_core::execution::Why;
use ayatori_core::job::Job;
use ayatori_core::names::{JOB_UID_LABEL, START_GATE};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use tokio::sync::mpsc;

use crate::cache::{self, Cache, Cached, Filler, RuntimeClassName};
use crate::requests::Requests;
use crate::tidy;
use crate::view::{BatchJob, Identity, Node, Pod, Refusal, View, Viewed};

/// How long a question waits for caches that are still being filled.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long what this process did stands in for a watch that does not show it yet.
const LAG: Duration = Duration::from_secs(10);

/// The batch Jobs this process has just created or read live, by namespace and name, and when that was.
type Created = HashMap<(String, String), (Instant, Arc<BatchJob>)>;

/// What the watches have shown.
pub(crate) struct Caches {
    jobs: Arc<Cache<BatchJob>>,
    pods: Arc<Cache<Pod>>,
    nodes: Arc<Cache<Node>>,
    refusals: Arc<Cache<Refusal>>,
    runtime_classes: Arc<Cache<RuntimeClassName>>,
    created: Mutex<Created>,
    /// The pods whose gate this process has taken off, by UID, with the version it took it off.
    opened: Mutex<HashMap<String, (Instant, String)>>,
}

/// The watches that fill the caches, not started yet.
pub(crate) struct Watches {
    client: Client,
    caches: Arc<Caches>,
    jobs: Filler<BatchJob>,
    pods: Filler<Pod>,
    nodes: Filler<Node>,
    refusals: Filler<Refusal>,
}

/// The watch of RuntimeClasses, not started yet.
pub(crate) struct ClassWatch {
    client: Client,
    runtime_classes: Filler<RuntimeClassName>,
}

/// Empty caches and what fills them.
pub(crate) fn new(client: &Client) -> (Arc<Caches>, Watches, ClassWatch) {
    let (jobs, fill_jobs) = cache::new();
    let (pods, fill_pods) = cache::new();
    let (nodes, fill_nodes) = cache::new();
    let (refusals, fill_refusals) = cache::new();
    let (runtime_classes, fill_runtime_classes) = cache::new();
    let caches = Arc::new(Caches {
        jobs,
        pods,
        nodes,
        refusals,
        runtime_classes,
        created: Mutex::default(),
        opened: Mutex::default(),
    });
    let watches = Watches {
        client: client.clone(),
        caches: caches.clone(),
        jobs: fill_jobs,
        pods: fill_pods,
        nodes: fill_nodes,
        refusals: fill_refusals,
    };
    (
        caches,
        watches,
        ClassWatch {
            client: client.clone(),
            runtime_classes: fill_runtime_classes,
        },
    )
}

impl Caches {
    /// Waits until the caches of executions show what there is, but not for ever.
    pub(crate) async fn ready(&self) -> Result<(), Why> {
        let filled = async {
            self.jobs.filled().await;
            self.pods.filled().await;
            self.nodes.filled().await;
            self.refusals.filled().await;
        };
        in_time(filled, "batch Jobs, pods, nodes and Events").await
    }

    /// Whether a RuntimeClass of that name exists.
    pub(crate) async fn has_runtime_class(&self, name: &str) -> Result<bool, Why> {
        in_time(self.runtime_classes.filled(), "RuntimeClasses").await?;
        Ok(self.runtime_classes.get("", name).is_some())
    }

    pub(crate) fn batch_job(&self, namespace: &str, name: &str) -> Option<Arc<BatchJob>> {
        self.jobs.get(namespace, name).or_else(|| {
            let created = self.created();
            let (at, job) = created.get(&(namespace.to_owned(), name.to_owned()))?;
            (at.elapsed() < LAG).then(|| job.clone())
        })
    }

    /// Remembers what this process has just created, or has just read live.
    pub(crate) fn remember(&self, job: &Arc<BatchJob>) {
        let mut created = self.created();
        created.retain(|_, (at, _)| at.elapsed() < LAG);
        created.insert(names(job), (Instant::now(), job.clone()));
    }

    /// The pods that carry a Job's label. They claim to be its own; only their controller proves it.
    pub(crate) fn pods(&self, job_uid: &str) -> Vec<Arc<Pod>> {
        let mut pods = self.pods.of(job_uid);
        let opened = self.opened();
        for pod in &mut pods {
            let opened = opened.get(&pod.id.uid).filter(|(at, _)| at.elapsed() < LAG);
            if opened.is_some_and(|(_, version)| *version == pod.id.resource_version) {
                Arc::make_mut(pod).gates.retain(|gate| gate != START_GATE);
            }
        }
        pods
    }

    /// Remembers that this process has just taken the gate off this pod as it was read.
    pub(crate) fn remember_opened(&self, pod: &Pod) {
        let mut opened = self.opened();
        opened.retain(|_, (at, _)| at.elapsed() < LAG);
        opened.insert(
            pod.id.uid.clone(),
            (Instant::now(), pod.id.resource_version.clone()),
        );
    }

    /// Shows the UID of the Job that each batch Job and pod says it is of.
    pub(crate) fn executions(&self, show: &mut dyn FnMut(&str)) {
        self.jobs.each(|job| show(&job.id.job_uid));
        self.pods.each(|pod| show(&pod.id.job_uid));
    }

    /// The pods that our finalizer keeps and that fit.
    pub(crate) fn kept_pods(&self, wanted: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        self.pods.filter(|pod| pod.is_kept() && wanted(pod))
    }

    pub(crate) fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get("", name)
    }

    /// A node that is not Ready, if there is one.
    pub(crate) fn silent_node(&self) -> Option<Arc<Node>> {
        self.nodes
            .filter(|node| !node.ready)
            .into_iter()
            .min_by(|a, b| a.name.cmp(&b.name))
    }

    /// Why a batch Job has no pod, as far as Events tell.
    pub(crate) fn refusals(&self, batch_uid: &str) -> Vec<Arc<Refusal>> {
        self.refusals.of(batch_uid)
    }

    fn forget(&self, job: &BatchJob) {
        self.created().remove(&names(job));
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, HashMap<String, (Instant, String)>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn created(&self) -> std::sync::MutexGuard<'_, Created> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn names(job: &BatchJob) -> (String, String) {
    (job.id.namespace.clone(), job.id.name.clone())
}

async fn in_time(filled: impl Future<Output = ()>, what: &str) -> Result<(), Why> {
    tokio::time::timeout(PATIENCE, filled).await.map_err(|_| {
        let message = format!(
            "the adapter has not been able to read {what} yet; if it stays so, look at its log and its role"
        );
        Why::new("BackendUnreachable", message)
    })
}

impl Watches {
    /// Starts the watches. The Jobs of which something changed come out.
    pub(crate) fn changes(self, requests: Requests) -> BoxStream<'static, ObjectRef<Job>> {
        let Self {
            client,
            caches,
            jobs,
            pods,
            nodes,
            refusals,
        } = self;
        let ours = || watcher::Config::default().labels(JOB_UID_LABEL);
        let (suspects, suspected) = mpsc::channel(tidy::SUSPECTS);

        let of_jobs = {
            let caches = caches.clone();
            mirror(client.clone(), ours(), jobs).map(move |changed: Vec<Arc<BatchJob>>| {
                changed.iter().for_each(|job| caches.forget(job));
                changed.iter().filter_map(|job| job_of(&job.id)).collect()
            })
        };
        let of_pods = mirror(client.clone(), ours(), pods).map(move |changed: Vec<Arc<Pod>>| {
            for pod in changed.iter().filter(|pod| tidy::is_suspect(pod)) {
                // Where there is no room, a round finds it.
                let _ = suspects.try_send(pod.clone());
            }
            changed.iter().filter_map(|pod| job_of(&pod.id)).collect()
        });
        let of_nodes = {
            let caches = caches.clone();
            let every = watcher::Config::default();
            mirror(client.clone(), every, nodes).map(move |changed| jobs_on(&caches, &changed))
        };
        let of_refusals = {
            let caches = caches.clone();
            let failed = watcher::Config::default().fields("involvedObject.kind=Job,reason=FailedCreate");
            mirror(client, failed, refusals).map(move |changed: Vec<Arc<Refusal>>| {
                changed
                    .iter()
                    .filter_map(|r| job_of(&caches.jobs.get(&r.namespace, &r.batch_name)?.id))
                    .collect()
            })
        };
        let tidying = stream::once(tidy::keep_tidy(requests, caches, suspected)).map(|()| Vec::new());
        let all: [BoxStream<'static, Vec<ObjectRef<Job>>>; 5] = [
            of_jobs.boxed(),
            of_pods.boxed(),
            of_nodes.boxed(),
            of_refusals.boxed(),
            tidying.boxed(),
        ];
        stream::select_all(all).flat_map(stream::iter).boxed()
    }
}

#[cfg(test)]
impl Watches {
    /// Fills the caches with exactly this.
    pub(crate) fn show(&mut self, jobs: Vec<Arc<BatchJob>>, pods: Vec<Arc<Pod>>, nodes: Vec<Arc<Node>>) {
        fn fill<V: Cached + PartialEq>(filler: &mut Filler<V>, values: Vec<Arc<V>>) {
            filler.apply(&Event::Init);
            for value in values {
                filler.apply(&Event::InitApply(value));
            }
            filler.apply(&Event::InitDone);
        }
        fill(&mut self.jobs, jobs);
        fill(&mut self.pods, pods);
        fill(&mut self.nodes, nodes);
        fill(&mut self.refusals, Vec::new());
    }
}

impl ClassWatch {
    /// Starts the watch. Which classes need which RuntimeClass is not known here, so all may have changed.
    pub(crate) fn changes(self) -> BoxStream<'static, Option<String>> {
        mirror(self.client, watcher::Config::default(), self.runtime_classes)
            .map(|_| None)
            .boxed()
    }
}

fn job_of(id: &Identity) -> Option<ObjectRef<Job>> {
    (!id.job_name.is_empty()).then(|| ObjectRef::new(&id.job_name).within(&id.namespace))
}

fn jobs_on(caches: &Caches, nodes: &[Arc<Node>]) -> Vec<ObjectRef<Job>> {
    let on_them = |pod: &Pod| nodes.iter().any(|node| pod.node.as_ref() == Some(&node.name));
    caches
        .pods
        .filter(on_them)
        .iter()
        .filter_map(|pod| job_of(&pod.id))
        .collect()
}

/// Fills a cache from a watch, for ever, and tells what changed after the cache shows it.
fn mirror<V>(
    client: Client,
    config: watcher::Config,
    filler: Filler<V>,
) -> impl Stream<Item = Vec<Arc<V>>> + Send
where
    V: View + Cached + PartialEq + Debug + Send + Sync + 'static,
{
    let events = watcher(Api::<Viewed<V>>::all(client), config).backoff(WatchBackoff::default());
    let shown = events.filter_map(|event| {
        let event = match event {
            Ok(event) => Some(viewed(event)),
            Err(error) => {
                let kind = V::Object::kind(&());
                tracing::warn!(%kind, error = watch_error(&error), "a watch failed and is started again");
                None
            }
        };
        futures::future::ready(event)
    });
    shown
        .scan(filler, |filler, event| {
            futures::future::ready(Some(filler.apply(&event)))
        })
        .filter(|changed| futures::future::ready(!changed.is_empty()))
}

fn viewed<V: View>(event: Event<Viewed<V>>) -> Event<Arc<V>> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(object.view),
        Event::Apply(object) => Event::Apply(object.view),
        Event::Delete(object) => Event::Delete(object.view),
    }
}

fn watch_error(error: &watcher::Error) -> String {
    use std::error::Error as _;
    let cause = error.source().and_then(|e| e.downcast_ref::<kube::Error>());
    cause.map_or_else(|| clean(&error.to_string(), 300), brief)
}

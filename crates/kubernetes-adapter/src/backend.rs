//! The [`Backend`] of batch/v1 Jobs: asks caches and the API server, lets [`crate::observe`] say what that means,
//! and sends the requests that follow.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ayatori_controller::backend::Backend;
use ayatori_controller::references::{References, SecretScope};
use ayatori_controller::telemetry::Telemetry;
use ayatori_core::admission::Admissible;
use ayatori_core::execution::{Answer, ExecutionName, Prospect, Protocol, Remains, State, Submission, Why};
use ayatori_core::job::{BackendIdentity, Execution, Job};
use ayatori_core::job_class::JobClass;
use ayatori_core::names::KUBERNETES_CONTROLLER;
use ayatori_core::parameters::KubernetesExecutionParameters;
use ayatori_core::stage::{Accepted, Attempted, Closed, Departing, Recorded};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use jiff::{SignedDuration, Timestamp};
use kube::runtime::reflector::ObjectRef;
use kube::{Client, ResourceExt};

use crate::manifest;
use crate::name;
use crate::observe::{self, NodeHealth, Record, no_pod_recorded};
use crate::requests::{Failure, Requests};
use crate::view::{BatchJob, Container, Phase, Pod};
use crate::watch::{self, Caches, ClassWatch, Watches};

/// How long a pod may go on after its main container ended, before it is stopped.
const AFTERLIFE: SignedDuration = SignedDuration::from_secs(10);

/// When a release or a removal that waits for the cluster looks again, should no watch wake it.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// The grace period of pods that name none.
const DEFAULT_GRACE: i32 = 30;

/// What the Kubernetes adapter can be told on its command line.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "kubernetes")] // clap names it after the type, and the adapter's own are Options too
pub struct Options {
    /// Seconds after its own deadline at which a Job is ended by Kubernetes itself, should the adapter be away.
    #[arg(long, default_value_t = 120)]
    pub job_guard_seconds: u32,

    /// Seconds after which a stop that kube-controller-manager has not carried out is carried out by deleting
    /// the pod.
    #[arg(long, default_value_t = 5)]
    pub controller_slow_seconds: u32,

    /// Seconds for which a dead node may still be shown as Ready: kube-controller-manager's
    /// --node-monitor-grace-period, and some more.
    #[arg(long, default_value_t = 60)]
    pub node_silence_seconds: u32,

    /// Look up whether Secrets that Jobs refer to exist, in all namespaces. Needs the right to get Secrets.
    /// Without this and --secret-namespaces a missing Secret shows only as Started=False/ContainerConfigError.
    #[arg(long)]
    pub allow_secret_checks: bool,

    /// Look them up in these namespaces only. A Job elsewhere that refers to a Secret is refused with
    /// ReferenceForbidden.
    #[arg(long, value_delimiter = ',', conflicts_with = "allow_secret_checks")]
    pub secret_namespaces: Vec<String>,
}

impl Options {
    fn secret_scope(&self) -> SecretScope {
        match (self.allow_secret_checks, self.secret_namespaces.as_slice()) {
            (true, _) => SecretScope::Everywhere,
            (false, []) => SecretScope::Nowhere,
            (false, namespaces) => SecretScope::Namespaces(namespaces.to_vec()),
        }
    }
}

/// The backend of batch/v1 Jobs in this cluster.
pub struct KubernetesBackend {
    requests: Requests,
    caches: Arc<Caches>,
    references: References,
    guard: SignedDuration,
    controller_slow: SignedDuration,
    node_silence: Duration,
    /// Since when this process has missed pods while their nodes were Ready, by UID.
    missed: Mutex<HashMap<String, Instant>>,
    /// Taken by the one who starts them.
    watches: Mutex<Option<Watches>>,
    class_watch: Mutex<Option<ClassWatch>>,
}

impl KubernetesBackend {
    /// A backend whose watches are not started yet.
    pub fn new(client: &Client, options: &Options) -> Self {
        let (caches, watches, class_watch) = watch::new(client);
        Self {
            requests: Requests::new(client.clone()),
            caches,
            references: References::new(client.clone(), options.secret_scope()),
            guard: SignedDuration::from_secs(options.job_guard_seconds.into()),
            controller_slow: SignedDuration::from_secs(options.controller_slow_seconds.into()),
            node_silence: Duration::from_secs(options.node_silence_seconds.into()),
            missed: Mutex::default(),
            watches: Mutex::new(Some(watches)),
            class_watch: Mutex::new(Some(class_watch)),
        }
    }

    /// The same, whose requests are told of there.
    #[must_use]
    pub fn telling(self, telemetry: Telemetry) -> Self {
        Self {
            requests: self.requests.telling(telemetry),
            ..self
        }
    }

    // -------------------------------------------------------------------------------------------- questions

    async fn prospect(&self, accepted: Accepted<'_>) -> Result<Prospect, Why> {
        self.caches.ready().await?;
        let id = JobId::of(accepted.job());
        let batch = self.caches.batch_job(&id.namespace, &id.child);
        let pods = self.caches.pods(&id.uid);
        let refusals = batch
            .as_ref()
            .map(|b| self.caches.refusals(&b.id.uid))
            .unwrap_or_default();
        let backend = identity(&accepted.class().parameters_ref.uid);
        Ok(observe::prospect(
            &id.uid,
            backend,
            batch.as_deref(),
            &pods,
            &refusals,
        ))
    }

    async fn state(&self, recorded: Recorded<'_>) -> Result<State, Why> {
        self.caches.ready().await?;
        let id = JobId::of(recorded.job());
        let Some(record) = Record::of(recorded) else {
            return Ok(State::Unobservable(no_pod_recorded()));
        };
        let pod_uid = record.pod;
        let Some(pod) = self.recorded_pod(&id, pod_uid).await.map_err(Failure::why)? else {
            let node = self.health(record.node).await;
            let settled = self.is_settled(pod_uid, node, self.settling(recorded.job()));
            return Ok(State::Gone(observe::missing(record, node, settled)));
        };
        self.missed().remove(pod_uid);
        let batch = self
            .caches
            .batch_job(&id.namespace, &id.child)
            .filter(|b| b.id.uid == recorded.id());
        let node = match &pod.node {
            Some(node) => self.health(Some(node)).await,
            // On no node: there is none that could be silent.
            None => NodeHealth::Ready,
        };
        Ok(observe::state(record, batch.as_deref(), &pod, node))
    }

    /// The recorded pod. That a cache does not show it is no proof: asked live, then, and not by its label, which
    /// somebody may have taken off while its process runs.
    async fn recorded_pod(&self, id: &JobId, pod_uid: &str) -> Result<Option<Arc<Pod>>, Failure> {
        match self
            .caches
            .pods(&id.uid)
            .into_iter()
            .find(|p| p.id.uid == pod_uid)
        {
            Some(pod) => Ok(Some(pod)),
            None => self.requests.pod(&id.namespace, pod_uid).await,
        }
    }

    /// The batch Job with the recorded UID, if there still is one.
    async fn recorded_batch_job(&self, id: &JobId, uid: &str) -> Result<Option<Arc<BatchJob>>, Failure> {
        let with_uid = |job: Option<Arc<BatchJob>>| job.filter(|b| b.id.uid == uid);
        match with_uid(self.caches.batch_job(&id.namespace, &id.child)) {
            Some(job) => Ok(Some(job)),
            None => Ok(with_uid(self.requests.batch_job(&id.namespace, &id.child).await?)),
        }
    }

    /// The health of a node; of the worst one if it is not known which.
    async fn health(&self, name: Option<&str>) -> NodeHealth {
        let Some(name) = name else {
            return if self.caches.silent_node().is_some() {
                NodeHealth::Silent
            } else {
                NodeHealth::Ready
            };
        };
        let node = match self.caches.node(name) {
            Some(node) => Some(node.ready),
            None => match self.requests.node(name).await {
                Ok(node) => node.map(|n| n.ready),
                Err(_) => Some(false),
            },
        };
        match node {
            Some(true) => NodeHealth::Ready,
            Some(false) => NodeHealth::Silent,
            None => NodeHealth::Gone,
        }
    }

    /// Whether the node has been Ready for that long with the pod gone.
    fn is_settled(&self, pod_uid: &str, node: NodeHealth, settling: Duration) -> bool {
        const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);
        let mut missed = self.missed();
        if node != NodeHealth::Ready {
            missed.remove(pod_uid);
            return false;
        }
        missed.retain(|_, since| since.elapsed() < FORGOTTEN);
        missed
            .entry(pod_uid.to_owned())
            .or_insert_with(Instant::now)
            .elapsed()
            >= settling
    }

    fn missed(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a node must have been Ready after its pod vanished: a dead one is shown as Ready for a while, and
    /// a living kubelet gives the process its grace.
    fn settling(&self, job: &Job) -> Duration {
        let grace = job.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
        self.node_silence
            .saturating_add(Duration::from_secs(u64::try_from(grace).unwrap_or(0)))
    }

    // ---------------------------------------------------------------------------------------------- effects

    async fn create(
        &self,
        accepted: Accepted<'_>,
        parameters: &KubernetesExecutionParameters,
    ) -> Result<Answer, Failure> {
        let id = JobId::of(accepted.job());
        let batch = manifest::batch_job(
            accepted,
            &parameters.spec,
            &id.child,
            self.guard,
            Timestamp::now(),
        )
        .map_err(Failure::Rejected)?;
        let stored = match self.requests.create(&id.namespace, &batch).await {
            Ok(created) => created,
            Err(Failure::Exists) => {
                let existing = self
                    .requests
                    .batch_job(&id.namespace, &id.child)
                    .await?
                    .ok_or(Failure::Stale)?;
                if existing.owner.as_ref() != Some(&id.uid) {
                    return Err(Failure::Rejected(observe::stranger(&existing)));
                }
                existing
            }
            Err(failure) => return Err(failure),
        };
        self.caches.remember(&stored);
        Ok(Answer::Done)
    }

    async fn open_gate(&self, recorded: Recorded<'_>) -> Result<Answer, Failure> {
        let id = JobId::of(recorded.job());
        let pod_uid = recorded
            .uid()
            .ok_or_else(|| Failure::Rejected(no_pod_recorded()))?;
        let pod = self.recorded_pod(&id, pod_uid).await?.ok_or(Failure::Stale)?;
        self.requests.open_gate(&pod).await?;
        self.caches.remember_opened(&pod);
        Ok(Answer::Done)
    }

    async fn end(&self, recorded: Recorded<'_>) -> Result<Answer, Failure> {
        let id = JobId::of(recorded.job());
        let pod_uid = recorded
            .uid()
            .ok_or_else(|| Failure::Rejected(no_pod_recorded()))?;
        let Some(batch) = self.recorded_batch_job(&id, recorded.id()).await? else {
            return self.delete_if_going_on(&id, pod_uid).await;
        };
        if batch.deleting || batch.terminal {
            return self.delete_if_going_on(&id, pod_uid).await;
        }
        if batch.suspended {
            // A deadline has no effect on it.
            self.requests.delete_batch_job(&batch).await?;
            return Ok(Answer::Done);
        }
        if batch.active_deadline_seconds != Some(1) {
            self.requests.expire(&batch).await?;
            return Ok(Answer::Later(self.controller_slow));
        }
        let requested = recorded
            .stop()
            .map_or(Timestamp::UNIX_EPOCH, |stop| stop.requested_time.0);
        let patience = left_of(self.controller_slow, requested);
        if patience.is_positive() {
            return Ok(Answer::Later(patience));
        }
        self.delete_if_going_on(&id, pod_uid).await
    }

    async fn delete_if_going_on(&self, id: &JobId, pod_uid: &str) -> Result<Answer, Failure> {
        if let Some(pod) = self
            .recorded_pod(id, pod_uid)
            .await?
            .filter(|pod| pod.deletion.is_none())
        {
            self.requests.delete_pod(&pod).await?;
        }
        Ok(Answer::Done)
    }

    /// One write in the ordinary case: our finalizer off the recorded pod.
    async fn give_back(&self, closed: Closed<'_>) -> Result<Answer, Failure> {
        let id = JobId::of(closed.job());
        let names = Names::of(closed.execution());
        let Some(recorded) = names.pod else {
            return self.clear(&self.held_or_live(&id, names).await?).await;
        };
        let held = self.held(&id, names);
        let mut later = false;
        if let Some(pod) = self.recorded_pod(&id, recorded).await? {
            if pod.phase == Phase::Open && !pod.never_runs() {
                return self.stop_afterlife(&held, &pod, closed.finished_at()).await;
            }
            self.requests.let_go(&pod).await?;
        }
        if let Some(batch) = held
            .batch
            .as_ref()
            .filter(|b| b.suspended && !b.deleting && !b.terminal)
        {
            self.requests.delete_batch_job(batch).await?;
        }
        for extra in held
            .pods
            .iter()
            .filter(|pod| pod.id.uid != recorded && pod.is_kept())
        {
            later = true;
            self.dismiss(held.batch.as_deref(), extra).await?;
        }
        Ok(if later { Answer::Later(AGAIN) } else { Answer::Done })
    }

    /// The command has ended, but its pod goes on: a sidecar, or a container somebody injected.
    async fn stop_afterlife(&self, held: &Held, pod: &Pod, finished: Timestamp) -> Result<Answer, Failure> {
        let patience = left_of(AFTERLIFE, finished);
        let ended_by_now = matches!(&pod.main, Container::Terminated(_));
        if ended_by_now && patience.is_positive() {
            return Ok(Answer::Later(patience));
        }
        if pod.deletion.is_none() {
            self.dismiss(held.batch.as_deref(), pod).await?;
        }
        Ok(Answer::Later(AGAIN))
    }

    /// Has a pod go that nobody needs: through its batch Job while that has a say, and directly otherwise.
    async fn dismiss(&self, batch: Option<&BatchJob>, pod: &Pod) -> Result<(), Failure> {
        if pod.never_runs() || pod.phase == Phase::Terminal {
            return self.requests.let_go(pod).await;
        }
        if pod.deletion.is_some() {
            return Ok(());
        }
        match batch.filter(|b| !b.deleting && !b.terminal && !b.suspended) {
            Some(batch) if batch.active_deadline_seconds != Some(1) => self.requests.expire(batch).await,
            Some(_) | None => self.requests.delete_pod(pod).await,
        }
    }

    /// Deletes everything, in as many calls as the cluster needs.
    async fn clear(&self, held: &Held) -> Result<Answer, Failure> {
        if let Some(batch) = held.batch.as_ref().filter(|b| !b.deleting) {
            self.requests.delete_batch_job(batch).await?;
        }
        for pod in &held.pods {
            let over = pod.phase == Phase::Terminal || pod.node.is_none();
            if pod.is_kept() && over {
                self.requests.let_go(pod).await?;
            }
            // The batch Job's own deletion reaches only pods it still controls.
            let orphaned = held
                .batch
                .as_ref()
                .is_none_or(|b| pod.controller.as_ref() != Some(&b.id.uid));
            if orphaned && pod.deletion.is_none() {
                self.requests.delete_pod(pod).await?;
            }
        }
        Ok(if held.is_nothing() {
            Answer::Done
        } else {
            Answer::Later(AGAIN)
        })
    }

    // ---------------------------------------------------------------------------------- what belongs to a Job

    /// What there is of a Job. That the caches show nothing is no proof: asked live, then. As is, alone, the recorded
    /// pod where they do not show it: one whose label somebody took off is in no watch.
    async fn held_or_live(&self, id: &JobId, names: Names<'_>) -> Result<Held, Failure> {
        let mut cached = self.held(id, names);
        if cached.is_nothing() {
            return self.held_live(id, names).await;
        }
        self.add_recorded(id, names, &mut cached.pods).await?;
        Ok(cached)
    }

    /// Where it was released, the recorded one has ended and is not kept any more.
    async fn add_recorded(
        &self,
        id: &JobId,
        names: Names<'_>,
        pods: &mut Vec<Arc<Pod>>,
    ) -> Result<(), Failure> {
        if let Some(recorded) = names.pod.filter(|_| !names.released)
            && pods.iter().all(|pod| pod.id.uid != recorded)
        {
            pods.extend(self.requests.pod(&id.namespace, recorded).await?);
        }
        Ok(())
    }

    /// What the caches show of a Job.
    fn held(&self, id: &JobId, names: Names<'_>) -> Held {
        let batch = self.caches.batch_job(&id.namespace, &id.child);
        Held::of(id, names, batch, self.caches.pods(&id.uid))
    }

    /// The same, live.
    async fn held_live(&self, id: &JobId, names: Names<'_>) -> Result<Held, Failure> {
        let batch = self.requests.batch_job(&id.namespace, &id.child).await?;
        let mut pods = self.requests.pods(&id.namespace, &id.uid).await?;
        self.add_recorded(id, names, &mut pods).await?;
        Ok(Held::of(id, names, batch, pods))
    }
}

/// A Job, by the names its objects have.
struct JobId {
    namespace: String,
    uid: String,
    /// Name of its batch Job.
    child: String,
}

impl JobId {
    fn of(job: &Job) -> Self {
        let uid = job.uid().unwrap_or_default();
        Self {
            namespace: job.namespace().unwrap_or_default(),
            child: name::batch_job(&job.name_any(), &uid),
            uid,
        }
    }
}

/// What is stored of a Job's execution, if anything is: which objects it is, and whether it was released.
#[derive(Clone, Copy)]
struct Names<'a> {
    batch: Option<&'a str>,
    pod: Option<&'a str>,
    released: bool,
}

impl<'a> Names<'a> {
    fn of(execution: Option<&'a Execution>) -> Self {
        Self {
            batch: execution.and_then(|e| e.id.as_deref()),
            pod: execution.and_then(|e| e.uid.as_deref()),
            released: execution.is_some_and(|e| e.release_time.is_some()),
        }
    }
}

/// What the cluster holds of one Job, strangers left out.
struct Held {
    batch: Option<Arc<BatchJob>>,
    pods: Vec<Arc<Pod>>,
}

impl Held {
    fn of(id: &JobId, names: Names<'_>, batch: Option<Arc<BatchJob>>, pods: Vec<Arc<Pod>>) -> Self {
        let batch = batch.filter(|b| is_ours(id, names.batch, b));
        let belongs = |pod: &Pod| {
            let controlled = batch
                .as_ref()
                .is_some_and(|b| pod.controller.as_ref() == Some(&b.id.uid));
            // An orphaned pod is known by the finalizer that only our template gives.
            controlled || names.pod == Some(pod.id.uid.as_str()) || pod.is_kept()
        };
        let pods = pods.into_iter().filter(|pod| belongs(pod)).collect();
        Self { batch, pods }
    }

    fn is_nothing(&self) -> bool {
        self.batch.is_none() && self.pods.is_empty()
    }

    fn words(&self) -> String {
        let batch = self.batch.iter().map(|b| format!("batch Job {}", b.id.name));
        let pods = self.pods.iter().map(|p| {
            let others: Vec<_> = p
                .finalizers
                .iter()
                .filter(|f| *f != ayatori_core::names::RESULT_FINALIZER)
                .map(String::as_str)
                .collect();
            match others.as_slice() {
                [] => format!("pod {}", p.id.name),
                others => format!("pod {} (finalizers: {})", p.id.name, others.join(", ")),
            }
        });
        let all: Vec<_> = batch.chain(pods).collect();
        format!("{} still exist", all.join(", "))
    }
}

/// An orphaned batch Job has no owner any more, but still its label and its name.
fn is_ours(id: &JobId, batch_uid: Option<&str>, batch: &BatchJob) -> bool {
    match &batch.owner {
        _ if batch_uid == Some(batch.id.uid.as_str()) => true,
        Some(owner) => *owner == id.uid,
        None => batch.id.job_uid == id.uid,
    }
}

fn identity(parameters_uid: &str) -> BackendIdentity {
    // The backend is the cluster the Job is in: there is no endpoint that could be another.
    BackendIdentity {
        parameters_uid: parameters_uid.to_owned(),
        endpoint_hash: String::new(),
    }
}

/// What is left now of a time that began then.
fn left_of(time: SignedDuration, began: Timestamp) -> SignedDuration {
    time.saturating_sub(Timestamp::now().duration_since(began))
}

fn single_shot_only() -> Why {
    Why::new(
        "UnsupportedFeature",
        "batch Jobs are held before their command and never started by their creation",
    )
}

fn answer(result: Result<Answer, Failure>) -> Answer {
    result.unwrap_or_else(Answer::from)
}

fn once<W, T: Send + 'static>(
    watches: &Mutex<Option<W>>,
    start: impl FnOnce(W) -> BoxStream<'static, T>,
) -> BoxStream<'static, T> {
    match watches.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(watches) => start(watches),
        None => {
            tracing::error!(
                "the watches of the backend were asked for twice; only the first one who asked is told of changes"
            );
            stream::pending().boxed()
        }
    }
}

impl Backend for KubernetesBackend {
    type Parameters = KubernetesExecutionParameters;
    type Slot = ();

    fn controller_name(&self) -> &'static str {
        KUBERNETES_CONTROLLER
    }

    fn protocol(&self, _: &Self::Parameters) -> Protocol {
        Protocol::Hold
    }

    fn identity(&self, parameters: &Self::Parameters) -> BackendIdentity {
        identity(&parameters.uid().unwrap_or_default())
    }

    fn validate(&self, _: &Self::Parameters) -> Result<(), Why> {
        // The schema says everything that can be said without looking at the cluster.
        Ok(())
    }

    async fn probe(&self, _: &JobClass, parameters: &Self::Parameters) -> Result<Why, Why> {
        self.caches.ready().await?;
        if let Some(name) = &parameters.spec.runtime_class_name
            && !self.caches.has_runtime_class(name).await?
        {
            let message = format!(
                "RuntimeClass {name:?} does not exist; create it, or use parameters that name another"
            );
            return Err(Why::new("RuntimeClassNotFound", message));
        }
        Ok(Why::new(
            "BackendReachable",
            "this cluster runs the Jobs of the class as batch Jobs",
        ))
    }

    async fn admit(&self, job: &Job, _: &Admissible, _: &Self::Parameters) -> Result<Result<(), Why>, Why> {
        self.references.check(job).await
    }

    async fn survey(&self, job: Accepted<'_>, _: Option<&Self::Parameters>) -> Result<Prospect, Why> {
        self.prospect(job).await
    }

    fn reserve(&self, _: Accepted<'_>, _: &Self::Parameters) -> Result<(), Why> {
        Ok(())
    }

    async fn prepare(&self, job: Accepted<'_>, parameters: &Self::Parameters) -> Answer {
        answer(self.create(job, parameters).await)
    }

    async fn submit(&self, _: Attempted<'_>, _: &Self::Parameters) -> Submission {
        Submission::Refused(single_shot_only())
    }

    async fn discard(&self, _: Attempted<'_>, _: &ExecutionName, _: Option<&Self::Parameters>) -> Answer {
        Answer::Rejected(single_shot_only())
    }

    async fn start(&self, job: Recorded<'_>, _: Option<&Self::Parameters>) -> Answer {
        answer(self.open_gate(job).await)
    }

    async fn observe(&self, job: Recorded<'_>, _: Option<&Self::Parameters>) -> State {
        let unreachable = |why: Why| State::Unobservable(Why::new("BackendUnreachable", why.message));
        self.state(job).await.unwrap_or_else(unreachable)
    }

    async fn renew(&self, _: Recorded<'_>, _: Option<&Self::Parameters>) -> Answer {
        // Batch Jobs do not expire.
        Answer::Done
    }

    async fn stop(&self, job: Recorded<'_>, _: Option<&Self::Parameters>) -> Answer {
        answer(self.end(job).await)
    }

    async fn release(&self, job: Closed<'_>, _: Option<&Self::Parameters>) -> Answer {
        match self.caches.ready().await {
            Ok(()) => answer(self.give_back(job).await),
            Err(why) => Answer::Unavailable(why),
        }
    }

    async fn remains(&self, job: Departing<'_>, _: Option<&Self::Parameters>) -> Result<Remains, Why> {
        self.caches.ready().await?;
        let id = JobId::of(job.job());
        let held = self
            .held_or_live(&id, Names::of(job.execution()))
            .await
            .map_err(Failure::why)?;
        Ok(if held.is_nothing() {
            Remains::Nothing
        } else {
            Remains::Something(held.words())
        })
    }

    async fn remove(&self, job: Departing<'_>, _: Option<&Self::Parameters>) -> Answer {
        let id = JobId::of(job.job());
        match self.held_or_live(&id, Names::of(job.execution())).await {
            Ok(held) => answer(self.clear(&held).await),
            Err(failure) => failure.into(),
        }
    }

    async fn ready(&self) {
        while let Err(why) = self.caches.ready().await {
            tracing::info!(why = why.message, "not leading yet");
        }
    }

    fn executions(&self, show: &mut dyn FnMut(&str)) {
        self.caches.executions(show);
    }

    fn changes(&self) -> impl Stream<Item = ObjectRef<Job>> + Send + 'static {
        let requests = self.requests.clone();
        once(&self.watches, |watches| watches.changes(requests))
    }

    fn class_changes(&self) -> impl Stream<Item = Option<String>> + Send + 'static {
        once(&self.class_watch, ClassWatch::changes)
    }
}

#[cfg(test)]
mod tests;

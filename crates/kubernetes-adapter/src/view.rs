//! What is read of the objects of the cluster, and nothing else: a tenth of their size, parsed once.
//!
//! Values that this version does not know (a new phase, a new condition) are kept as "not terminal".

use std::borrow::Cow;
use std::sync::Arc;

use ayatori_controller::unmanaged::unmanaged;
use ayatori_core::conditions::clean;
use ayatori_core::names::{JOB_NAME_LABEL, JOB_UID_LABEL, RESULT_FINALIZER, START_GATE};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::core::DynamicResourceScope;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::manifest::CONTAINER;

/// How much is kept of a message from outside.
const EXCERPT: usize = 300;

/// What is kept of an object of some kind.
pub(crate) trait View: Sized {
    /// The kind.
    type Object: Resource<DynamicType = ()> + DeserializeOwned;

    fn of(object: Self::Object) -> Self;
}

/// An object, of which nothing but the view is kept as soon as its text has been read: a list of thousands is never
/// in memory as a whole.
#[derive(Debug)]
pub(crate) struct Viewed<V> {
    /// Its resourceVersion alone, from which a watch goes on.
    metadata: ObjectMeta,
    pub(crate) view: Arc<V>,
}

impl<'de, V: View> Deserialize<'de> for Viewed<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let object: V::Object = serde_json::from_str(&unmanaged(text.get())).map_err(D::Error::custom)?;
        let metadata = ObjectMeta {
            resource_version: object.meta().resource_version.clone(),
            ..ObjectMeta::default()
        };
        let view = Arc::new(V::of(object));
        Ok(Self { metadata, view })
    }
}

impl<V> Clone for Viewed<V> {
    fn clone(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            view: self.view.clone(),
        }
    }
}

/// It stands for what it is a view of.
impl<V: View> Resource for Viewed<V> {
    type DynamicType = ();
    type Scope = DynamicResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        V::Object::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        V::Object::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        V::Object::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        V::Object::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Which object it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    /// UID of the Job it belongs to, by its label: a claim, not a proof.
    pub(crate) job_uid: String,
    /// Name of the Job it belongs to, by its label.
    pub(crate) job_name: String,
}

/// A batch/v1 Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BatchJob {
    pub(crate) id: Identity,
    /// UID of what controls it: the Job, if it is ours.
    pub(crate) owner: Option<String>,
    pub(crate) deleting: bool,
    /// It is suspended, or told to run no pod: either can be undone, and then starts another pod.
    pub(crate) suspended: bool,
    pub(crate) active_deadline_seconds: Option<i64>,
    /// Complete or Failed: it makes no pod any more.
    pub(crate) terminal: bool,
    /// Why it failed or is about to.
    pub(crate) failure: Option<String>,
    /// When its own deadline was seen to have passed.
    pub(crate) deadline_passed: Option<Timestamp>,
}

impl View for BatchJob {
    type Object = batch::Job;

    fn of(job: batch::Job) -> Self {
        let spec = job.spec.unwrap_or_default();
        let conditions = job.status.and_then(|s| s.conditions).unwrap_or_default();
        let holds = |type_: &str| conditions.iter().find(|c| c.type_ == type_ && c.status == "True");
        let verdict = [holds("FailureTarget"), holds("Failed")];
        let reason = |c: &batch::JobCondition| c.reason.clone();
        Self {
            owner: controller(&job.metadata),
            deleting: job.metadata.deletion_timestamp.is_some(),
            suspended: spec.suspend == Some(true) || spec.parallelism == Some(0),
            active_deadline_seconds: spec.active_deadline_seconds,
            terminal: holds("Complete").or(holds("Failed")).is_some(),
            failure: verdict.into_iter().flatten().find_map(reason),
            deadline_passed: verdict
                .into_iter()
                .flatten()
                .filter(|c| c.reason.as_deref() == Some("DeadlineExceeded"))
                .find_map(|c| time(c.last_transition_time.as_ref())),
            id: Identity::of(job.metadata),
        }
    }
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) id: Identity,
    pub(crate) created: Option<Timestamp>,
    /// UID of what controls it: the batch Job, if it is ours.
    pub(crate) controller: Option<String>,
    /// When its deletion was requested, or at the latest.
    pub(crate) deletion: Option<Timestamp>,
    /// Its node had seen the request when it last reported, and no grace is left: `deletion` may be the time of
    /// the node's own last delete, after everything had ended.
    pub(crate) deletion_seen: bool,
    pub(crate) finalizers: Vec<String>,
    pub(crate) gates: Vec<String>,
    pub(crate) node: Option<String>,
    pub(crate) phase: Phase,
    /// The pod's own reason, such as Evicted.
    pub(crate) reason: Option<String>,
    pub(crate) disruption: Option<Disruption>,
    /// Why the scheduler finds no node for it.
    pub(crate) unschedulable: Option<String>,
    pub(crate) image: String,
    pub(crate) main: Container,
    /// How often the node started the main container again.
    pub(crate) restarts: i32,
}

/// The phase of a pod, as far as it matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Pending, Running, or a word this version does not know.
    #[default]
    Open,
    /// Succeeded or Failed: none of its containers is started any more.
    Terminal,
}

/// That the cluster itself ends a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disruption {
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) at: Option<Timestamp>,
}

/// The main container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Container {
    /// Nothing is said of it, or nothing this version knows.
    #[default]
    Unmentioned,
    Waiting {
        reason: String,
        message: String,
    },
    Running {
        started_at: Option<Timestamp>,
    },
    Terminated(Termination),
}

/// How the main container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Termination {
    pub(crate) code: i32,
    pub(crate) reason: String,
    /// Text of the node's, kept only where the container could not be started. Otherwise it may be the
    /// command's own output.
    pub(crate) message: String,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
}

/// The container was never started; the runtime says why.
pub(crate) const START_ERROR: &str = "StartError";

/// What it says, in words that quote nothing, where the working directory is the cause.
pub(crate) const NO_WORKING_DIRECTORY: [&str; 2] = ["container init: mkdir ", "chdir to cwd"];
/// Where there is no such command.
pub(crate) const NO_COMMAND: [&str; 2] = ["executable file not found", "no such file or directory"];
/// Where the command cannot be executed.
pub(crate) const NOT_EXECUTABLE: [&str; 3] = ["permission denied", "is a directory", "exec format error"];

impl View for Pod {
    type Object = core::Pod;

    fn of(pod: core::Pod) -> Self {
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let condition =
            |type_: &str, status: &str| conditions.iter().find(|c| c.type_ == type_ && c.status == status);
        let main = status
            .container_statuses
            .into_iter()
            .flatten()
            .find(|c| c.name == CONTAINER);
        let container = spec.containers.into_iter().find(|c| c.name == CONTAINER);
        let secretive = container.as_ref().is_some_and(puts_secrets_into_words);
        Self {
            created: time(pod.metadata.creation_timestamp.as_ref()),
            controller: controller(&pod.metadata),
            deletion: deletion(&pod.metadata),
            deletion_seen: pod.metadata.deletion_grace_period_seconds == Some(0)
                // Where nobody counts generations, the node may have seen it.
                && status
                    .observed_generation
                    .zip(pod.metadata.generation)
                    .is_none_or(|(seen, current)| seen >= current),
            finalizers: pod.metadata.finalizers.clone().unwrap_or_default(),
            gates: spec
                .scheduling_gates
                .into_iter()
                .flatten()
                .map(|g| g.name)
                .collect(),
            node: spec.node_name.filter(|n| !n.is_empty()),
            phase: match status.phase.as_deref() {
                Some("Succeeded" | "Failed") => Phase::Terminal,
                _ => Phase::Open,
            },
            reason: status.reason.filter(|r| !r.is_empty()),
            disruption: condition("DisruptionTarget", "True").map(|c| Disruption {
                reason: c.reason.clone().unwrap_or_default(),
                message: excerpt(c.message.as_deref()),
                at: time(c.last_transition_time.as_ref()),
            }),
            unschedulable: condition("PodScheduled", "False")
                .filter(|c| c.reason.as_deref() == Some("Unschedulable"))
                .map(|c| excerpt(c.message.as_deref())),
            image: excerpt(container.and_then(|c| c.image).as_deref()),
            restarts: main.as_ref().map_or(0, |c| c.restart_count),
            main: main
                .and_then(|c| c.state)
                .map(|state| Container::of(state, secretive))
                .unwrap_or_default(),
            id: Identity::of(pod.metadata),
        }
    }
}

impl Pod {
    /// Whether our gate holds it before its command.
    pub(crate) fn is_held(&self) -> bool {
        self.gates.iter().any(|g| g == START_GATE)
    }

    /// Whether it is certain that it never ran and never will: a pod that is going, or over, gets no node.
    pub(crate) fn never_runs(&self) -> bool {
        self.node.is_none() && (self.deletion.is_some() || self.phase == Phase::Terminal)
    }

    /// Whether our finalizer keeps it.
    pub(crate) fn is_kept(&self) -> bool {
        self.finalizers.iter().any(|f| f == RESULT_FINALIZER)
    }
}

/// Whether the node puts values of Secrets into the words of the command, and so maybe into what it says of them.
fn puts_secrets_into_words(container: &core::Container) -> bool {
    let words = [&container.command, &container.args];
    let named = words
        .into_iter()
        .flatten()
        .flatten()
        .any(|word| word.contains("$("));
    let mut variables = container.env.iter().flatten();
    let mut sources = container.env_from.iter().flatten();
    let of_a_secret = |variable: &core::EnvVar| {
        let from = variable.value_from.as_ref();
        from.is_some_and(|from| from.secret_key_ref.is_some())
    };
    named && (variables.any(of_a_secret) || sources.any(|from| from.secret_ref.is_some()))
}

/// What the node said of a container that it could not start, without anything that it may have quoted.
fn without_quotes(said: &str) -> String {
    const LEFT_OUT: &str = "the rest of the node's words is left out, since they may quote the value of a Secret that \
                            spec.command or spec.args names";
    let causes = [&NO_WORKING_DIRECTORY[..], &NO_COMMAND, &NOT_EXECUTABLE];
    let cause = causes.into_iter().flatten().find(|cause| said.contains(**cause));
    cause.map_or_else(
        || LEFT_OUT.to_owned(),
        |cause| format!("exec: {cause}; {LEFT_OUT}"),
    )
}

impl Container {
    /// The state that a node reports. What is `secretive` is not quoted.
    fn of(state: core::ContainerState, secretive: bool) -> Self {
        if let Some(t) = state.terminated {
            let reason = t.reason.unwrap_or_default();
            let said = t.message.unwrap_or_default();
            let message = match (reason == START_ERROR, secretive) {
                (true, true) => without_quotes(&said),
                (true, false) => excerpt(Some(&said)),
                (false, _) => String::new(),
            };
            return Container::Terminated(Termination {
                code: t.exit_code,
                message,
                reason,
                started_at: time(t.started_at.as_ref()),
                finished_at: time(t.finished_at.as_ref()),
            });
        }
        if let Some(running) = state.running {
            return Container::Running {
                started_at: time(running.started_at.as_ref()),
            };
        }
        match state.waiting {
            Some(waiting) => Container::Waiting {
                reason: waiting.reason.unwrap_or_default(),
                message: excerpt(waiting.message.as_deref()),
            },
            None => Container::Unmentioned,
        }
    }
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) ready: bool,
}

impl View for Node {
    type Object = core::Node;

    fn of(node: core::Node) -> Self {
        let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
        Self {
            name: node.metadata.name.unwrap_or_default(),
            ready: conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True"),
        }
    }
}

/// An Event that tells why a batch Job has no pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) namespace: String,
    /// Name of the Event.
    pub(crate) name: String,
    pub(crate) batch_name: String,
    pub(crate) batch_uid: String,
    pub(crate) message: String,
    pub(crate) at: Option<Timestamp>,
}

impl View for Refusal {
    type Object = core::Event;

    fn of(event: core::Event) -> Self {
        let about = event.involved_object;
        let series = event.series.and_then(|s| s.last_observed_time).map(|t| t.0);
        let last = event
            .last_timestamp
            .map(|t| t.0)
            .or(series)
            .or(event.event_time.map(|t| t.0));
        Self {
            namespace: event.metadata.namespace.unwrap_or_default(),
            name: event.metadata.name.unwrap_or_default(),
            batch_name: about.name.unwrap_or_default(),
            batch_uid: about.uid.unwrap_or_default(),
            // Long enough that what is cut off later never decides what it means.
            message: clean(event.message.as_deref().unwrap_or_default(), 4 * EXCERPT),
            at: last,
        }
    }
}

impl Identity {
    fn of(metadata: ObjectMeta) -> Self {
        let mut labels = metadata.labels.unwrap_or_default();
        let mut label = |key: &str| labels.remove(key).unwrap_or_default();
        Self {
            job_uid: label(JOB_UID_LABEL),
            job_name: label(JOB_NAME_LABEL),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
        }
    }
}

/// UIDs are unique among all kinds, so the kind need not be looked at.
fn controller(metadata: &ObjectMeta) -> Option<String> {
    metadata
        .owner_references
        .iter()
        .flatten()
        .find(|o| o.controller == Some(true))
        .map(|o| o.uid.clone())
}

/// The API server stores when the grace period ends. A later, shorter grace moves both, so the difference stays
/// the time of the first request, until the kubelet deletes what has ended: while a finalizer keeps the pod, that
/// puts its own time and no grace in their place.
fn deletion(metadata: &ObjectMeta) -> Option<Timestamp> {
    let ends = time(metadata.deletion_timestamp.as_ref())?;
    let grace = SignedDuration::from_secs(metadata.deletion_grace_period_seconds.unwrap_or(0));
    Some(ends.checked_sub(grace).unwrap_or(ends))
}

/// A time, unless it is the zero that stands for "never".
fn time(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|t| t.0).filter(|t| *t > Timestamp::UNIX_EPOCH)
}

fn excerpt(text: Option<&str>) -> String {
    clean(text.unwrap_or_default(), EXCERPT)
}

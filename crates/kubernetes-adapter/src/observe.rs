//! What batch Jobs, pods and nodes mean in the words of [`ayatori_core::execution`]. Pure.
//!
//! Neither "the pod is gone" nor "the batch Job is gone" nor phase Failed alone proves an end, and neither
//! Complete nor Failed of a batch Job says how the command ended: a batch Job counts an evicted pod whose process
//! caught TERM as a success. So the main container of the recorded pod is read, by name, and its end is held
//! against the time at which somebody asked for it.

use std::sync::Arc;

use ayatori_core::conditions::{PENDING, clean};
use ayatori_core::execution::{
    End, ExecutionName, Exit, Gone, Prospect, Running, State, Stopper, Waiting, Why,
};
use ayatori_core::job::BackendIdentity;
use ayatori_core::stage::Recorded;
use jiff::{SignedDuration, Timestamp};

use crate::view::{
    BatchJob, Container, Disruption, NO_COMMAND, NO_WORKING_DIRECTORY, NOT_EXECUTABLE, Phase, Pod, Refusal,
    START_ERROR, Termination,
};

/// How much of a message from outside goes into a condition.
const EXCERPT: usize = 512;

/// Two records of one event, each in whole seconds, may differ by this much.
const GRAIN: SignedDuration = SignedDuration::from_secs(1);

/// How long after it deleted the pod the Job controller may write down that the deadline was why.
const VERDICT_LAG: SignedDuration = SignedDuration::from_secs(5);

// ------------------------------------------------------------------------------------ nothing is recorded yet

/// What exists for a Job of which nothing is recorded.
pub(crate) fn prospect(
    job_uid: &str,
    backend: BackendIdentity,
    batch: Option<&BatchJob>,
    pods: &[Arc<Pod>],
    refusals: &[Arc<Refusal>],
) -> Prospect {
    let Some(batch) = batch else {
        return Prospect::Absent;
    };
    if batch.owner.as_deref() != Some(job_uid) {
        return Prospect::Conflict(stranger(batch));
    }
    let mut pods: Vec<_> = pods
        .iter()
        .filter(|p| p.controller.as_ref() == Some(&batch.id.uid))
        .collect();
    pods.sort_by_key(|p| (p.created, p.id.uid.clone()));
    let found = |pod: &Pod| {
        let name = ExecutionName {
            id: batch.id.uid.clone(),
            uid: Some(pod.id.uid.clone()),
        };
        Prospect::Found(name, backend.clone())
    };
    // A gate that is off although we took none off was taken off by somebody else. Then that pod is the one that
    // may run, and no other.
    if let Some(pod) = pods.iter().find(|p| !p.is_held()) {
        return found(pod);
    }
    if batch.terminal || batch.deleting {
        return Prospect::Spoilt(spoilt(batch));
    }
    if batch.suspended {
        return Prospect::Preparing(Why::new(
            "BackendSuspended",
            format!(
                "batch Job {} was suspended by somebody else; the Job goes on when it is resumed",
                batch.id.name
            ),
        ));
    }
    match pods.iter().find(|p| !p.never_runs()) {
        Some(pod) => found(pod),
        None => Prospect::Preparing(no_pod_yet(batch, refusals)),
    }
}

/// Why a batch Job of that name is not ours.
pub(crate) fn stranger(batch: &BatchJob) -> Why {
    let name = &batch.id.name;
    let fix = if batch.deleting {
        "it is being deleted; the Job goes on when it is gone"
    } else {
        "delete or rename it"
    };
    Why::new(
        "NameConflict",
        format!("batch Job {name} exists in this namespace and belongs to somebody else; {fix}"),
    )
}

fn spoilt(batch: &BatchJob) -> Why {
    let name = &batch.id.name;
    let how = match &batch.failure {
        _ if batch.deleting => "was deleted by somebody else".to_owned(),
        Some(reason) => format!("ended with {reason}"),
        None => "ended".to_owned(),
    };
    Why::new(
        "PodDeleted",
        format!("batch Job {name} {how} before its pod was let go; the command was never started"),
    )
}

fn no_pod_yet(batch: &BatchJob, refusals: &[Arc<Refusal>]) -> Why {
    match refusals
        .iter()
        .filter(|r| r.batch_uid == batch.id.uid)
        .max_by_key(|r| (r.at, r.name.clone()))
    {
        Some(latest) => refusal(&latest.message),
        None => Why::new(PENDING, format!("batch Job {} has no pod yet", batch.id.name)),
    }
}

/// Why an object was refused, from the words of the API server: what does not change from try to try.
pub(crate) fn refusal(message: &str) -> Why {
    // Generated names of pods change from try to try.
    let gist = [" is forbidden: ", " is invalid: "]
        .into_iter()
        .find_map(|mark| message.split_once(mark).map(|(_, gist)| gist))
        .or_else(|| message.strip_prefix("Error creating: "))
        .unwrap_or(message);
    if let Some((_, quota)) = gist.split_once("exceeded quota: ") {
        let exceeded = clean(&format!("exceeded quota {}", without_use(quota)), EXCERPT);
        return Why::new(
            "QuotaExceeded",
            format!("{exceeded}; it goes on when enough of the quota is free, or the quota is raised"),
        );
    }
    if gist.starts_with("failed quota: ") {
        let failed = clean(gist, EXCERPT);
        return Why::new(
            "QuotaExceeded",
            format!(
                "{failed}; state them in spec.resources of a new Job, or have the class do so by default"
            ),
        );
    }
    if gist.starts_with("violates PodSecurity ") {
        let violates = clean(gist, EXCERPT);
        return Why::new(
            "BackendRejected",
            format!(
                "{violates}; the parameters of the class set security contexts, so have them meet this level, or use another class"
            ),
        );
    }
    if gist.contains("error looking up service account") || gist.starts_with("service account ") {
        let message = format!(
            "{}; create the ServiceAccount in the Job's namespace",
            clean(gist, EXCERPT)
        );
        return Why::new("ServiceAccountNotFound", message);
    }
    Why::new("BackendRejected", clean(gist, EXCERPT))
}

/// A quota's message without how much of it is used at present, which changes all the time.
fn without_use(quota: &str) -> String {
    match quota.split_once(", used: ") {
        Some((asked, used)) => match used.split_once(", limited: ") {
            Some((_, limit)) => format!("{asked}, limited: {limit}"),
            None => asked.to_owned(),
        },
        None => quota.to_owned(),
    }
}

// --------------------------------------------------------------------------------------------- one is recorded

/// What is stored of the execution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// UID of the batch Job.
    pub(crate) id: &'a str,
    /// UID of the pod.
    pub(crate) pod: &'a str,
    /// Where it was seen.
    pub(crate) node: Option<&'a str>,
    /// Whether the command was seen running or ended.
    pub(crate) started: bool,
    /// When we asked for its end. Nobody had before.
    pub(crate) stop_requested: Option<Timestamp>,
}

impl<'a> Record<'a> {
    /// None, if no pod is recorded.
    pub(crate) fn of(recorded: Recorded<'a>) -> Option<Self> {
        Some(Self {
            id: recorded.id(),
            pod: recorded.uid()?,
            node: recorded.execution().node_name.as_deref(),
            started: recorded.started(),
            stop_requested: recorded.stop().map(|stop| stop.requested_time.0),
        })
    }
}

/// Why a Job with an execution and no pod says nothing to us.
pub(crate) fn no_pod_recorded() -> Why {
    Why::new(
        "ForeignExecution",
        "status.execution names no pod: this adapter did not write it",
    )
}

/// What the cluster knows of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeHealth {
    /// Its kubelet reports.
    Ready,
    /// It does not, or nobody could say.
    Silent,
    /// There is no Node object of that name.
    Gone,
}

/// What became of the recorded pod. `node` is the health of the node it is on, if it is on one.
pub(crate) fn state(record: Record<'_>, batch: Option<&BatchJob>, pod: &Pod, node: NodeHealth) -> State {
    // A pod without controller was ours when it was recorded; somebody has orphaned it since.
    if pod.controller.as_deref().is_some_and(|c| c != record.id) {
        return State::Unobservable(Why::new(
            "ForeignExecution",
            format!(
                "pod {} was recorded, but is controlled by something else than the recorded batch Job",
                pod.id.name
            ),
        ));
    }
    if pod.never_runs() {
        return State::Ended(end(record, batch, pod, Exit::NeverStarted, None, None));
    }
    if let Some(measured) = measured(record, batch, pod) {
        return State::Ended(measured);
    }
    if pod.is_held() {
        return State::Held;
    }
    if pod.phase == Phase::Terminal {
        return unmeasured(record, batch, pod, node);
    }
    if let (Some(name), NodeHealth::Silent | NodeHealth::Gone) = (&pod.node, node) {
        return State::Unobservable(unreachable(name, node));
    }
    match &pod.main {
        Container::Running { started_at } => running(pod, *started_at),
        Container::Terminated(_) | Container::Waiting { .. } | Container::Unmentioned
            if record.started || pod.restarts > 0 =>
        {
            running(pod, None)
        }
        Container::Terminated(_) | Container::Waiting { .. } | Container::Unmentioned => {
            State::Waiting(Waiting {
                why: waits_for(pod),
                node: pod.node.clone(),
                stopping_since: pod.deletion,
            })
        }
    }
}

fn running(pod: &Pod, started_at: Option<Timestamp>) -> State {
    State::Running(Running {
        renew_at: None,
        started_at,
        node: pod.node.clone(),
        stopping_since: pod.deletion,
    })
}

/// The end of the main container, if the node measured it. The pod may go on: a sidecar, an extra container.
fn measured(record: Record<'_>, batch: Option<&BatchJob>, pod: &Pod) -> Option<End> {
    let Container::Terminated(termination) = &pod.main else {
        return None;
    };
    let Termination {
        code,
        reason,
        message,
        started_at,
        finished_at,
    } = termination;
    if pod.restarts > 0 || reason == "ContainerStatusUnknown" {
        return None;
    }
    let (exit, note) = if reason == START_ERROR {
        (
            Exit::Unstartable(Why::new(START_ERROR, unstartable(message))),
            None,
        )
    } else {
        let out_of_memory = reason == "OOMKilled";
        let note = (out_of_memory && *code != 137)
            .then(|| "a process of the container was killed for using too much memory".to_owned());
        (
            Exit::Code {
                code: *code,
                out_of_memory,
            },
            note,
        )
    };
    Some(End {
        started_at: *started_at,
        ..end(record, batch, pod, exit, *finished_at, note)
    })
}

/// Why a command could not be started: first what is the caller's to mend, in the words that a sandbox has for it, then
/// the runtime's own, whose cause stands at the end of a long chain.
fn unstartable(said: &str) -> String {
    let says = |words: &[&str]| words.iter().any(|w| said.contains(w));
    let meaning = if said.is_empty() {
        return "the command could not be started".to_owned();
    } else if says(&NO_WORKING_DIRECTORY) {
        "spec.workingDir could not be made or entered; it has to be an absolute path that the image's user may use"
    } else if !says(&["exec: "]) {
        return said.to_owned();
    } else if says(&NO_COMMAND) {
        "there is no such command in the image; check spec.command and the image"
    } else if says(&NOT_EXECUTABLE) {
        "the command cannot be executed; check spec.command and the image"
    } else {
        return said.to_owned();
    };
    format!("{meaning} ({said})")
}

/// The pod is over, and nobody measured how its command ended. Only a node that reports, or one that does not
/// exist, proves that nothing runs any more.
fn unmeasured(record: Record<'_>, batch: Option<&BatchJob>, pod: &Pod, node: NodeHealth) -> State {
    let what = match (&pod.reason, &pod.main) {
        _ if pod.restarts > 0 => format!("the node started the container {} times again", pod.restarts),
        (Some(reason), _) => format!("the pod ended with {reason}"),
        (None, Container::Terminated(t)) => format!("the node reports {}", t.reason),
        (None, _) => "the pod ended while its container was not reported to have".to_owned(),
    };
    let what = format!("{what}; the exit code of the command is not known");
    match (node, &pod.node) {
        (NodeHealth::Silent, Some(name)) => State::Gone(Gone {
            proven: false,
            why: Why::new(
                "BackendUnreachable",
                format!("{what}, and node {name} is not Ready, so its process may run on"),
            ),
        }),
        _ => State::Ended(End {
            started_at: match &pod.main {
                Container::Running { started_at } => *started_at,
                Container::Terminated(t) => t.started_at,
                Container::Waiting { .. } | Container::Unmentioned => None,
            },
            ..end(record, batch, pod, Exit::Unmeasured, None, Some(what))
        }),
    }
}

fn end(
    record: Record<'_>,
    batch: Option<&BatchJob>,
    pod: &Pod,
    exit: Exit,
    finished_at: Option<Timestamp>,
    note: Option<String>,
) -> End {
    let (stopped_at, stopped_by) = stop(record, batch, pod, finished_at);
    End {
        exit,
        started_at: None,
        finished_at,
        stopped_at,
        stopped_by,
        node: pod.node.clone(),
        note,
    }
}

/// When the end of the pod was asked for, and by whom.
fn stop(
    record: Record<'_>,
    batch: Option<&BatchJob>,
    pod: &Pod,
    finished_at: Option<Timestamp>,
) -> (Option<Timestamp>, Stopper) {
    let by_kubelet = pod
        .disruption
        .as_ref()
        .filter(|d| d.reason == "TerminationByKubelet");
    let kubelet_at = by_kubelet.and_then(|d| d.at).map(|at| match finished_at {
        // Where the pod says so itself, the kubelet decided before the process ended, in whatever second.
        Some(finished) if finished == at && pod.reason.is_some() => at.checked_sub(GRAIN).unwrap_or(at),
        _ => at,
    });
    let verdict = batch.and_then(|b| b.deadline_passed);
    let earliest = record
        .stop_requested
        .max(verdict.and_then(|at| at.checked_sub(VERDICT_LAG).ok()));
    let deletion = pod.deletion.map(|latest| match finished_at {
        Some(finished) if pod.deletion_seen => somewhen(earliest, latest, finished),
        _ => latest,
    });
    let Some(at) = [deletion, kubelet_at].into_iter().flatten().min() else {
        return (None, Stopper::Nobody);
    };
    // A disruption that came later did not ask for this end.
    let disruption = pod
        .disruption
        .as_ref()
        .filter(|d| d.at.is_none_or(|d| d.duration_since(at) <= GRAIN));
    let deadline = verdict.filter(|d| d.duration_since(at) <= VERDICT_LAG);
    let first = match (disruption, deadline) {
        (Some(disruption), Some(deadline)) if disruption.at.is_none_or(|d| d < deadline) => Some(disruption),
        (disruption, None) => disruption,
        (_, Some(_)) => None,
    };
    let by = match (first, deadline) {
        // Nobody wanted it: its node was lost.
        (Some(disruption), _) if disruption.reason == "DeletionByPodGC" => Stopper::Nobody,
        (Some(disruption), _) => Stopper::Other(disrupted(disruption)),
        (None, Some(_)) => Stopper::Deadline,
        (None, None) => Stopper::Anybody(Why::new("PodDeleted", deleted(batch))),
    };
    (Some(at), by)
}

/// When a deletion was requested whose time the kubelet's own last delete may have replaced: at the end of the
/// process, as in a tie, as far as what else is known allows.
fn somewhen(earliest: Option<Timestamp>, latest: Timestamp, finished: Timestamp) -> Timestamp {
    earliest
        .map_or(finished, |earliest| finished.max(earliest))
        .min(latest)
}

fn disrupted(disruption: &Disruption) -> Why {
    let reason = if disruption.reason == "PreemptionByScheduler" {
        "Preempted"
    } else {
        "Evicted"
    };
    Why::new(
        reason,
        format!(
            "the cluster ended the pod ({}): {}",
            disruption.reason, disruption.message
        ),
    )
}

fn deleted(batch: Option<&BatchJob>) -> &'static str {
    match batch {
        None => "its batch Job was deleted by somebody else",
        Some(batch) if batch.deleting => "its batch Job was deleted by somebody else",
        Some(batch) if batch.suspended => "its batch Job was suspended by somebody else",
        Some(_) => "its pod was deleted by somebody else",
    }
}

fn unreachable(node: &str, health: NodeHealth) -> Why {
    let message = match health {
        NodeHealth::Gone => {
            format!("node {node} does not exist any more; Kubernetes has not yet given up its pod")
        }
        NodeHealth::Silent | NodeHealth::Ready => {
            format!("node {node} is not Ready, so what its kubelet last said of the pod may be old")
        }
    };
    Why::new("BackendUnreachable", message)
}

/// What a recorded pod that is not to be found any more means. `node` is the health of the node it was on, or
/// the worst of all if that is not known; `settled`: so much time has passed since that a dead node would not be
/// shown as Ready any more.
pub(crate) fn missing(record: Record<'_>, node: NodeHealth, settled: bool) -> Gone {
    let pod = record.pod;
    let place = record
        .node
        .map_or_else(|| "every node".to_owned(), |n| format!("node {n}"));
    let gone = format!("the pod with UID {pod} was removed before its exit code was read");
    let (proven, reason, message) = match node {
        NodeHealth::Gone => (true, "ExecutionNotFound", format!("{gone}; {place} is gone too")),
        NodeHealth::Ready if settled => (
            true,
            "ExecutionNotFound",
            format!("{gone}; {place} is Ready, nothing of it runs any more"),
        ),
        NodeHealth::Ready => (
            false,
            "ExecutionNotFound",
            format!("{gone}; {place} has to stay Ready for a while to prove that nothing of it runs"),
        ),
        NodeHealth::Silent => (
            false,
            "BackendUnreachable",
            format!(
                "{gone}, and its process may run on: {place} would have to be Ready, or its Node object be gone"
            ),
        ),
    };
    Gone {
        proven,
        why: Why::new(reason, message),
    }
}

// ----------------------------------------------------------------------------------- what a pod waits for

/// Why the command of a pod that was let go does not run yet. The words stay the same while the cause does.
fn waits_for(pod: &Pod) -> Why {
    if !pod.gates.is_empty() {
        return Why::new(
            "SchedulingGated",
            format!(
                "held back by scheduling gates of others: {}",
                pod.gates.join(", ")
            ),
        );
    }
    if pod.node.is_none() {
        return match &pod.unschedulable {
            Some(message) => Why::new("Unschedulable", unschedulable(message)),
            None => Why::new(PENDING, "waiting for the scheduler"),
        };
    }
    let Container::Waiting { reason, message } = &pod.main else {
        return Why::new(PENDING, "the node has the pod and has not started its container");
    };
    match reason.as_str() {
        "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" | "SignatureValidationFailed" => {
            Why::new(
                "ImagePullFailed",
                format!("image {:?} cannot be pulled{}", pod.image, cause(message)),
            )
        }
        "ErrImageNeverPull" => Why::new(
            "ImagePullFailed",
            format!(
                "image {:?} is not on the node, and imagePullPolicy Never forbids to pull it",
                pod.image
            ),
        ),
        "InvalidImageName" => Why::new(
            "InvalidImageName",
            format!(
                "{:?} is no image name for the node; cancel this Job and create one with another spec.image",
                pod.image
            ),
        ),
        "CreateContainerConfigError" => Why::new("ContainerConfigError", clean(message, EXCERPT)),
        // Messages of these name containers and sandboxes by ids that change from try to try.
        "CreateContainerError" | "RunContainerError" | "PreCreateHookError" | "PreStartHookError" => {
            Why::new(
                "ContainerConfigError",
                format!(
                    "the node cannot create the container ({reason}); see the Events of pod {}",
                    pod.id.name
                ),
            )
        }
        _ => Why::new(
            PENDING,
            format!(
                "the node prepares the container; if that takes long, the Events of pod {} say why",
                pod.id.name
            ),
        ),
    }
}

/// The scheduler's reasons without the counts of nodes, which change with the cluster.
fn unschedulable(message: &str) -> String {
    let reasons = message
        .split_once("nodes are available: ")
        .map_or(message, |(_, reasons)| reasons);
    let reasons = reasons
        .split_once(". ")
        .map_or(reasons, |(reasons, _)| reasons)
        .trim_end_matches('.');
    let mut reasons: Vec<_> = reasons
        .split(", ")
        .map(|r| r.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start())
        .collect();
    reasons.sort_unstable();
    reasons.dedup();
    let reasons = clean(&format!("no node fits: {}", reasons.join(", ")), EXCERPT);
    format!("{reasons}; it starts when a node does")
}

/// Why an image cannot be pulled, in words that are the same while it is tried and while it is waited.
fn cause(message: &str) -> &'static str {
    let message = message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|w| message.contains(w));
    if says(&["unauthorized", "authorization failed", "forbidden", "denied"]) {
        ": the registry refuses access; check the image's name and spec.imagePullSecrets"
    } else if says(&["not found", "manifest unknown", "does not exist"]) {
        ": the registry does not have it; check its name and tag"
    } else if says(&[
        "no such host",
        "connection refused",
        "timeout",
        "dial tcp",
        "deadline exceeded",
    ]) {
        ": the registry cannot be reached from the node"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests;

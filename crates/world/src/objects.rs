//! Real Jobs and classes, kept once each and known by a number.

use std::collections::HashMap;

use ayatori_core::conditions::{
    self, ACCEPTED, FINISHED, PENDING, READY, RESULT_UNKNOWN, SCHEDULED, STARTED, Statement,
};
use ayatori_core::job::{Execution, Job, JobResult, JobSpec, JobStatus, StopReason};
use ayatori_core::job_class::{JobClass, JobClassSpec, JobClassStatus, ParametersReference};
use ayatori_core::names::KUBERNETES_CONTROLLER;
use ayatori_core::stage::{is_deleting, is_protected};
use foldhash::fast::FixedState;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Seconds in a tick.
pub(crate) const TICK: i64 = 100;

/// The tick that stands for "later than everything": whatever runs out has run out.
pub(crate) const FAR: u8 = 100;

const EPOCH: i64 = 1_800_000_000;

/// That many seconds after the world began.
pub(crate) fn second(seconds: i64) -> Timestamp {
    Timestamp::from_second(EPOCH + seconds).unwrap()
}

pub(crate) fn tick(tick: u8) -> Timestamp {
    second(i64::from(tick) * TICK)
}

/// Seconds since the world began.
pub(crate) fn seconds(of: &Time) -> i64 {
    of.0.as_second() - EPOCH
}

/// The number that a name ends with.
pub(crate) fn number_in(name: &str) -> u8 {
    name.rsplit(|c: char| !c.is_ascii_digit())
        .next()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_else(|| panic!("{name:?} has no number"))
}

/// A version of the Job. Two versions with the same content are the same one, so a write that is fenced by
/// the version succeeds here whenever it succeeds on a real API server, and sometimes when it would not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Version(u16);

impl Version {
    /// There is no Job of that name.
    pub(crate) const NONE: Version = Version(0);

    pub(crate) fn exists(self) -> bool {
        self != Self::NONE
    }
}

/// What a Job's user wishes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) active_deadline: Option<i32>,
    pub(crate) starting_deadline: Option<i32>,
    pub(crate) ttl: Option<i32>,
}

impl Wishes {
    pub(crate) const NONE: Self = Self {
        active_deadline: None,
        starting_deadline: None,
        ttl: None,
    };
}

/// What the world needs to know of a version at a glance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Card {
    pub(crate) uid: u8,
    pub(crate) deleting: bool,
    pub(crate) protected: bool,
    pub(crate) cancelled: bool,
    /// `Accepted` says why it is not.
    pub(crate) refused: bool,
    /// Second of the acceptance.
    pub(crate) accepted: Option<i64>,
    /// Number of the attempt, and the second of its fence.
    pub(crate) attempt: Option<(u8, i16)>,
    /// Server that was recorded, where there can be several.
    pub(crate) server: Option<u8>,
    /// Execution that was recorded.
    pub(crate) execution: Option<u8>,
    pub(crate) stop: Option<StopReason>,
    pub(crate) delivered: bool,
    pub(crate) unknown: bool,
    pub(crate) finished: bool,
    pub(crate) released: bool,
    pub(crate) result: Option<JobResult>,
}

impl Card {
    fn of(job: &Job) -> Self {
        let status = job.status.clone().unwrap_or_default();
        let execution = status.execution.unwrap_or_default();
        // Where there are instances, the instance is the execution.
        let recorded = execution
            .id
            .as_deref()
            .map(|id| execution.uid.as_deref().unwrap_or(id));
        Self {
            uid: number_in(job.metadata.uid.as_deref().unwrap()),
            deleting: is_deleting(job),
            protected: is_protected(job),
            cancelled: job.spec.cancel_requested == Some(true),
            refused: conditions::find(&status.conditions, ACCEPTED).is_some_and(|c| c.status == "False"),
            accepted: conditions::true_since(&status.conditions, ACCEPTED).map(|at| seconds(&Time(at))),
            attempt: execution
                .attempt
                .as_ref()
                .map(|a| (number_in(&a.id), i16::try_from(seconds(&a.start_before)).unwrap())),
            server: execution
                .backend
                .as_ref()
                .filter(|b| !b.endpoint_hash.is_empty())
                .map(|b| number_in(&b.endpoint_hash)),
            execution: recorded.map(number_in),
            stop: execution.stop.as_ref().map(|s| s.reason),
            delivered: execution
                .stop
                .as_ref()
                .is_some_and(|s| s.delivered_time.is_some()),
            unknown: conditions::is_true(&status.conditions, RESULT_UNKNOWN),
            finished: conditions::is_true(&status.conditions, FINISHED),
            released: execution.release_time.is_some(),
            result: status.result,
        }
    }
}

/// Every version there ever was, in any order of events.
pub(crate) struct Library {
    numbers: HashMap<String, Version>,
    jobs: Vec<(Job, Card)>,
    /// What edits came to, for they are the same each time.
    edits: HashMap<(Version, Edit), Version, FixedState>,
}

/// What is done to a Job without a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Edit {
    /// Its user wishes it cancelled.
    Cancel,
    /// Somebody deletes it.
    Delete,
    /// All finalizers are taken off.
    Unprotect,
    /// What was decided on another version is written over it, whatever it says.
    Overwrite(Version),
}

impl Library {
    pub(crate) fn new() -> Self {
        Self {
            numbers: HashMap::new(),
            jobs: vec![(Job::new("", JobSpec::default()), Card::default())],
            edits: HashMap::default(),
        }
    }

    pub(crate) fn job(&self, version: Version) -> &Job {
        &self.jobs[usize::from(version.0)].0
    }

    pub(crate) fn card(&self, version: Version) -> &Card {
        &self.jobs[usize::from(version.0)].1
    }

    /// Stores a Job, as JSON like the API server does.
    pub(crate) fn store(&mut self, mut job: Job) -> Version {
        forget_times(&mut job);
        let text = serde_json::to_string(&job).unwrap();
        if let Some(known) = self.numbers.get(&text) {
            return *known;
        }
        let job: Job = serde_json::from_str(&text).unwrap();
        let version = Version(u16::try_from(self.jobs.len()).expect("few versions"));
        let card = Card::of(&job);
        self.jobs.push((job, card));
        self.numbers.insert(text, version);
        version
    }

    /// What is stored after an edit.
    pub(crate) fn edit(&mut self, version: Version, edit: Edit) -> Version {
        if let Some(known) = self.edits.get(&(version, edit)) {
            return *known;
        }
        let mut job = self.job(version).clone();
        match edit {
            Edit::Cancel => job.spec.cancel_requested = Some(true),
            Edit::Delete => {
                job.metadata.deletion_timestamp.get_or_insert_with(long_ago);
            }
            Edit::Unprotect => job.metadata.finalizers = None,
            Edit::Overwrite(written) => {
                let written = self.job(written).clone();
                job.status = written.status;
                job.metadata.finalizers = written.metadata.finalizers;
            }
        }
        if let Edit::Cancel | Edit::Delete = edit {
            job.metadata.generation = job.metadata.generation.map(|g| g + 1);
        }
        let edited = self.store(job);
        self.edits.insert((version, edit), edited);
        edited
    }
}

/// A second that no clock shows.
fn long_ago() -> Time {
    Time(second(-100))
}

/// Times that no decision reads would only tell apart what is the same. They are put where no clock is, so that
/// a later change of one would still be seen.
fn forget_times(job: &mut Job) {
    let has_ttl = job.spec.ttl_seconds_after_finished.is_some();
    let Some(status) = &mut job.status else { return };
    for condition in &mut status.conditions {
        if condition.type_ != ACCEPTED {
            condition.last_transition_time = long_ago();
        }
    }
    let forget = |time: &mut Option<Time>| *time = time.as_ref().map(|_| long_ago());
    forget(&mut status.start_time);
    if !has_ttl {
        forget(&mut status.finish_time);
    }
    if let Some(execution) = &mut status.execution {
        // Read only where somebody else can have asked for an end before us; a single shot is paused by us.
        if let (Some(_), Some(stop)) = (&execution.attempt, &mut execution.stop) {
            stop.requested_time = long_ago();
        }
        forget(&mut execution.start_requested_time);
        forget(&mut execution.release_time);
    }
}

/// A Job as the API server shows it after its creation.
pub(crate) fn job(uid: u8, wishes: Wishes, now: u8) -> Job {
    let mut job = Job::new(
        "build",
        JobSpec {
            job_class_name: Some("rootless".to_owned()),
            image: "busybox:1".to_owned(),
            active_deadline_seconds: wishes.active_deadline,
            starting_deadline_seconds: wishes.starting_deadline,
            ttl_seconds_after_finished: wishes.ttl,
            ..JobSpec::default()
        },
    );
    job.metadata.namespace = Some("team".to_owned());
    job.metadata.uid = Some(format!("job{uid}"));
    job.metadata.generation = Some(1);
    // Only a deadline reads when a Job was created.
    let created = if wishes.starting_deadline.is_some() {
        now
    } else {
        0
    };
    job.metadata.creation_timestamp = Some(Time(tick(created)));
    job.status = Some(JobStatus {
        conditions: vec![condition(ACCEPTED, "Unknown", PENDING)],
        ..JobStatus::default()
    });
    job
}

/// The class in its n-th incarnation under one name, with parameters of its own.
pub(crate) fn class(incarnation: u8) -> JobClass {
    let mut class = JobClass::new(
        "rootless",
        JobClassSpec {
            controller_name: KUBERNETES_CONTROLLER.to_owned(),
            parameters_ref: ParametersReference {
                group: "execution.ayatori.ddupan.top".to_owned(),
                kind: "KubernetesExecutionParameters".to_owned(),
                name: "rootless".to_owned(),
            },
            ..JobClassSpec::default()
        },
    );
    class.metadata.uid = Some(format!("class{incarnation}"));
    class.metadata.generation = Some(1);
    class.status = Some(JobClassStatus {
        observed_generation: Some(1),
        conditions: vec![
            condition(ACCEPTED, "True", "Accepted"),
            condition(READY, "True", "BackendReachable"),
        ],
    });
    class
}

fn condition(type_: &'static str, status: &str, reason: &str) -> Condition {
    let mut conditions = Vec::new();
    conditions::state(
        &mut conditions,
        Statement::holds(type_, reason, ""),
        Some(1),
        tick(0),
    );
    let mut condition = conditions.remove(0);
    condition.status = status.to_owned();
    condition
}

/// The rules of the definition that judge a status write: the first one it breaks.
pub(crate) fn broken_rule(old: &Job, new: &Job) -> Option<&'static str> {
    let status = |job: &Job| job.status.clone().unwrap_or_default();
    let (a, b) = (status(old), status(new));
    let execution = |s: &JobStatus| s.execution.clone().unwrap_or_default();
    let (x, y) = (execution(&a), execution(&b));
    let stop = |e: &Execution| e.stop.as_ref().map(|s| (s.reason, s.requested_time.clone()));
    let delivered = |e: &Execution| e.stop.as_ref().and_then(|s| s.delivered_time.clone());
    let cleared = y.attempt.is_none() && y.backend.is_none() && x.id.is_none() && y.id.is_none();
    let stays_true = [ACCEPTED, SCHEDULED, STARTED, FINISHED].into_iter().all(|c| {
        kept(
            &conditions::true_since(&a.conditions, c),
            &conditions::true_since(&b.conditions, c),
        )
    });
    let is = |s: &JobStatus, c| conditions::is_true(&s.conditions, c);
    let finishes = is(&b, FINISHED) && !is(&a, FINISHED);
    [
        (
            kept(&a.resolved_job_class, &b.resolved_job_class),
            "resolvedJobClass",
        ),
        (kept(&a.resources, &b.resources), "resources"),
        (kept(&a.start_time, &b.start_time), "startTime"),
        (kept(&a.finish_time, &b.finish_time), "finishTime"),
        (kept(&a.result, &b.result), "result"),
        (kept(&x.id, &y.id), "execution.id"),
        (kept(&x.uid, &y.uid), "execution.uid"),
        (kept(&x.node_name, &y.node_name), "execution.nodeName"),
        (
            kept(&x.start_requested_time, &y.start_requested_time),
            "execution.startRequestedTime",
        ),
        (kept(&x.release_time, &y.release_time), "execution.releaseTime"),
        (kept(&stop(&x), &stop(&y)), "execution.stop"),
        (
            kept(&delivered(&x), &delivered(&y)),
            "execution.stop.deliveredTime",
        ),
        (cleared || kept(&x.attempt, &y.attempt), "execution.attempt"),
        (cleared || kept(&x.backend, &y.backend), "execution.backend"),
        (
            x.stop.is_none() || x.start_requested_time == y.start_requested_time,
            "no start after a stop",
        ),
        (
            x.release_time.is_some() || y.release_time.is_none() || b.finish_time.is_some(),
            "no release before the end",
        ),
        (stays_true, "a condition stays True"),
        (
            !finishes || (b.result.is_some() && b.finish_time.is_some()),
            "Finished needs a result",
        ),
        (!finishes || !is(&b, RESULT_UNKNOWN), "Finished is known"),
    ]
    .into_iter()
    .find_map(|(holds, rule)| (!holds).then_some(rule))
}

fn kept<T: PartialEq>(old: &Option<T>, new: &Option<T>) -> bool {
    old.is_none() || old == new
}

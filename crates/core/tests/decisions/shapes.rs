//! Objects, facts and steps in few words.

use std::collections::BTreeMap;

use ayatori_core::conditions::{self, ACCEPTED, PENDING, READY, Statement};
use ayatori_core::execution::{
    End, ExecutionName, Exit, Gone, Prospect, Protocol, Remains, Running, State, Stopper, Waiting, Why,
    Windows,
};
use ayatori_core::job::{BackendIdentity, Job, JobSpec, JobStatus};
use ayatori_core::job_class::{JobClass, JobClassSpec, ParametersReference};
use ayatori_core::lifecycle::{self, Asked, Done, Effect, Facts, Live, Question, Settings, Step, Wait};
use ayatori_core::names::{EXECUTION_FINALIZER, KUBERNETES_CONTROLLER};
use ayatori_core::ownership::{self, Ownership, Selection};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// So many seconds after the Job was created.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(crate) fn seconds(of: Timestamp) -> i64 {
    of.as_second() - at(0).as_second()
}

pub(crate) fn time(seconds: i64) -> Time {
    Time(at(seconds))
}

pub(crate) fn secs(seconds: i64) -> SignedDuration {
    SignedDuration::from_secs(seconds)
}

pub(crate) const WINDOWS: Windows = Windows {
    send: SignedDuration::from_secs(10),
    fence: SignedDuration::from_secs(600),
};

pub(crate) fn why(reason: &str) -> Why {
    Why::new(reason, format!("{reason}, in words"))
}

// ---- objects ----

pub(crate) fn condition(type_: &'static str, status: &str, reason: &str) -> Condition {
    let mut conditions = Vec::new();
    let statement = match status {
        "True" => Statement::holds(type_, reason, "said"),
        _ => Statement::fails(type_, reason, "said"),
    };
    conditions::state(&mut conditions, statement, Some(1), at(0));
    let mut condition = conditions.remove(0);
    condition.status = status.to_owned();
    condition
}

/// A Job as the API server shows it after its creation.
pub(crate) fn job() -> Job {
    let mut job = Job::new(
        "build",
        JobSpec {
            job_class_name: Some("rootless".to_owned()),
            image: "busybox:1".to_owned(),
            ..JobSpec::default()
        },
    );
    job.metadata.namespace = Some("team".to_owned());
    job.metadata.uid = Some("job-uid".to_owned());
    job.metadata.resource_version = Some("1".to_owned());
    job.metadata.generation = Some(1);
    job.metadata.creation_timestamp = Some(time(0));
    job.status = Some(JobStatus {
        conditions: vec![condition(ACCEPTED, "Unknown", PENDING)],
        ..JobStatus::default()
    });
    job
}

/// A class of the Kubernetes adapter that is accepted and ready.
pub(crate) fn class(name: &str) -> JobClass {
    let mut class = JobClass::new(
        name,
        JobClassSpec {
            controller_name: KUBERNETES_CONTROLLER.to_owned(),
            parameters_ref: ParametersReference {
                group: "execution.ayatori.ddupan.top".to_owned(),
                kind: "KubernetesExecutionParameters".to_owned(),
                name: name.to_owned(),
            },
            ..JobClassSpec::default()
        },
    );
    class.metadata.uid = Some(format!("{name}-uid"));
    class.metadata.generation = Some(1);
    class.status = Some(ayatori_core::job_class::JobClassStatus {
        observed_generation: Some(1),
        conditions: vec![
            condition(ACCEPTED, "True", "Accepted"),
            condition(READY, "True", "BackendReachable"),
        ],
    });
    class
}

pub(crate) fn with_condition(mut class: JobClass, condition: Condition) -> JobClass {
    let status = class.status.get_or_insert_default();
    status.conditions.retain(|c| c.type_ != condition.type_);
    status.conditions.push(condition);
    class
}

pub(crate) fn annotated(mut class: JobClass, key: &str, value: &str) -> JobClass {
    class
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(key.to_owned(), value.to_owned());
    class
}

pub(crate) fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

/// What can be wished of a Job.
pub(crate) trait Wishes: Sized {
    fn cancelled(self) -> Self;
    fn deleted_at(self, seconds: i64) -> Self;
    fn suspended(self) -> Self;
    fn active_deadline(self, seconds: i32) -> Self;
    fn starting_deadline(self, seconds: i32) -> Self;
    fn ttl(self, seconds: i32) -> Self;
    fn managed_by(self, controller: &str) -> Self;
    fn protected(self) -> Self;
    fn unprotected(self) -> Self;
}

impl Wishes for Job {
    fn cancelled(mut self) -> Self {
        self.spec.cancel_requested = Some(true);
        self
    }
    fn deleted_at(mut self, seconds: i64) -> Self {
        self.metadata.deletion_timestamp = Some(time(seconds));
        self
    }
    fn suspended(mut self) -> Self {
        self.spec.suspend = Some(true);
        self
    }
    fn active_deadline(mut self, seconds: i32) -> Self {
        self.spec.active_deadline_seconds = Some(seconds);
        self
    }
    fn starting_deadline(mut self, seconds: i32) -> Self {
        self.spec.starting_deadline_seconds = Some(seconds);
        self
    }
    fn ttl(mut self, seconds: i32) -> Self {
        self.spec.ttl_seconds_after_finished = Some(seconds);
        self
    }
    fn managed_by(mut self, controller: &str) -> Self {
        self.spec.managed_by = Some(controller.to_owned());
        self
    }
    fn protected(mut self) -> Self {
        self.metadata.finalizers = Some(vec![
            "example.com/hold".to_owned(),
            EXECUTION_FINALIZER.to_owned(),
        ]);
        self
    }
    fn unprotected(mut self) -> Self {
        self.metadata.finalizers = Some(vec!["example.com/hold".to_owned()]);
        self
    }
}

// ---- stages, reached by the steps that lead there ----

pub(crate) fn accepted() -> Job {
    next(&job().protected(), &admitted(), 0)
}

pub(crate) fn attempted() -> Job {
    next(&accepted(), &surveyed(Prospect::Absent).single_shot(), 0)
}

pub(crate) fn recorded() -> Job {
    next(&accepted(), &surveyed(found()), 10)
}

pub(crate) fn recorded_single_shot() -> Job {
    next(&attempted(), &surveyed(found()), 10)
}

pub(crate) fn running() -> Job {
    next(&recorded(), &seen(runs()), 20)
}

/// A running Job whose stop is stored.
pub(crate) fn stopping() -> Job {
    next(&running().cancelled(), &seen(runs()), 30)
}

pub(crate) fn unknown() -> Job {
    next(
        &running(),
        &seen(State::Unobservable(why("BackendUnreachable"))),
        30,
    )
}

pub(crate) fn running_again() -> Job {
    next(&unknown(), &seen(runs()), 35)
}

pub(crate) fn succeeded() -> Job {
    next(&running(), &seen(State::Ended(ended(0))), 40)
}

pub(crate) fn released() -> Job {
    next(
        &succeeded(),
        &Facts {
            done: Some(Done::Released(ayatori_core::execution::Answer::Done)),
            ..Facts::default()
        },
        41,
    )
}

pub(crate) fn cancelled_before_accepted() -> Job {
    next(&job().cancelled(), &Facts::default(), 5)
}

/// The Job after the write that is decided on, which has to be one.
fn next(job: &Job, facts: &Facts, now: i64) -> Job {
    let written = written(job, facts, now);
    assert_ne!(&written, job, "expected a write, got {}", step(job, facts, now));
    written
}

/// The Job after the write that is decided on, if one is.
pub(crate) fn written(job: &Job, facts: &Facts, now: i64) -> Job {
    decide(job, facts, now, |step| match step {
        Step::Report(status) => Job {
            status: Some(*status),
            ..job.clone()
        },
        _ => job.clone(),
    })
}

// ---- facts ----

pub(crate) fn admitted() -> Facts {
    Facts {
        admission: Some(Ok(Ok(()))),
        parameters_uid: Some("parameters-uid".to_owned()),
        ..Facts::default()
    }
}

pub(crate) fn surveyed(prospect: Prospect) -> Facts {
    surveyed_at(0, Ok(prospect))
}

pub(crate) fn surveyed_at(asked: i64, prospect: Asked<Prospect>) -> Facts {
    Facts {
        prospect: Some((at(asked), prospect)),
        fresh_id: "attempt-1".to_owned(),
        ..Facts::default()
    }
}

pub(crate) fn seen(state: State) -> Facts {
    Facts {
        state: Some(state),
        ..Facts::default()
    }
}

pub(crate) fn left(remains: Asked<Remains>) -> Facts {
    Facts {
        remains: Some(remains),
        ..Facts::default()
    }
}

pub(crate) trait More: Sized {
    fn done(self, done: Done) -> Self;
    fn live(self, live: Asked<Live>) -> Self;
    fn mine(self) -> Self;
    fn surveyed(self, asked: i64, prospect: Prospect) -> Self;
    fn at_server(self, endpoint: &str) -> Self;
    fn hold(self) -> Self {
        self.live(Ok(Live::Matches(Protocol::Hold, identity())))
    }
    fn single_shot(self) -> Self {
        self.live(Ok(Live::Matches(Protocol::SingleShot(WINDOWS), identity())))
    }
}

impl More for Facts {
    fn done(mut self, done: Done) -> Self {
        self.done = Some(done);
        self
    }
    fn live(mut self, live: Asked<Live>) -> Self {
        self.live = Some(live);
        self
    }
    fn at_server(mut self, endpoint: &str) -> Self {
        self.backend = Some(server(endpoint));
        self
    }
    fn mine(mut self) -> Self {
        self.mine = Some("attempt-1".to_owned());
        self
    }
    fn surveyed(mut self, asked: i64, prospect: Prospect) -> Self {
        self.prospect = Some((at(asked), Ok(prospect)));
        self
    }
}

pub(crate) fn identity() -> BackendIdentity {
    BackendIdentity {
        parameters_uid: "parameters-uid".to_owned(),
        endpoint_hash: String::new(),
    }
}

pub(crate) fn server(endpoint: &str) -> BackendIdentity {
    BackendIdentity {
        endpoint_hash: endpoint.to_owned(),
        ..identity()
    }
}

/// The Job, with its execution or attempt on this server.
pub(crate) fn on_server(mut job: Job, endpoint: &str) -> Job {
    let status = job.status.as_mut().unwrap();
    status.execution.as_mut().unwrap().backend = Some(server(endpoint));
    job
}

pub(crate) fn name() -> ExecutionName {
    ExecutionName {
        id: "execution-1".to_owned(),
        uid: Some("instance-1".to_owned()),
    }
}

pub(crate) fn found() -> Prospect {
    Prospect::Found(name(), identity())
}

pub(crate) fn pending() -> Prospect {
    Prospect::Pending(name(), identity())
}

pub(crate) fn waits(reason: &str) -> State {
    State::Waiting(Waiting {
        why: why(reason),
        node: None,
        stopping_since: None,
    })
}

pub(crate) fn runs() -> State {
    State::Running(Running {
        renew_at: None,
        started_at: Some(at(19)),
        node: Some("node-1".to_owned()),
        stopping_since: None,
    })
}

pub(crate) fn runs_until(stopping_since: i64) -> State {
    State::Running(Running {
        renew_at: None,
        started_at: Some(at(19)),
        node: Some("node-1".to_owned()),
        stopping_since: Some(at(stopping_since)),
    })
}

pub(crate) fn gone(proven: bool) -> State {
    State::Gone(Gone {
        proven,
        why: why("ExecutionNotFound"),
    })
}

/// Ended by itself with this code.
pub(crate) fn ended(code: i32) -> End {
    End {
        exit: Exit::Code {
            code,
            out_of_memory: false,
        },
        started_at: Some(at(19)),
        finished_at: Some(at(39)),
        stopped_at: None,
        stopped_by: Stopper::Nobody,
        node: Some("node-1".to_owned()),
        note: None,
    }
}

// ---- steps ----

/// Decides on the Job as its owner, with the class "rootless" ready unless the Job was shown another.
pub(crate) fn decide<R>(job: &Job, facts: &Facts, now: i64, then: impl FnOnce(Step<'_>) -> R) -> R {
    decide_with(&class("rootless"), job, facts, now, then)
}

pub(crate) fn decide_with<R>(
    class: &JobClass,
    job: &Job,
    facts: &Facts,
    now: i64,
    then: impl FnOnce(Step<'_>) -> R,
) -> R {
    let selection = Selection::Chosen(class);
    let Ownership::Owned(owned) = ownership::of_job(job, KUBERNETES_CONTROLLER, &selection, [class]) else {
        unreachable!("the Job is ours");
    };
    then(lifecycle::decide(&owned, facts, &Settings::default(), at(now)))
}

/// The step that follows, in words.
pub(crate) fn step(job: &Job, facts: &Facts, now: i64) -> String {
    decide(job, facts, now, |step| told(job, &step))
}

pub(crate) fn told(job: &Job, step: &Step<'_>) -> String {
    match step {
        Step::Ask(question) => format!(
            "Ask({})",
            match question {
                Question::Admission(..) => "Admission",
                Question::Live(_) => "Live",
                Question::Prospect(_) => "Prospect",
                Question::State(_) => "State",
                Question::Remains(_) => "Remains",
            }
        ),
        Step::Protect => "Protect".to_owned(),
        Step::Unprotect => "Unprotect".to_owned(),
        Step::Report(status) => format!("Report({})", news(job.status.as_ref(), status)),
        Step::Act(effect) => format!(
            "Act({})",
            match effect {
                Effect::Prepare(_) => "Prepare",
                Effect::Submit(_) => "Submit",
                Effect::Start(_) => "Start",
                Effect::Renew(_) => "Renew",
                Effect::Stop(_) => "Stop",
                Effect::Discard(..) => "Discard",
                Effect::Release(_) => "Release",
                Effect::Remove(_) => "Remove",
            }
        ),
        Step::Collect => "Collect".to_owned(),
        Step::Wait(Wait::Until(None)) => "Wait".to_owned(),
        Step::Wait(Wait::Until(Some(until))) => format!("Wait({})", seconds(*until)),
        Step::Wait(Wait::Backoff(None)) => "Backoff".to_owned(),
        Step::Wait(Wait::Backoff(Some(until))) => format!("Backoff({})", seconds(*until)),
    }
}

/// What a status says that its predecessor did not.
pub(crate) fn news(old: Option<&JobStatus>, new: &JobStatus) -> String {
    let nothing = JobStatus::default();
    let old = old.unwrap_or(&nothing);
    let before = old.execution.clone().unwrap_or_default();
    let after = new.execution.clone().unwrap_or_default();
    let mut words: Vec<String> = new
        .conditions
        .iter()
        .filter(|c| {
            !conditions::find(&old.conditions, &c.type_)
                .is_some_and(|b| b.status == c.status && b.reason == c.reason)
        })
        .map(|c| match c.status.as_str() {
            "True" if c.type_ == "Finished" => {
                let result = new.result.as_ref().unwrap();
                let code = result.exit_code.map_or(String::new(), |code| format!(" {code}"));
                format!("{:?}/{}{code}", result.outcome, result.reason)
            }
            "True" if ["ResultUnknown", "DeletionBlocked"].contains(&c.type_.as_str()) => {
                format!("{}/{}", c.type_, c.reason)
            }
            "True" => c.type_.clone(),
            _ => format!("!{}/{}", c.type_, c.reason),
        })
        .collect();
    if after.attempt != before.attempt {
        words.push(
            if after.attempt.is_some() {
                "attempt"
            } else {
                "attempt cleared"
            }
            .to_owned(),
        );
    }
    if let Some(stop) = after.stop.as_ref().filter(|_| before.stop.is_none()) {
        words.push(format!("stop {:?}", stop.reason));
    }
    let delivered =
        |e: &ayatori_core::job::Execution| e.stop.as_ref().is_some_and(|s| s.delivered_time.is_some());
    if delivered(&after) && !delivered(&before) {
        words.push("delivered".to_owned());
    }
    if after.release_time != before.release_time {
        words.push("released".to_owned());
    }
    words.join(", ")
}

/// Checks a table of what is decided.
pub(crate) fn check(rows: Vec<(&str, Job, Facts, i64, &str)>) {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(name, job, facts, now, expected)| {
            let actual = step(job, facts, *now);
            (actual != *expected).then(|| format!("{name}\n   expected {expected}\n   decided  {actual}"))
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

//! A world in one value: an API server with one Job, a backend that can play both protocols, a clock, and the
//! loop that every adapter runs. Nothing in it waits; time passes only when a test says so.

use ayatori_core::conditions::{self, FINISHED, RESULT_UNKNOWN};
use ayatori_core::execution::{
    Answer, End, ExecutionName, Exit, Gone, Prospect, Protocol, Remains, Running, State, Stopper, Submission,
    Waiting,
};
use ayatori_core::job::{Job, JobStatus, Outcome};
use ayatori_core::job_class::JobClass;
use ayatori_core::lifecycle::{self, Asked, Done, Effect, Facts, Live, Question, Settings, Step, Wait};
use ayatori_core::names::{EXECUTION_FINALIZER, KUBERNETES_CONTROLLER};
use ayatori_core::ownership::{self, Ownership, Selection};
use ayatori_core::stage::{Departing, Recorded};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::shapes::*;

/// More steps than any pass may take.
const STEPS: usize = 20;

/// Everything there is.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) protocol: Protocol,
    pub(crate) class: JobClass,
    /// The Job as the API server has it; none once it is gone.
    pub(crate) job: Option<Job>,
    pub(crate) backend: Backend,
    /// Seconds since the Job was created.
    pub(crate) now: i64,
    /// Every write and effect, in order.
    pub(crate) log: Vec<String>,
    passes: u32,
}

/// A process in the middle of a pass: the copy of the Job it decides on, and what it has learned.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    job: Job,
    facts: Facts,
    steps: usize,
    changes: usize,
}

impl Process {
    /// An attempt that this very process stored, just now, is the only one it may send.
    fn wrote(&mut self, stored: Job) {
        let attempt = stored
            .status
            .as_ref()
            .and_then(|s| s.execution.as_ref()?.attempt.as_ref());
        if attempt.is_some_and(|a| a.id == self.facts.fresh_id) {
            self.facts.mine = Some(self.facts.fresh_id.clone());
        }
        self.job = stored;
        self.changes += 1;
    }
}

fn finalizers(job: &mut Job) -> &mut Vec<String> {
    job.metadata.finalizers.get_or_insert_default()
}

/// How a pass ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Waits(Wait),
    /// A write was refused because the copy was old, or the object is gone.
    Stale,
    /// The process died after so many changes.
    Crashed,
}

impl World {
    pub(crate) fn new(protocol: Protocol, job: Job) -> Self {
        Self {
            protocol,
            class: class("rootless"),
            job: Some(job),
            backend: Backend::default(),
            now: 0,
            log: Vec::new(),
            passes: 0,
        }
    }

    /// One pass of a process that sees the world as it is.
    pub(crate) fn pass(&mut self) -> Pass {
        match self.job.clone() {
            Some(job) => self.pass_on(job, usize::MAX),
            None => Pass::Stale,
        }
    }

    /// One pass of a process with this copy of the Job, which dies after so many changes.
    pub(crate) fn pass_on(&mut self, copy: Job, changes: usize) -> Pass {
        let mut process = self.begin(copy);
        loop {
            if let Some(end) = self.step(&mut process) {
                return end;
            }
            if process.changes >= changes {
                return Pass::Crashed;
            }
        }
    }

    /// A process that has read this copy of the Job and begins a pass.
    pub(crate) fn begin(&mut self, copy: Job) -> Process {
        self.passes += 1;
        Process {
            job: copy,
            facts: Facts {
                parameters_uid: Some("parameters-uid".to_owned()),
                fresh_id: format!("attempt-{}", self.passes),
                ..Facts::default()
            },
            steps: 0,
            changes: 0,
        }
    }

    /// One step of a pass; how the pass ended, if it did.
    pub(crate) fn step(&mut self, process: &mut Process) -> Option<Pass> {
        process.steps += 1;
        assert!(process.steps <= STEPS, "a pass that never waits: {:#?}", self.log);
        let class = self.class.clone();
        let selection = Selection::Chosen(&class);
        let copy = process.job.clone();
        let Ownership::Owned(owned) = ownership::of_job(&copy, KUBERNETES_CONTROLLER, &selection, [&class])
        else {
            unreachable!("the Job is ours");
        };
        let step = lifecycle::decide(&owned, &process.facts, &Settings::default(), at(self.now));
        let words = told(&copy, &step);
        let stored = match step {
            Step::Wait(wait) => {
                self.assert_wait_ends_later(wait);
                return Some(Pass::Waits(wait));
            }
            Step::Ask(question) => {
                self.answer(&mut process.facts, question);
                return None;
            }
            Step::Act(effect) => {
                self.log.push(words);
                process.changes += 1;
                process.facts.done = Some(self.act(effect));
                // What was seen of the backend before the change is old now.
                process.facts.prospect = None;
                process.facts.state = None;
                process.facts.remains = None;
                return None;
            }
            Step::Report(status) => self.write(&copy, |job| job.status = Some(*status)),
            Step::Protect => self.write(&copy, |job| finalizers(job).push(EXECUTION_FINALIZER.to_owned())),
            Step::Unprotect => self.write(&copy, |job| finalizers(job).retain(|f| f != EXECUTION_FINALIZER)),
            Step::Collect => self.collect(&copy),
        };
        let Some(stored) = stored else {
            return Some(Pass::Stale);
        };
        let over = ["Unprotect", "Collect"].contains(&words.as_str());
        self.log.push(words);
        process.wrote(stored);
        over.then_some(Pass::Stale)
    }

    /// A wait until a time that has passed would spin.
    fn assert_wait_ends_later(&self, wait: Wait) {
        let (Wait::Until(until) | Wait::Backoff(until)) = wait;
        assert!(
            until.is_none_or(|until| until > at(self.now)),
            "waits until the past: {wait:?}"
        );
    }

    // ---- the API server ----

    /// Stores a change decided on `copy`, unless the Job has changed since.
    fn write(&mut self, copy: &Job, change: impl FnOnce(&mut Job)) -> Option<Job> {
        let stored = self.job.clone()?;
        if stored.metadata.resource_version != copy.metadata.resource_version {
            return None;
        }
        let mut next = copy.clone();
        change(&mut next);
        assert_legal(&stored, &next);
        self.check_end(&stored, &next);
        self.store(next)
    }

    fn store(&mut self, mut job: Job) -> Option<Job> {
        let version = job.metadata.resource_version.as_deref().unwrap_or("0");
        job.metadata.resource_version = Some((version.parse::<u64>().unwrap() + 1).to_string());
        let protected = job.metadata.finalizers.iter().flatten().next().is_some();
        if job.metadata.deletion_timestamp.is_some() && !protected {
            self.check_departure();
            self.job = None;
            return Some(job);
        }
        self.job = Some(job.clone());
        Some(job)
    }

    /// A user changes the Job.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Job)) {
        let Some(mut job) = self.job.clone() else { return };
        change(&mut job);
        job.metadata.generation = job.metadata.generation.map(|g| g + 1);
        self.store(job);
    }

    pub(crate) fn cancel(&mut self) {
        self.edit(|job| job.spec.cancel_requested = Some(true));
    }

    pub(crate) fn delete(&mut self) {
        let now = self.now;
        self.edit(|job| {
            job.metadata.deletion_timestamp.get_or_insert(time(now));
        });
    }

    fn collect(&mut self, copy: &Job) -> Option<Job> {
        let stored = self.job.clone()?;
        let same = stored.metadata.resource_version == copy.metadata.resource_version;
        same.then(|| {
            self.delete();
            stored
        })
    }

    // ---- the backend, asked and told ----

    fn answer(&mut self, facts: &mut Facts, question: Question<'_>) {
        match question {
            Question::Admission(..) => facts.admission = Some(Ok(Ok(()))),
            Question::Live(_) => facts.live = Some(Ok(Live::Matches(self.protocol, identity()))),
            Question::Prospect(_) => facts.prospect = Some((at(self.now), self.backend.survey())),
            Question::State(recorded) => facts.state = Some(self.backend.observe(recorded, self.now)),
            Question::Remains(departing) => facts.remains = Some(self.backend.remains(departing)),
        }
    }

    fn act(&mut self, effect: Effect<'_>) -> Done {
        let now = self.now;
        let backend = &mut self.backend;
        match effect {
            Effect::Submit(attempted) => {
                let attempt = attempted.attempt();
                assert!(now <= seconds(attempt.send_before.0), "sent too late");
                Done::Submitted(backend.submit(seconds(attempt.start_before.0)))
            }
            Effect::Prepare(_) => Done::Prepared(backend.reached(|b| b.prepare())),
            Effect::Start(recorded) => Done::Started(backend.reached(|b| b.start(recorded))),
            Effect::Stop(recorded) => Done::Stopped(backend.reached(|b| b.stop(recorded, now))),
            Effect::Discard(_, name) => Done::Discarded(backend.reached(|b| b.discard(&name))),
            Effect::Release(_) => Done::Released(backend.reached(|b| b.clear())),
            Effect::Renew(_) => Done::Renewed(backend.reached(|b| b.renew(now))),
            Effect::Remove(_) => Done::Removed(backend.reached(|b| b.clear())),
        }
    }

    // ---- promises ----

    /// When a Job becomes Finished, nothing of it runs and the result is what happened.
    fn check_end(&self, old: &Job, new: &Job) {
        if is_finished(old) || !is_finished(new) {
            return;
        }
        assert!(
            !self.backend.anything_runs(),
            "finished while it runs: {:#?}",
            self.log
        );
        let result = new.status.as_ref().and_then(|s| s.result.as_ref()).unwrap();
        let own = self.backend.executions.iter().find_map(|e| e.own_code);
        if result.outcome == Outcome::Succeeded {
            assert_eq!(
                (own, result.exit_code),
                (Some(0), Some(0)),
                "a success that was none"
            );
        }
        if let Some(code) = own.filter(|_| result.exit_code.is_some()) {
            assert_eq!(result.exit_code, Some(code), "another code than the process had");
            assert_ne!(
                result.outcome,
                Outcome::Cancelled,
                "its own end was called cancelled"
            );
        }
        if result.outcome == Outcome::Cancelled {
            let asked = new.spec.cancel_requested == Some(true) || new.metadata.deletion_timestamp.is_some();
            assert!(asked, "nobody asked for a cancel");
        }
    }

    /// When a Job goes, nothing of it runs and nothing can start any more.
    fn check_departure(&self) {
        assert!(!self.backend.anything_runs(), "gone while it runs");
        assert!(
            !self.backend.anything_can_start(self.now),
            "gone while it can start"
        );
    }
}

pub(crate) fn is_finished(job: &Job) -> bool {
    conditions::is_true(&job.status.as_ref().unwrap().conditions, FINISHED)
}

// ---- the rules that the API server enforces on a status ----

fn assert_legal(old: &Job, new: &Job) {
    let nothing = JobStatus::default();
    let (a, b) = (
        old.status.as_ref().unwrap_or(&nothing),
        new.status.as_ref().unwrap_or(&nothing),
    );
    set_once("resolvedJobClass", &a.resolved_job_class, &b.resolved_job_class);
    set_once("resources", &a.resources, &b.resources);
    set_once("startTime", &a.start_time, &b.start_time);
    set_once("finishTime", &a.finish_time, &b.finish_time);
    set_once("result", &a.result, &b.result);
    let (x, y) = (
        a.execution.clone().unwrap_or_default(),
        b.execution.clone().unwrap_or_default(),
    );
    set_once("id", &x.id, &y.id);
    set_once("uid", &x.uid, &y.uid);
    set_once("nodeName", &x.node_name, &y.node_name);
    set_once(
        "startRequestedTime",
        &x.start_requested_time,
        &y.start_requested_time,
    );
    set_once("releaseTime", &x.release_time, &y.release_time);
    let asked =
        |e: &ayatori_core::job::Execution| e.stop.as_ref().map(|s| (s.reason, s.requested_time.clone()));
    set_once("stop", &asked(&x), &asked(&y));
    let delivered = |e: &ayatori_core::job::Execution| e.stop.as_ref().and_then(|s| s.delivered_time.clone());
    set_once("deliveredTime", &delivered(&x), &delivered(&y));
    let cleared = y.attempt.is_none() && y.backend.is_none() && x.id.is_none() && y.id.is_none();
    if !cleared {
        set_once("attempt", &x.attempt, &y.attempt);
        set_once("backend", &x.backend, &y.backend);
    }
    assert!(
        x.stop.is_none() || x.start_requested_time == y.start_requested_time,
        "started after a stop"
    );
    for once in ["Accepted", "Scheduled", "Started", "Finished"] {
        let since = |s: &JobStatus| conditions::true_since(&s.conditions, once).map(Time);
        set_once(once, &since(a), &since(b));
    }
    if conditions::is_true(&b.conditions, FINISHED) {
        assert!(
            b.result.is_some() && b.finish_time.is_some(),
            "finished without a result"
        );
        assert!(
            !conditions::is_true(&b.conditions, RESULT_UNKNOWN),
            "final, and not known"
        );
    }
}

fn set_once<T: PartialEq + std::fmt::Debug>(field: &str, old: &Option<T>, new: &Option<T>) {
    assert!(
        old.is_none() || old == new,
        "{field} is set once: {old:?} became {new:?}"
    );
}

// ---- the backend ----

/// A backend with everything that ever existed in it for the one Job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backend {
    pub(crate) executions: Vec<Execution>,
    /// Requests that were sent and have not arrived, each with its fence.
    pub(crate) in_flight: Vec<i64>,
    /// How often the command was started.
    pub(crate) starts: u32,
    pub(crate) unreachable: bool,
    /// When the expiry of what runs is to be put off, by 100 seconds at a time.
    pub(crate) renew_at: Option<i64>,
    /// What the next create request of the single-shot protocol comes to.
    pub(crate) next_submission: NextSubmission,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NextSubmission {
    #[default]
    Answered,
    Refused,
    /// Sent; it arrives when a test says so, or never.
    Unanswered,
}

#[derive(Clone, Debug)]
pub(crate) struct Execution {
    pub(crate) name: ExecutionName,
    life: Life,
    /// After this second the command refuses to start.
    fence: Option<i64>,
    started_at: Option<i64>,
    /// When somebody asked for its end, and who.
    stopped: Option<(i64, Stopper)>,
    /// The code with which it ended by itself: before the second of any request to end it.
    own_code: Option<i32>,
    /// Whether the backend has lost sight of it.
    hidden: bool,
}

#[derive(Clone, Debug)]
enum Life {
    Held,
    Pending,
    Running,
    Ended(Exit, i64),
    Gone,
}

impl Backend {
    fn reached(&mut self, act: impl FnOnce(&mut Self)) -> Answer {
        if self.unreachable {
            return Answer::Unavailable(why("BackendUnreachable"));
        }
        act(self);
        Answer::Done
    }

    fn create(&mut self, life: Life, fence: Option<i64>) -> ExecutionName {
        let name = ExecutionName {
            id: format!("execution-{}", self.executions.len() + 1),
            uid: None,
        };
        self.executions.push(Execution {
            name: name.clone(),
            life,
            fence,
            started_at: None,
            stopped: None,
            own_code: None,
            hidden: false,
        });
        name
    }

    fn prepare(&mut self) {
        if self.executions.iter().all(|e| matches!(e.life, Life::Gone)) {
            self.create(Life::Held, None);
        }
    }

    fn submit(&mut self, fence: i64) -> Submission {
        match self.next_submission {
            NextSubmission::Refused => Submission::Refused(why("BackendRejected")),
            NextSubmission::Unanswered => {
                self.in_flight.push(fence);
                Submission::Unanswered(why("Timeout"))
            }
            NextSubmission::Answered if self.unreachable => Submission::Refused(why("BackendUnavailable")),
            NextSubmission::Answered => Submission::Created(self.create(Life::Pending, Some(fence))),
        }
    }

    fn named(&mut self, id: &str) -> Option<&mut Execution> {
        self.executions.iter_mut().find(|e| e.name.id == id)
    }

    /// Only what is held can be let go, once.
    fn start(&mut self, recorded: Recorded<'_>) {
        if let Some(e) = self.named(recorded.id()).filter(|e| matches!(e.life, Life::Held)) {
            e.life = Life::Pending;
        }
    }

    fn stop(&mut self, recorded: Recorded<'_>, now: i64) {
        let Some(e) = self.named(recorded.id()) else {
            return;
        };
        if matches!(e.life, Life::Held | Life::Pending | Life::Running) {
            e.stopped.get_or_insert((now, Stopper::Deadline));
        }
        if matches!(e.life, Life::Held | Life::Pending) {
            e.life = Life::Ended(Exit::NeverStarted, now);
        }
    }

    fn discard(&mut self, name: &ExecutionName) {
        let Some(e) = self.named(&name.id) else { return };
        assert!(
            !matches!(e.life, Life::Running),
            "our own delete ended a run that nobody had stopped"
        );
        e.life = Life::Gone;
    }

    fn renew(&mut self, now: i64) {
        self.renew_at = Some(now + 100);
    }

    /// What release and removal come to. They are told only of what has ended.
    fn clear(&mut self) {
        assert!(!self.anything_runs(), "removed while it runs");
        self.executions.iter_mut().for_each(|e| e.life = Life::Gone);
    }

    fn survey(&self) -> Asked<Prospect> {
        if self.unreachable {
            return Err(why("BackendUnreachable"));
        }
        let there = self
            .executions
            .iter()
            .find(|e| !matches!(e.life, Life::Gone) && !e.hidden);
        Ok(there.map_or(Prospect::Absent, |e| match (&e.life, e.fence) {
            (Life::Pending, Some(_)) => Prospect::Pending(e.name.clone(), identity()),
            (Life::Ended(..), None) => Prospect::Spoilt(why("PodDeleted")),
            _ => Prospect::Found(e.name.clone(), identity()),
        }))
    }

    fn observe(&mut self, recorded: Recorded<'_>, now: i64) -> State {
        if self.unreachable {
            return State::Unobservable(why("BackendUnreachable"));
        }
        let renew_at = self.renew_at.map(at);
        let e = self.named(recorded.id()).expect("what is recorded has existed");
        let stopping_since = e.stopped.as_ref().map(|(since, _)| at(*since));
        let gone = |proven| {
            State::Gone(Gone {
                proven,
                why: why("ExecutionNotFound"),
            })
        };
        match &e.life {
            Life::Running if e.hidden => gone(false),
            _ if e.hidden => gone(true),
            Life::Gone => gone(true),
            Life::Held => State::Held,
            Life::Pending => State::Waiting(Waiting {
                why: why("Pending"),
                node: None,
                stopping_since,
            }),
            Life::Running => State::Running(Running {
                renew_at,
                started_at: e.started_at.map(at),
                node: Some("node-1".to_owned()),
                stopping_since,
            }),
            Life::Ended(exit, finished) => State::Ended(End {
                exit: exit.clone(),
                started_at: e.started_at.map(at),
                finished_at: Some(at((*finished).min(now))),
                stopped_at: stopping_since,
                stopped_by: e.stopped.as_ref().map_or(Stopper::Nobody, |(_, by)| by.clone()),
                node: e.started_at.map(|_| "node-1".to_owned()),
                note: None,
            }),
        }
    }

    fn remains(&self, _: Departing<'_>) -> Asked<Remains> {
        if self.unreachable {
            return Err(why("BackendUnreachable"));
        }
        let left = self.executions.iter().any(|e| !matches!(e.life, Life::Gone));
        Ok(if left {
            Remains::Something("an execution".to_owned())
        } else {
            Remains::Nothing
        })
    }

    // ---- what happens by itself ----

    /// What was let go comes up, unless it is too late.
    pub(crate) fn come_up(&mut self, now: i64) {
        for e in &mut self.executions {
            if matches!(e.life, Life::Pending) {
                if e.fence.is_some_and(|fence| now > fence) {
                    e.life = Life::Ended(Exit::Unstartable(why("StartTooLate")), now);
                } else {
                    e.life = Life::Running;
                    e.started_at = Some(now);
                    self.starts += 1;
                }
            }
        }
    }

    /// The process ends by itself, or because of whoever asked for it.
    pub(crate) fn exit(&mut self, code: i32, now: i64) {
        for e in &mut self.executions {
            if matches!(e.life, Life::Running) {
                e.life = Life::Ended(
                    Exit::Code {
                        code,
                        out_of_memory: false,
                    },
                    now,
                );
                let first = e.stopped.as_ref().is_none_or(|(stopped, _)| now < *stopped);
                e.own_code = first.then_some(code);
            }
        }
    }

    /// Somebody else asks for its end.
    pub(crate) fn evict(&mut self, now: i64) {
        for e in &mut self.executions {
            match e.life {
                Life::Running => drop(e.stopped.get_or_insert((now, Stopper::Other(why("Evicted"))))),
                Life::Held | Life::Pending if e.fence.is_none() => {
                    e.stopped.get_or_insert((now, Stopper::Other(why("Evicted"))));
                    e.life = Life::Ended(Exit::NeverStarted, now);
                }
                Life::Held | Life::Pending | Life::Ended(..) | Life::Gone => {}
            }
        }
    }

    /// It is gone, with its process.
    pub(crate) fn vanish(&mut self) {
        self.executions.iter_mut().for_each(|e| e.life = Life::Gone);
    }

    /// Its object is gone, its process is not. (A single-shot backend is trusted to list what it has.)
    pub(crate) fn hide(&mut self) {
        for e in &mut self.executions {
            e.hidden |= matches!(e.life, Life::Running) && e.fence.is_none();
        }
    }

    /// A request that nobody had an answer to arrives.
    pub(crate) fn arrive(&mut self) {
        if let Some(fence) = self.in_flight.pop() {
            self.create(Life::Pending, Some(fence));
        }
    }

    pub(crate) fn anything_runs(&self) -> bool {
        self.executions.iter().any(|e| matches!(e.life, Life::Running))
    }

    fn anything_can_start(&self, now: i64) -> bool {
        let pending =
            |e: &Execution| matches!(e.life, Life::Pending) && e.fence.is_none_or(|fence| now <= fence);
        self.executions.iter().any(pending) || self.in_flight.iter().any(|fence| now <= *fence)
    }
}

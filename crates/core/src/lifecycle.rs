//! The life of a Job, one step at a time.
//!
//! [`decide`] is given what was read and the time, and names one [`Step`]: a question to ask, a status to
//! store, one effect on the backend, or nothing until something changes. It is called again after every step,
//! so a crash is nothing but a pause between two calls. What it was told in [`Facts`] may be old; every write
//! it asks for is fenced by the Job's resourceVersion, and every effect is safe to repeat.
//!
//! The order that makes a command start exactly once (prepare, record, start; or attempt, submit, adopt) is
//! not checked here but cannot be written otherwise: effects take the types of [`crate::stage`].

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::admission::{self, Admissible};
use crate::conditions::{
    self, ACCEPTED, FINISHED, RESULT_UNKNOWN, SCHEDULED, STARTED, Statement, whole_seconds,
};
use crate::ending;
use crate::execution::{
    Answer, ExecutionName, Gone, Prospect, Protocol, Remains, State, Submission, Waiting, Why, Windows,
};
use crate::job::{Attempt, BackendIdentity, Correlation, Execution, Job, JobResult, JobStatus, StopReason};
use crate::names::{JOB_CONTROLLER, JOB_UID_LABEL};
use crate::ownership::{Orphanhood, Owned, Unowned};
use crate::report::Draft;
use crate::stage::{Accepted, Attempted, Closed, Departing, Recorded, Stage, is_deleting, is_protected};
use crate::ttl;

/// What an adapter was configured with, as far as decisions depend on it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long ordinary progress may take before the Job says what it waits for.
    pub quiet_start: SignedDuration,
    /// How long a deletion may take before the Job says what it waits for.
    pub quiet_deletion: SignedDuration,
    /// How often a Job's missing references are looked at again.
    pub reference_poll: SignedDuration,
    /// After which time a stop that shows no effect is sent again.
    pub stop_patience: SignedDuration,
    /// Clock skew and list lag of the single-shot protocol, together.
    pub margin: SignedDuration,
    /// Link into the log store; `{namespace}`, `{name}` and `{uid}` are filled in.
    pub logs_url_template: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            quiet_start: SignedDuration::from_secs(60),
            quiet_deletion: SignedDuration::from_secs(30),
            reference_poll: SignedDuration::from_secs(5),
            stop_patience: SignedDuration::from_secs(5),
            margin: SignedDuration::from_secs(90),
            logs_url_template: None,
        }
    }
}

/// What was read for one Job. Absent means not asked yet; [`decide`] asks.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Labels of the Job's namespace.
    pub namespace_labels: std::collections::BTreeMap<String, String>,
    /// Fields of the Job's spec, as paths, that this version does not know.
    pub unknown_fields: Vec<String>,
    /// UID of the chosen class's parameters object, if it exists and is not being deleted.
    pub parameters_uid: Option<String>,
    /// Which server the parameters that were recorded with the Job's acceptance name now, if they still exist.
    pub backend: Option<BackendIdentity>,
    /// Until when nothing is created for the Job, because that failed just now. What failed was stored, and that
    /// alone wakes the Job at once.
    pub hold_off: Option<Timestamp>,
    /// Whether the backend and the Job's references allow its execution.
    pub admission: Option<Asked<Result<(), Why>>>,
    /// What the API server itself, not a cache, shows of the recorded class and parameters.
    pub live: Option<Asked<Live>>,
    /// What exists in the backend for a Job of which nothing is recorded, or (single shot) whose recorded
    /// execution has not come up by its fence; and when the question was sent.
    pub prospect: Option<(Timestamp, Asked<Prospect>)>,
    /// What became of the recorded execution.
    pub state: Option<State>,
    /// What is left in the backend of a Job that goes.
    pub remains: Option<Asked<Remains>>,
    /// What the last effect of this pass came to. A status write does not clear it.
    pub done: Option<Done>,
    /// A random id, for an attempt this process may store.
    pub fresh_id: String,
    /// The attempt that this very process stored in this pass; it alone may send the request.
    pub mine: Option<String>,
}

/// An answer, or why there was none.
pub type Asked<T> = Result<T, Why>;

/// The recorded class and parameters, read live before the first create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Live {
    /// Both are there, with the recorded UIDs; this is how their backend starts a command.
    Matches(Protocol, BackendIdentity),
    /// Both are there, and their backend takes no more create requests at present. It tells when it does; ordinary
    /// progress has the reason [`PENDING`](conditions::PENDING).
    Busy(Why),
    /// The class is not ready now.
    NotReady(Why),
    /// One of them is gone for good: JobClassReplaced or ParametersReplaced.
    Replaced(Why),
}

/// The effect that was carried out, with its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// [`Effect::Prepare`].
    Prepared(Answer),
    /// [`Effect::Submit`].
    Submitted(Submission),
    /// [`Effect::Start`].
    Started(Answer),
    /// [`Effect::Renew`].
    Renewed(Answer),
    /// [`Effect::Stop`].
    Stopped(Answer),
    /// [`Effect::Discard`].
    Discarded(Answer),
    /// [`Effect::Release`].
    Released(Answer),
    /// [`Effect::Remove`].
    Removed(Answer),
}

/// A question to the world. Its answer goes into [`Facts`].
#[derive(Clone, Debug)]
pub enum Question<'a> {
    /// `facts.admission`: does the backend, and do the Job's references, allow it to be executed like this?
    Admission(&'a Job, Admissible),
    /// `facts.live`: are the recorded class and parameters still those?
    Live(Accepted<'a>),
    /// `facts.prospect`: what exists for this Job? Asked while nothing is recorded, and (single shot) again when
    /// the recorded execution has not come up by its fence.
    Prospect(Accepted<'a>),
    /// `facts.state`: what became of the recorded execution?
    State(Recorded<'a>),
    /// `facts.remains`: what is left of it?
    Remains(Departing<'a>),
}

/// One change to a backend. Every one is safe to repeat, but [`Effect::Submit`], which only the process that
/// stored the attempt may carry out, once.
#[derive(Clone, Debug)]
pub enum Effect<'a> {
    /// Create an execution that is held before its command.
    Prepare(Accepted<'a>),
    /// Send the one create request of a single-shot backend.
    Submit(Attempted<'a>),
    /// Let the recorded execution, and no other, start its command.
    Start(Recorded<'a>),
    /// Put off the expiry of the recorded execution.
    Renew(Recorded<'a>),
    /// End the recorded execution's process. The reason is stored already.
    Stop(Recorded<'a>),
    /// Delete a single-shot execution that has not come up by its fence: its command never starts any more.
    Discard(Attempted<'a>, ExecutionName),
    /// Give back the backend's resources of what has ended, keeping logs where the backend does.
    Release(Closed<'a>),
    /// Delete everything the backend holds for the Job.
    Remove(Departing<'a>),
}

impl Done {
    /// The effect, in one word.
    pub fn name(&self) -> &'static str {
        match self {
            Done::Prepared(_) => "prepare",
            Done::Submitted(_) => "submit",
            Done::Started(_) => "start",
            Done::Renewed(_) => "renew",
            Done::Stopped(_) => "stop",
            Done::Discarded(_) => "discard",
            Done::Released(_) => "release",
            Done::Removed(_) => "remove",
        }
    }
}

/// What to do next.
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// Ask, put the answer into the facts, decide again.
    Ask(Question<'a>),
    /// Put our finalizer on the Job, fenced by its resourceVersion.
    Protect,
    /// Take our finalizer off, fenced by the Job's resourceVersion.
    Unprotect,
    /// Store this status, fenced by the Job's resourceVersion.
    Report(Box<JobStatus>),
    /// Change the backend.
    Act(Effect<'a>),
    /// Delete the Job as it was read, with UID and resourceVersion as preconditions. Nothing is left to decide
    /// until the deletion shows.
    Collect,
    /// Nothing to do now.
    Wait(Wait),
}

/// Until when there is nothing to do. A change of anything that was read always ends the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until this time, or for a change only.
    Until(Option<Timestamp>),
    /// As long as the backoff of this Job says, and no longer than to this time.
    Backoff(Option<Timestamp>),
}

impl Wait {
    fn no_later_than(self, at: Timestamp) -> Self {
        match self {
            Wait::Until(until) => Wait::Until(earliest(until, Some(at))),
            Wait::Backoff(until) => Wait::Backoff(earliest(until, Some(at))),
        }
    }
}

/// Reason of `Accepted` while `spec.suspend` holds a Job back.
const SUSPENDED: &str = "Suspended";
/// Reason while the definitions do not know a field of the next status.
const DEFINITIONS_TOO_OLD: &str = "DefinitionsTooOld";
/// Before the reason at the end of a message.
const BECAUSE: &str = ": ";
/// Times are stored in whole seconds: what is waited for is over a second later.
const SECOND: SignedDuration = SignedDuration::from_secs(1);
/// How soon what is gone, and not yet proven to be, is looked for again.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// The next step for a Job this controller owns.
pub fn decide<'a>(owned: &Owned<'a>, facts: &Facts, settings: &Settings, now: Timestamp) -> Step<'a> {
    let job = owned.job();
    if let Some(step) = collected_or_anothers(job, now) {
        return step;
    }
    let life = Life {
        job,
        owned,
        facts,
        settings,
        now,
    };
    let stage = Stage::of(job);
    if stage.may_have_an_execution() && !is_deleting(job) && !is_protected(job) {
        return Step::Protect;
    }
    match stage {
        Stage::Fresh => life.fresh(),
        Stage::Accepted(accepted) => life.accepted(accepted),
        Stage::Attempted(attempted) => life.attempted(attempted),
        Stage::Recorded(recorded) => life.recorded(recorded),
        Stage::Finished(closed) => life.finished(closed),
    }
}

/// The next step for a Job that nobody owns, taken by the one deputy of all adapters.
pub fn decide_unowned<'a>(unowned: &Unowned<'a>, now: Timestamp) -> Step<'a> {
    let job = unowned.job();
    if let Some(step) = collected_or_anothers(job, now) {
        return step;
    }
    if is_deleting(job) {
        return unprotect(job);
    }
    if let Stage::Finished(_) = Stage::of(job) {
        return Step::Wait(Wait::Until(ttl::expiry(job)));
    }
    if let Some(reason) = stop_wanted(job, None, now) {
        return report(
            Draft::of(job, now).finished(ending::never_started(reason)),
            no_wait(),
        );
    }
    let wait = Wait::Until(next_deadline(job, None, now));
    let why = match unowned.why() {
        // An old adapter must not argue with a new one that knows this controller.
        Orphanhood::UnknownController(_) if was_judged_by_an_owner(job) => return Step::Wait(wait),
        Orphanhood::UnknownController(why) => why.clone(),
        Orphanhood::NoClass(_) if job.spec.suspend == Some(true) => suspended(),
        Orphanhood::NoClass(why) => why.clone(),
    };
    report(
        Draft::of(job, now).say(Statement::fails(ACCEPTED, why.reason, why.message)),
        wait,
    )
}

/// What a Job says while the definitions in the cluster do not know a field of its next status: on the first condition
/// that does not hold yet, since those every version can store. Nothing if it says so already or is over.
pub fn unstorable(job: &Job, message: impl Into<String>, now: Timestamp) -> Option<JobStatus> {
    let open = [ACCEPTED, SCHEDULED, STARTED, FINISHED]
        .into_iter()
        .find(|type_| !conditions::is_true(conditions_of(job), type_))?;
    Draft::of(job, now)
        .say(Statement::fails(open, DEFINITIONS_TOO_OLD, message))
        .changed()
}

/// Whether `Accepted` holds the word of a controller that calls the Job its own: anything but the default and
/// what is said of a Job without a class.
fn was_judged_by_an_owner(job: &Job) -> bool {
    conditions::find(conditions_of(job), ACCEPTED).is_some_and(|c| match c.reason.as_str() {
        conditions::PENDING => false,
        SUSPENDED => job.spec.suspend == Some(true),
        reason => !Orphanhood::NO_CLASS_REASONS.contains(&reason),
    })
}

/// What is the same whoever owns the Job: the TTL, and Jobs that another controller manages.
fn collected_or_anothers<'a>(job: &Job, now: Timestamp) -> Option<Step<'a>> {
    if ttl::is_due(job, now) {
        return Some(Step::Collect);
    }
    let managed = job.spec.managed_by.as_deref().unwrap_or(JOB_CONTROLLER) == JOB_CONTROLLER;
    (!managed).then(|| Step::Wait(Wait::Until(ttl::expiry(job))))
}

struct Life<'a, 'b> {
    job: &'a Job,
    owned: &'b Owned<'a>,
    facts: &'b Facts,
    settings: &'b Settings,
    now: Timestamp,
}

impl<'a> Life<'a, '_> {
    // ------------------------------------------------------------------------------------ nothing may exist

    fn fresh(&self) -> Step<'a> {
        let job = self.job;
        if is_deleting(job) {
            return unprotect(job);
        }
        if let Some(reason) = stop_wanted(job, None, self.now) {
            return self.finish(ending::never_started(reason));
        }
        if job.spec.suspend == Some(true) {
            return self.refuse(suspended(), self.until(None));
        }
        if let Some(why) = admission::unsupported(&self.facts.unknown_fields) {
            return self.refuse(why, self.until(None));
        }
        let admissible = match self.admissible() {
            Ok(admissible) => admissible,
            Err(why) => return self.refuse(why, self.until(None)),
        };
        let poll = self.until(Some(self.settings.reference_poll));
        match &self.facts.admission {
            None => return Step::Ask(Question::Admission(job, admissible)),
            Some(Err(why)) => return self.refuse(why.clone(), self.backoff()),
            Some(Ok(Err(why))) => return self.refuse(why.clone(), poll),
            Some(Ok(Ok(()))) => {}
        }
        if !is_protected(job) {
            return Step::Protect;
        }
        let Admissible { class, resources } = admissible;
        self.report(
            self.draft().accepted(class, resources, self.correlation()),
            no_wait(),
        )
    }

    fn admissible(&self) -> Result<Admissible, Why> {
        let class = self.owned.class().ok_or_else(|| {
            Why::new(
                "JobClassNotFound",
                "the JobClass of this Job is not to be seen; it may just have been deleted",
            )
        })?;
        admission::admit(
            self.job,
            class,
            &self.facts.namespace_labels,
            self.facts.parameters_uid.as_deref(),
        )
    }

    fn correlation(&self) -> Correlation {
        let of = |field: &Option<String>| field.clone().unwrap_or_default();
        let metadata = &self.job.metadata;
        let uid = of(&metadata.uid);
        Correlation {
            selector: Some(format!("{JOB_UID_LABEL}={uid}")),
            url: self.settings.logs_url_template.as_ref().map(|template| {
                template
                    .replace("{namespace}", &of(&metadata.namespace))
                    .replace("{name}", &of(&metadata.name))
                    .replace("{uid}", &uid)
            }),
        }
    }

    // ------------------------------------------------------------- accepted: nothing was ever allowed to start

    fn accepted(&self, accepted: Accepted<'a>) -> Step<'a> {
        if is_deleting(self.job) {
            return self.depart(accepted.departing());
        }
        if let Some(reason) = stop_wanted(self.job, Some(accepted.at()), self.now) {
            return self.finish_unstarted(reason);
        }
        if let Some(Err(why)) = self.owned.class().map(admission::readiness) {
            return self.unscheduled(why, self.until(None));
        }
        let prospect = match &self.facts.prospect {
            None => return Step::Ask(Question::Prospect(accepted)),
            Some((_, Err(why))) => return self.unscheduled(why.clone(), self.backoff()),
            Some((_, Ok(prospect))) => prospect,
        };
        match prospect {
            Prospect::Absent => self.create(accepted),
            Prospect::Preparing(why) => {
                self.quiet(why, accepted.at(), |why| self.unscheduled(why, self.until(None)))
            }
            Prospect::Found(name, backend) | Prospect::Pending(name, backend) => {
                self.report(self.draft().recorded(name.clone(), backend.clone()), no_wait())
            }
            Prospect::Spoilt(why) => self.finish(ending::refused(why.clone())),
            Prospect::Conflict(why) => self.unscheduled(why.clone(), self.backoff()),
        }
    }

    fn create(&self, accepted: Accepted<'a>) -> Step<'a> {
        match &self.facts.done {
            Some(Done::Prepared(answer)) => return self.prepared(answer),
            Some(Done::Submitted(Submission::Refused(_))) => return Step::Wait(self.backoff()),
            _ => {}
        }
        if self.facts.hold_off.is_some_and(|until| self.now < until) {
            return Step::Wait(self.until_at(self.facts.hold_off));
        }
        match &self.facts.live {
            None => Step::Ask(Question::Live(accepted)),
            Some(Err(why)) => self.unscheduled(why.clone(), self.backoff()),
            Some(Ok(Live::Busy(why))) => {
                self.quiet(why, accepted.at(), |why| self.unscheduled(why, self.until(None)))
            }
            Some(Ok(Live::NotReady(why))) => self.unscheduled(why.clone(), self.until(None)),
            Some(Ok(Live::Replaced(why))) => self.finish(ending::refused(why.clone())),
            Some(Ok(Live::Matches(Protocol::Hold, _))) => Step::Act(Effect::Prepare(accepted)),
            Some(Ok(Live::Matches(Protocol::SingleShot(windows), backend))) => {
                let attempt = self.new_attempt(*windows);
                self.report(self.draft().attempted(attempt, backend.clone()), no_wait())
            }
        }
    }

    fn prepared(&self, answer: &Answer) -> Step<'a> {
        match answer {
            Answer::Done => Step::Wait(self.until(None)),
            Answer::Later(after) => Step::Wait(self.until(Some(*after))),
            Answer::Stale => Step::Wait(self.backoff()),
            Answer::Rejected(why) | Answer::Unavailable(why) => self.unscheduled(why.clone(), self.backoff()),
        }
    }

    // -------------------------------------------------------------------- single shot: one request, maybe sent

    fn new_attempt(&self, windows: Windows) -> Attempt {
        Attempt {
            id: self.facts.fresh_id.clone(),
            send_before: whole_seconds(later(self.now, windows.send)),
            start_before: whole_seconds(later(self.now, windows.fence)),
        }
    }

    fn attempted(&self, attempted: Attempted<'a>) -> Step<'a> {
        let attempt = attempted.attempt();
        if self.facts.mine.as_deref() == Some(attempt.id.as_str()) {
            match &self.facts.done {
                Some(Done::Submitted(Submission::Created(name))) => {
                    let backend = attempted.execution().backend.clone().unwrap_or_default();
                    return self.report(self.draft().recorded(name.clone(), backend), no_wait());
                }
                Some(Done::Submitted(Submission::Refused(why))) => return self.clear_attempt(why.clone()),
                Some(Done::Submitted(Submission::Unanswered(_))) => {}
                _ if is_deleting(self.job)
                    || stop_wanted(self.job, Some(attempted.accepted().at()), self.now).is_some() =>
                {
                    return self.report(self.draft().attempt_cleared(), no_wait());
                }
                _ if self.now <= attempt.send_before.0 => return Step::Act(Effect::Submit(attempted)),
                _ => {
                    return self.clear_attempt(Why::new(
                        "BackendUnavailable",
                        "the create request was not sent within its window; trying again",
                    ));
                }
            }
        }
        if let Some(why) = self.elsewhere(Some(attempted.execution())) {
            return self.unobservable(why, self.backoff());
        }
        let settled = self.settled(attempt);
        let (asked_at, prospect) = match &self.facts.prospect {
            None => return Step::Ask(Question::Prospect(attempted.accepted())),
            Some((_, Err(why))) => return self.unobservable(why.clone(), self.backoff()),
            Some((asked_at, Ok(prospect))) => (*asked_at, prospect),
        };
        match prospect {
            Prospect::Found(name, backend) | Prospect::Pending(name, backend) => {
                self.report(self.draft().recorded(name.clone(), backend.clone()), no_wait())
            }
            Prospect::Absent | Prospect::Spoilt(_) if asked_at > settled => {
                let lost = "the create request was never answered, and nothing of it showed up before its fence passed";
                self.finish(ending::lost(Some(with(lost, self.why_unanswered(attempt)))))
            }
            Prospect::Conflict(why) => self.unobservable(why.clone(), self.backoff()),
            Prospect::Absent | Prospect::Spoilt(_) | Prospect::Preparing(_) => self.unanswered(attempt),
        }
    }

    /// When it is certain that an attempt starts nothing any more: what was asked later may be relied on.
    fn settled(&self, attempt: &Attempt) -> Timestamp {
        later(attempt.start_before.0, self.settings.margin)
    }

    /// Waits for what an unanswered request may have created.
    fn unanswered(&self, attempt: &Attempt) -> Step<'a> {
        let message = with(&waits_for_an_answer(attempt), self.why_unanswered(attempt));
        let statement = Statement::fails(SCHEDULED, "BackendUnavailable", message);
        let look_again =
            later(self.settled(attempt), SECOND).max(later(self.now, self.settings.reference_poll));
        self.report_or(
            self.draft().observable().say(statement),
            self.or_blocked(
                Step::Wait(self.until_at(Some(look_again))),
                "its create request was not answered, and the command may still start until its fence",
            ),
        )
    }

    /// Why there was no answer that could be used. Only who sent the request knows; from then on it is stored.
    fn why_unanswered(&self, attempt: &Attempt) -> Option<&str> {
        if let Some(Done::Submitted(Submission::Unanswered(why))) = &self.facts.done {
            return Some(&why.message);
        }
        let stored = conditions::find(conditions_of(self.job), SCHEDULED)?;
        stored
            .message
            .strip_prefix(&waits_for_an_answer(attempt))?
            .strip_prefix(BECAUSE)
    }

    fn clear_attempt(&self, why: Why) -> Step<'a> {
        let statement = Statement::fails(SCHEDULED, why.reason, why.message);
        self.report(self.draft().attempt_cleared().say(statement), self.backoff())
    }

    // ------------------------------------------------------------------------ recorded: the one execution

    fn recorded(&self, recorded: Recorded<'a>) -> Step<'a> {
        if let Some(why) = self.elsewhere(Some(recorded.execution())) {
            return self.out_of_reach(recorded, why);
        }
        let state = match &self.facts.state {
            None => return Step::Ask(Question::State(recorded)),
            Some(state) => state,
        };
        match state {
            State::Ended(end) => {
                let result = ending::attribute(
                    end,
                    recorded.stop(),
                    self.active_deadline(recorded.accepted().at()),
                );
                let mut draft = self.draft().node(end.node.clone());
                if let Some(at) = end
                    .stopped_at
                    .filter(|_| ending::is_attributed_to(&result, recorded.stop()))
                {
                    draft = draft.stop_delivered(at);
                }
                if end.started() {
                    draft = draft.started(end.started_at);
                }
                self.report(draft.finished(result), no_wait())
            }
            State::Gone(gone) if gone.proven => self.finish(ending::vanished(&gone.why, recorded.stop())),
            // Proof takes several looks: it is not to be had later for each that was in vain.
            State::Gone(Gone { why, .. }) => {
                let again = self.backoff().no_later_than(later(self.now, LOOK_AGAIN));
                self.unknown(recorded, why, again)
            }
            State::Unobservable(why) => self.unknown(recorded, why, self.backoff()),
            State::Held | State::Waiting(_) if self.is_unknown() => {
                self.report(self.draft().observable(), no_wait())
            }
            State::Held => self.held(recorded),
            State::Waiting(waiting) => self.waiting(recorded, waiting),
            State::Running(running) => {
                let mut seen = self
                    .draft()
                    .observable()
                    .node(running.node.clone())
                    .started(running.started_at);
                if recorded.stop().is_none() && running.renew_at.is_none_or(|at| at > self.now) {
                    seen = seen.goes_on();
                }
                let wait = self.renewed(recorded, running.renew_at, Step::Wait(self.until(None)));
                self.report_or(seen, self.stop_or(recorded, running.stopping_since, wait))
            }
        }
    }

    /// Why no answer that can be had now says anything of the execution: the parameters name another server than
    /// the one it lives on, or are gone. Where the backend is this cluster there is no other.
    fn elsewhere(&self, execution: Option<&Execution>) -> Option<Why> {
        let recorded = execution?.backend.as_ref()?;
        let same = recorded.endpoint_hash.is_empty() || self.facts.backend.as_ref() == Some(recorded);
        (!same).then(|| {
            let parameters = &recorded.parameters_uid;
            Why::new(
                "ParametersReplaced",
                format!(
                    "the execution lives on the server that the parameters object with UID {parameters} named when \
                     it was started; that object now names another server, or is gone. What another server says \
                     proves nothing: bring the endpoint back to learn the result"
                ),
            )
        })
    }

    /// The execution lives on a server that nothing names any more. A wanted stop is stored, for when it is back.
    fn out_of_reach(&self, recorded: Recorded<'a>, why: Why) -> Step<'a> {
        let blocked = self.or_blocked(Step::Wait(self.backoff()), &why.message);
        let draft = self.draft().unobservable(why);
        let wanted = match recorded.stop() {
            None => self.wanted_stop(recorded),
            Some(_) => None,
        };
        let draft = match wanted {
            Some(reason) => draft.stop_requested(reason),
            None => draft,
        };
        self.report_or(draft, blocked)
    }

    fn wanted_stop(&self, recorded: Recorded<'a>) -> Option<StopReason> {
        stop_wanted(self.job, Some(recorded.accepted().at()), self.now)
            .or_else(|| is_deleting(self.job).then_some(StopReason::JobDeleted))
    }

    /// Puts off the expiry of an execution when it is time to, and otherwise no later than then looks again.
    fn renewed(&self, recorded: Recorded<'a>, renew_at: Option<Timestamp>, otherwise: Step<'a>) -> Step<'a> {
        match (renew_at, &self.facts.done, otherwise) {
            (Some(at), Some(Done::Renewed(answer)), Step::Wait(_)) if at <= self.now => match answer {
                Answer::Later(after) => Step::Wait(self.until(Some(*after))),
                Answer::Done | Answer::Stale => Step::Wait(self.backoff()),
                Answer::Rejected(why) | Answer::Unavailable(why) => self.not_renewed(at, why),
            },
            (Some(at), _, Step::Wait(_)) if at <= self.now => Step::Act(Effect::Renew(recorded)),
            (Some(at), _, Step::Wait(wait)) => Step::Wait(wait.no_later_than(at)),
            (_, _, otherwise) => otherwise,
        }
    }

    /// Says that the execution is going to expire, once that could not be put off for a while.
    fn not_renewed(&self, due: Timestamp, why: &Why) -> Step<'a> {
        if self.now < later(due, self.settings.quiet_start) {
            return Step::Wait(self.backoff());
        }
        let message = format!(
            "the execution expires unless that is put off, which failed: {}",
            why.message
        );
        let statement = Statement::fails(FINISHED, why.reason.clone(), message);
        self.report(self.draft().say(statement), self.backoff())
    }

    /// Says that nothing is known, and stops what is to be stopped all the same: a request may get through
    /// where an observation does not.
    fn unknown(&self, recorded: Recorded<'a>, why: &Why, wait: Wait) -> Step<'a> {
        self.report_or(
            self.draft().unobservable(why.clone()),
            self.stop_or(recorded, None, Step::Wait(wait)),
        )
    }

    fn held(&self, recorded: Recorded<'a>) -> Step<'a> {
        let start = match &self.facts.done {
            // What we read may be older than what we did: wait for the backend to show it.
            Some(Done::Started(Answer::Done)) => Step::Wait(self.until(None)),
            Some(Done::Started(Answer::Later(after))) => Step::Wait(self.until(Some(*after))),
            Some(Done::Started(Answer::Stale)) => Step::Wait(self.backoff()),
            Some(Done::Started(Answer::Rejected(why) | Answer::Unavailable(why))) => {
                self.unstarted(why.clone(), None, self.backoff())
            }
            _ => Step::Act(Effect::Start(recorded)),
        };
        // A stop that is stored or wanted comes before the start.
        self.stop_or(recorded, None, start)
    }

    fn waiting(&self, recorded: Recorded<'a>, waiting: &Waiting) -> Step<'a> {
        let since = recorded
            .execution()
            .start_requested_time
            .as_ref()
            .map_or(self.now, |t| t.0);
        let wait = self.quiet(&waiting.why, since, |why| {
            self.unstarted(why, waiting.node.clone(), self.until(None))
        });
        let Some(attempted) = recorded.attempted() else {
            return self.stop_or(recorded, waiting.stopping_since, wait);
        };
        let settled = self.settled(attempted.attempt());
        match wait {
            Step::Wait(_) if self.now > settled => self.past_the_fence(recorded, attempted, waiting),
            Step::Wait(wait) => {
                let wait = Step::Wait(wait.no_later_than(later(settled, SECOND)));
                self.stop_or(recorded, waiting.stopping_since, wait)
            }
            report if self.now > settled => report,
            report => self.stop_or(recorded, waiting.stopping_since, report),
        }
    }

    /// A single-shot execution that has not come up by its fence never starts its command: it is deleted, and
    /// lost once it is gone. Only a look that began after the fence shows that. A stop has nothing to wait for
    /// here: what never comes up may be deaf to it for ever.
    fn past_the_fence(
        &self,
        recorded: Recorded<'a>,
        attempted: Attempted<'a>,
        waiting: &Waiting,
    ) -> Step<'a> {
        let settled = self.settled(attempted.attempt());
        let again = self.until(Some(self.settings.reference_poll));
        let step = match (&self.facts.prospect, &self.facts.done) {
            (None, _) => Step::Ask(Question::Prospect(recorded.accepted())),
            (_, Some(Done::Discarded(Answer::Done))) => Step::Wait(again),
            (_, Some(Done::Discarded(Answer::Later(after)))) => Step::Wait(self.until(Some(*after))),
            (_, Some(Done::Discarded(_))) => Step::Wait(self.backoff()),
            (Some((asked_at, Ok(Prospect::Pending(name, _)))), _)
                if *asked_at > settled && name.id == recorded.id() =>
            {
                Step::Act(Effect::Discard(attempted, name.clone()))
            }
            // It came up, whatever it is shown as: it may run.
            (Some((asked_at, Ok(Prospect::Found(name, _)))), _)
                if *asked_at > settled && name.id == recorded.id() =>
            {
                return self.stop_or(recorded, waiting.stopping_since, Step::Wait(again));
            }
            (Some(_), _) => Step::Wait(again),
        };
        self.or_blocked(step, "its execution never came up, and is still being deleted")
    }

    /// Ordinary progress is not worth a write: it is reported only when it has lasted.
    fn quiet(&self, why: &Why, since: Timestamp, report: impl FnOnce(Why) -> Step<'a>) -> Step<'a> {
        let loud_from = later(since, self.settings.quiet_start);
        if why.reason == conditions::PENDING && self.now < loud_from {
            return Step::Wait(self.until_at(Some(loud_from)));
        }
        report(why.clone())
    }

    /// Drives a wanted stop, or does what there is to do otherwise. A stop that somebody else has set in
    /// motion is not made ours.
    fn stop_or(
        &self,
        recorded: Recorded<'a>,
        stopping_since: Option<Timestamp>,
        otherwise: Step<'a>,
    ) -> Step<'a> {
        let Some(stop) = recorded.stop() else {
            return match (self.wanted_stop(recorded), stopping_since) {
                (Some(reason), None) => self.report(self.draft().stop_requested(reason), no_wait()),
                (Some(_), Some(_)) | (None, _) => {
                    self.or_blocked(otherwise, "its process is being ended by somebody else")
                }
            };
        };
        // Where creating is starting, what is stopping has not ended before we end it, whoever began and by
        // whichever clock. Elsewhere somebody's earlier request ends it without us.
        let ours = |at: &Timestamp| recorded.attempted().is_some() || ending::may_be(stop, *at);
        match stopping_since.filter(ours) {
            Some(at) => self.report_or(self.draft().stop_delivered(at), self.pressed(recorded)),
            None => self.pressed(recorded),
        }
    }

    /// Sends the stop, again whenever it showed no effect for a while.
    fn pressed(&self, recorded: Recorded<'a>) -> Step<'a> {
        let wait = |after| self.or_blocked(Step::Wait(self.until(Some(after))), self.why_not_ended());
        match &self.facts.done {
            Some(Done::Stopped(Answer::Done)) => wait(self.settings.stop_patience),
            Some(Done::Stopped(Answer::Later(after))) => wait(*after),
            Some(Done::Stopped(Answer::Stale)) => Step::Wait(self.backoff()),
            // That the backend cannot be reached is said already.
            Some(Done::Stopped(Answer::Unavailable(why))) if self.is_unknown() => {
                self.or_blocked(Step::Wait(self.backoff()), &why.message)
            }
            Some(Done::Stopped(Answer::Rejected(why) | Answer::Unavailable(why))) => {
                let message = format!("the stop could not be delivered: {}", why.message);
                let statement = Statement::fails(FINISHED, why.reason.clone(), message);
                let wait = self.or_blocked(Step::Wait(self.backoff()), &why.message);
                self.report_or(self.draft().say(statement), wait)
            }
            _ => Step::Act(Effect::Stop(recorded)),
        }
    }

    fn why_not_ended(&self) -> &'a str {
        let unknown = conditions_of(self.job)
            .iter()
            .find(|c| c.type_ == RESULT_UNKNOWN && c.status == "True");
        unknown.map_or("its process has not ended yet", |c| c.message.as_str())
    }

    // ----------------------------------------------------------------------------------------- afterwards

    fn finished(&self, closed: Option<Closed<'a>>) -> Step<'a> {
        let Some(closed) = closed else {
            return if is_deleting(self.job) {
                unprotect(self.job)
            } else {
                self.until_expiry()
            };
        };
        if is_deleting(self.job) {
            return self.depart(closed.departing());
        }
        if closed.released() {
            return self.until_expiry();
        }
        if let Some(why) = self.elsewhere(closed.execution()) {
            return self.not_given_back(closed, &why);
        }
        match &self.facts.done {
            Some(Done::Released(Answer::Done)) => self.report(self.draft().released(), no_wait()),
            Some(Done::Released(Answer::Later(after))) => Step::Wait(self.expiry_or(later(self.now, *after))),
            Some(Done::Released(Answer::Stale)) => Step::Wait(Wait::Backoff(ttl::expiry(self.job))),
            Some(Done::Released(Answer::Rejected(why) | Answer::Unavailable(why))) => {
                self.not_given_back(closed, why)
            }
            _ => Step::Act(Effect::Release(closed)),
        }
    }

    /// A server that is away for a moment is not worth a word.
    fn not_given_back(&self, closed: Closed<'a>, why: &Why) -> Step<'a> {
        let loud_from = later(closed.finished_at(), self.settings.quiet_start);
        if self.now < loud_from {
            return Step::Wait(Wait::Backoff(earliest(Some(loud_from), ttl::expiry(self.job))));
        }
        let message = format!("what ended could not be given back: {}", why.message);
        let blocked = Why::new(why.reason.clone(), message);
        self.report(
            self.draft().deletion_blocked(blocked),
            Wait::Backoff(ttl::expiry(self.job)),
        )
    }

    /// Also without our finalizer: whoever took it off did not take what the Job has in the backend.
    fn depart(&self, departing: Departing<'a>) -> Step<'a> {
        let held = departing.execution().filter(|e| e.release_time.is_none());
        if let Some(why) = self.elsewhere(held) {
            return self.or_blocked(Step::Wait(Wait::Backoff(None)), &why.message);
        }
        match &self.facts.remains {
            None => Step::Ask(Question::Remains(departing)),
            Some(Err(why)) => self.or_blocked(Step::Wait(Wait::Backoff(None)), &why.message),
            Some(Ok(Remains::Nothing)) => unprotect(self.job),
            Some(Ok(Remains::Something(what))) => match &self.facts.done {
                Some(Done::Removed(Answer::Done)) => self.or_blocked(self.quiet_deletion(), what),
                Some(Done::Removed(Answer::Later(after))) => {
                    self.or_blocked(Step::Wait(Wait::Until(Some(later(self.now, *after)))), what)
                }
                Some(Done::Removed(Answer::Stale)) => Step::Wait(Wait::Backoff(None)),
                Some(Done::Removed(Answer::Rejected(why) | Answer::Unavailable(why))) => {
                    self.or_blocked(Step::Wait(Wait::Backoff(None)), &why.message)
                }
                _ => Step::Act(Effect::Remove(departing)),
            },
        }
    }

    fn quiet_deletion(&self) -> Step<'a> {
        Step::Wait(Wait::Until(Some(later(self.now, self.settings.quiet_deletion))))
    }

    /// Says what a deletion waits for once it has taken long.
    fn or_blocked(&self, otherwise: Step<'a>, what: &str) -> Step<'a> {
        let Step::Wait(wait) = otherwise else {
            return otherwise;
        };
        let Some(since) = self.job.metadata.deletion_timestamp.as_ref() else {
            return otherwise;
        };
        let loud_from = later(since.0, self.settings.quiet_deletion);
        if self.now < loud_from {
            return Step::Wait(wait.no_later_than(loud_from));
        }
        let why = Why::new("ExecutionRemains", format!("the Job cannot go yet: {what}"));
        self.report(self.draft().deletion_blocked(why), wait)
    }

    // -------------------------------------------------------------------------------------------- phrases

    fn draft(&self) -> Draft<'a> {
        Draft::of(self.job, self.now)
    }

    fn report(&self, draft: Draft<'a>, wait: Wait) -> Step<'a> {
        report(draft, wait)
    }

    /// Stores what is new; if nothing is, goes on.
    fn report_or(&self, draft: Draft<'a>, otherwise: Step<'a>) -> Step<'a> {
        match draft.changed() {
            Some(status) => Step::Report(Box::new(status)),
            None => otherwise,
        }
    }

    fn finish(&self, result: JobResult) -> Step<'a> {
        self.report(self.draft().finished(result), no_wait())
    }

    /// Ends a Job that was accepted and of which nothing was recorded. The stop is stored with it: a copy of
    /// the Job that shows it never records a start, and may clear away what is held.
    fn finish_unstarted(&self, reason: StopReason) -> Step<'a> {
        self.report(
            self.draft()
                .stop_requested(reason)
                .finished(ending::never_started(reason)),
            no_wait(),
        )
    }

    fn refuse(&self, why: Why, wait: Wait) -> Step<'a> {
        self.report(
            self.draft()
                .say(Statement::fails(ACCEPTED, why.reason, why.message)),
            wait,
        )
    }

    fn unscheduled(&self, why: Why, wait: Wait) -> Step<'a> {
        self.report(
            self.draft()
                .say(Statement::fails(SCHEDULED, why.reason, why.message)),
            wait,
        )
    }

    fn unstarted(&self, why: Why, node: Option<String>, wait: Wait) -> Step<'a> {
        let statement = Statement::fails(STARTED, why.reason, why.message);
        self.report(self.draft().observable().node(node).say(statement), wait)
    }

    fn unobservable(&self, why: Why, wait: Wait) -> Step<'a> {
        let blocked = self.or_blocked(Step::Wait(wait), &why.message);
        self.report_or(self.draft().unobservable(why), blocked)
    }

    fn is_unknown(&self) -> bool {
        conditions::is_true(conditions_of(self.job), RESULT_UNKNOWN)
    }

    fn until(&self, after: Option<SignedDuration>) -> Wait {
        self.until_at(after.map(|d| later(self.now, d)))
    }

    fn until_at(&self, at: Option<Timestamp>) -> Wait {
        Wait::Until(earliest(at, self.alarm()))
    }

    fn backoff(&self) -> Wait {
        Wait::Backoff(self.alarm())
    }

    fn until_expiry(&self) -> Step<'a> {
        Step::Wait(Wait::Until(ttl::expiry(self.job)))
    }

    fn expiry_or(&self, at: Timestamp) -> Wait {
        Wait::Until(earliest(Some(at), ttl::expiry(self.job)))
    }

    fn alarm(&self) -> Option<Timestamp> {
        next_deadline(self.job, accepted_at(self.job), self.now)
    }

    fn active_deadline(&self, accepted: Timestamp) -> Option<Timestamp> {
        active_deadline(self.job, accepted)
    }
}

fn report<'a>(draft: Draft<'_>, wait: Wait) -> Step<'a> {
    match draft.changed() {
        Some(status) => Step::Report(Box::new(status)),
        None => Step::Wait(wait),
    }
}

fn no_wait() -> Wait {
    Wait::Until(None)
}

fn unprotect<'a>(job: &Job) -> Step<'a> {
    if is_protected(job) {
        Step::Unprotect
    } else {
        Step::Wait(no_wait())
    }
}

/// What a Job says whose create request was not answered.
fn waits_for_an_answer(attempt: &Attempt) -> String {
    let fence = attempt.start_before.0;
    format!(
        "the create request was not answered; what it created is adopted as soon as it shows, else the Job ends as \
         ExecutionLost after {fence}"
    )
}

fn with(message: &str, reason: Option<&str>) -> String {
    reason.map_or_else(
        || message.to_owned(),
        |reason| format!("{message}{BECAUSE}{reason}"),
    )
}

fn suspended() -> Why {
    Why::new(
        SUSPENDED,
        "spec.suspend is true; set it to false to let the Job run",
    )
}

fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}

/// `by` after `from`; a time beyond what can be represented is the last one that can.
fn later(from: Timestamp, by: SignedDuration) -> Timestamp {
    from.saturating_add(by).unwrap_or(Timestamp::MAX)
}

fn conditions_of(job: &Job) -> &[Condition] {
    job.status.as_ref().map_or(&[], |s| &s.conditions)
}

fn accepted_at(job: &Job) -> Option<Timestamp> {
    conditions::true_since(conditions_of(job), ACCEPTED)
}

fn has_started(job: &Job) -> bool {
    conditions::is_true(conditions_of(job), STARTED)
}

/// When `spec.activeDeadlineSeconds` ends: from acceptance.
pub fn active_deadline(job: &Job, accepted: Timestamp) -> Option<Timestamp> {
    after(accepted, job.spec.active_deadline_seconds)
}

/// When `spec.startingDeadlineSeconds` ends, for a Job whose command has not started: from creation.
pub fn starting_deadline(job: &Job) -> Option<Timestamp> {
    let created = job.metadata.creation_timestamp.as_ref()?.0;
    after(created, job.spec.starting_deadline_seconds).filter(|_| !has_started(job))
}

fn after(from: Timestamp, seconds: Option<i32>) -> Option<Timestamp> {
    Some(later(from, SignedDuration::from_secs(i64::from(seconds?))))
}

/// Why the Job should be stopped now, if it should. A deadline that passed first is named first.
fn stop_wanted(job: &Job, accepted: Option<Timestamp>, now: Timestamp) -> Option<StopReason> {
    if job.spec.cancel_requested == Some(true) {
        return Some(StopReason::CancelRequested);
    }
    let active = accepted
        .and_then(|at| active_deadline(job, at))
        .map(|at| (at, StopReason::DeadlineExceeded));
    let starting = starting_deadline(job).map(|at| (at, StopReason::StartingDeadlineExceeded));
    active
        .into_iter()
        .chain(starting)
        .filter(|(at, _)| *at <= now)
        .min_by_key(|(at, _)| *at)
        .map(|(_, reason)| reason)
}

/// When the next deadline of an unfinished Job ends.
fn next_deadline(job: &Job, accepted: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    let active = accepted.and_then(|at| active_deadline(job, at));
    [active, starting_deadline(job)]
        .into_iter()
        .flatten()
        .filter(|at| *at > now)
        .min()
}

//! Building the next status: one place that knows which fields and conditions change together.

use jiff::Timestamp;

use crate::conditions::{
    self, ACCEPTED, DELETION_BLOCKED, FINISHED, RESULT_UNKNOWN, SCHEDULED, STARTED, Statement, whole_seconds,
};
use crate::ending;
use crate::execution::{ExecutionName, Why};
use crate::job::{
    Attempt, BackendIdentity, Correlation, Execution, Job, JobResult, JobState, JobStatus, Outcome,
    ResolvedJobClass, Stop, StopReason,
};
use crate::resources::ResourceRequirements;

/// A status being written: starts as the stored one, and is complete when [`Draft::finish`] is called.
pub(crate) struct Draft<'a> {
    job: &'a Job,
    now: Timestamp,
    status: JobStatus,
}

impl<'a> Draft<'a> {
    pub(crate) fn of(job: &'a Job, now: Timestamp) -> Self {
        Self {
            job,
            now,
            status: job.status.clone().unwrap_or_default(),
        }
    }

    /// The new status if it says anything new, with the word for people in step. A new generation alone is no
    /// news, and what is final stays as it is.
    pub(crate) fn changed(mut self) -> Option<JobStatus> {
        let stored = self.job.status.as_ref();
        self.status.state = Some(state_of(self.job, &self.status));
        if stored == Some(&self.status) {
            return None;
        }
        if !stored.is_some_and(|s| conditions::is_true(&s.conditions, FINISHED)) {
            self.status.observed_generation = self.job.metadata.generation;
        }
        Some(self.status)
    }

    /// What became True once stays so: an old look at the backend takes nothing back.
    pub(crate) fn say(mut self, statement: Statement) -> Self {
        let once = [ACCEPTED, SCHEDULED, STARTED, FINISHED].contains(&statement.type_);
        if once && conditions::is_true(&self.status.conditions, statement.type_) {
            return self;
        }
        conditions::state(
            &mut self.status.conditions,
            statement,
            self.job.metadata.generation,
            self.now,
        );
        self
    }

    pub(crate) fn accepted(
        mut self,
        class: ResolvedJobClass,
        resources: ResourceRequirements,
        correlation: Correlation,
    ) -> Self {
        let message = format!("accepted by JobClass {}", class.name);
        self.status.resolved_job_class = Some(class);
        self.status.resources = Some(resources);
        self.status.correlation = Some(correlation);
        self.say(Statement::holds(ACCEPTED, "Accepted", message))
    }

    pub(crate) fn attempted(mut self, attempt: Attempt, backend: BackendIdentity) -> Self {
        let execution = self.execution();
        execution.attempt = Some(attempt);
        execution.backend = Some(backend);
        self
    }

    /// After a proven refusal only.
    pub(crate) fn attempt_cleared(mut self) -> Self {
        let execution = self.execution();
        execution.attempt = None;
        execution.backend = None;
        if *execution == Execution::default() {
            self.status.execution = None;
        }
        self
    }

    pub(crate) fn recorded(mut self, name: ExecutionName, backend: BackendIdentity) -> Self {
        let now = whole_seconds(self.now);
        let message = format!("recorded as execution {}", name.id);
        let execution = self.execution();
        execution.id = Some(name.id);
        execution.uid = name.uid;
        execution.backend = Some(backend);
        execution.start_requested_time = Some(now);
        self.say(Statement::holds(SCHEDULED, "Scheduled", message))
    }

    pub(crate) fn node(mut self, node: Option<String>) -> Self {
        if let Some(node) = node {
            self.execution().node_name.get_or_insert(node);
        }
        self
    }

    pub(crate) fn started(mut self, at: Option<Timestamp>) -> Self {
        self.status
            .start_time
            .get_or_insert(whole_seconds(at.unwrap_or(self.now)));
        self.say(Statement::holds(STARTED, "Started", "the command was started"))
    }

    pub(crate) fn stop_requested(mut self, reason: StopReason) -> Self {
        let requested_time = whole_seconds(self.now);
        self.execution().stop.get_or_insert(Stop {
            reason,
            requested_time,
            delivered_time: None,
        });
        self
    }

    pub(crate) fn stop_delivered(mut self, at: Timestamp) -> Self {
        if let Some(stop) = self.status.execution.as_mut().and_then(|e| e.stop.as_mut()) {
            stop.delivered_time.get_or_insert(whole_seconds(at));
        }
        self
    }

    pub(crate) fn observable(self) -> Self {
        if conditions::is_true(&self.status.conditions, RESULT_UNKNOWN) {
            return self.say(Statement::fails(
                RESULT_UNKNOWN,
                "Observed",
                "the backend shows the execution again",
            ));
        }
        self
    }

    /// What threatened to end the execution is past.
    pub(crate) fn goes_on(self) -> Self {
        let threatened = conditions::find(&self.status.conditions, FINISHED)
            .is_some_and(|c| c.status == "False" && c.reason != conditions::PENDING);
        if threatened {
            return self.say(Statement::fails(
                FINISHED,
                conditions::PENDING,
                "the command runs",
            ));
        }
        self
    }

    /// Nothing more can be learned, whether or not anything was.
    fn settled(self) -> Self {
        if conditions::is_true(&self.status.conditions, RESULT_UNKNOWN) {
            return self.say(Statement::fails(RESULT_UNKNOWN, "Final", "the result is final"));
        }
        self
    }

    pub(crate) fn unobservable(self, why: Why) -> Self {
        self.say(Statement::holds(RESULT_UNKNOWN, why.reason, why.message))
    }

    pub(crate) fn deletion_blocked(self, why: Why) -> Self {
        self.say(Statement::holds(DELETION_BLOCKED, why.reason, why.message))
    }

    pub(crate) fn finished(mut self, result: JobResult) -> Self {
        self.status.finish_time.get_or_insert(whole_seconds(self.now));
        let word = match result.outcome {
            Outcome::Succeeded => "Succeeded",
            Outcome::Failed => "Failed",
            Outcome::Cancelled => "Cancelled",
        };
        let mut message = result.reason.clone();
        if let Some(code) = result.exit_code {
            message.push_str(&format!(", exit code {code}"));
        }
        if let Some(text) = &result.message {
            message.push_str(": ");
            message.push_str(text);
        }
        let reason = result.reason.clone();
        self.status.result.get_or_insert(result);
        self.settled()
            .nothing_pending(&reason)
            .say(Statement::holds(FINISHED, word, message))
    }

    /// What was still to come at the end does not come any more, and is not waited for.
    fn nothing_pending(self, reason: &str) -> Self {
        let never = [
            (ACCEPTED, "the Job ended before a class accepted it"),
            (SCHEDULED, "the Job ended before an execution of it was recorded"),
            (STARTED, "the Job ended before its command was seen to start"),
        ];
        never.into_iter().fold(self, |draft, (type_, message)| {
            let pending = conditions::find(&draft.status.conditions, type_)
                .is_some_and(|c| c.status != "True" && c.reason == conditions::PENDING);
            if pending {
                draft.say(Statement::fails(type_, reason, message))
            } else {
                draft
            }
        })
    }

    pub(crate) fn released(mut self) -> Self {
        let now = whole_seconds(self.now);
        self.execution().release_time.get_or_insert(now);
        if conditions::is_true(&self.status.conditions, DELETION_BLOCKED) {
            return self.say(Statement::fails(
                DELETION_BLOCKED,
                "Released",
                "what ended was given back",
            ));
        }
        self
    }

    fn execution(&mut self) -> &mut Execution {
        self.status.execution.get_or_insert_default()
    }
}

/// The one word for people.
fn state_of(job: &Job, status: &JobStatus) -> JobState {
    let holds = |type_| conditions::is_true(&status.conditions, type_);
    let execution = status.execution.as_ref();
    if holds(FINISHED) {
        return match status.result.as_ref().map(|r| r.outcome) {
            Some(Outcome::Succeeded) => JobState::Succeeded,
            Some(Outcome::Cancelled) => JobState::Cancelled,
            Some(Outcome::Failed) | None => JobState::Failed,
        };
    }
    if holds(RESULT_UNKNOWN) {
        return JobState::Unknown;
    }
    if execution.is_some_and(|e| e.stop.is_some()) {
        return JobState::Stopping;
    }
    if holds(STARTED) {
        return JobState::Running;
    }
    if holds(SCHEDULED) {
        return JobState::Starting;
    }
    if holds(ACCEPTED) {
        return JobState::Waiting;
    }
    if job.spec.suspend == Some(true) {
        return JobState::Suspended;
    }
    match conditions::find(&status.conditions, ACCEPTED) {
        Some(c) if c.status == "False" => JobState::Rejected,
        _ => JobState::Waiting,
    }
}

/// Something worth telling, as a Kubernetes Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tale {
    /// Whether it is a Warning rather than Normal.
    pub warning: bool,
    /// The condition's reason.
    pub reason: String,
    /// The condition's message.
    pub message: String,
    /// What the controller was doing: the condition's type, or Stopping.
    pub action: &'static str,
}

/// The Events of a status change: one for each condition that changed its status or reason, and one for a stop
/// that was requested. The same story is told whoever wrote it and however often it was decided.
pub fn tales(old: Option<&JobStatus>, new: &JobStatus) -> Vec<Tale> {
    [
        ACCEPTED,
        SCHEDULED,
        STARTED,
        RESULT_UNKNOWN,
        FINISHED,
        DELETION_BLOCKED,
    ]
    .into_iter()
    .filter_map(|type_| tale_of_condition(type_, old, new))
    .chain(tale_of_stop(old, new))
    .collect()
}

fn tale_of_condition(type_: &'static str, old: Option<&JobStatus>, new: &JobStatus) -> Option<Tale> {
    let now = conditions::find(&new.conditions, type_)?;
    let before = old.and_then(|s| conditions::find(&s.conditions, type_));
    let same = before.is_some_and(|b| b.status == now.status && b.reason == now.reason);
    let holds = now.status == "True";
    // What the end settles is told with the end.
    let settled = !holds && new.result.as_ref().is_some_and(|r| r.reason == now.reason);
    if same || settled || now.status == "Unknown" {
        return None;
    }
    let good = match type_ {
        RESULT_UNKNOWN | DELETION_BLOCKED => !holds,
        FINISHED if !holds => now.reason == conditions::PENDING,
        FINISHED => new.result.as_ref().is_some_and(|r| r.outcome != Outcome::Failed),
        STARTED => holds || now.reason == conditions::PENDING,
        // Held back because the Job itself says so.
        ACCEPTED => holds || now.reason == "Suspended",
        _ => holds,
    };
    Some(Tale {
        warning: !good,
        reason: now.reason.clone(),
        message: now.message.clone(),
        action: type_,
    })
}

/// A stop that is stored together with the end needs no word of its own.
fn tale_of_stop(old: Option<&JobStatus>, new: &JobStatus) -> Option<Tale> {
    let stop_in = |status: &JobStatus| Some(status.execution.as_ref()?.stop.as_ref()?.reason);
    let reason = stop_in(new).filter(|_| old.and_then(stop_in).is_none() && new.result.is_none())?;
    Some(Tale {
        warning: false,
        reason: ending::word(reason).to_owned(),
        message: format!("stopping: {}", ending::cause(reason)),
        action: "Stopping",
    })
}

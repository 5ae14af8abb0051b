//! What a backend shows of a Job, in words that every backend shares.
//!
//! An adapter translates what it reads into these types and draws no conclusion; [`crate::lifecycle`] draws
//! them. Two kinds of observation exist, because two questions do: *is there something that could be
//! recorded?* ([`Prospect`]) and *what became of the recorded one?* ([`State`]).

use jiff::{SignedDuration, Timestamp};

use crate::job::BackendIdentity;

/// How a backend starts a command exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// It can hold an execution before its command: prepare, record, start.
    Hold,
    /// Creating is starting: one create request per Job, fenced by time.
    SingleShot(Windows),
}

/// The times of the single-shot protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// How long after its attempt was stored the create request may be sent.
    pub send: SignedDuration,
    /// How long after its attempt was stored the command may start.
    pub fence: SignedDuration,
}

/// An execution in the backend, by the names the backend gave it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExecutionName {
    /// UID of the batch/v1 Job, or id of the sandbox.
    pub id: String,
    /// UID of the pod, where the backend has instances.
    pub uid: Option<String>,
}

/// A reason with its explanation, as it goes into a condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Why {
    /// Stable word.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Why {
    /// A reason and its explanation.
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// What exists in a backend for a Job of which nothing is recorded yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Nothing of this Job is known to exist.
    Absent,
    /// Something exists, but nothing that could be recorded; ordinary progress has the reason
    /// [`PENDING`](crate::conditions::PENDING).
    Preparing(Why),
    /// An execution that is held before its command, or (single shot) one that was created. It can be recorded.
    Found(ExecutionName, BackendIdentity),
    /// The single-shot execution was created but has not come up; its command may still start before the fence.
    Pending(ExecutionName, BackendIdentity),
    /// What was prepared was ended by somebody, and nothing of it ran or can run any more.
    Spoilt(Why),
    /// The name we need belongs to somebody else, or something claims our Job that we did not make.
    Conflict(Why),
}

/// What became of the recorded execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Held before its command: it has not started and will not by itself.
    Held,
    /// Released to start, or created, but the command does not run yet.
    Waiting(Waiting),
    /// The command runs.
    Running(Running),
    /// The command ended, or it is certain that it never starts.
    Ended(End),
    /// The execution is gone.
    Gone(Gone),
    /// It cannot be observed.
    Unobservable(Why),
}

/// A recorded execution whose command does not run yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// What it waits for; ordinary progress has the reason [`PENDING`](crate::conditions::PENDING).
    pub why: Why,
    /// Where it was placed.
    pub node: Option<String>,
    /// Since when the backend has recorded a request to end it.
    pub stopping_since: Option<Timestamp>,
}

/// A running command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// When it started, by the backend's clock.
    pub started_at: Option<Timestamp>,
    /// Where it runs.
    pub node: Option<String>,
    /// Since when the backend has recorded a request to end it.
    pub stopping_since: Option<Timestamp>,
    /// When its expiry should be put off, where the backend ends by itself what nobody looks after.
    pub renew_at: Option<Timestamp>,
}

/// An end, as the backend measured it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// What is known of the process.
    pub exit: Exit,
    /// When the command started, by the backend's clock.
    pub started_at: Option<Timestamp>,
    /// When the process ended, by the backend's clock, in whole seconds.
    pub finished_at: Option<Timestamp>,
    /// When the backend recorded a request to end it, by the same clock.
    pub stopped_at: Option<Timestamp>,
    /// Whose request that was, as far as the backend shows it.
    pub stopped_by: Stopper,
    /// Where it ran.
    pub node: Option<String>,
    /// A remark for people: a child killed for memory, a termination reason.
    pub note: Option<String>,
}

impl End {
    /// Whether the command was started at all.
    pub fn started(&self) -> bool {
        match self.exit {
            Exit::Code { .. } => true,
            Exit::Unmeasured => self.started_at.is_some(),
            Exit::Unstartable(_) | Exit::NeverStarted => false,
        }
    }
}

/// What is known of a process that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It ended with this code.
    Code {
        /// Exit code as measured.
        code: i32,
        /// The backend says that this very process was killed for using too much memory.
        out_of_memory: bool,
    },
    /// It could not be started, for a reason of its own: a missing command, a bad working directory, an image
    /// name outside the grammar. The reason is a stable word.
    Unstartable(Why),
    /// It is certain that it never started.
    NeverStarted,
    /// It ended, but its code was not measured.
    Unmeasured,
}

/// Who asked for an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopper {
    /// Nobody is known to have.
    Nobody,
    /// Our own stop, or our guard timer: the backend's deadline.
    Deadline,
    /// Somebody else, certainly: an eviction, a preemption, a lost node.
    Other(Why),
    /// The backend does not show who.
    Anybody(Why),
}

/// A recorded execution that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Whether it is proven that nothing of it runs any more.
    pub proven: bool,
    /// What is missing, and what would prove its end.
    pub why: Why,
}

/// What is left of a Job in the backend when it has to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remains {
    /// Nothing.
    Nothing,
    /// This, by name.
    Something(String),
}

/// What a backend answered to a request that changes something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done, or already so.
    Done,
    /// Done in part; there is more to do, at the latest after this time or when the backend changes.
    Later(SignedDuration),
    /// Refused because what we had read was old. Read again.
    Stale,
    /// The backend said no; the Job shows why and it is tried again later.
    Rejected(Why),
    /// The backend could not be asked; tried again with backoff.
    Unavailable(Why),
}

/// What became of a create request that is sent at most once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submission {
    /// Created under this name.
    Created(ExecutionName),
    /// Certainly not created: never connected, or refused by the server's own word.
    Refused(Why),
    /// Nobody knows whether it was created.
    Unanswered(Why),
}

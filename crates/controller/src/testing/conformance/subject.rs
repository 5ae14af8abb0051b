//! What an adapter's test brings to the suite.

use std::future::Future;
use std::time::Duration;

use ayatori_core::job::{EnvVar, Job};

use crate::backend::Backend;

/// A backend under test, with a server for it and the means to look behind it.
///
/// Where a method returns an error the promise that needed it is broken: a subject must work.
pub trait Subject {
    /// The backend.
    type Backend: Backend;

    /// How long anything this backend does may take. Long, for a promise that is kept waits no longer than it must.
    fn patience(&self) -> Duration;

    /// A new replica of the adapter, beside those there are, on the same server.
    fn replica(&self) -> Self::Backend;

    /// The parameters of the class that every Job names; with a UID.
    fn parameters(&self) -> <Self::Backend as Backend>::Parameters;

    /// Makes a Job; with a namespace, a UID and a creation time, and whatever else the backend needs of it.
    fn create(&self, order: Order) -> impl Future<Output = anyhow::Result<Job>>;

    /// Stores the Job's status, where the backend or its server reads Jobs by itself; gives back what was stored.
    fn store(&self, job: Job) -> impl Future<Output = anyhow::Result<Job>> {
        std::future::ready(Ok(job))
    }

    /// What the Job's command did, by its own doing and not by the backend's word: a file it writes, a connection
    /// it holds.
    fn effects(&self, job: &Job) -> impl Future<Output = anyhow::Result<Effects>>;

    /// Causes a fault, until [`Subject::cure`].
    fn cause(&self, fault: Fault<'_>) -> impl Future<Output = Result<(), Trouble>>;

    /// Ends every fault that lasts: [`Fault::Unreachable`], [`Fault::AnswersAreLost`], [`Fault::CreatesAreRefused`].
    fn cure(&self) -> impl Future<Output = anyhow::Result<()>>;

    /// Whether what [`Fault::Stranger`] put up for this Job is there, as it was.
    fn stranger_is_unharmed(&self, _: &Job) -> impl Future<Output = anyhow::Result<bool>> {
        std::future::ready(Err(anyhow::anyhow!(
            "implement Subject::stranger_is_unharmed to go with Fault::Stranger"
        )))
    }
}

/// A Job to be made.
#[derive(Clone, Debug)]
pub struct Order {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub place: Place,
    /// What its command does.
    pub script: Script,
    /// Its environment.
    pub env: Vec<EnvVar>,
}

/// One of two namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where nearly all Jobs are.
    Here,
    /// Another one.
    Elsewhere,
}

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Ends at once, with this code.
    Exits(i32),
    /// Runs for a moment, long enough that it has not ended when its start is answered, and ends with this code.
    RunsAndExits(i32),
    /// Runs until it is told to end.
    RunsUntilStopped,
    /// Runs until it is told to end, and then exits with 0.
    TrapsTheStop,
    /// Runs, and does not end when told to. A short grace period is welcome, where the backend has one.
    IgnoresTheStop,
    /// There is no such command.
    IsMissing,
}

/// What a command did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// How often it started.
    pub starts: usize,
    /// Whether a process of it runs now.
    pub running: bool,
}

/// What can happen to a backend.
#[derive(Clone, Copy, Debug)]
pub enum Fault<'a> {
    /// No request reaches the server, and none is answered.
    Unreachable,
    /// Create requests are carried out, and their answers lost.
    AnswersAreLost,
    /// Create requests are refused, by the server's own word.
    CreatesAreRefused,
    /// The execution of this Job is deleted, with its process and without the adapter's doing.
    Deleted(&'a Job),
    /// Somebody else makes something that looks as if it were this Job's execution: the same name, or the same
    /// labels. Nothing of the Job exists before.
    Stranger(&'a Job),
}

impl Fault<'_> {
    /// Whether every subject must be able to cause it.
    pub fn is_required(&self) -> bool {
        match self {
            Self::Unreachable | Self::Deleted(_) => true,
            Self::AnswersAreLost | Self::CreatesAreRefused | Self::Stranger(_) => false,
        }
    }
}

/// Why a fault was not caused.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// This subject has no means to: the promise is not tried.
    #[error("{0}")]
    Impossible(&'static str),
    /// It should have worked.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

//! Where in its life a Job is. Every effect on a backend takes one of these types, and only [`Stage::of`]
//! makes them, so an effect in the wrong order does not compile.

use jiff::Timestamp;

use crate::conditions::{self, ACCEPTED, FINISHED, STARTED};
use crate::execution::ExecutionName;
use crate::job::{Attempt, Execution, Job, JobStatus, ResolvedJobClass, Stop};
use crate::names::EXECUTION_FINALIZER;
use crate::resources::ResourceRequirements;

/// The stages of a Job's life.
#[derive(Clone, Copy, Debug)]
pub enum Stage<'a> {
    /// No class has accepted it: nothing of it may exist anywhere.
    Fresh,
    /// Accepted; nothing is recorded, so no command of it was ever allowed to start.
    Accepted(Accepted<'a>),
    /// One create request may have been sent (single shot only); its answer is not recorded.
    Attempted(Attempted<'a>),
    /// The one execution that may run the command is recorded.
    Recorded(Recorded<'a>),
    /// Over. What was accepted may still have to be released.
    Finished(Option<Closed<'a>>),
}

/// A Job that a class accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accepted<'a> {
    job: &'a Job,
    class: &'a ResolvedJobClass,
    resources: &'a ResourceRequirements,
    at: Timestamp,
}

/// A Job whose one create request may have been sent.
#[derive(Clone, Copy, Debug)]
pub struct Attempted<'a> {
    accepted: Accepted<'a>,
    execution: &'a Execution,
    attempt: &'a Attempt,
}

/// A Job whose one execution is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    accepted: Accepted<'a>,
    execution: &'a Execution,
    id: &'a str,
}

/// A Job that was accepted and is over: nothing of it runs any more.
#[derive(Clone, Copy, Debug)]
pub struct Closed<'a> {
    accepted: Accepted<'a>,
    finished_at: Timestamp,
}

/// A Job that is being deleted and of which nothing runs, nor can start, any more.
#[derive(Clone, Copy, Debug)]
pub struct Departing<'a> {
    accepted: Accepted<'a>,
}

impl<'a> Stage<'a> {
    /// Reads the stage off a Job's status.
    pub fn of(job: &'a Job) -> Self {
        let Some(status) = &job.status else {
            return Stage::Fresh;
        };
        let accepted = Accepted::of(job, status);
        if conditions::is_true(&status.conditions, FINISHED) {
            let finished_at = status.finish_time.as_ref().map(|t| t.0);
            return Stage::Finished(accepted.zip(finished_at).map(|(accepted, finished_at)| Closed {
                accepted,
                finished_at,
            }));
        }
        let Some(accepted) = accepted else {
            return Stage::Fresh;
        };
        let Some(execution) = &status.execution else {
            return Stage::Accepted(accepted);
        };
        match (&execution.id, &execution.attempt) {
            (Some(id), _) => Stage::Recorded(Recorded {
                accepted,
                execution,
                id,
            }),
            (None, Some(attempt)) => Stage::Attempted(Attempted {
                accepted,
                execution,
                attempt,
            }),
            (None, None) => Stage::Accepted(accepted),
        }
    }
}

impl Stage<'_> {
    /// Whether something of the Job may exist in a backend and may still run.
    pub(crate) fn may_have_an_execution(&self) -> bool {
        match self {
            Stage::Accepted(_) | Stage::Attempted(_) | Stage::Recorded(_) => true,
            Stage::Fresh | Stage::Finished(_) => false,
        }
    }
}

impl<'a> Accepted<'a> {
    fn of(job: &'a Job, status: &'a JobStatus) -> Option<Self> {
        let class = status.resolved_job_class.as_ref()?;
        let resources = status.resources.as_ref()?;
        let at = conditions::true_since(&status.conditions, ACCEPTED)?;
        Some(Self {
            job,
            class,
            resources,
            at,
        })
    }

    /// The Job.
    pub fn job(&self) -> &'a Job {
        self.job
    }

    /// The class as it was when it accepted the Job.
    pub fn class(&self) -> &'a ResolvedJobClass {
        self.class
    }

    /// CPU and memory to execute with, exactly.
    pub fn resources(&self) -> &'a ResourceRequirements {
        self.resources
    }

    /// When the class accepted it; `activeDeadlineSeconds` counts from here.
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// That nothing of the Job may start any more because it is being deleted and nothing was ever started.
    pub(crate) fn departing(self) -> Departing<'a> {
        Departing { accepted: self }
    }
}

impl<'a> Attempted<'a> {
    /// The acceptance.
    pub fn accepted(&self) -> Accepted<'a> {
        self.accepted
    }

    /// The one request.
    pub fn attempt(&self) -> &'a Attempt {
        self.attempt
    }

    /// What is stored of the execution.
    pub fn execution(&self) -> &'a Execution {
        self.execution
    }
}

impl<'a> Recorded<'a> {
    /// The acceptance.
    pub fn accepted(&self) -> Accepted<'a> {
        self.accepted
    }

    /// The Job.
    pub fn job(&self) -> &'a Job {
        self.accepted.job
    }

    /// What is stored of the execution.
    pub fn execution(&self) -> &'a Execution {
        self.execution
    }

    /// The backend's name for the execution.
    pub fn id(&self) -> &'a str {
        self.id
    }

    /// The instance that may run the command, where the backend has instances.
    pub fn uid(&self) -> Option<&'a str> {
        self.execution.uid.as_deref()
    }

    /// The name of the execution.
    pub fn name(&self) -> ExecutionName {
        ExecutionName {
            id: self.id.to_owned(),
            uid: self.execution.uid.clone(),
        }
    }

    /// The one request that created it, where creating is starting.
    pub fn attempted(&self) -> Option<Attempted<'a>> {
        let attempt = self.execution.attempt.as_ref()?;
        Some(Attempted {
            accepted: self.accepted,
            execution: self.execution,
            attempt,
        })
    }

    /// The stored stop, if one was requested.
    pub fn stop(&self) -> Option<&'a Stop> {
        self.execution.stop.as_ref()
    }

    /// Whether the command was seen running or ended.
    pub fn started(&self) -> bool {
        self.accepted
            .job
            .status
            .as_ref()
            .is_some_and(|s| conditions::is_true(&s.conditions, STARTED))
    }
}

impl<'a> Closed<'a> {
    /// The acceptance.
    pub fn accepted(&self) -> Accepted<'a> {
        self.accepted
    }

    /// The Job.
    pub fn job(&self) -> &'a Job {
        self.accepted.job
    }

    /// When the end was stored.
    pub fn finished_at(&self) -> Timestamp {
        self.finished_at
    }

    /// What is stored of the execution, if anything was ever recorded.
    pub fn execution(&self) -> Option<&'a Execution> {
        self.accepted
            .job
            .status
            .as_ref()
            .and_then(|s| s.execution.as_ref())
    }

    /// Whether the backend's resources were given back.
    pub fn released(&self) -> bool {
        self.execution().is_some_and(|e| e.release_time.is_some())
    }

    pub(crate) fn departing(self) -> Departing<'a> {
        Departing {
            accepted: self.accepted,
        }
    }
}

impl<'a> Departing<'a> {
    /// The Job.
    pub fn job(&self) -> &'a Job {
        self.accepted.job
    }

    /// The acceptance.
    pub fn accepted(&self) -> Accepted<'a> {
        self.accepted
    }

    /// What is stored of the execution, if anything was ever recorded.
    pub fn execution(&self) -> Option<&'a Execution> {
        self.accepted
            .job
            .status
            .as_ref()
            .and_then(|s| s.execution.as_ref())
    }
}

/// Whether the Job is being deleted.
pub fn is_deleting(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

/// Whether the Job carries our finalizer.
pub fn is_protected(job: &Job) -> bool {
    job.metadata
        .finalizers
        .iter()
        .flatten()
        .any(|f| f == EXECUTION_FINALIZER)
}

//! A backend whose server is in memory. If you write an adapter, start here.
//!
//! Every method does one thing for one Job, asks the server, and translates the answer; none decides, waits or
//! remembers. What a method is handed says what is certain: [`Recorded`] proves that the record was stored, so
//! [`Backend::start`] may start exactly that execution; [`Closed`] proves that the result was stored, so
//! [`Backend::release`] may destroy the evidence.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use ayatori_core::admission::Admissible;
use ayatori_core::conditions::PENDING;
use ayatori_core::execution::{
    Answer, End, ExecutionName, Exit, Gone, Prospect, Protocol, Remains, Running, State, Stopper, Submission,
    Waiting, Why, Windows,
};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::job_class::JobClass;
use ayatori_core::parameters::{CommandMode, OpenSandboxExecutionParameters};
use ayatori_core::stage::{Accepted, Attempted, Closed, Departing, Recorded};
use futures::Stream;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::backend::Backend;
use crate::testing::death::Death;
use crate::testing::server::{Execution, Life, NeverStarts, Order, Server};

/// How many executions may be created at once.
const AT_ONCE: usize = 64;

/// The adapter's side of a [`Server`]. Classes with `commandMode: Execd` start by [`Protocol::Hold`], all others
/// by [`Protocol::SingleShot`].
#[derive(Clone)]
pub struct FakeBackend {
    controller: String,
    windows: Windows,
    server: Server,
    death: Death,
    creating: Arc<Mutex<Creating>>,
}

/// Who creates, and who waits for that.
#[derive(Default)]
struct Creating {
    now: usize,
    turned_away: HashSet<ObjectRef<Job>>,
}

/// The right to create one execution. Whoever was turned away meanwhile is called when it is given back.
pub struct Slot {
    creating: Arc<Mutex<Creating>>,
    server: Server,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut creating = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
        creating.now = creating.now.saturating_sub(1);
        creating.turned_away.drain().for_each(|job| self.server.call(job));
    }
}

impl FakeBackend {
    /// The backend of the classes of `controller`. A name of its own keeps a test out of the way of others.
    pub fn new(controller: impl Into<String>, windows: Windows, server: Server) -> Self {
        Self {
            controller: controller.into(),
            windows,
            server,
            death: Death::never(),
            creating: Arc::default(),
        }
    }

    /// The same backend in a process that dies.
    pub fn dying(self, death: Death) -> Self {
        Self { death, ..self }
    }

    /// Deletes everything there is of a Job: what it recorded, and what a list shows.
    async fn delete_all(&self, job: &Job) -> Result<(), Why> {
        if let Some(id) = recorded_id(job) {
            self.server.delete(id).await?;
        }
        for execution in self.executions_of(job).await? {
            self.server.delete(&execution.id).await?;
        }
        Ok(())
    }

    /// What a list shows of a Job, strangers left out.
    async fn executions_of(&self, job: &Job) -> Result<Vec<Execution>, Why> {
        let mut listed = self.server.list(&uid(job)).await?;
        listed.retain(|execution| execution.is_of(job));
        Ok(listed)
    }

    async fn look(&self, id: &str) -> Result<State, Why> {
        Ok(match self.server.get(id).await? {
            Some(execution) => state(&execution),
            None => State::Gone(Gone {
                proven: self.server.remembers().await?,
                why: Why::new(
                    "ExecutionNotFound",
                    format!("the server does not show execution {id}"),
                ),
            }),
        })
    }
}

impl Backend for FakeBackend {
    type Parameters = OpenSandboxExecutionParameters;
    type Slot = Slot;

    fn controller_name(&self) -> &str {
        &self.controller
    }

    fn protocol(&self, parameters: &Self::Parameters) -> Protocol {
        match parameters.spec.command_mode {
            Some(CommandMode::Execd) => Protocol::Hold,
            Some(CommandMode::Entrypoint) | None => Protocol::SingleShot(self.windows),
        }
    }

    fn identity(&self, parameters: &Self::Parameters) -> BackendIdentity {
        BackendIdentity {
            parameters_uid: parameters.uid().unwrap_or_default(),
            endpoint_hash: "in-memory".to_owned(),
        }
    }

    fn validate(&self, _: &Self::Parameters) -> Result<(), Why> {
        Ok(())
    }

    async fn probe(&self, _: &JobClass, _: &Self::Parameters) -> Result<Why, Why> {
        self.server.ready().await?;
        Ok(Why::new("BackendReachable", "the server answers"))
    }

    async fn admit(&self, _: &Job, _: &Admissible, _: &Self::Parameters) -> Result<Result<(), Why>, Why> {
        Ok(Ok(()))
    }

    async fn survey(&self, accepted: Accepted<'_>, _: Option<&Self::Parameters>) -> Result<Prospect, Why> {
        let job = accepted.job();
        let listed = self.death.around(self.server.list(&uid(job))).await?;
        if let Some(stranger) = listed.iter().find(|execution| !execution.is_of(job)) {
            return Ok(Prospect::Conflict(Why::new(
                "ForeignExecution",
                format!(
                    "execution {} carries the UID of this Job and was made for another one; delete it",
                    stranger.id
                ),
            )));
        }
        let Some(first) = listed.first() else {
            return Ok(Prospect::Absent);
        };
        let name = name(&first.id);
        let identity = BackendIdentity {
            parameters_uid: accepted.class().parameters_ref.uid.clone(),
            endpoint_hash: "in-memory".to_owned(),
        };
        Ok(match first.life {
            Life::Pending => Prospect::Pending(name, identity),
            _ => Prospect::Found(name, identity),
        })
    }

    fn reserve(&self, accepted: Accepted<'_>, _: &Self::Parameters) -> Result<Slot, Why> {
        let mut creating = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
        let job = ObjectRef::from_obj(accepted.job());
        if creating.now >= AT_ONCE {
            creating.turned_away.insert(job);
            return Err(Why::new(
                PENDING,
                format!("{AT_ONCE} executions are being created; this one is next or soon"),
            ));
        }
        creating.turned_away.remove(&job);
        creating.now += 1;
        Ok(Slot {
            creating: self.creating.clone(),
            server: self.server.clone(),
        })
    }

    async fn prepare(&self, accepted: Accepted<'_>, _: &Self::Parameters) -> Answer {
        let order = Order::held(accepted.job());
        match self.death.around(self.server.create(order)).await {
            // A held execution that nobody heard of starts nothing: it is found by the next survey, or released.
            Ok(Ok(_)) => Answer::Done,
            Ok(Err(why)) => Answer::Rejected(why),
            Err(why) => Answer::Unavailable(why),
        }
    }

    async fn submit(&self, attempted: Attempted<'_>, _: &Self::Parameters) -> Submission {
        let attempt = attempted.attempt();
        if Timestamp::now() > attempt.send_before.0 {
            return Submission::Refused(Why::new("BackendUnavailable", "too late to be sent"));
        }
        let order = Order::started(attempted.accepted().job(), attempt.start_before.0);
        match self.death.around(self.server.create(order)).await {
            Ok(Ok(Some(id))) => Submission::Created(name(&id)),
            Ok(Ok(None)) => Submission::Unanswered(Why::new("BackendUnavailable", "no answer")),
            Ok(Err(why)) | Err(why) => Submission::Refused(why),
        }
    }

    async fn discard(&self, _: Attempted<'_>, name: &ExecutionName, _: Option<&Self::Parameters>) -> Answer {
        let deleted = self.death.around(self.server.delete(&name.id)).await;
        deleted.map_or_else(Answer::Unavailable, |()| Answer::Done)
    }

    async fn start(&self, recorded: Recorded<'_>, _: Option<&Self::Parameters>) -> Answer {
        match self.death.around(self.server.start(recorded.id())).await {
            Ok(true) => Answer::Done,
            Ok(false) => Answer::Stale,
            Err(why) => Answer::Unavailable(why),
        }
    }

    async fn observe(&self, recorded: Recorded<'_>, _: Option<&Self::Parameters>) -> State {
        let seen = self.death.around(self.look(recorded.id())).await;
        seen.unwrap_or_else(|why| State::Unobservable(Why::new("BackendUnreachable", why.message)))
    }

    async fn renew(&self, recorded: Recorded<'_>, _: Option<&Self::Parameters>) -> Answer {
        match self.death.around(self.server.renew(recorded.id())).await {
            Ok(true) => Answer::Done,
            Ok(false) => Answer::Stale,
            Err(why) => Answer::Unavailable(why),
        }
    }

    async fn stop(&self, recorded: Recorded<'_>, _: Option<&Self::Parameters>) -> Answer {
        let id = recorded.id();
        let stored = recorded.stop().is_some_and(|stop| stop.delivered_time.is_some());
        let stopping = async {
            match recorded.attempted() {
                // What is paused shows for ever that it had not ended. Only when that is stored may it go.
                Some(_) if stored => self.server.delete(id).await.map(|()| true),
                Some(_) => self.server.pause(id).await,
                None => self.server.terminate(id).await,
            }
        };
        match self.death.around(stopping).await {
            Ok(true) => Answer::Done,
            Ok(false) => Answer::Stale,
            Err(why) => Answer::Unavailable(why),
        }
    }

    async fn release(&self, closed: Closed<'_>, _: Option<&Self::Parameters>) -> Answer {
        let deleted = self.death.around(self.delete_all(closed.job())).await;
        deleted.map_or_else(Answer::Unavailable, |()| Answer::Done)
    }

    async fn remains(&self, departing: Departing<'_>, _: Option<&Self::Parameters>) -> Result<Remains, Why> {
        let looking = async {
            if !self.server.remembers().await? {
                return Err(Why::new(
                    "BackendUnavailable",
                    "the server cannot say what is left",
                ));
            }
            self.executions_of(departing.job()).await
        };
        let left = self.death.around(looking).await?;
        let ids: Vec<_> = left.into_iter().map(|execution| execution.id).collect();
        Ok(if ids.is_empty() {
            Remains::Nothing
        } else {
            Remains::Something(format!("executions {}", ids.join(", ")))
        })
    }

    async fn remove(&self, departing: Departing<'_>, _: Option<&Self::Parameters>) -> Answer {
        let deleted = self.death.around(self.delete_all(departing.job())).await;
        deleted.map_or_else(Answer::Unavailable, |()| Answer::Done)
    }

    fn changes(&self) -> impl Stream<Item = ObjectRef<Job>> + Send + 'static {
        self.server.job_changes()
    }

    fn class_changes(&self) -> impl Stream<Item = Option<String>> + Send + 'static {
        self.server.class_changes()
    }
}

fn state(execution: &Execution) -> State {
    let stopping_since = execution.stopping_since;
    let ended = |exit, started_at, finished_at| {
        State::Ended(End {
            exit,
            started_at,
            finished_at,
            stopped_at: stopping_since,
            stopped_by: stopping_since.map_or(Stopper::Nobody, |_| Stopper::Deadline),
            node: None,
            note: None,
        })
    };
    match execution.life {
        Life::Held if stopping_since.is_none() => State::Held,
        Life::Held | Life::Pending => State::Waiting(Waiting {
            why: Why::new(PENDING, "coming up"),
            node: None,
            stopping_since,
        }),
        Life::Running { since, .. } | Life::Paused { since } => State::Running(Running {
            started_at: Some(since),
            node: None,
            stopping_since,
            renew_at: Some(execution.renew_at),
        }),
        Life::Ended { since, at, code } => {
            let out_of_memory = false;
            ended(Exit::Code { code, out_of_memory }, Some(since), Some(at))
        }
        Life::NeverStarts(NeverStarts::Stopped) => ended(Exit::NeverStarted, None, None),
        Life::NeverStarts(NeverStarts::TooLate) => {
            let why = Why::new(
                "StartTooLate",
                "the execution came up after its fence and did not start",
            );
            ended(Exit::Unstartable(why), None, None)
        }
        Life::NeverStarts(NeverStarts::Missing) => {
            let why = Why::new("StartError", "the command does not exist in the image");
            ended(Exit::Unstartable(why), None, None)
        }
    }
}

fn name(id: &str) -> ExecutionName {
    ExecutionName {
        id: id.to_owned(),
        uid: None,
    }
}

fn uid(job: &Job) -> String {
    job.uid().unwrap_or_default()
}

fn recorded_id(job: &Job) -> Option<&str> {
    job.status.as_ref()?.execution.as_ref()?.id.as_deref()
}

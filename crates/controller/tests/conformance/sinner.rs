//! The fake backend with one thing wrong.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ayatori_controller::backend::Backend;
use ayatori_controller::testing::fake::{FakeBackend, Slot};
use ayatori_controller::testing::server::{Order, Server};
use ayatori_core::admission::Admissible;
use ayatori_core::execution::{
    Answer, End, ExecutionName, Exit, Gone, Prospect, Protocol, Remains, State, Stopper, Submission, Why,
};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::job_class::JobClass;
use ayatori_core::parameters::OpenSandboxExecutionParameters;
use ayatori_core::stage::{Accepted, Attempted, Closed, Departing, Recorded};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sin {
    ShowsAnEndOfNothing,
    StartsByPreparing,
    StartsAgain,
    StartsWhatItFinds,
    SubmitsTwice,
    SendsWhatIsLate,
    HasNoFence,
    CallsTheLostRefused,
    CallsTheRefusedUnanswered,
    CutsCodes,
    CallsMissingCommands127,
    CallsTheRunningEnded,
    StopsNothing,
    OnlyAsksPolitely,
    ForgetsTheStop,
    BlamesTheStop,
    RestartsByReleasing,
    CallsEverythingNothing,
    RemovesNothing,
    ForgetsThePrepared,
    DiscardsNothing,
    RenewsNothing,
    RestartsByRenewing,
    GoesByTheName,
    TellsNoChange,
    TakesStrangers,
    RemovesStrangers,
    CallsTheVanishedDone,
    TakesSilenceForGone,
    TakesSilenceForDone,
    TakesSilenceForAbsent,
    TakesSilenceForNothing,
    WakesNobody,
    RepeatsSecrets,
}

/// A backend that commits one sin.
pub(crate) struct Sinner {
    fake: FakeBackend,
    server: Server,
    sin: Sin,
    known: Mutex<HashMap<String, (ExecutionName, BackendIdentity)>>,
    slots: Arc<()>,
}

/// A right to create: the fake's, or one that calls nobody when it is given back.
pub(crate) enum Right {
    Honest { _slot: Slot },
    Silent { _slot: Arc<()> },
}

type Parameters = OpenSandboxExecutionParameters;

impl Sinner {
    pub(crate) fn new(fake: FakeBackend, server: Server, sin: Sin) -> Self {
        Self {
            fake,
            server,
            sin,
            known: Mutex::default(),
            slots: Arc::default(),
        }
    }

    /// Creates and starts an execution of a Job, whatever there is already.
    async fn run_another(&self, job: &Job) {
        if let Ok(Ok(Some(id))) = self.server.create(Order::held(job)).await {
            self.server.start(&id).await.unwrap();
        }
    }

    fn ended(&self, code: i32) -> State {
        let now = Some(Timestamp::now());
        State::Ended(End {
            exit: Exit::Code {
                code,
                out_of_memory: false,
            },
            started_at: now,
            finished_at: now,
            stopped_at: None,
            stopped_by: Stopper::Nobody,
            node: None,
            note: None,
        })
    }

    fn corrupt(&self, mut end: End, recorded: Recorded<'_>) -> End {
        match (self.sin, &mut end.exit) {
            (Sin::CutsCodes, Exit::Code { code, .. }) => *code &= 0x7f,
            (Sin::CallsMissingCommands127, Exit::Unstartable(_)) => {
                end.exit = Exit::Code {
                    code: 127,
                    out_of_memory: false,
                };
            }
            (Sin::ForgetsTheStop, _) => {
                end.stopped_at = None;
                end.stopped_by = Stopper::Nobody;
            }
            (Sin::BlamesTheStop, _) if recorded.stop().is_some() => {
                end.stopped_at = end.finished_at.map(|at| at - SignedDuration::from_secs(1));
                end.stopped_by = Stopper::Deadline;
            }
            _ => {}
        }
        end
    }

    fn told(&self, why: Why, job: &Job) -> Why {
        let secrets = job
            .spec
            .env
            .iter()
            .filter_map(|variable| variable.value.as_deref());
        match self.sin {
            Sin::RepeatsSecrets => Why::new(why.reason, secrets.collect::<String>()),
            _ => why,
        }
    }

    fn done(&self, answer: Answer) -> Answer {
        match answer {
            Answer::Unavailable(_) if self.sin == Sin::TakesSilenceForDone => Answer::Done,
            answer => answer,
        }
    }
}

impl Backend for Sinner {
    type Parameters = Parameters;
    type Slot = Right;

    fn controller_name(&self) -> &str {
        self.fake.controller_name()
    }

    fn protocol(&self, parameters: &Parameters) -> Protocol {
        self.fake.protocol(parameters)
    }

    fn identity(&self, parameters: &Parameters) -> BackendIdentity {
        self.fake.identity(parameters)
    }

    fn validate(&self, parameters: &Parameters) -> Result<(), Why> {
        self.fake.validate(parameters)
    }

    async fn probe(&self, class: &JobClass, parameters: &Parameters) -> Result<Why, Why> {
        self.fake.probe(class, parameters).await
    }

    async fn admit(
        &self,
        job: &Job,
        admissible: &Admissible,
        parameters: &Parameters,
    ) -> Result<Result<(), Why>, Why> {
        self.fake.admit(job, admissible, parameters).await
    }

    async fn survey(&self, job: Accepted<'_>, parameters: Option<&Parameters>) -> Result<Prospect, Why> {
        let prospect = self.fake.survey(job, parameters).await;
        let name = job.job().name_any();
        match (self.sin, prospect) {
            (Sin::TakesSilenceForAbsent, Err(_)) => Ok(Prospect::Absent),
            (Sin::TakesStrangers, Ok(Prospect::Conflict(_))) => {
                let listed = self.server.list(&job.job().uid().unwrap_or_default()).await?;
                let id = listed.first().map(|e| e.id.clone()).unwrap_or_default();
                let identity = BackendIdentity::default();
                Ok(Prospect::Found(ExecutionName { id, uid: None }, identity))
            }
            (Sin::GoesByTheName, Ok(Prospect::Absent)) => {
                let known = self.known.lock().unwrap().get(&name).cloned();
                Ok(known.map_or(Prospect::Absent, |(name, at)| Prospect::Found(name, at)))
            }
            (Sin::GoesByTheName, Ok(Prospect::Found(execution, at))) => {
                self.known
                    .lock()
                    .unwrap()
                    .insert(name, (execution.clone(), at.clone()));
                Ok(Prospect::Found(execution, at))
            }
            (_, prospect) => prospect,
        }
    }

    fn reserve(&self, job: Accepted<'_>, parameters: &Parameters) -> Result<Right, Why> {
        if self.sin != Sin::WakesNobody {
            return Ok(Right::Honest {
                _slot: self.fake.reserve(job, parameters)?,
            });
        }
        if Arc::strong_count(&self.slots) > 3 {
            return Err(Why::new("Pending", "three are being created"));
        }
        Ok(Right::Silent {
            _slot: self.slots.clone(),
        })
    }

    async fn prepare(&self, job: Accepted<'_>, parameters: &Parameters) -> Answer {
        let answer = self.fake.prepare(job, parameters).await;
        if self.sin == Sin::StartsByPreparing {
            self.run_another(job.job()).await;
        }
        match self.done(answer) {
            Answer::Rejected(why) => Answer::Rejected(self.told(why, job.job())),
            answer => answer,
        }
    }

    async fn submit(&self, job: Attempted<'_>, parameters: &Parameters) -> Submission {
        let made = job.accepted().job();
        let order = match self.sin {
            Sin::SendsWhatIsLate => Some(Order::started(made, job.attempt().start_before.0)),
            Sin::HasNoFence => Some(Order::started(made, Timestamp::MAX)),
            _ => None,
        };
        if let Some(order) = order {
            let id = self.server.create(order).await.unwrap().unwrap().unwrap();
            return Submission::Created(ExecutionName { id, uid: None });
        }
        if self.sin == Sin::SubmitsTwice {
            self.fake.submit(job, parameters).await;
        }
        let submission = self.fake.submit(job, parameters).await;
        if let (Sin::GoesByTheName, Submission::Created(name)) = (self.sin, &submission) {
            let known = (name.clone(), self.fake.identity(parameters));
            self.known.lock().unwrap().insert(made.name_any(), known);
        }
        match submission {
            Submission::Unanswered(why) if self.sin == Sin::CallsTheLostRefused => Submission::Refused(why),
            Submission::Refused(why) if self.sin == Sin::CallsTheRefusedUnanswered => {
                Submission::Unanswered(why)
            }
            Submission::Refused(why) => Submission::Refused(self.told(why, made)),
            submission => submission,
        }
    }

    async fn discard(
        &self,
        job: Attempted<'_>,
        name: &ExecutionName,
        parameters: Option<&Parameters>,
    ) -> Answer {
        match self.sin {
            Sin::DiscardsNothing => Answer::Done,
            _ => self.fake.discard(job, name, parameters).await,
        }
    }

    async fn start(&self, job: Recorded<'_>, parameters: Option<&Parameters>) -> Answer {
        match self.sin {
            Sin::StartsAgain => self.run_another(job.job()).await,
            Sin::StartsWhatItFinds => {
                for execution in self
                    .server
                    .list(&job.job().uid().unwrap_or_default())
                    .await
                    .unwrap()
                {
                    self.server.start(&execution.id).await.unwrap();
                }
            }
            _ => {}
        }
        self.done(self.fake.start(job, parameters).await)
    }

    async fn observe(&self, job: Recorded<'_>, parameters: Option<&Parameters>) -> State {
        match self.fake.observe(job, parameters).await {
            State::Ended(end) => State::Ended(self.corrupt(end, job)),
            State::Running(running) if self.sin == Sin::CallsTheRunningEnded => {
                if running.stopping_since.is_none() {
                    self.ended(0)
                } else {
                    State::Running(running)
                }
            }
            State::Running(mut running) if self.sin == Sin::ForgetsTheStop => {
                running.stopping_since = None;
                State::Running(running)
            }
            State::Gone(_) if self.sin == Sin::ShowsAnEndOfNothing => self.ended(1),
            State::Gone(_) if self.sin == Sin::CallsTheVanishedDone => self.ended(0),
            State::Unobservable(why) if self.sin == Sin::TakesSilenceForGone => {
                State::Gone(Gone { proven: true, why })
            }
            state => state,
        }
    }

    async fn renew(&self, job: Recorded<'_>, parameters: Option<&Parameters>) -> Answer {
        match self.sin {
            Sin::RenewsNothing => return Answer::Done,
            Sin::RestartsByRenewing => self.run_another(job.job()).await,
            _ => {}
        }
        self.fake.renew(job, parameters).await
    }

    async fn stop(&self, job: Recorded<'_>, parameters: Option<&Parameters>) -> Answer {
        let ignores = job.job().spec.args.iter().any(|word| word == "ignores");
        match self.sin {
            Sin::StopsNothing => Answer::Done,
            Sin::OnlyAsksPolitely if ignores => Answer::Done,
            _ => self.done(self.fake.stop(job, parameters).await),
        }
    }

    async fn release(&self, job: Closed<'_>, parameters: Option<&Parameters>) -> Answer {
        if self.sin == Sin::RestartsByReleasing {
            self.run_another(job.job()).await;
        }
        self.done(self.fake.release(job, parameters).await)
    }

    async fn remains(&self, job: Departing<'_>, parameters: Option<&Parameters>) -> Result<Remains, Why> {
        let remains = self.fake.remains(job, parameters).await;
        match self.sin {
            Sin::CallsEverythingNothing => Ok(Remains::Nothing),
            Sin::ForgetsThePrepared if job.execution().is_none() => Ok(Remains::Nothing),
            Sin::TakesSilenceForNothing => Ok(remains.unwrap_or(Remains::Nothing)),
            _ => remains,
        }
    }

    async fn remove(&self, job: Departing<'_>, parameters: Option<&Parameters>) -> Answer {
        match self.sin {
            Sin::RemovesNothing => return Answer::Done,
            Sin::RemovesStrangers => {
                for execution in self
                    .server
                    .list(&job.job().uid().unwrap_or_default())
                    .await
                    .unwrap()
                {
                    self.server.delete(&execution.id).await.unwrap();
                }
            }
            _ => {}
        }
        self.done(self.fake.remove(job, parameters).await)
    }

    fn changes(&self) -> impl Stream<Item = ObjectRef<Job>> + Send + 'static {
        let changes: BoxStream<'static, _> = match self.sin {
            Sin::TellsNoChange => stream::pending().boxed(),
            _ => self.fake.changes().boxed(),
        };
        changes
    }

    fn class_changes(&self) -> impl Stream<Item = Option<String>> + Send + 'static {
        self.fake.class_changes()
    }
}

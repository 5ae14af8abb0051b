//! Two replicas of an adapter, the Jobs of the suite, and how to wait for what they do.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ayatori_core::conditions::whole_seconds;
use ayatori_core::ending;
use ayatori_core::execution::{
    Answer, End, ExecutionName, Prospect, Protocol, Remains, State, Submission, Windows,
};
use ayatori_core::job::{
    Attempt, BackendIdentity, EnvVar, Job, JobResult, ResolvedJobClass, ResolvedParametersReference,
};
use futures::StreamExt;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::backend::Backend;
use crate::testing::conformance::case::{Case, Leaving};
use crate::testing::conformance::report::Beside;
use crate::testing::conformance::{Effects, Fault, Order, Place, Script, Subject, Trouble};

/// A value in the environment of every Job, that must not come back in any text.
pub(super) const CANARY: &str = "canary-2c9f6d1e";

/// How often to look while no change is told. That changes are told is a promise of its own.
const TICK: Duration = Duration::from_millis(50);

/// What a promise works with.
pub(super) struct World<'s, S: Subject> {
    pub(super) subject: &'s S,
    /// The replica that does nearly everything.
    pub(super) one: Replica<S::Backend>,
    /// One that does the same at the same time.
    pub(super) other: Replica<S::Backend>,
    pub(super) parameters: <S::Backend as Backend>::Parameters,
    pub(super) protocol: Protocol,
    pub(super) identity: BackendIdentity,
    count: Mutex<usize>,
}

/// A replica of the adapter that remembers what it said.
pub(super) struct Replica<B> {
    pub(super) backend: B,
    said: Mutex<Vec<String>>,
    changes: watch::Receiver<HashMap<ObjectRef<Job>, usize>>,
    _watches: AbortOnDropHandle<()>,
}

impl<B: Backend> Replica<B> {
    async fn start(backend: B, patience: Duration) -> anyhow::Result<Self> {
        let (tell, changes) = watch::channel(HashMap::new());
        let mut jobs = Box::pin(backend.changes());
        let mut classes = Box::pin(backend.class_changes());
        let watches = tokio::spawn(async move {
            loop {
                tokio::select! {
                    Some(job) = jobs.next() => tell.send_modify(|seen| *seen.entry(job).or_default() += 1),
                    Some(_) = classes.next() => {}
                    else => return,
                }
            }
        });
        let ready = tokio::time::timeout(patience, backend.ready()).await;
        ready.context("a replica did not get ready")?;
        Ok(Self {
            backend,
            said: Mutex::default(),
            changes,
            _watches: AbortOnDropHandle::new(watches),
        })
    }

    /// Remembers what was said.
    pub(super) fn heard<T: Debug>(&self, answer: T) -> T {
        let text = format!("{answer:?}");
        self.said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text);
        answer
    }

    /// Everything that was said.
    pub(super) fn said(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn changes_of(&self, job: &ObjectRef<Job>) -> usize {
        self.changes.borrow().get(job).copied().unwrap_or_default()
    }

    async fn change_after(&self, job: &ObjectRef<Job>, seen: usize) {
        let more = |all: &HashMap<_, usize>| all.get(job).is_some_and(|count| *count > seen);
        if self.changes.clone().wait_for(more).await.is_err() {
            // No more changes will come: only time can end this.
            std::future::pending().await
        }
    }
}

/// Waits for one thing.
pub(super) struct Wait<'w, B> {
    replica: &'w Replica<B>,
    job: ObjectRef<Job>,
    seen: usize,
    what: &'w str,
    tick: Duration,
    until: Instant,
    patience: Duration,
}

impl<B: Backend> Wait<'_, B> {
    /// Returns when it is worth looking again, or fails when it has taken too long.
    pub(super) async fn again(&mut self, instead: &impl Debug) -> anyhow::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        let change = self.replica.change_after(&self.job, self.seen);
        let told = tokio::time::timeout(self.tick.min(left), change).await;
        ensure!(
            told.is_ok() || self.tick < left,
            "waited {} s for {}, and saw {instead:?}",
            self.patience.as_secs(),
            self.what
        );
        self.seen = self.replica.changes_of(&self.job);
        Ok(())
    }
}

impl<'s, S: Subject> World<'s, S> {
    pub(super) async fn new(subject: &'s S) -> anyhow::Result<Self> {
        let parameters = subject.parameters();
        let one = Replica::start(subject.replica(), subject.patience()).await?;
        let other = Replica::start(subject.replica(), subject.patience()).await?;
        Ok(Self {
            protocol: one.backend.protocol(&parameters),
            identity: one.backend.identity(&parameters),
            subject,
            one,
            other,
            parameters,
            count: Mutex::default(),
        })
    }

    // ------------------------------------------------------------------------------------------------- Jobs

    /// A Job that a class accepted.
    pub(super) async fn accepted(&self, script: Script) -> anyhow::Result<Case> {
        let name = self.fresh("case");
        self.accepted_as(name, Place::Here, script).await
    }

    pub(super) async fn accepted_as(
        &self,
        name: String,
        place: Place,
        script: Script,
    ) -> anyhow::Result<Case> {
        let secret = EnvVar {
            name: "CANARY".to_owned(),
            value: Some(CANARY.to_owned()),
            ..EnvVar::default()
        };
        let order = Order {
            name,
            place,
            script,
            env: vec![secret],
        };
        let job = self
            .subject
            .create(order)
            .await
            .context("the subject makes no Job")?;
        let mut case = Case { job };
        case.accept(self.class());
        self.stored(case).await
    }

    /// A Job whose execution is recorded, and held.
    pub(super) async fn held(&self, script: Script) -> anyhow::Result<Case> {
        let case = self.prepared(script).await?;
        self.recorded(case).await
    }

    /// A Job of which an execution was prepared.
    pub(super) async fn prepared(&self, script: Script) -> anyhow::Result<Case> {
        let case = self.accepted(script).await?;
        self.prepare(&case).await?;
        Ok(case)
    }

    /// Prepares an execution as the loop does: whenever a survey shows none.
    pub(super) async fn prepare(&self, case: &Case) -> anyhow::Result<()> {
        let _slot = self.slot(case).await?;
        let mut wait = self.wait(&case.job, "an execution to be prepared");
        loop {
            let seen = self.survey(case).await?;
            if matches!(seen, Ok(Prospect::Found(..))) {
                return Ok(());
            }
            if seen == Ok(Prospect::Absent) {
                self.prepare_by(&self.one, case).await?;
            }
            wait.again(&seen).await?;
        }
    }

    /// Sends one request to prepare.
    pub(super) async fn prepare_by(&self, replica: &Replica<S::Backend>, case: &Case) -> anyhow::Result<()> {
        let answer = replica.backend.prepare(case.accepted()?, &self.parameters).await;
        if let Answer::Rejected(why) = replica.heard(answer) {
            bail!("to prepare was rejected: {why:?}");
        }
        Ok(())
    }

    /// Records what a survey shows.
    pub(super) async fn recorded(&self, mut case: Case) -> anyhow::Result<Case> {
        let (name, identity) = self.found(&case).await?;
        ensure!(
            identity == self.identity,
            "the execution is said to live on {identity:?}, and its parameters name {:?}",
            self.identity
        );
        case.record(name, identity);
        self.stored(case).await
    }

    /// What a survey shows, as soon as it shows something.
    pub(super) async fn found(&self, case: &Case) -> anyhow::Result<(ExecutionName, BackendIdentity)> {
        let mut wait = self.wait(&case.job, "the execution to be found");
        loop {
            let prospect = self.survey(case).await?;
            match prospect {
                Ok(Prospect::Found(name, identity) | Prospect::Pending(name, identity)) => {
                    return Ok((name, identity));
                }
                other => wait.again(&other).await?,
            }
        }
    }

    /// A Job whose recorded execution was started.
    pub(super) async fn started(&self, script: Script) -> anyhow::Result<Case> {
        let case = self.accepted(script).await?;
        self.start(case).await
    }

    /// Takes an accepted Job to where its command may run.
    pub(super) async fn start(&self, case: Case) -> anyhow::Result<Case> {
        match self.protocol {
            Protocol::Hold => {
                self.prepare(&case).await?;
                let case = self.recorded(case).await?;
                let mut wait = self.wait(&case.job, "the start");
                loop {
                    let answer = self.one.backend.start(case.recorded()?, self.some()).await;
                    if self.is_started(&case, &self.one.heard(answer), &mut wait).await? {
                        return Ok(case);
                    }
                }
            }
            Protocol::SingleShot(windows) => {
                let mut case = self.attempted(case, windows).await?;
                match self.submit(&case).await? {
                    Submission::Created(name) => case.record(name, self.identity.clone()),
                    other => bail!("a create request that nothing is wrong with came to {other:?}"),
                }
                self.stored(case).await
            }
        }
    }

    /// Whether a start has come to something; if it may still, waits.
    pub(super) async fn is_started(
        &self,
        case: &Case,
        answer: &Answer,
        wait: &mut Wait<'_, S::Backend>,
    ) -> anyhow::Result<bool> {
        if is_done(answer, wait).await? {
            return Ok(true);
        }
        Ok(match self.observe(case).await? {
            State::Waiting(_) | State::Running(_) | State::Ended(_) => true,
            State::Held | State::Gone(_) | State::Unobservable(_) => false,
        })
    }

    /// The same Job with an attempt.
    pub(super) async fn attempted(&self, mut case: Case, windows: Windows) -> anyhow::Result<Case> {
        let from_now = |by| Timestamp::now().saturating_add(by).unwrap_or(Timestamp::MAX);
        let attempt = Attempt {
            id: self.fresh("attempt"),
            send_before: whole_seconds(from_now(windows.send)),
            start_before: whole_seconds(from_now(windows.fence)),
        };
        case.attempt(attempt, self.identity.clone());
        self.stored(case).await
    }

    pub(super) async fn submit(&self, case: &Case) -> anyhow::Result<Submission> {
        let _slot = self.slot(case).await?;
        let submission = self.one.backend.submit(case.attempted()?, &self.parameters).await;
        Ok(self.one.heard(submission))
    }

    /// A Job that ran to its end, whose result is stored.
    pub(super) async fn finished(&self, script: Script) -> anyhow::Result<Case> {
        let mut case = self.started(script).await?;
        let end = self.ended(&case).await?;
        case.start(&end);
        let result = ending::attribute(&end, None, None);
        case.finish(result);
        self.stored(case).await
    }

    /// Lets another Job go all the way. What has not happened by then does not happen by itself.
    pub(super) async fn meanwhile(&self) -> anyhow::Result<()> {
        self.finished(Script::Exits(0)).await.map(drop)
    }

    pub(super) async fn stored(&self, case: Case) -> anyhow::Result<Case> {
        let job = self.subject.store(case.job).await;
        let job = job.context("the subject does not store the Job's status")?;
        Ok(Case { job })
    }

    /// The right to create, as soon as it is given.
    pub(super) async fn slot(&self, case: &Case) -> anyhow::Result<<S::Backend as Backend>::Slot> {
        let mut wait = self.wait(&case.job, "the right to create");
        loop {
            match self.one.backend.reserve(case.accepted()?, &self.parameters) {
                Ok(slot) => return Ok(slot),
                Err(why) => wait.again(&why).await?,
            }
        }
    }

    fn class(&self) -> ResolvedJobClass {
        type ParametersOf<S> = <<S as Subject>::Backend as Backend>::Parameters;
        ResolvedJobClass {
            name: "conformance".to_owned(),
            uid: "6f6e6c79-2061-4c61-8173-730000000000".to_owned(),
            controller_name: self.one.backend.controller_name().to_owned(),
            parameters_ref: ResolvedParametersReference {
                group: ParametersOf::<S>::group(&()).into_owned(),
                kind: ParametersOf::<S>::kind(&()).into_owned(),
                name: self.parameters.name_any(),
                uid: self.parameters.uid().unwrap_or_default(),
            },
        }
    }

    pub(super) fn fresh(&self, what: &str) -> String {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        format!("{what}-{count}")
    }

    // ------------------------------------------------------------------------------------------------ looks

    pub(super) fn some(&self) -> Option<&<S::Backend as Backend>::Parameters> {
        Some(&self.parameters)
    }

    pub(super) async fn survey(
        &self,
        case: &Case,
    ) -> anyhow::Result<Result<Prospect, ayatori_core::execution::Why>> {
        let prospect = self.one.backend.survey(case.accepted()?, self.some()).await;
        Ok(self.one.heard(prospect))
    }

    pub(super) async fn observe(&self, case: &Case) -> anyhow::Result<State> {
        let state = self.one.backend.observe(case.recorded()?, self.some()).await;
        Ok(self.one.heard(state))
    }

    pub(super) async fn remains(
        &self,
        leaving: &Leaving,
    ) -> anyhow::Result<Result<Remains, ayatori_core::execution::Why>> {
        let remains = self.one.backend.remains(leaving.departing()?, self.some()).await;
        Ok(self.one.heard(remains))
    }

    pub(super) async fn effects(&self, case: &Case) -> anyhow::Result<Effects> {
        let effects = self.subject.effects(&case.job).await;
        effects.context("the subject cannot tell what the command did")
    }

    /// The end, once it is shown. Nothing may be told as ended whose process runs.
    pub(super) async fn ended(&self, case: &Case) -> anyhow::Result<End> {
        let mut wait = self.wait(&case.job, "the end of the command");
        loop {
            match self.observe(case).await? {
                State::Ended(end) => {
                    let running = self.effects(case).await?.running;
                    ensure!(!running, "it is told as ended ({end:?}) while its process runs");
                    return Ok(end);
                }
                state @ State::Gone(_) => bail!("it ended by itself, and is told as {state:?}"),
                state => wait.again(&state).await?,
            }
        }
    }

    /// Returns once the command is shown to run, and does.
    pub(super) async fn running(&self, case: &Case) -> anyhow::Result<()> {
        let mut wait = self.wait(&case.job, "the command to run");
        loop {
            let (state, effects) = (self.observe(case).await?, self.effects(case).await?);
            match state {
                State::Running(_) if effects.running => return Ok(()),
                State::Ended(end) => bail!("its process should run, and is told as ended: {end:?}"),
                state => wait.again(&(state, effects)).await?,
            }
        }
    }

    /// Stops a Job as the loop does, by both replicas, and gives the result that it has then.
    pub(super) async fn stopped(&self, case: Case) -> anyhow::Result<(Case, JobResult)> {
        let mut case = case;
        case.request_stop();
        case = self.stored(case).await?;
        let job = case.job.clone();
        let mut wait = self.wait(&job, "the stopped process to end");
        loop {
            let state = self.observe(&case).await?;
            let recorded = case.recorded()?;
            let result = match &state {
                State::Ended(end) => Some(ending::attribute(end, recorded.stop(), None)),
                State::Gone(gone) if gone.proven => Some(ending::vanished(&gone.why, recorded.stop())),
                State::Held | State::Waiting(_) | State::Running(_) => None,
                State::Gone(_) | State::Unobservable(_) => None,
            };
            if let Some(result) = result {
                let effects = self.effects(&case).await?;
                ensure!(!effects.running, "it is told as {state:?} while its process runs");
                return Ok((case, result));
            }
            if let State::Running(running) = &state
                && let Some(at) = running.stopping_since
                && recorded.stop().is_some_and(|stop| stop.delivered_time.is_none())
            {
                case.deliver_stop(at);
                case = self.stored(case).await?;
            }
            self.stop_twice(&case).await?;
            wait.again(&state).await?;
        }
    }

    pub(super) async fn stop_twice(&self, case: &Case) -> anyhow::Result<()> {
        self.stop_by(&self.one, case).await?;
        self.stop_by(&self.other, case).await
    }

    pub(super) async fn stop_by(&self, replica: &Replica<S::Backend>, case: &Case) -> anyhow::Result<()> {
        let answer = replica.backend.stop(case.recorded()?, self.some()).await;
        if let Answer::Rejected(why) = replica.heard(answer) {
            bail!("a stop was rejected: {why:?}");
        }
        Ok(())
    }

    /// Fails unless the command started that often.
    pub(super) async fn expect_starts(&self, case: &Case, starts: usize) -> anyhow::Result<()> {
        let effects = self.effects(case).await?;
        ensure!(
            effects.starts == starts,
            "the command should have started {starts} times, and started {} times",
            effects.starts
        );
        Ok(())
    }

    // ------------------------------------------------------------------------------------------------ waits

    /// Waits for something to happen to a Job.
    pub(super) fn wait<'w>(&'w self, job: &Job, what: &'w str) -> Wait<'w, S::Backend> {
        let job = ObjectRef::from_obj(job);
        let patience = self.subject.patience();
        Wait {
            replica: &self.one,
            seen: self.one.changes_of(&job),
            job,
            what,
            tick: TICK,
            until: Instant::now() + patience,
            patience,
        }
    }

    /// The same, woken by nothing but changes that are told.
    pub(super) fn wait_for_change<'w>(&'w self, job: &Job, what: &'w str) -> Wait<'w, S::Backend> {
        Wait {
            tick: Duration::MAX,
            ..self.wait(job, what)
        }
    }

    /// Causes a fault, or says that this promise is not tried.
    pub(super) async fn cause(&self, fault: Fault<'_>) -> anyhow::Result<()> {
        match self.subject.cause(fault).await {
            Ok(()) => Ok(()),
            Err(Trouble::Impossible(why)) if fault.is_required() => {
                bail!("every subject must be able to cause this, and it cannot: {why}")
            }
            Err(Trouble::Impossible(why)) => Err(Beside::NotTried(why.to_owned()).into()),
            Err(Trouble::Failed(error)) => Err(error.context("the subject could not cause a fault")),
        }
    }

    /// Does something while a fault lasts, and ends the fault in any case.
    pub(super) async fn under<T>(
        &self,
        fault: Fault<'_>,
        deed: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        self.cause(fault).await?;
        let outcome = deed.await;
        self.subject
            .cure()
            .await
            .context("the subject could not end a fault")?;
        outcome
    }

    /// For promises of backends that hold.
    pub(super) fn only_hold(&self) -> anyhow::Result<()> {
        match self.protocol {
            Protocol::Hold => Ok(()),
            Protocol::SingleShot(_) => Err(does_not_apply("creating is starting here")),
        }
    }

    /// For promises of backends that do not.
    pub(super) fn only_single_shot(&self) -> anyhow::Result<Windows> {
        match self.protocol {
            Protocol::SingleShot(windows) => Ok(windows),
            Protocol::Hold => Err(does_not_apply("executions are held before their command here")),
        }
    }
}

pub(super) fn does_not_apply(why: &str) -> anyhow::Error {
    Beside::DoesNotApply(why.to_owned()).into()
}

/// Whether it is done; if it may still be, waits.
pub(super) async fn is_done<B: Backend>(answer: &Answer, wait: &mut Wait<'_, B>) -> anyhow::Result<bool> {
    match answer {
        Answer::Done => Ok(true),
        Answer::Rejected(why) => bail!("the backend said no: {why:?}"),
        Answer::Later(_) | Answer::Stale | Answer::Unavailable(_) => {
            wait.again(answer).await?;
            Ok(false)
        }
    }
}

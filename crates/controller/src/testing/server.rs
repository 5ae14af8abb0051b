//! The server behind the fake backend: executions in memory, with the misbehaviour that real servers show.
//!
//! It outlives the adapters that talk to it. Everything a test wants to know it counts where it happens: a
//! start is counted when a command starts, not when somebody asks for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ayatori_core::execution::Why;
use ayatori_core::job::Job;
use futures::Stream;
use futures::channel::mpsc;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

/// How long a process takes to end once it was told to.
const REACTION: SignedDuration = SignedDuration::from_millis(5);
/// How long one that ignores that is left to run.
const GRACE: SignedDuration = SignedDuration::from_millis(50);
/// How long after its last renewal an execution should be renewed.
const LEASE: SignedDuration = SignedDuration::from_hours(1);

/// The server. A clone is another connection to the same one.
#[derive(Clone, Default)]
pub struct Server(Arc<Mutex<Inside>>);

/// How the server misbehaves. The default is not at all.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// No connection can be made: certainly nothing arrives.
    pub unreachable: bool,
    /// How long every answer takes.
    pub latency: Duration,
    /// What becomes of create requests.
    pub create: Create,
    /// A new execution is missing from lists for this long.
    pub list_lag: SignedDuration,
    /// Lists are empty and nothing is found by its id, which proves nothing.
    pub amnesia: bool,
    /// A stop is answered as if it had been done, and nothing happens.
    pub stops_nothing: bool,
    /// Why no new execution can be created at all; the class is not ready then.
    pub not_ready: Option<Why>,
}

/// What becomes of create requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Create {
    /// They are answered.
    #[default]
    Works,
    /// They are carried out, and the answer is lost.
    LosesAnswers,
    /// They are lost, and nobody knows.
    LosesRequests,
    /// They are carried out this much later, and the answer is lost.
    Delays(Duration),
    /// They are refused, by the server's own word.
    Refuses(Why),
}

/// What a command does, by the words in the Job's `spec.args`: `runs=MILLISECONDS` or `runs=forever`, `exit=CODE`,
/// `traps` (exits with 0 when told to end), `ignores` (has to be killed when told to end), `deaf` (is not even told),
/// `stuck` (its execution never comes up), `missing` (there is no such command). Without a word it ends at once
/// with exit code 0, and when told to.
#[derive(Clone, Debug, Default)]
struct Script {
    runs: Option<SignedDuration>,
    forever: bool,
    exit: i32,
    on_stop: OnStop,
    stuck: bool,
    missing: bool,
}

/// What a process does when it is told to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OnStop {
    #[default]
    Ends,
    ExitsWithZero,
    MustBeKilled,
    IsNotTold,
}

impl Script {
    fn of(job: &Job) -> Self {
        let mut script = Self::default();
        for word in &job.spec.args {
            match word.split_once('=') {
                Some(("runs", "forever")) => script.forever = true,
                Some(("runs", time)) => script.runs = time.parse().ok().map(SignedDuration::from_millis),
                Some(("exit", code)) => script.exit = code.parse().unwrap_or_default(),
                Some(_) => {}
                None => script.word(word),
            }
        }
        script
    }

    fn word(&mut self, word: &str) {
        match word {
            "traps" => self.on_stop = OnStop::ExitsWithZero,
            "ignores" => self.on_stop = OnStop::MustBeKilled,
            "deaf" => self.on_stop = OnStop::IsNotTold,
            "stuck" => self.stuck = true,
            "missing" => self.missing = true,
            _ => {}
        }
    }

    /// When, and with which code, a process ends that is told to now.
    fn stopped(&self, now: Timestamp) -> Option<(Timestamp, i32)> {
        match self.on_stop {
            OnStop::Ends => Some((after(now, REACTION), 143)),
            OnStop::ExitsWithZero => Some((after(now, REACTION), 0)),
            OnStop::MustBeKilled => Some((after(now, GRACE), 137)),
            OnStop::IsNotTold => None,
        }
    }

    fn ends(&self, started: Timestamp) -> Option<Timestamp> {
        (!self.forever).then(|| after(started, self.runs.unwrap_or_default()))
    }
}

/// An execution, as the server shows it.
#[derive(Clone, Debug)]
pub struct Execution {
    /// Its name.
    pub id: String,
    /// UID of its Job.
    pub job_uid: String,
    /// Where it is in its life.
    pub life: Life,
    /// Since when the server has recorded a stop.
    pub stopping_since: Option<Timestamp>,
    /// When its expiry should be put off. It is only told: nothing expires here.
    pub renew_at: Timestamp,
    job: ObjectRef<Job>,
    script: Script,
    created: Timestamp,
}

/// Where in its life an execution is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It waits for its start.
    Held,
    /// It was told to start, and has not come up.
    Pending,
    /// Its command runs.
    Running {
        /// Since when.
        since: Timestamp,
        /// Until when, if that is known to the process itself.
        until: Option<Timestamp>,
    },
    /// Its command is frozen.
    Paused {
        /// When it started.
        since: Timestamp,
    },
    /// Its command has ended.
    Ended {
        /// When it started.
        since: Timestamp,
        /// When it ended.
        at: Timestamp,
        /// With which code.
        code: i32,
    },
    /// It is certain that its command never starts.
    NeverStarts(NeverStarts),
}

/// Why a command never starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeverStarts {
    /// It was stopped first.
    Stopped,
    /// It came up after its fence, and refused.
    TooLate,
    /// There is no such command.
    Missing,
}

/// A create request.
#[derive(Clone, Debug)]
pub struct Order {
    job: ObjectRef<Job>,
    job_uid: String,
    script: Script,
    start_before: Option<Timestamp>,
}

impl Order {
    /// An execution that is held before its command.
    pub fn held(job: &Job) -> Self {
        Self {
            job: ObjectRef::from_obj(job),
            job_uid: job.uid().unwrap_or_default(),
            script: Script::of(job),
            start_before: None,
        }
    }

    /// An execution that starts its command by itself, but not after this time.
    pub fn started(job: &Job, start_before: Timestamp) -> Self {
        Self {
            start_before: Some(start_before),
            ..Self::held(job)
        }
    }
}

#[derive(Default)]
struct Inside {
    executions: BTreeMap<String, Execution>,
    counts: HashMap<String, Counts>,
    faults: Faults,
    job_watchers: Vec<mpsc::UnboundedSender<ObjectRef<Job>>>,
    class_watchers: Vec<mpsc::UnboundedSender<Option<String>>>,
}

/// What happened to one Job's executions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often its command started. The one number that matters.
    pub starts: usize,
    /// How many executions were created.
    pub creates: usize,
    /// How often one was told to end, with or without effect.
    pub stops: usize,
    /// How many were deleted.
    pub deletes: usize,
}

/// What tests ask and do.
impl Server {
    /// A server on which nothing runs yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes it misbehave, or behave. Whoever watches is woken, as a poll would.
    pub fn misbehave(&self, change: impl FnOnce(&mut Faults)) {
        let mut inside = self.lock();
        change(&mut inside.faults);
        let jobs: Vec<_> = inside.executions.values().map(|e| e.job.clone()).collect();
        jobs.into_iter().for_each(|job| inside.tell(job));
        inside
            .class_watchers
            .retain(|watcher| watcher.unbounded_send(None).is_ok());
    }

    /// What happened to a Job's executions so far.
    pub fn counts(&self, job_uid: &str) -> Counts {
        self.lock().counts.get(job_uid).copied().unwrap_or_default()
    }

    /// The executions there are, ended ones too.
    pub fn executions(&self) -> Vec<Execution> {
        self.lock().executions.values().map(Execution::settled).collect()
    }

    /// Lets a Job's running command end.
    pub fn end(&self, job_uid: &str, code: i32) {
        let mut inside = self.lock();
        inside.change_all(job_uid, |execution| {
            if let Life::Running { since, .. } = execution.settled().life {
                let at = Timestamp::now();
                execution.life = Life::Ended { since, at, code };
            }
        });
    }

    /// Puts up an execution of somebody else's that carries a Job's UID.
    pub fn put_stranger(&self, job: &Job) {
        let stranger = Order {
            job: ObjectRef::new("somebody-elses").within("elsewhere"),
            ..Order::held(job)
        };
        self.carry_out(&stranger);
    }

    /// Loses everything of a Job, as a failing node does.
    pub fn lose(&self, job_uid: &str) {
        let mut inside = self.lock();
        inside.change_all(job_uid, |_| {});
        inside
            .executions
            .retain(|_, execution| execution.job_uid != job_uid);
    }
}

/// What adapters ask and do. An outer error means that the request certainly did not arrive.
impl Server {
    /// Creates an execution. `None`: nobody knows whether it was.
    pub async fn create(&self, order: Order) -> Result<Result<Option<String>, Why>, Why> {
        let faults = self.connect().await?;
        Ok(match faults.create {
            Create::Works => Ok(Some(self.carry_out(&order))),
            Create::LosesAnswers => {
                self.carry_out(&order);
                Ok(None)
            }
            Create::LosesRequests => Ok(None),
            Create::Delays(time) => {
                let server = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    server.carry_out(&order);
                });
                Ok(None)
            }
            Create::Refuses(why) => Err(why),
        })
    }

    /// The executions of a Job, oldest first.
    pub async fn list(&self, job_uid: &str) -> Result<Vec<Execution>, Why> {
        let faults = self.connect().await?;
        let now = Timestamp::now();
        let listed = |e: &&Execution| {
            e.job_uid == job_uid && !faults.amnesia && after(e.created, faults.list_lag) <= now
        };
        let mut executions: Vec<_> = self
            .lock()
            .executions
            .values()
            .filter(listed)
            .map(Execution::settled)
            .collect();
        executions.sort_by_key(|e| e.created);
        Ok(executions)
    }

    /// One execution.
    pub async fn get(&self, id: &str) -> Result<Option<Execution>, Why> {
        let faults = self.connect().await?;
        let inside = self.lock();
        let found = inside.executions.get(id).filter(|_| !faults.amnesia);
        Ok(found.map(Execution::settled))
    }

    /// Whether what is not found is certainly gone.
    pub async fn remembers(&self) -> Result<bool, Why> {
        Ok(!self.connect().await?.amnesia)
    }

    /// Lets a held execution start its command. However often and by whomever it is asked, this happens once.
    /// False if there is no such execution.
    pub async fn start(&self, id: &str) -> Result<bool, Why> {
        self.connect().await?;
        let known = self.change(id, |execution| {
            if execution.life == Life::Held {
                execution.bring_up(None);
            }
        });
        Ok(known)
    }

    /// Tells a process to end; one that has not started never will. False if there is no such execution.
    pub async fn terminate(&self, id: &str) -> Result<bool, Why> {
        let faults = self.connect().await?;
        self.count_stop(id);
        let known = self.change(id, |execution| {
            let now = Timestamp::now();
            match execution.settled().life {
                _ if faults.stops_nothing => return,
                Life::Held | Life::Pending => execution.life = Life::NeverStarts(NeverStarts::Stopped),
                Life::Running { since, until } if execution.stopping_since.is_none() => {
                    if let Some((at, code)) = execution.script.stopped(now)
                        && until.is_none_or(|until| at < until)
                    {
                        execution.script.exit = code;
                        execution.life = Life::Running {
                            since,
                            until: Some(at),
                        };
                    }
                }
                Life::Running { .. } | Life::Paused { .. } | Life::Ended { .. } | Life::NeverStarts(_) => {
                    return;
                }
            }
            execution.stopping_since = Some(now);
        });
        Ok(known)
    }

    /// Freezes an execution whose process has not ended; what is frozen never ends by itself. False if there is
    /// no such execution.
    pub async fn pause(&self, id: &str) -> Result<bool, Why> {
        let faults = self.connect().await?;
        self.count_stop(id);
        let known = self.change(id, |execution| {
            match execution.settled().life {
                _ if faults.stops_nothing || execution.script.on_stop == OnStop::IsNotTold => return,
                Life::Held | Life::Pending => {}
                Life::Running { since, .. } => execution.life = Life::Paused { since },
                Life::Paused { .. } | Life::Ended { .. } | Life::NeverStarts(_) => return,
            }
            execution.stopping_since.get_or_insert_with(Timestamp::now);
        });
        Ok(known)
    }

    /// Puts off the expiry of an execution. False if there is no such execution.
    pub async fn renew(&self, id: &str) -> Result<bool, Why> {
        self.connect().await?;
        Ok(self.change(id, |execution| {
            execution.renew_at = after(Timestamp::now(), LEASE)
        }))
    }

    /// Deletes an execution, and with it whatever runs in it. One that does not exist is as good as deleted.
    pub async fn delete(&self, id: &str) -> Result<(), Why> {
        self.connect().await?;
        let mut inside = self.lock();
        if let Some(execution) = inside.executions.remove(id) {
            inside.count(&execution.job_uid, |counts| counts.deletes += 1);
            inside.tell(execution.job);
        }
        Ok(())
    }

    /// The Jobs of which something changed, from now on.
    pub fn job_changes(&self) -> impl Stream<Item = ObjectRef<Job>> + Send + 'static {
        let (sender, receiver) = mpsc::unbounded();
        self.lock().job_watchers.push(sender);
        receiver
    }

    /// Says when it may have become ready, or not.
    pub fn class_changes(&self) -> impl Stream<Item = Option<String>> + Send + 'static {
        let (sender, receiver) = mpsc::unbounded();
        self.lock().class_watchers.push(sender);
        receiver
    }

    /// Whether new executions can be created.
    pub async fn ready(&self) -> Result<(), Why> {
        self.connect().await?.not_ready.map_or(Ok(()), Err)
    }

    /// Tells of a Job whose turn it is.
    pub fn call(&self, job: ObjectRef<Job>) {
        self.lock().tell(job);
    }

    async fn connect(&self) -> Result<Faults, Why> {
        let faults = self.lock().faults.clone();
        if faults.unreachable {
            return Err(Why::new("BackendUnavailable", "no connection to the server"));
        }
        if !faults.latency.is_zero() {
            tokio::time::sleep(faults.latency).await;
        }
        Ok(faults)
    }

    fn carry_out(&self, order: &Order) -> String {
        let mut inside = self.lock();
        let id = inside.count(&order.job_uid, |counts| {
            counts.creates += 1;
            format!("{}-{}", order.job_uid, counts.creates)
        });
        let execution = Execution {
            id: id.clone(),
            job_uid: order.job_uid.clone(),
            life: Life::Held,
            stopping_since: None,
            renew_at: after(Timestamp::now(), LEASE),
            job: order.job.clone(),
            script: order.script.clone(),
            created: Timestamp::now(),
        };
        inside.executions.insert(id.clone(), execution);
        drop(inside);
        self.change(&id, |execution| {
            if let Some(start_before) = order.start_before {
                execution.bring_up(Some(start_before));
            }
        });
        // Whoever polls sees it no later than lists show it.
        let lag = self.lock().faults.list_lag;
        self.tell_later(order.job.clone(), lag);
        id
    }

    fn count_stop(&self, id: &str) {
        let mut inside = self.lock();
        if let Some(uid) = inside.executions.get(id).map(|e| e.job_uid.clone()) {
            inside.count(&uid, |counts| counts.stops += 1);
        }
    }

    /// Changes an execution, counts if that started its command, and tells of it now and when it will end.
    fn change(&self, id: &str, change: impl FnOnce(&mut Execution)) -> bool {
        let mut inside = self.lock();
        let Some(execution) = inside.executions.get_mut(id) else {
            return false;
        };
        let ran = execution.has_started();
        execution.life = execution.settled().life;
        change(execution);
        let started = !ran && execution.has_started();
        let (uid, job) = (execution.job_uid.clone(), execution.job.clone());
        if let Life::Running {
            until: Some(until), ..
        } = execution.life
        {
            self.tell_later(job.clone(), until.duration_since(Timestamp::now()));
        }
        if started {
            inside.count(&uid, |counts| counts.starts += 1);
        }
        inside.tell(job);
        true
    }

    fn tell_later(&self, job: ObjectRef<Job>, later: SignedDuration) {
        let server = self.clone();
        let later = Duration::try_from(later).unwrap_or_default();
        tokio::spawn(async move {
            tokio::time::sleep(later).await;
            server.lock().tell(job);
        });
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    fn tell(&mut self, job: ObjectRef<Job>) {
        self.job_watchers
            .retain(|watcher| watcher.unbounded_send(job.clone()).is_ok());
    }

    fn count<T>(&mut self, job_uid: &str, count: impl FnOnce(&mut Counts) -> T) -> T {
        count(self.counts.entry(job_uid.to_owned()).or_default())
    }

    /// Changes every execution of a Job.
    fn change_all(&mut self, job_uid: &str, change: impl Fn(&mut Execution)) {
        let mut changed = vec![];
        for execution in self.executions.values_mut().filter(|e| e.job_uid == job_uid) {
            change(execution);
            changed.push(execution.job.clone());
        }
        changed.into_iter().for_each(|job| self.tell(job));
    }
}

impl Execution {
    /// Whether its command was ever started.
    pub fn has_started(&self) -> bool {
        match self.life {
            Life::Running { .. } | Life::Paused { .. } | Life::Ended { .. } => true,
            Life::Held | Life::Pending | Life::NeverStarts(_) => false,
        }
    }

    /// Whether it was made for this very Job. Its UID alone proves nothing: anybody can write that.
    pub fn is_of(&self, job: &Job) -> bool {
        self.job_uid == job.uid().unwrap_or_default() && self.job == ObjectRef::from_obj(job)
    }

    /// Whether a process of it may be running.
    pub fn is_running(&self) -> bool {
        matches!(self.life, Life::Running { .. } | Life::Paused { .. })
    }

    fn bring_up(&mut self, start_before: Option<Timestamp>) {
        let since = Timestamp::now();
        self.life = match start_before {
            _ if self.script.stuck => Life::Pending,
            _ if self.script.missing => Life::NeverStarts(NeverStarts::Missing),
            Some(fence) if since > fence => Life::NeverStarts(NeverStarts::TooLate),
            _ => Life::Running {
                since,
                until: self.script.ends(since),
            },
        };
    }

    /// As it is now: a process whose time is over has ended.
    fn settled(&self) -> Self {
        let mut now = self.clone();
        if let Life::Running {
            since,
            until: Some(at),
        } = self.life
            && at <= Timestamp::now()
        {
            let code = self.script.exit;
            now.life = Life::Ended { since, at, code };
        }
        now
    }
}

fn after(from: Timestamp, by: SignedDuration) -> Timestamp {
    from.saturating_add(by).unwrap_or(Timestamp::MAX)
}

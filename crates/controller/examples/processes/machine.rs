//! What stands behind the adapter. Here it is a table in the adapter's own memory, with a process behind each line;
//! elsewhere it is a client of some server. Every call says whether it got through.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ayatori_core::execution::Why;
use ayatori_core::job::Job;
use futures::Stream;
use futures::channel::mpsc;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::sync::Notify;

/// How long a process that was told to end may take, where the Job does not say.
const GRACE: Duration = Duration::from_secs(30);

/// The machine. A clone is the same one.
#[derive(Clone, Default)]
pub(crate) struct Machine(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    executions: BTreeMap<String, Entry>,
    watchers: Vec<mpsc::UnboundedSender<ObjectRef<Job>>>,
    unreachable: bool,
}

struct Entry {
    execution: Execution,
    job: Job,
    /// Told when the process is to end: politely, or at once.
    end: Arc<Ends>,
}

#[derive(Default)]
struct Ends {
    politely: Notify,
    at_once: Notify,
}

/// A line of the table.
#[derive(Clone)]
pub(crate) struct Execution {
    /// Its name.
    pub(crate) id: String,
    /// Where in its life it is.
    pub(crate) life: Life,
    /// Since when it is to end.
    pub(crate) stopping_since: Option<Timestamp>,
}

/// Where in its life an execution is.
#[derive(Clone)]
pub(crate) enum Life {
    /// Nobody has started it.
    Held,
    /// It was told to start.
    Starting,
    /// Its process runs.
    Running { since: Timestamp },
    /// Its process has ended.
    Ended {
        since: Timestamp,
        at: Timestamp,
        code: i32,
    },
    /// There is no process, for a reason of the command's own.
    Unstartable { message: String },
    /// It was stopped before it was started.
    NeverStarted,
}

impl Machine {
    /// Whether it answers.
    pub(crate) fn ping(&self) -> Result<(), Why> {
        self.reach().map(drop)
    }

    /// Notes what a Job wants to run. A second time changes nothing.
    pub(crate) fn hold(&self, job: &Job) -> Result<(), Why> {
        let mut table = self.reach()?;
        // One execution of a Job, for ever: its UID is the name.
        let id = job.uid().unwrap_or_default();
        let entry = || Entry {
            execution: Execution {
                id: id.clone(),
                life: Life::Held,
                stopping_since: None,
            },
            job: job.clone(),
            end: Arc::default(),
        };
        table.executions.entry(id.clone()).or_insert_with(entry);
        table.tell(&id);
        Ok(())
    }

    /// Starts what is held. A second time changes nothing. False if there is no such execution.
    pub(crate) fn start(&self, id: &str) -> Result<bool, Why> {
        let mut table = self.reach()?;
        let Some(entry) = table.executions.get_mut(id) else {
            return Ok(false);
        };
        if let Life::Held = entry.execution.life {
            entry.execution.life = Life::Starting;
            tokio::spawn(run(self.clone(), entry.job.clone(), entry.end.clone()));
        }
        Ok(true)
    }

    /// Has a process end, and what is held never start. What has ended stays as it is.
    pub(crate) fn stop(&self, id: &str) -> Result<(), Why> {
        let mut table = self.reach()?;
        let Some(entry) = table.executions.get_mut(id) else {
            return Ok(());
        };
        let stopping_since = &mut entry.execution.stopping_since;
        match entry.execution.life {
            Life::Held => {
                stopping_since.get_or_insert_with(Timestamp::now);
                entry.execution.life = Life::NeverStarted;
            }
            Life::Starting | Life::Running { .. } => {
                stopping_since.get_or_insert_with(Timestamp::now);
                entry.end.politely.notify_one();
            }
            Life::Ended { .. } | Life::Unstartable { .. } | Life::NeverStarted => {}
        }
        table.tell(id);
        Ok(())
    }

    /// One execution.
    pub(crate) fn get(&self, id: &str) -> Result<Option<Execution>, Why> {
        let table = self.reach()?;
        Ok(table.executions.get(id).map(|entry| entry.execution.clone()))
    }

    /// What there is of a Job.
    pub(crate) fn of_job(&self, job: &Job) -> Result<Vec<Execution>, Why> {
        let found = self.get(&job.uid().unwrap_or_default())?;
        Ok(found.into_iter().collect())
    }

    /// Takes a Job's line out of the table, with what may still run.
    pub(crate) fn forget(&self, job: &Job) -> Result<(), Why> {
        let mut table = self.reach()?;
        let id = job.uid().unwrap_or_default();
        table.tell(&id);
        if let Some(entry) = table.executions.remove(&id) {
            entry.end.at_once.notify_one();
        }
        Ok(())
    }

    /// The Jobs of which something changed, from now on.
    pub(crate) fn changes(&self) -> impl Stream<Item = ObjectRef<Job>> + Send + 'static {
        let (sender, receiver) = mpsc::unbounded();
        self.lock().watchers.push(sender);
        receiver
    }

    /// Has every call fail, or not any more.
    #[allow(dead_code)] // only its test takes it away
    pub(crate) fn set_unreachable(&self, unreachable: bool) {
        self.lock().unreachable = unreachable;
    }

    fn reach(&self) -> Result<MutexGuard<'_, Table>, Why> {
        let table = self.lock();
        if table.unreachable {
            return Err(Why::new("BackendUnavailable", "the machine does not answer"));
        }
        Ok(table)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, job: &Job, life: Life) {
        let id = job.uid().unwrap_or_default();
        let mut table = self.lock();
        if let Some(entry) = table.executions.get_mut(&id) {
            entry.execution.life = life;
        }
        table.tell(&id);
    }
}

impl Table {
    fn tell(&mut self, id: &str) {
        if let Some(entry) = self.executions.get(id) {
            let job = ObjectRef::from_obj(&entry.job);
            self.watchers
                .retain(|watcher| watcher.unbounded_send(job.clone()).is_ok());
        }
    }
}

/// Runs the command of a Job, and notes what becomes of it.
async fn run(machine: Machine, job: Job, end: Arc<Ends>) {
    let mut child = match spawn(&job) {
        Ok(child) => child,
        Err(error) => {
            let message = format!("the command could not be started: {}", error.kind());
            return machine.turn(&job, Life::Unstartable { message });
        }
    };
    let since = Timestamp::now();
    machine.turn(&job, Life::Running { since });
    let life = match attend(&mut child, &job, &end).await {
        Ok(status) => Life::Ended {
            since,
            at: Timestamp::now(),
            code: code(status),
        },
        Err(error) => Life::Unstartable {
            message: format!("the process was lost: {}", error.kind()),
        },
    };
    machine.turn(&job, life);
}

fn spawn(job: &Job) -> std::io::Result<Child> {
    let words = [&job.spec.command[..], &job.spec.args[..]].concat();
    let (program, arguments) = words.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let variables = job.spec.env.iter();
    Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(variables.filter_map(|v| Some((&v.name, v.value.as_ref()?))))
        .current_dir(job.spec.working_dir.as_deref().unwrap_or("/"))
        .process_group(0)
        .spawn()
}

/// Waits for the end of a process; passes on that it is to end, and insists when its time is over.
async fn attend(child: &mut Child, job: &Job, end: &Ends) -> std::io::Result<ExitStatus> {
    let grace = job.spec.termination_grace_period_seconds.map(i64::from);
    let grace = grace
        .and_then(|s| u64::try_from(s).ok())
        .map_or(GRACE, Duration::from_secs);
    let politely = async {
        end.politely.notified().await;
        grace
    };
    let grace = tokio::select! {
        status = child.wait() => return status,
        grace = politely => grace,
        () = end.at_once.notified() => Duration::ZERO,
    };
    if !grace.is_zero() {
        signal(child, Signal::TERM);
    }
    tokio::select! {
        status = child.wait() => return status,
        () = tokio::time::sleep(grace) => {}
        () = end.at_once.notified() => {}
    }
    signal(child, Signal::KILL);
    child.wait().await
}

fn signal(child: &Child, signal: Signal) {
    // There is an id until its end was waited for: it cannot be anybody else's yet.
    let id = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw);
    if let Some(group) = id {
        // That it has just ended is no failure.
        let _ = kill_process_group(group, signal);
    }
}

/// As a shell tells it.
fn code(status: ExitStatus) -> i32 {
    let killed = status.signal().map(|signal| 128 + signal);
    status.code().or(killed).unwrap_or(255)
}

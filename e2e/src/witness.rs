//! Counts what really ran in sandboxes, whatever anybody says of it: sandboxes have no network and no volume, so a
//! command leaves its trace in its log, which is followed from the container's start, since it goes with the container.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use anyhow::Context;
use ayatori_core::job::Job;
use ayatori_core::names::JOB_UID_LABEL;
use kube::ResourceExt;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::opensandbox::{OpenSandbox, docker_at};

/// The line that a command of a test prints before it does anything else.
pub const MARK: &str = "the command has started";

/// Sees every container of every Job from when it was called.
pub struct Witness {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    /// The UIDs of the Jobs, by the ids of containers that were ever created for them.
    containers: BTreeMap<String, String>,
    /// What each container has printed so far, standard error included.
    lines: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "Action")]
    action: String,
    #[serde(rename = "Actor")]
    actor: Actor,
}

#[derive(Deserialize)]
struct Actor {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "Attributes")]
    attributes: BTreeMap<String, String>,
}

impl Witness {
    /// Begins to watch the dockerd that runs the sandboxes.
    pub fn call(server: &OpenSandbox) -> anyhow::Result<Self> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let since = format!("--since={}", now.as_secs());
        let host = server.docker_host().to_owned();
        let mut command = docker_at(&host);
        command.args(["events", &since, "--format={{json .}}", "--filter=type=container"]);
        command.args(["--filter=event=create", "--filter=event=start"]);
        command.arg(format!("--filter=label={JOB_UID_LABEL}"));
        let events = piped(command).context("watching the events of dockerd")?;
        let seen = Arc::<Mutex<Seen>>::default();
        let task = tokio::spawn(watch(events, seen.clone(), host));
        Ok(Self { seen, task })
    }

    /// A command that leaves its mark and then does `then`, in a shell.
    pub fn command(then: &str) -> Vec<String> {
        ["sh", "-c"]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("echo {MARK}; {then}")])
            .collect()
    }

    /// How many sandboxes were ever created for the Job.
    pub fn sandboxes(&self, job: &Job) -> usize {
        self.seen().containers_of(job).count()
    }

    /// How often the Job's command has started.
    pub fn starts(&self, job: &Job) -> usize {
        self.output(job).iter().filter(|line| *line == MARK).count()
    }

    /// What all sandboxes of the Job have printed so far.
    pub fn output(&self, job: &Job) -> Vec<String> {
        let seen = self.seen();
        let printed = seen.containers_of(job).filter_map(|id| seen.lines.get(id));
        printed.flatten().cloned().collect()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seen {
    fn containers_of(&self, job: &Job) -> impl Iterator<Item = &String> {
        let uid = job.uid().unwrap_or_default();
        let ours = self.containers.iter().filter(move |(_, owner)| **owner == uid);
        ours.map(|(id, _)| id)
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn piped(mut command: Command) -> anyhow::Result<Child> {
    let piped = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(piped.kill_on_drop(true).spawn()?)
}

async fn watch(mut events: Child, seen: Arc<Mutex<Seen>>, host: String) {
    let Some(stdout) = events.stdout.take() else {
        return;
    };
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(Event { action, actor }) = serde_json::from_str(&line) else {
            continue;
        };
        let uid = actor.attributes.get(JOB_UID_LABEL).cloned().unwrap_or_default();
        lock(&seen).containers.insert(actor.id.clone(), uid);
        let mut command = docker_at(&host);
        command.args(["logs", "--follow", &actor.id]);
        if action == "start"
            && let Ok(log) = piped(command)
        {
            // One that is started again shows its whole log once more.
            lock(&seen).lines.remove(&actor.id);
            tokio::spawn(read(log, actor.id, seen.clone()));
        }
    }
}

/// Reads both streams of a container to their end.
async fn read(mut log: Child, id: String, seen: Arc<Mutex<Seen>>) {
    let (stdout, stderr) = (log.stdout.take(), log.stderr.take());
    let note = async |line: String| {
        let mut seen = lock(&seen);
        seen.lines.entry(id.clone()).or_default().push(line);
    };
    let out = async {
        let mut lines = BufReader::new(stdout?).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            note(line).await;
        }
        Some(())
    };
    let err = async {
        let mut lines = BufReader::new(stderr?).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            note(line).await;
        }
        Some(())
    };
    futures::join!(out, err);
}

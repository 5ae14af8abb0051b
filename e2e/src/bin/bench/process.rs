//! A program that is started, measured and ended here.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use procfs::WithCurrentSystemInfo;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::stage::CommandLine;

/// How long a program may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(8);

/// One process. It ends when this is dropped, and when this program dies.
pub(crate) struct Process {
    name: String,
    child: Child,
    pid: i32,
}

/// What a process has used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// Time on any core, since its start.
    pub(crate) cpu: Duration,
    /// What it holds in memory now, in bytes.
    pub(crate) resident: u64,
    /// The most it ever held.
    pub(crate) peak: u64,
}

impl Process {
    /// Starts it; what it says goes to the log.
    pub(crate) fn start(
        name: &str,
        line: &CommandLine,
        environment: &[(&str, &Path)],
        log: &Path,
    ) -> anyhow::Result<Self> {
        let open = OpenOptions::new().create(true).append(true).open(log);
        let log = open.with_context(|| format!("opening {}", log.display()))?;
        // It becomes the program: the pid stays.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&line.program)
            .args(&line.arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let pid = child.id().with_context(|| format!("{name} ended at once"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            pid: pid.try_into()?,
        })
    }

    /// What it has used until now.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        usage_of(self.pid).with_context(|| format!("measuring {}", self.name))
    }

    /// Fails if it has ended by itself.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "{} has ended: see its log", self.name);
        Ok(())
    }

    /// Asks it to end, and after a while makes it.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.child.id().is_some()) {
            kill_process(pid, Signal::TERM).with_context(|| format!("ending {}", self.name))?;
        }
        if tokio::time::timeout(GRACE, self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }
}

fn usage_of(pid: i32) -> anyhow::Result<Usage> {
    let process = procfs::process::Process::new(pid)?;
    let stat = process.stat()?;
    let status = process.status()?;
    let ticks = stat.utime + stat.stime;
    let peak = status.vmhwm.unwrap_or_default() * 1024;
    Ok(Usage {
        cpu: Duration::from_millis(ticks * 1000 / procfs::ticks_per_second()),
        resident: stat.rss_bytes().get(),
        peak,
    })
}

//! A long-running process of the cluster: started apart from us, recorded, and signalled only while it is
//! certainly still the same one.

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A process by what no other process can share: pid, start time and boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Clock ticks since boot.
    started: u64,
    boot: String,
}

impl Process {
    /// The process that has this pid now, unless it is dead.
    pub(crate) fn of(pid: i32) -> Option<Process> {
        let stat = procfs::process::Process::new(pid).ok()?.stat().ok()?;
        // A zombie holds no resource and takes no signal: it is gone but for its parent's look.
        if matches!(stat.state, 'Z' | 'X') {
            return None;
        }
        let boot = procfs::sys::kernel::random::boot_id().ok()?;
        Some(Process {
            pid,
            started: stat.starttime,
            boot,
        })
    }

    /// Starts a program in a session of its own, so that neither a terminal's signals nor the end of
    /// this command reach it. Its output is appended to `log`.
    pub(crate) fn spawn(
        program: &Path,
        args: &[String],
        environment: &[(&str, String)],
        log: &Path,
    ) -> Result<Process> {
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let child = Command::new("setsid") // execs in place: the pid stays
            .arg(program)
            .args(args)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = i32::try_from(child.id()).context("a pid out of range")?;
        Process::of(pid).with_context(|| format!("{} ended at once", program.display()))
    }

    pub(crate) fn is_alive(&self) -> bool {
        Process::of(self.pid).as_ref() == Some(self)
    }

    /// Sends a signal, if the process still lives.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        match self.handle() {
            Some(handle) => pidfd_send_signal(handle, signal)
                .or_else(|error| {
                    if error == rustix::io::Errno::SRCH {
                        Ok(())
                    } else {
                        Err(error)
                    }
                })
                .with_context(|| format!("cannot signal process {}", self.pid)),
            None => Ok(()),
        }
    }

    /// Asks it to end, and after `grace` makes it.
    pub(crate) fn stop(&self, grace: Duration) -> Result<()> {
        self.signal(Signal::TERM)?;
        if !self.ends_within(grace)? {
            self.kill()?;
        }
        Ok(())
    }

    pub(crate) fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)?;
        if !self.ends_within(Duration::from_secs(10))? {
            anyhow::bail!("process {} does not end, not even by SIGKILL", self.pid);
        }
        Ok(())
    }

    /// Waits for the end, without being its parent.
    fn ends_within(&self, limit: Duration) -> Result<bool> {
        let Some(handle) = self.handle() else {
            return Ok(true);
        };
        let end = Instant::now() + limit;
        loop {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now()))?;
            match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
                Ok(ended) => return Ok(ended > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for a process"),
            }
        }
    }

    /// A handle of exactly this process. Taken first and compared afterwards: once the comparison holds,
    /// the handle can never mean another.
    fn handle(&self) -> Option<OwnedFd> {
        let handle = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        self.is_alive().then_some(handle)
    }
}

/// The pid, and the program while it is known.
impl std::fmt::Display for Process {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stat = procfs::process::Process::new(self.pid).and_then(|process| process.stat());
        match stat {
            Ok(stat) if self.is_alive() => write!(to, "{} ({})", self.pid, stat.comm),
            _ => write!(to, "{}", self.pid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(folder: &Path) -> Process {
        Process::spawn(Path::new("/bin/sleep"), &["600".into()], &[], &folder.join("log")).unwrap()
    }

    #[test]
    fn a_started_process_is_recognised_until_it_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let process = sleeper(folder.path());
        assert!(process.is_alive());
        process.stop(Duration::from_secs(10)).unwrap();
        assert!(!process.is_alive());
    }

    #[test]
    fn another_process_with_a_recycled_pid_is_not_signalled() {
        let folder = tempfile::tempdir().unwrap();
        let process = sleeper(folder.path());
        let recycled = Process {
            started: process.started - 1,
            ..process.clone()
        };
        assert!(!recycled.is_alive());
        recycled.kill().unwrap();
        assert!(process.is_alive());
        process.kill().unwrap();
    }
}

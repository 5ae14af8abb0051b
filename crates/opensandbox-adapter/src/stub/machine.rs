//! A sandbox in which something really runs: its entrypoint, and what its daemon (execd) is asked to run, with the
//! shells of this machine. A directory of its own stands for what the sandbox's disk keeps: /tmp, /var/tmp and the
//! adapter's files in /; else it is this machine.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Child;

/// A place with processes in it. They end when it is dropped.
pub(super) struct Machine {
    directory: TempDir,
    /// The leaders of the process groups in it.
    groups: Mutex<Vec<Pid>>,
    /// What its life is.
    entrypoint: Mutex<Option<Child>>,
}

impl Machine {
    /// Boots it with this entrypoint.
    pub(super) fn boot(entrypoint: &[String]) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let machine = Self {
            directory,
            groups: Mutex::default(),
            entrypoint: Mutex::default(),
        };
        let [program, arguments @ ..] = entrypoint else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut command = Command::new(program);
        command.args(arguments.iter().map(|argument| machine.inside(argument)));
        let child = machine.spawn(command, "log")?;
        *locked(&machine.entrypoint) = Some(child);
        Ok(machine)
    }

    /// With which code its entrypoint has ended, as a container shows it.
    pub(super) fn exit_code(&self) -> Option<i32> {
        let status = locked(&self.entrypoint).as_mut()?.try_wait().ok()??;
        status
            .code()
            .or_else(|| status.signal().map(|signal| signal.saturating_add(128)))
    }

    /// Runs something as the daemon does: with a shell, in a group of its own, and not waited for.
    pub(super) fn run(&self, request: &Value) -> io::Result<()> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let envs = request
            .get("envs")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let envs: BTreeMap<String, String> = envs
            .map(|(name, value)| (name.clone(), text(Some(value))))
            .collect();
        let mut command = Command::new("bash");
        command
            .arg("-c")
            .arg(self.inside(&text(request.get("command"))))
            .envs(envs);
        let mut child = self.spawn(command, "output")?;
        tokio::spawn(async move { child.wait().await });
        Ok(())
    }

    /// What a file of it holds.
    pub(super) fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.inside(path))
    }

    /// Replaces what a file of it holds, or removes the file.
    pub(super) fn write(&self, path: &str, text: Option<&str>) -> io::Result<()> {
        let path = self.inside(path);
        match text {
            Some(text) => fs::write(path, text),
            None if Path::new(&path).is_dir() => fs::remove_dir_all(path),
            None => fs::remove_file(path),
        }
    }

    /// Kills everything in it.
    pub(super) fn kill(&self) {
        for group in locked(&self.groups).drain(..) {
            // It may have ended by itself.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// What its container has written.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// What stands for the paths in a text.
    fn inside(&self, text: &str) -> String {
        text.replace("/var/tmp/", "/tmp/var-tmp-")
            .replace(" /.ayatori-", " /tmp/root-")
            .replace("/tmp", &self.directory.path().to_string_lossy())
    }

    fn spawn(&self, mut command: Command, output: &str) -> io::Result<Child> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(self.directory.path().join(output))?;
        command
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        let child = tokio::process::Command::from(command).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        locked(&self.groups).extend(group);
        Ok(child)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

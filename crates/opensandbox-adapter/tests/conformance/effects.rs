//! What commands do, by their own doing: each writes a line into a file when it starts, and holds a lock on that file
//! for as long as it runs.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read};

use anyhow::Context;
use ayatori_controller::testing::conformance::{Effects, Script};
use tempfile::TempDir;

/// A folder with a file for each name.
pub(crate) struct Traces(TempDir);

impl Traces {
    pub(crate) fn new() -> io::Result<Self> {
        tempfile::tempdir().map(Self)
    }

    /// A command that does what the script says, and leaves its traces under this name.
    pub(crate) fn command(&self, name: &str, script: Script) -> Vec<String> {
        // Without the lock, which is the command's own, or it would last for as long as its last child.
        const FOR_EVER: &str = "while :; do sleep 0.05 9>&-; done";
        let then = match script {
            Script::Exits(code) => format!("exit {code}"),
            Script::RunsAndExits(code) => format!("sleep 0.5 9>&-; exit {code}"),
            Script::RunsUntilStopped => format!("trap 'exit 143' TERM; {FOR_EVER}"),
            Script::TrapsTheStop => format!("trap 'exit 0' TERM; {FOR_EVER}"),
            Script::IgnoresTheStop => format!("trap '' TERM; {FOR_EVER}"),
            Script::IsMissing => return vec!["/no-such-command".to_owned()],
        };
        let file = self.0.path().join(name);
        // Sandboxes have another place under this name, if they are asked for it; only the shell sees through this.
        let file = file.to_string_lossy().replace("/tmp", "/'tmp'");
        let line = format!("exec 9>>{file}; echo started >&9; flock --shared 9; {then}");
        vec!["/bin/sh".to_owned(), "-c".to_owned(), line]
    }

    /// What the command of that name did so far.
    pub(crate) fn effects(&self, name: &str) -> anyhow::Result<Effects> {
        let mut file = match File::open(self.0.path().join(name)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Effects::default()),
            file => file.context("opening what a command left behind")?,
        };
        let running = match file.try_lock() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(error)) => return Err(error).context("trying the lock of a command"),
        };
        let mut lines = String::new();
        file.read_to_string(&mut lines)?;
        Ok(Effects {
            starts: lines.lines().count(),
            running,
        })
    }
}

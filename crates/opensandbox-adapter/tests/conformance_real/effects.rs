//! What commands do, by what their containers show: each prints a line when it starts. Of a container that is gone, as
//! much is known as was read of its log before, and every log is followed from the beginning.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use ayatori_controller::testing::conformance::{Effects, Script};
use ayatori_core::job::Job;
use ayatori_core::names::{JOB_NAME_LABEL, JOB_UID_LABEL};
use ayatori_e2e::opensandbox::OpenSandbox;
use ayatori_e2e::witness::Witness;
use kube::ResourceExt;

const MARK: &str = "the command of a conformance test has started";

/// Looks at containers, and remembers.
pub(crate) struct Containers {
    witness: Witness,
    /// The most starts that were ever seen of a Job, by its UID.
    starts: Mutex<HashMap<String, usize>>,
}

impl Containers {
    pub(crate) fn watch(server: &OpenSandbox) -> anyhow::Result<Self> {
        Ok(Self {
            witness: Witness::call(server)?,
            starts: Mutex::default(),
        })
    }

    /// A command that says that it starts, and does what the script says.
    pub(crate) fn command(script: Script) -> Vec<String> {
        const FOR_EVER: &str = "while :; do sleep 0.1; done";
        let then = match script {
            Script::Exits(code) => format!("exit {code}"),
            Script::RunsAndExits(code) => format!("sleep 3; exit {code}"),
            Script::RunsUntilStopped => format!("trap 'exit 143' TERM; {FOR_EVER}"),
            Script::TrapsTheStop => format!("trap 'exit 0' TERM; {FOR_EVER}"),
            Script::IgnoresTheStop => format!("trap '' TERM; {FOR_EVER}"),
            Script::IsMissing => return vec!["/no-such-command".to_owned()],
        };
        let line = format!("echo {MARK}; {then}");
        vec!["sh".to_owned(), "-c".to_owned(), line]
    }

    /// What the command of a Job did so far.
    pub(crate) async fn effects(&self, server: &OpenSandbox, job: &Job) -> anyhow::Result<Effects> {
        let uid = job.uid().unwrap_or_default();
        let of_uid = format!("label={JOB_UID_LABEL}={uid}");
        let of_name = format!("label={JOB_NAME_LABEL}={}", job.name_any());
        let filters = ["--filter", &of_uid, "--filter", &of_name];
        let list = ["ps", "--all", "--no-trunc", "--format={{.ID}} {{.State}}"];
        let listed = server.docker(&[list, filters].concat()).await?;
        let (mut running, mut starts) = (false, 0);
        for (container, state) in listed.lines().filter_map(|line| line.split_once(' ')) {
            running |= matches!(state, "running" | "paused");
            // It may have gone in the meantime.
            let log = server.docker(&["logs", container]).await.unwrap_or_default();
            starts += marks(log.lines());
        }
        let output = self.witness.output(job);
        let followed = marks(output.iter().map(String::as_str));
        let mut known = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.entry(uid).or_default();
        *known = starts.max(followed).max(*known);
        Ok(Effects {
            starts: *known,
            running,
        })
    }
}

fn marks<'a>(lines: impl Iterator<Item = &'a str>) -> usize {
    lines.filter(|line| *line == MARK).count()
}

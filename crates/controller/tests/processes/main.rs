//! The example of `docs/how-to/write-an-adapter.md` keeps every promise, and the text shows its code as it is.

#[path = "../../examples/processes/backend.rs"]
mod backend;
#[path = "../../examples/processes/machine.rs"]
mod machine;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ayatori_controller::testing::conformance::{
    self, Effects, Fault, Order, Place, Script, Subject, Trouble,
};
use ayatori_core::conditions::whole_seconds;
use ayatori_core::job::{Job, JobSpec};
use backend::{ProcessBackend, ProcessParameters};
use jiff::Timestamp;
use kube::ResourceExt;
use machine::Machine;

/// A machine, and a folder in which commands leave traces.
struct ProcessSubject {
    machine: Machine,
    folder: tempfile::TempDir,
    jobs: AtomicUsize,
}

#[tokio::test]
async fn processes_keep_every_promise_of_a_backend() -> anyhow::Result<()> {
    let subject = ProcessSubject {
        machine: Machine::default(),
        folder: tempfile::tempdir()?,
        jobs: AtomicUsize::new(0),
    };
    conformance::run(&subject).await?.verdict()
}

impl ProcessSubject {
    /// Where a Job's command writes the id of its process when it starts.
    fn trace(&self, job: &str) -> PathBuf {
        self.folder.path().join(job)
    }

    fn command(&self, uid: &str, script: Script) -> Vec<String> {
        let for_ever = "while :; do sleep 0.05; done";
        let body = match script {
            Script::Exits(code) => format!("exit {code}"),
            Script::RunsAndExits(code) => format!("sleep 0.3; exit {code}"),
            Script::RunsUntilStopped => for_ever.to_owned(),
            Script::TrapsTheStop => format!("trap 'exit 0' TERM; {for_ever}"),
            Script::IgnoresTheStop => format!("trap '' TERM; {for_ever}"),
            Script::IsMissing => return vec!["/no-such-command".to_owned()],
        };
        let line = format!("echo $$ >> {}; {body}", self.trace(uid).display());
        vec!["/bin/sh".to_owned(), "-c".to_owned(), line]
    }
}

impl Subject for ProcessSubject {
    type Backend = ProcessBackend;

    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn replica(&self) -> ProcessBackend {
        ProcessBackend::new(self.machine.clone())
    }

    fn parameters(&self) -> ProcessParameters {
        let mut parameters = ProcessParameters::new("processes", Default::default());
        parameters.metadata.uid = Some("uid-of-parameters".to_owned());
        parameters
    }

    async fn create(&self, order: Order) -> anyhow::Result<Job> {
        let uid = format!("{}-{}", order.name, self.jobs.fetch_add(1, Ordering::SeqCst));
        let spec = JobSpec {
            image: "none".to_owned(),
            command: self.command(&uid, order.script),
            env: order.env,
            termination_grace_period_seconds: Some(1),
            ..JobSpec::default()
        };
        let mut job = Job::new(&order.name, spec);
        job.metadata.creation_timestamp = Some(whole_seconds(Timestamp::now()));
        job.metadata.uid = Some(uid);
        job.metadata.namespace = Some(match order.place {
            Place::Here => "here".to_owned(),
            Place::Elsewhere => "elsewhere".to_owned(),
        });
        Ok(job)
    }

    async fn effects(&self, job: &Job) -> anyhow::Result<Effects> {
        let trace = std::fs::read_to_string(self.trace(&job.uid().unwrap_or_default()));
        let trace = trace.unwrap_or_default();
        let runs = |id: &str| PathBuf::from("/proc").join(id).exists();
        Ok(Effects {
            starts: trace.lines().count(),
            running: trace.lines().any(runs),
        })
    }

    async fn cause(&self, fault: Fault<'_>) -> Result<(), Trouble> {
        match fault {
            Fault::Unreachable => self.machine.set_unreachable(true),
            Fault::Deleted(job) => self
                .machine
                .forget(job)
                .map_err(|why| anyhow::anyhow!("{why:?}"))?,
            Fault::AnswersAreLost | Fault::CreatesAreRefused => {
                return Err(Trouble::Impossible(
                    "the machine is asked in memory and takes everything",
                ));
            }
            Fault::Stranger(_) => return Err(Trouble::Impossible("nobody else writes to the table")),
        }
        Ok(())
    }

    async fn cure(&self) -> anyhow::Result<()> {
        self.machine.set_unreachable(false);
        Ok(())
    }
}

#[test]
fn the_how_to_shows_the_code_of_the_example() {
    const TEXT: &str = include_str!("../../../../docs/how-to/write-an-adapter.md");
    const CODE: [&str; 4] = [
        include_str!("../../examples/processes/main.rs"),
        include_str!("../../examples/processes/backend.rs"),
        include_str!("../../examples/processes/machine.rs"),
        include_str!("main.rs"),
    ];
    let lines = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let code = CODE.map(lines);
    let blocks: Vec<_> = TEXT
        .split("```rust\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(!blocks.is_empty(), "the text shows no code at all");
    for block in blocks {
        let shown = lines(block.trim_end());
        assert!(
            code.iter().any(|code| code.contains(&shown)),
            "the example has no such code:\n{block}"
        );
    }
}

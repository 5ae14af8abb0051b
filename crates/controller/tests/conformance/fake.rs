//! The fake backend, as a subject of the suite.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ayatori_controller::backend::Backend;
use ayatori_controller::testing::conformance::{Effects, Fault, Order, Place, Script, Subject, Trouble};
use ayatori_controller::testing::fake::FakeBackend;
use ayatori_controller::testing::server::{Create, Faults, Server};
use ayatori_core::conditions::whole_seconds;
use ayatori_core::execution::{Why, Windows};
use ayatori_core::job::{Job, JobSpec};
use ayatori_core::parameters::{
    CommandMode, OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec,
};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

/// A server, and what makes replicas of a backend on it.
pub(crate) struct FakeSubject<F> {
    server: Server,
    mode: CommandMode,
    make: F,
    faults: bool,
    jobs: AtomicUsize,
}

impl<F> FakeSubject<F> {
    pub(crate) fn new<B: Backend>(mode: CommandMode, make: F) -> Self
    where
        F: Fn(FakeBackend, Server) -> B,
    {
        Self {
            server: Server::new(),
            mode,
            make,
            faults: true,
            jobs: AtomicUsize::new(1),
        }
    }

    /// The same without the means to cause any fault.
    pub(crate) fn without_faults(self) -> Self {
        Self {
            faults: false,
            ..self
        }
    }
}

impl<F, B> Subject for FakeSubject<F>
where
    F: Fn(FakeBackend, Server) -> B,
    B: Backend<Parameters = OpenSandboxExecutionParameters>,
{
    type Backend = B;

    fn patience(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn replica(&self) -> B {
        let windows = Windows {
            send: SignedDuration::from_secs(10),
            fence: SignedDuration::from_mins(10),
        };
        let fake = FakeBackend::new("example.com/fake", windows, self.server.clone());
        (self.make)(fake, self.server.clone())
    }

    fn parameters(&self) -> OpenSandboxExecutionParameters {
        let spec = OpenSandboxExecutionParametersSpec {
            command_mode: Some(self.mode),
            ..OpenSandboxExecutionParametersSpec::default()
        };
        let mut parameters = OpenSandboxExecutionParameters::new("fake", spec);
        parameters.metadata.uid = Some("uid-of-parameters".to_owned());
        parameters
    }

    async fn create(&self, order: Order) -> anyhow::Result<Job> {
        let args = match order.script {
            Script::Exits(code) => format!("exit={code}"),
            Script::RunsAndExits(code) => format!("runs=100 exit={code}"),
            Script::RunsUntilStopped => "runs=forever".to_owned(),
            Script::TrapsTheStop => "runs=forever traps".to_owned(),
            Script::IgnoresTheStop => "runs=forever ignores".to_owned(),
            Script::IsMissing => "missing".to_owned(),
        };
        let spec = JobSpec {
            image: "fake".to_owned(),
            args: args.split(' ').map(str::to_owned).collect(),
            env: order.env,
            ..JobSpec::default()
        };
        let mut job = Job::new(&order.name, spec);
        let number = self.jobs.fetch_add(1, Ordering::SeqCst);
        job.metadata.uid = Some(format!("uid-of-{}-{number}", order.name));
        job.metadata.creation_timestamp = Some(whole_seconds(Timestamp::now()));
        job.metadata.namespace = Some(match order.place {
            Place::Here => "here".to_owned(),
            Place::Elsewhere => "elsewhere".to_owned(),
        });
        Ok(job)
    }

    async fn effects(&self, job: &Job) -> anyhow::Result<Effects> {
        let executions = self.server.executions();
        let running = executions.iter().any(|e| e.is_of(job) && e.is_running());
        let starts = self.server.counts(&job.uid().unwrap_or_default()).starts;
        Ok(Effects { starts, running })
    }

    async fn cause(&self, fault: Fault<'_>) -> Result<(), Trouble> {
        if !self.faults {
            return Err(Trouble::Impossible("this subject is told not to"));
        }
        let refusal = || Create::Refuses(Why::new("BackendRejected", "the server has no room"));
        match fault {
            Fault::Unreachable => self.server.misbehave(|faults| faults.unreachable = true),
            Fault::AnswersAreLost => self
                .server
                .misbehave(|faults| faults.create = Create::LosesAnswers),
            Fault::CreatesAreRefused => self.server.misbehave(|faults| faults.create = refusal()),
            Fault::Deleted(job) => self.server.lose(&job.uid().unwrap_or_default()),
            Fault::Stranger(job) => self.server.put_stranger(job),
        }
        Ok(())
    }

    async fn cure(&self) -> anyhow::Result<()> {
        self.server.misbehave(|faults| *faults = Faults::default());
        Ok(())
    }

    async fn stranger_is_unharmed(&self, job: &Job) -> anyhow::Result<bool> {
        let uid = job.uid().unwrap_or_default();
        let executions = self.server.executions();
        Ok(executions
            .iter()
            .any(|e| e.job_uid == uid && !e.is_of(job) && e.stopping_since.is_none()))
    }
}

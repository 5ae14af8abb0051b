//! A class, a backend in memory and the replicas of one test.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, resume_unwind};

use anyhow::{Context, ensure};
use ayatori_controller::testing::death::Death;
use ayatori_controller::testing::fake::FakeBackend;
use ayatori_controller::testing::replica::Replica;
use ayatori_controller::testing::server::{Counts, Faults, Server};
use ayatori_core::execution::Windows;
use ayatori_core::job::Job;
use ayatori_core::parameters::{CommandMode, OpenSandboxExecutionParametersSpec, SecretKeyReference};
use ayatori_e2e::api;
pub(crate) use ayatori_e2e::api::PATIENCE;
use ayatori_e2e::ground::Ground;
pub(crate) use ayatori_e2e::ground::{condition, holds, status, when, when_gone};
use futures::FutureExt;
use jiff::SignedDuration;
use kube::ResourceExt;

/// The identity of a test's replica, unless it has several.
pub(crate) const ONE: &str = "one";
/// The times of the single-shot protocol: long enough for another replica to take over while a create request
/// could still be sent, so that a second request would be seen.
const WINDOWS: Windows = Windows {
    send: SignedDuration::from_secs(4),
    fence: SignedDuration::from_secs(6),
};

/// How a test's class starts commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Hold,
    SingleShot,
}

/// One test's part of the world.
pub(crate) struct Trial {
    ground: Ground,
    pub(crate) mode: Mode,
    pub(crate) server: Server,
}

impl Deref for Trial {
    type Target = Ground;

    fn deref(&self) -> &Ground {
        &self.ground
    }
}

/// Runs a test for both protocols, each in a world of its own.
pub(crate) async fn with_both(test: impl AsyncFn(&Trial) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (hold, single_shot) = futures::join!(with(Mode::Hold, &test), with(Mode::SingleShot, &test));
    hold.and(single_shot)
}

/// Runs a test and cleans up however it ends. It fails if anything is left behind.
pub(crate) async fn with(mode: Mode, test: impl AsyncFn(&Trial) -> anyhow::Result<()>) -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        if std::env::var_os("ADAPTER_LOG").is_some() {
            let _ = ayatori_controller::telemetry::init_logs(
                ayatori_controller::telemetry::LogFormat::Text,
                &std::env::var("ADAPTER_LOG").unwrap_or_default(),
            );
        }
        let trial = Trial {
            ground: Ground::of(run, "fake"),
            mode,
            server: Server::new(),
        };
        let outcome = AssertUnwindSafe(trial.run(&test)).catch_unwind().await;
        let cleared = trial.clear().await;
        if cleared.is_err() {
            trial.force().await?;
        }
        match outcome {
            Ok(outcome) => outcome.and(cleared).with_context(|| format!("protocol {mode:?}")),
            Err(panic) => resume_unwind(panic),
        }
    })
    .await
}

impl Trial {
    async fn run(&self, test: &impl AsyncFn(&Trial) -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.create_class(&self.class).await?;
        let outcome = test(self).await;
        if outcome.is_err() {
            self.show().await;
        }
        outcome
    }

    /// What a person needs to see of a failed test.
    async fn show(&self) {
        eprintln!("{:?}: server: {:#?}", self.mode, self.server.executions());
        self.ground.show().await;
    }

    /// A class and its parameters, of the same name.
    pub(crate) async fn create_class(&self, name: &str) -> anyhow::Result<()> {
        let parameters = OpenSandboxExecutionParametersSpec {
            endpoint: "https://sandbox.example".to_owned(),
            api_key_secret_ref: SecretKeyReference {
                namespace: self.namespace.clone(),
                name: "key".to_owned(),
                key: "key".to_owned(),
            },
            command_mode: (self.mode == Mode::Hold).then_some(CommandMode::Execd),
            ..OpenSandboxExecutionParametersSpec::default()
        };
        self.ground.create_class(name, parameters).await
    }

    pub(crate) fn backend(&self) -> FakeBackend {
        FakeBackend::new(&self.controller, WINDOWS, self.server.clone())
    }

    /// Starts the adapter, and returns when its class is ready.
    pub(crate) async fn start(&self) -> anyhow::Result<Replica> {
        let replica = self.start_unready().await?;
        self.when_ready().await?;
        Ok(replica)
    }

    /// Starts the adapter.
    pub(crate) async fn start_unready(&self) -> anyhow::Result<Replica> {
        Replica::start(self.backend(), &self.namespace, ONE).await
    }

    /// Starts an adapter that dies at a chosen step.
    pub(crate) async fn start_mortal(&self, death: Death) -> anyhow::Result<Replica> {
        Replica::start_mortal(self.backend(), &self.namespace, ONE, death).await
    }

    pub(crate) fn counts(&self, job: &Job) -> Counts {
        self.server.counts(&job.uid().unwrap_or_default())
    }

    /// Deletes everything through a healthy adapter and a healthy server; fails if anything does not go.
    async fn clear(&self) -> anyhow::Result<()> {
        self.server.misbehave(|faults| *faults = Faults::default());
        let _replica = self.start_unready().await?;
        self.ground.clear().await?;
        let left = self.server.executions();
        ensure!(
            left.is_empty(),
            "the Jobs are gone, and their executions are not: {left:#?}"
        );
        Ok(())
    }
}

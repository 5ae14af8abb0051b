//! The backend of OpenSandbox sandboxes keeps every promise, however commands are started, on a server of this process
//! whose sandboxes really run what they are told to.

mod api;
mod effects;
mod subject;

use ayatori_controller::testing::conformance::{self, Promise};
use ayatori_core::parameters::CommandMode;
use subject::{Deletion, StubSubject};

#[tokio::test]
async fn sandboxes_started_by_creating_them_keep_every_promise_of_a_backend() -> anyhow::Result<()> {
    let subject = StubSubject::new(CommandMode::Entrypoint, Deletion::Removed).await?;
    conformance::run(&subject).await?.verdict()
}

#[tokio::test]
async fn sandboxes_held_before_their_command_keep_every_promise_of_a_backend() -> anyhow::Result<()> {
    let subject = StubSubject::new(CommandMode::Execd, Deletion::Removed).await?;
    conformance::run(&subject).await?.verdict()
}

/// The server then says that it "exited successfully".
#[tokio::test]
async fn a_sandbox_that_somebody_stopped_is_no_success() -> anyhow::Result<()> {
    for mode in [CommandMode::Entrypoint, CommandMode::Execd] {
        let subject = StubSubject::new(mode, Deletion::Stopped).await?;
        let report = conformance::try_these(&subject, &[Promise::WhatVanishedIsNoSuccess]).await?;
        report.verdict()?;
    }
    Ok(())
}

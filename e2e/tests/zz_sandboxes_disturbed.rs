//! What sandboxes stand on is restarted, and its key is changed, while Jobs run: their results are right, or honestly
//! not known, and never wrong. In a file of its own, because it disturbs every other test.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use ayatori_core::conditions::{self, RESULT_UNKNOWN, SCHEDULED};
use ayatori_core::job::{Job, Outcome};
use ayatori_core::parameters::OpenSandboxExecutionParametersSpec;
use ayatori_e2e::replica::xtask;
use ayatori_e2e::sandboxes::{Sandboxes, with_sandboxes};
use ayatori_e2e::world::{expect, result};

/// Only one thing is disturbed at a time.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_restarted_or_killed_loses_no_result_and_nothing_starts_twice() -> anyhow::Result<()>
{
    let _turn = TURN.lock().await;
    with_sandboxes(async |sandboxes: Sandboxes| {
        for (round, how) in [
            ("stopped", &["cluster", "stop", "opensandbox"][..]),
            ("killed", &["cluster", "stop", "opensandbox", "--kill"]),
        ] {
            server_away(&sandboxes, round, how).await.context(round)?;
        }
        Ok(())
    })
    .await
}

async fn server_away(sandboxes: &Sandboxes, round: &str, how: &[&str]) -> anyhow::Result<()> {
    let world = &sandboxes.world;
    let name = |what: &str| format!("{what}-{round}");
    // It ends while nobody can say so.
    world
        .create(&sandboxes.job(&name("ends"), "sleep 4; exit 4"))
        .await?;
    world
        .create(&sandboxes.job(&name("runs"), "sleep 12; exit 3"))
        .await?;
    let ends = world.when_started(&name("ends")).await?;
    world.when_started(&name("runs")).await?;
    let container = container_of(sandboxes, &ends).await?;
    xtask(how).await?;
    let away = async {
        // Refused by nobody: it never connects, and is asked for again.
        world.create(&sandboxes.job(&name("comes"), "exit 5")).await?;
        sandboxes.server.docker(&["wait", &container]).await?;
        world
            .when(&name("comes"), "it waits", |job: Option<&Job>| {
                job.and_then(|job| job.status.as_ref())
                    .is_some_and(|status| conditions::find(&status.conditions, SCHEDULED).is_some())
            })
            .await
    };
    let away = away.await;
    xtask(&["cluster", "start", "opensandbox"]).await?;
    away?;
    for (what, code) in [("ends", 4), ("runs", 3), ("comes", 5)] {
        let job = world.when_finished(&name(what)).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(code))?;
        ensure!(
            sandboxes.witness.sandboxes(&job) == 1,
            "{what}: more than one sandbox"
        );
        ensure!(sandboxes.witness.starts(&job) == 1, "{what}: not one start");
    }
    Ok(())
}

async fn container_of(sandboxes: &Sandboxes, job: &Job) -> anyhow::Result<String> {
    let sandbox = sandboxes.of(job).await?.pop().context("no sandbox")?;
    sandboxes.server.container(&sandbox.id).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_changed_while_jobs_run_is_read_again_and_their_results_arrive() -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        let old = sandboxes.server.api_key.clone();
        let secret = format!("opensandbox-{}", world.namespace);
        let class = format!("{}-own-key", sandboxes.class);
        let parameters = OpenSandboxExecutionParametersSpec {
            api_key_secret_ref: sandboxes.store_api_key(&secret, &old).await?,
            ..sandboxes.parameters()
        };
        sandboxes.create_class(&class, parameters, |_| {}).await?;
        let names = ["first", "second", "third"];
        for name in names {
            let mut job = sandboxes.job(name, "sleep 10; exit 3");
            job.spec.job_class_name = Some(class.clone());
            world.create(&job).await?;
        }
        for name in names {
            world.when_started(name).await?;
        }
        let new = old.chars().rev().collect::<String>();
        let outcome = async {
            change_key(&old, &new).await?;
            for name in names {
                let unknown = |job: Option<&Job>| {
                    job.and_then(|job| job.status.as_ref())
                        .is_some_and(|status| conditions::is_true(&status.conditions, RESULT_UNKNOWN))
                };
                world.when(name, "its result is unknown", unknown).await?;
            }
            sandboxes.store_api_key(&secret, &new).await?;
            for name in names {
                let job = world.when_finished(name).await?;
                expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
                ensure!(
                    sandboxes.witness.sandboxes(&job) == 1,
                    "{name}: more than one sandbox"
                );
                world.delete(name).await?;
                world.when_gone(name).await?;
            }
            anyhow::Ok(())
        };
        let outcome = outcome.await;
        change_key(&new, &old).await?;
        sandboxes.forget_api_key(&secret).await?;
        outcome
    })
    .await
}

/// Changes the key on the server, which reads it when it starts.
async fn change_key(from: &str, to: &str) -> anyhow::Result<()> {
    let state = std::env::var_os("AYATORI_CLUSTER").context("AYATORI_CLUSTER is not set")?;
    let settings = PathBuf::from(state).join("conf/opensandbox.toml");
    let text = tokio::fs::read_to_string(&settings)
        .await
        .with_context(|| format!("reading {}", settings.display()))?;
    ensure!(text.contains(from), "the server's settings do not hold the key");
    tokio::fs::write(&settings, text.replace(from, to)).await?;
    xtask(&["cluster", "stop", "opensandbox"]).await?;
    xtask(&["cluster", "start", "opensandbox"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_dockerd_ends_what_runs_and_nothing_of_it_is_called_a_success() -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        // What would exit 0 if it were asked to stop is the one to look at.
        for (name, then) in [
            ("sleeps", "sleep 600"),
            ("obeys", "trap 'exit 0' TERM; sleep 600 & wait"),
            ("deaf", "trap '' TERM; sleep 600"),
        ] {
            world.create(&sandboxes.job(name, then)).await?;
        }
        world.create(&sandboxes.job("ended", "exit 0")).await?;
        for name in ["sleeps", "obeys", "deaf"] {
            world.when_started(name).await?;
        }
        let ended = world.when_finished("ended").await?;
        expect(&ended, Outcome::Succeeded, "Completed", Some(0))?;

        xtask(&["cluster", "stop", "dockerd"]).await?;
        xtask(&["cluster", "start", "dockerd"]).await?;
        for name in ["sleeps", "obeys", "deaf"] {
            let job = world.when_finished(name).await?;
            let result = result(&job)?;
            println!(
                "{name}: {:?}/{} {:?}",
                result.outcome, result.reason, result.exit_code
            );
            ensure!(result.outcome == Outcome::Failed, "{name}: {result:?}");
            ensure!(
                ["SandboxStopped", "ExecutionLost", "NonZeroExit"].contains(&result.reason.as_str()),
                "{name}: {result:?}"
            );
            ensure!(sandboxes.of(&job).await?.len() <= 1, "{name}: run again");
        }
        world.create(&sandboxes.job("afterwards", "true")).await?;
        let job = world.when_finished("afterwards").await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_frozen_when_dockerd_dies_ends_all_the_same() -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        world.create(&sandboxes.job("frozen", "sleep 600")).await?;
        let job = world.when_started("frozen").await?;
        let container = container_of(&sandboxes, &job).await?;
        sandboxes.server.docker(&["pause", &container]).await?;
        xtask(&["cluster", "stop", "dockerd", "--kill"]).await?;
        xtask(&["cluster", "start", "dockerd"]).await?;
        let job = world.when_finished("frozen").await?;
        expect(&job, Outcome::Failed, "ExecutionLost", None)?;
        ensure!(sandboxes.witness.starts(&job) == 1, "not one start");
        world.create(&sandboxes.job("afterwards", "true")).await?;
        let job = world.when_finished("afterwards").await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))
    })
    .await
}

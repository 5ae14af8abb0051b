//! The API server is away for a while: what runs goes on, what ends meanwhile is told afterwards, and nothing
//! starts twice. Alone in its file, because it disturbs every other test.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ayatori_core::job::{Job, Outcome};
use ayatori_e2e::api::when_no_namespace_goes;
use ayatori_e2e::replica::xtask;
use ayatori_e2e::world::{PATIENCE, World, expect, is_finished, with_world};
use kube::runtime::wait::await_condition;

/// Longer than any Lease lives. The commands that end meanwhile say when it is over.
const OUTAGE: &str = "sleep 30";

/// The adapters were started again, at growing intervals, while they could not reach the API server; and before
/// they can reach it, kube-proxy has to.
const RECOVERY: Duration = Duration::from_secs(150);

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_api_server_loses_no_result_and_starts_nothing_twice() -> anyhow::Result<()> {
    with_world(async |world: World| {
        when_no_namespace_goes(&world.client).await?;
        let mut expires = world.job("expires", "true");
        expires.spec.ttl_seconds_after_finished = Some(20);
        world.create(&expires).await?;
        world.when_finished("expires").await?;
        let runs: Vec<_> = (0..5).map(|i| format!("runs-{i}")).collect();
        let ends: Vec<_> = (0..2).map(|i| format!("ends-{i}")).collect();
        for name in &runs {
            world
                .create(&world.job(name, &format!("{OUTAGE}; sleep 15; exit 3")))
                .await?;
        }
        for name in &ends {
            world.create(&telling_its_end(&world, name)?).await?;
        }
        for name in runs.iter().chain(&ends) {
            world.when_started(name).await?;
        }

        xtask(&["cluster", "stop", "apiserver"]).await?;
        let away = Instant::now();
        let ended = until_all_have_ended(&world, &ends).await;
        xtask(&["cluster", "start", "apiserver"]).await?;
        ended?;
        println!(
            "the API server was away for {:.0} s",
            away.elapsed().as_secs_f64()
        );
        let back = Instant::now();
        let first = await_condition(world.jobs.clone(), "ends-0", is_finished);
        let first = tokio::time::timeout(RECOVERY, first).await;
        first.context("no adapter came back after the API server")??;
        println!(
            "the first result came {:.0} s after it was back",
            back.elapsed().as_secs_f64()
        );
        for name in &ends {
            expect(
                &world.when_finished(name).await?,
                Outcome::Failed,
                "NonZeroExit",
                Some(4),
            )?;
        }
        for name in &runs {
            expect(
                &world.when_finished(name).await?,
                Outcome::Failed,
                "NonZeroExit",
                Some(3),
            )?;
        }
        // Until it is gone the garbage collector has to catch up, too, and it takes its time.
        let collected = |job: Option<&Job>| job.is_none_or(|job| job.metadata.deletion_timestamp.is_some());
        let collected = await_condition(world.jobs.clone(), "expires", collected);
        tokio::time::timeout(PATIENCE, collected)
            .await
            .context("its time to live was forgotten")??;
        world.create(&world.job("afterwards", "true")).await?;
        expect(
            &world.when_finished("afterwards").await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )?;
        for name in runs.iter().chain(&ends) {
            ensure!(
                world.starts(name) == 1,
                "{name} started {} times",
                world.starts(name)
            );
        }
        Ok(())
    })
    .await
}

fn end_of(name: &str) -> String {
    format!("{name}-has-ended")
}

/// A Job that counts its end like its start.
fn telling_its_end(world: &World, name: &str) -> anyhow::Result<Job> {
    let tell = world
        .job(&end_of(name), "exit 4")
        .spec
        .command
        .pop()
        .context("no command")?;
    Ok(world.job(name, &format!("{OUTAGE}; {tell}")))
}

async fn until_all_have_ended(world: &World, names: &[String]) -> anyhow::Result<()> {
    let ending = async {
        let mut interval = tokio::time::interval(Duration::from_millis(100));
        while !names.iter().all(|name| world.starts(&end_of(name)) == 1) {
            interval.tick().await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(90), ending).await;
    ended.context("the commands do not end while the API server is away")
}

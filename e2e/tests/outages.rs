//! Adapters that are away, asleep or dying: what was asked for meanwhile is done, once.

use std::ops::AsyncFnOnce;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ayatori_core::job::{Job, Outcome};
use ayatori_e2e::replica::{Replica, Stage};
use ayatori_e2e::world::{World, expect, with_world};
use kube::ResourceExt;
use kube::api::ListParams;

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_is_asked_for_while_no_adapter_runs_is_carried_out_by_the_next() -> anyhow::Result<()>
{
    on_stage(async |world: &World, stage: &Stage| {
        let first = stage.start("first", None)?;
        let mut running = world.job("running", "trap '' TERM; sleep 600");
        running.spec.termination_grace_period_seconds = Some(1);
        world.create(&running).await?;
        let running = world.when_started("running").await?;
        world.create(&world.job("finished", "true")).await?;
        let finished = world.when_finished("finished").await?;
        first.kill().await?;

        for name in ["running", "finished"] {
            world.delete(name).await?;
            ensure!(
                world.jobs.get_opt(name).await?.is_some(),
                "{name} went with nobody to clean up"
            );
        }
        stage.forget_leaders().await?;
        let next = stage.start("next", None)?;
        for (name, job) in [("running", running), ("finished", finished)] {
            world.when_gone(name).await?;
            ensure!(
                world.batch_jobs(&job).await?.is_empty(),
                "{name}: its batch Job is left"
            );
            ensure!(world.pods(&job).await?.is_empty(), "{name}: its pod is left");
        }
        next.kill().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_sleeps_and_wakes_up_starts_nothing_that_another_has_started() -> anyhow::Result<()> {
    on_stage(async |world: &World, stage: &Stage| {
        let mut sleeper = stage.start("sleeper", None)?;
        stage.when_leads("sleeper").await?;
        let standby = stage.start("standby", None)?;
        let names: Vec<_> = (0..20).map(|i| format!("job-{i}")).collect();
        for (i, name) in names.iter().enumerate() {
            if i == 8 {
                // In the middle of its work for those before.
                sleeper.freeze()?;
            }
            world.create(&world.job(name, "sleep 1; exit 3")).await?;
        }
        for name in &names {
            expect(
                &world.when_finished(name).await?,
                Outcome::Failed,
                "NonZeroExit",
                Some(3),
            )?;
        }
        sleeper.wake_up()?;
        let ended = sleeper.ended(Duration::from_secs(20)).await?;
        ensure!(
            ended.is_some_and(|status| !status.success()),
            "the old leader goes on: {ended:?}"
        );
        world.create(&world.job("afterwards", "true")).await?;
        expect(
            &world.when_finished("afterwards").await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )?;
        for name in &names {
            ensure!(
                world.starts(name) == 1,
                "{name} started {} times",
                world.starts(name)
            );
        }
        standby.kill().await
    })
    .await
}

/// How long Jobs come and go, and how often the adapter dies meanwhile.
const CHURN: Duration = Duration::from_secs(15);
const BEAT: Duration = Duration::from_millis(100);
const LIFE: usize = 40;

#[tokio::test(flavor = "multi_thread")]
async fn when_jobs_stop_to_come_and_go_and_the_adapter_to_die_everything_settles() -> anyhow::Result<()> {
    on_stage(async |world: &World, stage: &Stage| {
        let mut adapter = stage.start("only", None)?;
        let mut beat = tokio::time::interval(BEAT);
        let beats = usize::try_from(CHURN.as_millis() / BEAT.as_millis())?;
        for i in 0..beats {
            beat.tick().await;
            world.create(&churned(world, i)).await?;
            // Every third goes again: at once, soon, or when it may be over.
            if i.is_multiple_of(3)
                && let Some(gone) = i.checked_sub([1, 5, 20][i / 3 % 3])
            {
                world.delete(&format!("job-{gone}")).await?;
            }
            if i % LIFE == LIFE - 1 {
                adapter = replace(stage, adapter).await?;
            }
        }
        let began = Instant::now();
        let jobs = world.jobs.list(&ListParams::default()).await?;
        let (leaving, staying): (Vec<_>, Vec<_>) = jobs
            .items
            .into_iter()
            .partition(|job| job.metadata.deletion_timestamp.is_some());
        for job in &leaving {
            world.when_gone(&job.name_any()).await?;
        }
        for job in &staying {
            let name = job.name_any();
            let job = world.when_finished(&name).await?;
            let started = job.status.as_ref().is_some_and(|s| s.start_time.is_some());
            ensure!(
                world.starts(&name) == u32::from(started),
                "{name} started {} times",
                world.starts(&name)
            );
        }
        for i in 0..beats {
            let name = format!("job-{i}");
            ensure!(
                world.starts(&name) <= 1,
                "{name} started {} times",
                world.starts(&name)
            );
        }
        println!(
            "{beats} Jobs, {} of them still there and {} leaving: settled after {:.1} s",
            staying.len(),
            leaving.len(),
            began.elapsed().as_secs_f64()
        );
        adapter.kill().await
    })
    .await
}

/// Every fourth Job runs, so that the kubelet can follow.
fn churned(world: &World, i: usize) -> Job {
    let mut job = world.job(&format!("job-{i}"), "true");
    job.spec.termination_grace_period_seconds = Some(1);
    job.spec.cancel_requested = (!i.is_multiple_of(4)).then_some(true);
    job
}

async fn replace(stage: &Stage, adapter: Replica) -> anyhow::Result<Replica> {
    adapter.kill().await?;
    stage.start("only", None).context("starting the adapter again")
}

/// Runs a test with the deployed adapter off, and brings it back however the test ends. Tests of this file
/// share the one stage, so they take turns.
async fn on_stage(test: impl AsyncFnOnce(&World, &Stage) -> anyhow::Result<()>) -> anyhow::Result<()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _turn = TURN.lock().await;
    with_world(async |world: World| {
        let stage = Stage::take(&world.client).await?;
        stage.forget_leaders().await?;
        let outcome = test(&world, &stage).await;
        // The world's objects need an adapter to go.
        stage.clear().await?;
        outcome
    })
    .await
}

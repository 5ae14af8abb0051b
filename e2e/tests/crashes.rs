//! The adapter dies between any two writes of a Job's life, and of two replicas one takes over: the command
//! starts once, and its result arrives.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ayatori_core::job::{Job, Outcome};
use ayatori_core::names::EXECUTION_FINALIZER;
use ayatori_e2e::replica::{Stage, was_killed};
use ayatori_e2e::world::{World, expect, with_world};
use kube::ResourceExt;
use serde_json::json;

/// Keeps a Job object for the test after everybody else has let go of it.
const HOLD: &str = "test.ayatori.ddupan.top/hold";
/// The fewest writes one Job's life has: finalizer, Accepted, batch Job, record, gate, Finished, its own deletion,
/// that of the batch Job, the pod's finalizer and its own.
const FEWEST_WRITES: u32 = 10;
/// More writes than one Job's life has.
const MOST_WRITES: u32 = 20;
/// How long a process that dies at the last write of a life may take to be found dead.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A write that never comes within this time does not exist.
const LIFE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_any_two_writes_starts_the_command_once_and_loses_no_result() -> anyhow::Result<()> {
    on_stage(async |world: &World, stage: &Stage| {
        for moment in ["before", "after"] {
            let mut crashes = 0;
            for write in 1..=MOST_WRITES {
                if !dies_at(world, stage, write, moment).await? {
                    break;
                }
                crashes += 1;
            }
            println!("{moment} a write: {crashes} crashes, one start each");
            ensure!(
                crashes >= FEWEST_WRITES,
                "only {crashes} writes were found in a whole life: is the fault hook compiled in?"
            );
            ensure!(crashes < MOST_WRITES, "a life of one Job has no end of writes");
        }
        Ok(())
    })
    .await
}

/// One life with one crash; false if the life had fewer writes.
async fn dies_at(world: &World, stage: &Stage, write: u32, moment: &str) -> anyhow::Result<bool> {
    let name = format!("{moment}-{write}");
    let at = format!("{moment} write {write}");
    stage.forget_leaders().await?;
    let mut first = stage.start("first", Some(&format!("{}:{write}:{moment}", world.namespace)))?;
    let mut job = world.job(&name, "sleep 1; exit 3");
    job.spec.ttl_seconds_after_finished = Some(1);
    job.metadata.finalizers = Some(vec![HOLD.to_owned()]);
    world.create(&job).await?;

    let let_go = |job: Option<&Job>| job.is_some_and(is_let_go);
    tokio::select! {
        _ = first.ended(LIFE) => {}
        job = world.when(&name, "the whole life", let_go) => drop(job?),
    }
    // A life that is over and a death at its last write come together.
    let died = first.ended(LAST_WORDS).await?.is_some_and(was_killed);
    if died {
        stage.forget_leaders().await?;
        let second = stage.start("second", None)?;
        let job = world
            .when(&name, "the rest of the life", let_go)
            .await
            .with_context(|| at.clone())?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(3)).with_context(|| at.clone())?;
        ensure!(
            world.starts(&name) == 1,
            "{at}: started {} times",
            world.starts(&name)
        );
        world
            .eventually("nothing is left in the backend", async || {
                Ok(world.pods(&job).await?.is_empty() && world.batch_jobs(&job).await?.is_empty())
            })
            .await
            .context(at)?;
        second.kill().await?;
    } else {
        first.kill().await?;
    }
    world
        .patch(&name, json!({"metadata": {"finalizers": null}}))
        .await?;
    Ok(died)
}

fn is_let_go(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some() && !job.finalizers().iter().any(|f| f == EXECUTION_FINALIZER)
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_leader_is_killed_the_other_replica_takes_over_within_20_s_and_results_survive()
-> anyhow::Result<()> {
    on_stage(async |world: &World, stage: &Stage| {
        stage.forget_leaders().await?;
        let leader = stage.start("leader", None)?;
        for i in 0..4 {
            world
                .create(&world.job(&format!("running-{i}"), "sleep 8; exit 3"))
                .await?;
        }
        for i in 0..4 {
            world.when_started(&format!("running-{i}")).await?;
        }
        let standby = stage.start("standby", None)?;
        leader.kill().await?;
        let killed = Instant::now();
        world.create(&world.job("new", "exit 0")).await?;
        expect(
            &world.when_finished("new").await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )?;
        let took = killed.elapsed();
        println!(
            "a Job created at the leader's death was finished after {:.1} s",
            took.as_secs_f64()
        );
        ensure!(took < Duration::from_secs(20), "the takeover took {took:?}");
        for i in 0..4 {
            let name = format!("running-{i}");
            expect(
                &world.when_finished(&name).await?,
                Outcome::Failed,
                "NonZeroExit",
                Some(3),
            )?;
            ensure!(
                world.starts(&name) == 1,
                "{name} started {} times",
                world.starts(&name)
            );
        }
        standby.kill().await
    })
    .await
}

/// Runs a test with the deployed adapter off, and brings it back however the test ends. Tests of this file
/// share the one stage, so they take turns.
async fn on_stage(test: impl AsyncFnOnce(&World, &Stage) -> anyhow::Result<()>) -> anyhow::Result<()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _turn = TURN.lock().await;
    with_world(async |world: World| {
        let stage = Stage::take(&world.client).await?;
        let outcome = test(&world, &stage).await;
        // The world's objects need an adapter to go.
        stage.clear().await?;
        outcome
    })
    .await
}

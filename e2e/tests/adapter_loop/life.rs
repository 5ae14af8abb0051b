//! From creation to the end, undisturbed.

use anyhow::{Context, ensure};
use ayatori_core::conditions::{ACCEPTED, FINISHED, SCHEDULED, STARTED};
use ayatori_core::execution::Why;
use ayatori_core::job::{JobState, Outcome};
use ayatori_core::job_class::JobClass;
use ayatori_core::names::EXECUTION_FINALIZER;
use ayatori_e2e::world::expect;
use futures::TryStreamExt;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::trial::{Mode, Trial, condition, holds, status, with_both};

#[tokio::test]
async fn a_command_that_ends_with_0_succeeds_after_exactly_one_start() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=200").await?;
        let job = trial.when_released(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        let counts = trial.counts(&job);
        ensure!(
            (counts.starts, counts.creates, counts.deletes) == (1, 1, 1),
            "{counts:?}"
        );
        for type_ in [ACCEPTED, SCHEDULED, STARTED, FINISHED] {
            ensure!(holds(&job, type_), "{type_} is not True");
        }
        let status = status(&job);
        ensure!(status.state == Some(JobState::Succeeded), "{:?}", status.state);
        ensure!(
            status.observed_generation == job.metadata.generation,
            "observedGeneration lags"
        );
        ensure!(
            job.finalizers() == [EXECUTION_FINALIZER],
            "{:?}",
            job.finalizers()
        );
        let execution = status.execution.context("no execution")?;
        ensure!(
            execution.attempt.is_some() == (trial.mode == Mode::SingleShot),
            "{execution:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_command_that_ends_with_3_fails_with_3() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("exit=3").await?;
        let job = trial.when_released(&job).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
        ensure!(trial.counts(&job).starts == 1, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_whole_life_costs_a_known_number_of_writes() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let ready = trial.when_ready().await?;
        // Finalizer; Accepted; the record; Started; Finished; released. Single shot: the attempt too.
        let expected = if trial.mode == Mode::Hold { 6 } else { 7 };
        let writes = writes_of(trial, "runs=300").await?;
        ensure!(writes == expected, "{writes} writes instead of {expected}");
        let class = Api::<JobClass>::all(trial.client.clone())
            .get(&trial.class)
            .await?;
        ensure!(
            class.resource_version() == ready.resource_version(),
            "the class was written to: {:?}",
            class.status
        );
        Ok(())
    })
    .await
}

/// How often a Job changed until it was released and then marked by the test itself.
async fn writes_of(trial: &Trial, script: &str) -> anyhow::Result<usize> {
    let job = trial.create(script).await?;
    let only = WatchParams::default().fields(&format!("metadata.name={}", job.name_any()));
    let changes = trial
        .jobs
        .watch(&only, &job.resource_version().unwrap_or_default())
        .await?;
    trial.when_released(&job).await?;
    trial
        .patch(&job, json!({ "metadata": { "annotations": { "the": "end" } } }))
        .await?;
    let mut changes = std::pin::pin!(changes);
    let mut writes = 0;
    while let Some(change) = changes.try_next().await? {
        match change {
            WatchEvent::Modified(job) if job.annotations().contains_key("the") => return Ok(writes),
            WatchEvent::Modified(_) => writes += 1,
            other => anyhow::bail!("unexpected: {other:?}"),
        }
    }
    anyhow::bail!("the watch ended early")
}

#[tokio::test]
async fn a_job_waits_for_its_class_to_be_ready_and_then_runs() -> anyhow::Result<()> {
    with_both(async |trial| {
        trial
            .server
            .misbehave(|faults| faults.not_ready = Some(Why::new("PoolNotSupported", "no such pool")));
        let adapter = trial.start_unready().await?;
        let job = trial.create("").await?;
        let job = trial.when_says(&job, SCHEDULED, "JobClassNotReady").await?;
        let message = condition(&job, SCHEDULED).map_or("", |c| &c.message);
        ensure!(
            message.contains(&trial.class) && message.contains("PoolNotSupported"),
            "{message}"
        );
        ensure!(trial.counts(&job).creates == 0, "{:?}", trial.counts(&job));
        trial.server.misbehave(|faults| faults.not_ready = None);
        expect(
            &trial.when_finished(&job).await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )?;
        adapter.stop().await
    })
    .await
}

#[tokio::test]
async fn a_suspended_job_starts_when_it_is_let_go() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create_with("", |spec| spec.suspend = Some(true)).await?;
        let job = trial.when_says(&job, ACCEPTED, "Suspended").await?;
        ensure!(
            status(&job).state == Some(JobState::Suspended),
            "{:?}",
            status(&job).state
        );
        trial.patch(&job, json!({ "spec": { "suspend": false } })).await?;
        expect(
            &trial.when_finished(&job).await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )
    })
    .await
}

#[tokio::test]
async fn a_finished_job_is_gone_after_its_ttl_and_not_before() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial
            .create_with("exit=1", |spec| spec.ttl_seconds_after_finished = Some(2))
            .await?;
        let finished = trial.when_finished(&job).await?;
        let at = status(&finished).finish_time.context("no finishTime")?.0;
        trial.when_gone(&job).await?;
        let lived = jiff::Timestamp::now().duration_since(at).as_secs_f64();
        ensure!((2.0..7.0).contains(&lived), "it lived {lived} s");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_ttl_that_is_added_late_counts_from_the_end() -> anyhow::Result<()> {
    with_both(async |trial| {
        let adapter = trial.start().await?;
        let job = trial.create("").await?;
        trial.when_released(&job).await?;
        // Also for an adapter that was not there when the Job finished.
        adapter.kill().await;
        trial
            .patch(&job, json!({ "spec": { "ttlSecondsAfterFinished": 0 } }))
            .await?;
        let _adapter = trial.start().await?;
        trial.when_gone(&job).await
    })
    .await
}

#[tokio::test]
async fn a_job_managed_by_another_controller_is_left_alone() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let other = trial
            .create_with("", |spec| spec.managed_by = Some("example.com/other".to_owned()))
            .await?;
        let ours = trial.create("").await?;
        trial.when_finished(&ours).await?;
        let seen = trial.jobs.get(&other.name_any()).await?;
        ensure!(
            seen.resource_version() == other.resource_version(),
            "it was written to: {:?}",
            seen.status
        );
        Ok(())
    })
    .await
}

//! Cancel, deadlines and deletion.

use anyhow::{Context, ensure};
use ayatori_core::conditions::{ACCEPTED, SCHEDULED, STARTED};
use ayatori_core::execution::Why;
use ayatori_core::job::{Outcome, StopReason};
use ayatori_core::names::EXECUTION_FINALIZER;
use ayatori_e2e::api::{self, DEADLINE};
use ayatori_e2e::world::{expect, result};
use kube::ResourceExt;

use crate::trial::{Mode, holds, status, with_both};

#[tokio::test]
async fn a_running_command_that_is_cancelled_ends_as_cancelled() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        trial.cancel(&job).await?;
        let job = trial.when_released(&job).await?;
        // Where the stop is a pause, no code is ever measured.
        let code = (trial.mode == Mode::Hold).then_some(143);
        expect(&job, Outcome::Cancelled, "CancelRequested", code)?;
        let stop = status(&job)
            .execution
            .and_then(|e| e.stop)
            .context("no stop is stored")?;
        ensure!(
            stop.reason == StopReason::CancelRequested && stop.delivered_time.is_some(),
            "{stop:?}"
        );
        ensure!(trial.counts(&job).starts == 1, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_that_is_cancelled_before_its_start_never_starts() -> anyhow::Result<()> {
    with_both(async |trial| {
        trial
            .server
            .misbehave(|faults| faults.not_ready = Some(Why::new("Full", "no room")));
        let _adapter = trial.start_unready().await?;
        let job = trial.create("").await?;
        trial.when_says(&job, SCHEDULED, "JobClassNotReady").await?;
        trial.cancel(&job).await?;
        trial.server.misbehave(|faults| faults.not_ready = None);
        let job = trial.when_released(&job).await?;
        expect(&job, Outcome::Cancelled, "CancelRequested", None)?;
        ensure!(
            !holds(&job, STARTED) && trial.counts(&job).creates == 0,
            "{:?}",
            trial.counts(&job)
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_that_is_created_cancelled_is_finished_without_a_trace() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial
            .create_with("", |spec| spec.cancel_requested = Some(true))
            .await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Cancelled, "CancelRequested", None)?;
        ensure!(
            job.finalizers().is_empty() && !holds(&job, ACCEPTED),
            "{:?}",
            job.finalizers()
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_command_that_ended_before_the_cancel_was_noticed_keeps_its_result() -> anyhow::Result<()> {
    with_both(async |trial| {
        let adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        adapter.kill().await;
        trial.server.end(&job.uid().unwrap_or_default(), 0);
        trial.cancel(&job).await?;
        let _adapter = trial.start().await?;
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
async fn a_stop_without_effect_is_sent_again_until_it_has_one() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        trial.server.misbehave(|faults| faults.stops_nothing = true);
        trial.cancel(&job).await?;
        api::eventually("a stop had no effect", async || Ok(trial.counts(&job).stops > 0)).await?;
        trial.server.misbehave(|faults| faults.stops_nothing = false);
        let job = trial.when_finished(&job).await?;
        ensure!(result(&job)?.outcome == Outcome::Cancelled, "{:?}", result(&job)?);
        ensure!(trial.counts(&job).stops > 1, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_active_deadline_stops_a_running_command() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial
            .create_with("runs=forever", |spec| {
                spec.active_deadline_seconds = Some(DEADLINE)
            })
            .await?;
        let job = trial.when_finished(&job).await?;
        let result = result(&job)?;
        ensure!(
            (result.outcome, result.reason.as_str()) == (Outcome::Failed, "DeadlineExceeded"),
            "{result:?}"
        );
        ensure!(trial.counts(&job).starts == 1, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_starting_deadline_ends_a_job_whose_command_never_comes_up() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial
            .create_with("stuck", |spec| spec.starting_deadline_seconds = Some(2))
            .await?;
        let job = trial.when_released(&job).await?;
        expect(&job, Outcome::Failed, "StartingDeadlineExceeded", None)?;
        ensure!(trial.counts(&job).starts == 0, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_that_is_deleted_while_it_runs_goes_when_its_process_has_ended() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        trial.server.misbehave(|faults| faults.stops_nothing = true);
        trial.delete(&job).await?;
        let blocked = trial
            .when_says(&job, "DeletionBlocked", "ExecutionRemains")
            .await?;
        ensure!(
            blocked.finalizers() == [EXECUTION_FINALIZER],
            "{:?}",
            blocked.finalizers()
        );
        trial.server.misbehave(|faults| faults.stops_nothing = false);
        trial.when_gone(&job).await?;
        ensure!(
            trial.server.executions().is_empty(),
            "{:#?}",
            trial.server.executions()
        );
        Ok(())
    })
    .await
}

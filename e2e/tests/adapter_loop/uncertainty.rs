//! Lost answers, lost requests, lost executions.

use std::time::Duration;

use anyhow::ensure;
use ayatori_controller::testing::server::{Create, Faults};
use ayatori_core::conditions::{RESULT_UNKNOWN, SCHEDULED};
use ayatori_core::execution::Why;
use ayatori_core::job::{Job, JobState, Outcome};
use ayatori_e2e::world::expect;
use jiff::SignedDuration;
use kube::ResourceExt;
use serde_json::json;

use crate::trial::{Mode, condition, holds, status, with, with_both};

#[tokio::test]
async fn what_an_unanswered_create_made_is_adopted() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .misbehave(|faults| faults.create = Create::LosesAnswers);
        let job = trial.create("runs=100").await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!(trial.counts(&job).starts == 1, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_an_unanswered_create_made_is_adopted_when_a_late_list_shows_it() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        trial.server.misbehave(|faults| {
            faults.create = Create::LosesAnswers;
            faults.list_lag = SignedDuration::from_secs(2);
        });
        // Long enough for every held execution that was made meanwhile to be listed, and so released.
        let job = trial.create("runs=2500").await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!(trial.counts(&job).starts == 1, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_create_that_was_lost_is_not_repeated_and_ends_as_lost_after_its_fence() -> anyhow::Result<()> {
    with(Mode::SingleShot, async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .misbehave(|faults| faults.create = Create::LosesRequests);
        let job = trial.create("").await?;
        let waiting = trial.when_says(&job, SCHEDULED, "BackendUnavailable").await?;
        ensure!(!holds(&waiting, "Finished"), "it ended before its fence");
        trial.server.misbehave(|faults| faults.create = Create::Works);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "ExecutionLost", None)?;
        ensure!(trial.counts(&job).creates == 0, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_create_that_arrives_after_its_fence_starts_nothing() -> anyhow::Result<()> {
    with(Mode::SingleShot, async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .misbehave(|faults| faults.create = Create::Delays(Duration::from_millis(6500)));
        let job = trial.create("").await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "StartTooLate", None)?;
        let counts = trial.counts(&job);
        ensure!((counts.creates, counts.starts) == (1, 0), "{counts:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_execution_that_has_not_come_up_by_its_fence_is_deleted_and_lost() -> anyhow::Result<()> {
    with(Mode::SingleShot, async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("stuck").await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "ExecutionLost", None)?;
        ensure!(
            trial.counts(&job).starts == 0 && trial.server.executions().is_empty(),
            "{:?}",
            trial.counts(&job)
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_edit_of_the_job_during_its_create_request_forgets_no_answer() -> anyhow::Result<()> {
    with(Mode::SingleShot, async |trial| {
        let _adapter = trial.start().await?;
        let full = Create::Refuses(Why::new("BackendAtCapacity", "no room"));
        trial.server.misbehave(|faults| {
            faults.create = full;
            faults.latency = Duration::from_millis(1500);
        });
        let job = trial.create("").await?;
        let attempted = |job: &Job| status(job).execution.is_some_and(|e| e.attempt.is_some());
        trial.when(&job, "attempted", attempted).await?;
        trial
            .patch(
                &job,
                json!({ "metadata": { "labels": { "edited": "meanwhile" } } }),
            )
            .await?;
        trial.when_says(&job, SCHEDULED, "BackendAtCapacity").await?;
        trial.server.misbehave(|faults| *faults = Faults::default());
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))
    })
    .await
}

#[tokio::test]
async fn a_refused_create_is_shown_and_tried_again() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let full = Create::Refuses(Why::new("BackendAtCapacity", "no room"));
        trial.server.misbehave(|faults| faults.create = full);
        let job = trial.create("").await?;
        trial.when_says(&job, SCHEDULED, "BackendAtCapacity").await?;
        trial.server.misbehave(|faults| faults.create = Create::Works);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        let counts = trial.counts(&job);
        ensure!((counts.creates, counts.starts) == (1, 1), "{counts:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_result_that_cannot_be_observed_is_unknown_until_the_server_answers_again() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        trial.server.misbehave(|faults| faults.unreachable = true);
        let unknown = trial
            .when(&job, "unknown", |job| holds(job, RESULT_UNKNOWN))
            .await?;
        ensure!(
            status(&unknown).state == Some(JobState::Unknown),
            "{:?}",
            status(&unknown).state
        );
        ensure!(condition(&unknown, RESULT_UNKNOWN).is_some_and(|c| c.reason == "BackendUnreachable"));
        trial.server.misbehave(|faults| faults.unreachable = false);
        let known = trial
            .when(&job, "known again", |job| !holds(job, RESULT_UNKNOWN))
            .await?;
        ensure!(
            status(&known).state == Some(JobState::Running),
            "{:?}",
            status(&known).state
        );
        trial.server.end(&job.uid().unwrap_or_default(), 0);
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
async fn absence_that_proves_nothing_ends_nothing() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        trial.server.misbehave(|faults| faults.amnesia = true);
        trial.when_says(&job, RESULT_UNKNOWN, "ExecutionNotFound").await?;
        trial.server.misbehave(|faults| faults.amnesia = false);
        trial.server.end(&job.uid().unwrap_or_default(), 3);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
        ensure!(trial.counts(&job).starts == 1, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_execution_that_is_proven_gone_is_lost_and_not_run_again() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        trial.server.lose(&job.uid().unwrap_or_default());
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "ExecutionLost", None)?;
        let counts = trial.counts(&job);
        ensure!((counts.creates, counts.starts) == (1, 1), "{counts:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_slow_server_only_slows() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .misbehave(|faults| faults.latency = Duration::from_millis(300));
        let job = trial.create("runs=100").await?;
        expect(
            &trial.when_finished(&job).await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )
    })
    .await
}

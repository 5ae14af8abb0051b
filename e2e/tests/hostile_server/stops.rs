//! Cancelling, and deadlines, by the adapter's own clock.

use std::sync::Arc;

use anyhow::{Context, ensure};
use ayatori_core::conditions::{self, ACCEPTED, FINISHED, RESULT_UNKNOWN};
use ayatori_core::job::{Job, Outcome};
use ayatori_e2e::api::{DEADLINE, expect_kept};
use ayatori_e2e::ground::{condition, holds, status};
use ayatori_e2e::world::expect;
use ayatori_opensandbox_adapter::stub::{Call, Edit, Fault};
use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::trial::with;

/// How long after its acceptance a Job ended.
fn lasted(job: &Job) -> anyhow::Result<SignedDuration> {
    let status = status(job);
    let accepted = conditions::true_since(&status.conditions, ACCEPTED).context("never accepted")?;
    Ok(status
        .finish_time
        .context("not finished")?
        .0
        .duration_since(accepted))
}

#[tokio::test]
async fn a_deadline_below_the_servers_shortest_life_holds_by_the_adapters_own_clock() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial
            .create_with("runs=forever", |spec| {
                spec.active_deadline_seconds = Some(DEADLINE)
            })
            .await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "DeadlineExceeded", None)?;
        expect_kept(DEADLINE, lasted(&job)?.as_secs())?;
        let asked: Vec<_> = trial
            .requests_for(&job)
            .iter()
            .map(|r| r["timeout"].as_u64())
            .collect();
        ensure!(matches!(asked[..], [Some(60..)]), "lives asked for: {asked:?}");
        trial.when_released(&job).await?;
        ensure!(trial.server.calls(Call::Delete) > 0 && trial.server.sandboxes().is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_that_runs_longer_than_any_life_the_server_gives_is_renewed_and_keeps_its_result()
-> anyhow::Result<()> {
    const LIMIT: &str = r#"{"code":"SANDBOX::INVALID_PARAMETER","message":"timeout 21600s exceeds configured maximum of 120s"}"#;
    with(async |trial| {
        let _adapter = trial.start().await?;
        let too_long = Fault::Answers(400, LIMIT.into());
        trial.server.set(|faults| {
            faults.on_next(1, Call::Create, too_long);
            faults.renews_nothing = true;
        });
        let job = trial.create("runs=forever").await?;
        let job = trial.when_started(&job).await?;
        let asked: Vec<_> = trial
            .requests_for(&job)
            .iter()
            .map(|r| r["timeout"].as_u64())
            .collect();
        ensure!(asked == [Some(21_600), Some(120)], "lives asked for: {asked:?}");
        let job = trial.when_says(&job, FINISHED, "BackendUnavailable").await?;
        let said = condition(&job, FINISHED).map(|c| c.message.clone());
        ensure!(
            said.as_ref()
                .is_some_and(|said| said.contains("confirms the renewal")),
            "{said:?}"
        );
        trial.server.set(|faults| faults.renews_nothing = false);
        let job = trial.when_says(&job, FINISHED, "Pending").await?;
        trial.server.advance(SignedDuration::from_secs(150));
        trial.after_more(2, Call::List).await?;
        trial.server.end(&trial.sandbox(&job)?, 137);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(137))?;
        ensure!(trial.starts(&job) == 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deadline_outlives_the_adapter_on_a_server_that_forgets_to_expire() -> anyhow::Result<()> {
    with(async |trial| {
        trial.server.set(|faults| faults.never_expires = true);
        let adapter = trial.start().await?;
        let job = trial
            .create_with("runs=forever", |spec| {
                spec.active_deadline_seconds = Some(DEADLINE)
            })
            .await?;
        trial.when_started(&job).await?;
        adapter.kill().await;
        let _next = trial.start_unready().await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "DeadlineExceeded", None)?;
        expect_kept(DEADLINE, lasted(&job)?.as_secs())?;
        trial.when_released(&job).await?;
        ensure!(trial.server.calls(Call::Delete) > 0 && trial.server.sandboxes().is_empty());
        trial.expect_one_post(&job, 1)
    })
    .await
}

#[tokio::test]
async fn a_stop_whose_answers_are_lost_is_delivered_once_and_called_what_it_was() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        trial.server.set(|faults| {
            faults.on(Call::Pause, Fault::LosesAnswer);
            faults.on_next(1, Call::Delete, Fault::LosesAnswer);
        });
        trial.cancel(&job).await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Cancelled, "CancelRequested", None)?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

#[tokio::test]
async fn a_command_that_ended_before_its_stop_arrived_keeps_its_own_result() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=2000 exit=3").await?;
        let job = trial.when_started(&job).await?;
        trial
            .server
            .set(|faults| faults.on(Call::Pause, Fault::LosesRequest));
        trial.cancel(&job).await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

#[tokio::test]
async fn what_a_server_calls_running_for_ever_and_cannot_freeze_is_deleted_when_its_stop_is_overdue()
-> anyhow::Result<()> {
    let running: Edit = Arc::new(|sandbox| {
        if let Some(status) = sandbox.get_mut("status") {
            *status = json!({"state": "Running", "reason": Value::Null});
        }
    });
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial.server.set(|faults| faults.shows = Some(running.clone()));
        let overdue = trial
            .create_with("runs=forever", |spec| {
                spec.active_deadline_seconds = Some(DEADLINE)
            })
            .await?;
        let overdue = trial.when_started(&overdue).await?;
        // Its container is gone, which the server does not notice.
        trial.server.end(&trial.sandbox(&overdue)?, 137);
        let deaf = trial.create("runs=forever").await?;
        let deaf = trial.when_started(&deaf).await?;
        trial.server.set(|faults| faults.pauses_nothing = true);
        trial.cancel(&deaf).await?;
        trial
            .until("no sandbox is left", |server| server.sandboxes().is_empty())
            .await?;
        // That they are gone is believed later, and then they are lost.
        for job in [overdue, deaf] {
            let job = trial.when_says(&job, RESULT_UNKNOWN, "ExecutionNotFound").await?;
            ensure!(!holds(&job, "Finished"), "{:?}", status(&job));
            trial.expect_one_post(&job, 1)?;
        }
        Ok(())
    })
    .await
}

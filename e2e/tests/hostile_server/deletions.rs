//! Jobs go when what they had is gone, and hold up no others.

use std::time::Instant;

use anyhow::ensure;
use ayatori_core::conditions::DELETION_BLOCKED;
use ayatori_core::job::Outcome;
use ayatori_e2e::ground::condition;
use ayatori_e2e::world::expect;
use ayatori_opensandbox_adapter::stub::{Call, Fault, Faults, Stub};

use crate::trial::with;

#[tokio::test]
async fn a_deletion_is_asked_for_again_until_the_sandbox_is_seen_to_be_gone() -> anyhow::Result<()> {
    let troubles = [
        Fault::Refuses(409, "DOCKER::SANDBOX_BUSY"),
        Fault::Refuses(500, "DOCKER::SANDBOX_DELETE_FAILED"),
        Fault::InternalError,
        Fault::LosesAnswer,
        Fault::LosesRequest,
        Fault::AnswersPage,
    ];
    with(async |trial| {
        let _adapter = trial.start().await?;
        for trouble in &troubles {
            let job = trial.create("runs=forever").await?;
            let job = trial.when_started(&job).await?;
            let sandbox = trial.sandbox(&job)?;
            trial
                .server
                .set(|faults| faults.on_next(1, Call::Delete, trouble.clone()));
            trial.delete(&job).await?;
            trial.when_gone(&job).await?;
            ensure!(
                !trial.server.sandboxes().contains(&sandbox),
                "{trouble:?}: the Job is gone, and its sandbox is not"
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deletion_that_the_server_only_claims_keeps_the_job_and_says_why() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        let job = trial.when_started(&job).await?;
        let sandbox = trial.sandbox(&job)?;
        trial.server.set(|faults| faults.deletes_nothing = true);
        trial.delete(&job).await?;
        let blocked = trial
            .when_says(&job, DELETION_BLOCKED, "ExecutionRemains")
            .await?;
        let message = condition(&blocked, DELETION_BLOCKED).map_or("", |c| &c.message);
        ensure!(message.contains(&sandbox), "{message}");
        trial.server.set(|faults| faults.deletes_nothing = false);
        trial.when_gone(&job).await?;
        ensure!(trial.server.sandboxes().is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_sandbox_that_is_already_gone_holds_up_no_deletion() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        let job = trial.when_started(&job).await?;
        trial.server.vanish(&trial.sandbox(&job)?);
        trial.delete(&job).await?;
        trial.when_gone(&job).await
    })
    .await
}

#[tokio::test]
async fn a_server_that_is_away_holds_up_only_what_it_has_not_given_back() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let released = trial
            .create_with("", |spec| spec.ttl_seconds_after_finished = Some(6))
            .await?;
        trial.when_released(&released).await?;
        // The next one ends, and cannot be given back.
        trial
            .server
            .set(|faults| faults.on(Call::Delete, Fault::LosesRequest));
        let held = trial
            .create_with("", |spec| spec.ttl_seconds_after_finished = Some(2))
            .await?;
        expect(
            &trial.when_finished(&held).await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )?;
        trial.server.set(|faults| faults.on_all(&Fault::LosesRequest));
        trial.when_gone(&released).await?;
        let blocked = trial
            .when_says(&held, DELETION_BLOCKED, "ExecutionRemains")
            .await?;
        ensure!(blocked.metadata.deletion_timestamp.is_some());
        for call in Call::ALL {
            trial.server.set(|faults| faults.off(call));
        }
        trial.when_gone(&held).await?;
        ensure!(trial.server.sandboxes().is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn deletions_on_a_silent_server_hold_up_none_on_another() -> anyhow::Result<()> {
    let silent = Stub::start().await?;
    with(async |trial| {
        let _adapter = trial.start().await?;
        let other = format!("{}-silent", trial.class);
        trial.create_class(&other, trial.parameters(&silent)).await?;
        let mut stuck = Vec::new();
        let mut fine = Vec::new();
        for _ in 0..5 {
            let on_other =
                trial.create_with("runs=forever", |spec| spec.job_class_name = Some(other.clone()));
            stuck.push(on_other.await?);
            fine.push(trial.create("runs=forever").await?);
        }
        for job in stuck.iter().chain(&fine) {
            trial.when_started(job).await?;
        }
        silent.set(|faults| faults.on_all(&Fault::Silent));
        let asked = Instant::now();
        for (stuck, fine) in stuck.iter().zip(&fine) {
            trial.delete(stuck).await?;
            trial.delete(fine).await?;
        }
        let all_fine = futures::future::try_join_all(fine.iter().map(|job| trial.when_gone(job)));
        all_fine.await?;
        println!("five deletions beside five stuck ones took {:?}", asked.elapsed());
        for job in &stuck {
            trial.when_says(job, DELETION_BLOCKED, "ExecutionRemains").await?;
        }
        silent.set(|faults| *faults = Faults::default());
        for job in &stuck {
            trial.when_gone(job).await?;
        }
        ensure!(silent.sandboxes().is_empty());
        Ok(())
    })
    .await
}

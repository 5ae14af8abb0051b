//! Servers without room.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ayatori_core::conditions::{READY, SCHEDULED};
use ayatori_core::job::Outcome;
use ayatori_core::job_class::JobClass;
use ayatori_e2e::ground::{class_condition, holds};
use ayatori_e2e::world::expect;
use ayatori_opensandbox_adapter::backend::Options;
use ayatori_opensandbox_adapter::stub::{Call, Fault, Stub};
use jiff::Timestamp;
use kube::Api;

use crate::trial::{Trial, options, with, with_server};

/// Since when the test's class is ready.
async fn ready_since(trial: &Trial) -> anyhow::Result<Timestamp> {
    let class = Api::<JobClass>::all(trial.client.clone())
        .get(&trial.class)
        .await?;
    let ready = class_condition(&class, READY).filter(|c| c.status == "True");
    Ok(ready.context("the class is not ready")?.last_transition_time.0)
}

#[tokio::test]
async fn a_server_without_room_is_asked_again_no_sooner_than_it_says_and_the_job_runs_once()
-> anyhow::Result<()> {
    const WAIT: Duration = Duration::from_secs(3);
    with(async |trial| {
        let _adapter = trial.start().await?;
        let ready = ready_since(trial).await?;
        let busy = Fault::Busy(Some(WAIT.as_secs().to_string()));
        trial.server.set(|faults| faults.on_next(3, Call::Create, busy));
        let job = trial.create("").await?;
        let mut before: Option<Instant> = None;
        for number in 1..=4 {
            trial
                .until("the next create request", |_| trial.posts(&job) >= number)
                .await?;
            let now = Instant::now();
            if let Some(before) = before {
                let after = now.duration_since(before);
                ensure!(
                    after >= WAIT,
                    "request {number} came {after:?} after the one before"
                );
            }
            before = Some(now);
            if number == 1 {
                trial.when_says(&job, SCHEDULED, "BackendAtCapacity").await?;
            }
        }
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!((trial.posts(&job), trial.starts(&job)) == (4, 1));
        ensure!(
            ready_since(trial).await? == ready,
            "the class was not ready for a while"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_server_without_room_that_says_nonsense_of_when_to_come_back_is_asked_again_all_the_same()
-> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .set(|faults| faults.on_next(1, Call::Create, Fault::Busy(Some("abc".to_owned()))));
        let job = trial.create("").await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!((trial.posts(&job), trial.starts(&job)) == (2, 1));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_overloaded_server_proves_nothing_so_its_create_request_is_not_repeated() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .set(|faults| faults.on(Call::Create, Fault::Overloaded));
        let job = trial.create("").await?;
        let waiting = trial.when_says(&job, SCHEDULED, "BackendUnavailable").await?;
        ensure!(!holds(&waiting, "Finished"));
        trial.server.set(|faults| faults.off(Call::Create));
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "ExecutionLost", None)?;
        trial.expect_one_post(&job, 0)
    })
    .await
}

#[tokio::test]
async fn a_server_is_asked_to_create_only_so_many_sandboxes_at_a_time() -> anyhow::Result<()> {
    const AT_ONCE: u16 = 3;
    let options = Options {
        create_concurrency: AT_ONCE,
        ..options()
    };
    with_server(Stub::start().await?, options, async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .set(|faults| faults.creation_takes = Duration::from_millis(300));
        let mut jobs = Vec::new();
        for _ in 0..20 {
            jobs.push(trial.create("").await?);
        }
        for job in jobs {
            let job = trial.when_finished(&job).await?;
            expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
            trial.expect_one_post(&job, 1)?;
        }
        let most = trial.server.most_creates_at_once();
        ensure!(most == usize::from(AT_ONCE), "{most} create requests at a time");
        Ok(())
    })
    .await
}

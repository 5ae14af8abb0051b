//! API keys: as they are stored, wrong, and rotated.

use anyhow::ensure;
use ayatori_core::conditions::{READY, RESULT_UNKNOWN, SCHEDULED};
use ayatori_core::job::Outcome;
use ayatori_e2e::ground::{class_condition, holds};
use ayatori_e2e::world::expect;
use ayatori_opensandbox_adapter::stub::API_KEY;

use crate::trial::with;

#[tokio::test]
async fn a_newline_after_the_api_key_is_no_part_of_it_and_one_within_is_named_without_the_key()
-> anyhow::Result<()> {
    with(async |trial| {
        trial.store_key(&format!("{API_KEY}\n")).await?;
        let _adapter = trial.start().await?;
        let (begin, end) = API_KEY.split_at(8);
        trial.store_key(&format!("{begin}\n{end}")).await?;
        let class = trial.when_class_says(READY, "InvalidCredentials").await?;
        let message = class_condition(&class, READY).map_or("", |c| &c.message);
        ensure!(!message.contains(begin) && !message.contains(end), "{message}");
        trial.store_key(&format!("{API_KEY}\r\n")).await?;
        trial.when_ready().await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_class_with_a_wrong_key_is_not_ready_and_its_jobs_run_as_soon_as_the_key_is_right()
-> anyhow::Result<()> {
    const WRONG: &str = "wrong-key-of-the-test";
    with(async |trial| {
        trial.store_key(WRONG).await?;
        let _adapter = trial.start_unready().await?;
        let class = trial.when_class_says(READY, "AuthenticationFailed").await?;
        let message = class_condition(&class, READY).map_or("", |c| &c.message);
        ensure!(!message.contains(WRONG), "{message}");
        let job = trial.create("").await?;
        trial.when_says(&job, SCHEDULED, "JobClassNotReady").await?;
        ensure!(trial.posts(&job) == 0);
        trial.store_key(API_KEY).await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

#[tokio::test]
async fn a_rotated_key_ends_no_job_and_the_new_one_is_used_as_soon_as_it_is_stored() -> anyhow::Result<()> {
    const NEW: &str = "new-key-of-the-test";
    with(async |trial| {
        let _adapter = trial.start().await?;
        let mut jobs = Vec::new();
        for exit in [0, 3, 7] {
            let job = trial.create(&format!("runs=15000 exit={exit}")).await?;
            jobs.push((exit, job));
        }
        for (_, job) in &jobs {
            trial.when_started(job).await?;
        }
        trial.server.accept_key(NEW);
        for (_, job) in &jobs {
            trial.when_says(job, RESULT_UNKNOWN, "CredentialsInvalid").await?;
        }
        trial.store_key(NEW).await?;
        for (exit, job) in jobs {
            let job = trial.when_finished(&job).await?;
            match exit {
                0 => expect(&job, Outcome::Succeeded, "Completed", Some(0))?,
                code => expect(&job, Outcome::Failed, "NonZeroExit", Some(code))?,
            }
            ensure!(!holds(&job, RESULT_UNKNOWN));
            trial.expect_one_post(&job, 1)?;
        }
        trial.when_ready().await?;
        // For the end of the test, whose adapter has the first key again.
        trial.server.accept_key(API_KEY);
        trial.store_key(API_KEY).await
    })
    .await
}

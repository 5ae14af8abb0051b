//! Lists: many pages, foreign sandboxes, and answers that are none.

use std::time::Duration;

use anyhow::ensure;
use ayatori_core::conditions::{RESULT_UNKNOWN, SCHEDULED};
use ayatori_core::job::Outcome;
use ayatori_e2e::ground::{condition, holds, status};
use ayatori_e2e::world::expect;
use ayatori_opensandbox_adapter::stub::{Call, Fault};

use crate::trial::with;

#[tokio::test]
async fn sandboxes_of_others_on_many_pages_hide_nothing_and_where_a_list_cannot_be_whole_nothing_is_created()
-> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let runs = trial.create("runs=forever").await?;
        let runs = trial.when_started(&runs).await?;
        // 13 pages, the last of which holds ours.
        trial.server.set(|faults| {
            faults.ignores_filter = true;
            faults.foreign = 2500;
        });
        let waits = trial.create("").await?;
        trial.when_says(&waits, SCHEDULED, "BackendUnavailable").await?;
        ensure!(trial.posts(&waits) == 0);
        let gets = trial.server.calls(Call::Get);
        trial.after_more(30, Call::List).await?;
        ensure!(trial.server.calls(Call::Get) == gets, "asked for one by one");
        trial.server.end(&trial.sandbox(&runs)?, 137);
        let runs = trial.when_finished(&runs).await?;
        expect(&runs, Outcome::Failed, "NonZeroExit", Some(137))?;
        trial.server.set(|faults| faults.ignores_filter = false);
        let waits = trial.when_finished(&waits).await?;
        expect(&waits, Outcome::Succeeded, "Completed", Some(0))?;
        trial.expect_one_post(&waits, 1)
    })
    .await
}

#[tokio::test]
async fn what_is_no_answer_to_a_list_is_no_news_of_any_job() -> anyhow::Result<()> {
    let troubles = [
        Fault::AnswersPage,
        Fault::AnswersBadGateway,
        Fault::AnswersHalfJson,
        Fault::AnswersNothing,
        Fault::TruncatesAnswer,
        Fault::NoRoute,
        Fault::InternalError,
        Fault::Overloaded,
        Fault::Redirects("http://127.0.0.1:9".to_owned()),
        Fault::LosesAnswer,
    ];
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        let job = trial.when_started(&job).await?;
        for (number, trouble) in troubles.iter().enumerate() {
            trial.server.set(|faults| {
                faults.on(Call::List, trouble.clone());
                faults.on(Call::Get, trouble.clone());
            });
            if number == 0 {
                trial
                    .when_says(&job, RESULT_UNKNOWN, "BackendUnreachable")
                    .await?;
            }
            trial.after_more(2, Call::List).await?;
            let unknown = trial.when(&job, "there", |_| true).await?;
            let message = condition(&unknown, RESULT_UNKNOWN).map_or("", |c| &c.message);
            ensure!(
                holds(&unknown, RESULT_UNKNOWN) && !holds(&unknown, "Finished") && !message.contains('<'),
                "{trouble:?}: {:?}",
                status(&unknown)
            );
        }
        trial.server.set(|faults| {
            faults.off(Call::List);
            faults.off(Call::Get);
        });
        trial
            .when(&job, "known again", |job| !holds(job, RESULT_UNKNOWN))
            .await?;
        trial.server.end(&trial.sandbox(&job)?, 137);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(137))?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

#[tokio::test]
async fn a_connection_that_went_dead_costs_one_time_limit_and_no_job_its_result() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        let job = trial.when_started(&job).await?;
        // What is sent into it is never answered, and the next request needs a connection of its own.
        trial
            .server
            .set(|faults| faults.on_next(1, Call::List, Fault::Silent));
        trial.after_more(1, Call::List).await?;
        let limit = Duration::from_secs(trial.options.call_timeout_seconds.into()) * 2;
        ayatori_e2e::ground::within(limit, trial.after_more(1, Call::List)).await??;
        let seen = trial.when(&job, "there", |_| true).await?;
        ensure!(!holds(&seen, RESULT_UNKNOWN));
        trial.server.end(&trial.sandbox(&job)?, 137);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(137))?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

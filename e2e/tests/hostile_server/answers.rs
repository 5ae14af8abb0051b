//! What becomes of the answer to a create request: it is sent once, and what it made is found.

use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_core::conditions::{RESULT_UNKNOWN, SCHEDULED, STARTED};
use ayatori_core::job::{EnvVar, Job, Outcome};
use ayatori_e2e::api::eventually;
use ayatori_e2e::ground::{condition, holds, status};
use ayatori_e2e::world::expect;
use ayatori_opensandbox_adapter::stub::{Call, Fault};
use jiff::{SignedDuration, Timestamp};

use crate::trial::{Trial, options, with};

/// What spoils the answer to a request that was carried out.
const SPOILED: [Fault; 9] = [
    Fault::LosesAnswer,
    Fault::TruncatesAnswer,
    Fault::StopsHalfway,
    Fault::AnswersHalfJson,
    Fault::AnswersPage,
    Fault::AnswersNothing,
    Fault::AnswersPodReadyTimeout,
    Fault::AnswersPodFailed,
    Fault::AnswersBadGateway,
];

#[tokio::test]
async fn whatever_spoils_the_answer_to_a_create_request_it_is_sent_once_and_what_a_late_list_shows_is_adopted()
-> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .set(|faults| faults.list_lag = SignedDuration::from_secs(2));
        let mut jobs = Vec::new();
        for fault in SPOILED {
            trial.server.set(|faults| faults.on(Call::Create, fault.clone()));
            let job = trial.create("runs=3000 exit=3").await?;
            trial.when_posted(&job).await?;
            jobs.push((fault, job));
        }
        for (fault, job) in jobs {
            let job = trial.when_finished(&job).await?;
            expect(&job, Outcome::Failed, "NonZeroExit", Some(3)).with_context(|| format!("{fault:?}"))?;
            trial
                .expect_one_post(&job, 1)
                .with_context(|| format!("{fault:?}"))?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_whose_create_request_shows_no_effect_is_lost_after_its_fence_and_not_before()
-> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial.server.set(|faults| {
            faults.lists_nothing = true;
            faults.on(Call::Create, Fault::LosesAnswer);
        });
        let job = trial.create("runs=forever").await?;
        let waiting = trial.when_says(&job, SCHEDULED, "BackendUnavailable").await?;
        let attempt = status(&waiting).execution.and_then(|e| e.attempt);
        let fence = attempt.context("no attempt is stored")?.start_before.0;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "ExecutionLost", None)?;
        let finished = status(&job).finish_time.context("no finish time")?.0;
        ensure!(
            finished > fence,
            "lost at {finished}, before the fence at {fence}"
        );
        trial.expect_one_post(&job, 1)?;
        // It is the server that hides it, and only its expiry can end it.
        trial.server.advance(SignedDuration::from_hours(7));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn while_lists_do_not_come_nothing_is_known_of_an_unanswered_create_request_however_late_it_is()
-> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .set(|faults| faults.on(Call::Create, Fault::StopsHalfway));
        let job = trial.create("runs=forever").await?;
        trial.when_posted(&job).await?;
        trial.server.set(|faults| faults.on(Call::List, Fault::Silent));
        let unknown = trial
            .when_says(&job, RESULT_UNKNOWN, "BackendUnreachable")
            .await?;
        let attempt = status(&unknown).execution.and_then(|e| e.attempt);
        let settled = attempt.context("no attempt is stored")?.start_before.0 + SignedDuration::from_secs(3);
        eventually("the fence has passed", async || Ok(Timestamp::now() > settled)).await?;
        trial.after_more(1, Call::List).await?;
        let unknown = trial.when(&job, "there", |_| true).await?;
        ensure!(
            holds(&unknown, RESULT_UNKNOWN) && !holds(&unknown, "Finished"),
            "{:?}",
            status(&unknown)
        );
        trial.server.set(|faults| faults.off(Call::List));
        let known = trial.when_started(&job).await?;
        trial.server.end(&trial.sandbox(&known)?, 137);
        expect(
            &trial.when_finished(&job).await?,
            Outcome::Failed,
            "NonZeroExit",
            Some(137),
        )?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

#[tokio::test]
async fn a_create_request_may_take_longer_than_any_other_call() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let takes = Duration::from_secs((trial.options.call_timeout_seconds + 1).into());
        trial.server.set(|faults| faults.creation_takes = takes);
        let job = trial.create("").await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

#[tokio::test]
async fn a_sandbox_that_comes_up_after_the_fence_starts_nothing() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let takes = Duration::from_secs(options().fence_seconds.into()) + Duration::from_millis(500);
        trial.server.set(|faults| faults.creation_takes = takes);
        let job = trial.create("").await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "StartTooLate", None)?;
        ensure!(!holds(&job, STARTED), "its command never started");
        trial.expect_one_post(&job, 0)
    })
    .await
}

/// What no condition takes: too long, with every cut by bytes in a character, or no text at all. The server's own
/// refusals come first.
fn bodies() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let own = |text: String| format!(r#"{{"code":"A::B","message":"{text}"}}"#).into_bytes();
    let refusals = vec![
        own("漢".repeat(1000)),
        own(format!("a{}", "é".repeat(1500))),
        own(format!("\\u0007\\u001b[31m{}", "🦀".repeat(750))),
    ];
    let nonsense = vec![
        own("漢".repeat(1000)),
        "漢".repeat(1000).into_bytes(),
        [0xff, 0xfe, 0xe6, 0xbc].repeat(750),
        Vec::new(),
    ];
    (refusals, nonsense)
}

/// Jobs whose create requests were answered with this status and these bodies, and that say so in short.
async fn answered(trial: &Trial, code: u16, bodies: Vec<Vec<u8>>) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for body in bodies {
        let fault = Fault::Answers(code, body.into());
        trial.server.set(|faults| faults.on(Call::Create, fault));
        let job = trial.create("").await?;
        trial.when_posted(&job).await?;
        let told = trial
            .when(&job, "told", |job| {
                condition(job, SCHEDULED).is_some_and(|c| c.status == "False")
            })
            .await?;
        let message = condition(&told, SCHEDULED).map_or("", |c| &c.message);
        ensure!(
            message.chars().count() < 500 && !message.contains(char::is_control),
            "{message:?}"
        );
        jobs.push(job);
    }
    trial.server.set(|faults| faults.off(Call::Create));
    Ok(jobs)
}

#[tokio::test]
async fn an_error_of_any_length_and_encoding_is_told_in_short_and_stops_no_other_job() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let (refusals, nonsense) = bodies();
        for job in answered(trial, 400, refusals).await? {
            let job = trial.when_finished(&job).await?;
            expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
            ensure!(trial.starts(&job) == 1);
        }
        for job in answered(trial, 500, nonsense).await? {
            let job = trial.when_finished(&job).await?;
            expect(&job, Outcome::Failed, "ExecutionLost", None)?;
            trial.expect_one_post(&job, 0)?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_refusal_that_quotes_the_whole_request_repeats_nothing_of_it() -> anyhow::Result<()> {
    const CANARY: &str = "canary-of-the-environment";
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .set(|faults| faults.on(Call::Create, Fault::EchoesRequest));
        let job = trial
            .create_with("", |spec| {
                spec.env = vec![EnvVar {
                    name: "TOKEN".to_owned(),
                    value: Some(CANARY.to_owned()),
                    value_from: None,
                }];
            })
            .await?;
        let refused = trial.when_says(&job, SCHEDULED, "BackendRejected").await?;
        ensure!(trial.posts(&job) > 0 && trial.requests_for(&job)[0].to_string().contains(CANARY));
        let told = serde_json::to_string(&refused.status)?;
        ensure!(!told.contains(CANARY), "{told}");
        trial.server.set(|faults| faults.off(Call::Create));
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!(trial.starts(&job) == 1);
        Ok(())
    })
    .await
}

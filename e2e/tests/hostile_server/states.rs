//! What a server says of a sandbox, and what it is taken for.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, ensure};
use ayatori_core::conditions::RESULT_UNKNOWN;
use ayatori_core::job::{Job, Outcome};
use ayatori_core::names::JOB_NAME_LABEL;
use ayatori_e2e::api::DEADLINE;
use ayatori_e2e::ground::{holds, status};
use ayatori_e2e::world::{expect, result};
use ayatori_opensandbox_adapter::backend::Options;
use ayatori_opensandbox_adapter::stub::{Call, Edit, Fault, Stub};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::trial::{Trial, options, with, with_server};

/// Shows the sandboxes of these Jobs with these statuses; while their processes run, only those that `also_running`
/// says so of.
fn instead(
    statuses: HashMap<String, Value>,
    also_running: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> Edit {
    Arc::new(move |sandbox| {
        let text = |pointer: &str| sandbox.pointer(pointer).and_then(Value::as_str);
        let label = JOB_NAME_LABEL.replace('/', "~1");
        let name = text(&format!("/metadata/{label}")).unwrap_or_default().to_owned();
        let runs = text("/status/state") == Some("Running");
        if let Some(status) = statuses.get(&name)
            && (!runs || also_running(&name))
            && let Some(shown) = sandbox.get_mut("status")
        {
            shown.clone_from(status);
        }
    })
}

fn said(state: impl Into<Value>, reason: impl Into<Value>, message: &str) -> Value {
    json!({"state": state.into(), "reason": reason.into(), "message": message})
}

type Expected = (Outcome, &'static str, Option<i32>);

#[tokio::test]
async fn only_the_commands_own_evidence_makes_a_success_or_a_code_whatever_the_server_calls_the_end()
-> anyhow::Result<()> {
    const ERROR: &str = "CONTAINER_EXITED_ERROR";
    const WITHOUT_CODE: &str = "Sandbox container exited.";
    let completed: Expected = (Outcome::Succeeded, "Completed", Some(0));
    let three: Expected = (Outcome::Failed, "NonZeroExit", Some(3));
    let lost: Expected = (Outcome::Failed, "ExecutionLost", None);
    let expired: Expected = (Outcome::Failed, "SandboxExpired", None);
    let ended = |exit: i32| format!("runs=500 exit={exit}");
    let never = || "runs=forever".to_owned();
    let cases = [
        (
            "pod-succeeded",
            ended(0),
            said("Terminated", "PodSucceeded", ""),
            completed,
        ),
        (
            "exited",
            ended(0),
            said("Terminated", "CONTAINER_EXITED", ""),
            completed,
        ),
        (
            "no-reason",
            ended(0),
            said("Terminated", Value::Null, ""),
            completed,
        ),
        (
            "older-server",
            ended(0),
            said("Pending", "PodSucceeded", ""),
            completed,
        ),
        ("older-failed", ended(3), said("Pending", "PodFailed", ""), three),
        (
            "code-unsaid",
            ended(3),
            said("Failed", ERROR, WITHOUT_CODE),
            three,
        ),
        (
            "expired-after",
            ended(3),
            said("Terminated", "SandboxExpired", ""),
            three,
        ),
        (
            "succeeded-midway",
            never(),
            said("Terminated", "PodSucceeded", ""),
            lost,
        ),
        (
            "stopped",
            never(),
            said("Terminated", "CONTAINER_EXITED", ""),
            lost,
        ),
        (
            "failed-midway",
            never(),
            said("Failed", ERROR, WITHOUT_CODE),
            lost,
        ),
        (
            "code-lost",
            never(),
            said("Failed", ERROR, "exited with code 255."),
            lost,
        ),
        (
            "expired",
            never(),
            said("Terminated", "SandboxExpired", ""),
            expired,
        ),
    ];
    with(async |trial| {
        let _adapter = trial.start().await?;
        let statuses = cases
            .iter()
            .map(|(name, _, status, _)| ((*name).to_owned(), status.clone()));
        let endless: Vec<_> = cases
            .iter()
            .filter_map(|(name, script, ..)| (*script == never()).then_some(*name))
            .collect();
        let edit = instead(statuses.collect(), move |name| endless.contains(&name));
        trial.server.set(|faults| faults.shows = Some(edit));
        let mut jobs = Vec::new();
        for (name, script, _, expected) in &cases {
            jobs.push((trial.create_named(name, script, |_| {}).await?, *expected));
        }
        for (job, (outcome, reason, code)) in jobs {
            expect(&trial.when_finished(&job).await?, outcome, reason, code)?;
            trial.expect_one_post(&job, 1)?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn states_that_are_not_known_end_nothing_and_the_deadline_holds_all_the_same() -> anyhow::Result<()> {
    let cases = [
        ("allocated", said("Allocated", Value::Null, "")),
        ("unknown", said("Unknown", Value::Null, "")),
        ("stopping", said("Stopping", Value::Null, "")),
        ("resuming", said("Resuming", Value::Null, "")),
        ("to-come", said("Hibernating", "SOMETHING_NEW", "")),
        ("lower-case", said("running", Value::Null, "")),
        ("null", said(Value::Null, Value::Null, "")),
        ("a-number", said(7, 8, "")),
        ("missing", json!({})),
        ("no-status", Value::Null),
    ];
    // Past its fence, what does not come up is lost: here the deadline is to come first.
    let patient = Options {
        fence_seconds: 600,
        ..options()
    };
    with_server(Stub::start().await?, patient, async |trial| {
        let _adapter = trial.start().await?;
        let statuses = cases
            .iter()
            .map(|(name, status)| ((*name).to_owned(), status.clone()));
        let paused = instead(statuses.collect(), |_| true);
        // A freeze shows: else nobody could tell that it was stopped.
        let edit: Edit = Arc::new(move |sandbox| {
            if sandbox.pointer("/status/state").and_then(Value::as_str) != Some("Paused") {
                paused(sandbox);
            }
        });
        trial.server.set(|faults| faults.shows = Some(edit));
        let mut jobs = Vec::new();
        for (name, _) in &cases {
            let deadline =
                |spec: &mut ayatori_core::job::JobSpec| spec.active_deadline_seconds = Some(DEADLINE);
            jobs.push(trial.create_named(name, "runs=forever", deadline).await?);
        }
        for job in jobs {
            let job = trial.when_finished(&job).await?;
            expect(&job, Outcome::Failed, "DeadlineExceeded", None)?;
            trial.expect_one_post(&job, 1)?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_failure_that_is_shown_once_is_stored_at_once_and_outlives_its_sandbox() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let message = format!("the workload\u{7} was rolled back {}", "漢".repeat(2000));
        let failed = said("Failed", "ROLLED_BACK", &message);
        let edit = instead([("fails".to_owned(), failed)].into(), |_| true);
        let job = trial.create_named("fails", "runs=forever", |_| {}).await?;
        trial.when_started(&job).await?;
        trial.server.set(|faults| faults.shows = Some(edit));
        let ended = trial.when_finished(&job).await?;
        expect(&ended, Outcome::Failed, "ExecutionLost", None)?;
        let told = result(&ended)?.message.clone().unwrap_or_default();
        ensure!(
            told.contains("the workload") && told.contains("was rolled back") && !told.contains('\u{7}'),
            "{told}"
        );
        trial.server.vanish(&trial.sandbox(&ended)?);
        let released = trial.when_released(&job).await?;
        ensure!(status(&released).result == status(&ended).result);
        trial.expect_one_post(&job, 1)
    })
    .await
}

#[tokio::test]
async fn a_sandbox_that_stays_missing_for_half_a_minute_is_lost_and_not_made_again() -> anyhow::Result<()> {
    let words = [
        ("vanishes", None),
        ("no-reason", Some(said("Terminated", Value::Null, ""))),
        ("new-reason", Some(said("Terminated", "SOMETHING_NEW", ""))),
    ];
    with(async |trial| {
        let _adapter = trial.start().await?;
        let statuses = words
            .iter()
            .filter_map(|(name, status)| Some(((*name).to_owned(), status.clone()?)));
        let edit = instead(statuses.collect(), |_| true);
        trial.server.set(|faults| faults.shows = Some(edit));
        let mut jobs = Vec::new();
        for (name, status) in &words {
            let job = trial.create_named(name, "runs=forever", |_| {}).await?;
            let job = match status {
                None => trial.when_started(&job).await?,
                // In such words it may have ended or not.
                Some(_) => trial.when_says(&job, RESULT_UNKNOWN, "ExecutionNotFound").await?,
            };
            trial.server.vanish(&trial.sandbox(&job)?);
            jobs.push((job, Timestamp::now()));
        }
        for (job, vanished) in jobs {
            let job = trial.when_finished(&job).await?;
            expect(&job, Outcome::Failed, "ExecutionLost", None)?;
            let finished = status(&job).finish_time.context("no finish time")?.0;
            let after = finished.duration_since(vanished);
            ensure!(after >= SignedDuration::from_secs(28), "believed after {after}");
            trial.expect_one_post(&job, 1)?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn absence_between_errors_of_the_server_proves_nothing() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        let job = trial.when_started(&job).await?;
        let hidden = Timestamp::now();
        trial.server.set(|faults| {
            faults.lists_nothing = true;
            faults.finds_nothing = true;
        });
        // Each error begins the count again, so that there are never three absences over half a minute.
        while hidden.duration_until(Timestamp::now()) < SignedDuration::from_secs(32) {
            trial.after_more(1, Call::Get).await?;
            trial
                .server
                .set(|faults| faults.on_next(1, Call::Get, Fault::InternalError));
            trial.after_more(1, Call::Get).await?;
        }
        trial.server.set(|faults| {
            faults.lists_nothing = false;
            faults.finds_nothing = false;
        });
        let job = known_again(trial, &job).await?;
        trial.server.end(&trial.sandbox(&job)?, 137);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(137))?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

async fn known_again(trial: &Trial, job: &Job) -> anyhow::Result<Job> {
    trial
        .when(job, "known again", |job| !holds(job, RESULT_UNKNOWN))
        .await
}

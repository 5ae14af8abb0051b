//! Where creating is starting.

use anyhow::{bail, ensure};
use ayatori_core::execution::{Exit, Prospect, Submission, Windows};
use jiff::SignedDuration;

use crate::testing::conformance::world::World;
use crate::testing::conformance::{Fault, Script, Subject};

const LONG_AGO: SignedDuration = SignedDuration::from_secs(-60);

pub(super) async fn submitting_starts_once<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    world.only_single_shot()?;
    let case = world.started(Script::RunsAndExits(0)).await?;
    let (found, _) = world.found(&case).await?;
    let created = case.recorded()?.name();
    ensure!(
        found == created,
        "it was created as {created:?} and found as {found:?}"
    );
    world.ended(&case).await?;
    world.meanwhile().await?;
    world.expect_starts(&case, 1).await
}

pub(super) async fn nothing_is_sent_too_late<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let windows = world.only_single_shot()?;
    let late = Windows {
        send: LONG_AGO,
        ..windows
    };
    let case = world.accepted(Script::Exits(0)).await?;
    let case = world.attempted(case, late).await?;
    let submission = world.submit(&case).await?;
    ensure!(
        matches!(submission, Submission::Refused(_)),
        "a request that may not be sent any more came to {submission:?}"
    );
    world.meanwhile().await?;
    world.expect_starts(&case, 0).await
}

pub(super) async fn nothing_starts_too_late<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let windows = world.only_single_shot()?;
    let late = Windows {
        fence: LONG_AGO,
        ..windows
    };
    let case = world.accepted(Script::Exits(0)).await?;
    let mut case = world.attempted(case, late).await?;
    match world.submit(&case).await? {
        Submission::Created(name) => case.record(name, world.identity.clone()),
        // Nor does it have to be sent.
        Submission::Refused(_) => return world.expect_starts(&case, 0).await,
        other => bail!("a create request that the server took came to {other:?}"),
    }
    let case = world.stored(case).await?;
    let end = world.ended(&case).await?;
    world.expect_starts(&case, 0).await?;
    match end.exit {
        Exit::Unstartable(why) if why.reason == "StartTooLate" => Ok(()),
        exit => bail!("a command that must not start any more ended as {exit:?}, not StartTooLate"),
    }
}

pub(super) async fn lost_answers_are_unanswered<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let windows = world.only_single_shot()?;
    let case = world.accepted(Script::Exits(0)).await?;
    let case = world.attempted(case, windows).await?;
    let submission = world.under(Fault::AnswersAreLost, world.submit(&case)).await?;
    ensure!(
        matches!(submission, Submission::Unanswered(_)),
        "a request that was carried out, with its answer lost, came to {submission:?}"
    );
    // What it created is found, and is the one that ran.
    let case = world.recorded(case).await?;
    world.ended(&case).await?;
    world.expect_starts(&case, 1).await
}

pub(super) async fn refusals_are_refused<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let windows = world.only_single_shot()?;
    let case = world.accepted(Script::Exits(0)).await?;
    let case = world.attempted(case, windows).await?;
    let submission = world.under(Fault::CreatesAreRefused, world.submit(&case)).await?;
    ensure!(
        matches!(submission, Submission::Refused(_)),
        "a request that the server refused came to {submission:?}"
    );
    let prospect = world.survey(&case).await?;
    ensure!(
        prospect == Ok(Prospect::Absent),
        "what was refused is shown as {prospect:?}"
    );
    world.expect_starts(&case, 0).await
}

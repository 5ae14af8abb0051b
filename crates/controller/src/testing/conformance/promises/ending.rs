//! How a command ends, and what is told of it.

use anyhow::{bail, ensure};
use ayatori_core::ending;
use ayatori_core::execution::{Exit, State};
use ayatori_core::job::{JobResult, Outcome};
use futures::FutureExt;
use futures::future::try_join_all;
use jiff::Timestamp;

use crate::testing::conformance::world::World;
use crate::testing::conformance::{Script, Subject};

/// With those that shells and backends give a meaning of their own.
const CODES: [i32; 8] = [0, 1, 42, 125, 126, 127, 137, 255];

pub(super) async fn exit_codes_are_exact<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let each = CODES.iter().map(|code| expect_code(world, *code).boxed_local());
    try_join_all(each).await.map(drop)
}

async fn expect_code<S: Subject>(world: &World<'_, S>, code: i32) -> anyhow::Result<()> {
    let case = world.started(Script::Exits(code)).await?;
    let end = world.ended(&case).await?;
    let measured = Exit::Code {
        code,
        out_of_memory: false,
    };
    ensure!(
        end.exit == measured,
        "a command that exits with {code} is told as {:?}",
        end.exit
    );
    let result = ending::attribute(&end, None, None);
    let outcome = if code == 0 {
        Outcome::Succeeded
    } else {
        Outcome::Failed
    };
    ensure!(
        result.outcome == outcome,
        "a command that exits with {code} came to {result:?}"
    );
    world.expect_starts(&case, 1).await
}

pub(super) async fn missing_commands_are_start_errors<S: Subject>(
    world: &World<'_, S>,
) -> anyhow::Result<()> {
    let case = world.started(Script::IsMissing).await?;
    let end = world.ended(&case).await?;
    match &end.exit {
        Exit::Unstartable(why) if why.reason == "StartError" => Ok(()),
        exit => bail!("a command that does not exist is told as {exit:?}"),
    }
}

pub(super) async fn what_runs_has_not_ended<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let running = world.started(Script::RunsUntilStopped).await?;
    world.running(&running).await?;
    world.meanwhile().await?;
    world.running(&running).await?;
    world.stopped(running).await?;
    // And of one that ends by itself, the end is not told before.
    let ending = world.started(Script::RunsAndExits(3)).await?;
    world.ended(&ending).await?;
    world.expect_starts(&ending, 1).await
}

pub(super) async fn stops_end<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    expect_cancelled(world, Script::RunsUntilStopped).await
}

pub(super) async fn stops_end_the_stubborn<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    expect_cancelled(world, Script::IgnoresTheStop).await
}

pub(super) async fn stopped_is_not_ended_by_itself<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    expect_cancelled(world, Script::TrapsTheStop).await
}

async fn expect_cancelled<S: Subject>(world: &World<'_, S>, script: Script) -> anyhow::Result<()> {
    let case = world.started(script).await?;
    world.running(&case).await?;
    let (case, result) = world.stopped(case).await?;
    ensure!(
        result.outcome == Outcome::Cancelled && result.reason == "CancelRequested",
        "a process that was stopped came to {result:?}"
    );
    // Also afterwards, whoever comes late with an old copy.
    let (case, again) = world.stopped(case).await?;
    ensure!(
        again.outcome == Outcome::Cancelled,
        "after a second stop it is {again:?}"
    );
    world.expect_starts(&case, 1).await
}

pub(super) async fn an_earlier_end_keeps_its_code<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let mut case = world.started(Script::Exits(42)).await?;
    let end = world.ended(&case).await?;
    let own = |result: &JobResult| result.reason == "NonZeroExit" && result.exit_code == Some(42);
    // Times are whole seconds, and a tie is the stop's.
    let finished = end.finished_at.unwrap_or_else(Timestamp::now).as_second();
    let mut wait = world.wait(&case.job, "the second of the end to pass");
    while Timestamp::now().as_second() <= finished {
        wait.again(&"it not over").await?;
    }
    case.request_stop();
    case = world.stored(case).await?;
    for _ in 0..2 {
        world.stop_twice(&case).await?;
        world.meanwhile().await?;
    }
    let end = world.ended(&case).await?;
    let result = ending::attribute(&end, case.recorded()?.stop(), None);
    ensure!(
        own(&result),
        "a command that had exited with 42 came to {result:?}"
    );
    Ok(())
}

pub(super) async fn changes_are_told<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    // Its end, which nobody asked for.
    let case = world.accepted(Script::RunsAndExits(0)).await?;
    let case = world.start(case).await?;
    let mut wait = world.wait_for_change(&case.job, "its end to be among the changes");
    loop {
        match world.observe(&case).await? {
            State::Ended(_) => break,
            state => wait.again(&state).await?,
        }
    }
    // And what becomes of one that is told to end by another replica.
    let mut case = world.started(Script::RunsUntilStopped).await?;
    let mut wait = world.wait_for_change(&case.job, "its start to be among the changes");
    loop {
        match world.observe(&case).await? {
            State::Running(_) => break,
            state => wait.again(&state).await?,
        }
    }
    case.request_stop();
    let case = world.stored(case).await?;
    let mut wait = world.wait_for_change(&case.job, "its stop to be among the changes");
    world.stop_by(&world.other, &case).await?;
    loop {
        match world.observe(&case).await? {
            State::Running(running) if running.stopping_since.is_none() => wait.again(&running).await?,
            State::Held | State::Waiting(_) => bail!("what ran is shown as not started"),
            _ => break,
        }
    }
    world.stopped(case).await.map(drop)
}

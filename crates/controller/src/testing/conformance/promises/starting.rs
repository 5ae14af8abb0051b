//! Before a command runs.

use anyhow::{bail, ensure};
use ayatori_core::execution::{ExecutionName, Prospect, Remains, State};

use crate::backend::Backend;
use crate::testing::conformance::world::{World, does_not_apply};
use crate::testing::conformance::{Place, Script, Subject};

/// How many rights to create may be given out before creation counts as unbounded.
const MANY: usize = 1024;

pub(super) async fn nothing_is_shown_of_nothing<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let case = world.accepted(Script::Exits(0)).await?;
    let prospect = world.survey(&case).await?;
    ensure!(prospect == Ok(Prospect::Absent), "a survey shows {prospect:?}");
    let remains = world.remains(&case.leaving(world.identity.clone())).await?;
    ensure!(remains == Ok(Remains::Nothing), "what remains is {remains:?}");
    let mut invented = case.clone();
    invented.record(nobodys(), world.identity.clone());
    match world.observe(&invented).await? {
        State::Gone(_) | State::Unobservable(_) => Ok(()),
        state => bail!("an execution that never was is shown as {state:?}"),
    }
}

pub(super) async fn preparing_starts_nothing<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    world.only_hold()?;
    let case = world.prepared(Script::Exits(0)).await?;
    for replica in [&world.one, &world.other] {
        world.prepare_by(replica, &case).await?;
    }
    let case = world.recorded(case).await?;
    expect_held(world, &case).await?;
    world.meanwhile().await?;
    expect_held(world, &case).await
}

async fn expect_held<S: Subject>(
    world: &World<'_, S>,
    case: &crate::testing::conformance::case::Case,
) -> anyhow::Result<()> {
    world.expect_starts(case, 0).await?;
    let state = world.observe(case).await?;
    ensure!(
        state == State::Held,
        "what was prepared should be held, and is {state:?}"
    );
    Ok(())
}

pub(super) async fn the_recorded_starts_once<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    world.only_hold()?;
    let case = world.held(Script::RunsAndExits(0)).await?;
    let mut wait = world.wait(&case.job, "the start");
    loop {
        let (one, other) = futures::join!(
            world.one.backend.start(case.recorded()?, world.some()),
            world.other.backend.start(case.recorded()?, world.some()),
        );
        world.other.heard(other);
        if world.is_started(&case, &world.one.heard(one), &mut wait).await? {
            break;
        }
    }
    world.ended(&case).await?;
    world.expect_starts(&case, 1).await?;
    for replica in [&world.one, &world.other] {
        let late = replica.backend.start(case.recorded()?, world.some()).await;
        replica.heard(late);
    }
    world.meanwhile().await?;
    world.expect_starts(&case, 1).await
}

pub(super) async fn only_the_recorded_starts<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    world.only_hold()?;
    let prepared = world.prepared(Script::Exits(0)).await?;
    let (name, _) = world.found(&prepared).await?;
    // An old copy of the Job, of before its execution was lost and another one prepared.
    let mut names = vec![nobodys()];
    if name.uid.is_some() {
        names.push(ExecutionName {
            id: name.id,
            ..nobodys()
        });
    }
    for name in names {
        let mut invented = prepared.clone();
        invented.record(name, world.identity.clone());
        let answer = world.one.backend.start(invented.recorded()?, world.some()).await;
        world.one.heard(answer);
    }
    world.meanwhile().await?;
    world.expect_starts(&prepared, 0).await
}

pub(super) async fn namesakes_do_not_meet<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let name = world.fresh("namesake");
    let here = world
        .accepted_as(name.clone(), Place::Here, Script::RunsUntilStopped)
        .await?;
    let there = world
        .accepted_as(name, Place::Elsewhere, Script::RunsUntilStopped)
        .await?;
    let here = world.start(here).await?;
    world.running(&here).await?;
    let prospect = world.survey(&there).await?;
    ensure!(
        prospect == Ok(Prospect::Absent),
        "of a Job of which nothing exists its namesake is shown: {prospect:?}"
    );
    let there = world.start(there).await?;
    world.running(&there).await?;
    let (here, _) = world.stopped(here).await?;
    world.running(&there).await?;
    let (there, _) = world.stopped(there).await?;
    world.expect_starts(&here, 1).await?;
    world.expect_starts(&there, 1).await
}

pub(super) async fn creation_is_bounded<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let case = world.accepted(Script::Exits(0)).await?;
    let reserve =
        || -> anyhow::Result<_> { Ok(world.one.backend.reserve(case.accepted()?, &world.parameters)) };
    // A server that had no answer before may be left alone for a while.
    let mut slots = vec![world.slot(&case).await?];
    let mut wait = world.wait_for_change(&case.job, "a Job that was turned away to be woken");
    while let Ok(slot) = reserve()? {
        slots.push(slot);
        if slots.len() >= MANY {
            return Err(does_not_apply(
                "this backend does not bound how many are created at once",
            ));
        }
    }
    drop(slots);
    wait.again(&"nothing").await?;
    ensure!(
        reserve()?.is_ok(),
        "it was woken, and turned away again with all rights free"
    );
    Ok(())
}

fn nobodys() -> ExecutionName {
    let id = "00000000-0000-4000-8000-000000000000".to_owned();
    ExecutionName {
        uid: Some(id.clone()),
        id,
    }
}

//! What is given back, what is removed, and what is none of our business.

use anyhow::{bail, ensure};
use ayatori_core::execution::{Answer, Prospect, Protocol, Remains};

use crate::backend::Backend;
use crate::testing::conformance::case::Case;
use crate::testing::conformance::world::{World, is_done};
use crate::testing::conformance::{Fault, Script, Subject};

pub(super) async fn release_gives_back<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let mut case = world.finished(Script::RunsAndExits(0)).await?;
    release(world, &case).await?;
    release(world, &case).await?;
    case.release();
    let case = world.stored(case).await?;
    release(world, &case).await?;
    world.meanwhile().await?;
    let effects = world.effects(&case).await?;
    ensure!(!effects.running, "it was released, and its process runs");
    world.expect_starts(&case, 1).await
}

pub(super) async fn remove_leaves_nothing<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    // Ended and not given back: the case where everything is there.
    let case = world.finished(Script::RunsAndExits(0)).await?;
    expect_something(world, &case).await?;
    remove(world, &case).await?;
    world.expect_starts(&case, 1).await?;
    // Given back first, as usual.
    let mut case = world.finished(Script::Exits(7)).await?;
    release(world, &case).await?;
    case.release();
    let case = world.stored(case).await?;
    remove(world, &case).await
}

pub(super) async fn the_prepared_can_be_removed<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    world.only_hold()?;
    let case = world.prepared(Script::RunsUntilStopped).await?;
    world.found(&case).await?;
    expect_something(world, &case).await?;
    remove(world, &case).await?;
    world.meanwhile().await?;
    let prospect = world.survey(&case).await?;
    ensure!(
        prospect == Ok(Prospect::Absent),
        "what was removed is shown as {prospect:?}"
    );
    world.expect_starts(&case, 0).await
}

pub(super) async fn the_late_can_be_discarded<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let windows = world.only_single_shot()?;
    let case = world.accepted(Script::RunsUntilStopped).await?;
    let case = world.attempted(case, windows).await?;
    world.submit(&case).await?;
    // As if the answer had never come.
    let (name, _) = world.found(&case).await?;
    for replica in [&world.one, &world.other] {
        let mut wait = world.wait(&case.job, "what was created to be discarded");
        loop {
            let answer = replica
                .backend
                .discard(case.attempted()?, &name, world.some())
                .await;
            if is_done(&replica.heard(answer), &mut wait).await? {
                break;
            }
        }
    }
    let effects = world.effects(&case).await?;
    ensure!(!effects.running, "it was discarded, and its process runs");
    let prospect = world.survey(&case).await?;
    ensure!(
        prospect == Ok(Prospect::Absent),
        "what was discarded is shown as {prospect:?}"
    );
    Ok(())
}

pub(super) async fn strangers_are_left_alone<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let case = world.accepted(Script::Exits(0)).await?;
    world.cause(Fault::Stranger(&case.job)).await?;
    not_taken(world, &case).await?;
    if world.protocol == Protocol::Hold {
        // Whether this is rejected or done beside the stranger is the backend's own affair.
        let answer = world
            .one
            .backend
            .prepare(case.accepted()?, &world.parameters)
            .await;
        world.one.heard(answer);
    }
    remove(world, &case).await?;
    world.meanwhile().await?;
    not_taken(world, &case).await?;
    ensure!(
        world.subject.stranger_is_unharmed(&case.job).await?,
        "what somebody else made was changed or removed"
    );
    Ok(())
}

async fn not_taken<S: Subject>(world: &World<'_, S>, case: &Case) -> anyhow::Result<()> {
    match world.survey(case).await? {
        Ok(Prospect::Found(name, _) | Prospect::Pending(name, _)) => {
            bail!("what somebody else made is taken for the Job's own execution {name:?}")
        }
        Ok(Prospect::Absent | Prospect::Preparing(_) | Prospect::Spoilt(_) | Prospect::Conflict(_))
        | Err(_) => Ok(()),
    }
}

async fn release<S: Subject>(world: &World<'_, S>, case: &Case) -> anyhow::Result<()> {
    let mut wait = world.wait(&case.job, "the release");
    loop {
        let answer = world.one.backend.release(case.closed()?, world.some()).await;
        if is_done(&world.one.heard(answer), &mut wait).await? {
            return Ok(());
        }
    }
}

async fn expect_something<S: Subject>(world: &World<'_, S>, case: &Case) -> anyhow::Result<()> {
    let remains = world.remains(&case.leaving(world.identity.clone())).await?;
    ensure!(
        matches!(remains, Ok(Remains::Something(_))),
        "before a removal, what remains is {remains:?}"
    );
    Ok(())
}

/// Removes by both replicas until nothing remains, and once more.
async fn remove<S: Subject>(world: &World<'_, S>, case: &Case) -> anyhow::Result<()> {
    let leaving = case.leaving(world.identity.clone());
    let mut wait = world.wait(&case.job, "nothing to remain");
    loop {
        for replica in [&world.one, &world.other] {
            let answer = replica.backend.remove(leaving.departing()?, world.some()).await;
            if let Answer::Rejected(why) = replica.heard(answer) {
                bail!("a removal was rejected: {why:?}");
            }
        }
        match world.remains(&leaving).await? {
            Ok(Remains::Nothing) => break,
            other => wait.again(&other).await?,
        }
    }
    loop {
        let answer = world.one.backend.remove(leaving.departing()?, world.some()).await;
        if is_done(&world.one.heard(answer), &mut wait).await? {
            break;
        }
    }
    let effects = world.effects(case).await?;
    ensure!(
        !effects.running,
        "nothing remains, it is said, and its process runs"
    );
    Ok(())
}

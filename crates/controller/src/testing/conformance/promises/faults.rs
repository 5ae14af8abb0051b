//! When something goes wrong.

use anyhow::{bail, ensure};
use ayatori_core::ending;
use ayatori_core::execution::{Answer, Prospect, Protocol, Remains, State, Submission};
use ayatori_core::job::Outcome;

use crate::backend::Backend;
use crate::testing::conformance::case::Case;
use crate::testing::conformance::report::Beside;
use crate::testing::conformance::world::{CANARY, World};
use crate::testing::conformance::{Fault, Script, Subject};

pub(super) async fn what_vanished_is_no_success<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    // Where its deletion tells the process to end first, that exits with 0.
    let case = world.started(Script::TrapsTheStop).await?;
    world.running(&case).await?;
    world.cause(Fault::Deleted(&case.job)).await?;
    let mut wait = world.wait(&case.job, "it to be shown as gone, or ended by somebody");
    loop {
        match world.observe(&case).await? {
            State::Gone(_) => break,
            State::Ended(end) => {
                let result = ending::attribute(&end, None, None);
                ensure!(
                    result.outcome == Outcome::Failed,
                    "an execution that somebody deleted came to {result:?}"
                );
                break;
            }
            state => wait.again(&state).await?,
        }
    }
    world.meanwhile().await?;
    world.expect_starts(&case, 1).await
}

pub(super) async fn silence_proves_nothing<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let fresh = world.accepted(Script::Exits(0)).await?;
    let mut running = world.started(Script::RunsUntilStopped).await?;
    world.running(&running).await?;
    running.request_stop();
    let running = world.stored(running).await?;
    let finished = world.finished(Script::Exits(0)).await?;
    let held = match world.protocol {
        Protocol::Hold => Some(world.held(Script::Exits(0)).await?),
        Protocol::SingleShot(_) => None,
    };
    world
        .under(Fault::Unreachable, async {
            expect_nothing_proven(world, &running, &finished).await?;
            expect_nothing_absent(world, &fresh).await?;
            match &held {
                Some(held) => expect_not_started(world, held).await,
                None => Ok(()),
            }
        })
        .await?;
    // And all is as it was.
    world.running(&running).await?;
    let (running, _) = world.stopped(running).await?;
    world.expect_starts(&running, 1).await?;
    world.expect_starts(&fresh, 0).await
}

async fn expect_nothing_proven<S: Subject>(
    world: &World<'_, S>,
    running: &Case,
    finished: &Case,
) -> anyhow::Result<()> {
    match world.observe(running).await? {
        State::Running(_) | State::Unobservable(_) => {}
        state => bail!("what runs is shown as {state:?}"),
    }
    if let Ok(prospect @ (Prospect::Absent | Prospect::Spoilt(_))) = world.survey(running).await? {
        bail!("a survey of what runs shows {prospect:?}");
    }
    let stop = world.one.backend.stop(running.recorded()?, world.some()).await;
    expect_not_done(&world.one.heard(stop), "stop")?;
    let release = world.one.backend.release(finished.closed()?, world.some()).await;
    expect_not_done(&world.one.heard(release), "release")?;
    let leaving = finished.leaving(world.identity.clone());
    let remains = world.remains(&leaving).await?;
    ensure!(
        remains != Ok(Remains::Nothing),
        "of what was never given back nothing remains, it is said"
    );
    let remove = world.one.backend.remove(leaving.departing()?, world.some()).await;
    expect_not_done(&world.one.heard(remove), "removal")
}

async fn expect_nothing_absent<S: Subject>(world: &World<'_, S>, fresh: &Case) -> anyhow::Result<()> {
    // Without a record nothing of it can run: what remains of it may be called nothing. And where preparing twice is
    // harmless, an old look is good enough.
    if let Protocol::SingleShot(windows) = world.protocol {
        let prospect = world.survey(fresh).await?;
        ensure!(
            prospect.is_err(),
            "a survey that nobody answered shows {prospect:?}"
        );
        let attempted = world.attempted(fresh.clone(), windows).await?;
        let submission = world.submit(&attempted).await?;
        ensure!(
            !matches!(submission, Submission::Created(_)),
            "a create request that cannot have arrived came to {submission:?}"
        );
        return Ok(());
    }
    let prepare = world
        .one
        .backend
        .prepare(fresh.accepted()?, &world.parameters)
        .await;
    expect_not_done(&world.one.heard(prepare), "preparation")
}

async fn expect_not_started<S: Subject>(world: &World<'_, S>, held: &Case) -> anyhow::Result<()> {
    let start = world.one.backend.start(held.recorded()?, world.some()).await;
    expect_not_done(&world.one.heard(start), "start")
}

fn expect_not_done(answer: &Answer, effect: &str) -> anyhow::Result<()> {
    match answer {
        Answer::Done => bail!("a {effect} that cannot have arrived is done, it is said"),
        // It may have had nothing to ask for yet.
        Answer::Later(_) | Answer::Stale | Answer::Rejected(_) | Answer::Unavailable(_) => Ok(()),
    }
}

pub(super) async fn no_secret_is_told<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    // Refusals repeat the most. Without one, what was said until now is all there is.
    let case = world.accepted(Script::Exits(0)).await?;
    let refused = world
        .under(Fault::CreatesAreRefused, refused_create(world, &case))
        .await;
    let texts = world.one.said().into_iter().chain(world.other.said());
    if let Some(text) = texts.into_iter().find(|text| text.contains(CANARY)) {
        bail!("this was said: {}", text.replace(CANARY, "[the value]"));
    }
    match refused {
        Err(error) if error.is::<Beside>() => Ok(()),
        other => other,
    }
}

async fn refused_create<S: Subject>(world: &World<'_, S>, case: &Case) -> anyhow::Result<()> {
    match world.protocol {
        Protocol::Hold => {
            let answer = world
                .one
                .backend
                .prepare(case.accepted()?, &world.parameters)
                .await;
            let answer = world.one.heard(answer);
            ensure!(
                answer != Answer::Done,
                "a preparation that the server refused came to {answer:?}"
            );
        }
        Protocol::SingleShot(windows) => {
            let case = world.attempted(case.clone(), windows).await?;
            world.submit(&case).await?;
        }
    }
    Ok(())
}

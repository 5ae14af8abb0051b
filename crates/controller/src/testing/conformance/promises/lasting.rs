//! What runs for long.

use anyhow::bail;
use ayatori_core::execution::{Answer, State};
use jiff::Timestamp;

use crate::backend::Backend;
use crate::testing::conformance::case::Case;
use crate::testing::conformance::world::{World, does_not_apply};
use crate::testing::conformance::{Script, Subject};

pub(super) async fn renewing_puts_off_the_expiry<S: Subject>(world: &World<'_, S>) -> anyhow::Result<()> {
    let case = world.started(Script::RunsUntilStopped).await?;
    world.running(&case).await?;
    let Some(first) = renew_at(world, &case).await? else {
        world.stopped(case).await?;
        return Err(does_not_apply("executions do not expire here"));
    };
    let mut wait = world.wait(&case.job, "its renewal to be due later");
    loop {
        for replica in [&world.one, &world.other] {
            let answer = replica.backend.renew(case.recorded()?, world.some()).await;
            if let Answer::Rejected(why) = replica.heard(answer) {
                bail!("a renewal was rejected: {why:?}");
            }
        }
        match renew_at(world, &case).await? {
            Some(next) if next <= first => wait.again(&next).await?,
            Some(_) | None => break,
        }
    }
    world.running(&case).await?;
    let (case, _) = world.stopped(case).await?;
    world.expect_starts(&case, 1).await
}

/// When the execution of a Job asks for its renewal.
async fn renew_at<S: Subject>(world: &World<'_, S>, case: &Case) -> anyhow::Result<Option<Timestamp>> {
    match world.observe(case).await? {
        State::Running(running) => Ok(running.renew_at),
        state => bail!("what runs is shown as {state:?}"),
    }
}

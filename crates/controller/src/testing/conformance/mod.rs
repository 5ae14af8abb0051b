//! What every backend promises, run the same against each of them.
//!
//! An adapter's test implements [`Subject`]: it gives the backend, makes Jobs, tells what a Job's command really
//! did, and causes the faults it can. [`run`] then keeps every [`Promise`] to the test, on the backend itself and
//! without the loop: it stores in each Job what the loop would have stored, step by step, because nothing else
//! makes the types that effects take. Two replicas of the adapter take part, as in every real installation.
//!
//! ```no_run
//! # use ayatori_controller::testing::conformance::{self, Subject};
//! # async fn test(subject: impl Subject) -> anyhow::Result<()> {
//! conformance::run(&subject).await?.verdict()
//! # }
//! ```
//!
//! A promise is *kept* or *broken*; it *does not apply* where the backend starts commands by the other protocol;
//! and it is *not tried* where the subject cannot cause the fault it is about. What needs no fault, and the
//! faults that every backend meets ([`Fault::is_required`]), cannot be left untried.

mod case;
mod promise;
mod promises;
mod report;
mod subject;
mod world;

use futures::{StreamExt, stream};

pub use promise::Promise;
pub use report::{Report, Verdict};
pub use subject::{Effects, Fault, Order, Place, Script, Subject, Trouble};
use world::World;

/// How many promises are tried at the same time.
const AT_ONCE: usize = 6;

/// Tries every promise. An error means that the suite itself could not run.
pub async fn run<S: Subject>(subject: &S) -> anyhow::Result<Report> {
    try_these(subject, Promise::ALL).await
}

/// Tries some promises only, for whoever works on one of them. A backend conforms when [`run`] says so.
pub async fn try_these<S: Subject>(subject: &S, promises: &[Promise]) -> anyhow::Result<Report> {
    let world = World::new(subject).await?;
    let (alone, together): (Vec<_>, Vec<_>) = promises
        .iter()
        .copied()
        .partition(|promise| promise.is_tried_alone());
    let mut verdicts: Vec<_> = stream::iter(together)
        .map(|promise| judge(promise, &world))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    for promise in alone {
        verdicts.push(judge(promise, &world).await);
    }
    Ok(Report::new(verdicts))
}

async fn judge<S: Subject>(promise: Promise, world: &World<'_, S>) -> (Promise, Verdict) {
    // Boxed, or every promise takes the stack of the largest.
    let kept = promises::keep(promise, world).await;
    (promise, Verdict::of(kept))
}

//! What it costs when nothing happens.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Outcome, Size};
use crate::adapter::Adapter;
use crate::arena::{Arena, Limits};
use crate::audit::Request;
use crate::budgets::{IDLE_REQUESTS, IDLE_WRITES};
use crate::figures::{Figure, Spread, mebibytes, milliseconds};
use crate::herd::{Condition, LONG, Prototype};
use crate::peer::Peer;
use crate::stage::Stage;

pub(crate) const ABOUT: &str = "\
10,000 live Jobs and 10,000 finished ones, of which nothing changes for two minutes: CPU, memory and requests to the API \
server of the adapter, and of kube-controller-manager with the same batch Jobs and pods. A watch that ends after some \
minutes and begins again is no request of its own.";

const JOBS: u32 = 10_000;
/// How long everybody may take to grow quiet.
const SETTLING: Duration = Duration::from_secs(60);
/// How long nothing happens.
const REST: Duration = Duration::from_secs(120);

pub(crate) async fn measure(stage: &Stage, size: Size) -> anyhow::Result<Outcome> {
    let mut arena = Arena::open(stage, Limits::Lifted).await?;
    let mut adapter = Adapter::of_pods(&arena).await?;
    let jobs = size.of(JOBS);
    for (prefix, condition) in [("live", Condition::Live), ("finished", Condition::Finished)] {
        let prototype = Prototype::of(&arena, Peer::Ours, condition).await?;
        arena.lay_out(prototype.copies(prefix, 0..jobs, |_| LONG)).await?;
    }
    adapter.when_settled(2 * jobs).await?;
    tokio::time::sleep(size.time(SETTLING)).await;

    let rest = size.time(REST);
    let used = || anyhow::Ok((adapter.usage()?, arena.controller_manager()?));
    let (mark, before) = (arena.audit.mark(), used()?);
    tokio::time::sleep(rest).await;
    let (after, requests) = (used()?, arena.audit.since(mark)?);

    let a_second = |after: Duration, before: Duration| {
        Spread::one(milliseconds(after.saturating_sub(before)) / rest.as_secs_f64())
    };
    let a_minute = |count: usize| Spread::one(count as f64 * 60.0 / rest.as_secs_f64());
    let (of_adapter, of_manager): (Vec<&Request>, Vec<&Request>) =
        requests.iter().partition(|request| request.is_adapters());
    let count = |of: &[&Request], counts: fn(&Request) -> bool| of.iter().filter(|r| counts(r)).count();
    let writes = count(&of_adapter, |r| r.is_write());
    let others = count(&of_adapter, |r| !r.is_lease() && r.verb != "watch");
    let mut words: BTreeMap<String, usize> = BTreeMap::new();
    for request in &of_adapter {
        *words.entry(request.words()).or_default() += 1;
    }
    for (words, count) in words {
        eprintln!("idle: {count} × {words}");
    }
    let figures = vec![
        Figure::new(IDLE_WRITES, "", Spread::one(writes as f64)).beside(
            "controller-manager",
            Spread::one(count(&of_manager, |r| r.is_write()) as f64),
        ),
        Figure::new(IDLE_REQUESTS, "", Spread::one(others as f64)),
        Figure::new(
            "requests at rest, with leases",
            "/min",
            a_minute(of_adapter.len()),
        )
        .beside("controller-manager", a_minute(of_manager.len())),
        Figure::new("CPU at rest", "ms/s", a_second(after.0.cpu, before.0.cpu))
            .beside("controller-manager", a_second(after.1.cpu, before.1.cpu)),
        Figure::new("memory at rest", "MiB", Spread::one(mebibytes(after.0.resident)))
            .beside("controller-manager", Spread::one(mebibytes(after.1.resident))),
    ];
    adapter.stop().await?;
    arena.close().await?;
    Ok(figures.into())
}

//! What the adapter holds in memory, by the Jobs that are there.

use std::time::Duration;

use super::{Outcome, Size};
use crate::adapter::Adapter;
use crate::arena::{Arena, Limits};
use crate::budgets::{MEMORY, MEMORY_CYCLES, MEMORY_PER_JOB};
use crate::chronicle::Moment;
use crate::figures::{Figure, Spread, mebibytes};
use crate::herd::{Condition, LONG, Prototype};
use crate::peer::{HERD, Peer};
use crate::stage::Stage;

pub(crate) const ABOUT: &str = "\
Resident memory after 10,000 live Jobs have come, half of them at a time, and after 10,000 finished ones have come \
besides. kube-controller-manager's is that on the same batch Jobs and pods. Then a thousand Jobs at a time end their TTL \
and are deleted, ten times.";

const JOBS: u32 = 10_000;
const CYCLES: u32 = 10;
const A_CYCLE: u32 = 1_000;
/// How long everybody may take to grow quiet.
const REST: Duration = Duration::from_secs(10);

pub(crate) async fn measure(stage: &Stage, size: Size) -> anyhow::Result<Outcome> {
    let mut arena = Arena::open(stage, Limits::Lifted).await?;
    let mut adapter = Adapter::of_pods(&arena).await?;
    let live = Prototype::of(&arena, Peer::Ours, Condition::Live).await?;
    let finished = Prototype::of(&arena, Peer::Ours, Condition::Finished).await?;

    let (jobs, half) = (size.of(JOBS), size.of(JOBS) / 2);
    let empty = Resident::of(&arena, &adapter)?;
    let mut at = Vec::new();
    for numbers in [0..half, half..jobs] {
        let (end, come) = (numbers.end, numbers.end - numbers.start);
        join(
            &mut arena,
            &mut adapter,
            live.copies("live", numbers, |_| LONG),
            come,
        )
        .await?;
        at.push(Resident::of(&arena, &adapter)?);
        eprintln!("memory: {end} live Jobs are there");
    }
    let [by_half, by_all] = at.as_slice() else {
        anyhow::bail!("two halves are no whole");
    };
    join(
        &mut arena,
        &mut adapter,
        finished.copies("finished", 0..jobs, |_| LONG),
        jobs,
    )
    .await?;
    let besides = Resident::of(&arena, &adapter)?;

    let later = |later: &Resident, earlier: &Resident, jobs: u32| {
        let per_job = |later: f64, earlier: f64| (later - earlier) * 1024.0 / f64::from(jobs);
        Resident {
            adapter: per_job(later.adapter, earlier.adapter),
            controller_manager: per_job(later.controller_manager, earlier.controller_manager),
        }
    };
    let mut figures = vec![
        empty.shown("memory without a Job", "MiB"),
        by_all.shown(MEMORY, "MiB"),
        later(by_all, by_half, jobs - half).shown(MEMORY_PER_JOB, "KiB"),
        besides.shown("memory with as many finished ones besides", "MiB"),
        later(&besides, by_all, jobs).shown("memory per finished Job", "KiB"),
        Figure::new(
            "the most it ever held until then",
            "MiB",
            Spread::one(mebibytes(adapter.usage()?.peak)),
        ),
    ];
    figures.push(cycles(&mut arena, &mut adapter, &finished, size.of(A_CYCLE)).await?);
    adapter.stop().await?;
    arena.close().await?;
    Ok(figures.into())
}

/// The memory of both.
struct Resident {
    adapter: f64,
    controller_manager: f64,
}

impl Resident {
    /// What they hold now, in MiB.
    fn of(arena: &Arena<'_>, adapter: &Adapter) -> anyhow::Result<Self> {
        Ok(Self {
            adapter: mebibytes(adapter.usage()?.resident),
            controller_manager: mebibytes(arena.controller_manager()?.resident),
        })
    }

    fn shown(&self, what: &str, unit: &str) -> Figure {
        let peer = Spread::one(self.controller_manager);
        Figure::new(what, unit, Spread::one(self.adapter)).beside("controller-manager", peer)
    }
}

/// Lets Jobs come, and waits until everybody has looked at them.
async fn join(
    arena: &mut Arena<'_>,
    adapter: &mut Adapter,
    herd: impl Iterator<Item = crate::store::Entry>,
    jobs: u32,
) -> anyhow::Result<()> {
    let looked = adapter.reconciles().await? as u32;
    arena.lay_out(herd).await?;
    adapter.when_settled(looked.saturating_add(jobs)).await?;
    tokio::time::sleep(REST).await;
    Ok(())
}

/// Memory after the last three cycles by that after the first three.
async fn cycles(
    arena: &mut Arena<'_>,
    adapter: &mut Adapter,
    prototype: &Prototype,
    jobs: u32,
) -> anyhow::Result<Figure> {
    let mut after = Vec::new();
    for cycle in 0..CYCLES {
        let watching = arena.chronicle.watch(&arena.client, HERD);
        let name = format!("cycle-{cycle}");
        // They are over since a while.
        arena.lay_out(prototype.copies(&name, 0..jobs, |_| 1)).await?;
        arena
            .chronicle
            .when(Peer::Ours, &name, jobs as usize, Moment::Gone)
            .await?;
        drop(watching);
        arena.chronicle.clear();
        tokio::time::sleep(REST / 2).await;
        after.push(mebibytes(adapter.usage()?.resident));
        eprintln!("memory: TTL cycle {} of {CYCLES}", cycle + 1);
    }
    let median = |three: &[f64]| Spread::of(three).median;
    let first = median(after.get(..3).unwrap_or_default());
    let last = median(after.get(after.len().saturating_sub(3)..).unwrap_or_default());
    Ok(Figure::new(MEMORY_CYCLES, "", Spread::one(last / first)))
}

//! What becomes of throughput, memory and restarts when more and more Jobs are there.

use std::collections::BTreeMap;
use std::time::Duration;

use super::restart::Starts;
use super::throughput::Round;
use super::{Outcome, Size};
use crate::adapter::Adapter;
use crate::arena::{Arena, Limits};
use crate::figures::{Curve, mebibytes};
use crate::herd::{Condition, LONG, Prototype};
use crate::peer::Peer;
use crate::stage::Stage;

pub(crate) const ABOUT: &str = "\
With 1,000, 2,000, 5,000, 10,000 and 20,000 live Jobs: 300 more created all at once, the memory of the adapter to which \
all of them came while it ran, and the start of a new one.";

const SIZES: [u32; 5] = [1_000, 2_000, 5_000, 10_000, 20_000];
/// How many Jobs are created beside those that are there.
const MORE: u32 = 300;
/// How long everybody may take to grow quiet.
const REST: Duration = Duration::from_secs(10);

pub(crate) async fn measure(stage: &Stage, size: Size) -> anyhow::Result<Outcome> {
    let mut arena = Arena::open(stage, Limits::Lifted).await?;
    let mut adapter = Adapter::of_pods(&arena).await?;
    let prototype = Prototype::of(&arena, Peer::Ours, Condition::Live).await?;
    let (mut throughput, mut memory, mut restart) = (Lines::new(), Lines::new(), Lines::new());
    let mut there = 0;
    for jobs in SIZES.map(|jobs| size.of(jobs)) {
        if jobs <= there {
            // A trial ends at its bound.
            break;
        }
        let looked = adapter.reconciles().await? as u32;
        arena
            .lay_out(prototype.copies("live", there..jobs, |_| LONG))
            .await?;
        adapter.when_settled(looked.saturating_add(jobs - there)).await?;
        there = jobs;
        tokio::time::sleep(REST).await;
        memory.add("adapter", jobs, mebibytes(adapter.usage()?.resident));
        let manager = arena.controller_manager()?.resident;
        memory.add("controller-manager", jobs, mebibytes(manager));

        for peer in [Peer::Native, Peer::Ours] {
            let round = Round::run(&arena, &adapter, peer, size.of(MORE), &format!("g{jobs}")).await?;
            throughput.add(peer.name(), jobs, round.rate());
        }

        adapter.stop().await?;
        let starts = Starts::measure(&arena, jobs, 1).await?;
        restart.add("adapter", jobs, median(&starts.took));
        restart.add("bare LIST", jobs, median(&starts.listed));
        adapter = Adapter::of_pods(&arena).await?;
        adapter.when_settled(jobs).await?;
        eprintln!("growth: {jobs} live Jobs");
    }
    adapter.stop().await?;
    arena.close().await?;
    Ok(Outcome {
        figures: Vec::new(),
        curves: vec![
            throughput.named("Throughput beside live Jobs", "Jobs/s"),
            memory.named("Memory by live Jobs", "MiB"),
            restart.named("Restart by live Jobs", "ms"),
        ],
    })
}

fn median(samples: &[f64]) -> f64 {
    crate::figures::quantile(samples, 0.5)
}

/// The lines of one plot.
struct Lines(BTreeMap<String, Vec<(u32, f64)>>);

impl Lines {
    fn new() -> Self {
        Self(BTreeMap::new())
    }

    fn add(&mut self, name: &str, jobs: u32, value: f64) {
        self.0.entry(name.to_owned()).or_default().push((jobs, value));
    }

    fn named(self, what: &str, unit: &str) -> Curve {
        Curve {
            what: what.to_owned(),
            unit: unit.to_owned(),
            lines: self.0,
        }
    }
}

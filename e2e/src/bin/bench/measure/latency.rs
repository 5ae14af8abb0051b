//! How long one Job waits.

use std::time::{Duration, Instant};

use futures::future::try_join_all;

use super::{Outcome, Size};
use crate::adapter::Adapter;
use crate::arena::{Arena, Limits};
use crate::budgets::{ADDED_P50, ADDED_P99, AFTER_CONDITION};
use crate::chronicle::{Life, Moment};
use crate::figures::{Figure, Spread, milliseconds, quantile};
use crate::herd;
use crate::peer::{Peer, Work};
use crate::stage::Stage;

pub(crate) const ABOUT: &str = "\
As a caller who watches sees it: from the request that creates a Job until it says Started (native: until its pod is \
shown as Running), and from the end of its command until it says Finished (native: Complete). One Job at a time, native \
and ours in turn, and then five new ones a second. A command runs for half a second. Latency that is added is the \
difference of the two quantiles; that of Finished is against the condition of the Job's own batch Job, and below zero \
where the adapter was first.";

/// How many Jobs of each peer, one at a time.
const ALONE: u32 = 100;
/// How many at five a second.
const AT_FIVE: u32 = 150;
const PERIOD: Duration = Duration::from_millis(200);
/// How long a command runs, in milliseconds.
const RUNS: u32 = 500;

pub(crate) async fn measure(stage: &Stage, size: Size) -> anyhow::Result<Outcome> {
    let arena = Arena::open(stage, Limits::Lifted).await?;
    let adapter = Adapter::of_pods(&arena).await?;
    let watching = Peer::BOTH.map(|peer| arena.chronicle.watch(&arena.client, peer.namespace()));

    for number in 0..size.of(ALONE) {
        for peer in Peer::BOTH {
            live(&arena, peer, &format!("alone-{number:06}")).await?;
        }
        if number % 20 == 19 {
            eprintln!("latency: {} Jobs of each, one at a time", number + 1);
        }
    }
    for peer in Peer::BOTH {
        let lives = (0..size.of(AT_FIVE)).map(async |number| {
            tokio::time::sleep(PERIOD * number).await;
            live(&arena, peer, &format!("five-{number:06}")).await
        });
        try_join_all(lives).await?;
        eprintln!("latency: {} at five a second", peer.name());
    }
    let mut figures = Vec::new();
    for (prefix, when) in [("alone", "one at a time"), ("five", "five a second")] {
        let lives = |peer| arena.chronicle.lives_of(peer, prefix);
        figures.extend(compared(when, &lives(Peer::Ours), &lives(Peer::Native)));
    }
    let alone = |peer: Peer| {
        between(
            &arena.chronicle.lives_of(peer, "alone"),
            Moment::Asked,
            peer.start(),
        )
    };
    for (what, q) in [(ADDED_P50, 0.5), (ADDED_P99, 0.99)] {
        let added = quantile(&alone(Peer::Ours), q) - quantile(&alone(Peer::Native), q);
        figures.push(Figure::new(what, "ms", Spread::one(added)));
    }
    let own = between(
        &arena.chronicle.lives_of(Peer::Ours, "alone"),
        Moment::BatchJobEnds,
        Moment::Finished,
    );
    figures.push(Figure::new(AFTER_CONDITION, "ms", Spread::of(&own)));
    drop(watching);
    for peer in Peer::BOTH {
        herd::forget(&arena.store, peer.namespace()).await?;
    }
    adapter.stop().await?;
    arena.close().await?;
    Ok(figures.into())
}

/// One Job from its creation to its end.
pub(crate) async fn live(arena: &Arena<'_>, peer: Peer, name: &str) -> anyhow::Result<()> {
    arena.chronicle.note(peer, name, Moment::Asked);
    let work = Work::of_milliseconds(RUNS);
    peer.create(&arena.client, peer.namespace(), name, &work).await?;
    arena.chronicle.when(peer, name, 1, peer.end()).await?;
    if peer == Peer::Ours {
        // Its own batch Job may say it later.
        arena.chronicle.when(peer, name, 1, Moment::BatchJobEnds).await?;
    }
    Ok(())
}

fn compared(when: &str, ours: &[Life], native: &[Life]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (q, quantile) in [(0.5, "p50"), (0.99, "p99")] {
        let to_started = (
            "create to Started",
            Moment::Asked,
            Peer::start as fn(Peer) -> Moment,
        );
        let to_finished = ("end to Finished", Moment::Ends, Peer::end as fn(Peer) -> Moment);
        for (part, from, to) in [to_started, to_finished] {
            let of = |lives: &[Life], peer: Peer| Spread::quantile(&between(lives, from, to(peer)), q);
            let figure = Figure::new(&format!("{part}, {when}, {quantile}"), "ms", of(ours, Peer::Ours));
            figures.push(figure.beside("native", of(native, Peer::Native)));
        }
    }
    figures
}

/// The times from one moment to another, in milliseconds; below zero where the other came first.
pub(crate) fn between(lives: &[Life], from: Moment, to: Moment) -> Vec<f64> {
    let time = |life: &Life| Some(signed(*life.get(&from)?, *life.get(&to)?));
    lives.iter().filter_map(time).collect()
}

fn signed(from: Instant, to: Instant) -> f64 {
    milliseconds(to.saturating_duration_since(from)) - milliseconds(from.saturating_duration_since(to))
}

//! How soon after the end of its TTL a Job goes.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;

use super::{Outcome, Size};
use crate::adapter::Adapter;
use crate::arena::{Arena, Limits};
use crate::budgets::{TTL_EARLIEST, TTL_P99, TTL_RATE};
use crate::chronicle::Moment;
use crate::figures::{Figure, Spread, milliseconds, quantile};
use crate::herd::{Condition, Prototype};
use crate::peer::{HERD, Peer};
use crate::stage::Stage;

pub(crate) const ABOUT: &str = "\
10,000 finished Jobs, each with its batch Job and its pod, whose TTLs end over one minute. Late is a deletion by how long \
after the end of the TTL a caller who watches sees that it was asked for; that all of the Job is gone takes as long as \
kube-controller-manager then takes with its pods. The rate of deletions is that from the first until the last, or until a \
minute after the last was due.";

const JOBS: u32 = 10_000;
/// Over how many seconds the TTLs end.
const OVER: u32 = 60;
/// How many Jobs can be laid out in a second, at least.
const A_SECOND: u32 = 150;
/// How long is waited for what is late.
const PATIENCE: Duration = Duration::from_secs(60);
const PREFIX: &str = "due";

pub(crate) async fn measure(stage: &Stage, size: Size) -> anyhow::Result<Outcome> {
    let jobs = size.of(JOBS);
    let lifted = Expiry::of(stage, Peer::Ours, Limits::Lifted, jobs).await?;
    let native_lifted = Expiry::of(stage, Peer::Native, Limits::Lifted, jobs).await?;
    let ours = Expiry::of(stage, Peer::Ours, Limits::Default, jobs).await?;
    let native = Expiry::of(stage, Peer::Native, Limits::Default, jobs).await?;

    let late = |expiry: &Expiry, q| Spread::quantile(&expiry.late, q);
    let beside = |what: &str, q| {
        Figure::new(what, "ms", late(&lifted, q)).beside("native, without limits", late(&native_lifted, q))
    };
    Ok(vec![
        beside(TTL_EARLIEST, 0.0),
        beside("lateness of deletions, 10,000 a minute, p50", 0.5),
        beside(TTL_P99, 0.99),
        Figure::new("Jobs deleted", "", Spread::one(lifted.late.len() as f64)).beside(
            "native, without limits",
            Spread::one(native_lifted.late.len() as f64),
        ),
        Figure::new(TTL_RATE, "/s", Spread::one(ours.rate)).beside("native", Spread::one(native.rate)),
        Figure::new(
            "deletions a second, controller-manager without limits",
            "/s",
            Spread::one(lifted.rate),
        )
        .beside("native", Spread::one(native_lifted.rate)),
        Figure::new("Jobs gone by then", "", Spread::one(lifted.gone as f64))
            .beside("native, without limits", Spread::one(native_lifted.gone as f64)),
    ]
    .into())
}

/// What became of Jobs whose TTL ended.
struct Expiry {
    /// By how many milliseconds each deletion was late.
    late: Vec<f64>,
    /// Deletions a second.
    rate: f64,
    /// How many were gone in the end.
    gone: usize,
}

impl Expiry {
    async fn of(stage: &Stage, peer: Peer, limits: Limits, jobs: u32) -> anyhow::Result<Self> {
        let mut arena = Arena::open(stage, limits).await?;
        let adapter = Adapter::of_pods(&arena).await?;
        let prototype = Prototype::of(&arena, peer, Condition::Finished).await?;
        let finished = prototype
            .finished
            .context("the prototype has not finished")?
            .as_second();
        let watching = arena.chronicle.watch(&arena.client, HERD);

        let (now, clock) = (SystemTime::now(), Instant::now());
        let now = now.duration_since(SystemTime::UNIX_EPOCH)?;
        let first = i64::try_from(now.as_secs())? + i64::from(10 + jobs / A_SECOND);
        let due = |number: u32| first + i64::from(number * OVER / jobs);
        let ttl = |number: u32| i32::try_from(due(number) - finished).unwrap_or(i32::MAX);
        arena.lay_out(prototype.copies(PREFIX, 0..jobs, ttl)).await?;
        let instant = |second: i64| {
            let since = Duration::from_secs(u64::try_from(second).unwrap_or_default());
            clock + since.saturating_sub(now)
        };
        let end = instant(first + i64::from(OVER)) + PATIENCE;
        let all = jobs as usize;
        let mut interval = tokio::time::interval(Duration::from_millis(500));
        while arena.chronicle.count(peer, PREFIX, Moment::Leaves) < all && Instant::now() < end {
            interval.tick().await;
        }
        let gone = arena.chronicle.count(peer, PREFIX, Moment::Gone);
        drop(watching);

        let left = |number: u32| {
            arena
                .chronicle
                .moment(peer, &format!("{PREFIX}-{number:06}"), Moment::Leaves)
        };
        let late = |number: u32| {
            let (left, due) = (left(number)?, instant(due(number)));
            let early = due.saturating_duration_since(left);
            Some(milliseconds(left.saturating_duration_since(due)) - milliseconds(early))
        };
        let late: Vec<f64> = (0..jobs).filter_map(late).collect();
        let times: Vec<f64> = (0..jobs)
            .filter_map(left)
            .map(|left| left.saturating_duration_since(clock).as_secs_f64())
            .collect();
        let took = quantile(&times, 1.0) - quantile(&times, 0.0);
        eprintln!(
            "ttl: {} {limits:?}: {} of {jobs} deleted, {gone} gone",
            peer.name(),
            late.len()
        );
        adapter.stop().await?;
        arena.close().await?;
        Ok(Self {
            rate: if took > 0.0 { late.len() as f64 / took } else { 0.0 },
            late,
            gone,
        })
    }
}

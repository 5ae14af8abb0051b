//! How many Jobs a second, and what one costs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};

use super::{Outcome, PAUSE, Size};
use crate::adapter::Adapter;
use crate::arena::{Arena, Limits};
use crate::audit::Request;
use crate::budgets::{
    CPU_PER_JOB, READS, THROUGHPUT_DEFAULT, THROUGHPUT_LIFTED, WRITES_AFTERWARDS, WRITES_AT_ONCE,
    WRITES_TO_FINISHED,
};
use crate::chronicle::Moment;
use crate::figures::{Figure, Spread, milliseconds};
use crate::herd;
use crate::peer::{Peer, Runs, Work};
use crate::replay;
use crate::stage::Stage;

pub(crate) const ABOUT: &str = "\
Jobs created all at once, from the first request until the last Job is seen to have ended, in rounds of native and ours \
in turn: 300 a round where kube-controller-manager keeps its default limits, 1,000 where it has none. CPU is that of a \
round by its Jobs. Writes are counted Job by Job over a whole life with a TTL, as are \
reads; those of a class and of its parameters are not of a Job. The bound is what is left when one life of a Job is \
recorded and its writes are made again, by a client that decides nothing and while no adapter runs: what the writes alone \
cost.";

/// How many creations are under way at a time.
const CREATIONS: usize = 16;

/// What is measured with which limits.
struct Trial {
    limits: Limits,
    what: &'static str,
    jobs: u32,
    rounds: u32,
}

const TRIALS: [Trial; 2] = [
    Trial {
        limits: Limits::Default,
        what: THROUGHPUT_DEFAULT,
        jobs: 300,
        rounds: 2,
    },
    Trial {
        limits: Limits::Lifted,
        what: THROUGHPUT_LIFTED,
        jobs: 1_000,
        rounds: 3,
    },
];
/// How many Jobs are followed from their creation until they are gone.
const WHOLE_LIVES: u32 = 100;
/// How many seconds each stays after its end: long enough to be released first.
const TTL: i32 = 3;

pub(crate) async fn measure(stage: &Stage, size: Size) -> anyhow::Result<Outcome> {
    let mut figures = Vec::new();
    for trial in TRIALS {
        let arena = Arena::open(stage, trial.limits).await?;
        let mut adapter = Adapter::of_pods(&arena).await?;
        let jobs = size.of(trial.jobs);
        let mut rounds: BTreeMap<Peer, Vec<Round>> = BTreeMap::new();
        for number in 0..trial.rounds {
            for peer in [Peer::Native, Peer::Ours] {
                let round = Round::run(&arena, &adapter, peer, jobs, &format!("r{number}")).await?;
                eprintln!("throughput: {} {:.1} Jobs/s", peer.name(), round.rate());
                rounds.entry(peer).or_default().push(round);
            }
        }
        // One more, so that native is held against native on both sides of ours.
        let last = Round::run(&arena, &adapter, Peer::Native, jobs, "last").await?;
        rounds.entry(Peer::Native).or_default().push(last);
        let of = |peer| rounds.get(&peer).map(Vec::as_slice).unwrap_or_default();
        figures.extend(compared(trial.what, of(Peer::Ours), of(Peer::Native)));
        if trial.limits == Limits::Lifted {
            figures.extend(costs(of(Peer::Ours), of(Peer::Native)));
            figures.extend(writes(&arena, size.of(WHOLE_LIVES)).await?);
        }
        adapter.check()?;
        if trial.limits == Limits::Lifted {
            let life = replay::Life::record(&arena, &Work::NOTHING).await?;
            adapter.stop().await?;
            let native: Vec<f64> = of(Peer::Native).iter().map(Round::rate).collect();
            figures.push(
                life.bound(&arena, jobs)
                    .await?
                    .beside("native", Spread::of(&native)),
            );
        } else {
            adapter.stop().await?;
        }
        arena.close().await?;
    }
    Ok(figures.into())
}

/// One round of one peer.
pub(crate) struct Round {
    jobs: u32,
    took: Duration,
    /// CPU of each process in milliseconds per Job, by name.
    cpu: BTreeMap<&'static str, f64>,
}

impl Round {
    /// Creates so many Jobs at once and waits until all have ended; afterwards nothing is left of them.
    pub(crate) async fn run(
        arena: &Arena<'_>,
        adapter: &Adapter,
        peer: Peer,
        jobs: u32,
        name: &str,
    ) -> anyhow::Result<Self> {
        let watching = arena.chronicle.watch(&arena.client, peer.namespace());
        let before = processor_times(arena, adapter)?;
        let begin = Instant::now();
        let creations = stream::iter(0..jobs).map(Ok::<_, anyhow::Error>);
        creations
            .try_for_each_concurrent(CREATIONS, async |number| {
                let name = format!("{name}-{number:06}");
                let created = peer
                    .create(&arena.client, peer.namespace(), &name, &Work::NOTHING)
                    .await;
                created.with_context(|| format!("creating {name}"))
            })
            .await?;
        arena
            .chronicle
            .when(peer, name, jobs as usize, peer.end())
            .await?;
        let lives = arena.chronicle.lives_of(peer, name);
        let ended = lives.iter().filter_map(|life| life.get(&peer.end())).max();
        let took = ended.context("no Job has ended")?.duration_since(begin);
        let after = processor_times(arena, adapter)?;
        drop(watching);
        herd::forget(&arena.store, peer.namespace()).await?;
        arena.chronicle.clear();
        tokio::time::sleep(PAUSE).await;
        let cpu = before.into_iter().zip(after);
        let cpu = cpu.map(|((name, before), (_, after))| {
            (name, milliseconds(after.saturating_sub(before)) / f64::from(jobs))
        });
        Ok(Self {
            jobs,
            took,
            cpu: cpu.collect(),
        })
    }

    /// Jobs a second.
    pub(crate) fn rate(&self) -> f64 {
        f64::from(self.jobs) / self.took.as_secs_f64()
    }
}

const ADAPTER: &str = "adapter";
const CONTROLLER_MANAGER: &str = "controller-manager";

fn processor_times(arena: &Arena<'_>, adapter: &Adapter) -> anyhow::Result<[(&'static str, Duration); 5]> {
    Ok([
        (ADAPTER, adapter.usage()?.cpu),
        (CONTROLLER_MANAGER, arena.controller_manager()?.cpu),
        ("API server", arena.apiserver.usage()?.cpu),
        ("etcd", arena.etcd.usage()?.cpu),
        ("scheduler", arena.scheduler.usage()?.cpu),
    ])
}

fn compared(what: &str, ours: &[Round], native: &[Round]) -> Vec<Figure> {
    let rates = |rounds: &[Round]| rounds.iter().map(Round::rate).collect::<Vec<_>>();
    let (ours, native) = (Spread::of(&rates(ours)), Spread::of(&rates(native)));
    let figure = Figure::new(what, "Jobs/s", ours).beside("native", native);
    vec![figure.with_noise(native.low / native.high)]
}

/// What a Job costs each process.
fn costs(ours: &[Round], native: &[Round]) -> Vec<Figure> {
    let of = |rounds: &[Round], process: &str| {
        let times: Vec<f64> = rounds
            .iter()
            .filter_map(|round| round.cpu.get(process).copied())
            .collect();
        Spread::of(&times)
    };
    let mut figures = vec![
        Figure::new(CPU_PER_JOB, "ms", of(ours, ADAPTER))
            .beside("controller-manager, native", of(native, CONTROLLER_MANAGER)),
    ];
    for process in [CONTROLLER_MANAGER, "API server", "etcd", "scheduler"] {
        let what = format!("CPU of the {process} per Job of ours");
        figures.push(Figure::new(&what, "ms", of(ours, process)).beside("native", of(native, process)));
    }
    figures
}

/// Writes and reads of the adapter for one Job after another, over whole lives.
async fn writes(arena: &Arena<'_>, jobs: u32) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let mut afterwards = Vec::new();
    let mut reads = Vec::new();
    // Half a second is long enough for Started to be written alone.
    for (kind, what, runs) in [
        ("seen", WRITES_TO_FINISHED, Runs::For(500)),
        ("unseen", WRITES_AT_ONCE, Runs::Unseen),
    ] {
        let watching = arena.chronicle.watch(&arena.client, Peer::Ours.namespace());
        let mark = arena.audit.mark();
        let work = Work {
            runs,
            ttl_seconds: Some(TTL),
            ..Work::NOTHING
        };
        let name = |number: u32| format!("{kind}-{number:06}");
        for number in 0..jobs {
            Peer::Ours
                .create(&arena.client, Peer::Ours.namespace(), &name(number), &work)
                .await?;
        }
        let prefix = format!("{kind}-");
        arena
            .chronicle
            .when(Peer::Ours, &prefix, jobs as usize, Moment::Gone)
            .await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(watching);
        let requests = arena.audit.since(mark)?;
        let lives: Vec<Asked> = (0..jobs)
            .map(|number| Asked::of(&requests, &name(number)))
            .collect();
        if let Some(life) = lives.first() {
            eprintln!("throughput: asked about one Job: {}", life.words.join(", "));
        }
        let before: Vec<f64> = lives.iter().map(|life| life.writes_before).collect();
        figures.push(Figure::new(what, "", Spread::of(&before)));
        afterwards.extend(lives.iter().map(|life| life.writes_afterwards));
        reads.extend(lives.iter().map(|life| life.reads_before));
        arena.chronicle.clear();
    }
    figures.push(Figure::new(WRITES_AFTERWARDS, "", Spread::of(&afterwards)));
    figures.push(Figure::new(READS, "", Spread::of(&reads)));
    Ok(figures)
}

/// What the adapter asked about one Job, Events apart.
struct Asked {
    writes_before: f64,
    writes_afterwards: f64,
    reads_before: f64,
    words: Vec<String>,
}

impl Asked {
    fn of(requests: &[Request], name: &str) -> Self {
        let about = |r: &&Request| r.is_adapters() && !r.is_event() && r.object_ref.name.starts_with(name);
        let its: Vec<&Request> = requests.iter().filter(about).collect();
        // The first write to its pod lets it start. What follows Finished is the one that lets it go, or a deletion.
        let mut pods = 0;
        let follows = |r: &&Request| {
            pods += u32::from(r.object_ref.resource == "pods" && r.is_write());
            pods == 2 || r.verb == "delete"
        };
        let finished = its.iter().position(follows).unwrap_or(its.len());
        let (before, afterwards) = its.split_at(finished);
        let count = |of: &[&Request], counts: fn(&Request) -> bool| {
            of.iter().filter(|request| counts(request)).count() as f64
        };
        Self {
            writes_before: count(before, Request::is_write),
            writes_afterwards: count(afterwards, Request::is_write),
            reads_before: count(before, Request::is_read),
            words: its.iter().map(|request| request.words()).collect(),
        }
    }
}

//! How soon a new process has looked at every Job.

use std::time::{Duration, Instant};

use anyhow::Context;
use kube::Client;
use serde::Deserialize;

use super::{Outcome, Size};
use crate::adapter::Adapter;
use crate::arena::{Arena, Limits};
use crate::audit::Request;
use crate::budgets::{RESTART, RESTART_WRITES};
use crate::figures::{Figure, Spread, mebibytes, milliseconds};
use crate::herd::{Condition, LONG, Prototype};
use crate::peer::Peer;
use crate::stage::Stage;

pub(crate) const ABOUT: &str = "\
From the start of the adapter's process until it leads and has looked at each of 10,000 live Jobs, against the time that \
a client takes to LIST the same Jobs, batch Jobs and pods, all three at once, in the pages in which the adapter asks for \
them, without looking at what it reads.";

const JOBS: u32 = 10_000;
/// How often it is started.
const STARTS: u32 = 5;
/// How many objects a client asks for at a time.
const PAGE: u32 = 500;
/// What the adapter reads in numbers.
const LISTS: [&str; 3] = [
    "/apis/execution.ayatori.ddupan.top/v1alpha1/jobs",
    "/apis/batch/v1/jobs?labelSelector=execution.ayatori.ddupan.top/job-uid",
    "/api/v1/pods?labelSelector=execution.ayatori.ddupan.top/job-uid",
];

pub(crate) async fn measure(stage: &Stage, size: Size) -> anyhow::Result<Outcome> {
    let mut arena = Arena::open(stage, Limits::Lifted).await?;
    let adapter = Adapter::of_pods(&arena).await?;
    let prototype = Prototype::of(&arena, Peer::Ours, Condition::Live).await?;
    adapter.stop().await?;
    let jobs = size.of(JOBS);
    arena.lay_out(prototype.copies("live", 0..jobs, |_| LONG)).await?;
    // kube-controller-manager looks at them too.
    tokio::time::sleep(size.time(Duration::from_secs(60))).await;

    let starts = Starts::measure(&arena, jobs, STARTS).await?;
    arena.close().await?;
    Ok(vec![
        Figure::new(RESTART, "ms", Spread::of(&starts.took)).beside("bare LIST", Spread::of(&starts.listed)),
        Figure::new(RESTART_WRITES, "", Spread::one(starts.writes)),
        Figure::new("requests of a restart", "", Spread::one(starts.requests)),
        Figure::new("CPU of a restart", "ms", Spread::of(&starts.cpu)),
        Figure::new("memory after a restart", "MiB", Spread::of(&starts.resident)),
    ]
    .into())
}

/// Starts of the adapter on Jobs that are there already.
#[derive(Default)]
pub(crate) struct Starts {
    pub(crate) took: Vec<f64>,
    pub(crate) listed: Vec<f64>,
    pub(crate) cpu: Vec<f64>,
    pub(crate) resident: Vec<f64>,
    pub(crate) writes: f64,
    pub(crate) requests: f64,
}

impl Starts {
    /// Starts it so often, and lists the same objects as often in between.
    pub(crate) async fn measure(arena: &Arena<'_>, jobs: u32, times: u32) -> anyhow::Result<Self> {
        let mut starts = Self::default();
        for _ in 0..times {
            starts.listed.push(milliseconds(list_all(&arena.client).await?));
            let mark = arena.audit.mark();
            let mut adapter = Adapter::start(
                arena,
                ayatori_e2e::replica::Adapter::Kubernetes,
                &["--allow-secret-checks"],
            )
            .await?;
            let took = adapter.when_settled(jobs).await?;
            let usage = adapter.usage()?;
            starts.took.push(milliseconds(took));
            starts.cpu.push(milliseconds(usage.cpu));
            starts.resident.push(mebibytes(usage.resident));
            adapter.stop().await?;
            let requests = arena.audit.since(mark)?;
            let of_adapter = || requests.iter().filter(|request| request.is_adapters());
            let wrote: Vec<&Request> = of_adapter().filter(|request| request.is_write()).collect();
            for request in &wrote {
                eprintln!("restart: it wrote: {}", request.words());
            }
            starts.writes += wrote.len() as f64;
            starts.requests = of_adapter().count() as f64;
        }
        Ok(starts)
    }
}

/// What is read of a page: where the next one begins.
#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
}

#[derive(Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: String,
}

/// How long it takes to read every object that the adapter reads in numbers.
async fn list_all(client: &Client) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    futures::future::try_join_all(LISTS.map(|path| list(client, path))).await?;
    Ok(begin.elapsed())
}

async fn list(client: &Client, path: &str) -> anyhow::Result<()> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let mut next = String::new();
    loop {
        let uri = format!("{path}{separator}limit={PAGE}&continue={next}");
        let request = http::Request::get(uri).body(Vec::new())?;
        let text = client
            .request_text(request)
            .await
            .with_context(|| format!("listing {path}"))?;
        let page: Page = serde_json::from_str(&text)?;
        if page.metadata.next.is_empty() {
            return Ok(());
        }
        next = page.metadata.next;
    }
}

//! Jobs in sandboxes of a server that answers at once.

use std::time::{Duration, Instant};

use anyhow::Context;
use ayatori_core::job_class::{JobClass, JobClassSpec, ParametersReference};
use ayatori_core::names::{GROUP, OPENSANDBOX_CONTROLLER};
use ayatori_core::parameters::{
    OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec, SecretKeyReference,
};
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::replica;
use ayatori_opensandbox_adapter::stub::{API_KEY, Stub};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::{Outcome, PAUSE, Size};
use crate::adapter::Adapter;
use crate::arena::{self, Arena, Limits};
use crate::budgets::SANDBOX;
use crate::figures::{Figure, Spread, milliseconds};
use crate::herd;
use crate::peer::{Peer, Work};
use crate::replay;
use crate::stage::Stage;

pub(crate) const ABOUT: &str = "\
1,000 Jobs created all at once for the OpenSandbox adapter, whose server is simulated in the measuring process: it \
answers at once, a sandbox is up at once, and its command ends at once. The adapter lists sandboxes once a second, as by \
default. The bound is what is left when one life is recorded and its writes are made again, by a client that decides \
nothing and while no adapter runs.";

const JOBS: u32 = 1_000;
const ROUNDS: u32 = 3;
const CREATIONS: usize = 16;
const CLASS: &str = "bench-sandboxed";
const SECRET: &str = "bench-opensandbox";
const WORK: Work = Work {
    class: CLASS,
    ..Work::NOTHING
};

pub(crate) async fn measure(stage: &Stage, size: Size) -> anyhow::Result<Outcome> {
    let arena = Arena::open(stage, Limits::Lifted).await?;
    let server = Stub::start().await?;
    create_class(&arena, server.endpoint()).await?;
    let mut adapter =
        Adapter::start(&arena, replica::Adapter::OpenSandbox, &["--allow-insecure-http"]).await?;
    adapter.when_ready(&arena, CLASS).await?;
    let jobs = size.of(JOBS);
    let (mut rates, mut costs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let before = adapter.usage()?.cpu;
        let took = run(&arena, &format!("r{round}"), jobs).await?;
        let cpu = adapter.usage()?.cpu.saturating_sub(before);
        rates.push(f64::from(jobs) / took.as_secs_f64());
        costs.push(milliseconds(cpu) / f64::from(jobs));
        eprintln!("sandbox: {:.1} Jobs/s", f64::from(jobs) / took.as_secs_f64());
        tokio::time::sleep(PAUSE).await;
    }
    let resident = crate::figures::mebibytes(adapter.usage()?.resident);
    let life = replay::Life::record(&arena, &WORK).await?;
    adapter.stop().await?;
    herd::forget(&arena.store, Peer::Ours.namespace()).await?;
    let bound = life.bound(&arena, jobs).await?;
    arena.close().await?;
    Ok(vec![
        Figure::new(SANDBOX, "Jobs/s", Spread::of(&rates)),
        Figure::new("CPU of the OpenSandbox adapter per Job", "ms", Spread::of(&costs)),
        Figure::new(
            "memory of the OpenSandbox adapter afterwards",
            "MiB",
            Spread::one(resident),
        ),
        bound,
    ]
    .into())
}

async fn run(arena: &Arena<'_>, name: &str, jobs: u32) -> anyhow::Result<Duration> {
    let namespace = Peer::Ours.namespace();
    let watching = arena.chronicle.watch(&arena.client, namespace);
    let begin = Instant::now();
    stream::iter(0..jobs)
        .map(Ok::<_, anyhow::Error>)
        .try_for_each_concurrent(CREATIONS, async |number| {
            let name = format!("{name}-{number:06}");
            let created = Peer::Ours.create(&arena.client, namespace, &name, &WORK).await;
            created.with_context(|| format!("creating {name}"))
        })
        .await?;
    let end = Peer::Ours.end();
    arena.chronicle.when(Peer::Ours, name, jobs as usize, end).await?;
    let lives = arena.chronicle.lives_of(Peer::Ours, name);
    let ended = lives.iter().filter_map(|life| life.get(&end)).max();
    let took = ended.context("no Job has ended")?.duration_since(begin);
    drop(watching);
    herd::forget(&arena.store, namespace).await?;
    arena.chronicle.clear();
    Ok(took)
}

async fn create_class(arena: &Arena<'_>, endpoint: String) -> anyhow::Result<()> {
    let secret = serde_json::from_value(json!({
        "metadata": {"name": SECRET}, "stringData": {"api-key": API_KEY},
    }))?;
    Api::<Secret>::namespaced(arena.client.clone(), SYSTEM_NAMESPACE)
        .create(&PostParams::default(), &secret)
        .await
        .context("storing the key of the simulated server")?;
    let parameters = OpenSandboxExecutionParametersSpec {
        endpoint,
        api_key_secret_ref: SecretKeyReference {
            namespace: SYSTEM_NAMESPACE.to_owned(),
            name: SECRET.to_owned(),
            key: "api-key".to_owned(),
        },
        allow_insecure_http: Some(true),
        ..OpenSandboxExecutionParametersSpec::default()
    };
    arena::create(
        &arena.client,
        &OpenSandboxExecutionParameters::new(CLASS, parameters),
    )
    .await?;
    let class = JobClassSpec {
        controller_name: OPENSANDBOX_CONTROLLER.to_owned(),
        parameters_ref: ParametersReference {
            group: GROUP.to_owned(),
            kind: "OpenSandboxExecutionParameters".to_owned(),
            name: CLASS.to_owned(),
        },
        ..JobClassSpec::default()
    };
    arena::create(&arena.client, &JobClass::new(CLASS, class)).await
}

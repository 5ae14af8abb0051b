//! How much memory an adapter needs to look after many sandboxes: measured from outside, in a process of its own, which
//! is this same program.

use std::process::Stdio;

use anyhow::{Context, ensure};
use ayatori_controller::testing::death::Death;
use ayatori_controller::testing::replica::{Replica, impatient};
use ayatori_core::conditions::FINISHED;
use ayatori_core::job::{Job, JobStatus};
use ayatori_core::names::{EXECUTION_FINALIZER, JOB_NAME_LABEL, JOB_UID_LABEL};
use ayatori_core::parameters::{OpenSandboxExecutionParametersSpec, SecretKeyReference};
use ayatori_e2e::api::{self, PATIENCE, Run, in_namespace};
use ayatori_e2e::ground::{Ground, holds, when, within};
use ayatori_opensandbox_adapter::backend::{OpenSandboxBackend, Options};
use ayatori_opensandbox_adapter::stub::{API_KEY, Call, Stub};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use procfs::process::Process;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

/// How many requests the test has under way at a time.
const AT_ONCE: usize = 20;
/// How much memory the adapter may have.
const LIMIT_KIB: u64 = 100 * 1024;

/// How many sandboxes there are: 5,000 with `AYATORI_TEST_ALL=1`.
fn sandboxes() -> usize {
    match std::env::var_os("AYATORI_TEST_ALL") {
        Some(_) => 5000,
        None => 500,
    }
}

/// Set for the process that is the adapter: the namespace of its test, and where its server is.
const ADAPTER_OF: &str = "AYATORI_TEST_ADAPTER_OF";
/// The name of the one test here.
const TEST: &str = "an_adapter_that_looks_after_many_sandboxes_needs_less_than_100_mib";

/// Is the adapter, until somebody kills it.
async fn be_the_adapter(namespace: String) -> anyhow::Result<()> {
    let client = api::client().await?;
    let ground = Ground::of(Run { client, namespace }, "opensandbox");
    let options = Options {
        allow_insecure_http: true,
        ..Options::default()
    };
    let make = |client: &Client| OpenSandboxBackend::new(client, &options).called(ground.controller.as_str());
    let settings = options.settings(impatient());
    let _adapter = Replica::start_with(make, settings, &ground.namespace, "one", Death::never()).await?;
    std::future::pending().await
}

/// Starts the process of the adapter.
fn start(ground: &Ground) -> anyhow::Result<Child> {
    let child = Command::new(std::env::current_exe()?)
        .args(["--exact", TEST, "--nocapture"])
        .env(ADAPTER_OF, &ground.namespace)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    child.context("starting the adapter")
}

/// Stores a Job that runs like the one whose status and create request are given, and puts its sandbox there; gives
/// the names of both.
async fn running(
    ground: &Ground,
    server: &Stub,
    status: &JobStatus,
    request: &Value,
    number: usize,
) -> anyhow::Result<(String, String)> {
    let mut job = ground.job(&format!("runs-{number}"), "runs=forever");
    job.finalizers_mut().push(EXECUTION_FINALIZER.to_owned());
    let job = ground.jobs.create(&PostParams::default(), &job).await?;
    let mut request = request.clone();
    for (label, value) in [
        (JOB_NAME_LABEL, job.name_any()),
        (JOB_UID_LABEL, job.uid().unwrap_or_default()),
    ] {
        if let Some(metadata) = request.get_mut("metadata") {
            metadata[label] = value.into();
        }
    }
    let mut status = status.clone();
    let execution = status.execution.as_mut().context("no execution")?;
    let sandbox = server.put(&request);
    execution.id = Some(sandbox.clone());
    let patch = Patch::Merge(json!({ "status": status }));
    let stored = ground
        .jobs
        .patch_status(&job.name_any(), &PatchParams::default(), &patch)
        .await;
    stored.context("storing the status of a Job")?;
    Ok((job.name_any(), sandbox))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_that_looks_after_many_sandboxes_needs_less_than_100_mib() -> anyhow::Result<()> {
    if let Ok(namespace) = std::env::var(ADAPTER_OF) {
        return be_the_adapter(namespace).await;
    }
    in_namespace(async |run| {
        let ground = Ground::of(run, "opensandbox");
        let measured = measure(&ground).await;
        ground.force().await?;
        measured
    })
    .await
}

async fn measure(ground: &Ground) -> anyhow::Result<()> {
    let server = Stub::start().await?;
    create_class(ground, &server).await?;
    let mut adapter = start(ground)?;
    ground.when_ready().await?;
    let first = ground.create("runs=forever").await?;
    let first = ground.when_started(&first).await?;
    adapter.kill().await?;

    let count = sandboxes();
    let created = server.requests().into_iter().find(|r| r.call == Call::Create);
    let created = created.context("nothing was created")?;
    let status = first.status.context("the Job has no status")?;
    let all = stream::iter(1..count).map(|number| running(ground, &server, &status, &created.body, number));
    let all: Vec<_> = all.buffered(AT_ONCE).try_collect().await?;

    let adapter = start(ground)?;
    // Jobs from first to last are looked after.
    for (job, sandbox) in all.iter().step_by(count / 5) {
        server.end(sandbox, 137);
        let is_finished = |job: &Job| holds(job, FINISHED);
        when(ground.jobs.clone(), job, "finished", is_finished).await?;
    }
    let lists = server.calls(Call::List) + 3 * count.div_ceil(200);
    within(PATIENCE, server.until(|server| server.calls(Call::List) >= lists)).await?;
    let pid = adapter.id().context("the adapter has ended")?;
    let memory = Process::new(pid.try_into()?)?.status()?;
    let (now, peak) = (memory.vmrss.unwrap_or_default(), memory.vmhwm.unwrap_or(u64::MAX));
    println!(
        "{count} sandboxes: {} MiB, {} MiB at most",
        now / 1024,
        peak / 1024
    );
    ensure!(peak < LIMIT_KIB, "{} MiB for {count} sandboxes", peak / 1024);
    Ok(())
}

async fn create_class(ground: &Ground, server: &Stub) -> anyhow::Result<()> {
    const KEY: &str = "key";
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(KEY.to_owned()),
            ..ObjectMeta::default()
        },
        string_data: Some([(KEY.to_owned(), API_KEY.to_owned())].into()),
        ..Secret::default()
    };
    let secrets = Api::namespaced(ground.client.clone(), &ground.namespace);
    secrets.create(&PostParams::default(), &secret).await?;
    let parameters = OpenSandboxExecutionParametersSpec {
        endpoint: server.endpoint(),
        allow_insecure_http: Some(true),
        api_key_secret_ref: SecretKeyReference {
            namespace: ground.namespace.clone(),
            name: KEY.to_owned(),
            key: KEY.to_owned(),
        },
        ..OpenSandboxExecutionParametersSpec::default()
    };
    ground.create_class(&ground.class, parameters).await
}

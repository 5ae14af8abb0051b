//! What happens while no adapter runs: a pod's result is kept, or is lost and said to be, and nothing runs again; and
//! what the runbooks say a person can do then.

use std::ops::AsyncFnOnce;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_core::conditions::RESULT_UNKNOWN;
use ayatori_core::job::{Job, Outcome};
use ayatori_core::names::EXECUTION_FINALIZER;
use ayatori_e2e::replica::Stage;
use ayatori_e2e::world::{World, expect, with_world};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::process::Command;

/// How long to look whether a second start comes.
const SUSPENSE: Duration = Duration::from_secs(5);
/// A finalizer of somebody else.
const HOLD: &str = "example.com/hold";
const FORCED_REMOVAL: &str = include_str!("../../docs/runbooks/forced-removal.md");

/// Runs a test whose first part needs the deployed adapter and whose second needs none, and brings it back however
/// the test ends. Tests of this file share the one stage, so they take turns.
async fn before_and_after<T>(
    before: impl AsyncFnOnce(&World) -> anyhow::Result<T>,
    after: impl AsyncFnOnce(&World, &Stage, T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _turn = TURN.lock().await;
    with_world(async |world: World| {
        let begun = before(&world).await?;
        let stage = Stage::take(&world.client).await?;
        let outcome = after(&world, &stage, begun).await;
        // The world's objects need an adapter to go.
        stage.clear().await?;
        outcome
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_unseen_keeps_its_result_or_is_lost_and_never_runs_again() -> anyhow::Result<()>
{
    let begin = async |world: &World| {
        for name in ["kept", "robbed"] {
            world.create(&world.job(name, "sleep 3; exit 3")).await?;
        }
        Ok([
            world.when_started("kept").await?,
            world.when_started("robbed").await?,
        ])
    };
    before_and_after(begin, async |world, stage, jobs| {
        unseen(world, stage, &jobs).await
    })
    .await
}

async fn unseen(world: &World, stage: &Stage, jobs: &[Job]) -> anyhow::Result<()> {
    delete_pods(world, jobs).await?;
    stage.forget_leaders().await?;
    // How long a node has to stay Ready to prove that nothing of a vanished pod runs on it.
    let adapter = stage.start_with("later", None, &["--node-silence-seconds=3"])?;
    expect(
        &world.when_finished("kept").await?,
        Outcome::Failed,
        "NonZeroExit",
        Some(3),
    )?;
    world
        .when_says("robbed", RESULT_UNKNOWN, "ExecutionNotFound")
        .await?;
    expect(
        &world.when_finished("robbed").await?,
        Outcome::Failed,
        "ExecutionLost",
        None,
    )?;
    for name in ["kept", "robbed"] {
        let second = world.eventually("a second start", async || Ok(world.starts(name) > 1));
        ensure!(
            tokio::time::timeout(SUSPENSE, second).await.is_err(),
            "{name} started again"
        );
    }
    adapter.kill().await
}

/// Deletes the pods of Jobs that have ended; from that of `robbed` our finalizer is taken off as well.
async fn delete_pods(world: &World, jobs: &[Job]) -> anyhow::Result<()> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let batch_jobs = Api::<BatchJob>::namespaced(world.client.clone(), &world.namespace);
    for job in jobs {
        world
            .eventually("the batch Job is over", async || {
                let batch = world.batch_jobs(job).await?;
                let status = batch.first().and_then(|b| b.status.clone()).unwrap_or_default();
                Ok(status.failed == Some(1) && status.terminating.unwrap_or(0) == 0)
            })
            .await?;
        let pod = world.pods(job).await?.first().context("no pod")?.name_any();
        pods.delete(&pod, &DeleteParams::default()).await?;
        if job.name_any() == "robbed" {
            let force = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            pods.patch(&pod, &PatchParams::default(), &force).await?;
            world
                .eventually("the pod is gone", async || {
                    Ok(pods.get_opt(&pod).await?.is_none())
                })
                .await?;
        }
        let batch = world
            .batch_jobs(job)
            .await?
            .first()
            .context("no batch Job")?
            .name_any();
        ensure!(batch_jobs.get_opt(&batch).await?.is_some());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_cancelled_before_an_adapter_is_back_never_starts() -> anyhow::Result<()> {
    let nothing = async |_: &World| Ok(());
    before_and_after(nothing, async |world, stage, ()| {
        world.create(&world.job("restored", "sleep 600")).await?;
        world.cancel("restored").await?;
        stage.forget_leaders().await?;
        let adapter = stage.start("later", None)?;
        let job = world.when_finished("restored").await?;
        expect(&job, Outcome::Cancelled, "CancelRequested", None)?;
        ensure!(world.starts("restored") == 0 && world.batch_jobs(&job).await?.is_empty());
        adapter.kill().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runbook_for_a_forced_removal_leaves_nothing_behind_but_its_traces() -> anyhow::Result<()> {
    let begin = async |world: &World| {
        let mut job = world.job("forced", "trap '' TERM; sleep 600");
        job.spec.termination_grace_period_seconds = Some(1);
        job.metadata.finalizers = Some(vec![HOLD.to_owned()]);
        world.create(&job).await?;
        world.when_started("forced").await
    };
    before_and_after(begin, async |world, _, job| {
        world.delete("forced").await?;
        let job_now = world.jobs.get("forced").await?;
        ensure!(job_now.finalizers().iter().any(|f| f == EXECUTION_FINALIZER));
        follow(FORCED_REMOVAL, world, &job).await?;

        let job_now = world.jobs.get("forced").await?;
        ensure!(job_now.finalizers() == [HOLD], "{:?}", job_now.finalizers());
        world
            .eventually("nothing of it is left", async || {
                Ok(world.pods(&job).await?.is_empty() && world.batch_jobs(&job).await?.is_empty())
            })
            .await?;
        let events = Api::<Event>::namespaced(world.client.clone(), &world.namespace);
        let events = events.list(&ListParams::default()).await?;
        let word = events
            .iter()
            .find(|e| e.reason.as_deref() == Some("ForcedRemoval"))
            .context("no Event")?;
        ensure!(word.note.as_deref() == Some(REASON));
        ensure!(word.regarding.as_ref().is_some_and(|r| r.uid == job.uid()));
        world
            .eventually("the audit log has it", async || {
                is_audited(&world.namespace).await
            })
            .await?;
        world
            .patch("forced", json!({ "metadata": { "finalizers": null } }))
            .await?;
        Ok(())
    })
    .await
}

const REASON: &str = "a test: \"nothing\" of it runs";

/// Runs those commands of a runbook that are marked so, as a person would who sets what stands above them.
async fn follow(runbook: &str, world: &World, job: &Job) -> anyhow::Result<()> {
    let commands = marked(runbook);
    ensure!(
        commands.contains("kubectl patch"),
        "no command is marked in the runbook"
    );
    let programs = tempfile::tempdir()?;
    let kubectl =
        std::env::var_os("AYATORI_KUBECTL").context("AYATORI_KUBECTL is not set: run `cargo xtask test`")?;
    std::os::unix::fs::symlink(kubectl, programs.path().join("kubectl"))?;
    let mut path = programs.path().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &commands])
        .env("PATH", path)
        .env("NAMESPACE", &world.namespace)
        .env("NAME", job.name_any())
        .env("REASON", REASON)
        .env("JOB_UID", job.uid().unwrap_or_default())
        .output()
        .await
        .context("running bash")?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The lines of all blocks that begin with "```sh run".
fn marked(runbook: &str) -> String {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in runbook.lines() {
        match line.trim_start() {
            "```sh run" => inside = true,
            "```" => inside = false,
            // In a list, so indented.
            _ if inside => lines.push(line.strip_prefix("   ").unwrap_or(line)),
            _ => {}
        }
    }
    lines.join("\n")
}

/// Whether the API server's audit log holds the removal of the finalizer.
async fn is_audited(namespace: &str) -> anyhow::Result<bool> {
    let state =
        std::env::var_os("AYATORI_CLUSTER").context("AYATORI_CLUSTER is not set: run `cargo xtask test`")?;
    let logs: PathBuf = Path::new(&state).join("logs");
    let request = format!("/namespaces/{namespace}/jobs/forced?fieldManager=forced-removal");
    let mut files = tokio::fs::read_dir(&logs).await?;
    while let Some(file) = files.next_entry().await? {
        // It is rotated.
        let is_audit = file.file_name().to_string_lossy().starts_with("audit");
        if is_audit && tokio::fs::read_to_string(file.path()).await?.contains(&request) {
            return Ok(true);
        }
    }
    Ok(false)
}

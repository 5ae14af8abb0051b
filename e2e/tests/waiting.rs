//! Jobs that wait, are stopped while they wait, or whose backend is meddled with while they do: on a real kubelet.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_core::conditions::{self, SCHEDULED, STARTED};
use ayatori_core::job::{Job, JobState, Outcome};
use ayatori_core::parameters::KubernetesExecutionParametersSpec;
use ayatori_e2e::api::{DEADLINE, expect_kept};
use ayatori_e2e::world::{World, expect, result, with_world};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{ContainerState, Namespace, Pod, ResourceQuota};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::process::Command;

fn accepted_at(job: &Job) -> anyhow::Result<Timestamp> {
    let conditions = job.status.as_ref().map_or(&[][..], |s| &s.conditions);
    conditions::true_since(conditions, conditions::ACCEPTED).context("it was never accepted")
}

fn finished_at(job: &Job) -> anyhow::Result<Timestamp> {
    let time = job.status.as_ref().and_then(|s| s.finish_time.as_ref());
    Ok(time.context("it has no finish time")?.0)
}

/// How long the Job took from acceptance to its end, in seconds.
fn lasted(job: &Job) -> anyhow::Result<i64> {
    Ok(finished_at(job)?.duration_since(accepted_at(job)?).as_secs())
}

fn message(job: &Job, type_: &str) -> String {
    let conditions = job.status.as_ref().map_or(&[][..], |s| &s.conditions);
    conditions::find(conditions, type_)
        .map(|c| c.message.clone())
        .unwrap_or_default()
}

async fn patch_pod(world: &World, pod: &Pod, patch: Value) -> anyhow::Result<Pod> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let patch = Patch::Merge(patch);
    Ok(pods
        .patch(&pod.name_any(), &PatchParams::default(), &patch)
        .await?)
}

async fn only_pod(world: &World, job: &Job) -> anyhow::Result<Pod> {
    let mut pods = world.pods(job).await?;
    ensure!(pods.len() == 1, "{} pods", pods.len());
    pods.pop().context("no pod")
}

async fn only_batch_job(world: &World, job: &Job) -> anyhow::Result<String> {
    let jobs = world.batch_jobs(job).await?;
    ensure!(jobs.len() == 1, "{} batch Jobs", jobs.len());
    jobs.first().map(ResourceExt::name_any).context("no batch Job")
}

/// A quota that leaves no room for a pod, in force.
async fn no_pods(world: &World) -> anyhow::Result<()> {
    let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), &world.namespace);
    let none = json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
    quotas
        .create(&PostParams::default(), &serde_json::from_value(none)?)
        .await?;
    world
        .eventually("the quota is in force", async || {
            Ok(quotas.get("none").await?.status.is_some_and(|s| s.hard.is_some()))
        })
        .await
}

/// Runs a command of the cluster's containerd.
async fn ctr(arguments: &[&str]) -> anyhow::Result<()> {
    let state =
        std::env::var_os("AYATORI_CLUSTER").context("AYATORI_CLUSTER is not set: run `cargo xtask test`")?;
    let socket = tokio::fs::read_to_string(PathBuf::from(state).join("conf/containerd.toml")).await?;
    let socket = socket
        .lines()
        .find_map(|line| line.trim().strip_prefix("address = "))
        .context("containerd's configuration names no socket")?;
    let output = Command::new("ctr")
        .args([
            "--address",
            socket.trim_matches(['"', '\'']),
            "--namespace",
            "k8s.io",
        ])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .await
        .context("running ctr")?;
    ensure!(
        output.status.success(),
        "ctr: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[tokio::test]
async fn an_image_that_appears_late_is_run() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let image = format!("localhost/{}:late", world.namespace);
        let mut job = world.job("late", "exit 3");
        job.spec.image = image.clone();
        world.create(&job).await?;
        world.when_says("late", STARTED, "ImagePullFailed").await?;
        ctr(&["images", "tag", ayatori_e2e::world::IMAGE, &image]).await?;
        let outcome = world.when_finished("late").await;
        ctr(&["images", "rm", &image]).await?;
        let job = outcome?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
        only_pod(&world, &job).await?;
        ensure!(world.starts("late") == 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_pod_that_the_namespace_forbids_is_waited_for_without_a_storm_of_events() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let restricted =
            json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
        Api::<Namespace>::all(world.client.clone())
            .patch(
                &world.namespace,
                &PatchParams::default(),
                &Patch::Merge(restricted),
            )
            .await?;
        let mut job = world.job("forbidden", "true");
        job.spec.active_deadline_seconds = Some(18);
        world.create(&job).await?;
        let job = world.when_says("forbidden", SCHEDULED, "BackendRejected").await?;
        let said = message(&job, SCHEDULED);
        ensure!(
            said.contains("PodSecurity") && said.contains("restricted"),
            "{said}"
        );

        let job = world.when_finished("forbidden").await?;
        expect(&job, Outcome::Failed, "DeadlineExceeded", None)?;
        ensure!(world.starts("forbidden") == 0);
        let events = Api::<Event>::namespaced(world.client.clone(), &world.namespace);
        let events = events.list(&ListParams::default()).await?;
        let uid = job.uid();
        let ours: Vec<_> = events
            .iter()
            .filter(|e| e.regarding.as_ref().is_some_and(|r| r.uid == uid))
            .filter_map(|e| e.reason.clone())
            .collect();
        let tried = events
            .iter()
            .filter(|e| e.reason.as_deref() == Some("FailedCreate"))
            .count();
        ensure!(
            tried > 0 && ours.len() <= 6,
            "{tried} attempts were told as {ours:?}"
        );
        Ok(())
    })
    .await
}

/// The state of the one container, as the kubelet last said.
fn container(pod: &Pod) -> Option<&ContainerState> {
    pod.status
        .as_ref()?
        .container_statuses
        .as_ref()?
        .first()?
        .state
        .as_ref()
}

#[tokio::test]
async fn a_job_is_over_only_once_its_container_has_stopped() -> anyhow::Result<()> {
    with_world(async |world: World| {
        // One is cancelled, one has a deadline; both are deaf, and neither pod can vanish.
        for name in ["cancelled", "deadline"] {
            let mut job = world.job(name, "trap '' TERM; sleep 600");
            job.spec.termination_grace_period_seconds = Some(4);
            job.spec.active_deadline_seconds = (name == "deadline").then_some(20);
            world.create(&job).await?;
        }
        for name in ["cancelled", "deadline"] {
            let job = world.when_started(name).await?;
            let pod = only_pod(&world, &job).await?;
            let mut finalizers = pod.finalizers().to_vec();
            finalizers.push("example.com/hold".to_owned());
            patch_pod(&world, &pod, json!({ "metadata": { "finalizers": finalizers } })).await?;
        }
        world.cancel("cancelled").await?;
        let stopping = |job: Option<&Job>| {
            job.and_then(|j| j.status.as_ref())
                .is_some_and(|s| s.state == Some(JobState::Stopping))
        };
        let job = world.when("cancelled", "Stopping", stopping).await?;
        let pod = only_pod(&world, &job).await?;
        ensure!(
            container(&pod).is_some_and(|c| c.running.is_some()),
            "{:?}",
            container(&pod)
        );

        for (name, outcome, reason) in [
            ("cancelled", Outcome::Cancelled, "CancelRequested"),
            ("deadline", Outcome::Failed, "DeadlineExceeded"),
        ] {
            let job = world.when_finished(name).await?;
            let pod = only_pod(&world, &job).await?;
            ensure!(
                container(&pod).is_some_and(|c| c.terminated.is_some()),
                "{name} is over, and runs on"
            );
            expect(&job, outcome, reason, Some(137))?;
            ensure!(world.starts(name) == 1);
            let others: Vec<_> = pod
                .finalizers()
                .iter()
                .filter(|f| *f == "example.com/hold")
                .collect();
            ensure!(others.len() == 1, "the other finalizer was taken off");
            patch_pod(&world, &pod, json!({ "metadata": { "finalizers": null } })).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn deadlines_count_while_a_class_is_not_ready_and_while_no_node_fits() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let rows: [(&str, KubernetesExecutionParametersSpec); 2] = [
            (
                "unready",
                serde_json::from_value(json!({ "runtimeClassName": "there-is-no-such-runtime" }))?,
            ),
            (
                "nowhere",
                serde_json::from_value(
                    json!({ "scheduling": { "nodeSelector": { "example.com/nobody": "has" } } }),
                )?,
            ),
        ];
        for (name, parameters) in rows {
            let class = format!("{}-{name}", world.namespace);
            world.create_class(&class, parameters, |_| {}).await?;
            let mut job = world.job(name, "true");
            job.spec.job_class_name = Some(class);
            job.spec.active_deadline_seconds = Some(DEADLINE);
            world.create(&job).await?;
        }
        world.when_says("unready", SCHEDULED, "JobClassNotReady").await?;
        world.when_says("nowhere", STARTED, "Unschedulable").await?;
        for name in ["unready", "nowhere"] {
            let job = world.when_finished(name).await?;
            expect(&job, Outcome::Failed, "DeadlineExceeded", None)?;
            expect_kept(DEADLINE, lasted(&job)?).context(name)?;
            ensure!(world.starts(name) == 0);
            ensure!(
                name == "nowhere" || world.batch_jobs(&job).await?.is_empty(),
                "something was created"
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_recreated_under_its_name_has_a_deadline_of_its_own() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut job = world.job("again", "sleep 600");
        job.spec.active_deadline_seconds = Some(DEADLINE);
        job.spec.termination_grace_period_seconds = Some(0);
        world.create(&job).await?;
        let first = world.when_started("again").await?;
        let half = accepted_at(&first)? + Duration::from_secs(5);
        world
            .eventually("half of its time is over", async || Ok(Timestamp::now() > half))
            .await?;
        world.delete("again").await?;
        world.when_gone("again").await?;
        world.create(&job).await?;
        let second = world.when_finished("again").await?;
        ensure!(first.uid() != second.uid());
        expect(
            &second,
            Outcome::Failed,
            "DeadlineExceeded",
            result(&second)?.exit_code,
        )?;
        expect_kept(DEADLINE, lasted(&second)?)?;
        ensure!(world.starts("again") == 2);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deadline_counts_while_somebody_else_suspends_the_batch_job() -> anyhow::Result<()> {
    with_world(async |world: World| {
        no_pods(&world).await?;
        let mut job = world.job("suspended", "true");
        job.spec.active_deadline_seconds = Some(DEADLINE);
        world.create(&job).await?;
        let job = world.when_says("suspended", SCHEDULED, "QuotaExceeded").await?;
        let batch = only_batch_job(&world, &job).await?;
        let batch_jobs = Api::<BatchJob>::namespaced(world.client.clone(), &world.namespace);
        let suspend = Patch::Merge(json!({ "spec": { "suspend": true } }));
        batch_jobs
            .patch(&batch, &PatchParams::default(), &suspend)
            .await?;
        world
            .when_says("suspended", SCHEDULED, "BackendSuspended")
            .await?;
        let job = world.when_finished("suspended").await?;
        expect(&job, Outcome::Failed, "DeadlineExceeded", None)?;
        expect_kept(DEADLINE, lasted(&job)?)?;
        ensure!(world.starts("suspended") == 0);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_batch_job_deleted_under_a_running_job_is_not_made_again() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut job = world.job("robbed", "trap 'exit 9' TERM; sleep 600 & wait");
        job.spec.termination_grace_period_seconds = Some(5);
        world.create(&job).await?;
        let job = world.when_started("robbed").await?;
        let batch = only_batch_job(&world, &job).await?;
        let batch_jobs = Api::<BatchJob>::namespaced(world.client.clone(), &world.namespace);
        batch_jobs.delete(&batch, &DeleteParams::background()).await?;
        let job = world.when_finished("robbed").await?;
        expect(&job, Outcome::Failed, "PodDeleted", Some(9))?;
        world
            .eventually("nothing is left", async || {
                Ok(world.batch_jobs(&job).await?.is_empty() && world.pods(&job).await?.is_empty())
            })
            .await?;
        ensure!(world.starts("robbed") == 1);
        Ok(())
    })
    .await
}

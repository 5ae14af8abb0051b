//! Outsiders do to the batch Job and the pod what makes the stock Job controller create a second pod: the
//! command still starts once. (Not tried here: a lost create response while the controller-manager's own pod
//! watch lags, which cannot be caused from outside.)

use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_core::job::{Job, Outcome};
use ayatori_core::names::{JOB_UID_LABEL, RESULT_FINALIZER};
use ayatori_e2e::world::{World, expect, result, with_world};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// How long to look whether a second start comes.
const SUSPENSE: Duration = Duration::from_secs(5);

struct Target<'a> {
    world: &'a World,
    batch: String,
    pod: String,
}

impl Target<'_> {
    async fn patch_batch(&self, patch: Value) -> anyhow::Result<()> {
        let api = Api::<BatchJob>::namespaced(self.world.client.clone(), &self.world.namespace);
        api.patch(&self.batch, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.world.client.clone(), &self.world.namespace)
    }

    async fn patch_pod(&self, patch: Value) -> anyhow::Result<()> {
        self.pods()
            .patch(&self.pod, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }
}

/// Plays one attack on a running Job and returns it once finished.
async fn under_attack(
    world: &World,
    name: &str,
    attack: impl AsyncFnOnce(&Target<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Job> {
    let mut job = world.job(name, "trap 'exit 9' TERM; sleep 6 & wait; exit 4");
    job.spec.termination_grace_period_seconds = Some(3);
    world.create(&job).await?;
    let job = world.when_started(name).await?;
    let batch = world
        .batch_jobs(&job)
        .await?
        .first()
        .context("no batch Job")?
        .name_any();
    let pod = world.pods(&job).await?.first().context("no pod")?.name_any();
    attack(&Target { world, batch, pod })
        .await
        .with_context(|| format!("attack {name}"))?;
    let job = world.when_finished(name).await?;
    ensure!(
        world.starts(name) == 1,
        "{name}: started {} times by its end",
        world.starts(name)
    );
    Ok(job)
}

/// Waits for a second start that must not come.
async fn never_starts_again(world: &World, name: &str) -> anyhow::Result<()> {
    let second = world.eventually("a second start", async || Ok(world.starts(name) > 1));
    ensure!(
        tokio::time::timeout(SUSPENSE, second).await.is_err(),
        "{name} started again after its end"
    );
    Ok(())
}

fn ended(job: &Job, reason: &str) -> anyhow::Result<()> {
    let result = result(job)?;
    ensure!(
        result.outcome == Outcome::Failed && result.reason == reason,
        "{}: {result:?}, not Failed/{reason}",
        job.name_any()
    );
    Ok(())
}

#[tokio::test]
async fn suspending_and_resuming_the_batch_job_starts_nothing_again() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let job = under_attack(&world, "suspend", async |target| {
            target.patch_batch(json!({"spec": {"suspend": true}})).await?;
            target.patch_batch(json!({"spec": {"suspend": false}})).await
        })
        .await?;
        ended(&job, "PodDeleted").or_else(|_| ended(&job, "NonZeroExit"))?;
        never_starts_again(&world, "suspend").await
    })
    .await
}

#[tokio::test]
async fn a_batch_job_that_stays_suspended_is_removed_with_its_end() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let job = under_attack(&world, "suspended", async |target| {
            target.patch_batch(json!({"spec": {"suspend": true}})).await
        })
        .await?;
        ended(&job, "PodDeleted")?;
        world
            .eventually("the batch Job is gone", async || {
                Ok(world.batch_jobs(&job).await?.is_empty())
            })
            .await?;
        never_starts_again(&world, "suspended").await
    })
    .await
}

#[tokio::test]
async fn parallelism_down_and_up_again_starts_nothing_again() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let job = under_attack(&world, "parallelism", async |target| {
            target.patch_batch(json!({"spec": {"parallelism": 0}})).await?;
            target
                .world
                .eventually("the pod is being deleted", async || {
                    let pod = target.pods().get_opt(&target.pod).await?;
                    Ok(pod.is_none_or(|p| p.metadata.deletion_timestamp.is_some()))
                })
                .await?;
            target.patch_batch(json!({"spec": {"parallelism": 1}})).await
        })
        .await?;
        ended(&job, "PodDeleted")?;
        never_starts_again(&world, "parallelism").await
    })
    .await
}

#[tokio::test]
async fn a_pod_without_its_tracking_finalizer_that_is_deleted_is_not_replaced_by_a_run() -> anyhow::Result<()>
{
    with_world(async |world: World| {
        let job = under_attack(&world, "tracking", async |target| {
            let pod = target.pods().get(&target.pod).await?;
            let ours: Vec<_> = pod
                .finalizers()
                .iter()
                .filter(|f| !f.starts_with("batch.kubernetes.io"))
                .collect();
            target
                .patch_pod(json!({"metadata": {"finalizers": ours}}))
                .await?;
            target
                .pods()
                .delete(&target.pod, &DeleteParams::default())
                .await?;
            Ok(())
        })
        .await?;
        ended(&job, "PodDeleted")?;
        never_starts_again(&world, "tracking").await
    })
    .await
}

#[tokio::test]
async fn a_pod_that_loses_its_controllers_label_keeps_its_own_result_and_has_no_running_twin()
-> anyhow::Result<()> {
    with_world(async |world: World| {
        let job = under_attack(&world, "label", async |target| {
            let labels = json!({"controller-uid": null, "batch.kubernetes.io/controller-uid": null});
            target.patch_pod(json!({"metadata": {"labels": labels}})).await
        })
        .await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(4))?;
        never_starts_again(&world, "label").await
    })
    .await
}

#[tokio::test]
async fn a_pod_that_loses_our_label_keeps_its_own_result_and_is_let_go() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let job = under_attack(&world, "ours", async |target| {
            let labels = json!({ JOB_UID_LABEL: null });
            target.patch_pod(json!({"metadata": {"labels": labels}})).await
        })
        .await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(4))?;
        let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
        world
            .eventually("our finalizer is off the pod", async || {
                let pods = pods.list(&ListParams::default()).await?;
                Ok(pods
                    .iter()
                    .all(|pod| pod.finalizers().iter().all(|f| f != RESULT_FINALIZER)))
            })
            .await?;
        never_starts_again(&world, "ours").await
    })
    .await
}

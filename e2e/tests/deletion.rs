//! Whatever state a Job is in and however it is deleted, it goes, and nothing of it stays behind.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ayatori_core::conditions::{ACCEPTED, DELETION_BLOCKED, SCHEDULED};
use ayatori_core::job::{Job, JobState};
use ayatori_core::job_class::JobClass;
use ayatori_core::names::{EXECUTION_FINALIZER, JOB_UID_LABEL};
use ayatori_core::parameters::{KubernetesExecutionParameters, KubernetesExecutionParametersSpec};
use ayatori_e2e::api::{self, RUN_LABEL};
use ayatori_e2e::world::{World, with_world};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::ClusterResourceScope;
use kube::runtime::wait::await_condition;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A finalizer of somebody else.
const HOLD: &str = "test.ayatori.ddupan.top/hold";
/// A process that does not end when asked to.
const DEAF: &str = "trap '' TERM; sleep 600";

#[tokio::test]
async fn a_namespace_with_jobs_in_every_state_goes_within_60_s() -> anyhow::Result<()> {
    with_world(async |mut world: World| {
        let unready = unready_class(&world).await?;
        let doomed = format!("{}-doomed", world.namespace);
        let namespaces = Api::<Namespace>::all(world.client.clone());
        let namespace: Namespace = serde_json::from_value(
            json!({ "metadata": { "name": doomed, "labels": { RUN_LABEL: world.namespace } } }),
        )?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        world.jobs = Api::namespaced(world.client.clone(), &doomed);
        world.namespace = doomed.clone();
        one_job_in_every_state(&world, &unready).await?;

        namespaces.delete(&doomed, &DeleteParams::default()).await?;
        let deleted = Instant::now();
        let gone = await_condition(namespaces, &doomed, |n: Option<&Namespace>| n.is_none());
        tokio::time::timeout(Duration::from_secs(60), gone)
            .await
            .context("the namespace is still there after 60 s")??;
        println!(
            "the namespace was gone after {:.1} s",
            deleted.elapsed().as_secs_f64()
        );
        Ok(())
    })
    .await
}

/// Every state but Unknown, which needs a node that does not answer.
async fn one_job_in_every_state(world: &World, unready: &str) -> anyhow::Result<()> {
    let create = async |name: &str, then: &str, adjust: &dyn Fn(&mut Job)| {
        let mut job = world.job(name, then);
        job.spec.termination_grace_period_seconds = Some(3);
        adjust(&mut job);
        world.create(&job).await
    };
    create("suspended", "true", &|job| job.spec.suspend = Some(true)).await?;
    create("rejected", "true", &|job| {
        job.spec.job_class_name = Some("nobody-has-this".to_owned())
    })
    .await?;
    create("starting", "true", &|job| {
        job.spec.image = "localhost:5999/none:1".to_owned()
    })
    .await?;
    create("running", DEAF, &|_| {}).await?;
    create("stopping", DEAF, &|_| {}).await?;
    create("deleted", DEAF, &|_| {}).await?;
    create("succeeded", "true", &|_| {}).await?;
    create("failed", "exit 1", &|_| {}).await?;
    create("cancelled", "true", &|job| job.spec.cancel_requested = Some(true)).await?;
    create("waiting", "true", &|job| {
        job.spec.job_class_name = Some(unready.to_owned())
    })
    .await?;

    for name in ["stopping", "deleted"] {
        world.when_started(name).await?;
    }
    world.cancel("stopping").await?;
    world.delete("deleted").await?;
    for (name, state) in [
        ("suspended", JobState::Suspended),
        ("rejected", JobState::Rejected),
        ("waiting", JobState::Waiting),
        ("starting", JobState::Starting),
        ("running", JobState::Running),
        ("succeeded", JobState::Succeeded),
        ("failed", JobState::Failed),
        ("cancelled", JobState::Cancelled),
        ("stopping", JobState::Stopping),
    ] {
        let is = move |job: Option<&Job>| {
            job.and_then(|j| j.status.as_ref())
                .is_some_and(|s| s.state == Some(state))
        };
        world.when(name, &format!("{state:?}"), is).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_job_that_never_ran_goes_at_once() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut unaccepted = world.job("unaccepted", "true");
        unaccepted.spec.job_class_name = Some("nobody-has-this".to_owned());
        world.create(&unaccepted).await?;
        let mut accepted = world.job("accepted", "true");
        accepted.spec.job_class_name = Some(unready_class(&world).await?);
        world.create(&accepted).await?;
        world
            .when_says("unaccepted", ACCEPTED, "JobClassNotFound")
            .await?;
        world.when_says("accepted", SCHEDULED, "JobClassNotReady").await?;
        for name in ["unaccepted", "accepted"] {
            world.delete(name).await?;
            let deleted = Instant::now();
            world.when_gone(name).await?;
            ensure!(
                deleted.elapsed() < Duration::from_secs(5),
                "{name} took {:?}",
                deleted.elapsed()
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_goes_by_its_own_record_when_all_that_it_was_made_from_is_gone() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let class = format!("{}-account", world.namespace);
        let parameters = serde_json::from_value(json!({ "serviceAccountName": "runner" }))?;
        world.create_class(&class, parameters, |_| {}).await?;
        let accounts = Api::<ServiceAccount>::namespaced(world.client.clone(), &world.namespace);
        let secrets = Api::<Secret>::namespaced(world.client.clone(), &world.namespace);
        let create = PostParams::default();
        accounts
            .create(
                &create,
                &serde_json::from_value(json!({ "metadata": { "name": "runner" } }))?,
            )
            .await?;
        let secret = json!({ "metadata": { "name": "s" }, "stringData": { "k": "v" } });
        secrets.create(&create, &serde_json::from_value(secret)?).await?;

        let mut job = world.job("orphan", DEAF);
        job.spec.job_class_name = Some(class.clone());
        job.spec.termination_grace_period_seconds = Some(1);
        job.spec.env = serde_json::from_value(
            json!([{ "name": "K", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }]),
        )?;
        world.create(&job).await?;
        let job = world.when_started("orphan").await?;

        secrets.delete("s", &DeleteParams::default()).await?;
        accounts.delete("runner", &DeleteParams::default()).await?;
        force(&Api::<JobClass>::all(world.client.clone()), &class).await?;
        force(
            &Api::<KubernetesExecutionParameters>::all(world.client.clone()),
            &class,
        )
        .await?;
        world.delete("orphan").await?;
        world.when_gone("orphan").await?;
        nothing_is_left(&world, &job).await
    })
    .await
}

/// One whose label somebody took off is in no watch, and still is the one that was recorded.
#[tokio::test]
async fn a_pod_without_its_label_keeps_no_job_from_going() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut job = world.job("unlabelled", DEAF);
        job.spec.termination_grace_period_seconds = Some(1);
        world.create(&job).await?;
        let job = world.when_started("unlabelled").await?;
        let pods = world.pods(&job).await?;
        let pod = pods.first().context("it has no pod")?.name_any();
        let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
        let bare = Patch::Merge(json!({ "metadata": { "labels": { JOB_UID_LABEL: null } } }));
        pods.patch(&pod, &PatchParams::default(), &bare).await?;
        world.delete("unlabelled").await?;
        world.when_gone("unlabelled").await?;
        ensure!(pods.get_opt(&pod).await?.is_none(), "pod {pod} is left");
        nothing_is_left(&world, &job).await
    })
    .await
}

#[tokio::test]
async fn a_finalizer_of_somebody_else_is_neither_taken_off_nor_put_back() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let unready = unready_class(&world).await?;
        let names: Vec<_> = (0..20).map(|i| format!("held-{i}")).collect();
        for (i, name) in names.iter().enumerate() {
            // Two of them run; the others wait, so that the machine has less to do.
            let mut job = world.job(name, "sleep 600");
            job.spec.termination_grace_period_seconds = Some(1);
            if i >= 2 {
                job.spec.job_class_name = Some(unready.clone());
            }
            // Before ours, and after ours, while the Job is being accepted.
            if i % 2 == 0 {
                job.metadata.finalizers = Some(vec![HOLD.to_owned()]);
            }
            world.create(&job).await?;
        }
        for name in names.iter().skip(1).step_by(2) {
            world
                .when(name, "protected", |job: Option<&Job>| {
                    job.is_some_and(is_protected)
                })
                .await?;
            json_patch(
                &world,
                name,
                json!([{ "op": "add", "path": "/metadata/finalizers/-", "value": HOLD }]),
            )
            .await?;
        }
        for name in &names {
            world.delete(name).await?;
        }
        for name in &names {
            let job = world
                .when(name, "let go by us", |job: Option<&Job>| {
                    job.is_some_and(|job| !is_protected(job))
                })
                .await?;
            ensure!(job.finalizers() == [HOLD], "{name}: {:?}", job.finalizers());
        }
        for name in &names {
            json_patch(
                &world,
                name,
                json!([{ "op": "remove", "path": "/metadata/finalizers/0" }]),
            )
            .await?;
            world.when_gone(name).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deletion_that_orphans_still_ends_the_process() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut job = world.job("orphaned", DEAF);
        job.spec.termination_grace_period_seconds = Some(1);
        world.create(&job).await?;
        let job = world.when_started("orphaned").await?;
        world.jobs.delete("orphaned", &DeleteParams::orphan()).await?;
        world.when_gone("orphaned").await?;
        nothing_is_left(&world, &job).await
    })
    .await
}

#[tokio::test]
async fn a_deletion_that_is_held_up_says_by_what_and_goes_on_when_it_is_gone() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut job = world.job("blocked", "sleep 600");
        job.spec.termination_grace_period_seconds = Some(1);
        world.create(&job).await?;
        let job = world.when_started("blocked").await?;
        let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
        let pod = world
            .pods(&job)
            .await?
            .first()
            .context("it has no pod")?
            .name_any();
        let add = json!([{ "op": "add", "path": "/metadata/finalizers/-", "value": HOLD }]);
        patch(&pods, &pod, add).await?;
        world.delete("blocked").await?;

        let told = world
            .when_says("blocked", DELETION_BLOCKED, "ExecutionRemains")
            .await?;
        let conditions = told.status.unwrap_or_default().conditions;
        let message = conditions
            .iter()
            .find(|c| c.type_ == DELETION_BLOCKED)
            .map(|c| c.message.clone());
        let message = message.unwrap_or_default();
        ensure!(
            message.contains(&pod) && message.contains(HOLD),
            "it says: {message}"
        );

        patch(
            &pods,
            &pod,
            json!([{ "op": "replace", "path": "/metadata/finalizers", "value": [] }]),
        )
        .await?;
        let freed = Instant::now();
        world.when_gone("blocked").await?;
        ensure!(
            freed.elapsed() < Duration::from_secs(15),
            "it took {:?} more",
            freed.elapsed()
        );
        nothing_is_left(&world, &job).await
    })
    .await
}

#[tokio::test]
async fn a_job_that_its_caller_owns_goes_with_its_caller() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let callers = Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace);
        let caller: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "caller" } }))?;
        let caller = callers.create(&PostParams::default(), &caller).await?;
        let mut job = world.job("bound", DEAF);
        job.spec.termination_grace_period_seconds = Some(1);
        job.metadata.owner_references = Some(vec![caller.owner_ref(&()).context("the caller has no UID")?]);
        world.create(&job).await?;
        let job = world.when_started("bound").await?;
        callers.delete("caller", &DeleteParams::default()).await?;
        world.when_gone("bound").await?;
        nothing_is_left(&world, &job).await
    })
    .await
}

/// A class that accepts Jobs and starts none.
async fn unready_class(world: &World) -> anyhow::Result<String> {
    let name = format!("{}-unready", world.class);
    let parameters = KubernetesExecutionParametersSpec {
        runtime_class_name: Some("nobody-has-this".to_owned()),
        ..KubernetesExecutionParametersSpec::default()
    };
    world.create_class(&name, parameters, |_| {}).await?;
    Ok(name)
}

async fn nothing_is_left(world: &World, job: &Job) -> anyhow::Result<()> {
    let (batch_jobs, pods) = (world.batch_jobs(job).await?, world.pods(job).await?);
    ensure!(
        batch_jobs.is_empty(),
        "a batch Job outlived its Job: {batch_jobs:?}"
    );
    ensure!(pods.is_empty(), "a pod outlived its Job: {pods:?}");
    Ok(())
}

fn is_protected(job: &Job) -> bool {
    job.finalizers().iter().any(|f| f == EXECUTION_FINALIZER)
}

async fn json_patch(world: &World, name: &str, operations: Value) -> anyhow::Result<()> {
    patch(&world.jobs, name, operations).await
}

async fn patch<K>(api: &Api<K>, name: &str, operations: Value) -> anyhow::Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let patch = Patch::Json::<()>(serde_json::from_value(operations)?);
    let patched = api.patch(name, &PatchParams::default(), &patch).await;
    patched.map(drop).with_context(|| format!("patching {name}"))
}

/// Removes an object whatever its finalizers protect it from.
async fn force<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Serialize + DeserializeOwned,
    K: std::fmt::Debug + Send + 'static,
{
    api.delete(name, &DeleteParams::default()).await?;
    patch(
        api,
        name,
        json!([{ "op": "remove", "path": "/metadata/finalizers" }]),
    )
    .await?;
    api::eventually(&format!("{name} is gone"), async || {
        Ok(api.get_opt(name).await?.is_none())
    })
    .await
}

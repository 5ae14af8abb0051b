//! The definitions are deleted under running adapters and Jobs: everything goes, and what comes back works.
//! Alone in its file, because it takes every other test's objects away.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ayatori_core::crd;
use ayatori_core::job::{Job, Outcome};
use ayatori_core::names::JOB_UID_LABEL;
use ayatori_core::parameters::KubernetesExecutionParametersSpec;
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::api;
use ayatori_e2e::replica::helm;
use ayatori_e2e::world::{World, expect, with_world};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};

/// How long the definitions may take to go, and a Job to run once they are back.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn definitions_deleted_with_running_jobs_take_everything_along_and_work_again_when_they_are_back()
-> anyhow::Result<()> {
    with_world(async |world: World| {
        for i in 0..3 {
            let mut job = world.job(&format!("runs-{i}"), "trap '' TERM; sleep 600");
            job.spec.termination_grace_period_seconds = Some(1);
            world.create(&job).await?;
        }
        for i in 0..3 {
            world.when_started(&format!("runs-{i}")).await?;
        }
        let adapters = adapters(&world).await?;

        let outcome = delete_definitions(&world).await;
        restore_definitions(&world).await?;
        outcome?;
        // The class went too.
        let class = format!("{}-again", world.namespace);
        world
            .create_class(&class, KubernetesExecutionParametersSpec::default(), |_| {})
            .await?;
        let mut job = world.job("afterwards", "true");
        job.spec.job_class_name = Some(class);
        let began = Instant::now();
        // Admission policies that speak of classes have to find them again first.
        world
            .eventually("a Job can be created", async || {
                Ok(create(&world, &job).await.is_ok())
            })
            .await?;
        let job = world.when_finished("afterwards").await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        println!(
            "a new Job was finished {:.1} s after the definitions were back",
            began.elapsed().as_secs_f64()
        );
        ensure!(world.starts("afterwards") == 1);
        let after = self::adapters(&world).await?;
        ensure!(
            after == adapters,
            "adapters did not live through it: {adapters:?}, then {after:?}"
        );
        Ok(())
    })
    .await
}

async fn create(world: &World, job: &Job) -> anyhow::Result<()> {
    if world.jobs.get_opt(&job.name_any()).await?.is_none() {
        world.create(job).await?;
    }
    Ok(())
}

/// The pods of all adapters, and how often each was started.
async fn adapters(world: &World) -> anyhow::Result<Vec<(String, i32)>> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), SYSTEM_NAMESPACE);
    let ours = ListParams::default().labels("app.kubernetes.io/part-of=ayatori-execution");
    let pods = pods.list(&ours).await?;
    let restarts = |pod: &Pod| {
        let containers = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
        containers.into_iter().flatten().map(|c| c.restart_count).sum()
    };
    Ok(pods.iter().map(|pod| (pod.name_any(), restarts(pod))).collect())
}

/// Deletes all definitions at once, and sees that nothing of any Job outlives them.
async fn delete_definitions(world: &World) -> anyhow::Result<()> {
    let definitions = Api::<CustomResourceDefinition>::all(world.client.clone());
    let names: Vec<_> = crd::all().iter().map(|crd| crd.name_any()).collect();
    let began = Instant::now();
    for name in &names {
        definitions.delete(name, &DeleteParams::default()).await?;
    }
    let going = async {
        for name in &names {
            let gone = |crd: Option<&CustomResourceDefinition>| crd.is_none();
            kube::runtime::wait::await_condition(definitions.clone(), name, gone).await?;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, going)
        .await
        .context("the definitions do not go")??;
    println!(
        "the definitions were gone after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let of_jobs = ListParams::default().labels(JOB_UID_LABEL);
    let batch_jobs = Api::<BatchJob>::all(world.client.clone()).list(&of_jobs).await?;
    ensure!(
        batch_jobs.items.is_empty(),
        "batch Jobs are left: {:?}",
        batch_jobs.items
    );
    let pods = Api::<Pod>::all(world.client.clone()).list(&of_jobs).await?;
    ensure!(pods.items.is_empty(), "pods are left: {:?}", pods.items);
    Ok(())
}

async fn restore_definitions(world: &World) -> anyhow::Result<()> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/execution-api");
    let chart = chart.to_str().context("the chart's path is no text")?;
    let upgrade = ["upgrade", "execution-api", chart, "--namespace", SYSTEM_NAMESPACE];
    helm(&[&upgrade[..], &["--reuse-values", "--wait"]].concat()).await?;
    api::install(&world.client, &crd::all()).await
}

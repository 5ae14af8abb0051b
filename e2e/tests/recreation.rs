//! A name says nothing: whoever has had a name before, whatever is recreated under it is somebody else.
//!
//! Counts: 200 recreations of classes and of Jobs each, or 1,000 with `AYATORI_TEST_ALL=1`.

use std::time::Instant;

use anyhow::{Context, ensure};
use ayatori_core::conditions::ACCEPTED;
use ayatori_core::job::{Job, Outcome};
use ayatori_core::job_class::JobClass;
use ayatori_core::parameters::{KubernetesExecutionParameters, KubernetesExecutionParametersSpec};
use ayatori_e2e::api::eventually;
use ayatori_e2e::world::{World, expect, with_world};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

/// How many names are recreated again and again, all at the same time.
const CHAINS: usize = 20;

fn recreations() -> usize {
    match std::env::var_os("AYATORI_TEST_ALL") {
        Some(_) => 1000,
        None => 200,
    }
}

/// Lives on each name, one after the other; each name after the first life is a recreation.
async fn on_each_name(chain: impl AsyncFn(usize, usize) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let lives = recreations() / CHAINS + 1;
    let began = Instant::now();
    let chain = &chain;
    stream::iter(0..CHAINS)
        .map(async |name| {
            for life in 0..lives {
                let lived = chain(name, life).await;
                lived.with_context(|| format!("name {name}, life {life} of {lives}"))?;
            }
            anyhow::Ok(())
        })
        .buffer_unordered(CHAINS)
        .try_collect::<()>()
        .await?;
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{CHAINS} names, {lives} lives each: {} recreations in {seconds:.1} s",
        (lives - 1) * CHAINS
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_recreated_under_the_same_name_start_once_each_and_never_as_one_another() -> anyhow::Result<()> {
    with_world(async |world: World| {
        on_each_name(async |name, life| live(&world, name, life).await).await?;
        let everything = ListParams::default();
        let batch_jobs = Api::<BatchJob>::namespaced(world.client.clone(), &world.namespace);
        let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
        ensure!(
            world.jobs.list(&everything).await?.items.is_empty(),
            "Jobs are left"
        );
        ensure!(
            batch_jobs.list(&everything).await?.items.is_empty(),
            "batch Jobs are left"
        );
        ensure!(pods.list(&everything).await?.items.is_empty(), "pods are left");
        Ok(())
    })
    .await
}

/// One Job of that name from its creation until it is gone.
async fn live(world: &World, name: usize, life: usize) -> anyhow::Result<()> {
    let key = format!("job-{name}-{life}");
    let job_name = format!("job-{name}");
    // The command tells the counter which life it is.
    let mut job = world.job(&key, "exit 7");
    job.metadata.name = Some(job_name.clone());
    job.spec.termination_grace_period_seconds = Some(1);
    let starts = match life {
        1 => {
            world.create(&job).await?;
            expect(
                &world.when_finished(&job_name).await?,
                Outcome::Failed,
                "NonZeroExit",
                Some(7),
            )?;
            1..=1
        }
        3 => {
            job.spec.command = world.job(&key, "sleep 600").spec.command;
            world.create(&job).await?;
            world.when_started(&job_name).await?;
            1..=1
        }
        // What the kubelet has to start takes a second each, so few do.
        _ => match life % 4 {
            0 => {
                job.spec.cancel_requested = Some(true);
                world.create(&job).await?;
                expect(
                    &world.when_finished(&job_name).await?,
                    Outcome::Cancelled,
                    "CancelRequested",
                    None,
                )?;
                0..=0
            }
            1 => {
                job.spec.suspend = Some(true);
                world.create(&job).await?;
                world.when_says(&job_name, ACCEPTED, "Suspended").await?;
                0..=0
            }
            2 => {
                job.spec.job_class_name = Some("nobody-has-this".to_owned());
                world.create(&job).await?;
                world.when_says(&job_name, ACCEPTED, "JobClassNotFound").await?;
                0..=0
            }
            // Deleted at once, wherever the adapter is with it.
            _ => {
                world.create(&job).await?;
                0..=1
            }
        },
    };
    world.delete(&job_name).await?;
    world.when_gone(&job_name).await?;
    ensure!(
        starts.contains(&world.starts(&key)),
        "{key} started {} times",
        world.starts(&key)
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_recreated_under_the_same_name_runs_none_of_the_jobs_that_the_earlier_one_accepted()
-> anyhow::Result<()> {
    with_world(async |world: World| {
        on_each_name(async |name, life| replace(&world, name, life).await).await?;
        let started: Vec<_> = waiting_names().filter(|name| world.starts(name) > 0).collect();
        ensure!(
            started.is_empty(),
            "started on a class that is not theirs: {started:?}"
        );
        for name in 0..CHAINS {
            // The last class under each name is as good as any.
            let mut job = world.job(&format!("last-{name}"), "true");
            job.spec.job_class_name = Some(class_name(&world, name));
            world.create(&job).await?;
        }
        for name in 0..CHAINS {
            let job = world.when_finished(&format!("last-{name}")).await?;
            expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        }
        Ok(())
    })
    .await
}

fn waiting_names() -> impl Iterator<Item = String> {
    let lives = 0..=recreations() / CHAINS;
    lives.flat_map(|life| (0..CHAINS).map(move |name| format!("waits-{name}-{life}")))
}

fn class_name(world: &World, name: usize) -> String {
    format!("{}-{name}", world.namespace)
}

/// Has a class that is not ready accept a Job, and puts one that is ready in its place by force.
async fn replace(world: &World, name: usize, life: usize) -> anyhow::Result<()> {
    let class = class_name(world, name);
    let classes = Api::<JobClass>::all(world.client.clone());
    let parameters = Api::<KubernetesExecutionParameters>::all(world.client.clone());
    remove(&classes, &class).await?;
    remove(&parameters, &class).await?;
    let unready = KubernetesExecutionParametersSpec {
        runtime_class_name: Some("nobody-has-this".to_owned()),
        ..KubernetesExecutionParametersSpec::default()
    };
    world.create_class(&class, unready, |_| {}).await?;
    let earlier = classes.get(&class).await?.uid();

    let job_name = format!("waits-{name}-{life}");
    let mut job = world.job(&job_name, "true");
    job.spec.job_class_name = Some(class.clone());
    world.create(&job).await?;
    let accepted = |job: Option<&Job>| {
        job.and_then(|j| j.status.as_ref())
            .is_some_and(|s| s.resolved_job_class.is_some())
    };
    world.when(&job_name, "accepted", accepted).await?;

    force(&classes, &class).await?;
    remove(&parameters, &class).await?;
    world
        .create_class(&class, KubernetesExecutionParametersSpec::default(), |_| {})
        .await?;
    let job = world.when_finished(&job_name).await?;
    expect(&job, Outcome::Failed, "JobClassReplaced", None)?;
    let resolved = job.status.and_then(|s| s.resolved_job_class).map(|c| c.uid);
    ensure!(
        resolved == earlier,
        "{job_name} was accepted by {earlier:?} and says {resolved:?}"
    );
    Ok(())
}

/// Removes an object that nothing needs, if there is one.
async fn remove<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
        deleted => deleted.with_context(|| format!("deleting {name}"))?,
    };
    eventually(&format!("{name} is gone"), async || {
        Ok(api.get_opt(name).await?.is_none())
    })
    .await
}

/// Removes a class although a Job needs it. Only where the adapter does not let it go itself: of two who take the
/// last finalizer off at the same time, the API server has the slower one delete whatever has the name by then.
async fn force(classes: &Api<JobClass>, name: &str) -> anyhow::Result<()> {
    classes.delete(name, &DeleteParams::default()).await?;
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let freed = classes.patch(name, &PatchParams::default(), &free).await;
    freed
        .map(drop)
        .with_context(|| format!("removing JobClass {name}"))
}

//! Names and labels are claims. What belongs to a Job is known by UIDs.

use anyhow::{Context, ensure};
use ayatori_core::job::Outcome;
use ayatori_e2e::api::RUN_LABEL;
use ayatori_e2e::world::{PATIENCE, World, expect, is_finished, with_world};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::json;

#[tokio::test]
async fn a_pod_with_the_labels_of_a_job_does_not_speak_for_it() -> anyhow::Result<()> {
    with_world(async |world: World| {
        world.create(&world.job("real", "sleep 5; exit 3")).await?;
        let job = world.when_started("real").await?;
        let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
        let real = world.pods(&job).await?.first().context("it has no pod")?.clone();
        let mut forged: Pod = serde_json::from_value(json!({
            "metadata": { "name": "forged" },
            "spec": {
                "nodeName": real.spec.as_ref().and_then(|s| s.node_name.as_deref()),
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "job", "image": "localhost/busybox:1", "command": ["true"] }],
            },
        }))?;
        forged.metadata.labels = real.metadata.labels.clone();
        forged.metadata.finalizers = real.metadata.finalizers.clone();
        pods.create(&PostParams::default(), &forged).await?;
        let succeeded = json!({ "status": { "phase": "Succeeded" } });
        pods.patch_status("forged", &PatchParams::default(), &Patch::Merge(succeeded))
            .await?;
        // The Job controller counts the forged pod as its own. It may take its success for the end of the batch Job
        // and delete the real pod, which the Job then says; that the command succeeded it must never say.
        let job = world.when_finished("real").await?;
        let reason = job
            .status
            .as_ref()
            .and_then(|s| s.result.as_ref())
            .map(|r| r.reason.as_str());
        let reason = if reason == Some("PodDeleted") {
            "PodDeleted"
        } else {
            "NonZeroExit"
        };
        expect(&job, Outcome::Failed, reason, Some(3))?;
        ensure!(world.starts("real") == 1);
        world.delete("real").await?;
        world.when_gone("real").await
    })
    .await
}

#[tokio::test]
async fn jobs_of_one_name_in_two_namespaces_have_nothing_to_do_with_each_other() -> anyhow::Result<()> {
    with_world(async |here: World| {
        let name = format!("{}-there", here.namespace);
        let namespace: Namespace = serde_json::from_value(
            json!({ "metadata": { "name": name, "labels": { RUN_LABEL: here.namespace } } }),
        )?;
        Api::all(here.client.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        let there = Api::namespaced(here.client.clone(), &name);

        let mut job = here.job("build", "sleep 3; exit 4");
        there.create(&PostParams::default(), &job).await?;
        job.spec = here.job("build-here", "sleep 600").spec;
        job.spec.termination_grace_period_seconds = Some(1);
        here.create(&job).await?;
        here.when_started("build").await?;
        here.delete("build").await?;
        here.when_gone("build").await?;
        let finished = await_condition(there, "build", is_finished);
        let job = tokio::time::timeout(PATIENCE, finished).await??;
        expect(
            &job.context("it went with its namesake")?,
            Outcome::Failed,
            "NonZeroExit",
            Some(4),
        )?;
        ensure!(here.starts("build") == 1 && here.starts("build-here") == 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn jobs_with_generated_names_of_the_greatest_length_run_once_each() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut names = vec![];
        for i in 0..5 {
            let mut job = world.job(&format!("generated-{i}"), "true");
            job.metadata.name = None;
            job.metadata.generate_name = Some(format!("{}-", "a".repeat(69)));
            names.push(world.create(&job).await?.name_any());
        }
        ensure!(names.iter().all(|name| name.len() == 63), "{names:?}");
        for (i, name) in names.iter().enumerate() {
            let job = world.when_finished(name).await?;
            expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
            ensure!(world.pods(&job).await?.len() == 1);
            ensure!(world.starts(&format!("generated-{i}")) == 1);
        }
        Ok(())
    })
    .await
}

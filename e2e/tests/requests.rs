//! What one Job costs the API server, counted from its own audit log.

use std::cell::RefCell;

use anyhow::{bail, ensure};
use ayatori_core::job::Outcome;
use ayatori_core::names::GROUP;
use ayatori_e2e::accounts::KUBERNETES_ADAPTER;
use ayatori_e2e::audit;
use ayatori_e2e::world::{World, expect, with_world};

/// What the adapter asked since a Job's creation.
fn requests_since_creation(world: &World, name: &str) -> anyhow::Result<Vec<String>> {
    let since_creation = audit::requests_about(&world.namespace, &world.class)?
        .into_iter()
        .skip_while(|entry| !entry.creates_job(name));
    let adapters = since_creation.filter(|entry| entry.user.username == KUBERNETES_ADAPTER);
    Ok(adapters.map(|entry| entry.words()).collect())
}

fn is_write(request: &str) -> bool {
    ["create", "update", "patch", "delete", "deletecollection"]
        .iter()
        .any(|v| request.starts_with(&format!("{v} ")))
}

/// Requests of one Job's life, from before its creation to its end, and to its last trace.
async fn life(world: &World, name: &str, then: &str) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    // The class's own writes are over once it is ready.
    let ready = world.client.clone();
    let classes = kube::Api::<ayatori_core::job_class::JobClass>::all(ready);
    world
        .eventually("the class is ready", async || {
            let class = classes.get(&world.class).await?;
            Ok(class
                .status
                .is_some_and(|s| ayatori_core::conditions::is_true(&s.conditions, "Ready")))
        })
        .await?;
    let mut job = world.job(name, then);
    job.spec.ttl_seconds_after_finished = Some(4);
    world.create(&job).await?;
    expect(
        &world.when_finished(name).await?,
        Outcome::Succeeded,
        "Completed",
        Some(0),
    )?;
    world.when_gone(name).await?;

    // What a watch shows may not be in the log yet. The last word is the finalizer coming off.
    let requests = RefCell::default();
    world
        .eventually("the audit log holds the last write about the Job", async || {
            let logged = requests_since_creation(world, name)?;
            let finalizer = format!("patch jobs {GROUP} -> 200");
            let is_whole = logged.iter().filter(|r| **r == finalizer).count() == 2;
            requests.replace(logged);
            Ok(is_whole)
        })
        .await?;
    let mut to_the_end: Vec<String> = requests.into_inner();

    // The last status says that the execution is released, the one before that the Job is finished.
    let status = format!("patch jobs/status {GROUP} -> 200");
    let statuses = to_the_end.iter().enumerate().filter(|(_, r)| **r == status);
    let Some((finished, _)) = statuses.rev().nth(1) else {
        bail!("fewer than two statuses: {to_the_end:?}");
    };
    let afterwards = to_the_end.split_off(finished.saturating_add(1));
    Ok((to_the_end, afterwards))
}

#[tokio::test]
async fn a_job_that_runs_costs_seven_writes_to_its_end_five_more_until_it_is_gone_and_two_reads()
-> anyhow::Result<()> {
    with_world(async |world: World| {
        let (to_the_end, afterwards) = life(&world, "runs", "sleep 3").await?;
        println!(
            "to the end:\n  {}\nafterwards:\n  {}",
            to_the_end.join("\n  "),
            afterwards.join("\n  ")
        );
        let writes = to_the_end.iter().filter(|r| is_write(r)).count();
        ensure!(writes <= 7, "{writes} writes to the end");
        let after = afterwards.iter().filter(|r| is_write(r)).count();
        ensure!(after <= 5, "{after} writes afterwards");
        let reads: Vec<_> = to_the_end
            .iter()
            .filter(|r| !is_write(r) && !r.starts_with("watch "))
            .collect();
        let live = ["get jobclasses ", "get kubernetesexecutionparameters "];
        ensure!(
            reads.len() == 2
                && live
                    .iter()
                    .all(|l| reads.iter().filter(|r| r.starts_with(l)).count() == 1),
            "reads beyond the live look at class and parameters: {reads:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_whose_start_and_end_are_seen_together_costs_six_writes() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let (to_the_end, _) = life(&world, "instant", "true").await?;
        let writes = to_the_end.iter().filter(|r| is_write(r)).count();
        // Whether the running process is ever seen is up to the kubelet: Accepted, the record, Finished, and
        // Started only where it was seen on its own. Beside them the finalizer, the batch Job and the gate.
        let statuses = to_the_end
            .iter()
            .filter(|r| r.starts_with("patch jobs/status"))
            .count();
        println!("{writes} writes, {statuses} of them statuses");
        ensure!(
            writes == statuses + 3 && (statuses == 3 || statuses == 4),
            "{to_the_end:?}"
        );
        Ok(())
    })
    .await
}

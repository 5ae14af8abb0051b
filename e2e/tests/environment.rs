//! What a command finds in its environment, and when it has to wait for that, on a real kubelet.

use anyhow::{Context, ensure};
use ayatori_core::conditions::{ACCEPTED, SCHEDULED, STARTED};
use ayatori_core::job::{Job, Outcome};
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::api::eventually;
use ayatori_e2e::replica::kubectl;
use ayatori_e2e::world::{World, expect, with_world};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, ResourceQuota, Secret};
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

fn secrets(world: &World) -> Api<Secret> {
    Api::namespaced(world.client.clone(), &world.namespace)
}

async fn create_secret(world: &World, name: &str, data: Value) -> anyhow::Result<()> {
    let secret = serde_json::from_value(json!({ "metadata": { "name": name }, "stringData": data }))?;
    secrets(world).create(&PostParams::default(), &secret).await?;
    Ok(())
}

async fn create_config(world: &World, name: &str, data: Value) -> anyhow::Result<()> {
    let config = serde_json::from_value(json!({ "metadata": { "name": name }, "data": data }))?;
    Api::<ConfigMap>::namespaced(world.client.clone(), &world.namespace)
        .create(&PostParams::default(), &config)
        .await?;
    Ok(())
}

fn with_env(mut job: Job, env: Value) -> anyhow::Result<Job> {
    job.spec.env = serde_json::from_value(env)?;
    Ok(job)
}

/// A Job that prints its environment: no shell, which would drop names it cannot use itself.
fn printing(world: &World, name: &str) -> Job {
    let mut job = world.job(name, "");
    job.spec.command = vec!["env".to_owned()];
    job
}

/// What a finished Job's command has printed.
async fn output(world: &World, job: &Job) -> anyhow::Result<Vec<String>> {
    let pods = world.pods(job).await?;
    let pod = pods
        .first()
        .context("the pod is not kept for its logs")?
        .name_any();
    let logs = Api::<Pod>::namespaced(world.client.clone(), &world.namespace)
        .logs(&pod, &LogParams::default())
        .await?;
    Ok(logs.lines().map(str::to_owned).collect())
}

async fn succeeds(world: &World, name: &str) -> anyhow::Result<Job> {
    let job = world.when_finished(name).await?;
    expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
    Ok(job)
}

/// The kubelet puts it into the command, and what runs containers quotes the command that it cannot execute.
#[tokio::test]
async fn the_value_of_a_secret_in_a_command_that_cannot_be_executed_is_said_nowhere() -> anyhow::Result<()> {
    const CANARY: &str = "canary-in-a-command";
    with_world(async |world: World| {
        create_secret(&world, "s", json!({ "k": CANARY })).await?;
        let mut job = with_env(
            world.job("quoted", ""),
            json!([{ "name": "S", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }]),
        )?;
        job.spec.command = vec!["$(S)".to_owned()];
        world.create(&job).await?;
        let job = world.when_finished("quoted").await?;
        expect(&job, Outcome::Failed, "StartError", None)?;
        let said = serde_json::to_string(&job)?;
        ensure!(said.contains("there is no such command in the image"), "{said}");
        ensure!(!said.contains(CANARY), "{said}");

        let events = Api::<Event>::namespaced(world.client.clone(), &world.namespace);
        let uid = job.uid().unwrap_or_default();
        let ours = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let told = eventually_told(&events, &ours, "StartError").await?;
        ensure!(!told.contains(CANARY), "{told}");
        Ok(())
    })
    .await
}

/// All Events of these, once they say this word.
async fn eventually_told(events: &Api<Event>, these: &ListParams, word: &str) -> anyhow::Result<String> {
    let told = async || anyhow::Ok(serde_json::to_string(&events.list(these).await?)?);
    eventually(&format!("an Event says {word}"), async || {
        Ok(told().await?.contains(word))
    })
    .await?;
    told().await
}

#[tokio::test]
async fn references_to_variables_are_filled_in_in_order_and_left_as_they_are_where_there_is_none()
-> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut job = with_env(
            world.job("expansion", r#"echo "$1"; echo "$EARLY""#),
            json!([
                { "name": "A", "value": "x" },
                { "name": "B", "value": "$(A)-$(NOPE)-$$(A)-$$" },
                { "name": "EARLY", "value": "$(LATE)" },
                { "name": "LATE", "value": "y" },
            ]),
        )?;
        job.spec.args = vec!["name".to_owned(), "$(B)".to_owned()];
        world.create(&job).await?;
        let job = succeeds(&world, "expansion").await?;
        let printed = output(&world, &job).await?;
        ensure!(printed == ["x-$(NOPE)-$(A)-$", "$(LATE)"], "{printed:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn names_that_no_shell_could_use_reach_the_command() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let names = ["my.var", "my-var", "1X", "a b"];
        let env: Vec<_> = names
            .iter()
            .map(|name| json!({ "name": name, "value": "here" }))
            .collect();
        world
            .create(&with_env(printing(&world, "names"), json!(env))?)
            .await?;
        let job = succeeds(&world, "names").await?;
        let printed = output(&world, &job).await?;
        for name in names {
            ensure!(
                printed.contains(&format!("{name}=here")),
                "{name} is not in {printed:?}"
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn every_key_of_a_bulk_import_arrives_with_its_prefix_and_single_variables_win() -> anyhow::Result<()> {
    with_world(async |world: World| {
        create_config(
            &world,
            "bulk",
            json!({ "GOOD": "1", "1BAD": "2", "bad.key": "3", "bad-key": "4" }),
        )
        .await?;
        create_secret(&world, "bulk", json!({ "GOOD": "5", "token": "6" })).await?;
        let mut job = with_env(
            printing(&world, "bulk"),
            json!([{ "name": "S_token", "value": "own" }]),
        )?;
        job.spec.env_from = serde_json::from_value(json!([
            { "prefix": "P_", "configMapRef": { "name": "bulk" } },
            { "configMapRef": { "name": "bulk" } },
            { "secretRef": { "name": "bulk" } },
            { "prefix": "S_", "secretRef": { "name": "bulk" } },
            { "prefix": "N_", "secretRef": { "name": "nowhere", "optional": true } },
        ]))?;
        world.create(&job).await?;
        let job = succeeds(&world, "bulk").await?;
        let printed = output(&world, &job).await?;
        for line in [
            "P_GOOD=1",
            "P_1BAD=2",
            "P_bad.key=3",
            "P_bad-key=4",
            "GOOD=5",
            "1BAD=2",
            "bad.key=3",
            "token=6",
            "S_GOOD=5",
            "S_token=own",
        ] {
            ensure!(printed.iter().any(|l| l == line), "{line} is not in {printed:?}");
        }
        ensure!(!printed.iter().any(|l| l.starts_with("N_")), "{printed:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_optional_reference_to_what_is_missing_leaves_the_variable_unset() -> anyhow::Result<()> {
    with_world(async |world: World| {
        create_secret(&world, "present", json!({ "other": "x" })).await?;
        create_config(&world, "present", json!({ "other": "x" })).await?;
        let key = |name: &str| json!({ "name": name, "key": "k", "optional": true });
        let unset = r#"[ -z "${A+x}${B+x}${C+x}${D+x}" ] && [ "$E" = x ]"#;
        let job = with_env(
            world.job("optional", unset),
            json!([
                { "name": "A", "valueFrom": { "secretKeyRef": key("nowhere") } },
                { "name": "B", "valueFrom": { "secretKeyRef": key("present") } },
                { "name": "C", "valueFrom": { "configMapKeyRef": key("nowhere") } },
                { "name": "D", "valueFrom": { "configMapKeyRef": key("present") } },
                { "name": "E", "valueFrom": { "configMapKeyRef": { "name": "present", "key": "other", "optional": true } } },
            ]),
        )?;
        world.create(&job).await?;
        succeeds(&world, "optional").await.map(drop)
    })
    .await
}

fn token_from(name: &str) -> Value {
    json!([{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": name, "key": "token" } } }])
}

#[tokio::test]
async fn a_job_waits_for_its_secret_then_for_the_key_and_then_runs_untouched() -> anyhow::Result<()> {
    with_world(async |world: World| {
        world
            .create(&with_env(
                world.job("waits", "[ \"$TOKEN\" = hush ]"),
                token_from("late"),
            )?)
            .await?;
        world.when_says("waits", ACCEPTED, "SecretNotFound").await?;
        create_secret(&world, "late", json!({ "other": "x" })).await?;
        let job = world.when_says("waits", ACCEPTED, "SecretKeyNotFound").await?;
        ensure!(
            world.batch_jobs(&job).await?.is_empty(),
            "something was created already"
        );
        let key = Patch::Merge(json!({ "stringData": { "token": "hush" } }));
        secrets(&world)
            .patch("late", &PatchParams::default(), &key)
            .await?;
        let job = succeeds(&world, "waits").await?;
        ensure!(world.starts("waits") == 1 && job.metadata.generation == Some(1));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_secret_that_goes_before_the_start_is_waited_for_and_read_as_it_is_then() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), &world.namespace);
        let none = json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
        quotas
            .create(&PostParams::default(), &serde_json::from_value(none)?)
            .await?;
        world
            .eventually("the quota is in force", async || {
                Ok(quotas.get("none").await?.status.is_some_and(|s| s.hard.is_some()))
            })
            .await?;
        create_secret(&world, "fleeting", json!({ "token": "first" })).await?;
        world
            .create(&with_env(
                world.job("waits", "[ \"$TOKEN\" = second ]"),
                token_from("fleeting"),
            )?)
            .await?;
        world.when_says("waits", SCHEDULED, "QuotaExceeded").await?;
        secrets(&world)
            .delete("fleeting", &DeleteParams::default())
            .await?;
        quotas.delete("none", &DeleteParams::default()).await?;
        world.when_says("waits", STARTED, "ContainerConfigError").await?;
        create_secret(&world, "fleeting", json!({ "token": "second" })).await?;
        let job = succeeds(&world, "waits").await?;
        let pods = world.pods(&job).await?.len();
        ensure!(world.starts("waits") == 1 && pods == 1, "{pods} pods");
        Ok(())
    })
    .await
}

/// The value of the test's Secret, and as the API writes it.
const CANARY: [&str; 2] = ["tweet-42-canary", "dHdlZXQtNDItY2FuYXJ5"];

#[tokio::test]
async fn the_value_of_a_secret_is_nowhere_but_in_the_secret() -> anyhow::Result<()> {
    with_world(async |world: World| {
        create_secret(&world, "canary", json!({ "token": CANARY[0] })).await?;
        let mut job = with_env(
            world.job("uses", "[ -n \"$TOKEN\" ] && exit 3"),
            token_from("canary"),
        )?;
        job.spec.env_from = serde_json::from_value(json!([{ "secretRef": { "name": "canary" } }]))?;
        world.create(&job).await?;
        let mut wrong = with_env(world.job("misses", "true"), token_from("canary"))?;
        wrong.spec.env_from = serde_json::from_value(json!([{ "configMapRef": { "name": "nowhere" } }]))?;
        world.create(&wrong).await?;
        world.when_says("misses", ACCEPTED, "ConfigMapNotFound").await?;
        let job = world.when_finished("uses").await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;

        let everything =
            "ajobs,jobs.batch,pods,events,events.events.k8s.io,configmaps,leases,controllerrevisions";
        let objects = kubectl(&[
            "get",
            everything,
            "--namespace",
            &world.namespace,
            "--output=yaml",
        ])
        .await?;
        ensure!(objects.contains("name: canary"), "the dump does not show the Job");
        let adapters = "app.kubernetes.io/name=kubernetes-adapter";
        let logs = kubectl(&[
            "logs",
            "--namespace",
            SYSTEM_NAMESPACE,
            "--selector",
            adapters,
            "--tail=-1",
        ])
        .await?;
        let secret = kubectl(&["get", "secrets", "--namespace", &world.namespace, "--output=yaml"]).await?;
        ensure!(
            secret.contains(CANARY[1]),
            "the canary is not as the API writes it"
        );
        for canary in CANARY {
            ensure!(!objects.contains(canary), "an object repeats the value");
            ensure!(!logs.contains(canary), "the adapter's log repeats the value");
        }
        Ok(())
    })
    .await
}

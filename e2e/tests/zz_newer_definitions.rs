//! Definitions newer than the adapter: what it does not know, it says, and does not leave out. And older ones: what they
//! would not keep, it does not do without.
//!
//! Changes the definitions that everybody uses, so the tests are among the last, and take turns.

use anyhow::{Context, ensure};
use ayatori_core::conditions::{self, ACCEPTED};
use ayatori_core::job::Outcome;
use ayatori_core::job_class::JobClass;
use ayatori_core::parameters::KubernetesExecutionParametersSpec;
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::api;
use ayatori_e2e::replica::{Adapter, kubectl};
use ayatori_e2e::sandboxes::{Sandboxes, with_sandboxes};
use ayatori_e2e::world::{World, expect, with_world};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const DEFINITIONS: [&str; 2] = ["jobs", "jobclasses"];

/// The definitions are of one kind at a time.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn a_field_that_only_a_newer_version_knows_is_named_and_nothing_is_done_without_it()
-> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    with_world(async |world: World| {
        let mut originals = Vec::new();
        for plural in DEFINITIONS {
            originals.push(definition(&world, plural).await?);
        }
        let outcome = newer(&world, &originals).await;
        for original in &originals {
            apply(&world, original).await?;
        }
        outcome
    })
    .await
}

/// A definition as it is, ready to be applied again.
async fn definition(world: &World, plural: &str) -> anyhow::Result<CustomResourceDefinition> {
    let definitions = Api::<CustomResourceDefinition>::all(world.client.clone());
    let found = definitions
        .get(&format!("{plural}.{}", ayatori_core::names::GROUP))
        .await?;
    Ok(CustomResourceDefinition {
        metadata: ObjectMeta {
            name: found.metadata.name,
            labels: found.metadata.labels,
            annotations: found.metadata.annotations,
            ..ObjectMeta::default()
        },
        spec: found.spec,
        status: None,
    })
}

/// Under the name of Helm, whose definitions they are, or the next upgrade would find another owner's changes.
async fn apply(world: &World, definition: &CustomResourceDefinition) -> anyhow::Result<()> {
    let params = PatchParams::apply("helm").force();
    Api::<CustomResourceDefinition>::all(world.client.clone())
        .patch(&definition.name_any(), &params, &Patch::Apply(definition))
        .await
        .with_context(|| format!("applying {}", definition.name_any()))?;
    Ok(())
}

/// The definition with one more field in its spec.
fn with_field(definition: &CustomResourceDefinition) -> anyhow::Result<CustomResourceDefinition> {
    let mut newer = serde_json::to_value(definition)?;
    let fields = newer
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties")
        .context("a spec with fields")?;
    fields["future"] =
        json!({ "type": "string", "maxLength": 10, "description": "What a later version adds." });
    Ok(serde_json::from_value(newer)?)
}

async fn newer(world: &World, originals: &[CustomResourceDefinition]) -> anyhow::Result<()> {
    for original in originals {
        apply(world, &with_field(original)?).await?;
    }
    let future = json!({ "spec": { "future": "yes" } });
    let mut job = serde_json::to_value(world.job("modern", "true"))?;
    job = api::merged(job, &future);
    let jobs = untyped(world, &ayatori_core::crd::job());
    let job: DynamicObject = serde_json::from_value(job)?;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    world
        .eventually("the API server keeps the field", async || {
            let kept = jobs.create(&dry, &job).await?;
            Ok(kept.data.pointer("/spec/future").is_some())
        })
        .await?;
    jobs.create(&PostParams::default(), &job).await?;
    let said = when_job_says(world, "modern", "UnsupportedFeature").await?;
    ensure!(said.contains("spec.future"), "it does not name the field: {said}");
    let job = world.jobs.get("modern").await?;
    ensure!(world.batch_jobs(&job).await?.is_empty() && world.starts("modern") == 0);

    let class = format!("{}-modern", world.namespace);
    world
        .create_class(&class, KubernetesExecutionParametersSpec::default(), |_| {})
        .await?;
    let classes = untyped(world, &ayatori_core::crd::job_class());
    let change = async |patch: Value| {
        classes
            .patch(&class, &PatchParams::default(), &Patch::Merge(patch))
            .await
    };
    change(future).await?;
    let said = when_class_says(world, &class, "UnsupportedFeature").await?;
    ensure!(said.contains("spec.future"), "it does not name the field: {said}");
    let mut waits = world.job("waits", "true");
    waits.spec.job_class_name = Some(class.clone());
    world.create(&waits).await?;
    when_job_says(world, "waits", "JobClassNotAccepted").await?;
    change(json!({ "spec": { "future": null } })).await?;
    when_class_says(world, &class, "Accepted").await?;
    expect(
        &world.when_finished("waits").await?,
        Outcome::Succeeded,
        "Completed",
        Some(0),
    )
}

fn untyped(world: &World, crd: &CustomResourceDefinition) -> Api<DynamicObject> {
    let resource = api::resource(crd);
    match crd.spec.scope.as_str() {
        "Namespaced" => Api::namespaced_with(world.client.clone(), &world.namespace, &resource),
        _ => Api::all_with(world.client.clone(), &resource),
    }
}

fn accepted(all: &[Condition]) -> Option<&Condition> {
    conditions::find(all, ACCEPTED)
}

/// What the Job says once the reason of its condition Accepted is this. Asked again and again: a change of its
/// definition ends the watches of a kind.
async fn when_job_says(world: &World, name: &str, reason: &str) -> anyhow::Result<String> {
    let ask = async || {
        let job = world.jobs.get(name).await?;
        let condition = job.status.as_ref().and_then(|s| accepted(&s.conditions));
        anyhow::Ok(
            condition
                .filter(|c| c.reason == reason)
                .map(|c| c.message.clone()),
        )
    };
    world
        .eventually(&format!("Job {name} says {reason}"), async || {
            Ok(ask().await?.is_some())
        })
        .await?;
    ask().await?.context("it has changed its mind")
}

/// The same of a class.
async fn when_class_says(world: &World, name: &str, reason: &str) -> anyhow::Result<String> {
    let classes = Api::<JobClass>::all(world.client.clone());
    let ask = async || {
        let class = classes.get(name).await?;
        let condition = class.status.as_ref().and_then(|s| accepted(&s.conditions));
        anyhow::Ok(
            condition
                .filter(|c| c.reason == reason)
                .map(|c| c.message.clone()),
        )
    };
    world
        .eventually(&format!("class {name} says {reason}"), async || {
            Ok(ask().await?.is_some())
        })
        .await?;
    ask().await?.context("it has changed its mind")
}

/// Part of the first status that an adapter writes of a Job it accepts; the rules of the definition do not need it.
const FIRST_WRITTEN: &str = "correlation";

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_older_definitions_would_not_keep_is_an_error_and_nothing_starts_without_it()
-> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        let original = definition(world, "jobs").await?;
        let outcome = older(&sandboxes, &original).await;
        apply(world, &original).await?;
        outcome?;
        for name in ["pod", "sandbox"] {
            let job = world.when_finished(name).await?;
            expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
        }
        ensure!(world.starts("pod") == 1);
        ensure!(sandboxes.witness.starts(&world.jobs.get("sandbox").await?) == 1);
        Ok(())
    })
    .await
}

/// The definition without one of the fields of its status.
fn without_field(definition: &CustomResourceDefinition) -> anyhow::Result<CustomResourceDefinition> {
    let mut older = serde_json::to_value(definition)?;
    older
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/status/properties")
        .and_then(Value::as_object_mut)
        .and_then(|fields| fields.remove(FIRST_WRITTEN))
        .context("a status with that field")?;
    Ok(serde_json::from_value(older)?)
}

async fn older(sandboxes: &Sandboxes, original: &CustomResourceDefinition) -> anyhow::Result<()> {
    let world = &sandboxes.world;
    apply(world, &without_field(original)?).await?;
    world.create(&probe(world)).await?;
    let strict = PatchParams {
        field_validation: Some(kube::api::ValidationDirective::Strict),
        ..PatchParams::default()
    };
    let status = json!({ "status": { FIRST_WRITTEN: { "selector": "a=b" } } });
    world
        .eventually("the API server does not know the field any more", async || {
            let written = world
                .jobs
                .patch_status("probe", &strict.clone().dry_run(), &Patch::Merge(&status))
                .await;
            Ok(matches!(written, Err(kube::Error::Api(_))))
        })
        .await?;
    world.create(&world.job("pod", "exit 3")).await?;
    world.create(&sandboxes.job("sandbox", "exit 3")).await?;
    for adapter in [Adapter::Kubernetes, Adapter::OpenSandbox] {
        fails_loudly(world, adapter).await?;
    }
    for name in ["pod", "sandbox"] {
        let said = when_job_says(world, name, "DefinitionsTooOld").await?;
        ensure!(
            said.contains(&format!("status.{FIRST_WRITTEN}")) && said.contains("upgrade execution-api"),
            "it names neither the field nor the remedy: {said}"
        );
        let job = world.jobs.get(name).await?;
        let status = job.status.as_ref().context("no status")?;
        ensure!(
            !conditions::is_true(&status.conditions, ACCEPTED) && status.execution.is_none(),
            "{name} was accepted, although not all of that can be stored: {status:?}"
        );
        ensure!(world.batch_jobs(&job).await?.is_empty() && sandboxes.of(&job).await?.is_empty());
    }
    Ok(())
}

/// A Job that no adapter touches.
fn probe(world: &World) -> ayatori_core::job::Job {
    let mut probe = world.job("probe", "true");
    probe.spec.managed_by = Some("ayatori.example/nobody".to_owned());
    probe
}

/// The adapter names the field in its log, and counts the failures.
async fn fails_loudly(world: &World, adapter: Adapter) -> anyhow::Result<()> {
    let selector = format!("app.kubernetes.io/name={}", adapter.name());
    let said = format!("unknown field \\\"status.{FIRST_WRITTEN}\\\"");
    let logs = ["logs", "--namespace", SYSTEM_NAMESPACE, "--selector", &selector];
    world
        .eventually(&format!("{} names the field", adapter.name()), async || {
            Ok(kubectl(&[&logs[..], &["--tail=200"]].concat())
                .await?
                .contains(&said))
        })
        .await?;
    let pods = [
        "get",
        "pods",
        "--namespace",
        SYSTEM_NAMESPACE,
        "--selector",
        &selector,
    ];
    let names = kubectl(&[&pods[..], &["--output=jsonpath={.items[*].metadata.name}"]].concat()).await?;
    let mut counted = false;
    for pod in names.split_whitespace() {
        let page = format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods/{pod}:8080/proxy/metrics");
        let page = kubectl(&["get", "--raw", &page]).await?;
        counted |= page
            .lines()
            .any(|line| line.starts_with("ayatori_reconcile_errors_total{") && line.contains("job"));
    }
    ensure!(counted, "{} does not count its failures", adapter.name());
    Ok(())
}

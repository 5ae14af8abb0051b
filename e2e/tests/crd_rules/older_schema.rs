//! Objects from before a rule existed.

use anyhow::{Context, ensure};
use ayatori_core::crd;
use ayatori_e2e::api::{Run, Verdict, eventually, in_namespace, install};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::dry_run;
use crate::samples::{NOON, accepted, condition, job_spec};

/// An object stored before a rule existed must not be stuck: the rule is for what changes.
#[tokio::test]
async fn what_an_older_schema_let_through_can_still_be_managed_and_deleted() -> anyhow::Result<()> {
    from_an_older(loosened, async |run, strict, _| {
        manage_an_old_job(run, strict).await
    })
    .await
}

/// A test that begins under an older definition of a Job than the strict one, in a group of its own.
async fn from_an_older(
    older: impl Fn(&CustomResourceDefinition) -> anyhow::Result<CustomResourceDefinition>,
    test: impl AsyncFn(&Run, &CustomResourceDefinition, &CustomResourceDefinition) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let strict = in_group(crd::job(), &format!("{}.example.com", run.namespace))?;
        let older = older(&strict)?;
        install(&run.client, std::slice::from_ref(&older)).await?;
        let outcome = test(&run, &strict, &older).await;
        let definitions: Api<CustomResourceDefinition> = Api::all(run.client.clone());
        definitions
            .delete(&strict.name_any(), &DeleteParams::default())
            .await?;
        outcome
    })
    .await
}

async fn manage_an_old_job(run: &Run, strict: &CustomResourceDefinition) -> anyhow::Result<()> {
    let jobs = run.objects(strict);
    let name = "a".repeat(80);
    let spec = json!({
        "image": "UPPER//bad", "managedBy": "nobody", "activeDeadlineSeconds": 0, "workingDir": "relative",
        "env": [{ "name": "A=B", "value": "x".repeat(140_000), "valueFrom": {} }],
    });
    let mut job = run.object(strict, &name, spec.clone());
    job.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    jobs.create(&PostParams::default(), &job)
        .await
        .context("under the loose schema")?;
    let unproven = json!({ "status": { "conditions": [condition("Finished", "True", NOON), condition("ResultUnknown", "True", NOON)] } });
    let plain = PatchParams::default();
    jobs.patch_status(&name, &plain, &Patch::Merge(unproven)).await?;

    install(&run.client, std::slice::from_ref(strict)).await?;
    eventually("the strict schema is in force", async || {
        Ok(jobs
            .create(&dry_run(), &run.object(strict, "another", spec.clone()))
            .await
            .is_err())
    })
    .await?;

    let change = async |what: &str, patch: Value| {
        jobs.patch(&name, &plain, &Patch::Merge(patch))
            .await
            .map(drop)
            .with_context(|| what.to_owned())
    };
    change("a label", json!({ "metadata": { "labels": { "a": "b" } } })).await?;
    change("a TTL", json!({ "spec": { "ttlSecondsAfterFinished": 5 } })).await?;
    change("a cancellation", json!({ "spec": { "cancelRequested": true } })).await?;
    let blocked = [
        condition("Finished", "True", NOON),
        condition("ResultUnknown", "True", NOON),
        condition("DeletionBlocked", "True", NOON),
    ];
    jobs.patch_status(
        &name,
        &plain,
        &Patch::Merge(json!({ "status": { "conditions": blocked } })),
    )
    .await
    .context("a condition")?;

    jobs.delete(&name, &DeleteParams::default()).await?;
    change(
        "dropping the finalizer",
        json!({ "metadata": { "finalizers": null } }),
    )
    .await?;
    ensure!(jobs.get_opt(&name).await?.is_none(), "the Job is still there");
    Ok(())
}

/// The rules in a status say nothing where there is none: the definition sees to it that there always is.
#[tokio::test]
async fn a_job_from_before_there_was_a_first_status_is_judged_like_any_other() -> anyhow::Result<()> {
    from_an_older(without_default, finish_a_job_without_status).await
}

async fn finish_a_job_without_status(
    run: &Run,
    strict: &CustomResourceDefinition,
    undefaulted: &CustomResourceDefinition,
) -> anyhow::Result<()> {
    let jobs = run.objects(undefaulted);
    let plain = PatchParams::default();
    let status = |status: Value| Patch::Merge(json!({ "status": status }));
    for name in ["reported", "silent"] {
        let created = jobs
            .create(&PostParams::default(), &run.object(undefaulted, name, job_spec()))
            .await?;
        ensure!(created.data.get("status").is_none(), "{created:?}");
    }
    jobs.patch_status("reported", &plain, &status(accepted())).await?;
    let answer = jobs.patch_status("reported", &plain, &status(Value::Null)).await;
    let problem = Verdict::Refused("status says what is set once: it cannot be removed").problem(&answer);
    ensure!(problem.is_none(), "{problem:?}");

    install(&run.client, std::slice::from_ref(strict)).await?;
    eventually("the first status is in force", async || {
        Ok(jobs.get("silent").await?.data.get("status").is_some())
    })
    .await?;
    let finish = json!({ "conditions": [condition("Finished", "True", NOON)] });
    let answer = jobs.patch_status("silent", &plain, &status(finish)).await;
    let problem = Verdict::Refused("status.result must be set").problem(&answer);
    ensure!(problem.is_none(), "{problem:?}");
    Ok(())
}

/// Who owned a part of a status before it was owned as a whole.
#[tokio::test]
async fn a_status_of_several_owners_becomes_that_of_the_next_who_writes() -> anyhow::Result<()> {
    from_an_older(granular, own_the_whole_status).await
}

async fn own_the_whole_status(
    run: &Run,
    strict: &CustomResourceDefinition,
    granular: &CustomResourceDefinition,
) -> anyhow::Result<()> {
    let jobs = run.objects(granular);
    jobs.create(
        &PostParams::default(),
        &run.object(granular, "shared", job_spec()),
    )
    .await?;
    let write = async |manager: &str, status: Value| {
        let params = PatchParams::apply(manager);
        let patch = Patch::Merge(json!({ "status": status }));
        jobs.patch_status("shared", &params, &patch).await
    };
    write("first", accepted()).await?;
    let before = write("second", json!({ "state": "Running" })).await?;
    let parts = owners_of_a_status(&before);
    ensure!(parts.len() > 1 && !parts.contains(&json!({})), "{parts:?}");

    install(&run.client, std::slice::from_ref(strict)).await?;
    eventually("the next who writes owns the status alone", async || {
        // A write that changes nothing is none.
        for generation in [1, 2] {
            let after = write("third", json!({ "observedGeneration": generation })).await?;
            if owners_of_a_status(&after) == [json!({})] {
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await?;
    let after = jobs.get("shared").await?;
    for part in ["resolvedJobClass", "conditions", "state"] {
        let of = |job: &DynamicObject| job.data.pointer(&format!("/status/{part}")).cloned();
        ensure!(of(&before) == of(&after), "{part}: {after:?}");
    }
    let answer = write("third", json!({ "resolvedJobClass": null })).await;
    let problem = Verdict::Refused("status.resolvedJobClass is set once").problem(&answer);
    ensure!(problem.is_none(), "{problem:?}");
    Ok(())
}

/// What each owner has of the status; an empty object is all of it.
fn owners_of_a_status(job: &DynamicObject) -> Vec<Value> {
    let entries = job.metadata.managed_fields.iter().flatten();
    let fields = entries.filter_map(|entry| entry.fields_v1.as_ref());
    fields
        .filter_map(|fields| fields.0.get("f:status").cloned())
        .collect()
}

/// The same definition, but that a new object has no status.
fn without_default(crd: &CustomResourceDefinition) -> anyhow::Result<CustomResourceDefinition> {
    with_a_status_without(crd, "default")
}

/// The same definition, but that each field of a status has owners of its own.
fn granular(crd: &CustomResourceDefinition) -> anyhow::Result<CustomResourceDefinition> {
    with_a_status_without(crd, "x-kubernetes-map-type")
}

fn with_a_status_without(
    crd: &CustomResourceDefinition,
    keyword: &str,
) -> anyhow::Result<CustomResourceDefinition> {
    let mut value = serde_json::to_value(crd)?;
    value
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/status")
        .and_then(Value::as_object_mut)
        .and_then(|status| status.remove(keyword))
        .with_context(|| format!("no {keyword}"))?;
    Ok(serde_json::from_value(value)?)
}

/// The same definition in another group, so that nobody else's objects are touched.
fn in_group(mut crd: CustomResourceDefinition, group: &str) -> anyhow::Result<CustomResourceDefinition> {
    crd.metadata.name = Some(format!("{}.{group}", crd.spec.names.plural));
    crd.spec.group = group.to_owned();
    crd.spec.names.categories = None;
    crd.spec.names.short_names = None;
    Ok(crd)
}

/// The same definition without any rule or limit.
fn loosened(crd: &CustomResourceDefinition) -> anyhow::Result<CustomResourceDefinition> {
    fn loosen(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                // Fields of the API have none of these names.
                for rule in [
                    "x-kubernetes-validations",
                    "maxLength",
                    "minLength",
                    "maxItems",
                    "maximum",
                    "minimum",
                ] {
                    fields.remove(rule);
                }
                fields.values_mut().for_each(loosen);
            }
            Value::Array(items) => items.iter_mut().for_each(loosen),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(crd)?;
    loosen(&mut value);
    Ok(serde_json::from_value(value)?)
}

//! The API server enforces what the CRDs state: every rule, as a write it lets through and a write it refuses.
//!
//! Needs a control plane alone. No adapter takes part: Jobs and classes here belong to a controller of somebody
//! else's domain. A row of a table is one write, and all rows that were answered wrongly are reported at once.

mod every_kind;
mod job_class;
mod job_creation;
mod job_spec;
mod job_status;
mod older_schema;
mod parameters;
mod samples;

use anyhow::{Context, ensure};
use ayatori_e2e::api::{Run, Verdict, in_namespace, merged};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn dry_run() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

/// Tries to create, for each row, the valid `spec` with one change, and reports every wrong answer at once.
async fn creations(
    crd: CustomResourceDefinition,
    spec: Value,
    rows: Vec<(&str, Value, Verdict)>,
) -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let objects = run.objects(&crd);
        let mut problems = Vec::new();
        for (sentence, change, verdict) in rows {
            let object = run.object(&crd, "case", merged(spec.clone(), &change));
            let answer = objects.create(&dry_run(), &object).await;
            problems.extend(
                verdict
                    .problem(&answer)
                    .map(|problem| format!("{sentence}: {problem}")),
            );
        }
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(())
    })
    .await
}

/// A change of an object that exists.
enum Write {
    /// Of the object itself.
    Spec(Value),
    /// Of its status, through the subresource.
    Status(Value),
    /// The object as it is stored, but for one field at its top: another value, or none for null. What is stored
    /// is replaced as a whole, the status through the subresource.
    Whole(&'static str, Value),
}

/// One change of a stored object: what it is, what the status was before, the change, and what comes of it.
struct Transition {
    sentence: &'static str,
    spec: Value,
    status: Value,
    write: Write,
    verdict: Verdict,
}

/// Stores, for each row, an object with that spec and status, and tries the change.
async fn transitions(
    crd: CustomResourceDefinition,
    spec: Value,
    rows: Vec<Transition>,
) -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let objects = run.objects(&crd);
        let mut problems = Vec::new();
        for (number, row) in rows.into_iter().enumerate() {
            let object = run.object(&crd, &format!("case-{number}"), merged(spec.clone(), &row.spec));
            let name = object.name_any();
            objects
                .create(&PostParams::default(), &object)
                .await
                .with_context(|| row.sentence)?;
            if row.status != json!({}) {
                let start = Patch::Merge(json!({ "status": row.status }));
                objects
                    .patch_status(&name, &PatchParams::default(), &start)
                    .await
                    .with_context(|| row.sentence)?;
            }
            let strict = PatchParams::default().validation_strict();
            let answer = match row.write {
                Write::Spec(change) => {
                    objects
                        .patch(&name, &strict, &Patch::Merge(json!({ "spec": change })))
                        .await
                }
                Write::Status(change) => {
                    objects
                        .patch_status(&name, &strict, &Patch::Merge(json!({ "status": change })))
                        .await
                }
                Write::Whole(field, value) => {
                    let mut object = objects.get(&name).await.with_context(|| row.sentence)?;
                    object.data = merged(object.data, &json!({ field: null }));
                    object.data = merged(object.data, &json!({ field: value }));
                    match field {
                        "status" => {
                            objects
                                .replace_status(&name, &PostParams::default(), &object)
                                .await
                        }
                        _ => objects.replace(&name, &PostParams::default(), &object).await,
                    }
                }
            };
            problems.extend(
                row.verdict
                    .problem(&answer)
                    .map(|problem| format!("{}: {problem}", row.sentence)),
            );
        }
        ensure!(problems.is_empty(), "{}", problems.join("\n"));
        Ok(())
    })
    .await
}

fn spec_change(sentence: &'static str, spec: Value, change: Value, verdict: Verdict) -> Transition {
    Transition {
        sentence,
        spec,
        status: json!({}),
        write: Write::Spec(change),
        verdict,
    }
}

fn status_change(sentence: &'static str, status: Value, change: Value, verdict: Verdict) -> Transition {
    Transition {
        sentence,
        spec: json!({}),
        status,
        write: Write::Status(change),
        verdict,
    }
}

/// Leaves out one part of a status, with the merge patch and with the object that do it.
fn status_without(sentence: &'static str, status: Value, part: &str, verdict: Verdict) -> [Transition; 2] {
    let removal = part
        .rsplit('.')
        .filter(|step| !step.is_empty())
        .fold(Value::Null, |inner, step| json!({ step: inner }));
    let whole = merged(status.clone(), &removal);
    let replaced = Transition {
        write: Write::Whole("status", whole),
        ..status_change(sentence, status.clone(), Value::Null, verdict)
    };
    [status_change(sentence, status, removal, verdict), replaced]
}

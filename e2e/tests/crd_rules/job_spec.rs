//! What of a Job may change.

use anyhow::Context;
use ayatori_core::crd;
use ayatori_e2e::api::{Verdict, Verdict::Accepted, Verdict::Refused, merged};
use serde_json::{Value, json};

use crate::samples::job_spec;
use crate::{Transition, Write, spec_change, transitions};

#[tokio::test]
#[rustfmt::skip]
async fn the_spec_of_a_job_changes_only_where_it_may() -> anyhow::Result<()> {
    let set = json!({
        "jobClassName": "a", "workingDir": "/a", "command": ["a"], "args": ["a"],
        "env": [{ "name": "A", "value": "a" }], "envFrom": [{ "secretRef": { "name": "a" } }],
        "imagePullSecrets": [{ "name": "a" }], "resources": { "limits": { "cpu": "1" } },
        "activeDeadlineSeconds": 9, "startingDeadlineSeconds": 9, "terminationGracePeriodSeconds": 9,
    });
    let other = json!({
        "jobClassName": "b", "workingDir": "/b", "command": ["b"], "args": ["b"],
        "env": [{ "name": "A", "value": "b" }], "envFrom": [{ "secretRef": { "name": "b" } }],
        "imagePullSecrets": [{ "name": "b" }], "resources": { "limits": { "cpu": "2" } },
        "activeDeadlineSeconds": 8, "startingDeadlineSeconds": 8, "terminationGracePeriodSeconds": 8,
    });
    let mut rows = vec![
        spec_change("the image is immutable", json!({}), json!({ "image": "other" }), Refused("spec.image is immutable: create a new Job instead")),
        spec_change("managedBy cannot be changed", json!({}), json!({ "managedBy": "example.com/other" }), Refused("spec.managedBy is immutable")),
        spec_change("managedBy cannot be removed", json!({}), json!({ "managedBy": null }), Refused("spec.managedBy is immutable")),
        spec_change("a suspended Job may be resumed", json!({ "suspend": true }), json!({ "suspend": false }), Accepted),
        spec_change("a suspended Job may be resumed by removing the field", json!({ "suspend": true }), json!({ "suspend": null }), Accepted),
        spec_change("a Job cannot be suspended again", json!({ "suspend": false }), json!({ "suspend": true }), Refused("never back")),
        spec_change("a Job cannot be suspended later", json!({}), json!({ "suspend": true }), Refused("never back")),
        spec_change("a Job may be cancelled", json!({}), json!({ "cancelRequested": true }), Accepted),
        spec_change("a cancelled Job may be cancelled again", json!({ "cancelRequested": true }), json!({ "cancelRequested": true }), Accepted),
        spec_change(
            "a cancellation cannot be taken back",
            json!({ "cancelRequested": true }),
            json!({ "cancelRequested": false }),
            Refused("spec.cancelRequested cannot be taken back"),
        ),
        spec_change(
            "a cancellation cannot be removed",
            json!({ "cancelRequested": true }),
            json!({ "cancelRequested": null }),
            Refused("spec.cancelRequested cannot be taken back"),
        ),
        spec_change("a TTL may be added", json!({}), json!({ "ttlSecondsAfterFinished": 30 }), Accepted),
        spec_change("a TTL may be changed", json!({ "ttlSecondsAfterFinished": 30 }), json!({ "ttlSecondsAfterFinished": 0 }), Accepted),
        spec_change("a TTL may be removed", json!({ "ttlSecondsAfterFinished": 30 }), json!({ "ttlSecondsAfterFinished": null }), Accepted),
        spec_change("a spec cannot be removed", json!({}), Value::Null, Refused("spec: Required value")),
        spec_change("the same spec again changes nothing", set.clone(), set.clone(), Accepted),
    ];
    for (field, value) in set.as_object().context("an object")? {
        const WORDS: Verdict = Refused("is immutable: create a new Job instead");
        rows.push(spec_change(
            "a field cannot be changed",
            set.clone(),
            json!({ field: other[field] }),
            WORDS,
        ));
        rows.push(spec_change(
            "a field cannot be removed",
            set.clone(),
            json!({ field: null }),
            WORDS,
        ));
        rows.push(spec_change(
            "a field cannot be added",
            json!({}),
            json!({ field: value }),
            WORDS,
        ));
    }
    for field in ["command", "args", "env", "envFrom", "imagePullSecrets"] {
        const WORDS: Verdict = Refused("is immutable: create a new Job instead");
        let no = || json!({ field: [] });
        let some = || json!({ field: set[field] });
        rows.extend([
            spec_change("an empty list may be left out, which means the same", no(), json!({ field: null }), Accepted),
            spec_change("a list that was left out may be empty", json!({}), no(), Accepted),
            spec_change("an empty list stays empty", no(), some(), WORDS),
            spec_change("a list is not emptied", some(), no(), WORDS),
        ]);
    }
    let whole = |spec: Value, then: Value, verdict: Verdict| Transition {
        write: Write::Whole("spec", then),
        ..spec_change("a spec is replaced", spec, Value::Null, verdict)
    };
    rows.extend([
        whole(set.clone(), merged(job_spec(), &set), Accepted),
        whole(set.clone(), job_spec(), Refused("spec.workingDir is immutable")),
        whole(set.clone(), Value::Null, Refused("spec: Required value")),
        whole(json!({}), merged(job_spec(), &json!({ "managedBy": null })), Refused("spec.managedBy is immutable")),
    ]);
    transitions(crd::job(), job_spec(), rows).await
}

#[tokio::test]
async fn an_immutable_field_is_refused_by_its_name() -> anyhow::Result<()> {
    const ROWS: [(&str, &str); 5] = [
        (
            "image",
            "spec.image: Forbidden: spec.image is immutable: create a new Job instead",
        ),
        (
            "jobClassName",
            "spec.jobClassName: Forbidden: spec.jobClassName is immutable: create a new Job instead",
        ),
        (
            "command",
            "spec.command: Forbidden: spec.command is immutable: create a new Job instead",
        ),
        (
            "env",
            "spec.env: Forbidden: spec.env is immutable: create a new Job instead",
        ),
        (
            "resources",
            "spec.resources: Forbidden: spec.resources is immutable: create a new Job instead",
        ),
    ];
    let value = |field: &str| match field {
        "image" | "jobClassName" => json!("a"),
        "command" => json!(["a"]),
        "env" => json!([{ "name": "A" }]),
        _ => json!({ "limits": { "cpu": "1" } }),
    };
    let rows = ROWS
        .map(|(field, words)| spec_change(field, json!({}), json!({ field: value(field) }), Refused(words)));
    transitions(crd::job(), job_spec(), rows.into()).await
}

//! Valid objects and statuses to start from.

use ayatori_e2e::api::merged;
use serde_json::{Value, json};

/// A controller that is not ours, so that an adapter in the same cluster keeps out of the test.
pub(crate) const STRANGER: &str = "example.com/test";

pub(crate) fn job_spec() -> Value {
    json!({ "image": "app", "managedBy": STRANGER })
}

pub(crate) fn parameters_ref() -> Value {
    json!({ "group": "example.com", "kind": "Parameters", "name": "p" })
}

pub(crate) fn class_spec() -> Value {
    json!({ "controllerName": STRANGER, "parametersRef": parameters_ref() })
}

pub(crate) fn opensandbox_spec() -> Value {
    json!({ "endpoint": "https://opensandbox.example", "apiKeySecretRef": { "namespace": "n", "name": "s", "key": "k" } })
}

pub(crate) const NOON: &str = "2026-01-01T12:00:00Z";

pub(crate) const LATER: &str = "2026-01-01T13:00:00Z";

pub(crate) fn condition(type_: &str, status: &str, since: &str) -> Value {
    json!({ "type": type_, "status": status, "reason": "Tested", "message": "", "lastTransitionTime": since })
}

pub(crate) fn accepted() -> Value {
    let reference = json!({ "group": "example.com", "kind": "Parameters", "name": "p", "uid": "u2" });
    json!({
        "state": "Waiting",
        "resolvedJobClass": { "name": "c", "uid": "u1", "controllerName": STRANGER, "parametersRef": reference },
        "resources": { "limits": { "cpu": "1", "memory": "1Gi" } },
        "conditions": [condition("Accepted", "True", NOON)],
    })
}

/// An execution with everything that protocol A records.
pub(crate) fn recorded() -> Value {
    let execution = json!({
        "id": "e1", "uid": "p1", "nodeName": "n1", "startRequestedTime": NOON,
        "backend": { "parametersUID": "u2", "endpointHash": "" },
    });
    let conditions = json!([
        condition("Accepted", "True", NOON),
        condition("Scheduled", "True", NOON),
        condition("Started", "True", NOON)
    ]);
    merged(
        accepted(),
        &json!({ "state": "Running", "startTime": NOON, "execution": execution, "conditions": conditions }),
    )
}

/// An attempt of protocol B that nothing is known of yet.
pub(crate) fn attempted() -> Value {
    let execution = json!({
        "backend": { "parametersUID": "u2", "endpointHash": "h" },
        "attempt": { "id": "a1", "sendBefore": NOON, "startBefore": LATER },
    });
    merged(accepted(), &json!({ "execution": execution }))
}

pub(crate) fn stopping() -> Value {
    let stop = json!({ "reason": "CancelRequested", "requestedTime": NOON, "deliveredTime": LATER });
    merged(
        recorded(),
        &json!({ "state": "Stopping", "execution": { "stop": stop } }),
    )
}

pub(crate) fn finished() -> Value {
    let conditions = json!([
        condition("Accepted", "True", NOON),
        condition("Scheduled", "True", NOON),
        condition("Started", "True", NOON),
        condition("Finished", "True", LATER),
    ]);
    merged(
        stopping(),
        &json!({
            "state": "Cancelled", "finishTime": LATER, "conditions": conditions,
            "result": { "outcome": "Cancelled", "reason": "CancelRequested", "exitCode": 0, "message": "m" },
            "execution": { "releaseTime": LATER },
        }),
    )
}

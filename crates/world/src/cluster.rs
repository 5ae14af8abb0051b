//! What an API server shows of simulated executions, each a pod of a batch Job, and what the Kubernetes adapter makes
//! of it.

use ayatori_core::execution::{Prospect, State};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::names::{JOB_UID_LABEL, RESULT_FINALIZER, START_GATE};
use ayatori_core::stage::Recorded;
use ayatori_kubernetes_adapter::meaning::{self, CONTAINER};
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use crate::backend::{Ending, Execution, Life, Who};
use crate::eyes::{List, Sight};
use crate::objects::second;

/// The one node that there is.
const NODE: &str = "node";
/// Seconds that a pod is given to end.
const GRACE: i16 = 30;

pub(crate) fn prospect(job: &Job, backend: BackendIdentity, list: &List) -> Prospect {
    let pods: Vec<_> = (0..)
        .zip(list)
        .filter_map(|(number, execution)| Some(pod(number, (*execution).as_ref()?, false)))
        .collect();
    let any = list.iter().flatten().next();
    meaning::prospect(job, backend, any.map(|any| batch_job(any, list)), pods)
}

pub(crate) fn state(job: Recorded<'_>, sight: Sight) -> State {
    match sight {
        Sight::Shown {
            number,
            execution,
            silent,
        } => {
            let mut list = List::default();
            list[usize::from(number)] = Some(execution);
            let batch = batch_job(&execution, &list);
            let pod = pod(number, &execution, silent);
            meaning::state(job, Some(batch), Some(pod), Some(node(!silent)), false)
        }
        Sight::Missing { silent, settled } => meaning::state(job, None, None, Some(node(!silent)), settled),
        Sight::Lost => unreachable!("the API server answers"),
    }
}

/// The batch Job of an execution, after a deletion of its pod or its own deadline terminal as soon as no pod of it is
/// left that may run.
fn batch_job(execution: &Execution, list: &List) -> batch::Job {
    let over = list
        .iter()
        .flatten()
        .all(|pod| matches!(pod.life, Life::Ended(_)));
    let mut conditions = Vec::new();
    if let Some((at, Who::Us)) = execution.stop {
        conditions.push(condition("FailureTarget", "DeadlineExceeded", at));
    }
    if over {
        conditions.push(condition("Failed", "BackoffLimitExceeded", execution.ended));
    }
    object(json!({
        "metadata": {
            "name": "build",
            "namespace": "team",
            "uid": format!("batch{}", execution.batch),
            "labels": { JOB_UID_LABEL: format!("job{}", execution.uid) },
            "ownerReferences": [controller("Job", &format!("job{}", execution.uid))],
        },
        "spec": { "activeDeadlineSeconds": if execution.expiring { 1 } else { 3600 } , "template": {} },
        "status": { "conditions": conditions },
    }))
}

fn pod(number: u8, execution: &Execution, silent: bool) -> core::Pod {
    let mut metadata = json!({
        "name": format!("build-{number}"),
        "namespace": "team",
        "uid": format!("pod{number}"),
        "labels": { JOB_UID_LABEL: format!("job{}", execution.uid) },
        "finalizers": [RESULT_FINALIZER],
        "ownerReferences": [controller("Job", &format!("batch{}", execution.batch))],
    });
    let mut conditions = Vec::new();
    if let Some((at, who)) = execution.stop {
        let (ends, grace) = match execution.rewritten {
            0 => (at + GRACE, GRACE),
            own => (own, 0),
        };
        metadata["deletionTimestamp"] = time(ends);
        metadata["deletionGracePeriodSeconds"] = json!(grace);
        match who {
            Who::Us | Who::Somebody => {}
            Who::Evictor => conditions.push(condition("DisruptionTarget", "EvictionByEvictionAPI", at)),
        }
    }
    let gates = match execution.life {
        Life::Held | Life::Ended(Ending::StillHeld) => json!([{ "name": START_GATE }]),
        _ => json!([]),
    };
    let running = || json!({ "running": { "startedAt": time(0) } });
    let (on_a_node, phase, state) = match execution.life {
        // What it did since its node last reported is not to be seen.
        Life::Ended(Ending::Exited) if silent => (true, "Running", running()),
        Life::Ended(Ending::Exited) => (
            true,
            "Succeeded",
            json!({ "terminated": {
                "exitCode": 0,
                "reason": "Completed",
                "startedAt": time(0),
                "finishedAt": time(execution.ended),
            } }),
        ),
        Life::Running => (true, "Running", running()),
        _ => (false, "Pending", Value::Null),
    };
    let mut spec =
        json!({ "schedulingGates": gates, "containers": [{ "name": CONTAINER, "image": "busybox:1" }] });
    let mut status = json!({ "phase": phase, "conditions": conditions });
    if on_a_node {
        spec["nodeName"] = json!(NODE);
        status["containerStatuses"] = json!([{
            "name": CONTAINER, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state,
        }]);
    }
    object(json!({ "metadata": metadata, "spec": spec, "status": status }))
}

fn node(ready: bool) -> core::Node {
    let status = if ready { "True" } else { "Unknown" };
    object(json!({
        "metadata": { "name": NODE },
        "status": { "conditions": [{ "type": "Ready", "status": status }] },
    }))
}

fn controller(kind: &str, uid: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": kind, "name": "build", "uid": uid, "controller": true })
}

fn condition(type_: &str, reason: &str, at: i16) -> Value {
    json!({ "type": type_, "status": "True", "reason": reason, "lastTransitionTime": time(at) })
}

fn time(at: i16) -> Value {
    json!(second(i64::from(at)).to_string())
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object as an API server writes it")
}

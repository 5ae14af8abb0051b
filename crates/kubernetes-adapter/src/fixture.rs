//! Objects of the cluster for tests, written as YAML. `@05` stands for the fifth second of a day.

use std::sync::{Arc, Mutex};

use ayatori_core::job::Job;
use ayatori_core::stage::{Accepted, Stage};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::view::{BatchJob, Pod, Refusal, View};

pub(crate) const JOB_UID: &str = "11111111-1111-4111-8111-111111111111";
pub(crate) const BATCH_UID: &str = "22222222-2222-4222-8222-222222222222";
pub(crate) const POD_UID: &str = "33333333-3333-4333-8333-333333333333";
pub(crate) const NODE: &str = "node-a";

const BATCH: &str = "
metadata:
  name: build-x
  namespace: team
  uid: 22222222-2222-4222-8222-222222222222
  resourceVersion: '7'
  labels:
    execution.ayatori.ddupan.top/job-uid: 11111111-1111-4111-8111-111111111111
    execution.ayatori.ddupan.top/job-name: build
  ownerReferences:
  - { apiVersion: execution.ayatori.ddupan.top/v1alpha1, kind: Job, name: build, controller: true, uid: 11111111-1111-4111-8111-111111111111 }
spec: { parallelism: 1, template: {} }
";

const POD: &str = "
metadata:
  name: build-x-abcde
  namespace: team
  uid: 33333333-3333-4333-8333-333333333333
  resourceVersion: '9'
  creationTimestamp: @01
  labels:
    execution.ayatori.ddupan.top/job-uid: 11111111-1111-4111-8111-111111111111
    execution.ayatori.ddupan.top/job-name: build
  finalizers: [batch.kubernetes.io/job-tracking, execution.ayatori.ddupan.top/result]
  ownerReferences:
  - { apiVersion: batch/v1, kind: Job, name: build-x, controller: true, uid: 22222222-2222-4222-8222-222222222222 }
spec:
  nodeName: node-a
  containers: [{ name: job, image: 'registry.example/app:1' }]
";

/// What a client asked: method, path with its query, body.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Value,
}

/// A client of an API server that answers each request with a code and an object, and the list of what was
/// asked. An error's object may be just its message.
pub(crate) fn api_server(
    answer: impl Fn(&str, &str) -> (u16, Value) + Send + Sync + 'static,
) -> (Client, Arc<Mutex<Vec<Asked>>>) {
    let log: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let (answer, written) = (Arc::new(answer), log.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (answer, log) = (answer.clone(), written.clone());
        async move {
            let (parts, body) = request.into_parts();
            let (method, path) = (parts.method.to_string(), parts.uri.to_string());
            let body = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
            let (code, object) = answer(&method, &path);
            log.lock().unwrap().push(Asked { method, path, body });
            let object = match object {
                Value::String(message) => {
                    let reason = match code {
                        404 => "NotFound",
                        409 if message.contains("already exists") => "AlreadyExists",
                        409 => "Conflict",
                        _ => "",
                    };
                    json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message })
                }
                object => object,
            };
            let response = http::Response::builder()
                .status(code)
                .body(Body::from(object.to_string().into_bytes()));
            Ok::<_, kube::Error>(response.unwrap())
        }
    });
    (Client::new(service, "default"), log)
}

/// That second of the day.
pub(crate) fn at(second: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + jiff::SignedDuration::from_secs(second)
}

pub(crate) fn parse<T: DeserializeOwned>(yaml: &str) -> T {
    serde_json::from_value(value(yaml)).unwrap()
}

const JOB: &str = "
metadata:
  name: build
  namespace: team
  uid: 11111111-1111-4111-8111-111111111111
spec: { image: app }
status:
  resolvedJobClass:
    name: rootless
    uid: class
    controllerName: execution.ayatori.ddupan.top/kubernetes
    parametersRef: { group: execution.ayatori.ddupan.top, kind: KubernetesExecutionParameters, name: p, uid: parameters }
  resources: {}
  conditions:
  - { type: Accepted, status: 'True', reason: Accepted, message: '', lastTransitionTime: @02 }
";

/// An accepted Job, with these changes.
pub(crate) fn job(changes: &str) -> Job {
    changed(JOB, changes)
}

/// What [`job`] makes.
pub(crate) fn accepted(job: &Job) -> Accepted<'_> {
    match Stage::of(job) {
        Stage::Accepted(accepted) => accepted,
        other => panic!("{other:?}"),
    }
}

/// [`batch_job`] as the API server has it.
pub(crate) fn batch_job_object(changes: &str) -> Value {
    changed(BATCH, changes)
}

/// [`pod`] as the API server has it.
pub(crate) fn pod_object(changes: &str) -> Value {
    changed(POD, changes)
}

/// Our batch Job, with these changes.
pub(crate) fn batch_job(changes: &str) -> Arc<BatchJob> {
    Arc::new(BatchJob::of(changed::<batch::Job>(BATCH, changes)))
}

/// The pod of [`batch_job`] on [`NODE`], with these changes.
pub(crate) fn pod(changes: &str) -> Arc<Pod> {
    Arc::new(Pod::of(changed::<core::Pod>(POD, changes)))
}

/// The same, still held by our gate and on no node.
pub(crate) fn held_pod(changes: &str) -> Arc<Pod> {
    const HELD: &str =
        "spec: { nodeName: null, schedulingGates: [{ name: execution.ayatori.ddupan.top/start }] }";
    let mut held = value(POD);
    merge(&mut held, value(HELD));
    merge(&mut held, value(changes));
    Arc::new(Pod::of(serde_json::from_value(held).unwrap()))
}

/// A FailedCreate Event of our batch Job.
pub(crate) fn refusal(message: &str) -> Arc<Refusal> {
    Arc::new(Refusal {
        namespace: "team".to_owned(),
        name: "event".to_owned(),
        batch_name: "build-x".to_owned(),
        batch_uid: BATCH_UID.to_owned(),
        message: message.to_owned(),
        at: Some(at(5)),
    })
}

fn changed<T: DeserializeOwned>(base: &str, changes: &str) -> T {
    let mut object = value(base);
    merge(&mut object, value(changes));
    serde_json::from_value(object).unwrap()
}

fn value(yaml: &str) -> Value {
    let mut parts = yaml.split('@');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (second, rest) = part.split_at(2);
        text.push_str(&format!("'{}'{rest}", at(second.parse().unwrap())));
    }
    let value: Option<Value> = serde_yaml::from_str(&text).unwrap();
    value.unwrap_or_default()
}

/// As a merge patch does.
fn merge(object: &mut Value, changes: Value) {
    match (object, changes) {
        (Value::Object(object), Value::Object(changes)) => {
            for (key, change) in changes {
                if change.is_null() {
                    object.remove(&key);
                } else {
                    merge(object.entry(key).or_insert(Value::Null), change);
                }
            }
        }
        (_, Value::Null) => {}
        (object, changes) => *object = changes,
    }
}

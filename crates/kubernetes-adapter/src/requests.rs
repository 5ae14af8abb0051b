//! Everything this adapter asks of the API server, each bounded in time, each write fenced.
//!
//! Deletes carry the UID as a precondition and name their propagation: the API's default for batch Jobs would
//! orphan a running process.

use std::sync::Arc;
use std::time::Duration;

use ayatori_controller::failure::brief;
use ayatori_controller::telemetry::Telemetry;
use ayatori_core::conditions::clean;
use ayatori_core::execution::{Answer, Why};
use ayatori_core::job::Job;
use ayatori_core::names::{JOB_UID_LABEL, RESULT_FINALIZER, START_GATE};
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{Request, Status};
use kube::{Api, Client, Error, Resource, ResourceExt};
use serde::Serialize;
use serde_json::json;

use crate::observe::refusal;
use crate::view::{BatchJob, Identity, Node, Pod, View};

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many objects a list may bring at once.
const PAGE: u32 = 500;

const MANAGER: &str = "ayatori-kubernetes-adapter";

/// How much of an API server's message goes into a condition.
const EXCERPT: usize = 512;

/// What a JSON patch whose `test` failed is answered with.
const TEST_FAILED: &str = "the server rejected our request due to an error in our request";

/// Why a request did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The object is not what it was when it was read, or gone.
    Stale,
    /// An object of that name exists.
    Exists,
    /// The API server said no.
    Rejected(Why),
    /// It did not answer, or cannot at present.
    Unavailable(Why),
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Stale | Failure::Exists => Answer::Stale,
            Failure::Rejected(why) => Answer::Rejected(why),
            Failure::Unavailable(why) => Answer::Unavailable(why),
        }
    }
}

impl Failure {
    /// Why a question was not answered.
    pub(crate) fn why(self) -> Why {
        match self {
            Failure::Stale | Failure::Exists => {
                Why::new("BackendUnavailable", "what was read has changed meanwhile")
            }
            Failure::Rejected(why) | Failure::Unavailable(why) => why,
        }
    }
}

/// What is being asked, for the words of a failure.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    telemetry: &'a Telemetry,
    pub(crate) verb: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) namespace: &'a str,
}

/// The API server, as far as this adapter talks to it.
#[derive(Clone)]
pub(crate) struct Requests {
    client: Client,
    telemetry: Telemetry,
}

impl Requests {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            telemetry: Telemetry::default(),
        }
    }

    /// The same, told of there.
    pub(crate) fn telling(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    fn ask<'a>(&'a self, verb: &'static str, resource: &'static str, namespace: &'a str) -> Ask<'a> {
        Ask {
            telemetry: &self.telemetry,
            verb,
            resource,
            namespace,
        }
    }

    // ------------------------------------------------------------------------------------------------ reads

    /// The batch Job of that name, live.
    pub(crate) async fn batch_job(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<BatchJob>>, Failure> {
        let ask = self.ask("get", "jobs.batch", namespace);
        let found = ask.send(self.batch_jobs(namespace).get_opt(name)).await?;
        Ok(found.map(|job| Arc::new(BatchJob::of(job))))
    }

    /// The pods of a Job by its UID, live.
    pub(crate) async fn pods(&self, namespace: &str, job_uid: &str) -> Result<Vec<Arc<Pod>>, Failure> {
        let ask = self.ask("list", "pods", namespace);
        let selector = ListParams::default().labels(&format!("{JOB_UID_LABEL}={job_uid}"));
        let found = ask.send(self.pods_in(namespace).list(&selector)).await?;
        Ok(found
            .items
            .into_iter()
            .map(|pod| Arc::new(Pod::of(pod)))
            .collect())
    }

    /// The pod of that UID, whatever labels it carries, live.
    pub(crate) async fn pod(&self, namespace: &str, uid: &str) -> Result<Option<Arc<Pod>>, Failure> {
        let ask = |verb| self.ask(verb, "pods", namespace);
        let pods = self.pods_in(namespace);
        let Some(name) = ask("list").send(pod_name(&pods, uid)).await? else {
            return Ok(None);
        };
        let found = ask("get").send(pods.get_opt(&name)).await?.map(Pod::of);
        Ok(found.filter(|pod| pod.id.uid == uid).map(Arc::new))
    }

    /// A node, live.
    pub(crate) async fn node(&self, name: &str) -> Result<Option<Node>, Failure> {
        let ask = self.ask("get", "nodes", "");
        let found = ask
            .send(Api::<core::Node>::all(self.client.clone()).get_opt(name))
            .await?;
        Ok(found.map(Node::of))
    }

    /// A Job of ours, live.
    pub(crate) async fn job(&self, namespace: &str, name: &str) -> Result<Option<Job>, Failure> {
        let ask = self.ask("get", "jobs", namespace);
        ask.send(Api::<Job>::namespaced(self.client.clone(), namespace).get_opt(name))
            .await
    }

    // ----------------------------------------------------------------------------------------------- writes

    /// Creates a batch Job. Strictly: an API server that does not know a field says so.
    pub(crate) async fn create(&self, namespace: &str, job: &batch::Job) -> Result<Arc<BatchJob>, Failure> {
        let ask = self.ask("create", "jobs.batch", namespace);
        let request = strict_create(namespace, job)
            .map_err(|message| Failure::Rejected(Why::new("BackendRejected", message)))?;
        let created: batch::Job = ask.send(self.client.request(request)).await?;
        Ok(Arc::new(BatchJob::of(created)))
    }

    /// Takes our gate, and no other, off exactly this pod as it was read.
    pub(crate) async fn open_gate(&self, pod: &Pod) -> Result<(), Failure> {
        let Some(index) = pod.gates.iter().position(|g| g == START_GATE) else {
            return Ok(());
        };
        let path = format!("/spec/schedulingGates/{index}");
        self.patch_pod(
            pod,
            json!([
                { "op": "test", "path": "/metadata/uid", "value": pod.id.uid },
                { "op": "test", "path": "/metadata/resourceVersion", "value": pod.id.resource_version },
                { "op": "test", "path": format!("{path}/name"), "value": START_GATE },
                { "op": "remove", "path": path },
            ]),
        )
        .await
    }

    /// Takes our finalizer, and no other, off exactly this pod.
    pub(crate) async fn let_go(&self, pod: &Pod) -> Result<(), Failure> {
        let Some(index) = pod.finalizers.iter().position(|f| f == RESULT_FINALIZER) else {
            return Ok(());
        };
        let path = format!("/metadata/finalizers/{index}");
        self.patch_pod(
            pod,
            json!([
                { "op": "test", "path": "/metadata/uid", "value": pod.id.uid },
                { "op": "test", "path": path, "value": RESULT_FINALIZER },
                { "op": "remove", "path": path },
            ]),
        )
        .await
    }

    /// Has the Job controller end exactly this batch Job: its deadline has passed from now on.
    pub(crate) async fn expire(&self, batch: &BatchJob) -> Result<(), Failure> {
        let ask = self.ask("patch", "jobs.batch", &batch.id.namespace);
        let patch = json_patch(json!([
            { "op": "test", "path": "/metadata/uid", "value": batch.id.uid },
            { "op": "add", "path": "/spec/activeDeadlineSeconds", "value": 1 },
        ]))?;
        let jobs = self.batch_jobs(&batch.id.namespace);
        ask.send(jobs.patch_metadata(&batch.id.name, &strictly(), &patch))
            .await
            .map(drop)
    }

    /// Deletes exactly this batch Job, in the foreground: it stays until its pods are gone.
    pub(crate) async fn delete_batch_job(&self, batch: &BatchJob) -> Result<(), Failure> {
        let ask = self.ask("delete", "jobs.batch", &batch.id.namespace);
        let parameters = DeleteParams::foreground().preconditions(exactly(&batch.id));
        gone_is_done(
            ask.send(
                self.batch_jobs(&batch.id.namespace)
                    .delete(&batch.id.name, &parameters),
            )
            .await,
        )
    }

    /// Deletes exactly this pod, with its own grace period.
    pub(crate) async fn delete_pod(&self, pod: &Pod) -> Result<(), Failure> {
        let ask = self.ask("delete", "pods", &pod.id.namespace);
        let parameters = DeleteParams::background().preconditions(exactly(&pod.id));
        gone_is_done(
            ask.send(self.pods_in(&pod.id.namespace).delete(&pod.id.name, &parameters))
                .await,
        )
    }

    async fn patch_pod(&self, pod: &Pod, patch: serde_json::Value) -> Result<(), Failure> {
        let ask = self.ask("patch", "pods", &pod.id.namespace);
        let patch = json_patch(patch)?;
        ask.send(
            self.pods_in(&pod.id.namespace)
                .patch_metadata(&pod.id.name, &strictly(), &patch),
        )
        .await
        .map(drop)
    }

    fn batch_jobs(&self, namespace: &str) -> Api<batch::Job> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn pods_in(&self, namespace: &str) -> Api<core::Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// The name of the pod of that UID, by which the API server finds nothing itself.
async fn pod_name(pods: &Api<core::Pod>, uid: &str) -> kube::Result<Option<String>> {
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let found = pods.list_metadata(&page).await?;
        if let Some(pod) = found
            .items
            .iter()
            .find(|pod| pod.metadata.uid.as_deref() == Some(uid))
        {
            return Ok(Some(pod.name_any()));
        }
        match found.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(None),
        }
    }
}

fn json_patch(operations: serde_json::Value) -> Result<Patch<()>, Failure> {
    let patch = serde_json::from_value(operations).map_err(|e| {
        Failure::Rejected(Why::new(
            "BackendRejected",
            format!("a patch of this adapter cannot be written: {e}"),
        ))
    })?;
    Ok(Patch::Json(patch))
}

fn strictly() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
    .validation_strict()
}

fn exactly(id: &Identity) -> Preconditions {
    Preconditions {
        uid: Some(id.uid.clone()),
        resource_version: None,
    }
}

fn gone_is_done<T>(deleted: Result<T, Failure>) -> Result<(), Failure> {
    match deleted {
        // Gone, or another object of that name: either way, this one is not there.
        Ok(_) | Err(Failure::Stale) => Ok(()),
        Err(other) => Err(other),
    }
}

/// `kube` has no parameter for strict validation of a create.
fn strict_create<T: Resource<DynamicType = ()> + Serialize>(
    namespace: &str,
    object: &T,
) -> Result<http::Request<Vec<u8>>, String> {
    let parameters = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let body = serde_json::to_vec(object).map_err(|e| format!("the object cannot be written: {e}"))?;
    let mut request = Request::new(T::url_path(&(), Some(namespace)))
        .create(&parameters, body)
        .map_err(|e| format!("the request cannot be built: {e}"))?;
    let strict = format!("{}&fieldValidation=Strict", request.uri());
    *request.uri_mut() = strict
        .parse()
        .map_err(|e| format!("the request cannot be addressed: {e}"))?;
    Ok(request)
}

impl Ask<'_> {
    /// Waits for the answer, but not for ever.
    pub(crate) async fn send<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
        let operation = format!("{} {}", self.verb, self.resource);
        let answer = tokio::time::timeout(TIMEOUT, request);
        let answer = self
            .telemetry
            .backend_request(operation, answer, |answer| match answer {
                Ok(Ok(_)) if self.verb == "create" => "201".into(),
                Ok(Ok(_)) => "200".into(),
                Ok(Err(Error::Api(status))) => status.code.to_string().into(),
                Ok(Err(_)) => "no_answer".into(),
                Err(_) => "timeout".into(),
            });
        match answer.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Error::Api(status))) => Err(self.sort(&status)),
            Ok(Err(error)) => Err(self.unavailable(&brief(&error))),
            Err(_) => Err(self.unavailable(&format!("no answer within {} s", TIMEOUT.as_secs()))),
        }
    }

    fn sort(&self, status: &Status) -> Failure {
        match status.code {
            404 => Failure::Stale,
            409 if status.is_already_exists() => Failure::Exists,
            409 => Failure::Stale,
            422 if status.message.starts_with(TEST_FAILED) => Failure::Stale,
            401 => Failure::Rejected(self.forbidden("the API server does not know who the adapter is")),
            403 if status.message.contains(&format!("cannot {} resource", self.verb)) => {
                Failure::Rejected(self.forbidden("its role does not allow it"))
            }
            400 | 403 | 405 | 413 | 415 | 422 => Failure::Rejected(refusal(&status.message)),
            code => self.unavailable(&format!(
                "{code} {}: {}",
                status.reason,
                clean(&status.message, EXCERPT)
            )),
        }
    }

    fn forbidden(&self, why: &str) -> Why {
        let place = if self.namespace.is_empty() {
            "in the cluster".to_owned()
        } else {
            format!("in namespace {}", self.namespace)
        };
        Why::new(
            "BackendForbidden",
            format!(
                "the adapter may not {} {} {place}: {why}; install its chart's roles again",
                self.verb, self.resource
            ),
        )
    }

    fn unavailable(&self, why: &str) -> Failure {
        Failure::Unavailable(Why::new(
            "BackendUnavailable",
            format!("the API server did not {} {}: {why}", self.verb, self.resource),
        ))
    }
}

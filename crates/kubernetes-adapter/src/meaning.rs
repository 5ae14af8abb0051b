//! What the backend says of a Job if these are the objects that the API server shows. Pure, and with no cluster: for
//! tests that bring their own.

use ayatori_core::execution::{Prospect, State};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::stage::Recorded;
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;

use crate::observe::{self, NodeHealth, Record, no_pod_recorded};
use crate::view::{BatchJob, Node, Pod, View};

/// Name of the container that runs the command.
pub const CONTAINER: &str = crate::manifest::CONTAINER;

/// What exists for a Job of which nothing is recorded: the batch Job of its name, and all pods that carry its UID.
pub fn prospect(
    job: &Job,
    backend: BackendIdentity,
    batch: Option<batch::Job>,
    pods: Vec<core::Pod>,
) -> Prospect {
    let batch = batch.map(BatchJob::of);
    let pods: Vec<_> = pods.into_iter().map(|pod| Pod::of(pod).into()).collect();
    observe::prospect(
        &job.uid().unwrap_or_default(),
        backend,
        batch.as_ref(),
        &pods,
        &[],
    )
}

/// What became of the recorded pod: the recorded batch Job, the pod, and the node it is or was on, as far as they still
/// exist. `settled`: without the pod, its node has been Ready for so long that it cannot be a dead one.
pub fn state(
    job: Recorded<'_>,
    batch: Option<batch::Job>,
    pod: Option<core::Pod>,
    node: Option<core::Node>,
    settled: bool,
) -> State {
    let Some(record) = Record::of(job) else {
        return State::Unobservable(no_pod_recorded());
    };
    let health = match node.map(Node::of) {
        Some(node) if node.ready => NodeHealth::Ready,
        Some(_) => NodeHealth::Silent,
        None => NodeHealth::Gone,
    };
    let Some(pod) = pod.map(Pod::of) else {
        return State::Gone(observe::missing(record, health, settled));
    };
    // On no node: there is none that could be silent.
    let health = if pod.node.is_some() {
        health
    } else {
        NodeHealth::Ready
    };
    observe::state(record, batch.map(BatchJob::of).as_ref(), &pod, health)
}

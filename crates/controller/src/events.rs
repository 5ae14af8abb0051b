//! Kubernetes Events: the story `kubectl describe` tells. Written in the background; a lost Event never fails
//! a reconcile.

use std::hash::{DefaultHasher, Hash, Hasher};

use ayatori_core::report::Tale;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use crate::failure::brief;
use crate::telemetry::Metrics;

/// How many Events may wait to be written, per writer.
const QUEUE: usize = 1024;
/// How many Events are written at the same time. Those of one object are written one after the other.
const WRITERS: usize = 8;

type Told = (Tale, ObjectReference);

/// Hands Events to the task that writes them.
#[derive(Clone)]
pub struct Storyteller {
    queues: Vec<mpsc::Sender<Told>>,
    metrics: Metrics,
}

impl Storyteller {
    /// Tells a tale about an object, some time soon.
    pub fn tell(&self, tale: Tale, object: ObjectReference) {
        let mut hasher = DefaultHasher::new();
        object.uid.hash(&mut hasher);
        let writer = usize::try_from(hasher.finish() % WRITERS as u64).unwrap_or_default();
        let queue = self.queues.get(writer);
        if queue.is_none_or(|queue| queue.try_send((tale, object)).is_err()) {
            self.metrics.event_lost();
        }
    }
}

/// A storyteller, and the task that does its writing as `controller` for as long as the process lives.
pub fn storyteller(
    client: Client,
    controller: &str,
    instance: &str,
    metrics: Metrics,
) -> (Storyteller, impl Future<Output = ()> + Send + use<>) {
    let reporter = Reporter {
        controller: controller.to_owned(),
        instance: Some(instance.to_owned()),
    };
    let recorder = Recorder::new(client, reporter);
    let (queues, tales): (Vec<_>, Vec<_>) = (0..WRITERS).map(|_| mpsc::channel(QUEUE)).unzip();
    let writers: Vec<_> = tales
        .into_iter()
        .map(|tales| write(tales, recorder.clone(), metrics.clone()))
        .collect();
    let writing = async move { drop(futures::future::join_all(writers).await) };
    (Storyteller { queues, metrics }, writing)
}

async fn write(mut tales: mpsc::Receiver<Told>, recorder: Recorder, metrics: Metrics) {
    while let Some((tale, object)) = tales.recv().await {
        let event = Event {
            type_: if tale.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: tale.reason,
            note: Some(tale.message),
            action: tale.action.to_owned(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &object).await {
            metrics.event_lost();
            tracing::debug!(error = brief(&error), "an event could not be written");
        }
    }
}

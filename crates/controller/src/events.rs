//! Kubernetes Events: the story `kubectl describe` tells. Written in the background; a lost Event never fails
//! a reconcile.

use ayatori_core::report::Tale;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;

use crate::failure::brief;
use crate::telemetry::Metrics;

/// How many Events may wait to be written.
const QUEUE: usize = 1024;

/// Hands Events to the task that writes them.
#[derive(Clone)]
pub struct Storyteller {
    queue: mpsc::Sender<(Tale, ObjectReference)>,
    metrics: Metrics,
}

impl Storyteller {
    /// Tells a tale about an object, some time soon.
    pub fn tell(&self, tale: Tale, object: ObjectReference) {
        if self.queue.try_send((tale, object)).is_err() {
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
    let (queue, mut tales) = mpsc::channel::<(Tale, ObjectReference)>(QUEUE);
    let reporter = Reporter {
        controller: controller.to_owned(),
        instance: Some(instance.to_owned()),
    };
    let recorder = Recorder::new(client, reporter);
    let failed = metrics.clone();
    let writing = async move {
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
                failed.event_lost();
                tracing::debug!(error = brief(&error), "an event could not be written");
            }
        }
    };
    (Storyteller { queue, metrics }, writing)
}

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

/// How many Events a writer remembers at most, so that what is told again is counted on the Event that is there. A
/// [`Recorder`] remembers all of six minutes, and goes through all of them with each new one: thousands of Jobs that end
/// in that time would fill the memory, and slow each other.
const REMEMBERED: usize = 128;

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
    let (queues, tales): (Vec<_>, Vec<_>) = (0..WRITERS).map(|_| mpsc::channel(QUEUE)).unzip();
    let writers: Vec<_> = tales
        .into_iter()
        .map(|tales| write(tales, client.clone(), reporter.clone(), metrics.clone()))
        .collect();
    let writing = async move { drop(futures::future::join_all(writers).await) };
    (Storyteller { queues, metrics }, writing)
}

async fn write(mut tales: mpsc::Receiver<Told>, client: Client, reporter: Reporter, metrics: Metrics) {
    let mut recorder = Recorder::new(client.clone(), reporter.clone());
    let mut remembered = 0;
    while let Some((tale, object)) = tales.recv().await {
        if remembered == REMEMBERED {
            recorder = Recorder::new(client.clone(), reporter.clone());
            remembered = 0;
        }
        remembered += 1;
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Method, Response};
    use kube::client::Body;

    use super::*;

    /// How the Events of these tales are written, if each is about the object of this number.
    async fn written(objects: impl IntoIterator<Item = usize>) -> Vec<Method> {
        let methods = Arc::<Mutex<Vec<Method>>>::default();
        let service = {
            let methods = methods.clone();
            tower::service_fn(move |request: http::Request<Body>| {
                methods
                    .lock()
                    .expect("nobody panics")
                    .push(request.method().clone());
                async { Ok::<_, Infallible>(Response::new(Body::from(b"{\"regarding\":{}}".to_vec()))) }
            })
        };
        let (queue, tales) = mpsc::channel(4 * REMEMBERED);
        for number in objects {
            let tale = Tale {
                warning: false,
                reason: "Accepted".to_owned(),
                message: "accepted".to_owned(),
                action: "Accepted",
            };
            let object = ObjectReference {
                namespace: Some("ns".to_owned()),
                name: Some(format!("job-{number}")),
                uid: Some(number.to_string()),
                ..ObjectReference::default()
            };
            queue.try_send((tale, object)).expect("there is room");
        }
        drop(queue);
        let reporter = Reporter {
            controller: "controller".to_owned(),
            instance: None,
        };
        write(
            tales,
            Client::new(service, "default"),
            reporter,
            Metrics::default(),
        )
        .await;
        let methods = methods.lock().expect("nobody panics");
        methods.clone()
    }

    #[tokio::test]
    async fn what_is_told_again_is_counted_on_the_event_that_is_there() {
        assert_eq!(
            written([1, 1, 2]).await,
            [Method::POST, Method::PATCH, Method::POST]
        );
    }

    #[tokio::test]
    async fn no_more_events_are_remembered_than_a_few() {
        let methods = written((0..REMEMBERED).chain([0])).await;
        assert_eq!(methods, vec![Method::POST; REMEMBERED + 1]);
    }
}

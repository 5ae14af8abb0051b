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
    let mut written = 0;
    while let Some((tale, object)) = tales.recv().await {
        if written == REMEMBERED {
            recorder = Recorder::new(client.clone(), reporter.clone());
            written = 0;
        }
        written += 1;
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
    use serde_json::{Value, json};

    use super::*;

    /// The requests in which the Events of these tales are written, if each is about the object of this number.
    async fn written(objects: impl IntoIterator<Item = usize>) -> Vec<(Method, String, Value)> {
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let service = {
            let requests = requests.clone();
            tower::service_fn(move |request: http::Request<Body>| {
                let requests = requests.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect_bytes().await.expect("it is there");
                    let event = serde_json::from_slice(&body).expect("it is JSON");
                    let request = (head.method, head.uri.path().to_owned(), event);
                    requests.lock().expect("nobody panics").push(request);
                    Ok::<_, Infallible>(Response::new(Body::from(body.to_vec())))
                }
            })
        };
        let (queue, tales) = mpsc::channel(2 * REMEMBERED);
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
        std::mem::take(&mut *requests.lock().expect("nobody panics"))
    }

    #[tokio::test]
    async fn what_is_told_again_is_counted_on_the_event_that_is_there() {
        let requests = written([1, 1, 2]).await;
        let [(create, all, first), (patch, one, again), (another, _, _)] = requests.as_slice() else {
            unreachable!("{requests:?}");
        };
        assert_eq!(
            [create, patch, another],
            [Method::POST, Method::PATCH, Method::POST]
        );
        let name = first
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .expect("a name");
        assert_eq!(*one, format!("{all}/{name}"));
        assert_eq!(again.pointer("/series/count"), Some(&json!(2)));
    }

    #[tokio::test]
    async fn no_more_events_are_remembered_than_a_few() {
        let requests = written((0..REMEMBERED).chain([0])).await;
        assert_eq!(requests.len(), REMEMBERED + 1);
        assert!(requests.iter().all(|(method, _, _)| *method == Method::POST));
    }
}

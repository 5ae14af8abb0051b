//! What a Secret holds is logged at no level. A program of its own: what else runs in a process decides which log
//! lines exist.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use ayatori_controller::references::{References, SecretScope};
use ayatori_core::job::Job;
use kube::Client;
use kube::client::Body;
use serde_json::json;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn nothing_a_secret_holds_is_logged_at_any_level() {
    let log = Log::default();
    let written = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || written.clone())
        .init();

    for (code, body) in [
        (500, r#"{"kind":"Status","code":500,"message":"etcd is away"}"#),
        (200, r#"{"data":{"k":"Y2FuYXJ5"}}"#),
        (200, r#"{"data":{"k":"canary, not base64"}}"#),
        (200, r#"{"data":{"k":{"canary":1}}}"#),
        (200, r#"{"data":"canary"}"#),
        (200, r#"{"data":{"k":"canary"#),
    ] {
        let service = tower::service_fn(move |_: http::Request<Body>| async move {
            http::Response::builder()
                .status(code)
                .body(Body::from(body.as_bytes().to_vec()))
                .map_err(kube::Error::HttpError)
        });
        let references = References::new(Client::new(service, "default"), SecretScope::Everywhere);
        let job: Job = serde_json::from_value(json!({
            "apiVersion": "execution.ayatori.ddupan.top/v1alpha1",
            "kind": "Job",
            "metadata": { "name": "build", "namespace": "team" },
            "spec": {
                "image": "app",
                "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }],
                "imagePullSecrets": [{ "name": "s" }],
            },
        }))
        .unwrap();
        let said = format!(
            "{:?} {:?} {:?}",
            references.check(&job).await,
            references.values(&job).await,
            references.pull_secrets(&job).await
        );
        assert!(!said.contains("canary"), "{body}: {said}");
    }

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("etcd is away"), "nobody listened: {log}");
    for value in ["canary", "Y2FuYXJ5"] {
        assert!(!log.contains(value), "{log}");
    }
}

//! No secret is printed by any layer below the client, whatever the level of its logs.

#![allow(clippy::unwrap_used)] // A test's helpers are tests too.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use ayatori_opensandbox_adapter::client::{Client, Options};
use ayatori_opensandbox_adapter::stub::{API_KEY, Call, Certificate, Fault, Stub};
use ayatori_opensandbox_adapter::wire::{CreateSandbox, Image, ImageAuth};
use tracing_subscriber::fmt::MakeWriter;

/// Everything that was logged, through `tracing` and through `log`.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

impl io::Write for Logs {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl log::Log for Logs {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{} {}\n", record.target(), record.args());
        self.0.lock().unwrap().extend_from_slice(line.as_bytes());
    }

    fn flush(&self) {}
}

#[tokio::test]
async fn no_secret_is_logged_even_at_trace_level() {
    let logs = Logs::default();
    log::set_logger(Box::leak(Box::new(logs.clone()))).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(logs.clone())
        .init();
    let sandbox = CreateSandbox {
        image: Image {
            uri: "registry.example/app:1".to_owned(),
            auth: Some(ImageAuth {
                username: "robot-canary".into(),
                password: "password-canary".into(),
            }),
            untried: 0,
        },
        entrypoint: vec!["argument-canary".into()],
        resource_limits: BTreeMap::new(),
        resource_requests: BTreeMap::new(),
        env: BTreeMap::from([("TOKEN".to_owned(), "env-canary".into())]),
        metadata: BTreeMap::new(),
        timeout: 3600,
        extensions: None,
    };
    for certificate in [Certificate::Good, Certificate::Expired] {
        let stub = Stub::start_with_tls(certificate).await.unwrap();
        let client = Client::new(
            &stub.endpoint(),
            stub.ca_bundle(),
            API_KEY.into(),
            &Options::default(),
        )
        .unwrap();
        for fault in [
            Fault::EchoesRequest,
            Fault::LosesAnswer,
            Fault::TruncatesAnswer,
            Fault::AnswersPage,
        ] {
            stub.set(|faults| faults.on(Call::Create, fault));
            let failure = client.create(&sandbox).await.unwrap_err();
            tracing::error!(?client, ?sandbox, ?failure, %failure, "failed");
        }
        tracing::error!(listing = ?client.list(&[]).await, "listed");
    }
    let logs = String::from_utf8(logs.0.lock().unwrap().clone()).unwrap();
    assert!(
        logs.contains("TRACE") && logs.contains("hyper_util"),
        "the layers below are not heard: {logs}"
    );
    let told: Vec<&str> = logs.lines().filter(|line| line.contains("canary")).collect();
    assert_eq!(told, [""; 0]);
}

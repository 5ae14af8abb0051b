//! A whole adapter in the test's own process.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use ayatori_core::lifecycle::Settings;
use jiff::SignedDuration;
use kube::Client;
use kube::client::ClientBuilder;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::adapter::{self, Options};
use crate::backend::Backend;
use crate::client;
use crate::telemetry::{LogFormat, Telemetry};
use crate::testing::death::Death;
use crate::testing::fake::FakeBackend;

/// The adapter's name in logs, Leases, Events and field managers.
pub const NAME: &str = "fake-adapter";

/// Every wait of the loop, short enough for a test.
pub fn impatient() -> Settings {
    Settings {
        quiet_start: SignedDuration::from_secs(1),
        quiet_deletion: SignedDuration::from_secs(2),
        reference_poll: SignedDuration::from_millis(200),
        stop_patience: SignedDuration::from_millis(500),
        margin: SignedDuration::from_secs(1),
        logs_url_template: None,
    }
}

/// One running replica of the adapter. Dropping it kills it.
pub struct Replica {
    task: JoinHandle<anyhow::Result<()>>,
    stop: CancellationToken,
    death: Death,
}

impl Replica {
    /// Starts a replica with its Leases in `namespace`, which its test has for itself. A replica that has the
    /// identity of a dead one takes over at once; another one waits until the Lease has expired.
    pub async fn start(backend: FakeBackend, namespace: &str, identity: &str) -> anyhow::Result<Self> {
        Self::start_mortal(backend, namespace, identity, Death::never()).await
    }

    /// Starts a replica that dies at a chosen step.
    pub async fn start_mortal(
        backend: FakeBackend,
        namespace: &str,
        identity: &str,
        death: Death,
    ) -> anyhow::Result<Self> {
        let make = |_: &Client| backend.dying(death.clone());
        Self::start_with(make, impatient(), namespace, identity, death.clone()).await
    }

    /// Starts a replica of any adapter, whose backend is made of its client. It dies at a chosen step, if anywhere;
    /// only its writes to Jobs are counted, unless the backend counts its own.
    pub async fn start_with<B: Backend>(
        make: impl FnOnce(&Client) -> B,
        settings: Settings,
        namespace: &str,
        identity: &str,
        death: Death,
    ) -> anyhow::Result<Self> {
        let client = ClientBuilder::try_from(client::config().await?)?
            .with_layer(&death)
            .build();
        let backend = make(&client);
        let options = Options {
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
            logs_url_template: None,
            workers: 8,
            otlp_endpoint: None,
        };
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let task = tokio::spawn(async move {
            let telemetry = Telemetry::default();
            adapter::run_until(NAME, options, settings, &telemetry, client, backend, stopped).await
        });
        Ok(Self { task, stop, death })
    }

    /// Returns once it has died at the chosen step; killing it is left to do.
    pub async fn died(&self) {
        self.death.came().await;
    }

    /// How many steps it took so far.
    pub fn steps(&self) -> usize {
        self.death.steps()
    }

    /// Ends it at whatever it is doing: nothing is finished, no Lease released.
    pub async fn kill(mut self) {
        self.task.abort();
        // An error is what is expected: it was cancelled.
        let _ = (&mut self.task).await;
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        (&mut self.task).await.context("the adapter panicked")?
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

//! Adapters in this process, with controller names, Leases and addresses of their own.

use std::net::SocketAddr;

use anyhow::Context;
use ayatori_controller::adapter::{self, Options};
use ayatori_controller::telemetry::Telemetry;
use ayatori_controller::testing::replica::impatient;
use ayatori_opensandbox_adapter::backend::{OpenSandboxBackend, Options as ServerOptions};
use clap::Parser;
use kube::{Client, Config};
use tokio::task::JoinHandle;

/// Where the adapters of the test serve their metrics.
pub(crate) struct Addresses {
    /// Of one whose servers fall silent, or have what they should not.
    pub(crate) busy: SocketAddr,
    /// Of one that is away for a while.
    pub(crate) away: SocketAddr,
    /// Of one that may read and not write.
    pub(crate) limited: SocketAddr,
}

/// The names of these adapters: of their Leases, and as the label `job`.
pub(crate) const BUSY: &str = "busy";
pub(crate) const AWAY: &str = "away";
pub(crate) const LIMITED: &str = "limited";

impl Addresses {
    pub(crate) fn targets(&self) -> [(&'static str, SocketAddr); 3] {
        [(BUSY, self.busy), (AWAY, self.away), (LIMITED, self.limited)]
    }
}

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    adapter: Options,
    #[command(flatten)]
    server: ServerOptions,
}

/// A running adapter. Dropping it is a crash.
pub(crate) struct Running {
    task: JoinHandle<anyhow::Result<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    /// Starts an adapter of OpenSandbox servers.
    pub(crate) async fn start(
        name: &'static str,
        listen: SocketAddr,
        namespace: &str,
        controller: &str,
        account: Option<&str>,
    ) -> anyhow::Result<Self> {
        let listen = format!("--listen={listen}");
        let namespace = format!("--namespace={namespace}");
        let patience = [
            "--call-timeout-seconds=2",
            "--poll-milliseconds=200",
            "--log-window-seconds=0",
        ];
        let general = [
            "adapter",
            "--identity=one",
            "--workers=1",
            "--allow-insecure-http",
            &namespace,
            &listen,
        ];
        let arguments = Arguments::parse_from(general.into_iter().chain(patience));
        let telemetry = Telemetry::default();
        let client = client(account).await?;
        let backend = OpenSandboxBackend::new(&client, &arguments.server).called(controller);
        let settings = arguments.server.settings(impatient());
        let running = async move {
            let forever = std::future::pending();
            adapter::run_until(
                name,
                arguments.adapter,
                settings,
                &telemetry,
                client,
                backend,
                forever,
            )
            .await
        };
        Ok(Self {
            task: tokio::spawn(Box::pin(running)),
        })
    }

    /// Ends it at whatever it is doing.
    pub(crate) async fn kill(mut self) {
        self.task.abort();
        // An error is what is expected: it was cancelled.
        let _ = (&mut self.task).await;
    }
}

/// A client for the cluster, on behalf of an account if one is named.
async fn client(account: Option<&str>) -> anyhow::Result<Client> {
    let mut config = Config::infer()
        .await
        .context("reading the file that KUBECONFIG names")?;
    config.auth_info.impersonate = account.map(str::to_owned);
    Client::try_from(config).context("building a client")
}

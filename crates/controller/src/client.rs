//! The client for the API server: bounded in time, and without retries of its own, since every reconcile has
//! a backoff and a repeated write must be decided again.

use std::time::Duration;

use anyhow::Context;
use kube::client::ClientBuilder;
use kube::{Client, Config};

/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a response may be silent: longer than a watch without news lasts.
const READ: Duration = Duration::from_secs(310);
/// How long a request may take to be sent.
const WRITE: Duration = Duration::from_secs(15);

/// A client for the cluster this process runs in, or that `KUBECONFIG` names.
pub async fn connect() -> anyhow::Result<Client> {
    let builder = ClientBuilder::try_from(config().await?)
        .context("the client for the API server could not be made")?;
    #[cfg(feature = "fault-injection")]
    let builder = builder.with_layer(&crate::fault::Faults::from_env()?);
    Ok(builder.build())
}

/// Where the API server is, and how long it may take.
pub(crate) async fn config() -> anyhow::Result<Config> {
    // Already installed is as good as installed now.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = Config::infer()
        .await
        .context("no cluster: neither inside a pod nor a KUBECONFIG that can be read")?;
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(READ);
    // An idle connection is no slow answer.
    config.reset_reader_on_write = true;
    config.write_timeout = Some(WRITE);
    config.default_retry = false;
    Ok(config)
}

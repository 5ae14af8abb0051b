//! The client for the API server: bounded in time, and without retries of its own, since every reconcile has
//! a backoff and a repeated write must be decided again.

use std::time::Duration;

use anyhow::Context;
use kube::client::ClientBuilder;
use kube::{Client, Config};

use crate::telemetry::{ApiRequests, Metrics};

/// How long to wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a response may be silent: longer than a watch without news lasts.
const READ: Duration = Duration::from_secs(310);
/// How long a request may take to be sent.
const WRITE: Duration = Duration::from_secs(15);

/// A client for the cluster this process runs in, or that `KUBECONFIG` names, whose requests are counted.
pub async fn connect(metrics: &Metrics) -> anyhow::Result<Client> {
    let builder = ClientBuilder::try_from(config().await?)
        .context("the client for the API server could not be made")?
        .with_layer(&ApiRequests(metrics.clone()));
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
    // Proxies of the environment lead out of the cluster, to the servers of backends.
    config.proxy_url = None;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = r#"{
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {}}]
    }"#;

    /// Variables are those of a whole process, so that it needs one of its own.
    #[tokio::test]
    async fn the_api_server_is_asked_directly_whatever_proxy_the_environment_names() {
        const CHILD: &str = "AYATORI_TEST_CHILD";
        if std::env::var_os(CHILD).is_some() {
            assert!(config().await.unwrap().proxy_url.is_none());
            connect(&Metrics::default()).await.unwrap();
            return;
        }
        let kubeconfig = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(kubeconfig.path(), KUBECONFIG).unwrap();
        let test = "client::tests::the_api_server_is_asked_directly_whatever_proxy_the_environment_names";
        let status = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test])
            .env(CHILD, "1")
            .env("KUBECONFIG", kubeconfig.path())
            .env("HTTPS_PROXY", "http://127.0.0.1:1")
            .env("NO_PROXY", "10.0.0.0/8,.svc,localhost")
            .status();
        assert!(status.await.unwrap().success());
    }
}

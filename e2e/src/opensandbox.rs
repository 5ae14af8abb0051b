//! The OpenSandbox of the local cluster, asked directly: what the adapter says of its sandboxes is one thing,
//! what the server and Docker say is another.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use reqwest::{Certificate, Method, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::process::Command;

/// An image that pods and sandboxes can have: one static program, `/bin/true`, and no shell.
pub const STATIC_IMAGE: &str = "localhost/static:1";

/// The header that carries the API key.
const API_KEY_HEADER: &str = "OPEN-SANDBOX-API-KEY";
/// The label by which a container names its sandbox.
const ID_LABEL: &str = "opensandbox.io/id";
/// The most that the server lists at once.
const PAGE_SIZE: &str = "200";

/// The server, its registry and its dockerd.
pub struct OpenSandbox {
    /// The server's URL, the same for pods and for this machine.
    pub endpoint: String,
    /// The authority that signed its certificate, as PEM.
    pub authority: String,
    /// The key that it asks for.
    pub api_key: String,
    /// The registry that asks for a password.
    pub registry: Registry,
    docker_host: String,
    client: reqwest::Client,
}

/// A registry on loopback that opens to one user's password.
pub struct Registry {
    /// `host:port`.
    pub address: String,
    /// Whom it knows.
    pub user: String,
    /// By what.
    pub password: String,
}

impl Registry {
    /// A busybox for those who have the password; its environment has `FROM_REGISTRY=yes`.
    pub fn private_image(&self) -> String {
        format!("{}/private:1", self.address)
    }

    /// An image for those who have not. It is never pulled with the password: a dockerd that has it asks nobody.
    pub fn sealed_image(&self) -> String {
        format!("{}/sealed:1", self.address)
    }
}

/// A sandbox, as the server describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// The server's name for it.
    pub id: String,
    /// What it does.
    pub status: SandboxStatus,
    /// What it was labelled with.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// What it runs.
    #[serde(default)]
    pub entrypoint: Vec<String>,
    /// When the server removes it, in RFC 3339.
    pub expires_at: Option<String>,
}

/// What a sandbox does.
#[derive(Clone, Debug, Deserialize)]
pub struct SandboxStatus {
    /// One word, such as `Running`.
    pub state: String,
    /// One word on why.
    #[serde(default)]
    pub reason: String,
    /// A sentence on why.
    #[serde(default)]
    pub message: String,
}

#[derive(Deserialize)]
struct Page {
    items: Vec<Sandbox>,
    pagination: Pagination,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pagination {
    has_next_page: bool,
}

impl OpenSandbox {
    /// That of the cluster whose state folder `AYATORI_CLUSTER` names.
    pub async fn of_the_cluster() -> anyhow::Result<OpenSandbox> {
        let state = std::env::var_os("AYATORI_CLUSTER")
            .context("AYATORI_CLUSTER is not set: run `cargo xtask test`, or set it to target/cluster")?;
        let folder = PathBuf::from(state).join("opensandbox");
        let told = async |file: &str| {
            let path = folder.join(file);
            let read = tokio::fs::read_to_string(&path).await;
            read.with_context(|| format!("reading {}: does the cluster have a node?", path.display()))
        };
        // Fails only where another test of this process has done it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let authority = told("ca.pem").await?;
        let client = reqwest::Client::builder()
            .tls_certs_only([Certificate::from_pem(authority.as_bytes())?])
            .timeout(Duration::from_secs(60))
            .build()?;
        Ok(OpenSandbox {
            endpoint: told("endpoint").await?,
            authority,
            api_key: told("api-key").await?,
            registry: Registry {
                address: told("registry").await?,
                user: told("registry-user").await?,
                password: told("registry-password").await?,
            },
            docker_host: told("docker-host").await?,
            client,
        })
    }

    /// Creates a sandbox; `Err` with the server's answer where it refuses.
    pub async fn create(&self, sandbox: &Value) -> anyhow::Result<Sandbox> {
        let request = self.request(Method::POST, self.url(&[])?);
        answer(request.json(sandbox)).await.context("creating a sandbox")
    }

    /// One sandbox, if the server knows it.
    pub async fn sandbox(&self, id: &str) -> anyhow::Result<Option<Sandbox>> {
        let response = self.request(Method::GET, self.url(&[id])?).send().await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let asked = read(response).await;
        asked
            .with_context(|| format!("asking for sandbox {id}"))
            .map(Some)
    }

    /// All sandboxes that are labelled with all of this.
    pub async fn sandboxes(&self, metadata: &[(&str, &str)]) -> anyhow::Result<Vec<Sandbox>> {
        let filter = metadata
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect::<Vec<_>>()
            .join("&");
        let mut found = Vec::new();
        for page in 1.. {
            let mut url = self.url(&[])?;
            url.query_pairs_mut()
                .append_pair("metadata", &filter)
                .append_pair("pageSize", PAGE_SIZE)
                .append_pair("page", &page.to_string());
            let listed: Page = answer(self.request(Method::GET, url))
                .await
                .context("listing sandboxes")?;
            found.extend(listed.items);
            if !listed.pagination.has_next_page {
                break;
            }
        }
        Ok(found)
    }

    /// Deletes a sandbox, if it is still there.
    pub async fn delete(&self, id: &str) -> anyhow::Result<()> {
        let response = self.request(Method::DELETE, self.url(&[id])?).send().await?;
        let status = response.status();
        ensure!(
            status.is_success() || status == StatusCode::NOT_FOUND,
            "deleting sandbox {id}: {status}: {}",
            response.text().await?
        );
        Ok(())
    }

    /// Deletes all sandboxes that are labelled with all of this.
    pub async fn delete_all(&self, metadata: &[(&str, &str)]) -> anyhow::Result<()> {
        for sandbox in self.sandboxes(metadata).await? {
            self.delete(&sandbox.id).await?;
        }
        Ok(())
    }

    /// The id of a sandbox's container, whether it runs or not.
    pub async fn container(&self, id: &str) -> anyhow::Result<String> {
        let label = format!("label={ID_LABEL}={id}");
        let found = self
            .docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &label])
            .await?;
        let container = found.trim();
        ensure!(!container.is_empty(), "sandbox {id} has no container");
        Ok(container.to_owned())
    }

    /// Runs Docker's client on the dockerd that runs the sandboxes, and returns what it printed.
    pub async fn docker(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = docker_at(&self.docker_host)
            .args(arguments)
            .output()
            .await
            .context("running docker")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "docker {}: {error}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The address of the dockerd that runs the sandboxes.
    pub(crate) fn docker_host(&self) -> &str {
        &self.docker_host
    }

    /// A client that trusts the server.
    pub(crate) fn client(&self) -> reqwest::Client {
        self.client.clone()
    }

    fn url(&self, path: &[&str]) -> anyhow::Result<Url> {
        let path = [&["v1", "sandboxes"], path].concat().join("/");
        Ok(Url::parse(&self.endpoint)?.join(&path)?)
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.client
            .request(method, url)
            .header(API_KEY_HEADER, &self.api_key)
    }
}

/// Docker's client on the dockerd of this address.
pub(crate) fn docker_at(host: &str) -> Command {
    let mut command = Command::new("docker");
    command.args(["--host", host]);
    command
}

async fn answer<T: DeserializeOwned>(request: RequestBuilder) -> anyhow::Result<T> {
    read(request.send().await?).await
}

async fn read<T: DeserializeOwned>(response: reqwest::Response) -> anyhow::Result<T> {
    let status = response.status();
    let text = response.text().await?;
    ensure!(status.is_success(), "{status}: {text}");
    serde_json::from_str(&text).with_context(|| format!("not what was expected: {text}"))
}

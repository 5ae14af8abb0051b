//! The OpenSandbox server, and what tests have to know of it.
//!
//! It serves HTTPS under the node's address, which pods and this machine reach alike. These files in the folder
//! `opensandbox` of the cluster's state say the rest, each a bare value without an end of line:
//!
//! | file | content |
//! | --- | --- |
//! | `endpoint` | the server's URL |
//! | `ca.pem` | the authority that signed its certificate |
//! | `api-key` | the key every request has to show |
//! | `docker-host` | the address of the dockerd that runs the sandboxes, as `DOCKER_HOST` has it |
//! | `registry` | `host:port` of the registry that asks for a password; it holds `private:1` and, never to be pulled, `sealed:1` |
//! | `registry-user`, `registry-password` | what opens it |
//!
//! Everything in them is new for every cluster.

use super::{Cluster, config, docker, images, node, pki};
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Read;

/// What uvicorn is told to serve; also tells our server from any other Python.
pub(crate) const APPLICATION: &str = "opensandbox_server.main:app";

/// The longest life a sandbox may ask for, in seconds.
const LONGEST_LIFE: u32 = 86400;

/// The server's URL.
pub(crate) fn endpoint(cluster: &Cluster) -> String {
    format!(
        "https://{}:{}",
        node::ADDRESS,
        cluster.description.ports.opensandbox
    )
}

/// Where the registry listens: on loopback, from where alone Docker and containerd pull without TLS.
pub(crate) fn registry(cluster: &Cluster) -> String {
    format!("127.0.0.1:{}", cluster.description.ports.registry)
}

/// The registry's user and password.
pub(crate) fn registry_login(cluster: &Cluster) -> Result<(String, String)> {
    Ok((
        told(cluster, "registry-user")?,
        told(cluster, "registry-password")?,
    ))
}

fn told(cluster: &Cluster, file: &str) -> Result<String> {
    let path = cluster.state("opensandbox").join(file);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// The server's own command has no option for TLS, so uvicorn is started as that command would.
pub(crate) fn arguments(cluster: &Cluster) -> Vec<String> {
    let port = cluster.description.ports.opensandbox;
    let mut arguments: Vec<String> = ["-m", "uvicorn", APPLICATION].map(str::to_owned).into();
    arguments.extend([
        format!("--host={}", node::ADDRESS),
        format!("--port={port}"),
        format!("--ssl-certfile={}", cluster.pki("opensandbox.crt").display()),
        format!("--ssl-keyfile={}", cluster.pki("opensandbox.key").display()),
        "--no-date-header".into(), // it sends its own
        "--timeout-keep-alive=30".into(),
        "--timeout-graceful-shutdown=3".into(),
    ]);
    arguments
}

pub(crate) fn environment(cluster: &Cluster) -> Vec<(&'static str, String)> {
    vec![
        (
            "SANDBOX_CONFIG_PATH",
            cluster.conf("opensandbox.toml").display().to_string(),
        ),
        ("DOCKER_HOST", cluster.docker_host()),
        // Where it keeps what was changed of a sandbox's metadata.
        ("HOME", cluster.state("opensandbox-home").display().to_string()),
    ]
}

/// Makes up the passwords and writes the settings of the server, of dockerd and of the registry.
pub(crate) fn configure(cluster: &Cluster) -> Result<()> {
    for folder in ["opensandbox", "opensandbox-home"] {
        let folder = cluster.state(folder);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let (api_key, user, password) = (secret()?, format!("user-{}", secret()?), secret()?);
    let authority = std::fs::read_to_string(cluster.pki("opensandbox-ca.crt"))?;
    let told = [
        ("endpoint", &endpoint(cluster)),
        ("ca.pem", &authority),
        ("api-key", &api_key),
        ("docker-host", &cluster.docker_host()),
        ("registry", &registry(cluster)),
        ("registry-user", &user),
        ("registry-password", &password),
    ];
    for (file, content) in told {
        let path = cluster.state("opensandbox").join(file);
        pki::private_file(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let hashed = docker::hashed(&user, &password)?;
    config::text(&cluster.conf("registry.htpasswd"), &hashed)?;
    let registry = serde_yaml::to_string(&docker::registry_settings(cluster))?;
    config::text(&cluster.conf("registry.yaml"), &registry)?;
    let dockerd = serde_json::to_string_pretty(&docker::settings(cluster))?;
    config::text(&cluster.conf("dockerd.json"), &dockerd)?;
    config::text(&cluster.conf("opensandbox.toml"), &settings(cluster, &api_key))
}

fn settings(cluster: &Cluster, api_key: &str) -> String {
    format!(
        r#"[server]
host = "{address}"
port = {port}
api_key = "{api_key}"
max_sandbox_timeout_seconds = {LONGEST_LIFE}

[runtime]
type = "docker"
execd_image = "{execd}"

[store]
type = "sqlite"
path = {store:?}

[docker]
network_mode = "none"
publish_host = "127.0.0.1"
api_timeout = 60
pids_limit = 256

[ingress]
mode = "direct"
"#,
        address = node::ADDRESS,
        port = cluster.description.ports.opensandbox,
        execd = images::execd(),
        store = cluster.state("opensandbox-home/server.db").display().to_string(), // quoted: a legal TOML string
    )
}

/// What nobody can guess.
fn secret() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

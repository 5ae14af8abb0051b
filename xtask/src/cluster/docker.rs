//! The dockerd whose containers are the sandboxes, and the registry whose images only a password opens.

use super::{Cluster, images, node, opensandbox};
use crate::command;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::process::Command;

/// The images of the registry: one for Jobs that have the password, and one for Jobs that have not. A dockerd
/// that has pulled an image once never asks for it again, so the second is never to be pulled.
const PRIVATE_IMAGES: [&str; 2] = ["private:1", "sealed:1"];

/// Runs Docker's client.
pub(crate) fn run(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    command::output(client(cluster).args(arguments))
}

fn client(cluster: &Cluster) -> Command {
    let mut docker = Command::new("docker");
    docker
        .arg("--config")
        .arg(cluster.state("docker-client")) // not the user's own passwords and contexts
        .arg("--host")
        .arg(cluster.docker_host());
    docker
}

/// Puts the private images into the registry, and nowhere else, once per cluster.
pub(crate) fn fill_registry(cluster: &Cluster) -> Result<()> {
    let filled = cluster.conf("registry.filled");
    if filled.exists() {
        return Ok(());
    }
    let registry = opensandbox::registry(cluster);
    let (user, password) = opensandbox::registry_login(cluster)?;
    let mut login = client(cluster);
    login.args(["login", "--username", &user, "--password-stdin", &registry]);
    command::output_with_input(&mut login, password.as_bytes())?;
    let names = PRIVATE_IMAGES.map(|image| format!("{registry}/{image}"));
    images::load_private(cluster, &names)?;
    for name in &names {
        run(cluster, &["push", "--quiet", name])?;
        run(cluster, &["rmi", name])?;
    }
    run(cluster, &["logout", &registry])?;
    std::fs::write(&filled, "").with_context(|| format!("cannot write {}", filled.display()))
}

/// The settings of dockerd. It gives containers no network, and so leaves the machine's alone.
pub(crate) fn settings(cluster: &Cluster) -> Value {
    json!({
        "data-root": cluster.state("docker"),
        "exec-root": cluster.docker_run(),
        "pidfile": cluster.docker_run().join("dockerd.pid"),
        "hosts": [cluster.docker_host()],
        "group": "root",
        "bridge": "none",
        "iptables": false,
        "ip6tables": false,
        "ip-forward": false,
        "ip-masq": false,
        "storage-driver": "overlay2",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "cgroup-parent": format!("/{}", node::SANDBOX_CGROUP),
        "log-driver": "json-file",
        "log-opts": {"max-size": "10m"},
    })
}

/// The settings of the registry.
pub(crate) fn registry_settings(cluster: &Cluster) -> Value {
    let ports = &cluster.description.ports;
    json!({
        "version": 0.1,
        "log": {"accesslog": {"disabled": false}, "level": "info"},
        "storage": {"filesystem": {"rootdirectory": cluster.state("registry")}},
        "http": {
            "addr": opensandbox::registry(cluster),
            "debug": {"addr": format!("127.0.0.1:{}", ports.registry_health)},
        },
        "auth": {"htpasswd": {"realm": "local", "path": cluster.conf("registry.htpasswd")}},
    })
}

/// A line of the registry's password file.
pub(crate) fn hashed(user: &str, password: &str) -> Result<String> {
    // With bcrypt (-B), the only one the registry takes; from standard input (-i), to standard output (-n).
    let mut htpasswd = Command::new("htpasswd");
    command::output_with_input(htpasswd.args(["-B", "-i", "-n", user]), password.as_bytes())
        .context("cannot hash the registry's password")
}

//! The parts of the cluster: how each is started, and how it says that it is well.

use super::{Cluster, config, docker, node, opensandbox};
use crate::{command, programs, programs::Program};
use anyhow::{Context, Result};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// One process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Part {
    Etcd,
    Apiserver,
    ControllerManager,
    Scheduler,
    Containerd,
    Kubelet,
    Proxy,
    /// Runs the sandboxes.
    Dockerd,
    /// Holds images that only a password opens.
    Registry,
    Opensandbox,
}

impl Part {
    /// In the order in which they are started.
    pub(crate) const ALL: [Part; 10] = [
        Part::Etcd,
        Part::Containerd,
        Part::Dockerd,
        Part::Registry,
        Part::Apiserver,
        Part::ControllerManager,
        Part::Scheduler,
        Part::Kubelet,
        Part::Proxy,
        Part::Opensandbox,
    ];

    /// The name in commands and file names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Etcd => "etcd",
            Part::Apiserver => "apiserver",
            Part::ControllerManager => "controller-manager",
            Part::Scheduler => "scheduler",
            Part::Containerd => "containerd",
            Part::Kubelet => "kubelet",
            Part::Proxy => "proxy",
            Part::Dockerd => "dockerd",
            Part::Registry => "registry",
            Part::Opensandbox => "opensandbox",
        }
    }

    /// Whether only a cluster with a node has it: it runs something, or holds what is run.
    pub(crate) fn is_of_the_node(self) -> bool {
        match self {
            Part::Etcd | Part::Apiserver | Part::ControllerManager | Part::Scheduler => false,
            Part::Containerd
            | Part::Kubelet
            | Part::Proxy
            | Part::Dockerd
            | Part::Registry
            | Part::Opensandbox => true,
        }
    }

    pub(crate) fn executable(self) -> Result<PathBuf> {
        match self {
            Part::Etcd => programs::path(Program::Etcd),
            Part::Apiserver => programs::path(Program::KubeApiserver),
            Part::ControllerManager => programs::path(Program::KubeControllerManager),
            Part::Scheduler => programs::path(Program::KubeScheduler),
            Part::Containerd => Ok("containerd".into()),
            Part::Kubelet => programs::path(Program::Kubelet),
            Part::Proxy => programs::path(Program::KubeProxy),
            Part::Dockerd => Ok("dockerd".into()),
            Part::Registry => Ok("docker-registry".into()),
            Part::Opensandbox => programs::path(Program::OpensandboxServer),
        }
    }

    /// The command line, without the program.
    pub(crate) fn arguments(self, cluster: &Cluster) -> Vec<String> {
        match self {
            Part::Etcd => etcd(cluster),
            Part::Apiserver => apiserver(cluster),
            Part::ControllerManager => {
                let mut arguments = controller_manager(cluster);
                arguments.extend(WITHOUT_LIMITS.map(str::to_owned));
                arguments
            }
            Part::Scheduler => scheduler(cluster),
            Part::Containerd => vec![format!("--config={}", cluster.conf("containerd.toml").display())],
            Part::Kubelet => vec![
                format!("--config={}", cluster.conf("kubelet.yaml").display()),
                format!("--kubeconfig={}", cluster.conf("kubelet.kubeconfig").display()),
                format!("--hostname-override={}", node::NAME),
                format!("--root-dir={}", cluster.state("kubelet").display()),
                format!("--node-ip={}", node::ADDRESS),
            ],
            Part::Proxy => vec![format!("--config={}", cluster.conf("proxy.yaml").display())],
            Part::Dockerd => vec![format!(
                "--config-file={}",
                cluster.conf("dockerd.json").display()
            )],
            Part::Registry => vec![
                "serve".into(),
                cluster.conf("registry.yaml").display().to_string(),
            ],
            Part::Opensandbox => opensandbox::arguments(cluster),
        }
    }

    /// What is added to its environment.
    pub(crate) fn environment(self, cluster: &Cluster) -> Vec<(&'static str, String)> {
        match self {
            Part::Opensandbox => opensandbox::environment(cluster),
            Part::Etcd
            | Part::Apiserver
            | Part::ControllerManager
            | Part::Scheduler
            | Part::Containerd
            | Part::Kubelet
            | Part::Proxy
            | Part::Dockerd
            | Part::Registry => Vec::new(),
        }
    }

    /// How long it may take to end when asked.
    pub(crate) fn grace(self) -> Duration {
        match self {
            // It stops its sandboxes first, of which each may take ten seconds.
            Part::Dockerd => Duration::from_secs(20),
            // The API server would wait a minute for its watchers.
            Part::Etcd
            | Part::Apiserver
            | Part::ControllerManager
            | Part::Scheduler
            | Part::Containerd
            | Part::Kubelet
            | Part::Proxy
            | Part::Registry
            | Part::Opensandbox => Duration::from_secs(5),
        }
    }

    /// Asks the part itself.
    pub(crate) fn health(self, cluster: &Cluster) -> Result<()> {
        let ports = &cluster.description.ports;
        let secure = |port: u16, path: &str, trust: &str| {
            let certificate = format!(
                "--client-certificate={}",
                cluster.pki("apiserver-client.crt").display()
            );
            let key = format!("--client-key={}", cluster.pki("apiserver-client.key").display());
            ask(
                &format!("https://127.0.0.1:{port}"),
                path,
                &[trust, &certificate, &key],
            )
        };
        let ours = format!("--certificate-authority={}", cluster.pki("ca.crt").display());
        // The controller manager and the scheduler make their serving certificates up themselves.
        let any = "--insecure-skip-tls-verify";
        match self {
            Part::Etcd => secure(ports.etcd, "/health", &ours),
            Part::Apiserver => secure(ports.apiserver, "/readyz", &ours),
            Part::ControllerManager => secure(ports.controller_manager, "/healthz", any),
            Part::Scheduler => secure(ports.scheduler, "/readyz", any),
            Part::Containerd => cluster.ctr(&["version"]).map(drop),
            Part::Kubelet => ask(
                &format!("http://127.0.0.1:{}", ports.kubelet_health),
                "/healthz",
                &[],
            ),
            Part::Proxy => ask(
                &format!("http://127.0.0.1:{}", ports.proxy_health),
                "/healthz",
                &[],
            ),
            Part::Dockerd => docker::run(cluster, &["version"]).map(drop),
            Part::Registry => ask(
                &format!("http://127.0.0.1:{}", ports.registry_health),
                "/debug/health",
                &[],
            ),
            Part::Opensandbox => {
                let authority = cluster.pki("opensandbox-ca.crt");
                let trust = format!("--certificate-authority={}", authority.display());
                // Without any credential kubectl would ask a person for one.
                let nobody = "--token=none";
                ask(&opensandbox::endpoint(cluster), "/health", &[&trust, nobody])
            }
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.pad(self.name())
    }
}

/// A GET by kubectl, which serves as the one HTTP client here.
fn ask(server: &str, path: &str, how: &[&str]) -> Result<()> {
    let mut kubectl = Command::new(programs::path(Program::Kubectl)?);
    kubectl
        .env("KUBECONFIG", "/dev/null")
        .args(["--request-timeout=5s", "--server", server])
        .args(how);
    command::output(kubectl.args(["get", "--raw", path])).map(drop)
}

fn etcd(cluster: &Cluster) -> Vec<String> {
    let ports = &cluster.description.ports;
    let client = format!("https://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
    vec![
        "--name=local".into(),
        format!("--data-dir={}", cluster.state("etcd").display()),
        "--unsafe-no-fsync".into(), // a crash of the machine ends the cluster anyway
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--cert-file={}", cluster.pki("etcd.crt").display()),
        format!("--key-file={}", cluster.pki("etcd.key").display()),
        "--client-cert-auth".into(),
        format!("--trusted-ca-file={}", cluster.pki("ca.crt").display()),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=local={peer}"),
    ]
}

fn apiserver(cluster: &Cluster) -> Vec<String> {
    let ports = &cluster.description.ports;
    let pki = |file: &str| cluster.pki(file).display().to_string();
    let mut arguments = vec![
        format!("--secure-port={}", ports.apiserver),
        format!("--etcd-servers=https://127.0.0.1:{}", ports.etcd),
        format!("--etcd-cafile={}", pki("ca.crt")),
        format!("--etcd-certfile={}", pki("apiserver-client.crt")),
        format!("--etcd-keyfile={}", pki("apiserver-client.key")),
        format!("--tls-cert-file={}", pki("apiserver.crt")),
        format!("--tls-private-key-file={}", pki("apiserver.key")),
        format!("--client-ca-file={}", pki("ca.crt")),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", pki("service-accounts.pub")),
        format!(
            "--service-account-signing-key-file={}",
            pki("service-accounts.key")
        ),
        format!("--service-cluster-ip-range={}", node::SERVICE_NETWORK),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--allow-privileged=true".into(),
        "--profiling=false".into(),
        format!("--audit-policy-file={}", cluster.conf("audit.yaml").display()),
        format!("--audit-log-path={}", cluster.log("audit").display()),
        "--audit-log-maxsize=64".into(), // MiB, then rotated
        "--audit-log-maxbackup=3".into(),
    ];
    if cluster.description.mode.has_node() {
        arguments.extend([
            "--bind-address=0.0.0.0".into(), // pods come by the node's address
            format!("--advertise-address={}", node::ADDRESS),
            "--authorization-mode=Node,RBAC".into(),
            "--kubelet-preferred-address-types=InternalIP".into(),
            format!("--kubelet-certificate-authority={}", pki("ca.crt")),
            format!("--kubelet-client-certificate={}", pki("apiserver-client.crt")),
            format!("--kubelet-client-key={}", pki("apiserver-client.key")),
        ]);
    } else {
        arguments.extend([
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
            "--endpoint-reconciler-type=none".into(), // loopback is no legal endpoint
            "--authorization-mode=RBAC".into(),
        ]);
    }
    arguments
}

/// Lifts the controller manager's limits: the defaults (20 requests a second) would be what a load test measures.
pub(crate) const WITHOUT_LIMITS: [&str; 3] = [
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    "--concurrent-job-syncs=20",
];

/// With the limits that it has by default.
pub(crate) fn controller_manager(cluster: &Cluster) -> Vec<String> {
    vec![
        format!(
            "--kubeconfig={}",
            cluster.conf("controller-manager.kubeconfig").display()
        ),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={}", cluster.description.ports.controller_manager),
        "--leader-elect=false".into(),
        "--use-service-account-credentials=true".into(),
        format!(
            "--service-account-private-key-file={}",
            cluster.pki("service-accounts.key").display()
        ),
        format!("--root-ca-file={}", cluster.pki("ca.crt").display()),
        // With the kubelet's shorter heartbeat: a lost node is seen in 20 s instead of 50 s.
        "--node-monitor-grace-period=20s".into(),
    ]
}

fn scheduler(cluster: &Cluster) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", cluster.conf("scheduler.kubeconfig").display()),
        format!(
            "--authentication-kubeconfig={}",
            cluster.conf("scheduler.kubeconfig").display()
        ),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={}", cluster.description.ports.scheduler),
        "--leader-elect=false".into(),
        "--kube-api-qps=1000".into(),
        "--kube-api-burst=2000".into(),
    ]
}

/// The last lines of a log, indented.
pub(crate) fn log_tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all.iter()
        .skip(all.len().saturating_sub(lines))
        .map(|line| format!("  {line}\n"))
        .collect()
}

/// Writes the configuration of every part.
pub(crate) fn configure(cluster: &Cluster) -> Result<()> {
    config::write(cluster)
        .and_then(|()| {
            if cluster.description.mode.has_node() {
                opensandbox::configure(cluster)?;
            }
            Ok(())
        })
        .context("cannot write the configuration of the cluster")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_starting_names_every_part_once() {
        let mut ordered = Part::ALL.to_vec();
        ordered.sort();
        assert_eq!(ordered, Part::value_variants());
    }

    #[test]
    fn commands_and_files_know_a_part_by_the_same_name() {
        for part in Part::value_variants() {
            assert_eq!(part.to_possible_value().unwrap().get_name(), part.name());
        }
    }

    #[test]
    fn the_end_of_a_log_is_shown_and_no_more() {
        let log = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(log.path(), "one\ntwo\nthree\n").unwrap();
        assert_eq!(log_tail(log.path(), 2), "  two\n  three\n");
        assert_eq!(log_tail(Path::new("/nonexistent"), 2), "");
    }
}

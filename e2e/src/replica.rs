//! Adapter processes outside the cluster, under the adapter's own service account, to be killed at will.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::accounts::SYSTEM_NAMESPACE;
use crate::api::{PATIENCE, eventually};

/// Which adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adapter {
    /// That of batch Jobs and pods.
    Kubernetes,
    /// That of sandboxes.
    OpenSandbox,
}

impl Adapter {
    /// What its chart calls it: its Deployment, its service account and its Lease.
    pub fn name(self) -> &'static str {
        match self {
            Adapter::Kubernetes => "kubernetes-adapter",
            Adapter::OpenSandbox => "opensandbox-adapter",
        }
    }

    /// The variable that says where its build with fault hooks lies.
    fn variable(self) -> &'static str {
        match self {
            Adapter::Kubernetes => "AYATORI_MORTAL_KUBERNETES_ADAPTER",
            Adapter::OpenSandbox => "AYATORI_MORTAL_OPENSANDBOX_ADAPTER",
        }
    }

    /// What it may do more than by default.
    fn permission(self) -> &'static str {
        match self {
            Adapter::Kubernetes => "--allow-secret-checks",
            Adapter::OpenSandbox => "--allow-secrets",
        }
    }
}

/// A path that `cargo xtask test` hands to the tests.
fn given(variable: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os(variable)
        .with_context(|| format!("{variable} is not set: run `cargo xtask test`"))?;
    Ok(PathBuf::from(path))
}

/// Runs kubectl and returns what it printed.
pub async fn kubectl(arguments: &[&str]) -> anyhow::Result<String> {
    run("AYATORI_KUBECTL", arguments).await
}

/// Runs Helm and returns what it printed.
pub async fn helm(arguments: &[&str]) -> anyhow::Result<String> {
    run("AYATORI_HELM", arguments).await
}

/// Runs one of the project's own commands and returns what it printed.
pub async fn xtask(arguments: &[&str]) -> anyhow::Result<String> {
    run("AYATORI_XTASK", arguments).await
}

async fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let program = given(program)?;
    let output = Command::new(&program)
        .args(arguments)
        .output()
        .await
        .with_context(|| format!("running {}", program.display()))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} {}: {error}",
        program.display(),
        arguments.join(" ")
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The cluster without one of its deployed adapters: of that, only replicas that the test starts act on it.
#[derive(Clone)]
pub struct Stage {
    client: Client,
    adapter: Adapter,
    kubeconfig: Arc<tempfile::NamedTempFile>,
    replicas: i32,
}

impl Stage {
    /// Takes the deployed Kubernetes adapter off the stage. [`Stage::clear`] brings it back.
    pub async fn take(client: &Client) -> anyhow::Result<Self> {
        Self::take_from(client, Adapter::Kubernetes).await
    }

    /// Takes this adapter off the stage. [`Stage::clear`] brings it back.
    pub async fn take_from(client: &Client, adapter: Adapter) -> anyhow::Result<Self> {
        let deployments = Api::<Deployment>::namespaced(client.clone(), SYSTEM_NAMESPACE);
        let deployed = deployments
            .get(adapter.name())
            .await
            .context("the adapter is not deployed: `cargo xtask deploy`")?;
        let replicas = deployed.spec.and_then(|s| s.replicas).unwrap_or(1).max(1);
        let stage = Self {
            client: client.clone(),
            adapter,
            kubeconfig: Arc::new(credentials(adapter).await?),
            replicas,
        };
        stage.scale(0).await?;
        Ok(stage)
    }

    /// Brings the deployed adapter back.
    pub async fn clear(self) -> anyhow::Result<()> {
        self.scale(self.replicas).await
    }

    async fn scale(&self, replicas: i32) -> anyhow::Result<()> {
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments
            .patch(self.adapter.name(), &PatchParams::default(), &patch)
            .await?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={}", self.adapter.name()));
        eventually(
            &format!("{replicas} adapter pods are ready and no other is there"),
            async || {
                let pods = pods.list(&ours).await?.items;
                let ready = pods.iter().filter(|p| is_ready(p)).count();
                Ok(pods.len() == ready && i32::try_from(ready)? == replicas)
            },
        )
        .await
    }

    /// Returns once this replica leads.
    pub async fn when_leads(&self, identity: &str) -> anyhow::Result<()> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        eventually(&format!("replica {identity} leads"), async || {
            let lease = leases.get_opt(self.adapter.name()).await?;
            Ok(lease.and_then(|l| l.spec?.holder_identity).as_deref() == Some(identity))
        })
        .await
    }

    /// Forgets who led, so that the next replica need not wait for a dead one's lease to expire.
    pub async fn forget_leaders(&self) -> anyhow::Result<()> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        for lease in [self.adapter.name(), "unowned"] {
            match leases.delete(lease, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => bail!(error),
            }
        }
        Ok(())
    }

    /// Starts a replica. `fault`: where it is to die, as `AYATORI_FAULT` says it.
    pub fn start(&self, identity: &str, fault: Option<&str>) -> anyhow::Result<Replica> {
        self.start_with(identity, fault, &[])
    }

    /// The same, with more flags.
    pub fn start_with(&self, identity: &str, fault: Option<&str>, flags: &[&str]) -> anyhow::Result<Replica> {
        let mut command = self.command(identity, fault)?;
        command.args(["--listen", "127.0.0.1:0"]).args(flags);
        Replica::spawn(command)
    }

    /// The same, with all that it says in this file; the flags say where it listens.
    pub fn start_logged(
        &self,
        identity: &str,
        log: &std::fs::File,
        flags: &[&str],
    ) -> anyhow::Result<Replica> {
        let mut command = self.command(identity, None)?;
        command
            .args(flags)
            .stderr(log.try_clone()?)
            .stdout(log.try_clone()?);
        Replica::spawn(command)
    }

    /// Starts a replica that says everything it can say, into this file, and serves its metrics there.
    pub fn start_talkative(
        &self,
        identity: &str,
        log: &std::fs::File,
        listen: std::net::SocketAddr,
        flags: &[&str],
    ) -> anyhow::Result<Replica> {
        let listen = listen.to_string();
        let all = [&["--log-level", "trace", "--listen", &listen], flags].concat();
        self.start_logged(identity, log, &all)
    }

    /// Starts a replica that serves its metrics there, and sends them and its traces to this collector, without delay.
    pub fn start_watched(
        &self,
        identity: &str,
        listen: std::net::SocketAddr,
        collector: &str,
    ) -> anyhow::Result<Replica> {
        let mut command = self.command(identity, None)?;
        command
            .args(["--listen", &listen.to_string(), "--otlp-endpoint", collector])
            .env("OTEL_METRIC_EXPORT_INTERVAL", "500");
        Replica::spawn(command)
    }

    fn command(&self, identity: &str, fault: Option<&str>) -> anyhow::Result<Command> {
        let mut command = Command::new(given(self.adapter.variable())?);
        command
            .args(["--namespace", SYSTEM_NAMESPACE, "--identity", identity])
            .args(["--log-format", "text", self.adapter.permission()])
            .env("KUBECONFIG", self.kubeconfig.path())
            .env_remove("AYATORI_FAULT")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if let Some(fault) = fault {
            command.env("AYATORI_FAULT", fault);
        }
        Ok(command)
    }
}

/// One adapter process.
pub struct Replica {
    child: Child,
}

impl Replica {
    fn spawn(mut command: Command) -> anyhow::Result<Self> {
        let child = command.spawn().context("starting a replica")?;
        Ok(Self { child })
    }

    /// Ends it with SIGKILL.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("killing a replica")
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let status = self.ended(PATIENCE).await?;
        let status = status.context("the replica did not end when it was asked to")?;
        ensure!(status.success(), "the replica ended with {status}");
        Ok(())
    }

    /// Stops it in the middle of whatever it does, until [`Replica::wake_up`].
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after [`Replica::freeze`], as if no time had passed.
    pub fn wake_up(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.child.id().map(i32::try_from).transpose()?;
        let pid = pid.and_then(Pid::from_raw).context("the replica has ended")?;
        kill_process(pid, signal).context("signalling a replica")
    }

    /// Returns once it has ended by itself, or `None` after `patience`.
    pub async fn ended(&mut self, patience: Duration) -> anyhow::Result<Option<ExitStatus>> {
        match tokio::time::timeout(patience, self.child.wait()).await {
            Ok(status) => Ok(Some(status?)),
            Err(_) => Ok(None),
        }
    }
}

/// Whether a process was ended by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// A kubeconfig of the adapter's service account.
async fn credentials(adapter: Adapter) -> anyhow::Result<tempfile::NamedTempFile> {
    let token = kubectl(&[
        "create",
        "token",
        adapter.name(),
        "--namespace",
        SYSTEM_NAMESPACE,
        "--duration=2h",
    ])
    .await?;
    let config = kubectl(&[
        "config",
        "view",
        "--raw",
        "--minify",
        "--flatten",
        "--output=json",
    ])
    .await?;
    let mut config: Value = serde_json::from_str(&config)?;
    let user = config
        .pointer_mut("/users/0/user")
        .context("the kubeconfig names no user")?;
    *user = json!({"token": token.trim()});
    let file = tempfile::NamedTempFile::new()?;
    serde_json::to_writer(file.as_file(), &config)?;
    Ok(file)
}

//! A control plane with a simulated node, with our definitions and policies, and the peers that are measured on it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use ayatori_core::job_class::{JobClass, JobClassSpec, ParametersReference};
use ayatori_core::names::{GROUP, KUBERNETES_CONTROLLER};
use ayatori_core::parameters::{KubernetesExecutionParameters, KubernetesExecutionParametersSpec};
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::api::eventually;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::process::Command;

use crate::audit::Audit;
use crate::chronicle::{Chronicle, Watching};
use crate::node;
use crate::peer::{CLASS, Peer};
use crate::process::{Process, Usage};
use crate::stage::{CommandLine, Stage};
use crate::store::{Entry, Store};

/// What kube-controller-manager may ask of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limits {
    /// 20 requests a second, as by default.
    Default,
    /// As many as it can.
    Lifted,
}

const CONTROLLER_MANAGER: &str = "controller-manager";
/// How long the API server may take to show what was written into etcd.
const SHOWING: Duration = Duration::from_secs(5);

/// Everything that runs, but for what is measured alone.
pub(crate) struct Arena<'a> {
    pub(crate) stage: &'a Stage,
    /// With every right.
    pub(crate) client: Client,
    /// Sees what becomes of everybody's Jobs.
    pub(crate) chronicle: Chronicle,
    pub(crate) audit: Audit,
    pub(crate) store: Store,
    pub(crate) etcd: Process,
    pub(crate) apiserver: Process,
    pub(crate) scheduler: Process,
    /// None only while objects are laid out.
    controller_manager: Option<Process>,
    controller_manager_line: CommandLine,
    nodes: Watching,
}

impl<'a> Arena<'a> {
    /// A new one, in which nothing has happened yet.
    pub(crate) async fn open(stage: &'a Stage, limits: Limits) -> anyhow::Result<Self> {
        for remains in [stage.state.join("etcd"), stage.audit_log()] {
            remove(&remains)?;
        }
        let start = |name: &str, line: &CommandLine| Process::start(name, line, &[], &stage.log(name));
        let etcd = with(&stage.etcd, &["--quota-backend-bytes=8589934592"]);
        let etcd = start("etcd", &etcd)?;
        let apiserver = with(&stage.apiserver, &["--audit-log-maxsize=4096"]);
        let mut apiserver = start("apiserver", &apiserver)?;
        let client = client(&stage.kubeconfig).await?;
        eventually("the API server is ready", async || {
            let ready = http::Request::get("/readyz").body(Vec::new())?;
            Ok(client.request_text(ready).await.is_ok())
        })
        .await
        .and_then(|()| apiserver.check())?;
        let lifted = match limits {
            Limits::Default => &[][..],
            Limits::Lifted => &stage.without_limits,
        };
        let controller_manager_line = with(&stage.controller_manager, lifted);
        let controller_manager = Some(start(CONTROLLER_MANAGER, &controller_manager_line)?);
        let scheduler = start("scheduler", &stage.scheduler)?;
        install(stage, &client).await?;
        let chronicle = Chronicle::default();
        let nodes = node::all(&client, &chronicle).await?;
        Ok(Self {
            stage,
            audit: Audit::of(&stage.audit_log()),
            store: Store::of(&stage.store)?,
            client,
            chronicle,
            etcd,
            apiserver,
            scheduler,
            controller_manager,
            controller_manager_line,
            nodes,
        })
    }

    /// Ends everything and leaves nothing but logs.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        // Nobody asks any more before there is nobody to answer.
        drop(self.nodes);
        let manager = self.controller_manager.into_iter();
        for process in manager.chain([self.scheduler, self.apiserver, self.etcd]) {
            process.stop().await?;
        }
        remove(&self.stage.state.join("etcd"))
    }

    /// Writes objects into etcd. kube-controller-manager does not run meanwhile: its watches show kinds in any order,
    /// and it would make a pod for a Job whose own it does not see yet.
    pub(crate) async fn lay_out(&mut self, entries: impl IntoIterator<Item = Entry>) -> anyhow::Result<()> {
        if let Some(process) = self.controller_manager.take() {
            process.stop().await?;
        }
        self.store.put(entries).await?;
        // It begins with what the API server's caches show.
        tokio::time::sleep(SHOWING).await;
        let log = self.stage.log(CONTROLLER_MANAGER);
        let process = Process::start(CONTROLLER_MANAGER, &self.controller_manager_line, &[], &log)?;
        self.controller_manager = Some(process);
        Ok(())
    }

    /// What kube-controller-manager has used.
    pub(crate) fn controller_manager(&self) -> anyhow::Result<Usage> {
        let process = self.controller_manager.as_ref();
        process.context("no controller-manager runs")?.usage()
    }

    /// The Kubernetes client as this service account of the charts, in the form of a kubeconfig.
    pub(crate) async fn account(&self, name: &str) -> anyhow::Result<tempfile::NamedTempFile> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        let request = serde_json::from_value(serde_json::json!({
            "spec": {"audiences": [], "expirationSeconds": 24 * 3600},
        }))?;
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("asking for a token of {name}"))?;
        let token = answer.status.context("the API server gave no token")?.token;
        let mut config = Kubeconfig::read_from(&self.stage.kubeconfig)?;
        for user in &mut config.auth_infos {
            user.auth_info = Some(serde_json::from_value(serde_json::json!({"token": token}))?);
        }
        let file = tempfile::NamedTempFile::new()?;
        serde_json::to_writer(file.as_file(), &config)?;
        Ok(file)
    }
}

/// The same program with further arguments.
pub(crate) fn with(line: &CommandLine, more: &[impl AsRef<str>]) -> CommandLine {
    let mut line = line.clone();
    line.arguments
        .extend(more.iter().map(|argument| argument.as_ref().to_owned()));
    line
}

fn remove(path: &Path) -> anyhow::Result<()> {
    let removed = if path.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A client that does not try again by itself: what fails is seen.
async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    // Fails only where it was done already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let file = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    config.proxy_url = None;
    Client::try_from(config).context("building a client of the control plane")
}

/// What the charts install, a namespace for each peer, and a class.
async fn install(stage: &Stage, client: &Client) -> anyhow::Result<()> {
    for namespace in [SYSTEM_NAMESPACE].into_iter().chain(Peer::NAMESPACES) {
        create_namespace(client, namespace).await?;
    }
    let apply = async || {
        let mut kubectl = Command::new(&stage.kubectl);
        kubectl.arg("--kubeconfig").arg(&stage.kubeconfig);
        kubectl.args([
            "apply",
            "--server-side",
            "--namespace",
            SYSTEM_NAMESPACE,
            "--filename",
        ]);
        let said = kubectl.arg(&stage.manifests).output().await?;
        anyhow::Ok(said)
    };
    // A policy on our kinds is refused until the API server serves them.
    let mut said = apply().await?;
    for _ in 0..20 {
        if said.status.success() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        said = apply().await?;
    }
    if !said.status.success() {
        bail!("installing the charts: {}", String::from_utf8_lossy(&said.stderr));
    }
    let parameters = KubernetesExecutionParameters::new(CLASS, KubernetesExecutionParametersSpec::default());
    let class = JobClassSpec {
        controller_name: KUBERNETES_CONTROLLER.to_owned(),
        parameters_ref: ParametersReference {
            group: GROUP.to_owned(),
            kind: "KubernetesExecutionParameters".to_owned(),
            name: CLASS.to_owned(),
        },
        ..JobClassSpec::default()
    };
    create(client, &parameters).await?;
    create(client, &JobClass::new(CLASS, class)).await?;
    for namespace in Peer::NAMESPACES {
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
        eventually("pods may be created", async || {
            Ok(accounts.get_opt("default").await?.is_some())
        })
        .await?;
    }
    Ok(())
}

/// Creates an object that has no namespace, as soon as the API server serves its kind.
pub(crate) async fn create<K>(client: &Client, object: &K) -> anyhow::Result<()>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + DeserializeOwned,
{
    let all = Api::<K>::all(client.clone());
    eventually("the API server serves what it was told to", async || {
        match all.create(&PostParams::default(), object).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error).with_context(|| format!("creating {}", object.name_any())),
        }
    })
    .await
}

async fn create_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .with_context(|| format!("creating namespace {name}"))?;
    Ok(())
}

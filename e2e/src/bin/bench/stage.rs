//! What `cargo xtask bench` has prepared: the programs, and the control plane that is laid out but not started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

/// Written by `cargo xtask bench`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stage {
    /// The folder of everything that the control plane keeps.
    pub(crate) state: PathBuf,
    /// The administrator's.
    pub(crate) kubeconfig: PathBuf,
    pub(crate) etcd: CommandLine,
    pub(crate) apiserver: CommandLine,
    pub(crate) scheduler: CommandLine,
    /// With the limits it has by default.
    pub(crate) controller_manager: CommandLine,
    /// What lifts them.
    pub(crate) without_limits: Vec<String>,
    pub(crate) store: Store,
    /// The adapters' programs, by the names of their charts.
    pub(crate) adapters: BTreeMap<String, PathBuf>,
    /// Cargo's profile that they were built with.
    pub(crate) profile: String,
    /// What the charts install.
    pub(crate) manifests: PathBuf,
    pub(crate) kubectl: PathBuf,
    /// The commit that is measured.
    pub(crate) revision: Option<String>,
}

/// A program and its arguments.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CommandLine {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
}

/// How etcd is spoken to.
#[derive(Debug, Deserialize)]
pub(crate) struct Store {
    pub(crate) endpoint: String,
    pub(crate) authority: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Stage {
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("understanding {}", file.display()))
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.state.join("logs").join(format!("{name}.log"))
    }

    /// What the API server wrote down of requests.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.log("audit")
    }
}

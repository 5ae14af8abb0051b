//! What a person or a CI step has in a terminal: kubectl and Helm, and a kubeconfig whose namespace is the test's.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;
use tokio::process::Command;

use crate::replica::kubectl;

/// A folder of its own to work in, and an environment.
pub struct Shell {
    folder: TempDir,
    kubeconfig: PathBuf,
}

impl Shell {
    /// A terminal in which `kubectl` means this namespace.
    pub async fn of(namespace: &str) -> anyhow::Result<Self> {
        let given = std::env::var_os("KUBECONFIG").context("KUBECONFIG is not set")?;
        let folder = tempfile::tempdir()?;
        let programs = folder.path().join(".bin");
        std::fs::create_dir(&programs)?;
        for (variable, name) in [("AYATORI_KUBECTL", "kubectl"), ("AYATORI_HELM", "helm")] {
            let program = std::env::var_os(variable)
                .with_context(|| format!("{variable} is not set: run `cargo xtask test`"))?;
            symlink(program, programs.join(name))?;
        }
        let kubeconfig = folder.path().join(".kubeconfig");
        std::fs::copy(&given, &kubeconfig).with_context(|| format!("copying {}", given.display()))?;
        let its = format!("--kubeconfig={}", kubeconfig.display());
        kubectl(&[
            &its,
            "config",
            "set-context",
            "--current",
            "--namespace",
            namespace,
        ])
        .await?;
        Ok(Self { folder, kubeconfig })
    }

    /// The folder that commands run in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file into the folder and returns its path.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder().join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {name}"))?;
        Ok(path)
    }

    /// A program of the `PATH`, in the folder and with the environment.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut path = self.folder().join(".bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command
            .current_dir(self.folder())
            .env("PATH", path)
            .env("KUBECONFIG", &self.kubeconfig)
            .kill_on_drop(true);
        command
    }
}

//! A cluster that exists: where it lies, what it consists of, and what can be asked of it.

use super::{
    cleanup, node,
    parts::{Part, log_tail},
    ports::Ports,
    process::Process,
};
use crate::{checkout, command, programs, programs::Program, wait};
use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where a full cluster, of whatever checkout, keeps its description, its pids and its socket.
pub(crate) const MACHINE_RUN: &str = "/run/ayatori-cluster";
const DESCRIPTION: &str = "cluster.json";

/// How long a part may take to become well.
const HEALTHY: Duration = Duration::from_secs(90);

/// What a cluster consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    Full,
    ControlPlaneOnly,
}

impl Mode {
    pub(crate) fn has_node(self) -> bool {
        match self {
            Mode::Full => true,
            Mode::ControlPlaneOnly => false,
        }
    }

    /// The parts of such a cluster, in the order in which they are started.
    pub(crate) fn parts(self) -> impl DoubleEndedIterator<Item = Part> {
        Part::ALL
            .into_iter()
            .filter(move |part| self.has_node() || !part.is_of_the_node())
    }

    /// Where such a cluster of this checkout keeps its description and pids.
    pub(crate) fn run_folder(self) -> PathBuf {
        match self {
            Mode::Full => MACHINE_RUN.into(),
            Mode::ControlPlaneOnly => checkout::cluster_state().join("run"),
        }
    }

    /// Keeps other commands that change such a cluster waiting, until the file is dropped.
    pub(crate) fn lock(self) -> Result<File> {
        let path = match self {
            Mode::Full => PathBuf::from("/run/ayatori-cluster.lock"),
            Mode::ControlPlaneOnly => checkout::target().join("cluster.lock"),
        };
        let open = || -> std::io::Result<File> {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            let file = File::create(&path)?;
            if file.try_lock().is_err() {
                eprintln!("waiting for another cluster command …");
                file.lock()?;
            }
            Ok(file)
        };
        open().with_context(|| format!("cannot lock {}", path.display()))
    }
}

/// What is remembered of a cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    /// The folder of its state, which lies in its checkout.
    pub(crate) state: PathBuf,
    pub(crate) mode: Mode,
    pub(crate) ports: Ports,
    /// The API server's path names version and build: another one means another cluster.
    pub(crate) apiserver: PathBuf,
    /// Likewise the OpenSandbox server's, where there is one.
    #[serde(default)]
    pub(crate) opensandbox: Option<PathBuf>,
}

/// A cluster: its description and the folder it was found in.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) description: Description,
    pub(crate) run: PathBuf,
}

impl Cluster {
    /// The cluster of this checkout, in either mode.
    pub(crate) fn of_this_checkout() -> Result<Option<Cluster>> {
        let full = Cluster::found_in(Path::new(MACHINE_RUN))?;
        match full.filter(|cluster| cluster.description.state == checkout::cluster_state()) {
            Some(cluster) => Ok(Some(cluster)),
            None => Cluster::found_in(&Mode::ControlPlaneOnly.run_folder()),
        }
    }

    fn found_in(run: &Path) -> Result<Option<Cluster>> {
        let description = read(&run.join(DESCRIPTION))?;
        Ok(description.map(|description| Cluster {
            description,
            run: run.to_path_buf(),
        }))
    }

    /// Remembers the cluster, before any process of it is started.
    pub(crate) fn store(&self) -> Result<()> {
        std::fs::create_dir_all(&self.run)
            .with_context(|| format!("cannot create {}", self.run.display()))?;
        write(&self.run.join(DESCRIPTION), &self.description)
    }

    pub(crate) fn state(&self, path: &str) -> PathBuf {
        self.description.state.join(path)
    }

    pub(crate) fn pki(&self, file: &str) -> PathBuf {
        self.description.state.join("pki").join(file)
    }

    pub(crate) fn conf(&self, file: &str) -> PathBuf {
        self.description.state.join("conf").join(file)
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        let name = if name == "pods" {
            name.to_owned()
        } else {
            format!("{name}.log")
        };
        self.description.state.join("logs").join(name)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.description.state.join("kubeconfig")
    }

    /// Beside the pids and not in the state folder: a socket's path has at most 107 bytes.
    pub(crate) fn containerd_socket(&self) -> PathBuf {
        self.run.join("containerd.sock")
    }

    /// What dockerd and its containerd keep only while they run, sockets too.
    pub(crate) fn docker_run(&self) -> PathBuf {
        self.run.join("docker")
    }

    pub(crate) fn docker_host(&self) -> String {
        format!("unix://{}", self.run.join("docker.sock").display())
    }

    pub(crate) fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.description.ports.apiserver)
    }

    /// Runs kubectl as the administrator.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut kubectl = Command::new(programs::path(Program::Kubectl)?);
        kubectl
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .arg("--request-timeout=10s");
        command::output(kubectl.args(arguments))
    }

    /// Runs containerd's client.
    pub(crate) fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let mut ctr = Command::new("ctr");
        command::output(ctr.arg("--address").arg(self.containerd_socket()).args(arguments))
    }

    /// The process of a part, if it lives.
    pub(crate) fn process(&self, part: Part) -> Result<Option<Process>> {
        let recorded: Option<Process> = read(&self.record(part))?;
        Ok(recorded.filter(Process::is_alive))
    }

    fn record(&self, part: Part) -> PathBuf {
        self.run.join(format!("{part}.pid.json"))
    }

    /// Whether any part lives.
    pub(crate) fn is_alive(&self) -> bool {
        self.description
            .mode
            .parts()
            .any(|part| self.process(part).is_ok_and(|process| process.is_some()))
    }

    /// Starts a part that does not live, without waiting for it to be well.
    pub(crate) fn start_part(&self, part: Part) -> Result<()> {
        self.check_has(part)?;
        if self.process(part)?.is_some() {
            return Ok(());
        }
        if part == Part::Dockerd {
            cleanup::end_sandboxes(self)?;
        }
        let process = Process::spawn(
            &part.executable()?,
            &part.arguments(self),
            &part.environment(self),
            &self.log(part.name()),
        )?;
        write(&self.record(part), &process)
    }

    /// Stops a part: asked first, or at once.
    pub(crate) fn stop_part(&self, part: Part, kill: bool) -> Result<()> {
        self.check_has(part)?;
        let Some(process) = self.process(part)? else {
            return Ok(());
        };
        if kill {
            process.kill()
        } else {
            process.stop(part.grace())
        }
        .with_context(|| format!("cannot stop {part}"))
    }

    fn check_has(&self, part: Part) -> Result<()> {
        if part.is_of_the_node() && !self.description.mode.has_node() {
            bail!("a control plane alone has no {part}");
        }
        Ok(())
    }

    /// Waits until a part is well; when it does not get there, shows the end of its log.
    pub(crate) fn await_health(&self, part: Part) -> Result<()> {
        let mut last = None;
        wait::until(&format!("{part} is well"), HEALTHY, || {
            if self.process(part)?.is_none() {
                bail!("{part} has ended");
            }
            last = part.health(self).err();
            Ok(last.is_none())
        })
        .map_err(|error| {
            let log = self.log(part.name());
            let reason = last.map(|last| format!("\n{last}")).unwrap_or_default();
            anyhow!(
                "{error}{reason}\nthe end of {}:\n{}",
                log.display(),
                log_tail(&log, 20)
            )
        })
    }

    /// Waits until pods can be created and will run.
    pub(crate) fn await_usable(&self) -> Result<()> {
        let mut wanted = vec![("serviceaccount/default", "{.metadata.name}", "default")];
        let node = format!("node/{}", node::NAME);
        if self.description.mode.has_node() {
            wanted.push((&node, "{.status.conditions[?(@.type==\"Ready\")].status}", "True"));
        }
        for (object, path, value) in wanted {
            let output = format!("--output=jsonpath={path}");
            wait::until(object, HEALTHY, || {
                Ok(self
                    .kubectl(&["get", object, &output])
                    .is_ok_and(|found| found == value))
            })
            .with_context(|| format!("see {}", self.state("logs").display()))?;
        }
        Ok(())
    }

    /// Ends the cluster and removes everything of it but its logs.
    pub(crate) fn remove(&self) -> Result<()> {
        for part in self.description.mode.parts().rev() {
            self.stop_part(part, false)?;
        }
        cleanup::sweep(self)?;
        self.wipe_state()?;
        remove_folder(&self.run)
    }

    /// Removes all state but the logs. Never while something is mounted there: that would reach through.
    pub(crate) fn wipe_state(&self) -> Result<()> {
        if let Some(mount) = cleanup::mounts(self)?.first() {
            bail!(
                "{} is still mounted: `cargo xtask cluster down` as root removes it",
                mount.display()
            );
        }
        for entry in std::fs::read_dir(&self.description.state).into_iter().flatten() {
            let entry = entry?;
            if entry.file_name() == "logs" || entry.path() == self.run {
                continue;
            }
            if entry.file_type()?.is_dir() {
                remove_folder(&entry.path())?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// A full cluster of another checkout, alive or dead.
pub(crate) fn other_on_this_machine() -> Result<Option<Cluster>> {
    let found = Cluster::found_in(Path::new(MACHINE_RUN))?;
    Ok(found.filter(|cluster| cluster.description.state != checkout::cluster_state()))
}

fn remove_folder(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    let write = || -> Result<()> {
        let readable = std::fs::Permissions::from_mode(0o644); // also by a cluster of another user
        let mut file = tempfile::Builder::new()
            .permissions(readable)
            .tempfile_in(path.parent().context("no folder")?)?;
        serde_json::to_writer_pretty(&mut file, value)?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match std::fs::read(path) {
        Ok(bytes) => {
            Ok(Some(serde_json::from_slice(&bytes).with_context(|| {
                format!("cannot understand {}", path.display())
            })?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

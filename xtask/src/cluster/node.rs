//! What the machine itself must have before it can be a node: programs, a cgroup and a network device.

use crate::command;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The node's name in the cluster.
pub(crate) const NAME: &str = "node1";
/// The node's address. It lies on a bridge of our own: the kubelet refuses loopback.
pub(crate) const ADDRESS: &str = "10.123.0.1";
/// The bridge that carries the node's address, and the one the CNI plugin connects pods to.
pub(crate) const DEVICES: [&str; 2] = [ADDRESS_DEVICE, POD_DEVICE];
pub(crate) const ADDRESS_DEVICE: &str = "ayatori-node";
pub(crate) const POD_DEVICE: &str = "ayatori-pods";
/// The addresses of pods and of services.
pub(crate) const POD_NETWORK: &str = "10.244.0.0/16";
pub(crate) const SERVICE_NETWORK: &str = "10.96.0.0/16";
/// Every pod's and every sandbox's processes are below this cgroup, so that they can be told from anybody else's.
pub(crate) const CGROUP: &str = "ayatori-cluster";
/// The sandboxes' part of it.
pub(crate) const SANDBOX_CGROUP: &str = "ayatori-cluster/sandboxes";

/// Where Debian, and where everybody else, puts CNI plugins.
const CNI_FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
/// Not on every PATH.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// A program the node needs and the Debian package that has it.
const REQUIRED: [(&str, &str); 12] = [
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("bridge", "containernetworking-plugins"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("ip", "iproute2"),
    ("busybox", "busybox-static"),
    ("dockerd", "docker.io"),
    ("docker", "docker.io"),
    ("docker-registry", "docker-registry"),
    ("htpasswd", "apache2-utils"),
    ("venv", "python3-venv"),
];

/// The folder of the CNI plugins.
pub(crate) fn cni_plugins() -> Result<PathBuf> {
    let found = CNI_FOLDERS
        .iter()
        .map(Path::new)
        .find(|folder| folder.join("host-local").is_file());
    Ok(found
        .context("no CNI plugins: install containernetworking-plugins")?
        .to_path_buf())
}

pub(crate) fn require_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("a node needs root: run this as root, or take `--control-plane-only`");
    }
    Ok(())
}

/// Two nodes on one machine would fight over its packet filter. Asked once our own are gone.
pub(crate) fn refuse_a_second_node() -> Result<()> {
    for process in procfs::process::all_processes()?.flatten() {
        let command = process.cmdline().unwrap_or_default();
        let name = command
            .first()
            .map(Path::new)
            .and_then(Path::file_name)
            .unwrap_or_default();
        if ["kubelet", "kube-proxy", "k3s"].iter().any(|node| name == *node) {
            bail!(
                "another Kubernetes node runs on this machine (process {}: {}): stop it first, \
                 or take `--control-plane-only`",
                process.pid(),
                command.join(" ")
            );
        }
    }
    Ok(())
}

/// Installs what is missing where that can be done, and otherwise says exactly what that is.
pub(crate) fn install_packages() -> Result<()> {
    let missing = missing_packages();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let debian = Path::new("/etc/debian_version").exists() && command::exists("apt-get", &[]);
    if !debian {
        bail!("missing on this machine: {list} (names of Debian's packages); install them and try again");
    }
    eprintln!("installing {list} …");
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq");
        apt
    };
    command::output(apt().arg("update"))?;
    command::output(
        apt()
            .args(["install", "-y", "--no-install-recommends"])
            .args(&missing),
    )?;
    match missing_packages().as_slice() {
        [] => Ok(()),
        still => bail!("still missing after their installation: {}", still.join(" ")),
    }
}

fn missing_packages() -> Vec<&'static str> {
    let folders: Vec<&str> = SYSTEM_FOLDERS.into_iter().chain(CNI_FOLDERS).collect();
    let present = |program: &str| match program {
        // iproute2 has a program of this name as well.
        "bridge" => cni_plugins().is_ok(),
        // Not a program but modules, which Debian takes out of Python.
        "venv" => command::output(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_ok(),
        _ => command::exists(program, &folders),
    };
    REQUIRED
        .iter()
        .filter(|(program, _)| !present(program))
        .map(|(_, package)| *package)
        .collect()
}

/// Gives the node its address.
pub(crate) fn create_device() -> Result<()> {
    if Path::new("/sys/class/net").join(ADDRESS_DEVICE).exists() {
        return Ok(());
    }
    let ip = |arguments: &[&str]| command::output(Command::new("ip").args(arguments));
    ip(&["link", "add", ADDRESS_DEVICE, "type", "bridge"])?;
    ip(&["address", "add", &format!("{ADDRESS}/32"), "dev", ADDRESS_DEVICE])?;
    ip(&["link", "set", ADDRESS_DEVICE, "up"])?;
    Ok(())
}

/// Creates our cgroup in every hierarchy: the kubelet wants its root to be there.
pub(crate) fn create_cgroups() -> Result<()> {
    for cgroup in cgroups()? {
        std::fs::create_dir_all(&cgroup).with_context(|| format!("cannot create {}", cgroup.display()))?;
    }
    Ok(())
}

/// Our cgroup in every hierarchy that is mounted here, whether it exists or not.
pub(crate) fn cgroups() -> Result<Vec<PathBuf>> {
    in_every_hierarchy(CGROUP)
}

/// The sandboxes' cgroup in every hierarchy, whether it exists or not.
pub(crate) fn sandbox_cgroups() -> Result<Vec<PathBuf>> {
    in_every_hierarchy(SANDBOX_CGROUP)
}

fn in_every_hierarchy(cgroup: &str) -> Result<Vec<PathBuf>> {
    let mounts = procfs::process::Process::myself()?.mountinfo()?;
    let hierarchies = mounts
        .into_iter()
        .filter(|mount| mount.fs_type == "cgroup" || mount.fs_type == "cgroup2");
    Ok(hierarchies.map(|mount| mount.mount_point.join(cgroup)).collect())
}

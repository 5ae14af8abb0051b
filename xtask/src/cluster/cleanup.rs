//! Leaving no trace: ends, unmounts and removes what a cluster of ours left, however it ended, and looks
//! whether that worked.

use super::{Cluster, iptables, node, process::Process};
use crate::{command, wait};
use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The names under which a cluster's processes run.
const PROGRAMS: [&str; 8] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "containerd",
    "containerd-shim-runc-v2",
];

/// How long what was told to go may take to be gone.
const GONE: Duration = Duration::from_secs(15);

/// Removes everything of this cluster from the machine, except its folder, and fails naming what stayed.
pub(crate) fn sweep(cluster: &Cluster) -> Result<()> {
    let with_node = cluster.description.mode.has_node();
    // A process may start another while it is being ended: again until none is left.
    wait::until("the end of the processes", GONE, || {
        let processes = processes(cluster)?;
        processes.iter().try_for_each(Process::kill)?;
        Ok(processes.is_empty())
    })?;
    if with_node {
        remove_shared_files(cluster);
        unmount_all(&cluster.description.state)?;
        remove_devices()?;
        remove_cgroups()?;
        iptables::clear()?;
    }
    let mut left = leftovers(cluster)?;
    let settled = wait::until("the last of it", GONE, || {
        left = leftovers(cluster)?;
        Ok(left.is_empty())
    });
    if settled.is_err() {
        bail!("this is still there:\n  {}", left.join("\n  "));
    }
    Ok(())
}

/// What is still on the machine, in words.
pub(crate) fn leftovers(cluster: &Cluster) -> Result<Vec<String>> {
    let mut left: Vec<String> = processes(cluster)?
        .iter()
        .map(|process| format!("process {process}"))
        .collect();
    if cluster.description.mode.has_node() {
        let mounts = mounts_under(&cluster.description.state)?;
        left.extend(mounts.iter().map(|path| format!("mount {}", path.display())));
        left.extend(devices().iter().map(|device| format!("network device {device}")));
        left.extend(cgroups()?.iter().map(|path| format!("cgroup {}", path.display())));
        left.extend(iptables::leftovers()?);
    }
    Ok(left)
}

/// All processes of the cluster, and of its pods.
fn processes(cluster: &Cluster) -> Result<Vec<Process>> {
    let mut processes = strays(cluster);
    if cluster.description.mode.has_node() {
        processes.extend(pod_processes()?);
    }
    Ok(processes)
}

/// Processes of the cluster, whether recorded or not: one of its programs, with one of its folders on its
/// command line.
fn strays(cluster: &Cluster) -> Vec<Process> {
    let folders = [
        cluster.description.state.display().to_string(),
        cluster.run.display().to_string(),
    ];
    let belongs = |command: &[String]| {
        let name = command
            .first()
            .map(Path::new)
            .and_then(Path::file_name)
            .unwrap_or_default();
        PROGRAMS.iter().any(|program| name == *program)
            && command
                .iter()
                .any(|word| folders.iter().any(|folder| names_path(word, folder)))
    };
    let all = procfs::process::all_processes().into_iter().flatten().flatten();
    all.filter(|process| process.cmdline().is_ok_and(|command| belongs(&command)))
        .filter_map(|process| Process::of(process.pid))
        .collect()
}

/// Whether an argument names the folder or something in it, and not merely a sibling with a longer name.
fn names_path(argument: &str, folder: &str) -> bool {
    argument.match_indices(folder).any(|(start, _)| {
        argument
            .get(start + folder.len()..)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Everything that runs in a pod: it is in a cgroup below ours.
fn pod_processes() -> Result<Vec<Process>> {
    let mut pids = BTreeSet::new();
    for cgroup in cgroups()? {
        // A cgroup that goes while we look has no processes.
        let listed = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        pids.extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    Ok(pids.into_iter().filter_map(Process::of).collect())
}

/// Our cgroups that exist, the inner ones first.
fn cgroups() -> Result<Vec<PathBuf>> {
    fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
        let inner = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            collect(&entry.path(), into);
        }
        into.push(folder.to_path_buf());
    }
    let mut found = Vec::new();
    for top in node::cgroups()?.iter().filter(|path| path.is_dir()) {
        collect(top, &mut found);
    }
    Ok(found)
}

fn remove_cgroups() -> Result<()> {
    wait::until("removing the pods' cgroups", GONE, || {
        for cgroup in cgroups()? {
            std::fs::remove_dir(cgroup).ok(); // busy until its last process is buried
        }
        Ok(cgroups()?.is_empty())
    })
}

/// Folders that every containerd shares hold the sockets of its shims and the CNI library's notes of what it
/// gave to a pod. The bundles tell which are ours.
fn remove_shared_files(cluster: &Cluster) {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let notes: Vec<_> = entries(Path::new("/var/lib/cni/results")).collect();
    for bundle in entries(&cluster.state("containerd/state/io.containerd.runtime.v2.task/k8s.io")) {
        let address = std::fs::read_to_string(bundle.path().join("address")).unwrap_or_default();
        if let Some(socket) = address.trim().strip_prefix("unix://") {
            std::fs::remove_file(socket).ok();
        }
        let pod = bundle.file_name().to_string_lossy().into_owned();
        for note in notes
            .iter()
            .filter(|note| note.file_name().to_string_lossy().contains(&pod))
        {
            std::fs::remove_file(note.path()).ok();
        }
    }
}

pub(crate) fn mounts_under(folder: &Path) -> Result<Vec<PathBuf>> {
    let mounts = procfs::process::Process::myself()?.mountinfo()?;
    Ok(mounts
        .into_iter()
        .map(|mount| mount.mount_point)
        .filter(|point| point.starts_with(folder))
        .collect())
}

fn unmount_all(folder: &Path) -> Result<()> {
    for point in mounts_under(folder)?.iter().rev() {
        unmount(point, UnmountFlags::DETACH)
            .with_context(|| format!("cannot unmount {}", point.display()))?;
    }
    Ok(())
}

/// Our bridges, and the pods' ends that still hang on them.
fn devices() -> Vec<String> {
    let present = |name: &&str| Path::new("/sys/class/net").join(name).exists();
    let ports = Path::new("/sys/class/net").join(node::POD_DEVICE).join("brif");
    let pods = std::fs::read_dir(ports).into_iter().flatten().flatten();
    pods.map(|entry| entry.file_name().to_string_lossy().into_owned())
        .chain(node::DEVICES.into_iter().filter(present).map(str::to_owned))
        .collect()
}

fn remove_devices() -> Result<()> {
    for device in devices() {
        let removed = command::output(Command::new("ip").args(["link", "delete", &device]));
        // A pod's end goes by itself when the last of its network namespace goes.
        if removed.is_err() && devices().contains(&device) {
            removed?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sibling_folder_with_a_longer_name_is_not_ours() {
        assert!(names_path(
            "--root-dir=/a/target/cluster/kubelet",
            "/a/target/cluster"
        ));
        assert!(names_path("/a/target/cluster", "/a/target/cluster"));
        assert!(!names_path(
            "--root-dir=/a/target/cluster2/kubelet",
            "/a/target/cluster"
        ));
    }
}

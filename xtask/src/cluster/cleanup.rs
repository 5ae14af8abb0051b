//! Leaving no trace: ends, unmounts and removes what a cluster of ours left, however it ended, and looks
//! whether that worked.

use super::{Cluster, iptables, node, opensandbox, process::Process};
use crate::{command, wait};
use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The names under which a cluster's processes run.
const PROGRAMS: [&str; 10] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "containerd",
    "containerd-shim-runc-v2",
    "dockerd",
    "docker-registry",
];

/// Where dockerd's containerd keeps the bundles of sandboxes, below dockerd's run folder.
const DOCKER_TASKS: &str = "containerd/daemon/io.containerd.runtime.v2.task/moby";

/// How long what was told to go may take to be gone.
const GONE: Duration = Duration::from_secs(15);

/// Removes everything of this cluster from the machine, except its folder, and fails naming what stayed.
pub(crate) fn sweep(cluster: &Cluster) -> Result<()> {
    let with_node = cluster.description.mode.has_node();
    // A process may start another while it is being ended: again until none is left.
    wait::until("the end of the processes", GONE, || {
        let processes = processes(cluster)?;
        kill(&processes, &node::cgroups()?)?;
        Ok(processes.is_empty())
    })?;
    if with_node {
        remove_shared_files(cluster);
        unmount_all(cluster)?;
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

/// Ends and removes what a dockerd that was killed leaves: sandboxes would go on unseen, and the next dockerd
/// would wait for the containerd of the last one.
pub(crate) fn end_sandboxes(cluster: &Cluster) -> Result<()> {
    let run = cluster.docker_run();
    wait::until("the end of the sandboxes", GONE, || {
        let mut processes = strays(&[&run]);
        processes.extend(processes_in(&node::sandbox_cgroups()?));
        kill(&processes, &node::sandbox_cgroups()?)?;
        Ok(processes.is_empty())
    })?;
    remove_shim_sockets(&run.join(DOCKER_TASKS));
    unmount_all_under(&[&run, &cluster.state("docker")])?;
    match std::fs::remove_dir_all(&run) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", run.display()))
        }
        _ => Ok(()),
    }
}

/// Kills these processes, of which some may be frozen in these cgroups, as those of a sandbox are whose dockerd died
/// while it was paused. Where the freezer is a hierarchy of its own, they die only once they are thawed; the signal
/// comes first, so that none of them runs on.
fn kill(processes: &[Process], cgroups: &[PathBuf]) -> Result<()> {
    processes
        .iter()
        .try_for_each(|process| process.signal(Signal::KILL))?;
    for cgroup in with_inner(cgroups) {
        // Only a freezer has the file, and its uppermost cgroup has none.
        let state = cgroup.join("freezer.state");
        if std::fs::read_to_string(&state).is_ok_and(|state| state.trim() != "THAWED") {
            std::fs::write(&state, "THAWED").ok(); // what has gone meanwhile holds nothing
        }
    }
    processes.iter().try_for_each(Process::kill)
}

/// What is still on the machine, in words.
pub(crate) fn leftovers(cluster: &Cluster) -> Result<Vec<String>> {
    let mut left: Vec<String> = processes(cluster)?
        .iter()
        .map(|process| format!("process {process}"))
        .collect();
    if cluster.description.mode.has_node() {
        let mounts = mounts(cluster)?;
        left.extend(mounts.iter().map(|path| format!("mount {}", path.display())));
        left.extend(devices().iter().map(|device| format!("network device {device}")));
        left.extend(cgroups()?.iter().map(|path| format!("cgroup {}", path.display())));
        left.extend(iptables::leftovers()?);
    }
    Ok(left)
}

/// All processes of the cluster, and of its pods.
fn processes(cluster: &Cluster) -> Result<Vec<Process>> {
    let mut processes = strays(&[&cluster.description.state, &cluster.run]);
    if cluster.description.mode.has_node() {
        processes.extend(processes_in(&node::cgroups()?));
    }
    Ok(processes)
}

/// Processes of the cluster, whether recorded or not: one of its programs, with one of these folders on its
/// command line.
fn strays(folders: &[&Path]) -> Vec<Process> {
    let folders: Vec<String> = folders
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    let belongs = |command: &[String]| {
        let name = command
            .first()
            .map(Path::new)
            .and_then(Path::file_name)
            .unwrap_or_default();
        let known = PROGRAMS.iter().any(|program| name == *program)
            || command.iter().any(|word| word == opensandbox::APPLICATION);
        known
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

/// Everything that runs in these cgroups and below, as pods and sandboxes do.
fn processes_in(tops: &[PathBuf]) -> Vec<Process> {
    let mut pids = BTreeSet::new();
    for cgroup in with_inner(tops) {
        // A cgroup that goes while we look has no processes.
        let listed = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
        pids.extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    pids.into_iter().filter_map(Process::of).collect()
}

/// Our cgroups that exist, the inner ones first.
fn cgroups() -> Result<Vec<PathBuf>> {
    Ok(with_inner(&node::cgroups()?))
}

/// Those of these cgroups that exist and what is in them, the inner ones first.
fn with_inner(tops: &[PathBuf]) -> Vec<PathBuf> {
    fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
        let inner = std::fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            collect(&entry.path(), into);
        }
        into.push(folder.to_path_buf());
    }
    let mut found = Vec::new();
    for top in tops.iter().filter(|path| path.is_dir()) {
        collect(top, &mut found);
    }
    found
}

fn remove_cgroups() -> Result<()> {
    wait::until("removing the cgroups of pods and sandboxes", GONE, || {
        for cgroup in cgroups()? {
            std::fs::remove_dir(cgroup).ok(); // busy until its last process is buried
        }
        Ok(cgroups()?.is_empty())
    })
}

/// Folders that every containerd shares hold the sockets of its shims and the CNI library's notes of what it
/// gave to a pod. The bundles tell which are ours.
fn remove_shared_files(cluster: &Cluster) {
    let pods = cluster.state("containerd/state/io.containerd.runtime.v2.task/k8s.io");
    remove_shim_sockets(&pods);
    remove_shim_sockets(&cluster.docker_run().join(DOCKER_TASKS));
    let notes: Vec<_> = entries(Path::new("/var/lib/cni/results")).collect();
    for bundle in entries(&pods) {
        let pod = bundle.file_name().to_string_lossy().into_owned();
        for note in notes
            .iter()
            .filter(|note| note.file_name().to_string_lossy().contains(&pod))
        {
            std::fs::remove_file(note.path()).ok();
        }
    }
}

fn remove_shim_sockets(bundles: &Path) {
    for bundle in entries(bundles) {
        let address = std::fs::read_to_string(bundle.path().join("address")).unwrap_or_default();
        if let Some(socket) = address.trim().strip_prefix("unix://") {
            std::fs::remove_file(socket).ok();
        }
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = DirEntry> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().flatten()
}

/// What is mounted in the folders of the cluster.
pub(crate) fn mounts(cluster: &Cluster) -> Result<Vec<PathBuf>> {
    mounts_under(&[&cluster.description.state, &cluster.run])
}

fn mounts_under(folders: &[&Path]) -> Result<Vec<PathBuf>> {
    let mounts = procfs::process::Process::myself()?.mountinfo()?;
    Ok(mounts
        .into_iter()
        .map(|mount| mount.mount_point)
        .filter(|point| folders.iter().any(|folder| point.starts_with(folder)))
        .collect())
}

fn unmount_all(cluster: &Cluster) -> Result<()> {
    unmount_all_under(&[&cluster.description.state, &cluster.run])
}

fn unmount_all_under(folders: &[&Path]) -> Result<()> {
    for point in mounts_under(folders)?.iter().rev() {
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

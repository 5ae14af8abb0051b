//! `cluster up`.

use super::{
    cleanup,
    description::{Cluster, Description, Mode, other_on_this_machine},
    docker, images, node,
    parts::{self, Part},
    pki,
    ports::Ports,
};
use crate::{checkout, programs, programs::Program};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A state folder whose path is longer leaves no room for the kubelet's sockets (107 bytes in all).
const LONGEST_STATE: usize = 75;

/// Makes sure that this checkout's cluster runs and is well.
pub(crate) fn up(mode: Mode) -> Result<()> {
    let begin = Instant::now();
    prepare(mode)?;
    let _lock = mode.lock()?;
    let word = match reusable(mode)? {
        Some(cluster) => {
            repair(&cluster)?;
            "runs already and is well"
        }
        None => {
            clear(mode)?;
            fresh(mode)?;
            "is up"
        }
    };
    let cluster = super::ours()?;
    eprintln!(
        "the cluster {word} ({:.1} s): {}",
        begin.elapsed().as_secs_f64(),
        cluster.server()
    );
    eprintln!("export KUBECONFIG={}", cluster.kubeconfig().display());
    Ok(())
}

/// What may take long and disturbs nothing.
fn prepare(mode: Mode) -> Result<()> {
    if mode.has_node() {
        node::require_root()?;
        node::install_packages()?;
        programs::ensure(&Program::CLUSTER)
    } else {
        programs::ensure(&Program::CONTROL_PLANE)
    }
}

/// A cluster of this checkout of which something still lives, that serves this mode and has these programs.
fn reusable(mode: Mode) -> Result<Option<Cluster>> {
    let Some(cluster) = Cluster::of_this_checkout()? else {
        return Ok(None);
    };
    let serves = cluster.description.mode == mode || cluster.description.mode.has_node();
    let (apiserver, opensandbox) = pinned(cluster.description.mode)?;
    let current =
        cluster.description.apiserver == apiserver && cluster.description.opensandbox == opensandbox;
    Ok((serves && current && cluster.is_alive()).then_some(cluster))
}

/// The programs that make a cluster what it is.
fn pinned(mode: Mode) -> Result<(PathBuf, Option<PathBuf>)> {
    let opensandbox = mode
        .has_node()
        .then(|| programs::path(Program::OpensandboxServer));
    Ok((programs::path(Program::KubeApiserver)?, opensandbox.transpose()?))
}

/// Starts what does not live and replaces what is not well.
fn repair(cluster: &Cluster) -> Result<()> {
    if cluster.description.mode.has_node() {
        node::create_device()?;
        node::create_cgroups()?;
    }
    for part in cluster.description.mode.parts() {
        if cluster.process(part)?.is_some() && part.health(cluster).is_ok() {
            continue;
        }
        eprintln!("{part} is not well: starting it again");
        cluster.stop_part(part, false)?;
        cluster.start_part(part)?;
        cluster.await_health(part)?;
    }
    if cluster.description.mode.has_node() {
        images::load_all(cluster)?;
        images::load_into_docker(cluster)?;
        docker::fill_registry(cluster)?;
    }
    cluster.await_usable()
}

/// Removes whatever is in the way of a new cluster.
fn clear(mode: Mode) -> Result<()> {
    if let Some(cluster) = Cluster::of_this_checkout()? {
        eprintln!("clearing the earlier cluster of this checkout");
        cluster.remove()?;
    }
    if !mode.has_node() {
        return Ok(());
    }
    if let Some(other) = other_on_this_machine()? {
        let word = if other.is_alive() {
            "stopping the running"
        } else {
            "clearing the dead"
        };
        eprintln!("{word} cluster of {}", other.description.state.display());
        other.remove()?;
    }
    node::refuse_a_second_node()
}

fn fresh(mode: Mode) -> Result<()> {
    let (apiserver, opensandbox) = pinned(mode)?;
    let cluster = Cluster {
        description: Description {
            state: checkout::cluster_state(),
            mode,
            ports: Ports::free()?,
            apiserver,
            opensandbox,
        },
        run: mode.run_folder(),
    };
    cluster.store()?;
    if mode.has_node() {
        cleanup::sweep(&cluster)?; // remains that no description tells of, as after the loss of /run
    }
    cluster.wipe_state()?;
    create_folders(&cluster)?;
    if mode.has_node() {
        node::create_device()?;
        node::create_cgroups()?;
    }
    pki::write(&cluster.pki(""))?;
    parts::configure(&cluster)?;
    if mode.has_node() {
        images::write_base(&cluster)?;
    }
    start(&cluster)
}

pub(crate) fn create_folders(cluster: &Cluster) -> Result<()> {
    let state = &cluster.description.state;
    if state.as_os_str().len() > LONGEST_STATE {
        bail!(
            "{} is too long a path for sockets: move the checkout to a shorter one",
            state.display()
        );
    }
    if state.to_string_lossy().contains([' ', '\t', '\n', '\\']) {
        // The kernel escapes them in its list of mounts; what is not recognised would not be unmounted.
        bail!(
            "{} has a blank in it: move the checkout to a path without",
            state.display()
        );
    }
    let logs = state.join("logs");
    if logs.exists() {
        std::fs::remove_dir_all(&logs).with_context(|| format!("cannot remove {}", logs.display()))?;
    }
    let create = |path: &Path| {
        std::fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
    };
    create(&logs)?;
    create(&cluster.conf("cni"))?;
    create(&cluster.pki(""))
}

/// Starts both backends at once: they share nothing but the images, which are written.
fn start(cluster: &Cluster) -> Result<()> {
    std::thread::scope(|scope| {
        let has_node = cluster.description.mode.has_node();
        let opensandbox = has_node.then(|| scope.spawn(|| start_opensandbox(cluster)));
        start_kubernetes(cluster)?;
        match opensandbox.map(std::thread::ScopedJoinHandle::join) {
            Some(Ok(started)) => started,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    })
}

fn start_opensandbox(cluster: &Cluster) -> Result<()> {
    let begin = Instant::now();
    let await_health = |part: Part| {
        cluster.await_health(part)?;
        say_well(part, begin);
        anyhow::Ok(())
    };
    cluster.start_part(Part::Dockerd)?;
    cluster.start_part(Part::Registry)?;
    await_health(Part::Dockerd)?;
    cluster.start_part(Part::Opensandbox)?;
    images::load_into_docker(cluster)?;
    await_health(Part::Registry)?;
    docker::fill_registry(cluster)?;
    await_health(Part::Opensandbox)
}

fn say_well(part: Part, begin: Instant) {
    eprintln!("{part:20} well after {:.1} s", begin.elapsed().as_secs_f64());
}

fn start_kubernetes(cluster: &Cluster) -> Result<()> {
    // Each line: what needs nothing but the lines before it.
    let order: [&[Part]; 3] = [
        &[Part::Etcd, Part::Containerd],
        &[Part::Apiserver],
        &[
            Part::ControllerManager,
            Part::Scheduler,
            Part::Kubelet,
            Part::Proxy,
        ],
    ];
    let has = |part: &&Part| cluster.description.mode.has_node() || !part.is_of_the_node();
    for parts in order {
        let begin = Instant::now();
        for part in parts.iter().filter(has) {
            cluster.start_part(*part)?;
        }
        for part in parts.iter().filter(has) {
            cluster.await_health(*part)?;
            say_well(*part, begin);
            if *part == Part::Containerd {
                images::load_all(cluster)?;
            }
        }
    }
    cluster.await_usable()
}

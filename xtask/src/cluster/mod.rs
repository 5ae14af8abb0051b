//! `cargo xtask cluster`: a real Kubernetes on this machine, and beside it a real OpenSandbox.
//!
//! A cluster keeps its state in `target/cluster` of its checkout. A *full* one is a node too, and there can
//! be only one node per machine, so who and where it is stands in a folder all checkouts know
//! ([`MACHINE_RUN`]). A *control-plane-only* one needs no root and keeps that beside its state.

mod cleanup;
mod config;
mod description;
mod docker;
mod images;
mod iptables;
mod laid_out;
mod node;
mod opensandbox;
mod parts;
mod pki;
mod ports;
mod process;
mod start;
mod status;

pub(crate) use description::{Cluster, Mode};
pub(crate) use images::load;
pub(crate) use laid_out::LaidOut;
pub(crate) use start::up;

use crate::checkout;
use anyhow::{Context, Result};
use description::other_on_this_machine;
use parts::Part;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Subcommand,
}

#[derive(clap::Subcommand)]
enum Subcommand {
    /// Start the cluster, repair it, or say that it is well.
    Up {
        /// No node: etcd, API server, controller manager and scheduler on loopback. Needs no root.
        #[arg(long)]
        control_plane_only: bool,
    },
    /// Stop the cluster and leave nothing of it on the machine but its logs.
    Down,
    /// Show every part with its pid and health; fails unless all are well.
    Status,
    /// Stop one part, as a fault.
    Stop {
        part: Part,
        /// With SIGKILL, at once.
        #[arg(long)]
        kill: bool,
    },
    /// Start one part again and wait until it is well.
    Start { part: Part },
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Subcommand::Up { control_plane_only } => {
            up(if control_plane_only {
                Mode::ControlPlaneOnly
            } else {
                Mode::Full
            })?;
        }
        Subcommand::Down => down()?,
        Subcommand::Status => return status::print(),
        Subcommand::Stop { part, kill } => ours()?.stop_part(part, kill)?,
        Subcommand::Start { part } => {
            let cluster = ours()?;
            cluster.start_part(part)?;
            cluster.await_health(part)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The administrator's kubeconfig of this checkout's cluster, whether it runs or not.
pub(crate) fn kubeconfig() -> PathBuf {
    checkout::cluster_state().join("kubeconfig")
}

/// The folder with the files that describe the OpenSandbox server of this checkout's cluster; see `opensandbox.rs`.
pub(crate) fn opensandbox() -> PathBuf {
    checkout::cluster_state().join("opensandbox")
}

/// Whether anything of a cluster of this checkout runs.
pub(crate) fn is_running() -> Result<bool> {
    Ok(Cluster::of_this_checkout()?.is_some_and(|cluster| cluster.is_alive()))
}

/// The running cluster of this checkout.
pub(crate) fn ours() -> Result<Cluster> {
    Cluster::of_this_checkout()?.context("this checkout has no cluster: `cargo xtask cluster up` starts one")
}

/// Stops what belongs to this checkout, and clears what a dead cluster of another left.
pub(crate) fn down() -> Result<()> {
    let mut found = false;
    if let Some(cluster) = Cluster::of_this_checkout()? {
        let _lock = cluster.description.mode.lock()?;
        cluster.remove()?;
        eprintln!(
            "the cluster is stopped; its logs are in {}",
            cluster.state("logs").display()
        );
        found = true;
    }
    if let Some(other) = other_on_this_machine()? {
        let place = other.description.state.display();
        if other.is_alive() {
            eprintln!("the cluster of {place} runs on; stop it from its own checkout");
        } else {
            eprintln!("clearing what the cluster of {place} left");
            let _lock = other.description.mode.lock()?;
            other.remove()?;
        }
        found = true;
    }
    if !found {
        eprintln!("no cluster is running");
    }
    Ok(())
}

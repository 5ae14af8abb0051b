//! Runs Ayatori Jobs as native batch/v1 Jobs.
//!
//! [`backend`] answers the controller's questions and carries out its effects: it reads caches that [`watch`]
//! fills with [`view`]s, lets [`observe`] say what they mean, makes batch Jobs with [`manifest`], and talks to
//! the API server through [`requests`]. [`tidy`] lets go of pods that nobody looks after.

// The operators of times panic where these end, and what is computed with comes from outside.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use ayatori_controller::adapter;
use clap::Parser;

mod backend;
mod cache;
#[cfg(test)]
mod fixture;
mod manifest;
mod name;
mod observe;
mod requests;
mod tidy;
mod view;
mod watch;

/// Runs Ayatori Jobs as native batch/v1 Jobs of the cluster it runs in.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    adapter: adapter::Options,
    #[command(flatten)]
    kubernetes: backend::Options,
}

fn main() -> anyhow::Result<()> {
    let Arguments { adapter, kubernetes } = Arguments::parse();
    adapter.init_logs()?;
    let settings = adapter.settings();
    let make = async |client| Ok(backend::KubernetesBackend::new(&client, &kubernetes));
    adapter::block_on(adapter::run("kubernetes-adapter", adapter, settings, make))
}

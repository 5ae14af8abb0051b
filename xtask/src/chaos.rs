//! `cargo xtask chaos`: Jobs on both classes of the local cluster while everything around them is broken. The run itself
//! is the program `chaos` of `e2e`; here its ground is prepared.

use crate::{checkout, cluster, command, deploy, test};
use anyhow::Result;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many Jobs. At most three begin in each second.
    #[arg(long, default_value_t = 100)]
    jobs: u32,
    /// What decides on the Jobs and the faults, and on their order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the report there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // Before cargo may replace the file this process was started from.
    let xtask = std::env::current_exe()?;
    cluster::up(cluster::Mode::Full)?;
    deploy::run(&deploy::Args::default())?;
    test::build_mortal_adapters()?;
    let mut cargo = Command::new("cargo");
    let build = ["build", "--package", "ayatori-e2e", "--bin", "chaos"];
    command::run(cargo.current_dir(checkout::root()).args(build))?;
    let mut chaos = Command::new(checkout::target().join("debug/chaos"));
    chaos.envs(test::environment(xtask)?);
    chaos.args(["--jobs", &args.jobs.to_string(), "--seed", &args.seed.to_string()]);
    if let Some(file) = &args.json {
        chaos.arg("--json").arg(file);
    }
    let status = chaos.status()?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

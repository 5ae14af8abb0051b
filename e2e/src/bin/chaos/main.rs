//! Jobs under fire: many Jobs on both classes of a real cluster, while everything below and beside them is killed,
//! frozen, cut off and recreated, in an order that a seed gives. In the end the starts that the commands counted
//! themselves are held against what each Job says.
//!
//! `cargo xtask chaos` runs it on the local cluster, with adapter processes in place of the deployed adapters.

mod arena;
mod classes;
mod crew;
mod faults;
mod ground;
mod judge;
mod observer;
mod persist;
mod plan;
mod report;
mod starts;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

/// Run Jobs while everything around them is broken, and count what really started.
#[derive(Parser)]
struct Args {
    /// How many Jobs.
    #[arg(long)]
    jobs: u32,
    /// What decides on the Jobs and the faults, and on their order.
    #[arg(long)]
    seed: u64,
    /// Also write the report there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let plan = plan::Plan::from_seed(args.seed, args.jobs);
    let report = arena::run(&plan).await?;
    print!("{report}");
    if let Some(file) = &args.json {
        let text = serde_json::to_vec_pretty(&report)?;
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(if report.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

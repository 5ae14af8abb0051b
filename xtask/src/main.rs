//! The project's own commands, run as `cargo xtask COMMAND`: one file per command.

mod archive;
mod checkout;
mod cluster;
mod command;
mod crds;
mod deploy;
mod image;
mod programs;
mod progress;
mod test;
mod tool;
mod wait;

use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands", version)]
enum Xtask {
    /// The local cluster: a real Kubernetes on this machine, its state under target/cluster.
    Cluster(cluster::Args),
    /// Build the adapters' images as OCI archives under target/images.
    Image(image::Args),
    /// Write the CRDs from the Rust types, or check that the files are what the types say.
    Crds(crds::Args),
    /// Install the charts of this checkout with Helm.
    Deploy(deploy::Args),
    /// Run every test, from unit to end-to-end, and print one summary.
    Test(test::Args),
    /// Run one of the pinned programs (kubectl, helm, …), building it first where needed.
    Tool(tool::Args),
}

fn main() -> ExitCode {
    let done = match Xtask::parse() {
        Xtask::Cluster(args) => cluster::run(args),
        Xtask::Image(args) => image::run(&args),
        Xtask::Crds(args) => crds::run(&args),
        Xtask::Deploy(args) => deploy::run(&args),
        Xtask::Test(args) => test::run(&args),
        Xtask::Tool(args) => tool::run(&args),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

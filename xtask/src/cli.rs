//! The commands by name.

use crate::{bench, book, chaos, cluster, crds, demo, deploy, fuzz, image, release, test, tool};
use std::process::ExitCode;

#[derive(clap::Parser)]
#[command(name = "cargo xtask", about = "The project's own commands", version)]
pub(crate) enum Xtask {
    /// The local cluster: a real Kubernetes and a real OpenSandbox on this machine, its state under target/cluster.
    Cluster(cluster::Args),
    /// Build the adapters' images as OCI archives under target/images.
    Image(image::Args),
    /// Write the CRDs from the Rust types, or check that the files are what the types say.
    Crds(crds::Args),
    /// Install the charts of this checkout with Helm.
    Deploy(deploy::Args),
    /// Run one Job of every ending on the local cluster and tell its story; leaves the cluster running.
    Demo(demo::Args),
    /// Run Jobs while everything around them is killed, cut off and recreated, and count what really started.
    Chaos(chaos::Args),
    /// Measure speed and size beside the native Job controller, on a control plane of its own with a simulated node.
    Bench(bench::Args),
    /// Run every test, from unit to end-to-end, and print one summary.
    Test(test::Args),
    /// Put made-up inputs to everything that reads text from outside.
    Fuzz(fuzz::Args),
    /// Check every link of the documents and make a book of them.
    Book(book::Args),
    /// Collect everything a release publishes under target/release-VERSION; publish nothing.
    Release(release::Args),
    /// Run one of the pinned programs (kubectl, helm, …), building it first where needed.
    Tool(tool::Args),
}

impl Xtask {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Xtask::Cluster(args) => cluster::run(args),
            Xtask::Image(args) => image::run(&args),
            Xtask::Crds(args) => crds::run(&args),
            Xtask::Deploy(args) => deploy::run(&args),
            Xtask::Demo(args) => demo::run(&args),
            Xtask::Chaos(args) => chaos::run(&args),
            Xtask::Bench(args) => bench::run(&args),
            Xtask::Test(args) => test::run(&args),
            Xtask::Fuzz(args) => fuzz::run(&args),
            Xtask::Book(args) => book::run(&args),
            Xtask::Release(args) => release::run(&args),
            Xtask::Tool(args) => tool::run(&args),
        }
    }
}

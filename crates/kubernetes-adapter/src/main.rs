//! The adapter for Jobs that run as native batch/v1 Jobs of the cluster it runs in.

use ayatori_controller::adapter;
use ayatori_kubernetes_adapter::backend::{self, KubernetesBackend};
use clap::Parser;
use tikv_jemallocator::Jemalloc;

/// It gives back what thousands of Jobs took that came at once.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

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
    let make = async |client, telemetry| Ok(KubernetesBackend::new(&client, &kubernetes).telling(telemetry));
    adapter::block_on(adapter::run("kubernetes-adapter", adapter, settings, make))
}

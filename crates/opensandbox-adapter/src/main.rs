//! Runs Ayatori Jobs in OpenSandbox sandboxes.

use ayatori_controller::adapter;
use ayatori_opensandbox_adapter::backend;
use clap::Parser;
use tikv_jemallocator::Jemalloc;

/// It gives back what thousands of Jobs took that came at once.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Runs Ayatori Jobs in sandboxes of OpenSandbox servers.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    adapter: adapter::Options,
    #[command(flatten)]
    opensandbox: backend::Options,
}

fn main() -> anyhow::Result<()> {
    let Arguments { adapter, opensandbox } = Arguments::parse();
    adapter.init_logs()?;
    let settings = opensandbox.settings(adapter.settings());
    let make = async |client, telemetry| {
        Ok(backend::OpenSandboxBackend::new(&client, &opensandbox).telling(telemetry))
    };
    adapter::block_on(adapter::run("opensandbox-adapter", adapter, settings, make))
}

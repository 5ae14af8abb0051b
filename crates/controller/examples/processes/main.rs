//! An adapter that runs Jobs as processes of the machine it runs on. It is the example of
//! `docs/how-to/write-an-adapter.md`: small enough to be read in one go, and nothing to run in earnest.

use ayatori_controller::adapter;
use clap::Parser;

mod backend;
mod machine;

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    adapter: adapter::Options,
}

fn main() -> anyhow::Result<()> {
    let Arguments { adapter } = Arguments::parse();
    adapter.init_logs()?;
    let settings = adapter.settings();
    let make = async |_client, _telemetry| Ok(backend::ProcessBackend::new(machine::Machine::default()));
    adapter::block_on(adapter::run("process-adapter", adapter, settings, make))
}

//! How fast and how large the adapters are, beside the native Job controller on the same control plane. The node is
//! simulated: it says of every pod at once what its command says, so that what is measured is control and nothing else.
//!
//! `cargo xtask bench` prepares what this needs.

mod adapter;
mod arena;
mod audit;
mod budgets;
mod chronicle;
mod figures;
mod herd;
mod measure;
mod node;
mod peer;
mod plot;
mod process;
mod replay;
mod report;
mod setting;
mod stage;
mod store;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::{Parser, ValueEnum};

use figures::{Figures, Measurement};
use measure::Name;
use stage::Stage;

/// Measure the adapters beside the native Job controller.
#[derive(Parser)]
struct Args {
    /// What to measure; without a name, everything.
    names: Vec<Name>,
    /// What `cargo xtask bench` has prepared.
    #[arg(long)]
    stage: PathBuf,
    /// At most so many Jobs where a measurement would take more.
    #[arg(long)]
    jobs: Option<u32>,
    /// Add the figures to those of this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Keep the figures, all those of the file, in this folder, with the page and the plots that show them.
    #[arg(long)]
    publish: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let stage = Stage::read(&args.stage)?;
    let published = || args.publish.as_ref().map(|folder| folder.join(report::FIGURES));
    let file = args.json.or_else(published);
    let mut figures = match &file {
        Some(file) => Figures::read(file)?,
        None => Figures::default(),
    };
    let names = if args.names.is_empty() {
        Name::value_variants()
    } else {
        &args.names
    };
    for (index, name) in names.iter().enumerate() {
        eprintln!("{} of {}: {name}", index + 1, names.len());
        let begin = Instant::now();
        let (taken, setting) = (jiff::Timestamp::now(), setting::here(&stage, args.jobs)?);
        let outcome = name.measure(&stage, args.jobs).await;
        let outcome = outcome.with_context(|| format!("measuring {name}"))?;
        let measurement = Measurement {
            taken: taken.strftime("%Y-%m-%d %H:%M UTC").to_string(),
            seconds: begin.elapsed().as_secs_f64().round(),
            setting,
            figures: outcome.figures,
            curves: outcome.curves,
        };
        print!("{}", report::lines(&measurement));
        figures.0.insert(name.to_string(), measurement);
        // What was measured stays, whatever becomes of the rest.
        if let Some(file) = &file {
            figures.write(file)?;
        }
    }
    print!("{}", report::table(&figures));
    if let Some(folder) = &args.publish {
        report::publish(&figures, folder)?;
    }
    Ok(())
}

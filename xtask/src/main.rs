//! The project's own commands, run as `cargo xtask COMMAND`: one file per command.

#[cfg(test)]
mod alert_rules;
mod api_reference;
mod archive;
mod bench;
mod book;
mod chaos;
mod checkout;
mod cli;
mod cluster;
mod command;
mod coverage;
mod crds;
mod demo;
mod deploy;
mod fuzz;
mod image;
mod programs;
mod progress;
mod release;
mod test;
mod tool;
mod wait;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::Xtask::parse().run().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

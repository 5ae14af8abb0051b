//! `cargo xtask tool NAME ARGS…`: one of the pinned programs, with the local cluster as its default.

use crate::{cluster, programs, programs::Program};
use anyhow::{Context, Result};
use std::process::{Command, ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program.
    name: Program,
    /// What to pass on to it.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut tool = Command::new(programs::path(args.name)?);
    tool.args(&args.args);
    let kubeconfig = cluster::kubeconfig();
    if std::env::var_os("KUBECONFIG").is_none() && kubeconfig.is_file() {
        tool.env("KUBECONFIG", kubeconfig);
    }
    let status = tool
        .status()
        .with_context(|| format!("cannot run {}", args.name.name()))?;
    // A program ended by a signal has no code; any failure will do.
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

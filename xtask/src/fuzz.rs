//! `cargo xtask fuzz`: puts inputs that a fuzzer makes up to everything that reads text from outside.
//!
//! The fuzzer is LLVM's, guided by what the crates of this workspace execute. Their own flags are given to the compiler
//! by `fuzz/instrumented`, so that a stable toolchain does, and dependencies are those of every other build.

use crate::{checkout, command};
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// For how many seconds each target is tried.
    #[arg(long, default_value_t = Args::default().seconds, conflicts_with = "runs")]
    seconds: u32,
    /// How many inputs each target is given.
    #[arg(long)]
    runs: Option<u64>,
    /// Only these targets.
    targets: Vec<String>,
}

impl Default for Args {
    /// As long as it takes to try again what was ever found, and a little more.
    fn default() -> Self {
        Args {
            seconds: 5,
            runs: None,
            targets: vec![],
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let known = targets()?;
    if let Some(unknown) = args.targets.iter().find(|target| !known.contains(*target)) {
        let known = Vec::from_iter(known).join(", ");
        bail!("there is no target {unknown}; there are {known}");
    }
    let fuzzer = build()?;
    let asked = |target: &&String| args.targets.is_empty() || args.targets.contains(*target);
    for target in known.iter().filter(asked) {
        try_target(target, args, &fuzzer)
            .with_context(|| format!("{target}: the input that fails was kept in the file named above"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Each has inputs that are kept.
fn targets() -> Result<BTreeSet<String>> {
    let folder = corpus();
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn corpus() -> PathBuf {
    checkout::root().join("fuzz/corpus")
}

fn build() -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(checkout::root())
        .env(
            "RUSTC_WORKSPACE_WRAPPER",
            checkout::root().join("fuzz/instrumented"),
        )
        .args([
            "build",
            "--package",
            "ayatori-fuzz",
            "--features",
            "engine",
            "--bin",
            "fuzz",
        ])
        .arg("--target-dir")
        .arg(checkout::target());
    command::run(&mut cargo)?;
    Ok(checkout::target().join("debug/fuzz"))
}

/// What is found anew is kept under `target/fuzz`, and tried first the next time.
fn try_target(target: &str, args: &Args, fuzzer: &Path) -> Result<()> {
    let kept = checkout::target().join("fuzz");
    let found = kept.join("found").join(target);
    fs::create_dir_all(&found).with_context(|| format!("cannot make {}", found.display()))?;
    let bound = match args.runs {
        Some(runs) => format!("-runs={runs}"),
        None => format!("-max_total_time={}", args.seconds),
    };
    let failing = kept.join(format!("{target}-"));
    println!("\n{target}:");
    let mut fuzz = Command::new(fuzzer);
    fuzz.env("AYATORI_FUZZ_TARGET", target)
        .args([
            &bound,
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
        ])
        // Lines for what is new are for those who watch.
        .args(["-verbosity=0", "-print_funcs=0"])
        .arg(format!("-artifact_prefix={}", failing.display()))
        .args([found, corpus().join(target)]);
    command::run(&mut fuzz)
}

//! `cargo xtask bench`: how fast and how large, beside the native Job controller. The measurements are the program
//! `bench` of `e2e`, which also starts and ends the control plane they are made on; here its ground is prepared.

use crate::{
    checkout,
    cluster::LaidOut,
    command,
    deploy::NAMESPACE,
    image::ADAPTERS,
    programs::{self, Program},
};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The profile of the program that measures: optimised, but not for as long as what is measured.
const OWN_PROFILE: &str = "image";
/// The adapters run as processes beside the cluster and not in it.
const NO_PODS: &str = "--set=replicaCount=0";

/// `cargo xtask bench --help` and the page `docs/reference/performance.md` say what each measures.
const NAMES: [&str; 9] = [
    "throughput",
    "latency",
    "sandbox",
    "idle",
    "memory",
    "restart",
    "ttl",
    "fairness",
    "growth",
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to measure; without a name, everything.
    #[arg(value_parser = NAMES)]
    names: Vec<String>,
    /// Add the figures to those of this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// At most so many Jobs where a measurement would take more: quick, and no figures to publish.
    #[arg(long)]
    jobs: Option<u32>,
    /// Cargo's profile of the adapters; `release` is what is published.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Keep the figures, with --json all those of its file, in docs/reference/performance.json, and write the page and
    /// the plots that show them.
    #[arg(long)]
    publish: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let folder = checkout::target().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let lock = fs::File::create(folder.join("lock"))?;
    if lock.try_lock().is_err() {
        eprintln!("waiting for another bench …");
        lock.lock()?;
    }
    let adapters = ADAPTERS.map(|adapter| adapter.package);
    build(&args.profile, &adapters)?;
    build(OWN_PROFILE, &["ayatori-e2e"])?;
    let stage = folder.join("stage.json");
    let described = serde_json::to_vec_pretty(&describe(&folder, &args.profile)?)?;
    fs::write(&stage, described).with_context(|| format!("cannot write {}", stage.display()))?;

    let mut bench = Command::new(built(OWN_PROFILE, "bench"));
    bench.arg("--stage").arg(&stage).args(&args.names);
    if let Some(jobs) = args.jobs {
        bench.args(["--jobs", &jobs.to_string()]);
    }
    if let Some(file) = &args.json {
        bench.arg("--json").arg(file);
    }
    if args.publish {
        bench
            .arg("--publish")
            .arg(checkout::root().join("docs/reference"));
    }
    let status = bench.status().context("cannot run the measurements")?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn build(profile: &str, packages: &[&str]) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(checkout::root());
    cargo.args(["build", "--bins", "--profile", profile]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    command::run(cargo.arg("--target-dir").arg(checkout::target()))
}

fn built(profile: &str, program: &str) -> PathBuf {
    checkout::target().join(profile).join(program)
}

/// Everything the measurements are made with.
fn describe(folder: &Path, profile: &str) -> Result<Value> {
    let mut stage = LaidOut::within(&folder.join("cluster"), &audit())?.described()?;
    let manifests = folder.join("manifests.yaml");
    fs::write(&manifests, rendered()?).with_context(|| format!("cannot write {}", manifests.display()))?;
    let adapters = ADAPTERS.map(|adapter| (adapter.chart, built(profile, adapter.package)));
    let more = [
        ("adapters", json!(BTreeMap::from(adapters))),
        ("profile", json!(profile)),
        ("manifests", json!(manifests)),
        ("kubectl", json!(programs::path(Program::Kubectl)?)),
        ("revision", json!(revision())),
    ];
    if let Some(fields) = stage.as_object_mut() {
        fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
    }
    Ok(stage)
}

/// Who asked for what: only of those whose requests are counted, since it takes time to write down.
fn audit() -> Value {
    let counted = [
        format!("system:serviceaccounts:{NAMESPACE}"),
        "system:serviceaccounts:kube-system".into(),
    ];
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "userGroups": counted}, {"level": "None"}],
    })
}

/// What the charts install, with the policies they have by default.
fn rendered() -> Result<String> {
    let charts = std::iter::once(("execution-api", None));
    let charts = charts.chain(ADAPTERS.iter().map(|adapter| (adapter.chart, Some(NO_PODS))));
    charts
        .map(|(chart, value)| {
            let mut helm = Command::new(programs::path(Program::Helm)?);
            helm.args(["template", chart, "--namespace", NAMESPACE]);
            helm.arg(checkout::root().join("charts").join(chart));
            command::output(helm.args(value))
        })
        .collect()
}

/// The commit that is measured, where there is one.
fn revision() -> Option<String> {
    let mut git = Command::new("git");
    git.current_dir(checkout::root());
    let said = command::output(git.args(["rev-parse", "--short=12", "HEAD"])).ok()?;
    Some(said.trim().to_owned())
}

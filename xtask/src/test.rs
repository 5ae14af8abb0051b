//! `cargo xtask test`: every test, from the least powerful up, and one summary at the very end.

use crate::{
    checkout, cluster, command, coverage, deploy, fuzz,
    programs::{self, Program},
};
use anyhow::{Context, Result, anyhow, bail};
use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// What is tested without a cluster.
const PACKAGES: [&str; 6] = [
    "ayatori-core",
    "ayatori-controller",
    SANDBOXES,
    "ayatori-world",
    "ayatori-fuzz",
    "xtask",
];

/// Of this, the tests with the name below need a cluster. They have a target of their own.
const SANDBOXES: &str = "ayatori-opensandbox-adapter";
const ON_A_SERVER: (&str, &str) = ("conformance_real", "of_a_real_server");

/// What is tested on its own without a cluster, and with its `tests/` on one.
const ON_A_CLUSTER: &str = "ayatori-kubernetes-adapter";

/// The feature with the searches that take longest.
const WIDE: &str = "ayatori-world/wide";

/// Of `e2e/tests`, this one needs no cluster, but the program that asks Kubernetes' own code, which lies in `e2e/cluster`.
const DIFFERENTIAL: &str = "differential";

/// What is also built with fault hooks, and the variable that tells the tests where it lies.
const MORTALS: [(&str, &str); 2] = [
    ("ayatori-kubernetes-adapter", "AYATORI_MORTAL_KUBERNETES_ADAPTER"),
    (
        "ayatori-opensandbox-adapter",
        "AYATORI_MORTAL_OPENSANDBOX_ADAPTER",
    ),
];

/// Tests end to end whose adapters and backends are their own and that mostly wait: they run beside the others.
const BESIDE: [&str; 2] = ["execd_mode", "hostile_server"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The soak tests too: long waits, long fuzzing, wide searches (sets AYATORI_TEST_ALL=1).
    #[arg(long)]
    all: bool,
    /// Leave the cluster running, also if this command has started it.
    #[arg(long)]
    keep_cluster: bool,
    /// Only tests whose name contains this.
    filter: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // Before cargo may replace the file this process was started from.
    let xtask = std::env::current_exe().context("cannot tell where xtask lies")?;
    let mut summary = Summary::default();
    summary.step("programs for tests", || {
        programs::ensure(&Program::TESTS)?;
        build_differential()
    });
    summary.tests("unit and conformance", || {
        let (_, needs_a_server) = ON_A_SERVER;
        let wide: &[&str] = if args.all { &["--features", WIDE] } else { &[] };
        let others = [wide, &["--", "--skip", needs_a_server]].concat();
        let mut ran = cargo_test(args, &PACKAGES, &others, &[])?;
        ran.add(cargo_test(args, &[ON_A_CLUSTER], &["--lib", "--bins"], &[])?);
        let asked = [("AYATORI_DIFFERENTIAL", differential().display().to_string())];
        ran.add(cargo_test(
            args,
            &["ayatori-e2e"],
            &["--test", DIFFERENTIAL],
            &asked,
        )?);
        Ok(ran)
    });
    if args.filter.is_none() {
        summary.step("made-up inputs", || fuzz::run(&fuzz::Args::default()).map(drop));
    }

    let ran_before = cluster::is_running()?;
    let ready = summary.step("cluster up", || cluster::up(cluster::Mode::Full))
        && summary.step("images and charts", || {
            deploy::run(&deploy::Args::default()).map(drop)
        })
        && summary.step("adapters with fault hooks", build_mortal_adapters);
    if ready {
        let environment = environment(xtask)?;
        summary.tests("conformance on the cluster", || {
            let mut ran = cargo_test(args, &[ON_A_CLUSTER], &["--test", "*"], &environment)?;
            let (target, _) = ON_A_SERVER;
            ran.add(cargo_test(args, &[SANDBOXES], &["--test", target], &environment)?);
            Ok(ran)
        });
        summary.tests("end to end", || end_to_end(args, &environment));
    } else {
        summary.step("end to end", || bail!("impossible without the steps before"));
    }
    if args.filter.is_none() {
        let passed = std::mem::take(&mut summary.passed);
        summary.step("coverage table", || coverage::check(&passed));
    }
    if !ran_before && !args.keep_cluster && cluster::is_running()? {
        summary.step("cluster down", cluster::down);
    }
    print!("{summary}");
    Ok(if summary.counts().failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// An adapter that can be told to die at any of its writes; never in an image.
fn mortal(package: &str) -> PathBuf {
    checkout::target().join("fault-injection").join(package)
}

/// What tests on the local cluster are told.
pub(crate) fn environment(xtask: PathBuf) -> Result<Vec<(&'static str, String)>> {
    let told = [
        ("KUBECONFIG", cluster::kubeconfig()),
        ("AYATORI_CLUSTER", checkout::cluster_state()),
        ("AYATORI_HELM", programs::path(Program::Helm)?),
        ("AYATORI_KUBECTL", programs::path(Program::Kubectl)?),
        ("AYATORI_PYTHON", programs::path(Program::KubernetesClient)?),
        ("AYATORI_PROMETHEUS", programs::path(Program::Prometheus)?),
        ("AYATORI_XTASK", xtask),
    ];
    let mortals = MORTALS.map(|(package, variable)| (variable, mortal(package)));
    let all = told.into_iter().chain(mortals);
    Ok(all
        .map(|(name, path)| (name, path.display().to_string()))
        .collect())
}

/// Built beside everything else, to share what they are built from, and then put where no other build replaces them.
pub(crate) fn build_mortal_adapters() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(checkout::root()).arg("build");
    for (package, _) in MORTALS {
        let feature = format!("{package}/fault-injection");
        cargo.args(["--package", package, "--features", &feature]);
    }
    command::run(cargo.arg("--target-dir").arg(checkout::target()))?;
    for (package, _) in MORTALS {
        let kept = mortal(package);
        kept.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::copy(checkout::target().join("debug").join(package), &kept)
            .with_context(|| format!("cannot write {}", kept.display()))?;
    }
    Ok(())
}

/// What asks Kubernetes' own code.
fn differential() -> PathBuf {
    checkout::target().join(DIFFERENTIAL)
}

/// Each time: Go keeps what it is built from.
fn build_differential() -> Result<()> {
    let mut go = Command::new("go");
    go.current_dir(checkout::root().join("e2e/cluster"))
        .env("CGO_ENABLED", "0")
        .args(["build", "-trimpath", "-buildvcs=false", "-o"])
        .arg(differential())
        .arg(format!("./{DIFFERENTIAL}"));
    command::run(&mut go)
}

/// Runs the tests end to end, in the order of their names, but for those [`BESIDE`] the others. What disturbs the whole
/// cluster is called `zz_` and comes when nothing else runs.
fn end_to_end(args: &Args, environment: &[(&str, String)]) -> Result<Ran> {
    let run = |targets: Vec<String>, more: &[&str], environment: &[(&str, String)]| {
        let named = targets.iter().flat_map(|target| ["--test", target]);
        let all: Vec<_> = more.iter().copied().chain(named).collect();
        cargo_test(args, &["ayatori-e2e"], &all, environment)
    };
    let (disturbing, calm): (Vec<_>, Vec<_>) = end_to_end_targets()?
        .into_iter()
        .partition(|target| target.starts_with("zz_"));
    let (beside, others) = calm
        .into_iter()
        .partition(|target| BESIDE.contains(&target.as_str()));
    let (ran, beside) = std::thread::scope(|scope| {
        // They have as long as the others take, and leave them the machine.
        let gently = [environment, &[("RUST_TEST_THREADS", "3".to_owned())]].concat();
        let beside = scope.spawn(move || run(beside, &[], &gently));
        (run(others, &["--lib", "--bins"], environment), beside.join())
    });
    let mut ran = ran?;
    ran.add(beside.map_err(|_| anyhow!("a thread panicked"))??);
    ran.add(run(disturbing, &[], environment)?);
    Ok(ran)
}

/// The targets in `e2e/tests` that need a cluster.
fn end_to_end_targets() -> Result<BTreeSet<String>> {
    let folder = checkout::root().join("e2e/tests");
    let entries = folder
        .read_dir()
        .with_context(|| format!("cannot list {}", folder.display()))?;
    let stem = |entry: std::io::Result<DirEntry>| {
        let path = entry?.path();
        let name = path.file_stem().context("a file without a name")?;
        Ok(name.to_string_lossy().into_owned())
    };
    let mut targets: BTreeSet<String> = entries.map(stem).collect::<Result<_>>()?;
    targets.remove(DIFFERENTIAL);
    Ok(targets)
}

/// Runs cargo's tests, showing what they print.
fn cargo_test(
    args: &Args,
    packages: &[&str],
    targets: &[&str],
    environment: &[(&str, String)],
) -> Result<Ran> {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(checkout::root())
        .args(["test", "--no-fail-fast"]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    cargo.args(targets).args(&args.filter);
    if !environment.is_empty() {
        // Tests on a cluster wait more than they work.
        cargo.env("RUST_TEST_THREADS", "6");
    }
    cargo.envs(environment.iter().map(|(name, value)| (name, value)));
    if args.all {
        cargo.env("AYATORI_TEST_ALL", "1");
    }
    let mut child = cargo
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo test")?;
    let mut ran = Ran::default();
    for line in child
        .stdout
        .take()
        .map(BufReader::new)
        .into_iter()
        .flat_map(BufRead::lines)
    {
        let line = line?;
        println!("{line}");
        ran.counts.add(&Counts::of_line(&line));
        ran.passed.extend(coverage::passed(&line).map(str::to_owned));
    }
    // A build that fails, or a test process that dies, has no result line to count.
    if !child.wait()?.success() && ran.counts.failed == 0 {
        ran.counts.failed = 1;
    }
    Ok(ran)
}

/// What tests came to.
#[derive(Default)]
struct Ran {
    counts: Counts,
    /// The names of those that passed.
    passed: BTreeSet<String>,
}

impl Ran {
    fn add(&mut self, more: Ran) {
        self.counts.add(&more.counts);
        self.passed.extend(more.passed);
    }
}

/// How many tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
}

impl Counts {
    fn add(&mut self, more: &Counts) {
        self.passed += more.passed;
        self.failed += more.failed;
    }

    /// Reads `test result: ok. 5 passed; 0 failed; …`; any other line counts nothing.
    fn of_line(line: &str) -> Counts {
        let Some(result) = line.strip_prefix("test result: ") else {
            return Counts::default();
        };
        let count = |what: &str| {
            let words: Vec<&str> = result.split([' ', ';']).collect();
            let pair = words.windows(2).find(|pair| pair.last() == Some(&what));
            pair.and_then(|pair| pair.first()?.parse().ok()).unwrap_or(0)
        };
        Counts {
            passed: count("passed"),
            failed: count("failed"),
        }
    }
}

/// What each stage came to.
#[derive(Default)]
struct Summary {
    stages: Vec<Stage>,
    /// The names of the tests that passed.
    passed: BTreeSet<String>,
}

struct Stage {
    name: &'static str,
    took: Duration,
    outcome: Outcome,
}

enum Outcome {
    Tests(Counts),
    Done,
    Broken,
}

impl Summary {
    fn tests(&mut self, name: &'static str, run: impl FnOnce() -> Result<Ran>) {
        let mut passed = BTreeSet::new();
        self.stage(name, || {
            let ran = run()?;
            passed = ran.passed;
            Ok(Outcome::Tests(ran.counts))
        });
        self.passed.extend(passed);
    }

    /// A stage that is no test; says whether it succeeded.
    fn step(&mut self, name: &'static str, run: impl FnOnce() -> Result<()>) -> bool {
        self.stage(name, || run().map(|()| Outcome::Done))
    }

    fn stage(&mut self, name: &'static str, run: impl FnOnce() -> Result<Outcome>) -> bool {
        println!("\n== {name}");
        let begin = Instant::now();
        let outcome = run().unwrap_or_else(|error| {
            println!("error: {error:#}");
            Outcome::Broken
        });
        let worked = !matches!(outcome, Outcome::Broken);
        self.stages.push(Stage {
            name,
            took: begin.elapsed(),
            outcome,
        });
        worked
    }

    fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for stage in &self.stages {
            sum.add(&match stage.outcome {
                Outcome::Tests(counts) => counts,
                Outcome::Done => Counts::default(),
                Outcome::Broken => Counts { passed: 0, failed: 1 },
            });
        }
        sum
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            to,
            "\n{:27} {:>7} {:>8} {:>8}",
            "STAGE", "SECONDS", "PASSED", "FAILED"
        )?;
        for Stage { name, took, outcome } in &self.stages {
            let (passed, failed) = match outcome {
                Outcome::Tests(counts) => (counts.passed.to_string(), counts.failed.to_string()),
                Outcome::Done => ("done".into(), String::new()),
                Outcome::Broken => (String::new(), "broken".into()),
            };
            let line = format!("{name:27} {:>7} {passed:>8} {failed:>8}", took.as_secs());
            writeln!(to, "{}", line.trim_end())?;
        }
        let counts = self.counts();
        writeln!(to, "\n{} passed, {} failed", counts.passed, counts.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_result_line_alone() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 4 filtered out; finished in 0.01s";
        assert_eq!(
            Counts::of_line(line),
            Counts {
                passed: 12,
                failed: 3
            }
        );
        assert_eq!(
            Counts::of_line("test 9 passed; 9 failed ... ok"),
            Counts::default()
        );
    }

    #[test]
    fn the_last_line_is_the_plain_count_and_a_broken_stage_is_a_failure() {
        let mut summary = Summary::default();
        let counts = Counts { passed: 7, failed: 0 };
        summary.tests("unit", || {
            Ok(Ran {
                counts,
                ..Ran::default()
            })
        });
        summary.step("cluster up", || Ok(()));
        summary.step("end to end", || bail!("no"));
        assert_eq!(summary.to_string().lines().last(), Some("7 passed, 1 failed"));
        assert_eq!(summary.counts().failed, 1);
    }

    #[test]
    fn what_runs_beside_the_others_is_there() -> Result<()> {
        let targets = end_to_end_targets()?;
        assert!(
            BESIDE.iter().all(|target| targets.contains(*target)),
            "{targets:?}"
        );
        Ok(())
    }
}

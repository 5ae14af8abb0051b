//! `cargo xtask demo`: from a bare checkout to Jobs that ran, with the story of each.

use crate::{
    checkout, cluster, command, deploy,
    programs::{self, Program},
    progress::Progress,
    wait,
};
use anyhow::{Context, Result, ensure};
use ayatori_core::conditions::{ACCEPTED, FINISHED, SCHEDULED, STARTED, find, is_true};
use ayatori_core::job::Job;
use serde::Deserialize;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

const NAMESPACE: &str = "demo";
/// Says on a Job how it should end.
const EXPECT: &str = "demo.ayatori.ddupan.top/expect";
/// How long all Jobs together may take.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use the cluster of $KUBECONFIG, with the charts installed already (`cargo xtask deploy
    /// --use-current-context`), instead of a local one.
    #[arg(long)]
    use_current_context: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let kubeconfig = if args.use_current_context {
        let named = std::env::var_os("KUBECONFIG").context("--use-current-context needs $KUBECONFIG")?;
        PathBuf::from(named)
    } else {
        cluster::up(cluster::Mode::Full)?;
        deploy::run(&deploy::Args::default())?;
        cluster::kubeconfig()
    };
    let demo = Demo {
        kubectl: programs::path(Program::Kubectl)?,
        kubeconfig,
    };
    demo.prepare()?;
    let finished = demo.play()?;
    let wrong = demo.tell(&finished);
    demo.farewell(args.use_current_context);
    Ok(if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

struct Demo {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Job>,
}

impl Demo {
    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        command::output(
            Command::new(&self.kubectl)
                .env("KUBECONFIG", &self.kubeconfig)
                .args(arguments),
        )
    }

    fn example(name: &str) -> String {
        checkout::root().join("examples").join(name).display().to_string()
    }

    /// A namespace that may use the class, and no Jobs of an earlier demo.
    fn prepare(&self) -> Result<()> {
        eprintln!("creating namespace {NAMESPACE} and JobClass demo …");
        let yaml = self.kubectl(&["create", "namespace", NAMESPACE, "--dry-run=client", "-o=yaml"])?;
        let apply = ["apply", "--server-side", "--filename=-"];
        let mut kubectl = Command::new(&self.kubectl);
        command::output_with_input(
            kubectl.env("KUBECONFIG", &self.kubeconfig).args(apply),
            yaml.as_bytes(),
        )?;
        self.kubectl(&[
            "label",
            "--overwrite",
            "namespace",
            NAMESPACE,
            "demo.ayatori.ddupan.top/allowed=true",
        ])?;
        self.kubectl(&[
            "--namespace",
            NAMESPACE,
            "delete",
            "ajobs",
            "--all",
            "--timeout=60s",
        ])?;
        self.kubectl(&["apply", "--filename", &Self::example("class.yaml")])?;
        self.kubectl(&[
            "annotate",
            "--overwrite",
            "namespace",
            NAMESPACE,
            "execution.ayatori.ddupan.top/default-job-class=demo",
        ])?;
        self.kubectl(&["wait", "--for=condition=Ready", "jobclass/demo", "--timeout=30s"])?;
        Ok(())
    }

    /// Creates the Jobs, cancels the one that wants it, and returns each as it was last seen.
    fn play(&self) -> Result<Vec<Job>> {
        self.kubectl(&[
            "--namespace",
            NAMESPACE,
            "create",
            "--filename",
            &Self::example("jobs.yaml"),
        ])?;
        self.ask_for_too_much()?;
        let mut seen = self.jobs()?;
        ensure!(!seen.is_empty(), "no Job was created");
        let mut progress = Progress::start("Jobs", seen.len() as u64);
        let mut done = Vec::<String>::new();
        let mut cancelled = false;
        let played = wait::until("every Job has come to its end", PATIENCE, || {
            let now = self.jobs()?;
            for job in &mut seen {
                match now.iter().find(|j| j.metadata.uid == job.metadata.uid) {
                    Some(current) => *job = current.clone(),
                    None => job.metadata.deletion_timestamp = Some(deleted()),
                }
                if name(job) == "cancelled" && holds(job, STARTED) && !cancelled {
                    let patch = r#"{"spec":{"cancelRequested":true}}"#;
                    self.kubectl(&[
                        "--namespace",
                        NAMESPACE,
                        "patch",
                        "ajob/cancelled",
                        "--type=merge",
                        "--patch",
                        patch,
                    ])?;
                    cancelled = true;
                }
                if settled(job) && !done.contains(&name(job)) {
                    done.push(name(job));
                    progress.step(&name(job));
                }
            }
            Ok(done.len() == seen.len())
        });
        progress.finish();
        if let Err(error) = played {
            eprintln!("{error:#}");
        }
        Ok(seen)
    }

    /// A Job beyond its class's limits: refused at creation, in words.
    fn ask_for_too_much(&self) -> Result<()> {
        let file = Self::example("too-greedy.yaml");
        match self.kubectl(&["--namespace", NAMESPACE, "create", "--filename", &file]) {
            // Without the admission policies the controller refuses it, as one of the Jobs.
            Ok(_) => Ok(()),
            Err(refusal) if refusal.to_string().contains("ResourcesOutOfRange") => {
                println!("\ntoo-greedy, refused by the API server:\n  {refusal}");
                Ok(())
            }
            Err(other) => Err(other),
        }
    }

    fn jobs(&self) -> Result<Vec<Job>> {
        let json = self.kubectl(&["--namespace", NAMESPACE, "get", "ajobs", "--output=json"])?;
        let list: List = serde_json::from_str(&json).context("what kubectl printed are no Jobs")?;
        Ok(list.items)
    }

    /// Prints every Job's story and returns how many ended otherwise than they should.
    fn tell(&self, jobs: &[Job]) -> usize {
        let mut wrong = 0;
        for job in jobs {
            println!("\n{}", name(job));
            let status = job.status.clone().unwrap_or_default();
            for type_ in [ACCEPTED, SCHEDULED, STARTED, FINISHED] {
                if let Some(c) = find(&status.conditions, type_) {
                    let at = c.last_transition_time.0;
                    println!("  {at}  {type_:9} {:5}  {}: {}", c.status, c.reason, c.message);
                }
            }
            let (is, should) = (ending(job), expected(job));
            let verdict = if is == should { "as expected" } else { "WRONG" };
            println!("  => {is}  ({verdict})");
            if is != should {
                wrong += 1;
                println!("     expected: {should}");
            }
        }
        println!("\n{} Jobs, {wrong} with another end than expected", jobs.len());
        wrong
    }

    fn farewell(&self, current_context: bool) {
        if !current_context {
            println!(
                "\nThe cluster is still up. To look around:\n  export KUBECONFIG={}",
                self.kubeconfig.display()
            );
        }
        println!(
            "  kubectl -n {NAMESPACE} get ajobs -o wide\n  kubectl -n {NAMESPACE} describe ajob exits-3"
        );
        if !current_context {
            println!(
                "(`cargo xtask tool kubectl …` is a kubectl that fits.) To stop it:\n  cargo xtask cluster down"
            );
        }
    }
}

fn name(job: &Job) -> String {
    job.metadata.name.clone().unwrap_or_default()
}

fn holds(job: &Job, type_: &str) -> bool {
    job.status.as_ref().is_some_and(|s| is_true(&s.conditions, type_))
}

fn expected(job: &Job) -> String {
    job.metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(EXPECT))
        .cloned()
        .unwrap_or_default()
}

fn deleted() -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::now())
}

fn is_gone(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

/// Nothing more is expected to happen to it.
fn settled(job: &Job) -> bool {
    let refused = job
        .status
        .as_ref()
        .and_then(|s| find(&s.conditions, ACCEPTED))
        .is_some_and(|c| c.status == "False");
    if expected(job).ends_with("gone") {
        is_gone(job)
    } else {
        refused || holds(job, FINISHED)
    }
}

/// How the API says it ended, in the words of the annotation.
fn ending(job: &Job) -> String {
    let Some(status) = &job.status else {
        return "nothing".to_owned();
    };
    let mut words = match (&status.result, find(&status.conditions, ACCEPTED)) {
        (Some(result), _) => {
            let code = result
                .exit_code
                .map(|code| format!(", {code}"))
                .unwrap_or_default();
            format!("{:?}, {}{code}", result.outcome, result.reason)
        }
        (None, Some(c)) if c.status == "False" => format!("Rejected, {}", c.reason),
        (None, _) => status
            .state
            .map_or_else(|| "nothing".to_owned(), |state| format!("{state:?}")),
    };
    if is_gone(job) {
        words.push_str(", then gone");
    }
    words
}

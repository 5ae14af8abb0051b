//! `cargo xtask demo`: from a bare checkout to Jobs that ran, with the story of each. The same Jobs run on every class,
//! and have to end alike.

mod sandboxed;
mod verdict;

use crate::{
    checkout, cluster, command, deploy,
    programs::{self, Program},
    progress::Progress,
    wait,
};
use anyhow::{Context, Result, ensure};
use ayatori_core::conditions::{ACCEPTED, FINISHED, SCHEDULED, STARTED, find, is_true};
use ayatori_core::job::Job;
use sandboxed::{KeySecret, OpenSandbox};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;
use verdict::{Ending, Row, expected, is_gone, table};

/// The Jobs of each class are in a namespace whose default it is, so that one manifest serves all.
const KUBERNETES: Stage = Stage {
    namespace: "demo",
    class: "demo",
};
const OPENSANDBOX: Stage = Stage {
    namespace: "demo-sandboxed",
    class: "sandboxed",
};
/// The Job that is asked to stop.
const CANCELLED: &str = "cancelled";
/// What to look at afterwards.
const LOOK: &str = "  kubectl get ajobs --all-namespaces -o wide\n  kubectl -n demo describe ajob exits-3";
/// How long all Jobs together may take.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use the cluster of $KUBECONFIG, with the charts installed already (`cargo xtask deploy
    /// --use-current-context`), instead of a local one.
    #[arg(long)]
    use_current_context: bool,
    /// Then run the Jobs in sandboxes, too: of the server that the files `endpoint`, `ca.pem` and `api-key` of this
    /// folder describe, as pods reach it.
    #[arg(long, value_name = "FOLDER", requires = "use_current_context")]
    opensandbox: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (kubeconfig, server) = if args.use_current_context {
        let named = std::env::var_os("KUBECONFIG").context("--use-current-context needs $KUBECONFIG")?;
        (PathBuf::from(named), args.opensandbox.clone())
    } else {
        cluster::up(cluster::Mode::Full)?;
        deploy::run(&deploy::Args::default())?;
        (cluster::kubeconfig(), Some(cluster::opensandbox()))
    };
    let demo = Demo {
        kubectl: programs::path(Program::Kubectl)?,
        kubeconfig,
    };
    let mut stages = vec![KUBERNETES];
    let class = Demo::example("class.yaml");
    let class =
        std::fs::read_to_string(&class).with_context(|| format!("cannot read {}", class.display()))?;
    demo.offer(&class, KUBERNETES)?;
    let mut key = None;
    if let Some(server) = server.map(OpenSandbox::described_in) {
        let (objects, secret) = server.put_into(&Demo::example("sandboxed-class.yaml"))?;
        demo.store_key(&server, &secret)?;
        demo.offer(&objects, OPENSANDBOX)?;
        stages.push(OPENSANDBOX);
        key = Some(secret);
    }
    let wrong = demo.show(&stages)?;
    if args.use_current_context {
        let remove = removal(&stages, key.as_ref()).join("\n  ");
        println!("\nTo look around:\n{LOOK}\nTo remove what this has created:\n  {remove}");
    } else {
        println!(
            "\nThe cluster is still up. To look around:\n  export KUBECONFIG={}\n{LOOK}\n\
             (`cargo xtask tool kubectl …` is a kubectl that fits.) To stop it:\n  cargo xtask cluster down",
            demo.kubeconfig.display()
        );
    }
    Ok(if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A class, and the namespace whose Jobs run on it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stage {
    namespace: &'static str,
    class: &'static str,
}

/// A Job as it was last seen.
struct Player {
    stage: Stage,
    job: Job,
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
    fn command(&self) -> Command {
        let mut kubectl = Command::new(&self.kubectl);
        kubectl.env("KUBECONFIG", &self.kubeconfig);
        kubectl
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        command::output(self.command().args(arguments))
    }

    fn kubectl_in(&self, stage: Stage, arguments: &[&str]) -> Result<String> {
        self.kubectl(&[&["--namespace", stage.namespace], arguments].concat())
    }

    fn apply(&self, yaml: &str) -> Result<()> {
        let apply = ["apply", "--server-side", "--force-conflicts", "--filename=-"];
        command::output_with_input(self.command().args(apply), yaml.as_bytes()).map(drop)
    }

    fn example(name: &str) -> PathBuf {
        checkout::root().join("examples").join(name)
    }

    /// Offers a class, in a namespace that may use it and has no Jobs of an earlier demo.
    fn offer(&self, objects: &str, stage: Stage) -> Result<()> {
        let Stage { namespace, class } = stage;
        eprintln!("creating namespace {namespace} and JobClass {class} …");
        let default = format!("execution.ayatori.ddupan.top/default-job-class={class}");
        self.apply(&self.kubectl(&["create", "namespace", namespace, "--dry-run=client", "-o=yaml"])?)?;
        let allowed = "demo.ayatori.ddupan.top/allowed=true";
        self.kubectl(&["label", "--overwrite", "namespace", namespace, allowed])?;
        self.kubectl_in(stage, &["delete", "ajobs", "--all", "--timeout=60s"])?;
        self.apply(objects)?;
        self.kubectl(&["annotate", "--overwrite", "namespace", namespace, &default])?;
        let class = format!("jobclass/{class}");
        self.kubectl(&["wait", "--for=condition=Ready", &class, "--timeout=30s"])?;
        Ok(())
    }

    /// The key goes from file to file: no command line shows it.
    fn store_key(&self, server: &OpenSandbox, secret: &KeySecret) -> Result<()> {
        let KeySecret { namespace, name, key } = secret;
        let from = format!("--from-file={key}={}", server.api_key().display());
        let create = [
            "create",
            "secret",
            "generic",
            name,
            "--namespace",
            namespace,
            &from,
        ];
        self.apply(&self.kubectl(&[&create[..], &["--dry-run=client", "-o=yaml"]].concat())?)
    }

    /// Runs the Jobs on all stages, tells how it went, and returns how many went wrong.
    fn show(&self, stages: &[Stage]) -> Result<usize> {
        for stage in stages {
            self.begin(*stage)?;
        }
        if stages.contains(&OPENSANDBOX) {
            let file = Self::example("sandboxed-job.yaml").display().to_string();
            self.kubectl_in(KUBERNETES, &["create", "--filename", &file])?;
        }
        let players = self.play(stages)?;
        let mut wrong = players.iter().filter(|player| !tell(player)).count();
        println!("\n{} Jobs, {wrong} with another end than expected", players.len());
        if let [_, _, ..] = stages {
            let classes: Vec<&str> = stages.iter().map(|stage| stage.class).collect();
            let rows = compare(stages, &players);
            wrong += rows.iter().filter(|row| !row.is_equal()).count();
            println!("\nThe same Jobs on each class:\n{}", table(&classes, &rows));
        }
        Ok(wrong)
    }

    /// Creates the Jobs of a stage.
    fn begin(&self, stage: Stage) -> Result<()> {
        let file = Self::example("jobs.yaml").display().to_string();
        self.kubectl_in(stage, &["create", "--filename", &file])?;
        self.ask_for_too_much(stage)
    }

    /// A Job beyond its class's limits: refused at creation, in words.
    fn ask_for_too_much(&self, stage: Stage) -> Result<()> {
        let file = Self::example("too-greedy.yaml").display().to_string();
        match self.kubectl_in(stage, &["create", "--filename", &file]) {
            // Without the admission policies the controller refuses it, as one of the Jobs.
            Ok(_) => Ok(()),
            Err(refusal) if refusal.to_string().contains("ResourcesOutOfRange") => {
                println!("\ntoo-greedy, refused by the API server:\n  {refusal}");
                Ok(())
            }
            Err(other) => Err(other),
        }
    }

    /// Waits for the Jobs, cancels those that want it, and returns each as it was last seen.
    fn play(&self, stages: &[Stage]) -> Result<Vec<Player>> {
        let mut players = self.players(stages)?;
        ensure!(!players.is_empty(), "no Job was created");
        let mut progress = Progress::start("Jobs", players.len() as u64);
        let mut settled_before = vec![false; players.len()];
        let mut cancelled = Vec::new();
        let played = wait::until("every Job has come to its end", PATIENCE, || {
            let now = self.players(stages)?;
            for (player, settled_before) in players.iter_mut().zip(&mut settled_before) {
                match now.iter().find(|p| p.job.metadata.uid == player.job.metadata.uid) {
                    Some(current) => player.job = current.job.clone(),
                    None => player.job.metadata.deletion_timestamp = Some(deleted()),
                }
                let (stage, name) = (player.stage, name(&player.job));
                if name == CANCELLED && holds(&player.job, STARTED) && !cancelled.contains(&stage) {
                    self.cancel(stage)?;
                    cancelled.push(stage);
                }
                if settled(&player.job) && !*settled_before {
                    *settled_before = true;
                    progress.step(&format!("{} on {}", name, stage.class));
                }
            }
            Ok(settled_before.iter().all(|settled| *settled))
        });
        progress.finish();
        if let Err(error) = played {
            eprintln!("{error:#}");
        }
        Ok(players)
    }

    fn cancel(&self, stage: Stage) -> Result<()> {
        let job = format!("ajob/{CANCELLED}");
        let patch = r#"{"spec":{"cancelRequested":true}}"#;
        self.kubectl_in(stage, &["patch", &job, "--type=merge", "--patch", patch])
            .map(drop)
    }

    fn players(&self, stages: &[Stage]) -> Result<Vec<Player>> {
        let mut players = Vec::new();
        for stage in stages {
            let json = self.kubectl_in(*stage, &["get", "ajobs", "--output=json"])?;
            let list: List = serde_json::from_str(&json).context("what kubectl printed are no Jobs")?;
            players.extend(list.items.into_iter().map(|job| Player { stage: *stage, job }));
        }
        Ok(players)
    }
}

/// The commands that take back what was created, in an order in which it goes: the API key last, for it is needed until
/// no sandbox is left.
fn removal(stages: &[Stage], key: Option<&KeySecret>) -> Vec<String> {
    let all = |name: fn(&Stage) -> &str| stages.iter().map(name).collect::<Vec<_>>().join(" ");
    let mut commands = vec![
        format!("kubectl delete namespaces {}", all(|stage| stage.namespace)),
        format!("kubectl delete jobclasses {}", all(|stage| stage.class)),
        format!("kubectl delete kep {}", KUBERNETES.class),
    ];
    if let Some(KeySecret { namespace, name, .. }) = key {
        commands.push(format!("kubectl delete osep {}", OPENSANDBOX.class));
        commands.push(format!("kubectl delete secret {name} --namespace {namespace}"));
    }
    commands
}

/// Prints a Job's story and says whether it ended as it should.
fn tell(player: &Player) -> bool {
    let Player { stage, job } = player;
    println!("\n{} in {}", name(job), stage.namespace);
    let status = job.status.clone().unwrap_or_default();
    for type_ in [ACCEPTED, SCHEDULED, STARTED, FINISHED] {
        if let Some(c) = find(&status.conditions, type_) {
            let at = c.last_transition_time.0;
            println!("  {at}  {type_:9} {:5}  {}: {}", c.status, c.reason, c.message);
        }
    }
    let ending = Ending::of(job);
    let should = expected(job).unwrap_or("nothing");
    let right = ending.is_as(should);
    println!("  => {ending}  ({})", if right { "as expected" } else { "WRONG" });
    if !right {
        println!("     expected: {should}");
    }
    right
}

/// The Jobs that every stage has, side by side.
fn compare(stages: &[Stage], players: &[Player]) -> Vec<Row> {
    let of = |stage: Stage, wanted: &str| {
        players
            .iter()
            .find(|player| player.stage == stage && name(&player.job) == wanted)
            .map(|player| Ending::of(&player.job))
    };
    let first = stages.first().copied();
    players
        .iter()
        .filter(|player| Some(player.stage) == first)
        .filter_map(|player| {
            let name = name(&player.job);
            let endings: Option<Vec<_>> = stages.iter().map(|stage| of(*stage, &name)).collect();
            endings.map(|endings| Row { name, endings })
        })
        .collect()
}

fn name(job: &Job) -> String {
    job.metadata.name.clone().unwrap_or_default()
}

fn holds(job: &Job, type_: &str) -> bool {
    job.status.as_ref().is_some_and(|s| is_true(&s.conditions, type_))
}

fn deleted() -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::now())
}

/// Nothing more is expected to happen to it.
fn settled(job: &Job) -> bool {
    let refused = job
        .status
        .as_ref()
        .and_then(|s| find(&s.conditions, ACCEPTED))
        .is_some_and(|c| c.status == "False");
    if expected(job).is_some_and(|ending| ending.ends_with("gone")) {
        is_gone(job)
    } else {
        refused || holds(job, FINISHED)
    }
}

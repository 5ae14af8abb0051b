//! The callers of the how-tos, each as it stands there: what they say of a Job is what became of it.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use axum::Router;
use axum::body::Body;
use axum::routing::{patch, post};
use ayatori_core::conditions::{self, STARTED};
use ayatori_core::job::{Job, Outcome};
use ayatori_core::names::NAMESPACE_DEFAULT_CLASS;
use ayatori_e2e::api::{PATIENCE, merged};
use ayatori_e2e::shell::Shell;
use ayatori_e2e::world::{IMAGE, World, result, with_world};
use futures::future::try_join_all;
use futures::stream;
use http::StatusCode;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;

/// A Job, and how a caller of it has to end.
struct Ending {
    name: &'static str,
    script: &'static str,
    /// More of the Job's spec.
    spec: Value,
    /// How long the caller is told to wait.
    seconds: &'static str,
    code: i32,
    /// What it prints.
    says: &'static str,
}

impl Default for Ending {
    fn default() -> Self {
        Self {
            name: "",
            script: "true",
            spec: json!({}),
            seconds: "120",
            code: 0,
            says: "",
        }
    }
}

/// What callers make of what is no end by itself.
struct Codes {
    stopped: i32,
    cancelled: i32,
    too_late: i32,
}

fn endings(codes: &Codes) -> Vec<Ending> {
    let cancelled = json!({ "cancelRequested": true });
    let slow = json!({ "activeDeadlineSeconds": 2, "terminationGracePeriodSeconds": 1 });
    let held = json!({ "suspend": true });
    let refused = json!({ "activeDeadlineSeconds": -1 });
    let no_class = json!({ "jobClassName": "no-such-class", "startingDeadlineSeconds": 2 });
    let ending = Ending::default;
    vec![
        Ending {
            name: "good",
            ..ending()
        },
        Ending {
            name: "three",
            script: "exit 3",
            code: 3,
            ..ending()
        },
        Ending {
            name: "slow",
            script: "sleep 600",
            spec: slow,
            code: codes.stopped,
            says: "DeadlineExceeded",
            ..ending()
        },
        Ending {
            name: "cancelled",
            spec: cancelled,
            code: codes.cancelled,
            says: "CancelRequested",
            ..ending()
        },
        Ending {
            name: "held",
            spec: held,
            seconds: "1",
            code: codes.too_late,
            says: "not finished",
            ..ending()
        },
        Ending {
            name: "refused",
            spec: refused,
            code: 125,
            says: "activeDeadlineSeconds",
            ..ending()
        },
        Ending {
            name: "no-class",
            spec: no_class,
            code: codes.stopped,
            says: "no-such-class",
            ..ending()
        },
    ]
}

fn caller(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("callers").join(file)
}

/// The Python that has the client of Kubernetes.
fn python() -> anyhow::Result<PathBuf> {
    let path =
        std::env::var_os("AYATORI_PYTHON").context("AYATORI_PYTHON is not set: run `cargo xtask test`")?;
    Ok(PathBuf::from(path))
}

/// A Job whose name is generated, in the namespace of the context unless it names one.
fn job(name: &str, namespace: Option<&str>, script: &str, more: &Value) -> Value {
    let spec = merged(json!({ "image": IMAGE, "command": ["sh", "-c", script] }), more);
    json!({
        "apiVersion": "execution.ayatori.ddupan.top/v1alpha1",
        "kind": "Job",
        "metadata": { "generateName": format!("{name}-"), "namespace": namespace },
        "spec": spec,
    })
}

/// Writes the manifest of a Job in the namespace of the context.
fn manifest(shell: &Shell, name: &str, script: &str, more: &Value) -> anyhow::Result<PathBuf> {
    let job = job(name, None, script, more);
    shell.write(&format!("{name}.yaml"), &job.to_string())
}

/// Writes the manifest of a Job in the test's namespace, for a terminal whose context has another.
fn manifest_elsewhere(world: &World, shell: &Shell, name: &str, script: &str) -> anyhow::Result<PathBuf> {
    let job = job(name, Some(&world.namespace), script, &json!({}));
    shell.write(&format!("{name}.yaml"), &job.to_string())
}

/// A terminal in the test's namespace, whose default is the test's class.
async fn terminal(world: &World) -> anyhow::Result<Shell> {
    let annotation = json!({ "metadata": { "annotations": { NAMESPACE_DEFAULT_CLASS: world.class } } });
    Api::<Namespace>::all(world.client.clone())
        .patch(
            &world.namespace,
            &PatchParams::default(),
            &Patch::Merge(annotation),
        )
        .await
        .context("annotating the namespace")?;
    Shell::of(&world.namespace).await
}

/// Fails unless a caller has ended like this.
fn check(what: &str, output: &Output, code: i32, says: &str) -> anyhow::Result<()> {
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(
        output.status.code() == Some(code) && text.contains(says),
        "{what}: {}, not with code {code} and the words {says:?}:\n{text}",
        output.status
    );
    Ok(())
}

/// Runs a caller once for every way to end, all at the same time.
async fn run_all(
    shell: &Shell,
    codes: Codes,
    call: impl Fn(&Path, &str) -> anyhow::Result<Command>,
) -> anyhow::Result<()> {
    let runs = endings(&codes).into_iter().map(|ending| {
        let Ending {
            name,
            script,
            spec,
            seconds,
            code,
            says,
        } = ending;
        let command = manifest(shell, name, script, &spec).and_then(|file| call(&file, seconds));
        async move {
            let output = command?.output().await.context("running the caller")?;
            check(name, &output, code, says)
        }
    });
    try_join_all(runs).await.map(drop)
}

/// Stops a caller as CI does while its Job runs, the only one there; it has to cancel the Job before it ends.
async fn stop(world: &World, mut caller: Command) -> anyhow::Result<()> {
    let caller = caller.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let started = |job: &Job| {
        job.status
            .as_ref()
            .is_some_and(|s| conditions::is_true(&s.conditions, STARTED))
    };
    let list = async || world.jobs.list(&ListParams::default()).await;
    world
        .eventually("the command runs", async || Ok(list().await?.iter().any(started)))
        .await?;
    let process = caller.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    kill_process(process.context("the caller has ended")?, Signal::TERM)?;
    check(
        "a caller that is stopped",
        &caller.wait_with_output().await?,
        143,
        "",
    )?;
    let jobs = list().await?;
    let job = jobs.iter().next().context("the Job is gone")?;
    let job = world.when_finished(&job.name_any()).await?;
    let (outcome, reason) = result(&job).map(|r| (r.outcome, r.reason.as_str()))?;
    ensure!(
        (outcome, reason) == (Outcome::Cancelled, "CancelRequested"),
        "{outcome:?}, {reason}"
    );
    Ok(())
}

/// Does not end by itself, and at once when it is told to.
const LONG: &str = "trap 'exit 0' TERM; sleep 600 & wait";

fn shell_step(shell: &Shell, file: &Path, seconds: &str) -> Command {
    let mut command = shell.command(caller("run-job.sh"));
    command.arg(file).arg(seconds);
    command
}

fn python_step(shell: &Shell, namespace: &str, file: &Path, seconds: &str) -> anyhow::Result<Command> {
    let mut command = shell.command(python()?);
    command
        .arg(caller("run_job.py"))
        .arg(namespace)
        .arg(file)
        .arg(seconds);
    Ok(command)
}

#[tokio::test]
async fn a_shell_step_ends_as_its_job_did() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let shell = terminal(&world).await?;
        let codes = Codes {
            stopped: 125,
            cancelled: 130,
            too_late: 124,
        };
        run_all(&shell, codes, |file, seconds| {
            Ok(shell_step(&shell, file, seconds))
        })
        .await?;
        let elsewhere = Shell::of("default").await?;
        let loud = manifest_elsewhere(&world, &elsewhere, "loud", "echo it works; exit 7")?;
        check(
            "loud",
            &shell_step(&elsewhere, &loud, "120").output().await?,
            7,
            "it works",
        )?;
        let two = std::fs::read_to_string(&loud)?;
        let two = shell.write("two.yaml", &format!("{two}\n---\n{two}"))?;
        let says = "exactly one Job";
        check("two", &shell_step(&shell, &two, "120").output().await?, 125, says)
    })
    .await
}

#[tokio::test]
async fn a_shell_step_that_is_stopped_cancels_its_job() -> anyhow::Result<()> {
    with_world(async |world: World| {
        terminal(&world).await?;
        let elsewhere = Shell::of("default").await?;
        let file = manifest_elsewhere(&world, &elsewhere, "long", LONG)?;
        stop(&world, shell_step(&elsewhere, &file, "120")).await
    })
    .await
}

#[tokio::test]
async fn a_python_program_ends_as_its_job_did() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let shell = terminal(&world).await?;
        let codes = Codes {
            stopped: 125,
            cancelled: 125,
            too_late: 125,
        };
        run_all(&shell, codes, |file, seconds| {
            python_step(&shell, &world.namespace, file, seconds)
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_python_program_that_is_stopped_cancels_its_job() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let shell = terminal(&world).await?;
        let file = manifest(&shell, "long", LONG, &json!({}))?;
        stop(&world, python_step(&shell, &world.namespace, &file, "120")?).await
    })
    .await
}

/// An API server that takes a Job and begins to answer a watch. Then nothing comes any more, as after a connection has
/// died without a word.
async fn silent_server(asked_to_cancel: Arc<AtomicBool>) -> anyhow::Result<String> {
    let taken = || json!({ "metadata": { "name": "silent" } }).to_string();
    let watch = async || Body::from_stream(stream::pending::<Result<Vec<u8>, Infallible>>());
    let jobs = "/apis/execution.ayatori.ddupan.top/v1alpha1/namespaces/nowhere/jobs";
    let cancel = async move || {
        asked_to_cancel.store(true, Ordering::SeqCst);
        taken()
    };
    let server = Router::new()
        .route(
            jobs,
            post(async move || (StatusCode::CREATED, taken())).get(watch),
        )
        .route(&format!("{jobs}/silent"), patch(cancel));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, server).await });
    Ok(address)
}

#[tokio::test]
async fn a_python_program_whose_connection_dies_without_a_word_ends_in_time() -> anyhow::Result<()> {
    let asked_to_cancel = Arc::new(AtomicBool::new(false));
    let server = silent_server(asked_to_cancel.clone()).await?;
    let folder = tempfile::tempdir()?;
    let (file, kubeconfig) = (folder.path().join("job.yaml"), folder.path().join("kubeconfig"));
    std::fs::write(&file, job("silent", None, "true", &json!({})).to_string())?;
    let to_it = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "silent",
        "contexts": [{ "name": "silent", "context": { "cluster": "silent", "user": "silent" } }],
        "clusters": [{ "name": "silent", "cluster": { "server": server } }],
        "users": [{ "name": "silent", "user": {} }],
    });
    std::fs::write(&kubeconfig, to_it.to_string())?;
    let mut program = Command::new(python()?);
    program
        .arg(caller("run_job.py"))
        .args(["nowhere".as_ref(), file.as_os_str(), "1".as_ref()])
        .env("KUBECONFIG", &kubeconfig)
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, program.output())
        .await
        .context("it still waits")??;
    check("a dead connection", &output, 125, "not finished within 1 s")?;
    ensure!(
        asked_to_cancel.load(Ordering::SeqCst),
        "it did not cancel the Job"
    );
    Ok(())
}

#[tokio::test]
async fn a_rust_program_ends_as_its_job_did() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let shell = terminal(&world).await?;
        let runs = [
            (vec!["true"], 0, ""),
            (vec!["sh", "-c", "exit 3"], 3, ""),
            (vec!["no-such-command"], 125, "StartError"),
        ];
        let runs = runs.map(|(command, code, says)| {
            let shell = &shell;
            async move {
                let mut caller = shell.command(env!("CARGO_BIN_EXE_run-job"));
                let output = caller.arg(IMAGE).args(&command).output().await?;
                check(&command.join(" "), &output, code, says)
            }
        });
        try_join_all(runs).await.map(drop)
    })
    .await
}

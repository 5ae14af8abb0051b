//! Classes and parameters from Git: the example tree as it is, and what GitOps tools make of every state, by the
//! library and the interpreter that they use themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use ayatori_core::conditions::{self, DELETION_BLOCKED, READY};
use ayatori_core::job::{Job, JobSpec};
use ayatori_core::job_class::JobClass;
use ayatori_core::names::GROUP;
use ayatori_e2e::api::{self, RUN_LABEL, Run, merged};
use ayatori_e2e::ground::{self, class_condition};
use ayatori_e2e::replica::{helm, kubectl};
use ayatori_e2e::world::{IMAGE, World, with_world};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// What a tool says of an object.
#[derive(Deserialize)]
struct Health {
    kstatus: Verdict,
    argo: Option<Verdict>,
}

#[derive(Deserialize)]
struct Verdict {
    status: String,
    message: String,
}

impl Health {
    /// Asks about an object: kstatus, and the script that the examples have for Argo CD and this kind, if any.
    async fn of(object: &impl Serialize) -> anyhow::Result<Self> {
        let object = serde_json::to_value(object)?;
        let question = json!({"lua": argo_script(&object)?, "object": object});
        let mut asked = Command::new(health_program().await?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("running the program of e2e/health")?;
        let mut input = asked.stdin.take().context("no standard input")?;
        input.write_all(&serde_json::to_vec(&question)?).await?;
        drop(input);
        let output = asked.wait_with_output().await?;
        ensure!(output.status.success(), "e2e/health failed");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn words(&self) -> (&str, &str) {
        let argo = self.argo.as_ref().map_or("", |verdict| &verdict.status);
        (&self.kstatus.status, argo)
    }
}

fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples/gitops")
        .join(path)
}

/// What `argocd-cm.yaml` has for the kind of this object.
fn argo_script(object: &Value) -> anyhow::Result<Option<String>> {
    let text = std::fs::read_to_string(example("argocd/argocd-cm.yaml"))?;
    let settings: ConfigMap = serde_yaml::from_str(&text)?;
    let kind = object
        .get("kind")
        .and_then(Value::as_str)
        .context("an object without a kind")?;
    let key = format!("resource.customizations.health.{GROUP}_{kind}");
    Ok(settings.data.unwrap_or_default().remove(&key))
}

/// The program of `e2e/health`, built when it is first needed; Go's own cache makes that quick.
async fn health_program() -> anyhow::Result<&'static Path> {
    static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();
    let build = async || {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let kept = folder.join("../target/e2e");
        std::fs::create_dir_all(&kept)?;
        let program = kept.join("health");
        let built = Command::new("go")
            .current_dir(folder.join("health"))
            .env("CGO_ENABLED", "0")
            .args(["build", "-trimpath", "-buildvcs=false", "-o"])
            .arg(&program)
            .arg(".")
            .status()
            .await
            .context("running go: https://go.dev/doc/install")?;
        ensure!(built.success(), "e2e/health does not build");
        Ok(program)
    };
    PROGRAM.get_or_try_init(build).await.map(PathBuf::as_path)
}

const OVERLAYS: [&str; 2] = ["staging", "production"];

/// What kustomize makes of an overlay, under names that no other test uses.
struct Tree {
    prefix: String,
    manifests: tempfile::NamedTempFile,
}

impl Tree {
    async fn build(run: &Run, overlay: &str) -> anyhow::Result<Self> {
        let folder = example("overlays").join(overlay);
        let built = kubectl(&["kustomize", &folder.display().to_string()]).await?;
        let prefix = format!(
            "{}-{}",
            run.namespace,
            overlay.chars().take(1).collect::<String>()
        );
        let renamed = ["rootless", "microvm", "team-a"]
            .iter()
            .fold(built, |text, name| {
                text.replace(name, &format!("{prefix}-{name}"))
            });
        let mut manifests = tempfile::NamedTempFile::with_suffix(".yaml")?;
        for document in serde_yaml::Deserializer::from_str(&renamed) {
            let mut object = DynamicObject::deserialize(document)?;
            object
                .labels_mut()
                .insert(RUN_LABEL.to_owned(), run.namespace.clone());
            std::io::Write::write_all(&mut manifests, b"---\n")?;
            serde_yaml::to_writer(&mut manifests, &object)?;
        }
        Ok(Self { prefix, manifests })
    }

    /// As GitOps tools do it: server-side, under a name of their own, and never by force.
    async fn apply(&self) -> anyhow::Result<()> {
        let file = self.manifests.path().display().to_string();
        let apply = [
            "apply",
            "--server-side",
            "--field-manager=gitops",
            "--validate=strict",
        ];
        kubectl(&[&apply[..], &["--filename", &file]].concat()).await?;
        Ok(())
    }

    fn named(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }
}

fn says(type_: &'static str, reason: &'static str) -> impl Fn(&JobClass) -> bool {
    move |class| class_condition(class, type_).is_some_and(|condition| condition.reason == reason)
}

fn is_ready(class: &JobClass) -> bool {
    class
        .status
        .as_ref()
        .is_some_and(|status| conditions::is_true(&status.conditions, READY))
}

#[tokio::test]
async fn the_example_tree_is_applied_as_it_is_becomes_healthy_and_is_not_fought_over() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let classes: Api<JobClass> = Api::all(run.client.clone());
        for overlay in OVERLAYS {
            let tree = Tree::build(&run, overlay).await?;
            tree.apply()
                .await
                .with_context(|| format!("applying {overlay}"))?;
            let rootless = ground::when(classes.clone(), &tree.named("rootless"), "ready", is_ready).await?;
            ensure!(
                Health::of(&rootless).await?.words() == ("Current", "Healthy"),
                "{overlay}"
            );

            // What adapters write, finalizers and status, is none of the tool's: applying again changes nothing.
            tree.apply()
                .await
                .with_context(|| format!("applying {overlay} again"))?;
            let again = classes.get(&tree.named("rootless")).await?;
            ensure!(again.finalizers() == rootless.finalizers() && !again.finalizers().is_empty());
            ensure!(again.metadata.generation == rootless.metadata.generation);

            if overlay == "production" {
                // The tool says why: the key does not come from Git.
                let microvm = tree.named("microvm");
                let waits = says(READY, "SecretNotFound");
                let waiting = ground::when(classes.clone(), &microvm, "waits for its key", waits).await?;
                let health = Health::of(&waiting).await?;
                ensure!(
                    health.words() == ("InProgress", "Degraded"),
                    "{:?}",
                    health.words()
                );
                ensure!(
                    health.kstatus.message.contains("opensandbox-production"),
                    "{}",
                    health.kstatus.message
                );
            } else {
                // A Job that names no class runs by what the tree says of its namespace.
                let spec = JobSpec {
                    image: IMAGE.to_owned(),
                    command: vec!["true".to_owned()],
                    ..JobSpec::default()
                };
                let jobs: Api<Job> = Api::namespaced(run.client.clone(), &tree.named("team-a"));
                jobs.create(&PostParams::default(), &Job::new("hello", spec))
                    .await?;
                let finished =
                    ground::when(jobs, "hello", "finished", |job| ground::holds(job, "Finished")).await?;
                ensure!(Health::of(&finished).await?.words() == ("Current", "Healthy"));
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_example_values_install_the_policies_that_keep_jobs_out_of_gitops() -> anyhow::Result<()> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/execution-api");
    let (chart, values) = (
        chart.display().to_string(),
        example("values/execution-api.yaml").display().to_string(),
    );
    let rendered = helm(&["template", "execution-api", &chart, "--values", &values]).await?;
    for policy in ["ayatori-no-gitops", "ayatori-job-rules"] {
        ensure!(
            rendered.contains(&format!("name: {policy}\n")),
            "{policy} is not there"
        );
    }
    Ok(())
}

/// A class of nobody's, and a Job of nobody's: their status is what the test writes.
const NOBODY: &str = "test.ayatori.ddupan.top/nobody";
const NOON: &str = "2026-01-01T12:00:00Z";

fn condition(type_: &str, status: &str, reason: &str, generation: i64) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": format!("{reason} it is"),
        "lastTransitionTime": NOON, "observedGeneration": generation,
    })
}

/// The objects of a kind, of which one is written and asked about.
struct Subject {
    objects: Api<DynamicObject>,
    name: String,
}

impl Subject {
    async fn create(run: &Run, kind: &str, spec: Value) -> anyhow::Result<Self> {
        let crds = ayatori_core::crd::all();
        let crd = crds
            .iter()
            .find(|crd| crd.spec.names.kind == kind)
            .context("no such kind")?;
        let object = run.object(crd, "subject", spec);
        let objects = run.objects(crd);
        objects.create(&PostParams::default(), &object).await?;
        Ok(Self {
            objects,
            name: object.name_any(),
        })
    }

    async fn status(&self, status: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        self.objects
            .patch_status(&self.name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn patch(&self, patch: Value) -> anyhow::Result<()> {
        self.objects
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    async fn expect(&self, about: &str, kstatus: &str, argo: &str) -> anyhow::Result<()> {
        let health = Health::of(&self.objects.get(&self.name).await?).await?;
        let seen = health.words();
        ensure!(
            seen == (kstatus, argo),
            "{about}: {seen:?}, not {:?}",
            (kstatus, argo)
        );
        Ok(())
    }

    /// Deleted, and held by a finalizer while it is asked about.
    async fn expect_terminating(&self, argo: &str) -> anyhow::Result<()> {
        self.patch(json!({"metadata": {"finalizers": [NOBODY]}})).await?;
        self.objects.delete(&self.name, &DeleteParams::default()).await?;
        let said = self.expect("being deleted", "Terminating", argo).await;
        self.patch(json!({"metadata": {"finalizers": []}})).await?;
        said
    }
}

#[tokio::test]
async fn a_class_is_healthy_for_gitops_tools_exactly_when_it_is_ready() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let reference = json!({"group": "test.ayatori.ddupan.top", "kind": "Parameters", "name": "none"});
        let spec = json!({"controllerName": NOBODY, "parametersRef": reference});
        let class = Subject::create(&run, "JobClass", spec).await?;
        class.expect("nobody has looked at it", "InProgress", "Progressing").await?;
        let status = |accepted: Value, ready: Value, generation: i64| {
            json!({"observedGeneration": generation, "conditions": [accepted, ready]})
        };
        let accepted = |generation| condition("Accepted", "True", "Accepted", generation);
        let ready = |generation| condition("Ready", "True", "BackendReachable", generation);
        let refused = condition("Accepted", "False", "ParametersNotFound", 1);
        class.status(status(refused, condition("Ready", "False", "NotAccepted", 1), 1)).await?;
        class.expect("it is not accepted", "InProgress", "Degraded").await?;
        class.status(status(accepted(1), condition("Ready", "False", "BackendUnreachable", 1), 1)).await?;
        class.expect("its backend is away", "InProgress", "Degraded").await?;
        class.status(status(accepted(1), ready(1), 1)).await?;
        class.expect("it is ready", "Current", "Healthy").await?;
        class.patch(json!({"spec": {"allowedNamespaces": {"matchLabels": {"a": "b"}}}})).await?;
        class.expect("its change is not looked at", "InProgress", "Progressing").await?;
        class.status(status(accepted(2), ready(2), 2)).await?;
        class.expect("its change is looked at", "Current", "Healthy").await?;
        class.expect_terminating("Progressing").await
    })
    .await
}

#[tokio::test]
async fn parameters_are_healthy_as_soon_as_they_are_there_and_jobs_whatever_becomes_of_them()
-> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let parameters = Subject::create(&run, "KubernetesExecutionParameters", json!({})).await?;
        parameters.expect("created", "Current", "").await?;
        parameters.expect_terminating("").await?;

        let job = |result: &str| (result.to_owned(), json!({"outcome": result, "reason": "Because"}));
        for (outcome, result) in ["Succeeded", "Failed", "Cancelled"].map(job) {
            let spec = json!({"image": IMAGE, "managedBy": NOBODY});
            let job = Subject::create(&run, "Job", spec).await?;
            job.expect("waiting", "Current", "Progressing").await?;
            let started = json!({"startTime": NOON, "conditions": [condition("Started", "True", "Started", 1)]});
            job.status(started.clone()).await?;
            job.expect("running", "Current", "Progressing").await?;
            let finished = json!({
                "state": outcome, "result": result, "finishTime": NOON,
                "conditions": [condition("Started", "True", "Started", 1), condition("Finished", "True", &outcome, 1)],
            });
            job.status(merged(started, &finished)).await?;
            let argo = if outcome == "Succeeded" { "Healthy" } else { "Degraded" };
            job.expect(&outcome, "Current", argo).await?;
            job.expect_terminating("Progressing").await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_class_in_use_that_is_pruned_stays_until_its_jobs_are_over_and_comes_back_with_the_next_apply()
-> anyhow::Result<()> {
    with_world(async |world: World| {
        let classes: Api<JobClass> = Api::all(world.client.clone());
        world
            .create(&world.job("user", "trap 'exit 3' TERM; sleep 600 & wait"))
            .await?;
        world.when_started("user").await?;
        let git = as_in_git(&classes.get(&world.class).await?);

        classes.delete(&world.class, &DeleteParams::default()).await?;
        let blocked = says(DELETION_BLOCKED, "JobsRemain");
        let pruned = ground::when(classes.clone(), &world.class, "blocked", blocked).await?;
        ensure!(Health::of(&pruned).await?.words().0 == "Terminating");
        let why = class_condition(&pruned, DELETION_BLOCKED)
            .map(|c| c.message.clone())
            .unwrap_or_default();
        ensure!(why.contains("user"), "it does not name the Job: {why}");

        // Back in Git: a deletion is not undone, and does no harm.
        let apply = async || {
            let params = PatchParams::apply("gitops");
            classes.patch(&world.class, &params, &Patch::Apply(&git)).await
        };
        ensure!(apply().await?.metadata.deletion_timestamp.is_some());
        ensure!(!ground::holds(&world.jobs.get("user").await?, "Finished"));
        world.cancel("user").await?;
        ground::when_gone(classes.clone(), &world.class).await?;
        ensure!(apply().await?.metadata.uid != pruned.metadata.uid);
        let back = ground::when(classes.clone(), &world.class, "ready", is_ready).await?;
        ensure!(Health::of(&back).await?.words().0 == "Current");
        Ok(())
    })
    .await
}

/// What stands in Git of a class that was read from the API server.
fn as_in_git(class: &JobClass) -> JobClass {
    let mut git = JobClass::new(&class.name_any(), class.spec.clone());
    git.metadata.labels = Some(BTreeMap::clone(class.labels()));
    git
}

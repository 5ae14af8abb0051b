//! The charts are removed, installed and upgraded on a cluster at work, by nothing but the commands of the documents.
//! One of the last tests, and only one at a time, because it takes away what every other test needs.

mod book;
mod left;
mod operator;
mod releases;
mod twins;

use std::path::Path;

use anyhow::{Context, ensure};
use ayatori_core::job::{Job, Outcome};
use ayatori_core::parameters::{KubernetesExecutionParametersSpec, OpenSandboxExecutionParametersSpec};
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::api::eventually;
use ayatori_e2e::charts;
use ayatori_e2e::manual;
use ayatori_e2e::opensandbox::OpenSandbox;
use ayatori_e2e::replica::{kubectl, xtask};
use ayatori_e2e::sandboxes::{Sandboxes, with_sandboxes};
use ayatori_e2e::world::expect;
use book::{Book, INSTALL, OPENSANDBOX};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use releases::{Release, with_releases};
use twins::Twins;

/// On the pods of the second revision.
const REVISION: &str = "test.ayatori.ddupan.top/revision";

/// A command that runs until it is stopped, and then does not take the whole of its grace.
const RUNS_ON: &str = "trap 'exit 0' TERM; sleep 600 & wait";

/// What the documents have their reader create, as he would take it back.
const TAKE_BACK: &str = "
kubectl delete namespaces team-a demo demo-sandboxed --ignore-not-found
kubectl delete jobclasses rootless demo sandboxed --ignore-not-found
kubectl delete kep rootless demo --ignore-not-found
kubectl delete osep sandboxed --ignore-not-found
kubectl delete secret opensandbox --namespace ayatori-system --ignore-not-found
";

/// Only one thing is disturbed at a time.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn by_the_commands_of_the_documents_everything_goes_comes_works_and_is_upgraded_without_losing_a_job()
-> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    let followed = with_releases(async |releases| {
        with_sandboxes(async |sandboxes: Sandboxes| follow(releases, &sandboxes).await).await
    })
    .await;
    let server = OpenSandbox::of_the_cluster().await?;
    let book = Book::open("default", &[], &server).await?;
    followed.and(book.run(TAKE_BACK).await)
}

async fn follow(releases: &[Release], sandboxes: &Sandboxes) -> anyhow::Result<()> {
    let client = &sandboxes.world.client;
    let twins = |name| Twins { sandboxes, name };
    left::no_object_of_another_adapter(client).await?;
    let mut book = Book::open("default", releases, &sandboxes.server).await?;

    removed(&book, &twins("removed")).await.context("remove")?;
    installed(&book, client).await.context("install")?;
    first_steps(&book, client).await.context("first steps")?;
    tutorial(releases, sandboxes).await.context("tutorial")?;

    offer_again(sandboxes).await?;
    let lives = twins("lives");
    lives.create(RUNS_ON, 0).await?;
    lives.when_started().await?;
    upgraded(&mut book, &twins("upgraded")).await.context("upgrade")?;
    without_api(&book, &twins("without-api"))
        .await
        .context("without execution-api")?;
    let away = [twins("ends"), twins("leaves"), twins("comes")];
    without_adapters(&book, &away).await.context("without adapters")?;
    lives.obey().await
}

/// Jobs that run are stopped, and nothing of them or of us is left.
async fn removed(book: &Book, job: &Twins<'_>) -> anyhow::Result<()> {
    job.create(RUNS_ON, 0).await?;
    job.when_started().await?;
    let jobs = job.jobs().await?;
    book.follow(INSTALL, "## Remove").await?;
    job.ran_once_and_left_no_sandbox(&jobs).await?;
    left::nothing().await
}

/// In the order in which one of the adapters has to wait. Whatever is seen, all are installed: what is broken off would
/// stand in the way of whoever puts things back.
async fn installed(book: &Book, client: &Client) -> anyhow::Result<()> {
    let adapter = book.follow(OPENSANDBOX, "## Install the adapter");
    let others = async {
        let seen = waits_for_definitions(client, "opensandbox-adapter").await;
        let installed = book.follow(INSTALL, "## Install").await;
        seen.and(installed)
    };
    let (adapter, others) = futures::join!(adapter, others);
    others.and(adapter)
}

/// Its pods run, are not ready, and say why.
async fn waits_for_definitions(client: &Client, adapter: &str) -> anyhow::Result<()> {
    let name = format!("app.kubernetes.io/name={adapter}");
    let pods = Api::<Pod>::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let ours = ListParams::default().labels(&name);
    eventually(&format!("{adapter} runs without being ready"), async || {
        let pods = pods.list(&ours).await?.items;
        Ok(!pods.is_empty() && pods.iter().all(runs_without_being_ready))
    })
    .await?;
    let logs = ["logs", "--namespace", SYSTEM_NAMESPACE, "--selector", &name];
    let log = async || kubectl(&[&logs[..], &["--tail=-1"]].concat()).await;
    let named = eventually(&format!("{adapter} says what it waits for"), async || {
        Ok(log().await?.contains("jobclasses.execution.ayatori.ddupan.top"))
    })
    .await;
    match named {
        Ok(()) => Ok(()),
        Err(error) => Err(error.context(log().await?)),
    }
}

fn runs_without_being_ready(pod: &Pod) -> bool {
    let containers = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    containers.is_some_and(|all| {
        all.iter()
            .all(|c| c.started == Some(true) && !c.ready && c.restart_count == 0)
    })
}

/// The classes of the documents, and a Job in each.
async fn first_steps(book: &Book, client: &Client) -> anyhow::Result<()> {
    book.follow(INSTALL, "## Offer a class").await?;
    book.follow(OPENSANDBOX, "## Offer a class").await?;
    book.run(
        "kubectl create --namespace team-a --filename examples/sandboxed-job.yaml
        kubectl wait --namespace team-a --for=condition=Finished ajob/in-a-sandbox --timeout=3m",
    )
    .await?;
    for name in ["hello", "in-a-sandbox"] {
        let job = Api::<Job>::namespaced(client.clone(), "team-a").get(name).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
    }
    Ok(())
}

/// What it begins with is told by another test, and its other commands are run by one that looks at what they print.
async fn tutorial(releases: &[Release], sandboxes: &Sandboxes) -> anyhow::Result<()> {
    let state =
        std::env::var_os("AYATORI_CLUSTER").context("AYATORI_CLUSTER is not set: run `cargo xtask test`")?;
    let server = Path::new(&state).join("opensandbox");
    xtask(&[
        "demo",
        "--use-current-context",
        "--opensandbox",
        charts::text(&server)?,
    ])
    .await?;
    let book = Book::open("demo", releases, &sandboxes.server).await?;
    book.follow("tutorial.md", "## 3. Run a Job").await?;
    book.follow("tutorial.md", "## 4. Read its story and its output")
        .await?;
    let jobs = Api::<Job>::namespaced(sandboxes.world.client.clone(), "demo");
    expect(&jobs.get("hello").await?, Outcome::Failed, "NonZeroExit", Some(3))
}

/// The classes of the test went with everything else. As they are installed by the documents, adapters read no Secrets
/// of Jobs.
async fn offer_again(sandboxes: &Sandboxes) -> anyhow::Result<()> {
    let world = &sandboxes.world;
    let plain = KubernetesExecutionParametersSpec::default();
    world.create_class(&world.class, plain, |_| {}).await?;
    let parameters = OpenSandboxExecutionParametersSpec {
        allow_secret_env: None,
        allow_image_auth: None,
        ..sandboxes.parameters()
    };
    sandboxes.create_class(&sandboxes.class, parameters, |_| {}).await
}

/// Every chart gets other values, and every adapter other pods, while a Job ends.
async fn upgraded(book: &mut Book, job: &Twins<'_>) -> anyhow::Result<()> {
    let client = &job.world().client;
    job.create("sleep 5", 5).await?;
    job.when_started().await?;
    // A dot in a key is written like this.
    let second = format!("--set podAnnotations.{}=second", REVISION.replace('.', r"\\."));
    book.revise(&[
        ("charts/execution-api", "--set userRoles.aggregate=true"),
        ("charts/kubernetes-adapter", &second),
        ("charts/opensandbox-adapter", &second),
    ]);
    book.install().await?;
    let role = kubectl(&["get", "clusterrole", "ayatori-job-viewer", "--output=yaml"]).await?;
    ensure!(
        role.contains("aggregate-to-view"),
        "the upgrade changed nothing: {role}"
    );
    for pod in pods(client).await? {
        let going = pod.metadata.deletion_timestamp.is_some();
        ensure!(
            going || pod.annotations().contains_key(REVISION),
            "{} was not replaced",
            pod.name_any()
        );
    }
    job.ended(Outcome::Failed, "NonZeroExit", Some(5)).await
}

/// The adapters' pods.
async fn pods(client: &Client) -> anyhow::Result<Vec<Pod>> {
    let pods = Api::<Pod>::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let adapters = ListParams::default().labels("app.kubernetes.io/component=adapter");
    Ok(pods.list(&adapters).await?.items)
}

/// The definitions and all Jobs stay, and the adapters work on.
async fn without_api(book: &Book, job: &Twins<'_>) -> anyhow::Result<()> {
    let uids = async || {
        let jobs = job.world().jobs.list(&ListParams::default()).await?;
        anyhow::Ok(jobs.iter().filter_map(ResourceExt::uid).collect::<Vec<_>>())
    };
    let before = uids().await?;
    book.remove("helm uninstall execution-api").await?;
    ensure!(uids().await? == before, "Jobs went with the chart");
    job.create("true", 6).await?;
    job.ended(Outcome::Failed, "NonZeroExit", Some(6)).await?;
    applied_by_somebody_else().await?;
    ensure!(
        book.install().await.is_err(),
        "the chart takes definitions over without being told to"
    );
    let told = "--create-namespace --take-ownership --force-conflicts";
    let install = manual::commands(INSTALL, "## Install")?.replace("--create-namespace", told);
    book.run(&install).await?;
    ensure!(
        uids().await?.starts_with(&before),
        "Jobs went when the chart came back"
    );
    Ok(())
}

/// From now on nothing says that the definitions have ever been Helm's.
async fn applied_by_somebody_else() -> anyhow::Result<()> {
    for definition in ayatori_core::crd::all() {
        let name = format!("crd/{}", definition.name_any());
        kubectl(&["label", &name, "app.kubernetes.io/managed-by-"]).await?;
        let annotations = ["meta.helm.sh/release-name-", "meta.helm.sh/release-namespace-"];
        kubectl(&[&["annotate", &name], &annotations[..]].concat()).await?;
    }
    Ok(())
}

/// What ends, is deleted or is created meanwhile is taken up when they are back.
async fn without_adapters(book: &Book, jobs: &[Twins<'_>; 3]) -> anyhow::Result<()> {
    let [ends, leaves, comes] = jobs;
    let world = ends.world();
    ends.create("sleep 15", 4).await?;
    leaves.create(RUNS_ON, 0).await?;
    ends.when_started().await?;
    leaves.when_started().await?;

    book.remove("helm uninstall kubernetes-adapter").await?;
    comes.create("true", 7).await?;
    let left = leaves.jobs().await?;
    for job in &left {
        world.delete(&job.name_any()).await?;
    }
    ends.when_over().await?;
    for job in leaves.jobs().await? {
        ensure!(
            job.metadata.deletion_timestamp.is_some() && !job.finalizers().is_empty(),
            "{} was let go by nobody",
            job.name_any()
        );
    }

    book.install().await?;
    ends.ended(Outcome::Failed, "NonZeroExit", Some(4)).await?;
    comes.ended(Outcome::Failed, "NonZeroExit", Some(7)).await?;
    for job in &left {
        world.when_gone(&job.name_any()).await?;
        ends.sandboxes.when_none_of(job).await?;
        world
            .eventually("its pod is gone", async || Ok(world.pods(job).await?.is_empty()))
            .await?;
    }
    Ok(())
}

//! The charts are upgraded, uninstalled and installed again on a cluster at work. One of the last tests, and only one at
//! a time, because it takes away what every other test needs.

use std::path::Path;

use anyhow::{Context, ensure};
use ayatori_core::job::{Job, Outcome};
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::api::eventually;
use ayatori_e2e::charts::{self, API, CHARTS, text};
use ayatori_e2e::replica::{helm, kubectl};
use ayatori_e2e::sandboxes::{Sandboxes, with_sandboxes};
use ayatori_e2e::world::{World, expect, result};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::process::Command;

/// On the pods of the second revision.
const REVISION: &str = "test.ayatori.ddupan.top/revision";

/// A command that runs until it is stopped, and then does not take the whole of its grace.
const RUNS_ON: &str = "trap 'exit 0' TERM; sleep 600 & wait";

/// Only one thing is disturbed at a time.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A chart as it is installed.
struct Release {
    chart: &'static str,
    values: NamedTempFile,
}

impl Release {
    /// That of a chart, with the values it was given.
    async fn of(chart: &'static str) -> anyhow::Result<Self> {
        let get = ["get", "values", chart, "--namespace", SYSTEM_NAMESPACE];
        let given = helm(&[&get[..], &["--output", "yaml"]].concat()).await?;
        let values = NamedTempFile::new()?;
        std::fs::write(values.path(), given)?;
        Ok(Self { chart, values })
    }

    fn is_adapter(&self) -> bool {
        self.chart != API
    }

    /// Installs or upgrades it to what it was, but for these arguments.
    async fn install(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let folder = charts::folder(self.chart);
        let upgrade = ["upgrade", "--install", self.chart, text(&folder)?];
        let how = [
            "--values",
            text(self.values.path())?,
            "--namespace",
            SYSTEM_NAMESPACE,
            "--force-conflicts",
        ];
        helm(&[&upgrade[..], &how, arguments].concat()).await.map(drop)
    }

    async fn install_and_wait(&self) -> anyhow::Result<()> {
        self.install(&["--wait", "--timeout=3m"]).await
    }

    /// Uninstalls it, and sees it gone.
    async fn uninstall(&self) -> anyhow::Result<()> {
        let uninstall = ["uninstall", self.chart, "--namespace", SYSTEM_NAMESPACE];
        helm(&[&uninstall[..], &["--wait", "--timeout=3m"]].concat())
            .await
            .map(drop)
    }
}

/// Runs a test on all releases and puts them back, however it ends.
async fn with_releases(test: impl AsyncFnOnce(&[Release]) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    let mut releases = Vec::new();
    for chart in CHARTS {
        releases.push(Release::of(chart).await?);
    }
    let outcome = test(&releases).await;
    let restored = async {
        for release in &releases {
            release.install_and_wait().await?;
        }
        anyhow::Ok(())
    };
    outcome.and(restored.await)
}

/// All adapters' releases at once.
async fn adapters<F: Future<Output = anyhow::Result<()>>>(
    releases: &[Release],
    act: impl Fn(&'static str, usize) -> F,
) -> anyhow::Result<()> {
    let adapters = releases.iter().enumerate().filter(|(_, r)| r.is_adapter());
    try_join_all(adapters.map(|(i, release)| act(release.chart, i)))
        .await
        .map(drop)
}

/// Where a Job of the test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Pod,
    Sandbox,
}

const BACKENDS: [Backend; 2] = [Backend::Pod, Backend::Sandbox];

/// The same Job on both backends.
struct Twins<'a> {
    sandboxes: &'a Sandboxes,
    name: &'static str,
}

impl Twins<'_> {
    fn name(&self, backend: Backend) -> String {
        match backend {
            Backend::Pod => format!("{}-pod", self.name),
            Backend::Sandbox => format!("{}-sandbox", self.name),
        }
    }

    fn world(&self) -> &World {
        &self.sandboxes.world
    }

    /// Creates both, which do this and then say that they have.
    async fn create(&self, then: &str, code: i32) -> anyhow::Result<()> {
        for backend in BACKENDS {
            let name = self.name(backend);
            let job = match backend {
                Backend::Pod => {
                    let said = self.world().job(&over(&name), "true").spec.command;
                    let say = said.last().context("no command")?;
                    self.world().job(&name, &format!("{then}; {say}; exit {code}"))
                }
                Backend::Sandbox => self
                    .sandboxes
                    .job(&name, &format!("{then}; echo {}; exit {code}", over(&name))),
            };
            self.world().create(&job).await?;
        }
        Ok(())
    }

    async fn when_started(&self) -> anyhow::Result<()> {
        for backend in BACKENDS {
            self.world().when_started(&self.name(backend)).await?;
        }
        Ok(())
    }

    /// Returns once both commands are over, whoever has noticed.
    async fn when_over(&self) -> anyhow::Result<()> {
        for backend in BACKENDS {
            let name = self.name(backend);
            let job = self.world().jobs.get(&name).await?;
            eventually(&format!("the command of {name} is over"), async || {
                Ok(match backend {
                    Backend::Pod => self.world().starts(&over(&name)) == 1,
                    Backend::Sandbox => self.sandboxes.witness.output(&job).contains(&over(&name)),
                })
            })
            .await?;
        }
        Ok(())
    }

    /// Both have this result, of one execution.
    async fn ended(&self, outcome: Outcome, reason: &str, code: Option<i32>) -> anyhow::Result<()> {
        for backend in BACKENDS {
            let name = self.name(backend);
            let job = self.world().when_finished(&name).await?;
            expect(&job, outcome, reason, code)?;
            let starts = self.starts(&job, backend);
            ensure!(starts == 1, "{name} started {starts} times");
        }
        Ok(())
    }

    /// What has lived through everything stops when it is asked to.
    async fn obey(&self) -> anyhow::Result<()> {
        for backend in BACKENDS {
            let name = self.name(backend);
            self.world().cancel(&name).await?;
            let job = self.world().when_finished(&name).await?;
            let result = result(&job)?;
            ensure!(result.outcome == Outcome::Cancelled, "{name}: {result:?}");
            let starts = self.starts(&job, backend);
            ensure!(starts == 1, "{name} started {starts} times");
        }
        Ok(())
    }

    fn starts(&self, job: &Job, backend: Backend) -> usize {
        match backend {
            Backend::Pod => self
                .world()
                .starts(&job.name_any())
                .try_into()
                .unwrap_or(usize::MAX),
            Backend::Sandbox => self.sandboxes.witness.starts(job),
        }
    }

    /// Both are still there.
    async fn jobs(&self) -> anyhow::Result<Vec<Job>> {
        let jobs = BACKENDS.map(|backend| self.name(backend));
        let get = jobs.iter().map(|name| self.world().jobs.get(name));
        Ok(try_join_all(get).await?)
    }
}

fn over(name: &str) -> String {
    format!("{name}-is-over")
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_upgraded_uninstalled_and_installed_again_lose_no_job_and_run_none_twice() -> anyhow::Result<()>
{
    with_releases(async |releases| {
        with_sandboxes(async |sandboxes: Sandboxes| {
            let twins = |name| Twins {
                sandboxes: &sandboxes,
                name,
            };
            let lives = twins("lives");
            lives.create(RUNS_ON, 0).await?;
            lives.when_started().await?;
            upgraded(releases, &twins("upgraded")).await.context("upgrade")?;
            without_api(releases, &twins("without-api"))
                .await
                .context("without execution-api")?;
            let away = [twins("ends"), twins("leaves"), twins("comes")];
            without_adapters(releases, &away)
                .await
                .context("without adapters")?;
            lives.obey().await
        })
        .await
    })
    .await
}

/// Every chart gets other values, and every adapter other pods, while a Job ends.
async fn upgraded(releases: &[Release], job: &Twins<'_>) -> anyhow::Result<()> {
    let client = &job.world().client;
    job.create("sleep 5", 5).await?;
    job.when_started().await?;
    let api = releases.iter().find(|r| !r.is_adapter()).context("no API")?;
    api.install(&["--set", "userRoles.aggregate=true", "--wait"])
        .await?;
    let role = kubectl(&["get", "clusterrole", "ayatori-job-viewer", "--output=yaml"]).await?;
    ensure!(
        role.contains("aggregate-to-view"),
        "the upgrade changed nothing: {role}"
    );
    // A dot in a key is written like this.
    let annotation = format!("podAnnotations.{}=second", REVISION.replace('.', r"\."));
    adapters(releases, |_, i| {
        let arguments = ["--set", annotation.as_str(), "--wait", "--timeout=3m"];
        async move { release(releases, i)?.install(&arguments).await }
    })
    .await?;
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

fn release(releases: &[Release], i: usize) -> anyhow::Result<&Release> {
    releases.get(i).context("no such release")
}

/// The adapters' pods.
async fn pods(client: &Client) -> anyhow::Result<Vec<Pod>> {
    let pods = Api::<Pod>::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let adapters = ListParams::default().labels("app.kubernetes.io/component=adapter");
    Ok(pods.list(&adapters).await?.items)
}

/// The definitions and all Jobs stay, and the adapters work on.
async fn without_api(releases: &[Release], job: &Twins<'_>) -> anyhow::Result<()> {
    let api = releases.iter().find(|r| !r.is_adapter()).context("no API")?;
    let uids = async || {
        let jobs = job.world().jobs.list(&ListParams::default()).await?;
        anyhow::Ok(jobs.iter().filter_map(ResourceExt::uid).collect::<Vec<_>>())
    };
    let before = uids().await?;
    api.uninstall().await?;
    ensure!(uids().await? == before, "Jobs went with the chart");
    job.create("true", 6).await?;
    job.ended(Outcome::Failed, "NonZeroExit", Some(6)).await?;
    api.install_and_wait().await
}

/// What ends, is deleted or is created meanwhile is taken up when they are back.
async fn without_adapters(releases: &[Release], jobs: &[Twins<'_>; 3]) -> anyhow::Result<()> {
    let [ends, leaves, comes] = jobs;
    let world = ends.world();
    ends.create("sleep 15", 4).await?;
    leaves.create(RUNS_ON, 0).await?;
    ends.when_started().await?;
    leaves.when_started().await?;

    adapters(
        releases,
        |_, i| async move { release(releases, i)?.uninstall().await },
    )
    .await?;
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

    adapters(releases, |_, i| async move {
        release(releases, i)?.install_and_wait().await
    })
    .await?;
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

/// What of the Prometheus operator is used here: a module, at the version in the `go.mod` beside this name.
const OPERATOR: (&str, &str) = (
    "cluster/prometheus-operator",
    "github.com/prometheus-operator/prometheus-operator",
);

#[tokio::test(flavor = "multi_thread")]
async fn what_the_charts_tell_the_prometheus_operator_is_valid_by_its_own_definitions() -> anyhow::Result<()>
{
    let _turn = TURN.lock().await;
    let definitions = definitions_of_the_operator().await?;
    let files = ["--filename", &definitions[0], "--filename", &definitions[1]];
    kubectl(&[&["apply", "--server-side"], &files[..]].concat()).await?;
    let outcome = async {
        let established = ["wait", "--for=condition=Established", "--timeout=60s"];
        kubectl(&[&established[..], &files].concat()).await?;
        let mut found = 0;
        for chart in CHARTS {
            let everything = charts::everything(chart);
            let rendered = charts::render(chart, SYSTEM_NAMESPACE, &["--values", text(&everything)?]).await?;
            let told: Vec<_> = rendered
                .iter()
                .filter(|object| charts::is_monitoring(object))
                .collect();
            charts::applies(&told)
                .await
                .with_context(|| format!("chart {chart}"))?;
            found += told.len();
        }
        ensure!(
            found == 3,
            "{found} objects for the operator: one of each chart was expected"
        );
        anyhow::Ok(())
    };
    let outcome = outcome.await;
    kubectl(&[&["delete", "--timeout=60s"], &files[..]].concat()).await?;
    outcome
}

/// The files that define a ServiceMonitor and a PrometheusRule.
async fn definitions_of_the_operator() -> anyhow::Result<[String; 2]> {
    let (folder, module) = OPERATOR;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let downloaded = Command::new("go")
        .args(["mod", "download", "-json", module])
        .current_dir(&folder)
        .output()
        .await
        .context("running Go")?;
    let said = String::from_utf8_lossy(&downloaded.stderr);
    ensure!(
        downloaded.status.success(),
        "{module} cannot be downloaded: {said}"
    );
    let downloaded: Value = serde_json::from_slice(&downloaded.stdout)?;
    let folder = downloaded
        .get("Dir")
        .and_then(Value::as_str)
        .context("Go names no folder")?;
    Ok(["servicemonitors", "prometheusrules"].map(|plural| {
        format!("{folder}/example/prometheus-operator-crd/monitoring.coreos.com_{plural}.yaml")
    }))
}

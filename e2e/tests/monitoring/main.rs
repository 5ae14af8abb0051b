//! What operators see: every alert of the chart fires when what it speaks of happens, and every panel of the dashboard
//! has something to show.
//!
//! One real Prometheus scrapes the deployed adapters, which run ordinary Jobs, and adapters in this process, to which
//! everything happens that there is an alert for. These have controller names and Leases of their own. Only one thing
//! touches others: for a few seconds there are two default classes.

mod adapters;
mod panels;
mod troubles;
mod watch;

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use ayatori_core::job::{Job, Outcome};
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::api::eventually;
use ayatori_e2e::prometheus::{Prometheus, free_address, rules};
use ayatori_e2e::replica::Adapter;
use ayatori_e2e::sandboxes::{Sandboxes, with_sandboxes};
use ayatori_e2e::world::{World, expect};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use crate::adapters::Addresses;
use crate::troubles::Troubles;

/// Every wait of the alerts, short enough for a test.
const SHORT: [&str; 6] = [
    "AyatoriReconcileErrors.window=1m",
    "AyatoriReconcileErrors.threshold=1",
    "AyatoriQueueBacklog.threshold=3",
    "AyatoriDeletionsLate.window=1m",
    "AyatoriDeletionsLate.threshold=2",
    "AyatoriUndecodableObjects.window=10m",
];
/// How long what an alert speaks of has to be so.
const FOR: &str = "1s";

#[tokio::test(flavor = "multi_thread")]
async fn every_alert_fires_when_what_it_speaks_of_happens_and_every_panel_has_something_to_show()
-> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let addresses = Addresses {
            busy: free_address()?,
            away: free_address()?,
            limited: free_address()?,
        };
        let mut targets = addresses.targets().to_vec();
        for adapter in [Adapter::Kubernetes, Adapter::OpenSandbox] {
            for address in pods(&sandboxes, adapter).await? {
                targets.push((adapter.name(), address));
            }
        }
        let prometheus = Prometheus::start(&hasty_rules().await?, &targets).await?;
        let troubles = Troubles::prepare(&sandboxes.world, &addresses).await?;
        let (caused, ordinary) = tokio::join!(
            Box::pin(troubles.cause(&prometheus)),
            Box::pin(run_jobs(&sandboxes, &prometheus))
        );
        let outcome = match caused.and(ordinary) {
            Ok(()) => panels::check(&prometheus).await,
            failed => failed,
        };
        troubles.clear().await?;
        outcome
    })
    .await
}

/// The rules of the chart, with every wait as short as can be.
async fn hasty_rules() -> anyhow::Result<String> {
    let name_of = |rule: &Value| Some(rule.get("alert")?.as_str()?.to_owned());
    let slow: Value = serde_json::from_str(&rules(&[]).await?)?;
    let all = slow
        .pointer("/groups/0/rules")
        .and_then(Value::as_array)
        .context("no rules")?;
    let names: Vec<_> = all.iter().filter_map(name_of).collect();
    ensure!(
        names
            .iter()
            .all(|name| watch::EXPECTED.iter().any(|(alert, _)| alert == name)),
        "no trouble here for some of {names:?}"
    );
    let waits = names.iter().map(|name| format!("{name}.for={FOR}"));
    let values = waits.chain(SHORT.map(str::to_owned));
    let values: Vec<_> = values
        .map(|value| format!("monitoring.prometheusRule.alerts.{value}"))
        .collect();
    rules(&values).await
}

/// Where the replicas of a deployed adapter serve their metrics.
async fn pods(sandboxes: &Sandboxes, adapter: Adapter) -> anyhow::Result<Vec<SocketAddr>> {
    let pods = Api::<Pod>::namespaced(sandboxes.world.client.clone(), SYSTEM_NAMESPACE);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={}", adapter.name()));
    let mut addresses = Vec::new();
    for pod in pods.list(&ours).await? {
        if let Some(address) = pod.status.and_then(|status| status.pod_ip) {
            addresses.push(SocketAddr::new(address.parse()?, 8080));
        }
    }
    ensure!(
        !addresses.is_empty(),
        "{} is not deployed: `cargo xtask deploy`",
        adapter.name()
    );
    Ok(addresses)
}

/// Jobs of the deployed adapters, one after the other: a rate begins with the second time that something happens.
async fn run_jobs(sandboxes: &Sandboxes, prometheus: &Prometheus) -> anyhow::Result<()> {
    let (world, server) = (&sandboxes.world, sandboxes);
    tokio::try_join!(
        run_three("in-a-pod", world, prometheus, |name, then| world.job(name, then)),
        run_three("in-a-sandbox", world, prometheus, |name, then| server
            .job(name, then)),
        hold_one(world, prometheus),
    )?;
    Ok(())
}

/// One that waits.
async fn hold_one(world: &World, prometheus: &Prometheus) -> anyhow::Result<()> {
    let mut held = world.job("held", "exit 0");
    held.spec.suspend = Some(true);
    world.create(&held).await?;
    eventually("the Job that waits is scraped", async || {
        let waits = prometheus.history("ayatori_jobs{state=\"Suspended\"}").await?;
        Ok(!waits.is_empty())
    })
    .await
}

/// One that fails and two that succeed, of which the last goes after its TTL.
async fn run_three(
    place: &str,
    world: &World,
    prometheus: &Prometheus,
    job: impl Fn(&str, &str) -> Job,
) -> anyhow::Result<()> {
    for (name, code) in [("fails", 3), ("succeeds", 0)] {
        let name = format!("{name}-{place}");
        world.create(&job(&name, &format!("exit {code}"))).await?;
        let outcome = match code {
            0 => (Outcome::Succeeded, "Completed"),
            _ => (Outcome::Failed, "NonZeroExit"),
        };
        expect(
            &world.when_finished(&name).await?,
            outcome.0,
            outcome.1,
            Some(code),
        )?;
    }
    let name = format!("goes-{place}");
    let mut last = job(&name, "exit 0");
    let class = last.spec.job_class_name.clone().unwrap_or_default();
    let succeeded = format!("ayatori_jobs_finished_total{{class=\"{class}\",outcome=\"Succeeded\"}}");
    eventually(&format!("{succeeded} is scraped"), async || {
        Ok(!prometheus.history(&succeeded).await?.is_empty())
    })
    .await?;
    last.spec.ttl_seconds_after_finished = Some(1);
    world.create(&last).await?;
    world.when_gone(&name).await
}

//! An adapter as a process beside the control plane, under the service account and with the flags of its chart.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ayatori_core::conditions;
use ayatori_core::job_class::JobClass;
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::api::eventually;
use ayatori_e2e::prometheus::free_address;
use ayatori_e2e::replica;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, ListParams};

use crate::arena::Arena;
use crate::process::{Process, Usage};
use crate::stage::CommandLine;

/// How often it is asked how far it is.
const ASKING: Duration = Duration::from_millis(50);
/// How long it may take until it has looked at everything.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running adapter.
pub(crate) struct Adapter {
    process: Process,
    began: Instant,
    address: SocketAddr,
    http: reqwest::Client,
    _account: tempfile::NamedTempFile,
}

impl Adapter {
    /// Starts it. Nobody leads then, so that it need not wait for a lease.
    pub(crate) async fn start(
        arena: &Arena<'_>,
        adapter: replica::Adapter,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let leases = Api::<Lease>::namespaced(arena.client.clone(), SYSTEM_NAMESPACE);
        leases
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        let name = adapter.name();
        let program = arena.stage.adapters.get(name);
        let address = free_address()?;
        let own = [
            format!("--namespace={SYSTEM_NAMESPACE}"),
            format!("--identity={name}-bench"),
            format!("--listen={address}"),
        ];
        let line = CommandLine {
            program: program.with_context(|| format!("no program of {name}"))?.clone(),
            arguments: own
                .into_iter()
                .chain(flags.iter().map(|&flag| flag.to_owned()))
                .collect(),
        };
        let account = arena.account(name).await?;
        let environment = [("KUBECONFIG", account.path())];
        let began = Instant::now();
        Ok(Self {
            process: Process::start(name, &line, &environment, &arena.stage.log(name))?,
            began,
            address,
            http: reqwest::Client::builder().no_proxy().build()?,
            _account: account,
        })
    }

    /// Starts the Kubernetes adapter and waits until the class of all Jobs is Ready.
    pub(crate) async fn of_pods(arena: &Arena<'_>) -> anyhow::Result<Self> {
        let mut adapter =
            Self::start(arena, replica::Adapter::Kubernetes, &["--allow-secret-checks"]).await?;
        adapter.when_ready(arena, crate::peer::CLASS).await?;
        Ok(adapter)
    }

    /// Waits until a class is Ready.
    pub(crate) async fn when_ready(&mut self, arena: &Arena<'_>, class: &str) -> anyhow::Result<()> {
        let classes = Api::<JobClass>::all(arena.client.clone());
        eventually(&format!("class {class} is Ready"), async || {
            let status = classes.get(class).await?.status;
            Ok(status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY)))
        })
        .await?;
        self.process.check()
    }

    /// How long after its start it had looked at so many Jobs, and had nothing more to look at.
    pub(crate) async fn when_settled(&mut self, jobs: u32) -> anyhow::Result<Duration> {
        let mut interval = tokio::time::interval(ASKING);
        loop {
            interval.tick().await;
            self.process.check()?;
            // Before it listens there is nothing to read.
            let page = self.page().await.unwrap_or_default();
            let took = self.began.elapsed();
            let looked = read(
                &page,
                r#"ayatori_reconcile_duration_seconds_count{controller="job"}"#,
            );
            let waiting = read(&page, r#"ayatori_reconcile_queue_depth{controller="job"}"#);
            let active = read(&page, r#"ayatori_reconciles_active{controller="job"}"#);
            let leads = read(&page, r#"ayatori_leading{lease="unowned"}"#);
            if looked >= f64::from(jobs) && waiting + active == 0.0 && leads == 1.0 {
                return Ok(took);
            }
            ensure!(
                took < PATIENCE,
                "the adapter has looked at Jobs {looked} times, {waiting} wait and {active} are looked at"
            );
        }
    }

    /// How often it has looked at a Job.
    pub(crate) async fn reconciles(&self) -> anyhow::Result<f64> {
        let page = self.page().await?;
        Ok(read(
            &page,
            r#"ayatori_reconcile_duration_seconds_count{controller="job"}"#,
        ))
    }

    async fn page(&self) -> anyhow::Result<String> {
        let answer = self
            .http
            .get(format!("http://{}/metrics", self.address))
            .send()
            .await?;
        Ok(answer.text().await?)
    }

    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        self.process.usage()
    }

    /// Fails if it has ended by itself.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.process.check()
    }

    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.process.stop().await
    }
}

/// A sample of a page of metrics; zero, if it is not there.
fn read(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series));
    line.and_then(|value| value.trim().parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_read_by_its_whole_name() {
        let page = "a{c=\"job\"} 3\na{c=\"jobclass\"} 5\n";
        assert_eq!(read(page, "a{c=\"job\"}"), 3.0);
        assert_eq!(read(page, "b"), 0.0);
    }
}

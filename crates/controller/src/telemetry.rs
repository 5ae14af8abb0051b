//! Logs and metrics. Labels of metrics never hold names of Jobs or namespaces.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context;
use ayatori_core::job::JobResult;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// Starts logging to standard error.
pub fn init_logs(format: LogFormat, level: &str) -> anyhow::Result<()> {
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter(level)?)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
        LogFormat::Text => logs.try_init(),
    }
    .map_err(|error| anyhow::anyhow!("logging could not be started: {error}"))
}

/// What the caller wants to see, without the client's own lines: it logs bodies that tell of an error or that it
/// cannot read, whole, and they may echo an object with everything in it.
fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    let asked = level
        .split(',')
        .filter(|directive| !directive.trim().starts_with("kube_client"));
    let directives: Vec<_> = asked.chain(["kube_client=off"]).collect();
    EnvFilter::try_new(directives.join(",")).with_context(|| format!("--log-level {level:?} is not a filter"))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    operation: String,
    result: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    controller: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Finish {
    class: String,
    outcome: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Lease {
    lease: String,
}

/// The instruments of one adapter.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    writes: Family<Write, Counter>,
    errors: Family<Reason, Counter>,
    reconciles: Family<Controller, Histogram, fn() -> Histogram>,
    finished: Family<Finish, Counter>,
    leading: Family<Lease, Gauge>,
    default_classes: Gauge,
    ttl_lateness: Histogram,
    events_lost: Counter<u64, AtomicU64>,
    undecodable: Family<Controller, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("ayatori");
        let metrics = Self {
            registry: Arc::default(),
            writes: Family::default(),
            errors: Family::default(),
            reconciles: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 16))),
            finished: Family::default(),
            leading: Family::default(),
            default_classes: Gauge::default(),
            ttl_lateness: Histogram::new(exponential_buckets(0.01, 2.0, 16)),
            events_lost: Counter::default(),
            undecodable: Family::default(),
        };
        let m = &metrics;
        registry.register(
            "api_writes",
            "Writes to the project's own objects, by operation and result",
            m.writes.clone(),
        );
        registry.register(
            "reconcile_errors",
            "Reconciles that failed, by reason",
            m.errors.clone(),
        );
        registry.register_with_unit(
            "reconcile_duration",
            "Time one reconcile took",
            Unit::Seconds,
            m.reconciles.clone(),
        );
        registry.register(
            "jobs_finished",
            "Jobs that ended, by class, outcome and reason",
            m.finished.clone(),
        );
        registry.register(
            "leading",
            "1 while this process holds the lease",
            m.leading.clone(),
        );
        registry.register(
            "default_job_classes",
            "JobClasses annotated as the global default; anything but 1 needs attention",
            m.default_classes.clone(),
        );
        registry.register_with_unit(
            "ttl_lateness",
            "Time between the end of a Job's TTL and its deletion",
            Unit::Seconds,
            m.ttl_lateness.clone(),
        );
        registry.register(
            "events_lost",
            "Events that were not written: too many were waiting, or the API server refused them",
            m.events_lost.clone(),
        );
        registry.register(
            "undecodable_objects",
            "Objects that could not be decoded and are ignored",
            m.undecodable.clone(),
        );
        Self {
            registry: Arc::new(registry),
            ..metrics
        }
    }
}

impl Metrics {
    pub(crate) fn wrote(&self, operation: &'static str, error: Option<&kube::Error>) {
        let result = match error {
            None => "ok".to_owned(),
            Some(kube::Error::Api(status)) => status.code.to_string(),
            Some(_) => "unreachable".to_owned(),
        };
        self.writes
            .get_or_create(&Write {
                operation: operation.to_owned(),
                result,
            })
            .inc();
    }

    pub(crate) fn failed(&self, controller: &'static str, reason: &str) {
        self.errors
            .get_or_create(&Reason {
                controller: controller.to_owned(),
                reason: reason.to_owned(),
            })
            .inc();
    }

    pub(crate) fn reconciled(&self, controller: &'static str, took: Duration) {
        self.reconciles
            .get_or_create(&Controller {
                controller: controller.to_owned(),
            })
            .observe(took.as_secs_f64());
    }

    pub(crate) fn finished(&self, class: &str, result: &JobResult) {
        let labels = Finish {
            class: class.to_owned(),
            outcome: format!("{:?}", result.outcome),
            reason: result.reason.clone(),
        };
        self.finished.get_or_create(&labels).inc();
    }

    pub(crate) fn leads(&self, lease: &str, leads: bool) {
        self.leading
            .get_or_create(&Lease {
                lease: lease.to_owned(),
            })
            .set(i64::from(leads));
    }

    pub(crate) fn default_classes(&self, count: usize) {
        self.default_classes.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn collected(&self, lateness: f64) {
        self.ttl_lateness.observe(lateness.max(0.0));
    }

    pub(crate) fn event_lost(&self) {
        self.events_lost.inc();
    }

    pub(crate) fn undecodable(&self, kind: &str) {
        self.undecodable
            .get_or_create(&Controller {
                controller: kind.to_owned(),
            })
            .inc();
    }

    /// Everything, in the Prometheus text format.
    pub fn render(&self) -> String {
        let mut page = String::new();
        match text::encode(&mut page, &self.registry) {
            Ok(()) => page,
            Err(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_own_lines_are_never_written_whatever_the_level() {
        for level in [
            "info",
            "trace",
            "kube_client=trace",
            "kube_client::client=debug,info",
        ] {
            let filter = filter(level).unwrap().to_string();
            let client: Vec<_> = filter
                .split(',')
                .filter(|d| d.starts_with("kube_client"))
                .collect();
            assert_eq!(client, ["kube_client=off"], "{level}");
        }
        assert!(filter("no=such=level").is_err());
    }
}

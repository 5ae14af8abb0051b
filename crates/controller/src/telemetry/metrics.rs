//! The instruments of one adapter. One set of them, read by `/metrics` and, where there is an endpoint, sent by OTLP.
//!
//! Names are those of OpenTelemetry: `ayatori.reconcile.duration` in seconds is shown to Prometheus as
//! `ayatori_reconcile_duration_seconds`. Labels never hold names of Jobs or namespaces.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ayatori_core::job::JobResult;
use http::StatusCode;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter, MeterProvider, UpDownCounter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, Pipeline, SdkMeterProvider, Temporality};
use prometheus::TextEncoder;

use crate::telemetry::process;

/// The controllers whose queues are told of.
const CONTROLLERS: [&str; 3] = ["job", "jobclass", "parameters"];
/// Bounds of how late deletions are, in seconds. The threshold of an alert is exact where it is one of them: between
/// two of them a quantile is guessed.
const LATENESS: [f64; 16] = [
    0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];
/// Why reconciles fail: all that the label says. The runbook of the alert has a row for each.
pub(crate) const FAILURES: [&str; 17] = [
    "ApiError",
    "AuthenticationFailed",
    "BackendForbidden",
    "BackendUnavailable",
    "Forbidden",
    "Invalid",
    "InvalidEndpoint",
    "ParametersReplaced",
    "ReferenceForbidden",
    "ServerError",
    "Timeout",
    "TooManyRequests",
    "TooManySteps",
    "Unauthorized",
    "Undecodable",
    "UnknownField",
    "Unreachable",
];
/// Any other reason, such as an adapter of somebody else's may have.
const OTHER: &str = "Other";
/// What stands in for the status of a request that had no answer.
const NO_ANSWER: &str = "no_answer";

/// The instruments of one adapter. A clone is the same instruments.
#[derive(Clone)]
pub struct Metrics(Arc<Instruments>);

struct Instruments {
    provider: SdkMeterProvider,
    registry: prometheus::Registry,
    meter: Meter,
    writes: Counter<u64>,
    api_requests: Counter<u64>,
    backend_requests: Counter<u64>,
    backend_times: Histogram<f64>,
    errors: Counter<u64>,
    reconciles: Histogram<f64>,
    waiting: UpDownCounter<i64>,
    active: UpDownCounter<i64>,
    finished: Counter<u64>,
    stages: Histogram<f64>,
    leading: Gauge<u64>,
    ttl_lateness: Histogram<f64>,
    events_lost: Counter<u64>,
    undecodable: Counter<u64>,
}

impl Default for Metrics {
    /// Instruments that only [`Metrics::render`] reads.
    fn default() -> Self {
        Self::new(Resource::builder_empty().build(), None::<NoReader>)
    }
}

impl Metrics {
    /// Instruments that are also read by `sender`.
    pub(crate) fn new(resource: Resource, sender: Option<impl MetricReader>) -> Self {
        let registry = prometheus::Registry::new();
        let page = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_target_info()
            .scope_info_enabled(false)
            .build()
            .expect("a new registry holds nothing of that name");
        let provider = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(OfNow(page));
        let provider = match sender {
            Some(sender) => provider.with_reader(OfNow(sender)).build(),
            None => provider.build(),
        };
        let meter = provider.meter("ayatori");
        let counter = |name, unit, what| {
            let counter = meter.u64_counter(name).with_unit(unit).with_description(what);
            counter.build()
        };
        let seconds = |name, what, bounds| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(what);
            histogram.with_boundaries(bounds).build()
        };
        let level = |name, what| meter.i64_up_down_counter(name).with_description(what).build();
        let instruments = Instruments {
            writes: counter(
                "ayatori.api.writes",
                "{write}",
                "Writes to the project's own objects, by operation and result",
            ),
            api_requests: counter(
                "ayatori.api.requests",
                "{request}",
                "Requests to the API server, by method and status",
            ),
            backend_requests: counter(
                "ayatori.backend.requests",
                "{request}",
                "Requests to the backend, by operation and status, or why there was none",
            ),
            backend_times: seconds(
                "ayatori.backend.request.duration",
                "Time one request to the backend took",
                doubled(0.001, 18),
            ),
            errors: counter(
                "ayatori.reconcile.errors",
                "{reconcile}",
                "Reconciles that failed, by reason",
            ),
            reconciles: seconds(
                "ayatori.reconcile.duration",
                "Time one reconcile took",
                doubled(0.001, 16),
            ),
            waiting: level(
                "ayatori.reconcile.queue_depth",
                "Objects that are due and wait for a place",
            ),
            active: level("ayatori.reconciles.active", "Reconciles that are under way"),
            finished: counter(
                "ayatori.jobs.finished",
                "{job}",
                "Jobs that ended, by class, outcome and reason",
            ),
            stages: seconds(
                "ayatori.job.stage.duration",
                "Time from the stage of a Job before, or its creation, until this condition became True",
                doubled(0.5, 18),
            ),
            leading: meter
                .u64_gauge("ayatori.leading")
                .with_description("1 while this process holds the lease")
                .build(),
            ttl_lateness: seconds(
                "ayatori.ttl.lateness",
                "Time between the end of a Job's TTL and its deletion",
                LATENESS.to_vec(),
            ),
            events_lost: counter(
                "ayatori.events.lost",
                "{event}",
                "Events that were not written: too many were waiting, or the API server refused them",
            ),
            undecodable: counter(
                "ayatori.undecodable_objects",
                "{object}",
                "Objects that could not be decoded and are ignored",
            ),
            registry,
            provider,
            meter,
        };
        // A rate needs a counter that was seen before it rises.
        instruments.events_lost.add(0, &[]);
        for controller in CONTROLLERS.map(|name| [KeyValue::new("controller", name)]) {
            instruments.waiting.add(0, &controller);
            instruments.active.add(0, &controller);
        }
        process::observe(&instruments.meter);
        Self(Arc::new(instruments))
    }

    /// For instruments that count when somebody asks.
    pub(crate) fn meter(&self) -> &Meter {
        &self.0.meter
    }

    pub(crate) fn wrote(&self, operation: &'static str, error: Option<&kube::Error>) {
        let result = match error {
            None => "ok".to_owned(),
            Some(kube::Error::Api(status)) => status.code.to_string(),
            Some(_) => "unreachable".to_owned(),
        };
        let labels = [
            KeyValue::new("operation", operation),
            KeyValue::new("result", result),
        ];
        self.0.writes.add(1, &labels);
    }

    /// A request to the API server was answered with this status, or not at all.
    pub(crate) fn asked_api(&self, method: &http::Method, status: Option<StatusCode>) {
        let code = status.map_or_else(|| NO_ANSWER.to_owned(), |status| status.as_u16().to_string());
        let labels = [
            KeyValue::new("method", method.to_string()),
            KeyValue::new("code", code),
        ];
        self.0.api_requests.add(1, &labels);
    }

    pub(crate) fn asked_backend(
        &self,
        operation: Cow<'static, str>,
        code: Cow<'static, str>,
        took: Duration,
    ) {
        let labels = [KeyValue::new("operation", operation), KeyValue::new("code", code)];
        self.0.backend_requests.add(1, &labels);
        let [operation, _] = labels;
        self.0.backend_times.record(took.as_secs_f64(), &[operation]);
    }

    pub(crate) fn failed(&self, controller: &'static str, reason: &str) {
        let known = FAILURES.into_iter().find(|known| *known == reason);
        let labels = [
            KeyValue::new("controller", controller),
            KeyValue::new("reason", known.unwrap_or(OTHER)),
        ];
        self.0.errors.add(1, &labels);
    }

    pub(crate) fn reconciled(&self, controller: &'static str, took: Duration) {
        let labels = [KeyValue::new("controller", controller)];
        self.0.reconciles.record(took.as_secs_f64(), &labels);
    }

    /// An object of this controller is due and waits for a place, until what this returns is dropped.
    pub(crate) fn waits(&self, controller: &'static str) -> Held {
        Held::new(&self.0.waiting, controller)
    }

    /// An object of this controller is looked at, until what this returns is dropped.
    pub(crate) fn works(&self, controller: &'static str) -> Held {
        Held::new(&self.0.active, controller)
    }

    pub(crate) fn finished(&self, class: &str, result: &JobResult) {
        let labels = [
            KeyValue::new("class", class.to_owned()),
            KeyValue::new("outcome", format!("{:?}", result.outcome)),
            KeyValue::new("reason", result.reason.clone()),
        ];
        self.0.finished.add(1, &labels);
    }

    pub(crate) fn reached(&self, class: &str, stage: &'static str, took: Duration) {
        let labels = [
            KeyValue::new("class", class.to_owned()),
            KeyValue::new("stage", stage),
        ];
        self.0.stages.record(took.as_secs_f64(), &labels);
    }

    pub(crate) fn leads(&self, lease: &str, leads: bool) {
        let labels = [KeyValue::new("lease", lease.to_owned())];
        self.0.leading.record(leads.into(), &labels);
    }

    pub(crate) fn collected(&self, lateness: f64) {
        self.0.ttl_lateness.record(lateness.max(0.0), &[]);
    }

    pub(crate) fn event_lost(&self) {
        self.0.events_lost.add(1, &[]);
    }

    pub(crate) fn undecodable(&self, kind: &str) {
        self.0
            .undecodable
            .add(1, &[KeyValue::new("kind", kind.to_owned())]);
    }

    /// Everything, in the Prometheus text format.
    pub fn render(&self) -> String {
        let families = self.0.registry.gather();
        TextEncoder::new().encode_to_string(&families).unwrap_or_default()
    }

    /// Sends what was not sent yet, and nothing afterwards. May block.
    pub(crate) fn shutdown(&self, limit: Duration) {
        // Whether it arrived, the sender says.
        let _ = self.0.provider.shutdown_with_timeout(limit);
    }
}

/// Something that counts for as long as it is held.
pub(crate) struct Held {
    counter: UpDownCounter<i64>,
    labels: [KeyValue; 1],
}

impl Held {
    fn new(counter: &UpDownCounter<i64>, controller: &'static str) -> Self {
        let labels = [KeyValue::new("controller", controller)];
        counter.add(1, &labels);
        Self {
            counter: counter.clone(),
            labels,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counter.add(-1, &self.labels);
    }
}

/// Bounds of buckets, each twice the one before.
fn doubled(first: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(first), |bound| Some(bound * 2.0))
        .take(count)
        .collect()
}

/// A reader to which gauges that count when asked show what was counted this time, and nothing else. Otherwise a
/// class that is gone would be shown as it was last, for ever.
struct OfNow<R>(R);

impl<R: MetricReader> MetricReader for OfNow<R> {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        match kind {
            InstrumentKind::ObservableGauge => Temporality::Delta,
            other => self.0.temporality(other),
        }
    }
}

impl<R: fmt::Debug> fmt::Debug for OfNow<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where nothing but the page is read.
type NoReader = opentelemetry_sdk::metrics::ManualReader;

#[cfg(test)]
mod tests {
    use ayatori_core::job::Outcome;

    use super::*;

    #[test]
    fn the_page_shows_what_was_told_under_the_names_that_are_documented() {
        let metrics = Metrics::default();
        let failed = JobResult {
            outcome: Outcome::Failed,
            reason: "NonZeroExit".to_owned(),
            exit_code: Some(3),
            signal: None,
            message: None,
        };
        metrics.finished("rootless", &failed);
        metrics.reached("rootless", "Started", Duration::from_secs(3));
        metrics.asked_api(&http::Method::GET, Some(StatusCode::OK));
        metrics.asked_api(&http::Method::PATCH, None);
        metrics.asked_backend("create".into(), "201".into(), Duration::from_millis(3));
        metrics.wrote("report", None);
        metrics.failed("job", "Timeout");
        metrics.failed("job", "NobodyKnowsThis");
        metrics.reconciled("job", Duration::from_millis(3));
        metrics.leads("unowned", true);
        metrics.collected(-1.0);
        metrics.event_lost();
        metrics.undecodable("Job");
        let works = metrics.works("job");
        let page = metrics.render();
        for line in [
            "# HELP ayatori_jobs_finished_total Jobs that ended, by class, outcome and reason",
            "# TYPE ayatori_jobs_finished_total counter",
            r#"ayatori_jobs_finished_total{class="rootless",outcome="Failed",reason="NonZeroExit"} 1"#,
            r#"ayatori_job_stage_duration_seconds_bucket{class="rootless",stage="Started",le="4"} 1"#,
            r#"ayatori_api_requests_total{code="200",method="GET"} 1"#,
            r#"ayatori_api_requests_total{code="no_answer",method="PATCH"} 1"#,
            r#"ayatori_backend_requests_total{code="201",operation="create"} 1"#,
            r#"ayatori_backend_request_duration_seconds_count{operation="create"} 1"#,
            r#"ayatori_api_writes_total{operation="report",result="ok"} 1"#,
            r#"ayatori_reconcile_errors_total{controller="job",reason="Timeout"} 1"#,
            r#"ayatori_reconcile_errors_total{controller="job",reason="Other"} 1"#,
            r#"ayatori_reconcile_duration_seconds_bucket{controller="job",le="0.004"} 1"#,
            r#"ayatori_reconcile_queue_depth{controller="job"} 0"#,
            r#"ayatori_reconciles_active{controller="job"} 1"#,
            r#"ayatori_leading{lease="unowned"} 1"#,
            "ayatori_ttl_lateness_seconds_sum 0",
            r#"ayatori_ttl_lateness_seconds_bucket{le="60"} 1"#,
            "ayatori_events_lost_total 1",
            r#"ayatori_undecodable_objects_total{kind="Job"} 1"#,
            "# TYPE process_cpu_seconds_total counter",
            "# TYPE process_resident_memory_bytes gauge",
            "# TYPE process_start_time_seconds gauge",
            "# TYPE process_open_fds gauge",
        ] {
            assert!(
                page.lines().any(|shown| shown == line),
                "{line} is not in\n{page}"
            );
        }
        drop(works);
        let active = r#"ayatori_reconciles_active{controller="job"} 0"#;
        assert!(metrics.render().contains(active));
    }

    #[test]
    fn the_runbook_has_every_reason_that_a_reconcile_can_fail_for_and_no_other() {
        let runbook = include_str!("../../../../docs/runbooks/reconcile-errors.md");
        let rows = runbook.lines().filter(|line| line.starts_with("| `"));
        let reasons = rows.filter_map(|row| row.split(" | ").next());
        let mut told: Vec<_> = reasons
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .collect();
        told.sort_unstable();
        let mut counted = [&FAILURES[..], &[OTHER]].concat();
        counted.sort_unstable();
        assert_eq!(told, counted);
    }

    #[test]
    fn a_class_that_is_not_counted_any_more_is_not_shown_any_more() {
        let metrics = Metrics::default();
        let classes = Arc::new(std::sync::Mutex::new(vec!["old", "new"]));
        let counted = classes.clone();
        metrics
            .meter()
            .u64_observable_gauge("ayatori.classes")
            .with_callback(move |observer| {
                for class in counted.lock().unwrap().iter() {
                    observer.observe(1, &[KeyValue::new("class", *class)]);
                }
            })
            .build();
        assert!(metrics.render().contains(r#"{class="old"} 1"#));
        classes.lock().unwrap().retain(|class| *class == "new");
        let page = metrics.render();
        assert!(
            !page.contains("old") && page.contains(r#"{class="new"} 1"#),
            "{page}"
        );
    }
}

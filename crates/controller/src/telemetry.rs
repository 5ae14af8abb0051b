//! Logs, metrics and traces: what an adapter tells of itself.
//!
//! There is one set of [instruments](Metrics). `/metrics` reads it, and where there is an endpoint for OTLP, so does
//! what sends it there. Nothing here ever holds up or fails what it tells of.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;

mod api_requests;
pub(crate) mod census;
mod logs;
mod metrics;
mod otlp;
mod process;
pub(crate) mod stages;

pub use api_requests::ApiRequests;
pub use logs::{LogFormat, init_logs};
pub use metrics::Metrics;

/// How long the last words may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a process tells of itself, and to whom. A clone is the same.
#[derive(Clone, Default)]
pub struct Telemetry {
    metrics: Metrics,
}

impl Telemetry {
    /// Of the replica `identity` of the adapter `name`; sent by OTLP to `endpoint`, if there is one. Needs a runtime
    /// of several threads.
    pub fn start(name: &'static str, identity: &str, endpoint: Option<&str>) -> anyhow::Result<Self> {
        let version = env!("CARGO_PKG_VERSION");
        let resource = Resource::builder()
            .with_service_name(name)
            .with_attributes([
                KeyValue::new("service.namespace", "ayatori"),
                KeyValue::new("service.version", version),
                KeyValue::new("service.instance.id", identity.to_owned()),
            ])
            .build();
        let endpoint = endpoint.map(otlp::Endpoint::new).transpose()?;
        let sender = endpoint.as_ref().map(otlp::Endpoint::metrics).transpose()?;
        let metrics = Metrics::new(resource, sender);
        metrics
            .meter()
            .u64_observable_gauge("ayatori.build_info")
            .with_description("1, with the version of the adapter")
            .with_callback(move |observer| observer.observe(1, &[KeyValue::new("version", version)]))
            .build();
        Ok(Self { metrics })
    }

    /// The instruments.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Waits for the answer to one request to the backend, and tells of it. `code` is the status it was answered
    /// with, or a word for why it was not.
    pub async fn backend_request<T>(
        &self,
        operation: impl Into<Cow<'static, str>>,
        request: impl Future<Output = T>,
        code: impl FnOnce(&T) -> Cow<'static, str>,
    ) -> T {
        let began = Instant::now();
        let answer = request.await;
        let code = code(&answer);
        self.metrics
            .asked_backend(operation.into(), code, began.elapsed());
        answer
    }

    /// Sends what was not sent yet, and nothing afterwards.
    pub async fn shutdown(&self) {
        let metrics = self.metrics.clone();
        let last_words = tokio::task::spawn_blocking(move || metrics.shutdown(FAREWELL));
        if last_words.await.is_err() {
            tracing::debug!("the last of the telemetry was not sent");
        }
    }
}

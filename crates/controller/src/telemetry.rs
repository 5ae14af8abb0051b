//! Logs, metrics and traces: what an adapter tells of itself.
//!
//! There is one set of [instruments](Metrics). `/metrics` reads it, and where there is an endpoint for OTLP, so does
//! what sends it there. Nothing here ever holds up or fails what it tells of.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;

mod api_requests;
pub(crate) mod census;
pub(crate) mod job_trace;
mod logs;
pub(crate) mod metrics;
mod otlp;
mod process;
pub(crate) mod stages;
pub(crate) mod traces;

pub use api_requests::ApiRequests;
pub use job_trace::Caller;
pub use logs::{LogFormat, init_logs};
pub(crate) use metrics::Held;
pub use metrics::Metrics;
use traces::Traces;

/// How long the last words may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// The word for a request that nobody waits for any longer.
const GIVEN_UP: &str = "timeout";

/// What a process tells of itself, and to whom. A clone is the same.
#[derive(Clone, Default)]
pub struct Telemetry {
    metrics: Metrics,
    traces: Option<Traces>,
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
        let spans = endpoint.as_ref().map(otlp::Endpoint::spans).transpose()?;
        let traces = spans.map(|spans| Traces::new(spans, &resource));
        let metrics = Metrics::new(resource, sender);
        metrics
            .meter()
            .u64_observable_gauge("ayatori.build_info")
            .with_description("1, with the version of the adapter")
            .with_callback(move |observer| observer.observe(1, &[KeyValue::new("version", version)]))
            .build();
        Ok(Self { metrics, traces })
    }

    /// The instruments.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Where spans go, if anywhere.
    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.traces.as_ref()
    }

    /// Waits for the answer to one request to the backend, and tells of it. `code` is the status it was answered
    /// with, or a word for why it was not: `timeout` also where the caller waits no longer and drops this.
    pub async fn backend_request<T>(
        &self,
        operation: impl Into<Cow<'static, str>>,
        request: impl Future<Output = T>,
        code: impl FnOnce(&T) -> Cow<'static, str>,
    ) -> T {
        let mut asked = BackendRequest {
            metrics: &self.metrics,
            operation: operation.into(),
            code: GIVEN_UP.into(),
            began: Instant::now(),
            at: Timestamp::now(),
        };
        let answer = request.await;
        asked.code = code(&answer);
        answer
    }

    /// Sends what was not sent yet, and nothing afterwards.
    pub async fn shutdown(&self) {
        let Self { metrics, traces } = self.clone();
        let metrics = tokio::task::spawn_blocking(move || metrics.shutdown(FAREWELL));
        let traces = tokio::task::spawn_blocking(move || {
            if let Some(traces) = traces {
                traces.shutdown(FAREWELL);
            }
        });
        if let (Err(_), _) | (_, Err(_)) = (metrics.await, traces.await) {
            tracing::debug!("the last of the telemetry was not sent");
        }
    }
}

/// A request to the backend, which is told of when this is dropped.
struct BackendRequest<'a> {
    metrics: &'a Metrics,
    operation: Cow<'static, str>,
    code: Cow<'static, str>,
    began: Instant,
    at: Timestamp,
}

impl Drop for BackendRequest<'_> {
    fn drop(&mut self) {
        let (operation, code) = (self.operation.clone(), self.code.clone());
        self.metrics
            .asked_backend(operation.clone(), code.clone(), self.began.elapsed());
        traces::asked_backend(operation, code, self.at);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_request_to_the_backend_is_told_of_once_also_where_nobody_waits_for_its_answer_any_longer() {
        let telemetry = Telemetry::default();
        let answered = telemetry.backend_request("create", ready(()), |()| "201".into());
        assert!(answered.now_or_never().is_some());
        let given_up = telemetry.backend_request("create", pending(), |()| "201".into());
        assert!(given_up.now_or_never().is_none());
        let page = telemetry.metrics().render();
        for line in [
            r#"ayatori_backend_requests_total{code="201",operation="create"} 1"#,
            r#"ayatori_backend_requests_total{code="timeout",operation="create"} 1"#,
        ] {
            assert!(
                page.lines().any(|shown| shown == line),
                "{line} is not in\n{page}"
            );
        }
    }
}

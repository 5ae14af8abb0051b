//! Where telemetry is sent by OTLP over gRPC.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{MetricExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{PeriodicReader, Temporality};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

/// How long one batch may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A collector of telemetry.
pub(crate) struct Endpoint {
    address: String,
    /// What of the address is told in logs: neither a user nor a path.
    server: String,
}

impl Endpoint {
    /// The collector at this address. Connects to nothing.
    pub(crate) fn new(address: &str) -> anyhow::Result<Self> {
        let uri: http::Uri = address.parse().context("--otlp-endpoint is no URL")?;
        let host = uri.host().filter(|host| !host.is_empty());
        let (Some("http" | "https"), Some(host)) = (uri.scheme_str(), host) else {
            anyhow::bail!("--otlp-endpoint must begin with http:// or https:// and name a host");
        };
        let server = match uri.port_u16() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        Ok(Self {
            address: address.to_owned(),
            server,
        })
    }

    /// What reads all metrics once a minute (`OTEL_METRIC_EXPORT_INTERVAL`) and sends them.
    pub(crate) fn metrics(&self) -> anyhow::Result<impl MetricReader + use<>> {
        let exporter = self
            .reach(MetricExporter::builder().with_tonic())
            .build()
            .context("metrics cannot be sent by OTLP")?;
        Ok(PeriodicReader::builder(self.told("metrics", exporter)).build())
    }

    /// What sends spans.
    pub(crate) fn spans(&self) -> anyhow::Result<impl SpanExporter + use<>> {
        let exporter = self
            .reach(opentelemetry_otlp::SpanExporter::builder().with_tonic())
            .build()
            .context("traces cannot be sent by OTLP")?;
        Ok(self.told("traces", exporter))
    }

    fn told<E>(&self, signal: &'static str, exporter: E) -> Told<E> {
        let reached = Reached {
            signal,
            server: self.server.clone(),
            away: AtomicBool::new(false),
        };
        Told { exporter, reached }
    }

    fn reach<T: WithExportConfig + WithTonicConfig>(&self, exporter: T) -> T {
        let exporter = exporter.with_endpoint(&self.address).with_timeout(LIMIT);
        if self.address.starts_with("https://") {
            return exporter.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        exporter
    }
}

/// Whether the collector takes what it is sent of one kind: there are some that take traces alone. Said when it changes,
/// and not for every batch.
#[derive(Debug)]
struct Reached {
    signal: &'static str,
    server: String,
    away: AtomicBool,
}

impl Reached {
    fn is_news(&self, away: bool) -> bool {
        self.away.swap(away, Ordering::Relaxed) != away
    }

    fn note(&self, sent: &OTelSdkResult) {
        if !self.is_news(sent.is_err()) {
            return;
        }
        match sent {
            Ok(()) => tracing::info!(
                endpoint = self.server,
                signal = self.signal,
                "telemetry is taken again"
            ),
            Err(error) => tracing::warn!(
                endpoint = self.server,
                signal = self.signal,
                error = ayatori_core::conditions::clean(&error.to_string(), 300),
                "telemetry cannot be sent and is dropped; look at --otlp-endpoint and at the collector there"
            ),
        }
    }
}

/// An exporter that says when it stops or begins to get through.
struct Told<E> {
    exporter: E,
    reached: Reached,
}

impl<E> fmt::Debug for Told<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reached.fmt(f)
    }
}

impl<E: PushMetricExporter> PushMetricExporter for Told<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let sent = self.exporter.export(metrics).await;
        self.reached.note(&sent);
        sent
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}

impl<E: SpanExporter> SpanExporter for Told<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.exporter.export(batch).await;
        self.reached.note(&sent);
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_that_stays_away_is_said_to_be_once() {
        let told = Endpoint::new("http://localhost:4317").unwrap().told("traces", ());
        for (away, news) in [
            (false, false),
            (true, true),
            (true, false),
            (false, true),
            (false, false),
            (true, true),
        ] {
            assert_eq!(told.reached.is_news(away), news);
        }
    }

    #[test]
    fn an_endpoint_is_a_url_of_a_host() {
        for (address, fine) in [
            ("http://collector.monitoring:4317", true),
            ("https://10.0.0.1:4317/", true),
            ("collector:4317", false),
            ("grpc://collector:4317", false),
            ("", false),
            ("http://", false),
        ] {
            assert_eq!(Endpoint::new(address).is_ok(), fine, "{address}");
        }
    }
}

//! Where telemetry is sent by OTLP over gRPC.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{MetricExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{PeriodicReader, Temporality};

/// How long one batch may take.
const LIMIT: Duration = Duration::from_secs(10);

/// A collector of telemetry.
#[derive(Clone)]
pub(crate) struct Endpoint {
    address: String,
    reached: Arc<Reached>,
}

impl Endpoint {
    /// The collector at this address. Connects to nothing.
    pub(crate) fn new(address: &str) -> anyhow::Result<Self> {
        let uri: http::Uri = address
            .parse()
            .with_context(|| format!("--otlp-endpoint {address:?} is no URL"))?;
        anyhow::ensure!(
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some(),
            "--otlp-endpoint {address:?} must begin with http:// or https:// and name a host"
        );
        // Neither a path nor a user is told in logs.
        let reached = Reached {
            server: format!(
                "{}:{}",
                uri.host().unwrap_or_default(),
                uri.port_u16().unwrap_or_default()
            ),
            away: AtomicBool::new(false),
        };
        Ok(Self {
            address: address.to_owned(),
            reached: Arc::new(reached),
        })
    }

    /// What reads all metrics once a minute (`OTEL_METRIC_EXPORT_INTERVAL`) and sends them.
    pub(crate) fn metrics(&self) -> anyhow::Result<impl MetricReader + use<>> {
        let exporter = self
            .reach(MetricExporter::builder().with_tonic())
            .build()
            .context("metrics cannot be sent by OTLP")?;
        Ok(PeriodicReader::builder(Told {
            exporter,
            reached: self.reached.clone(),
        })
        .build())
    }

    fn reach<T: WithExportConfig + WithTonicConfig>(&self, exporter: T) -> T {
        let exporter = exporter.with_endpoint(&self.address).with_timeout(LIMIT);
        if self.address.starts_with("https://") {
            return exporter.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        exporter
    }
}

/// Whether the collector takes what it is sent. Said when it changes, and not for every batch.
#[derive(Debug)]
struct Reached {
    server: String,
    away: AtomicBool,
}

impl Reached {
    fn note(&self, sent: &OTelSdkResult) {
        let away = sent.is_err();
        if self.away.swap(away, Ordering::Relaxed) == away {
            return;
        }
        match sent {
            Ok(()) => tracing::info!(endpoint = self.server, "telemetry is taken again"),
            Err(error) => tracing::warn!(
                endpoint = self.server,
                error = ayatori_core::conditions::clean(&error.to_string(), 300),
                "telemetry cannot be sent and is dropped; look at --otlp-endpoint and at the collector there"
            ),
        }
    }
}

/// An exporter that says when it stops or begins to get through.
struct Told<E> {
    exporter: E,
    reached: Arc<Reached>,
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

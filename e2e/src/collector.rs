//! A collector of telemetry: takes what adapters send by OTLP over gRPC, and keeps it.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// A collector on loopback. It ends when dropped.
pub struct Collector {
    /// Where it takes what is sent, as `--otlp-endpoint` wants it.
    pub endpoint: String,
    kept: Kept,
    task: JoinHandle<()>,
}

/// A span, and the replica that sent it.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its name in Leases.
    pub replica: String,
    /// What it sent.
    pub span: Span,
}

#[derive(Clone, Default)]
struct Kept {
    traces: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    metrics: Arc<Mutex<Option<ExportMetricsServiceRequest>>>,
}

impl Collector {
    /// Starts one on a free port.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("the collector cannot listen")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let kept = Kept::default();
        let serving = Server::builder()
            .add_service(TraceServiceServer::new(kept.clone()))
            .add_service(MetricsServiceServer::new(kept.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        let task = tokio::spawn(async {
            if let Err(error) = serving.await {
                eprintln!("the collector ended: {error}");
            }
        });
        Ok(Self { endpoint, kept, task })
    }

    /// The spans of a trace that have arrived, in their order.
    pub fn spans(&self, trace: &str) -> Vec<Sent> {
        let traces = self.kept.traces.lock().unwrap_or_else(PoisonError::into_inner);
        let resources = traces.iter().flat_map(|request| &request.resource_spans);
        let all = resources.flat_map(|of_one| {
            let resource = of_one.resource.as_ref();
            let attributes = resource.map_or(&[][..], |resource| &resource.attributes);
            let replica = attribute(attributes, "service.instance.id").unwrap_or_default();
            let spans = of_one.scope_spans.iter().flat_map(|scope| &scope.spans);
            spans.map(move |span| Sent {
                replica: replica.clone(),
                span: span.clone(),
            })
        });
        all.filter(|sent| hex(&sent.span.trace_id) == trace).collect()
    }

    /// The metrics that arrived last.
    pub fn metrics(&self) -> Vec<Metric> {
        let metrics = self.kept.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        let resources = metrics.iter().flat_map(|request| &request.resource_metrics);
        let scopes = resources.flat_map(|of_one| &of_one.scope_metrics);
        scopes.flat_map(|scope| scope.metrics.clone()).collect()
    }

    /// Everything that has arrived of traces, with every name and value in it, to be searched.
    pub fn transcript(&self) -> String {
        let traces = self.kept.traces.lock().unwrap_or_else(PoisonError::into_inner);
        traces.iter().map(|request| format!("{request:#?}\n")).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The text of an attribute.
pub fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = &attributes.iter().find(|a| a.key == key)?.value;
    match value {
        Some(AnyValue {
            value: Some(any_value::Value::StringValue(text)),
        }) => Some(text.clone()),
        _ => None,
    }
}

/// An id as people write it.
pub fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut traces = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
        traces.push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Kept {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let mut metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        *metrics = Some(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

//! `/healthz`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::telemetry::Metrics;

/// Whether the adapter has seen the whole cluster once, and can take over or work.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// From now on it is ready.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Serves until the process ends. Ready means that all caches are filled; a standby replica is ready too.
pub async fn serve(listen: SocketAddr, metrics: Metrics, readiness: Readiness) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(listen)
        .await
        .with_context(|| format!("--listen {listen}: cannot listen there"))?;
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(page).with_state(metrics));
    axum::serve(listener, routes)
        .await
        .context("the health server ended")
}

async fn ready(State(readiness): State<Readiness>) -> impl IntoResponse {
    if readiness.0.load(Ordering::Relaxed) {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet\n")
    }
}

async fn page(State(metrics): State<Metrics>) -> impl IntoResponse {
    ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], metrics.render())
}

//! `/healthz`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;

use crate::telemetry::Metrics;

/// After this time what is still waited for is logged.
const LONG: Duration = Duration::from_secs(10);

/// Whether the adapter has seen the whole cluster once, and can take over or work; what it waits for until then.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<Mutex<Option<&'static str>>>);

impl Default for Readiness {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some("the start of the adapter"))))
    }
}

impl Readiness {
    /// It is not ready before this has come.
    pub async fn after<T>(&self, what: &'static str, comes: impl Future<Output = T>) -> T {
        self.now(Some(what));
        let mut comes = pin!(comes);
        match tokio::time::timeout(LONG, &mut comes).await {
            Ok(came) => came,
            Err(_) => {
                tracing::warn!(waits_for = what, "not ready yet");
                comes.await
            }
        }
    }

    /// From now on it is ready.
    pub fn set(&self) {
        self.now(None);
    }

    fn now(&self, waits_for: Option<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = waits_for;
    }

    fn waits_for(&self) -> Option<&'static str> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

async fn ready(State(readiness): State<Readiness>) -> (StatusCode, String) {
    match readiness.waits_for() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(what) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: waiting for {what}\n"),
        ),
    }
}

async fn page(State(metrics): State<Metrics>) -> impl IntoResponse {
    ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], metrics.render())
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn until_it_is_ready_it_names_what_it_waits_for() {
        let readiness = Readiness::default();
        let answer = async || ready(State(readiness.clone())).await;
        let (code, said) = answer().await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE, "{said}");

        let (comes, waited) = oneshot::channel();
        let mut waiting = pin!(readiness.after("the first list of Jobs", waited));
        assert!(futures::poll!(&mut waiting).is_pending());
        let (code, said) = answer().await;
        assert_eq!(
            (code, said.as_str()),
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "not ready: waiting for the first list of Jobs\n"
            )
        );

        comes.send("here").unwrap();
        assert_eq!(waiting.await, Ok("here"));
        readiness.set();
        assert_eq!(answer().await, (StatusCode::OK, "ok\n".to_owned()));
    }
}

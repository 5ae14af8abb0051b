//! Counts every request to the API server, whoever of the adapter sends it.

use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use tower::{Layer, Service};

use crate::telemetry::Metrics;

/// Has what passes counted.
#[derive(Clone)]
pub struct ApiRequests(pub Metrics);

impl<S> Layer<S> for ApiRequests {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted {
            inner,
            metrics: self.0.clone(),
        }
    }
}

/// A service whose requests are counted.
#[derive(Clone)]
pub struct Counted<S> {
    inner: S,
    metrics: Metrics,
}

impl<S, B, R> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let metrics = self.metrics.clone();
        let method = request.method().clone();
        let answer = self.inner.call(request);
        answer
            .inspect(move |answer| metrics.asked_api(&method, answer.as_ref().ok().map(Response::status)))
            .boxed()
    }
}

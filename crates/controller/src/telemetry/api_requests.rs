//! Counts every request to the API server, whoever of the adapter sends it.

use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
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
        let mut asked = Asked {
            metrics: self.metrics.clone(),
            method: request.method().clone(),
            status: None,
        };
        let answer = self.inner.call(request);
        answer
            .inspect(move |answer| asked.answered(answer.as_ref().ok().map(Response::status)))
            .boxed()
    }
}

/// A request, which is counted when this is dropped: also one that nobody waits for any longer, which is how most end
/// that are not answered.
struct Asked {
    metrics: Metrics,
    method: Method,
    status: Option<StatusCode>,
}

impl Asked {
    fn answered(&mut self, status: Option<StatusCode>) {
        self.status = status;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.metrics.asked_api(&self.method, self.status);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, pending, ready};

    use futures::future::Either;
    use tower::service_fn;

    use super::*;

    #[test]
    fn a_request_is_counted_once_also_where_nobody_waits_for_its_answer_any_longer() {
        type Answer = Result<Response<()>, Infallible>;
        let metrics = Metrics::default();
        let server = service_fn(|request: Request<bool>| -> Either<Ready<Answer>, _> {
            match *request.body() {
                true => Either::Left(ready(Ok(Response::new(())))),
                false => Either::Right(pending::<Answer>()),
            }
        });
        let mut client = ApiRequests(metrics.clone()).layer(server);
        let mut ask = |answers| client.call(Request::new(answers));
        assert!(ask(true).now_or_never().is_some());
        assert!(ask(false).now_or_never().is_none());
        let page = metrics.render();
        for line in [
            r#"ayatori_api_requests_total{code="200",method="GET"} 1"#,
            r#"ayatori_api_requests_total{code="no_answer",method="GET"} 1"#,
        ] {
            assert!(
                page.lines().any(|shown| shown == line),
                "{line} is not in\n{page}"
            );
        }
    }
}

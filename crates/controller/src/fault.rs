//! Sudden death at a chosen write, for tests of what a crash leaves behind. Compiled only with the feature
//! `fault-injection`.
//!
//! `AYATORI_FAULT=NAMESPACE:N:before|after` kills the process with SIGKILL right before its Nth changing
//! request about NAMESPACE is sent, or right after its answer came. Leases and Events do not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use anyhow::Context as _;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request};
use tower::{Layer, Service};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Before,
    After,
}

/// Where the process dies, if anywhere.
#[derive(Clone, Debug)]
pub struct Faults {
    fault: Option<Arc<Fault>>,
}

#[derive(Debug)]
struct Fault {
    path: String,
    moment: Moment,
    left: AtomicU32,
}

impl Faults {
    /// Reads `AYATORI_FAULT`.
    pub fn from_env() -> anyhow::Result<Self> {
        let Ok(spec) = std::env::var("AYATORI_FAULT") else {
            return Ok(Self { fault: None });
        };
        let parts: Vec<_> = spec.split(':').collect();
        let [namespace, count, moment] = parts.as_slice() else {
            anyhow::bail!("AYATORI_FAULT is not NAMESPACE:N:before|after: {spec:?}")
        };
        let moment = match *moment {
            "before" => Moment::Before,
            "after" => Moment::After,
            other => anyhow::bail!("AYATORI_FAULT: {other:?} is neither before nor after"),
        };
        let left = count
            .parse()
            .with_context(|| format!("AYATORI_FAULT: {count:?} is not a number"))?;
        let path = format!("/namespaces/{namespace}/");
        Ok(Self {
            fault: Some(Arc::new(Fault {
                path,
                moment,
                left: AtomicU32::new(left),
            })),
        })
    }
}

impl Fault {
    fn counts<B>(&self, request: &Request<B>) -> bool {
        let path = request.uri().path();
        let changes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(request.method());
        changes && path.contains(&self.path) && !path.contains("/events") && !path.contains("/leases")
    }

    /// Whether this is the last one.
    fn spend(&self) -> bool {
        self.left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            == Ok(1)
    }
}

fn die() {
    // SIGKILL: no destructor, no flush, no last word.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

impl<S> Layer<S> for Faults {
    type Service = Mortal<S>;

    fn layer(&self, inner: S) -> Mortal<S> {
        Mortal {
            inner,
            fault: self.fault.clone(),
        }
    }
}

/// A service that may die.
#[derive(Clone, Debug)]
pub struct Mortal<S> {
    inner: S,
    fault: Option<Arc<Fault>>,
}

impl<S, B> Service<Request<B>> for Mortal<S>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let fatal = self
            .fault
            .as_ref()
            .filter(|f| f.counts(&request) && f.spend())
            .map(|f| f.moment);
        if fatal == Some(Moment::Before) {
            die();
        }
        self.inner
            .call(request)
            .inspect(move |_| {
                if fatal == Some(Moment::After) {
                    die();
                }
            })
            .boxed()
    }
}

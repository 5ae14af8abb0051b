//! The crash of a process at a chosen step, without a process: from that step on, nothing it does ever returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request};
use tokio::sync::watch;
use tower::{Layer, Service};

/// On which side of a step the process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It is never taken.
    Before,
    /// It is taken, and its answer never heard.
    After,
}

/// Where a process dies, if anywhere. Steps are writes to Jobs and requests to the backend, counted from 1.
///
/// As a layer of the process's client it counts the writes; a
/// [`FakeBackend`](crate::testing::fake::FakeBackend) counts its requests.
#[derive(Clone, Debug)]
pub struct Death {
    at: Option<(usize, Moment)>,
    taken: Arc<AtomicUsize>,
    come: Arc<watch::Sender<bool>>,
}

impl Death {
    /// A process that lives on.
    pub fn never() -> Self {
        Self {
            at: None,
            taken: Arc::default(),
            come: Arc::new(watch::channel(false).0),
        }
    }

    /// A process that dies at this step.
    pub fn at(step: usize, moment: Moment) -> Self {
        Self {
            at: Some((step, moment)),
            ..Self::never()
        }
    }

    /// How many steps were begun so far.
    pub fn steps(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }

    /// Returns once the process has died.
    pub async fn came(&self) {
        // Fails only when the sender is gone, and `self` holds it.
        let _ = self.come.subscribe().wait_for(|come| *come).await;
    }

    pub(crate) async fn around<T>(&self, step: impl Future<Output = T>) -> T {
        let number = self.taken.fetch_add(1, Ordering::SeqCst).saturating_add(1);
        self.survive(number, Moment::Before).await;
        let answer = step.await;
        self.survive(number, Moment::After).await;
        answer
    }

    async fn survive(&self, step: usize, moment: Moment) {
        if self.at == Some((step, moment)) {
            self.come.send_replace(true);
        }
        if *self.come.borrow() {
            std::future::pending::<()>().await;
        }
    }
}

impl<S> Layer<S> for Death {
    type Service = Mortal<S>;

    fn layer(&self, inner: S) -> Mortal<S> {
        Mortal {
            inner,
            death: self.clone(),
        }
    }
}

/// A service of a mortal process.
#[derive(Clone, Debug)]
pub struct Mortal<S> {
    inner: S,
    death: Death,
}

impl<S, B> Service<Request<B>> for Mortal<S>
where
    S: Service<Request<B>>,
    S::Response: Send,
    S::Error: Send,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let counts = request.method() != Method::GET && request.uri().path().contains("/jobs/");
        let answer = self.inner.call(request);
        if !counts {
            return answer.boxed();
        }
        let death = self.death.clone();
        async move { death.around(answer).await }.boxed()
    }
}

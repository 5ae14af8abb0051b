//! Asking an API server that is away now and then.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::{Instant, sleep, timeout};

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(15);
/// How long an outage may last.
pub(crate) const OUTAGE: Duration = Duration::from_secs(240);
/// Between two tries.
pub(crate) const RETRY: Duration = Duration::from_millis(250);

/// Tries again until it works: the API server is away now and then.
pub(crate) async fn persist<T>(
    what: &str,
    ask: impl AsyncFn() -> Result<T, kube::Error>,
) -> anyhow::Result<T> {
    let end = Instant::now() + OUTAGE;
    loop {
        let error = match timeout(REQUEST, ask()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        ensure!(Instant::now() < end, "{what} does not work: {error}");
        sleep(RETRY).await;
    }
}

/// A deletion whose answer was lost finds nothing the second time.
pub(crate) fn gone_already(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other,
    }
}

/// A creation whose answer was lost finds its object the second time.
pub(crate) fn there_already(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        other => other,
    }
}

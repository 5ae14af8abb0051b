//! Waiting for a condition, never for longer than a limit.

use anyhow::{Result, bail};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(100);

/// Asks again until the answer is yes. An error ends the wait at once; so does the limit.
pub(crate) fn until(what: &str, limit: Duration, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + limit;
    while !ready()? {
        if Instant::now() >= end {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_comes_is_named_after_the_limit() {
        let error = until("the moon", Duration::ZERO, || Ok(false)).unwrap_err();
        assert_eq!(error.to_string(), "the moon: not within 0 s");
    }
}

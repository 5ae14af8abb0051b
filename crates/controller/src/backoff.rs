//! How long to leave an object alone after it failed: per object, exponential, with jitter.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::watcher;

const FIRST: Duration = Duration::from_millis(500);
const LAST: Duration = Duration::from_secs(60);
/// After how long without a failure an object is forgotten, whether or not it was ever looked at again.
const MEMORY: Duration = Duration::from_secs(600);

/// How long a watch that failed may be left alone: everything waits for it.
const WATCH: Duration = Duration::from_secs(5);

/// When a watch that failed is started again: as kube does it, but soon.
#[derive(Default)]
pub struct WatchBackoff(watcher::DefaultBackoff);

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|wait| wait.min(WATCH))
    }
}

impl kube::runtime::utils::Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0.reset();
    }
}

/// The failures of every object since its last success.
#[derive(Debug)]
pub struct Backoff<K> {
    failures: Mutex<Known<K>>,
    jitter: RandomState,
}

#[derive(Debug)]
struct Known<K> {
    of: HashMap<K, Failures>,
    /// When it was last seen to it that nothing old is kept. Not at each failure: thousands may fail at a time.
    tidied: Instant,
}

#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
    /// Until when the object is left alone.
    until: Instant,
}

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self {
            failures: Mutex::new(Known {
                of: HashMap::new(),
                tidied: Instant::now(),
            }),
            jitter: RandomState::new(),
        }
    }
}

impl<K: Eq + Hash + Clone> Backoff<K> {
    /// One more failure: how long to wait, between half of the interval and all of it.
    pub fn failed(&self, key: &K) -> Duration {
        let now = Instant::now();
        let remembered = |failures: &Failures| now.duration_since(failures.last) < MEMORY;
        let mut known = self.known();
        if now.duration_since(known.tidied) >= MEMORY {
            known.of.retain(|_, failures| remembered(failures));
            known.tidied = now;
        }
        let failures = known.of.entry(key.clone()).or_insert(Failures {
            count: 0,
            last: now,
            until: now,
        });
        if !remembered(failures) {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        let interval = FIRST
            .saturating_mul(1 << failures.count.saturating_sub(1).min(10))
            .min(LAST);
        let fraction = (self.jitter.hash_one((key, failures.count)) % 1000) as f64 / 1000.0;
        let wait = interval.mul_f64(0.5 + fraction / 2.0);
        failures.until = now.checked_add(wait).unwrap_or(now);
        wait
    }

    /// How much longer the object is to be left alone, if it is woken before.
    pub fn left(&self, key: &K) -> Option<Duration> {
        let until = self.known().of.get(key)?.until;
        let left = until.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }

    /// A success: the next failure starts from the beginning.
    pub fn succeeded(&self, key: &K) {
        self.known().of.remove(key);
    }

    fn known(&self) -> MutexGuard<'_, Known<K>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_keeps_failing_waits_longer_up_to_a_minute_and_others_do_not() {
        let backoff = Backoff::default();
        let waits: Vec<_> = (0..20).map(|_| backoff.failed(&"a")).collect();
        assert!(waits[0] <= FIRST && waits[0] >= FIRST / 2);
        assert!(waits[19] <= LAST && waits[19] >= LAST / 2);
        assert!(backoff.failed(&"b") <= FIRST);
        assert!(backoff.left(&"a").is_some_and(|left| left <= LAST));
        backoff.succeeded(&"a");
        assert_eq!(backoff.left(&"a"), None);
        assert!(backoff.failed(&"a") <= FIRST);
    }
}

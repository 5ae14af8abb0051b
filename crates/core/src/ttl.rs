//! When a finished Job is deleted.

use jiff::{SignedDuration, Timestamp};

use crate::conditions::{self, FINISHED};
use crate::job::Job;

/// When the Job's time to live ends; `None` for a Job that is not finished, has no TTL, or is being deleted
/// already. A time beyond what can be represented is the last one that can.
pub fn expiry(job: &Job) -> Option<Timestamp> {
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = job.status.as_ref()?;
    if !conditions::is_true(&status.conditions, FINISHED) {
        return None;
    }
    let finished = status.finish_time.as_ref()?.0;
    let ttl = SignedDuration::from_secs(i64::from(job.spec.ttl_seconds_after_finished?.max(0)));
    Some(finished.saturating_add(ttl).unwrap_or(Timestamp::MAX))
}

/// Whether the Job is to be deleted now.
pub fn is_due(job: &Job, now: Timestamp) -> bool {
    expiry(job).is_some_and(|at| at <= now)
}

//! How long a sandbox lives without anybody looking after it.
//!
//! Every sandbox expires, so that a control plane that never comes back leaks for a bounded time; and every one
//! that runs is renewed, for its expiry takes its result along.

use ayatori_core::job::Job;
use ayatori_core::lifecycle::active_deadline;
use jiff::{SignedDuration, Timestamp};

/// The shortest life the API takes.
pub(crate) const SHORTEST: u64 = 60;
/// How much longer than its Job's deadline a sandbox lives.
const RESERVE: SignedDuration = SignedDuration::from_hours(1);
/// With how much of that it is content: clocks differ, and servers round.
const ENOUGH: SignedDuration = SignedDuration::from_mins(30);
/// The life of a sandbox whose Job has no deadline, from its last renewal.
const LEASE: SignedDuration = SignedDuration::from_hours(6);
/// With how much of it left it is renewed: after a third.
const RENEWED_WITH: SignedDuration = SignedDuration::from_hours(4);

/// When a sandbox of this Job, looked after now, should expire.
pub(crate) fn expiry(job: &Job, accepted: Timestamp, now: Timestamp) -> Timestamp {
    match active_deadline(job, accepted) {
        Some(deadline) => later(deadline.max(now), RESERVE),
        None => later(now, LEASE),
    }
}

/// The same as a life in seconds, for its creation, where the server takes no longer ones than `limit`.
pub(crate) fn first_life(job: &Job, accepted: Timestamp, now: Timestamp, limit: Option<u64>) -> u64 {
    let life = expiry(job, accepted, now).duration_since(now).as_secs();
    let life = u64::try_from(life).unwrap_or_default().max(SHORTEST);
    limit.map_or(life, |limit| life.min(limit))
}

/// When a running sandbox that expires then should be renewed: at a third of its life. One that lives beyond its
/// Job's deadline needs nothing more.
pub(crate) fn renewal(job: &Job, accepted: Timestamp, expires_at: Timestamp) -> Option<Timestamp> {
    match active_deadline(job, accepted) {
        Some(deadline) if later(deadline, ENOUGH) <= expires_at => None,
        Some(_) | None => Some(earlier(expires_at, RENEWED_WITH)),
    }
}

fn later(from: Timestamp, by: SignedDuration) -> Timestamp {
    from.saturating_add(by).unwrap_or(Timestamp::MAX)
}

fn earlier(from: Timestamp, by: SignedDuration) -> Timestamp {
    from.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn job(deadline: Option<i32>) -> Job {
        let mut job = Job::default();
        job.spec.active_deadline_seconds = deadline;
        job
    }

    #[test]
    fn a_sandbox_outlives_its_deadline_by_an_hour_or_lives_six_from_its_last_renewal() {
        for (deadline, now, limit, life) in [
            (None, 0, None, 6 * 3600),
            (None, 0, Some(86_400), 6 * 3600),
            (None, 0, Some(120), 120),
            (Some(10), 0, None, 3610),
            (Some(10), 5, None, 3605),
            (Some(10), 5000, None, 3600),
            (Some(i32::MAX), 0, Some(86_400), 86_400),
        ] {
            let found = first_life(&job(deadline), at(0), at(now), limit);
            assert_eq!(
                found, life,
                "deadline {deadline:?}, {now} s after acceptance, at most {limit:?}"
            );
        }
    }

    #[test]
    fn it_is_renewed_at_a_third_of_its_life_until_it_lives_beyond_the_deadline() {
        for (deadline, expires, renewal_at) in [
            (None, 6 * 3600, Some(2 * 3600)),
            (None, 120, Some(120 - 4 * 3600)),
            (Some(10), 3610, None),
            (Some(10), 120, Some(120 - 4 * 3600)),
            (Some(86_400), 86_400, Some(86_400 - 4 * 3600)),
        ] {
            let found = renewal(&job(deadline), at(0), at(expires));
            assert_eq!(
                found,
                renewal_at.map(at),
                "deadline {deadline:?}, expires at {expires}"
            );
        }
    }

    #[test]
    fn no_time_is_too_far_away() {
        assert_eq!(
            expiry(&job(Some(i32::MAX)), Timestamp::MAX, Timestamp::MAX),
            Timestamp::MAX
        );
        assert_eq!(renewal(&job(None), at(0), Timestamp::MIN), Some(Timestamp::MIN));
    }
}

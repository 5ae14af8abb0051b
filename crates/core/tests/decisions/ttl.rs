//! When a finished Job goes.

use ayatori_core::ttl;
use jiff::Timestamp;

use crate::shapes::*;

#[test]
#[rustfmt::skip] // one row, one line
fn a_finished_job_is_due_exactly_when_its_time_to_live_has_passed_since_the_stored_end() {
    let finished = succeeded();
    for (name, job, now, due) in [
        ("no TTL: it stays", finished.clone(), i64::from(i32::MAX), false),
        ("TTL 0: at once", finished.clone().ttl(0), 40, true),
        ("one second early: not yet", finished.clone().ttl(10), 49, false),
        ("on time", finished.clone().ttl(10), 50, true),
        ("long after, as after an outage", finished.clone().ttl(10), 5000, true),
        ("the largest TTL: not yet", finished.clone().ttl(i32::MAX), 100_000, false),
        ("a clock that stands before the end: not yet", finished.clone().ttl(0), 39, false),
        ("being deleted already", finished.clone().ttl(0).deleted_at(41), 50, false),
        ("not finished: its TTL means nothing yet", running().ttl(0), 5000, false),
        ("an end without a time is no end to count from", { let mut j = finished.clone().ttl(0); j.status.as_mut().unwrap().finish_time = None; j }, 50, false),
    ] {
        assert_eq!(ttl::is_due(&job, at(now)), due, "{name}");
    }
}

#[test]
fn a_time_to_live_beyond_all_time_is_the_end_of_time() {
    let mut job = succeeded().ttl(i32::MAX);
    job.status.as_mut().unwrap().finish_time.as_mut().unwrap().0 = Timestamp::MAX;
    assert_eq!(ttl::expiry(&job), Some(Timestamp::MAX));
}

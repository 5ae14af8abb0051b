//! Which Events a change of the status makes.

use ayatori_core::job::Job;
use ayatori_core::report::tales;

use crate::shapes::*;

fn told(before: Option<&Job>, after: &Job) -> Vec<String> {
    let old = before.and_then(|job| job.status.as_ref());
    tales(old, after.status.as_ref().unwrap())
        .into_iter()
        .map(|tale| {
            format!(
                "{}{}: {}",
                if tale.warning { "!" } else { "" },
                tale.action,
                tale.reason
            )
        })
        .collect()
}

#[test]
#[rustfmt::skip] // one row, one line
fn every_turn_of_a_life_is_told_once_and_a_repeat_is_silent() {
    let unprotected = job().protected();
    let lost = {
        let mut job = unknown();
        let status = job.status.as_mut().unwrap();
        status.conditions.iter_mut().for_each(|c| c.message.push('!'));
        job
    };
    for (name, before, after, expected) in [
        ("a new Job has no story", None, job(), vec![]),
        ("accepted", Some(unprotected), accepted(), vec!["Accepted: Accepted"]),
        ("an attempt is no news", Some(accepted()), attempted(), vec![]),
        ("recorded", Some(accepted()), recorded(), vec!["Scheduled: Scheduled"]),
        ("started", Some(recorded()), running(), vec!["Started: Started"]),
        ("a stop", Some(running()), stopping(), vec!["Stopping: CancelRequested"]),
        ("a stop is told once", Some(stopping()), stopping(), vec![]),
        ("unknown", Some(running()), unknown(), vec!["!ResultUnknown: BackendUnreachable"]),
        ("other words for the same are no news", Some(unknown()), lost, vec![]),
        ("known again", Some(unknown()), running_again(), vec!["ResultUnknown: Observed"]),
        ("finished", Some(running()), succeeded(), vec!["Finished: Succeeded"]),
        ("released is no news", Some(succeeded()), released(), vec![]),
        ("cancelled before it was accepted: its class is no news of its own", Some(job()), cancelled_before_accepted(), vec!["Finished: Cancelled"]),
        ("a missed step is told with the next", Some(accepted()), running(), vec!["Scheduled: Scheduled", "Started: Started"]),
    ] {
        assert_eq!(told(before.as_ref(), &after), expected, "{name}");
        assert!(told(Some(&after), &after).is_empty(), "{name}, repeated");
    }
}

//! Whose ending it is.

use ayatori_core::ending;
use ayatori_core::execution::{End, Exit, Stopper};
use ayatori_core::job::{JobResult, Stop, StopReason};

use crate::shapes::*;

fn stop(reason: StopReason, requested: i64, delivered: Option<i64>) -> Option<Stop> {
    Some(Stop {
        reason,
        requested_time: time(requested),
        delivered_time: delivered.map(time),
    })
}

fn cancel(requested: i64) -> Option<Stop> {
    stop(StopReason::CancelRequested, requested, None)
}

fn exits(exit: Exit, finished: Option<i64>, stopped: Option<i64>, by: Stopper) -> End {
    End {
        exit,
        finished_at: finished.map(at),
        stopped_at: stopped.map(at),
        stopped_by: by,
        ..ended(0)
    }
}

fn code(code: i32) -> Exit {
    Exit::Code {
        code,
        out_of_memory: false,
    }
}

fn words(result: &JobResult) -> String {
    let code = result.exit_code.map_or(String::new(), |code| format!(" {code}"));
    format!("{:?}/{}{code}", result.outcome, result.reason)
}

#[test]
fn an_end_is_told_as_measured() {
    let oom = |code| Exit::Code {
        code,
        out_of_memory: true,
    };
    for (exit, expected, signal) in [
        (code(0), "Succeeded/Completed 0", None),
        (code(1), "Failed/NonZeroExit 1", None),
        (code(125), "Failed/NonZeroExit 125", None),
        (code(127), "Failed/NonZeroExit 127", None),
        (code(128), "Failed/NonZeroExit 128", None),
        (code(137), "Failed/NonZeroExit 137", Some(9)),
        (code(139), "Failed/NonZeroExit 139", Some(11)),
        (code(143), "Failed/NonZeroExit 143", Some(15)),
        (code(255), "Failed/NonZeroExit 255", None),
        (oom(137), "Failed/OOMKilled 137", Some(9)),
        (oom(0), "Succeeded/Completed 0", None),
        (oom(5), "Failed/NonZeroExit 5", None),
        (Exit::Unstartable(why("StartError")), "Failed/StartError", None),
        (Exit::NeverStarted, "Failed/PodDeleted", None),
        (Exit::Unmeasured, "Failed/ExecutionLost", None),
    ] {
        let name = format!("{exit:?}");
        let result = ending::attribute(&exits(exit, Some(39), None, Stopper::Nobody), None, None);
        assert_eq!(
            (words(&result).as_str(), result.signal),
            (expected, signal),
            "{name}"
        );
    }
}

#[test]
#[rustfmt::skip] // one row, one line
fn who_asked_for_an_end_first_has_it() {
    use Stopper::{Anybody, Deadline, Nobody, Other};
    let evicted = || Other(why("Evicted"));
    let somebody = || Anybody(why("PodDeleted"));
    let deadline = |delivered| stop(StopReason::DeadlineExceeded, 50, delivered);
    for (name, end, stop, deadline, expected) in [
        // A process that was earlier than every request.
        ("ended before our stop was delivered", exits(code(0), Some(49), Some(50), Deadline), cancel(50), None, "Succeeded/Completed 0"),
        ("ran out of memory in the very second of a stop", exits(Exit::Code { code: 137, out_of_memory: true }, Some(50), Some(50), Deadline), cancel(50), None, "Failed/OOMKilled 137"),
        ("ended before the deadline, seen after it", exits(code(0), Some(49), None, Nobody), None, Some(at(50)), "Succeeded/Completed 0"),
        ("ended in time, though the backend calls it late", exits(code(0), Some(49), None, Deadline), deadline(None), Some(at(50)), "Succeeded/Completed 0"),
        ("ended before an eviction reached it", exits(code(0), Some(49), Some(50), evicted()), None, None, "Succeeded/Completed 0"),
        ("a stop is stored but never reached the backend", exits(code(0), Some(60), None, Nobody), cancel(50), None, "Succeeded/Completed 0"),
        // A tie is the stop's.
        ("cancelled, exits 0 within the second", exits(code(0), Some(50), Some(50), Deadline), cancel(50), None, "Cancelled/CancelRequested 0"),
        ("evicted, exits 0 within the second", exits(code(0), Some(50), Some(50), evicted()), None, None, "Failed/Evicted 0"),
        ("deleted by hand, exits 0 within the second", exits(code(0), Some(50), Some(50), somebody()), None, None, "Failed/PodDeleted 0"),
        ("delivered as we stored it, exits 0 within the second", exits(code(0), Some(50), None, Nobody), stop(StopReason::CancelRequested, 49, Some(50)), None, "Cancelled/CancelRequested 0"),
        // Ours.
        ("cancelled, exits 0 on TERM", exits(code(0), Some(51), Some(50), Deadline), cancel(50), None, "Cancelled/CancelRequested 0"),
        ("cancelled, killed", exits(code(137), Some(80), Some(50), Deadline), cancel(50), None, "Cancelled/CancelRequested 137"),
        ("deadline", exits(code(143), Some(51), Some(50), Deadline), deadline(None), Some(at(50)), "Failed/DeadlineExceeded 143"),
        ("starting deadline", exits(Exit::NeverStarted, None, Some(50), Deadline), stop(StopReason::StartingDeadlineExceeded, 50, None), None, "Failed/StartingDeadlineExceeded"),
        ("deleted", exits(code(1), Some(51), Some(50), Deadline), stop(StopReason::JobDeleted, 50, None), None, "Cancelled/JobDeleted 1"),
        ("the code was not measured", exits(Exit::Unmeasured, Some(51), Some(50), Deadline), cancel(50), None, "Cancelled/CancelRequested"),
        ("the time of the end was not measured", exits(code(0), None, Some(50), Deadline), cancel(50), None, "Cancelled/CancelRequested 0"),
        ("never started, our stop is the only one known", exits(Exit::NeverStarted, None, None, Nobody), cancel(50), None, "Cancelled/CancelRequested"),
        ("delivered before the end, as we stored it", exits(code(0), Some(51), None, Nobody), stop(StopReason::CancelRequested, 49, Some(50)), None, "Cancelled/CancelRequested 0"),
        ("delivered, and shown as later since", exits(code(0), Some(51), Some(53), Deadline), stop(StopReason::CancelRequested, 49, Some(50)), None, "Cancelled/CancelRequested 0"),
        ("delivered, but the process was earlier still", exits(code(0), Some(49), None, Nobody), stop(StopReason::CancelRequested, 49, Some(50)), None, "Succeeded/Completed 0"),
        ("the pod's deletion follows our request", exits(code(0), Some(52), Some(51), somebody()), cancel(50), None, "Cancelled/CancelRequested 0"),
        ("and may look a second older than it", exits(code(0), Some(52), Some(49), somebody()), cancel(50), None, "Cancelled/CancelRequested 0"),
        // The guard timer.
        ("the guard timer did what we did not live to do", exits(code(143), Some(171), Some(170), Deadline), None, Some(at(50)), "Failed/DeadlineExceeded 143"),
        ("a guard timer a second early", exits(code(143), Some(50), Some(49), Deadline), None, Some(at(50)), "Failed/DeadlineExceeded 143"),
        ("a backend's deadline that is not the Job's", exits(code(0), Some(31), Some(30), Deadline), None, Some(at(50)), "Failed/PodDeleted 0"),
        ("a backend's deadline of a Job without one", exits(code(0), Some(31), Some(30), Deadline), None, None, "Failed/PodDeleted 0"),
        // Somebody else's: never a success.
        ("evicted, exits 0 on TERM", exits(code(0), Some(51), Some(50), evicted()), None, None, "Failed/Evicted 0"),
        ("evicted, at a time nobody knows", exits(code(0), Some(51), None, evicted()), None, None, "Failed/Evicted 0"),
        ("evicted before it started", exits(Exit::NeverStarted, None, Some(50), evicted()), None, None, "Failed/Evicted"),
        ("evicted although a stop was stored: certainly not ours", exits(code(9), Some(51), Some(50), evicted()), cancel(50), None, "Failed/Evicted 9"),
        ("deleted by hand", exits(code(0), Some(51), Some(50), somebody()), None, None, "Failed/PodDeleted 0"),
        ("deleted by hand, at a time nobody knows", exits(code(0), Some(51), None, somebody()), None, None, "Failed/PodDeleted 0"),
        ("deleted by hand before our stop", exits(code(0), Some(51), Some(40), somebody()), cancel(50), None, "Failed/PodDeleted 0"),
        ("stopped by whomever at a time nobody knows, and our stop had not arrived", exits(Exit::Unmeasured, None, None, somebody()), cancel(50), None, "Failed/PodDeleted"),
        ("the same, and our stop had arrived", exits(Exit::Unmeasured, None, None, somebody()), stop(StopReason::CancelRequested, 49, Some(50)), None, "Cancelled/CancelRequested"),
        // Nobody knows.
        ("nothing was measured, a stop was stored but not delivered", exits(Exit::Unmeasured, None, None, Nobody), cancel(50), None, "Failed/ExecutionLost"),
        ("nothing was measured, the stop was delivered", exits(Exit::Unmeasured, None, None, Nobody), stop(StopReason::CancelRequested, 49, Some(50)), None, "Cancelled/CancelRequested"),
    ] {
        let result = ending::attribute(&end, stop.as_ref(), deadline);
        assert_eq!(words(&result), expected, "{name}");
    }
}

#[test]
#[rustfmt::skip] // one row, one line
fn what_vanished_is_lost_unless_our_stop_had_reached_it() {
    for (name, stop, expected) in [
        ("no stop", None, "Failed/ExecutionLost"),
        ("a stop that was not delivered", cancel(50), "Failed/ExecutionLost"),
        ("a delivered cancel", stop(StopReason::CancelRequested, 50, Some(51)), "Cancelled/CancelRequested"),
        ("a delivered deadline", stop(StopReason::DeadlineExceeded, 50, Some(51)), "Failed/DeadlineExceeded"),
    ] {
        let result = ending::vanished(&why("ExecutionNotFound"), stop.as_ref());
        assert_eq!(words(&result), expected, "{name}");
    }
}

#[test]
fn text_of_a_result_fits_into_the_status_on_every_path() {
    let text = "漢\n".repeat(2000);
    let noted = End {
        note: Some(text.clone()),
        ..ended(0)
    };
    let failed = End {
        exit: code(1),
        ..noted.clone()
    };
    let unstartable = End {
        exit: Exit::Unstartable(ayatori_core::execution::Why::new("StartError", text.clone())),
        ..ended(0)
    };
    for end in [noted, failed, unstartable] {
        let message = ending::attribute(&end, None, None).message.unwrap();
        assert!(message.len() <= 1024 && !message.contains('\n'));
    }
}

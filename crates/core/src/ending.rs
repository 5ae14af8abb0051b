//! Whose ending it is: from what the backend measured and the stop that was stored, the one result.

use jiff::{SignedDuration, Timestamp};

use crate::conditions::{MESSAGE_LIMIT, clean};
use crate::execution::{End, Exit, Stopper, Why};
use crate::job::{JobResult, Outcome, Stop, StopReason};

/// How far a backend's record of a stop may lie before our own request and still be ours: the API stores whole
/// seconds, and two clocks are compared.
const CLOCK_GRAIN: SignedDuration = SignedDuration::from_secs(1);

/// The result of an execution that ended.
///
/// - A process that ended before a stop was delivered keeps its own result, also when nobody looked at the
///   time and a deadline has passed since.
/// - One that ended after our stop is attributed to it, with whatever exit code; the code is kept as a fact.
/// - An end that nobody of ours asked for is never a success.
pub fn attribute(end: &End, stop: Option<&Stop>, deadline: Option<Timestamp>) -> JobResult {
    if let Some(result) = own_result(end, stop) {
        return result;
    }
    match whose(end, stop, deadline) {
        Whose::Ours(reason) => stopped(reason, measured(end), remark(end)),
        Whose::Others(why) => failed(&why.reason, measured(end), Some(why.message)),
        Whose::Nobodys => match &end.exit {
            Exit::NeverStarted => failed(
                "PodDeleted",
                None,
                Some("the execution was ended by somebody else before its command started".to_owned()),
            ),
            Exit::Unmeasured | Exit::Code { .. } | Exit::Unstartable(_) => lost(remark(end)),
        },
    }
}

/// The result of an execution that is provably gone without a measured end.
pub fn vanished(why: &Why, stop: Option<&Stop>) -> JobResult {
    match stop {
        Some(stop) if stop.delivered_time.is_some() => stopped(stop.reason, None, Some(why.message.clone())),
        _ => lost(Some(why.message.clone())),
    }
}

/// The result of a Job that is stopped before anything of it was allowed to start.
pub fn never_started(reason: StopReason) -> JobResult {
    stopped(reason, None, Some("its command was never started".to_owned()))
}

/// A failure for `reason`, of a Job whose command did not run.
pub fn refused(why: Why) -> JobResult {
    failed(&why.reason, None, Some(why.message))
}

/// What became of the execution cannot be known any more.
pub fn lost(message: Option<String>) -> JobResult {
    let message = message.unwrap_or_else(|| "the backend lost the exit code of the command".to_owned());
    failed("ExecutionLost", None, Some(message))
}

/// Whether a result says that this stop ended the Job.
pub(crate) fn is_attributed_to(result: &JobResult, stop: Option<&Stop>) -> bool {
    stop.is_some_and(|stop| result.reason == word(stop.reason))
}

/// Whether a request to end the execution that the backend recorded then may be this stop. What is earlier is
/// somebody else's.
pub(crate) fn may_be(stop: &Stop, recorded_at: Timestamp) -> bool {
    stop.requested_time.0.duration_since(recorded_at) <= CLOCK_GRAIN
}

enum Whose {
    Ours(StopReason),
    Others(Why),
    Nobodys,
}

/// Whether the process ended before any request to end it was in force.
///
/// Backends give whole seconds. A process that ends promptly when told to shows the very second of the request,
/// one that ended on its own in that second shows the same, and the first is common while the second is a
/// coincidence. A tie is therefore the request's: a stop must never pass for a success. Death for want of
/// memory is the exception, for no stop looks like that.
fn ended_by_itself(end: &End, stop: Option<&Stop>) -> bool {
    let delivered = stop.and_then(|s| s.delivered_time.as_ref()).map(|t| t.0);
    // A backend may show a request as later than it was once seen to be, never as earlier.
    let stopped = [end.stopped_at, delivered].into_iter().flatten().min();
    match (stopped, end.finished_at) {
        (Some(stopped), Some(finished)) => {
            finished < stopped
                || finished == stopped
                    && matches!(
                        end.exit,
                        Exit::Code {
                            out_of_memory: true,
                            ..
                        }
                    )
        }
        (Some(_), None) => false,
        // Somebody ended it at a time nobody knows: nothing shows that the process was earlier.
        (None, _) => match end.stopped_by {
            Stopper::Nobody | Stopper::Deadline => true,
            Stopper::Other(_) | Stopper::Anybody(_) => false,
        },
    }
}

fn own_result(end: &End, stop: Option<&Stop>) -> Option<JobResult> {
    if !ended_by_itself(end, stop) {
        return None;
    }
    match &end.exit {
        Exit::Code { code: 0, .. } => Some(result(Outcome::Succeeded, "Completed", Some(0), remark(end))),
        Exit::Code {
            code: 137,
            out_of_memory: true,
        } => {
            let message = remark(end)
                .or_else(|| Some("the process was killed for using more memory than its limit".to_owned()));
            Some(failed("OOMKilled", Some(137), message))
        }
        Exit::Code { code, .. } => Some(failed("NonZeroExit", Some(*code), remark(end))),
        Exit::Unstartable(why) => Some(failed(&why.reason, None, Some(why.message.clone()))),
        Exit::NeverStarted | Exit::Unmeasured => None,
    }
}

fn whose(end: &End, stop: Option<&Stop>, deadline: Option<Timestamp>) -> Whose {
    let ours = |stop: &Stop| Whose::Ours(stop.reason);
    match (&end.stopped_by, stop) {
        (Stopper::Deadline, Some(stop)) => ours(stop),
        (Stopper::Deadline, None) => match deadline {
            // The guard timer may run up to a second early; ours is the deadline it guards.
            Some(at) if end.stopped_at.is_none_or(|s| at.duration_since(s) <= CLOCK_GRAIN) => {
                Whose::Ours(StopReason::DeadlineExceeded)
            }
            _ => Whose::Others(Why::new(
                "PodDeleted",
                "the backend's own deadline ended the execution, and no deadline of the Job had passed: somebody changed the backend's object",
            )),
        },
        (Stopper::Other(why), _) => Whose::Others(why.clone()),
        (Stopper::Anybody(_), Some(stop))
            if end
                .stopped_at
                .map_or(stop.delivered_time.is_some(), |at| may_be(stop, at)) =>
        {
            ours(stop)
        }
        (Stopper::Anybody(why), _) => Whose::Others(why.clone()),
        (Stopper::Nobody, Some(stop))
            if stop.delivered_time.is_some() || matches!(end.exit, Exit::NeverStarted) =>
        {
            ours(stop)
        }
        (Stopper::Nobody, _) => Whose::Nobodys,
    }
}

fn measured(end: &End) -> Option<i32> {
    match end.exit {
        Exit::Code { code, .. } => Some(code),
        Exit::Unstartable(_) | Exit::NeverStarted | Exit::Unmeasured => None,
    }
}

fn remark(end: &End) -> Option<String> {
    end.note.clone()
}

fn stopped(reason: StopReason, exit_code: Option<i32>, message: Option<String>) -> JobResult {
    let outcome = match reason {
        StopReason::CancelRequested | StopReason::JobDeleted => Outcome::Cancelled,
        StopReason::DeadlineExceeded | StopReason::StartingDeadlineExceeded => Outcome::Failed,
    };
    let cause = cause(reason);
    let message = message.map_or_else(
        || format!("stopped: {cause}"),
        |m| format!("stopped: {cause}; {m}"),
    );
    result(outcome, word(reason), exit_code, Some(message))
}

/// What a stop's reason means, for people.
pub(crate) fn cause(reason: StopReason) -> &'static str {
    match reason {
        StopReason::CancelRequested => "spec.cancelRequested was set",
        StopReason::JobDeleted => "the Job was deleted",
        StopReason::DeadlineExceeded => "spec.activeDeadlineSeconds had passed since acceptance",
        StopReason::StartingDeadlineExceeded => {
            "the command had not started within spec.startingDeadlineSeconds of creation"
        }
    }
}

/// The stable word of a stop's reason.
pub(crate) fn word(reason: StopReason) -> &'static str {
    match reason {
        StopReason::CancelRequested => "CancelRequested",
        StopReason::JobDeleted => "JobDeleted",
        StopReason::DeadlineExceeded => "DeadlineExceeded",
        StopReason::StartingDeadlineExceeded => "StartingDeadlineExceeded",
    }
}

fn failed(reason: &str, exit_code: Option<i32>, message: Option<String>) -> JobResult {
    result(Outcome::Failed, reason, exit_code, message)
}

fn result(outcome: Outcome, reason: &str, exit_code: Option<i32>, message: Option<String>) -> JobResult {
    JobResult {
        outcome,
        reason: reason.to_owned(),
        exit_code,
        signal: exit_code.and_then(signal),
        message: message
            .map(|m| clean(&m, MESSAGE_LIMIT))
            .filter(|m| !m.is_empty()),
    }
}

/// The signal that an exit code stands for by shell convention. A fact about the number, not a claim that
/// there was a signal.
fn signal(code: i32) -> Option<i32> {
    (129..=192).contains(&code).then(|| code - 128)
}

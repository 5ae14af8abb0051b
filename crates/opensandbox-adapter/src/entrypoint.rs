//! Commands that are the entrypoint of their sandbox: creating is starting, so a create request is sent once, and what
//! shows the end is what the wrapper has left in the sandbox's log.

use std::time::Duration;

use ayatori_controller::references::References;
use ayatori_core::execution::{Answer, End, ExecutionName, State, Submission, Why};
use ayatori_core::job::Stop;
use ayatori_core::lifecycle::active_deadline;
use ayatori_core::parameters::OpenSandboxExecutionParameters;
use ayatori_core::stage::{Attempted, Recorded};
use jiff::{SignedDuration, Timestamp};
use kube::runtime::reflector::ObjectRef;

use crate::expiry;
use crate::failure::Failure;
use crate::mapping::{self, Look, Phase};
use crate::metadata;
use crate::prospect;
use crate::reached::{Reached, uid, why};
use crate::reasons::scheduling;
use crate::request;
use crate::wire::Sandbox;
use crate::wrapper;

/// How long after its start was asked for a sandbox that is up is looked into for whether its command is started. That
/// takes it an instant; after this it is believed, for a log may have lost its beginning.
const DECIDES_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// When it is looked into again.
const DECIDES_SOON: Duration = Duration::from_millis(200);

/// When a stop that the server has not carried out is looked at again.
const AGAIN: SignedDuration = SignedDuration::from_secs(1);

/// How long a server may fail to freeze what is to be stopped, before that is deleted without it.
const FREEZES_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// Sends the one create request of the attempt. `lead` is how long before the end of its window the attempt can have
/// been stored, by any clock.
pub(crate) async fn submit(
    job: Attempted<'_>,
    parameters: &OpenSandboxExecutionParameters,
    reached: &Reached,
    references: &References,
    lead: SignedDuration,
) -> Result<ExecutionName, Submission> {
    let refused = |why: Why| Submission::Refused(scheduling(why));
    let attempt = job.attempt();
    let late = || {
        refused(Why::new(
            "BackendUnavailable",
            "what the Job refers to was not read in time to send the create request; trying again",
        ))
    };
    let words = request::Words::of(job.accepted().job(), &parameters.spec, references);
    let left = Duration::try_from(attempt.send_before.0.duration_since(Timestamp::now()));
    let words = tokio::time::timeout(left.unwrap_or_default(), words).await;
    // What the Job refers to keeps its own reason: that is no trouble with the server.
    let words = words.map_err(|_| late())?;
    let words = words.and_then(|words| words).map_err(Submission::Refused)?;
    let fence = wrapper::Fence {
        earliest: earlier(attempt.send_before.0, lead),
        latest: attempt.start_before.0,
    };
    let (longest_life, now) = (reached.server.longest_life(), Timestamp::now());
    let request = words.into_request(job, fence, &parameters.spec, longest_life, now);
    let request = request.map_err(refused)?;
    if Timestamp::now() > attempt.send_before.0 {
        return Err(late());
    }
    match reached.create(&request).await {
        Ok(id) => Ok(prospect::name(&id)),
        Err(failure) if failure.is_certain() => Err(refused(failure.why())),
        Err(failure) => Err(Submission::Unanswered(failure.why())),
    }
}

/// Everything that is known of the recorded sandbox.
pub(crate) async fn observe(job: Recorded<'_>, reached: &Reached) -> Result<State, Why> {
    let Reached { server, client } = reached;
    let (uid, id) = (uid(job.job()), job.id());
    let object = ObjectRef::from_obj(job.job());
    let Some(sandbox) = reached.find(&uid, object, id).await? else {
        return reached.missing(job).await;
    };
    server.is_not_gone(id);
    let at = Timestamp::now();
    match mapping::phase(&sandbox) {
        Phase::Over(_) | Phase::Expired | Phase::SaidToBeOver => {
            let (log, events) = futures::join!(client.log(id), client.events(id));
            let (Some(log), Some(events)) = (log.map_err(why)?, events.map_err(why)?) else {
                server.sightings.note_gone(id);
                return reached.missing(job).await;
            };
            return Ok(state(job, &sandbox, &log, &events, at));
        }
        phase @ (Phase::Up | Phase::Frozen)
            if is_new(job, at) && metadata::is_of(&sandbox.metadata, job.job()) =>
        {
            let attempt = metadata::attempt(&sandbox.metadata).unwrap_or_default();
            // A log that cannot be read holds nothing up.
            let log = client.log(id).await.ok().flatten();
            if log.is_some_and(|log| !wrapper::has_begun(&log, attempt)) {
                server
                    .sightings
                    .tell_after(DECIDES_SOON, ObjectRef::from_obj(job.job()));
                let stopped = phase == Phase::Frozen && job.stop().is_some();
                return Ok(mapping::undecided(stopped.then_some(at)));
            }
        }
        Phase::Up | Phase::Frozen | Phase::Pending | Phase::Unknown => {}
    }
    Ok(state(job, &sandbox, "", "", at))
}

/// Whether the command of the recorded sandbox has not been seen started, and its start was asked for just now.
fn is_new(job: Recorded<'_>, now: Timestamp) -> bool {
    let asked = job.execution().start_requested_time.as_ref();
    !job.started() && asked.is_some_and(|asked| now.duration_since(asked.0).abs() < DECIDES_WITHIN)
}

/// What the recorded sandbox, its log and its events mean that the server showed when it was asked `at` that time.
pub(crate) fn state(job: Recorded<'_>, sandbox: &Sandbox, log: &str, events: &str, at: Timestamp) -> State {
    if !metadata::is_of(&sandbox.metadata, job.job()) {
        return State::Unobservable(prospect::foreign(job.id()));
    }
    let accepted = job.accepted().at();
    let attempt = metadata::attempt(&sandbox.metadata).unwrap_or_default();
    let look = Look {
        sandbox,
        evidence: wrapper::evidence(log, attempt),
        out_of_memory: mapping::says_out_of_memory(events),
        at,
        started: job.started(),
        stop_requested: job.stop().is_some(),
        deadline: active_deadline(job.job(), accepted),
        renew_at: sandbox
            .expires_at
            .and_then(|at| expiry::renewal(job.job(), accepted, at)),
    };
    match mapping::state(&look) {
        // What was frozen had not ended, whatever the server's clock says of when it did.
        State::Ended(end) if job.stop().is_some_and(|stop| stop.delivered_time.is_some()) => {
            State::Ended(End {
                finished_at: None,
                ..end
            })
        }
        state => state,
    }
}

/// Freezes first: what is frozen shows for ever that it had not ended. Only when that is stored may it go. What a server
/// cannot freeze goes all the same, for nobody wants it to run on; how it would have ended is then not known.
pub(crate) async fn stop(job: Recorded<'_>, reached: &Reached) -> Result<Answer, Failure> {
    let id = job.id();
    if job.stop().is_some_and(|stop| stop.delivered_time.is_some()) {
        reached.delete(id).await?;
        return Ok(Answer::Done);
    }
    // Whatever the answer is: only a look afterwards shows what became of it.
    let paused = reached.client.pause(id).await;
    let shown = reached.look(id).await?;
    let goes_on = shown.is_some_and(|s| matches!(mapping::phase(&s), Phase::Up | Phase::Pending));
    if goes_on && job.stop().is_some_and(|stop| is_overdue(stop, Timestamp::now())) {
        reached.delete(id).await?;
        return Ok(Answer::Done);
    }
    match paused {
        Err(failure) if goes_on => Err(failure),
        Ok(()) if goes_on => Ok(Answer::Later(AGAIN)),
        Ok(()) | Err(_) => Ok(Answer::Done),
    }
}

/// Whether a stop should have shown an effect by now.
fn is_overdue(stop: &Stop, now: Timestamp) -> bool {
    now.duration_since(stop.requested_time.0) >= FREEZES_WITHIN
}

fn earlier(from: Timestamp, by: SignedDuration) -> Timestamp {
    from.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use ayatori_core::job::StopReason;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn a_stop_is_overdue_after_half_a_minute_and_not_by_a_clock_that_runs_behind() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let stop = Stop {
            reason: StopReason::CancelRequested,
            requested_time: Time(at(0)),
            delivered_time: None,
        };
        for (second, overdue) in [(-3600, false), (0, false), (29, false), (30, true), (3600, true)] {
            assert_eq!(is_overdue(&stop, at(second)), overdue, "after {second} s");
        }
    }
}

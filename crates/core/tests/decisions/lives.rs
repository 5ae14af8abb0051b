//! Whole lives: every write and every effect, in order.

use ayatori_core::execution::Protocol;
use ayatori_core::job::Job;
use ayatori_core::lifecycle::Wait;

use crate::shapes::*;
use crate::world::{NextSubmission, Pass, World};

fn hold(job: Job) -> World {
    World::new(Protocol::Hold, job)
}

fn single_shot(job: Job) -> World {
    World::new(Protocol::SingleShot(WINDOWS), job)
}

/// What happens to the world between two passes.
type Turn = fn(&mut World);

const STARTS: Turn = |w| w.backend.come_up(w.now);
const EXITS_0: Turn = |w| w.backend.exit(0, w.now);
const EXITS_143: Turn = |w| w.backend.exit(143, w.now);
const NOTHING: Turn = |_| {};

/// Plays these turns, a pass after each and ten seconds between them, and checks everything that was done.
fn plays(mut world: World, turns: &[Turn], expected: &[&str]) -> World {
    world.pass();
    for turn in turns {
        world.now += 10;
        turn(&mut world);
        world.pass();
    }
    assert_eq!(world.log, expected);
    world
}

/// What changes the cluster: everything but the cleaning up after the end.
fn writes_until_the_end(world: &World) -> usize {
    let end = |entry: &String| {
        ["Succeeded", "Failed", "Cancelled"]
            .iter()
            .any(|word| entry.contains(word))
    };
    world.log.iter().position(end).expect("it ended") + 1
}

#[test]
fn a_whole_life_with_a_held_execution() {
    let world = plays(
        hold(job().ttl(60)),
        &[STARTS, EXITS_0, |w| w.now += 60],
        &[
            "Protect",
            "Report(Accepted)",
            "Act(Prepare)",
            "Report(Scheduled)",
            "Act(Start)",
            "Report(Started)",
            "Report(Succeeded/Completed 0)",
            "Act(Release)",
            "Report(released)",
            "Collect",
        ],
    );
    assert_eq!(writes_until_the_end(&world), 7);
    let world = plays_on(world, &["Unprotect"]);
    assert_eq!((world.job, world.backend.starts), (None, 1));
}

#[test]
fn what_would_expire_is_renewed_as_long_as_it_runs() {
    plays(
        single_shot(job()),
        &[
            STARTS,
            |w| w.backend.renew_at = Some(w.now),
            |w| w.now += 100,
            EXITS_0,
        ],
        &[
            "Protect",
            "Report(Accepted)",
            "Report(attempt)",
            "Act(Submit)",
            "Report(Scheduled)",
            "Report(Started)",
            "Act(Renew)",
            "Act(Renew)",
            "Report(Succeeded/Completed 0)",
            "Act(Release)",
            "Report(released)",
        ],
    );
}

/// One more pass, which does this.
fn plays_on(mut world: World, expected: &[&str]) -> World {
    let before = world.log.len();
    world.pass();
    assert_eq!(world.log.split_off(before), expected);
    world
}

#[test]
fn a_life_whose_release_keeps_something_ends_with_its_removal() {
    let mut world = plays(
        hold(job().ttl(0)),
        &[STARTS, EXITS_0],
        &[
            "Protect",
            "Report(Accepted)",
            "Act(Prepare)",
            "Report(Scheduled)",
            "Act(Start)",
            "Report(Started)",
            "Report(Succeeded/Completed 0)",
            "Collect",
        ],
    );
    world.now += 1;
    let world = plays_on(world, &["Act(Remove)", "Unprotect"]);
    assert_eq!(world.job, None);
}

#[test]
fn a_command_that_ends_at_once_takes_six_writes() {
    let instant: Turn = |w| {
        w.backend.come_up(w.now);
        w.backend.exit(3, w.now);
    };
    let world = plays(
        hold(job()),
        &[instant],
        &[
            "Protect",
            "Report(Accepted)",
            "Act(Prepare)",
            "Report(Scheduled)",
            "Act(Start)",
            "Report(Started, Failed/NonZeroExit 3)",
            "Act(Release)",
            "Report(released)",
        ],
    );
    assert_eq!(writes_until_the_end(&world), 6);
}

#[test]
fn a_whole_life_with_a_single_request() {
    let world = plays(
        single_shot(job()),
        &[STARTS, EXITS_0],
        &[
            "Protect",
            "Report(Accepted)",
            "Report(attempt)",
            "Act(Submit)",
            "Report(Scheduled)",
            "Report(Started)",
            "Report(Succeeded/Completed 0)",
            "Act(Release)",
            "Report(released)",
        ],
    );
    assert_eq!(writes_until_the_end(&world), 7);
}

#[test]
fn an_unanswered_request_is_adopted_when_it_shows() {
    let mut world = single_shot(job());
    world.backend.next_submission = NextSubmission::Unanswered;
    let arrives: Turn = |w| w.backend.arrive();
    let world = plays(
        world,
        &[NOTHING, arrives, STARTS, EXITS_0],
        &[
            "Protect",
            "Report(Accepted)",
            "Report(attempt)",
            "Act(Submit)",
            "Report(!Scheduled/BackendUnavailable)",
            "Report(Scheduled)",
            "Report(Started)",
            "Report(Succeeded/Completed 0)",
            "Act(Release)",
            "Report(released)",
        ],
    );
    assert_eq!(world.backend.starts, 1);
}

#[test]
fn an_unanswered_request_that_never_shows_is_lost_after_its_fence_and_never_repeated() {
    let mut world = single_shot(job());
    world.backend.next_submission = NextSubmission::Unanswered;
    let world = plays(
        world,
        &[|w| w.now = 680, |w| w.now = 691],
        &[
            "Protect",
            "Report(Accepted)",
            "Report(attempt)",
            "Act(Submit)",
            "Report(!Scheduled/BackendUnavailable)",
            "Report(Failed/ExecutionLost)",
            "Act(Release)",
            "Report(released)",
        ],
    );
    assert_eq!(world.backend.starts, 0);
}

#[test]
fn a_request_that_was_certainly_refused_is_made_again_later() {
    let mut world = single_shot(job());
    world.backend.next_submission = NextSubmission::Refused;
    assert_eq!(world.pass(), Pass::Waits(Wait::Backoff(None)));
    world.backend.next_submission = NextSubmission::Answered;
    let refused = [
        "Protect",
        "Report(Accepted)",
        "Report(attempt)",
        "Act(Submit)",
        "Report(!Scheduled/BackendRejected, attempt cleared)",
    ];
    assert_eq!(world.log, refused);
    plays_on(world, &["Report(attempt)", "Act(Submit)", "Report(Scheduled)"]);
}

#[test]
fn a_sandbox_that_never_comes_up_is_deleted_after_its_fence() {
    let world = plays(
        single_shot(job()),
        &[|w| w.now = 100, |w| w.now = 691, NOTHING],
        &[
            "Protect",
            "Report(Accepted)",
            "Report(attempt)",
            "Act(Submit)",
            "Report(Scheduled)",
            "Report(!Started/Pending)",
            "Act(Discard)",
            "Report(!Started/ExecutionLost, Failed/ExecutionLost)",
            "Act(Release)",
            "Report(released)",
        ],
    );
    assert_eq!(world.backend.starts, 0);
}

#[test]
fn a_running_job_is_cancelled_and_its_end_is_waited_for() {
    plays(
        hold(job()),
        &[STARTS, World::cancel, NOTHING, EXITS_143],
        &[
            "Protect",
            "Report(Accepted)",
            "Act(Prepare)",
            "Report(Scheduled)",
            "Act(Start)",
            "Report(Started)",
            "Report(stop CancelRequested)",
            "Act(Stop)",
            "Report(delivered)",
            "Act(Stop)",
            "Report(Cancelled/CancelRequested 143)",
            "Act(Release)",
            "Report(released)",
        ],
    );
}

#[test]
fn a_running_job_is_deleted() {
    let mut world = plays(
        hold(job()),
        &[STARTS, World::delete, EXITS_143],
        &[
            "Protect",
            "Report(Accepted)",
            "Act(Prepare)",
            "Report(Scheduled)",
            "Act(Start)",
            "Report(Started)",
            "Report(stop JobDeleted)",
            "Act(Stop)",
            "Report(delivered)",
            "Report(Cancelled/JobDeleted 143)",
            "Act(Remove)",
            "Unprotect",
        ],
    );
    assert_eq!(world.job, None);
    assert_eq!(world.pass(), Pass::Stale);
}

#[test]
fn a_deadline_that_passes_while_the_backend_is_away_is_stored_and_delivered_when_it_is_back() {
    let away: Turn = |w| w.backend.unreachable = true;
    let back: Turn = |w| w.backend.unreachable = false;
    plays(
        hold(job().active_deadline(25)),
        &[STARTS, away, NOTHING, back, EXITS_143],
        &[
            "Protect",
            "Report(Accepted)",
            "Act(Prepare)",
            "Report(Scheduled)",
            "Act(Start)",
            "Report(Started)",
            "Report(ResultUnknown/BackendUnreachable)",
            "Report(stop DeadlineExceeded)",
            "Act(Stop)",
            "Report(!ResultUnknown/Observed)",
            "Act(Stop)",
            "Report(delivered)",
            "Report(Failed/DeadlineExceeded 143)",
            "Act(Release)",
            "Report(released)",
        ],
    );
}

#[test]
fn a_crash_after_any_change_ends_in_the_same_life() {
    for protocol in [Protocol::Hold, Protocol::SingleShot(WINDOWS)] {
        for crash in 1..9 {
            let mut world = World::new(protocol, job());
            let copy = world.job.clone().unwrap();
            world.pass_on(copy, crash);
            for _ in 0..4 {
                world.now += 10;
                world.backend.come_up(world.now);
                world.pass();
                world.backend.exit(0, world.now);
                world.pass();
            }
            // A request whose sender died before it could send it is never made again: it is lost, not repeated.
            let unsent = crash == 3 && protocol != Protocol::Hold;
            if unsent {
                world.now = 1000;
                world.pass();
            }
            let outcome = if unsent {
                "Failed/ExecutionLost"
            } else {
                "Succeeded/Completed 0"
            };
            assert!(
                world.log.iter().any(|e| e.contains(outcome)),
                "{protocol:?}, {crash}: {:#?}",
                world.log
            );
            assert_eq!(world.backend.starts, u32::from(!unsent), "{protocol:?}, {crash}");
        }
    }
}

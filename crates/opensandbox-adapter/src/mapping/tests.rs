use std::collections::BTreeMap;

use ayatori_core::conditions::whole_seconds as stored;
use ayatori_core::ending::{attribute, vanished};
use ayatori_core::job::{Outcome, Stop, StopReason};

use super::*;

const CREATED: &str = "2026-01-02T03:04:05.25Z";
const CHANGED: &str = "2026-01-02T03:10:05.75Z";
const ASKED: &str = "2026-01-02T03:11:05.5Z";

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

fn sandbox(state: &str, reason: Option<&str>, message: &str) -> Sandbox {
    Sandbox {
        id: "s1".to_owned(),
        state: state.to_owned(),
        reason: reason.map(str::to_owned),
        message: Some(message.to_owned()),
        last_transition_at: Some(at(CHANGED)),
        created_at: Some(at(CREATED)),
        expires_at: None,
        metadata: BTreeMap::new(),
    }
}

/// As the Docker runtime shows a container that exited with `code`.
fn exited(code: i32) -> Sandbox {
    match code {
        0 => sandbox(
            "Terminated",
            Some("CONTAINER_EXITED"),
            "Sandbox container exited successfully.",
        ),
        _ => sandbox(
            "Failed",
            Some("CONTAINER_EXITED_ERROR"),
            &format!("Sandbox container exited with code {code}."),
        ),
    }
}

fn look(sandbox: &Sandbox, evidence: Option<Evidence>) -> Look<'_> {
    Look {
        sandbox,
        evidence,
        out_of_memory: false,
        at: at(ASKED),
        started: false,
        stop_requested: false,
        deadline: None,
        renew_at: None,
    }
}

fn wrote(code: u8) -> Option<Evidence> {
    Some(Evidence::Ended {
        code,
        signalled: false,
    })
}

fn wrote_after_a_signal(code: u8) -> Option<Evidence> {
    Some(Evidence::Ended {
        code,
        signalled: true,
    })
}

fn ended_as(look: &Look<'_>) -> End {
    match state(look) {
        State::Ended(end) => end,
        other => panic!("not ended: {other:?}"),
    }
}

fn stop(reason: StopReason, delivered: Option<&str>) -> Stop {
    Stop {
        reason,
        requested_time: stored(at("2026-01-02T03:09:00Z")),
        delivered_time: delivered.map(|time| stored(at(time))),
    }
}

/// What core makes of it: outcome, reason, code.
fn result(look: &Look<'_>, stop: Option<&Stop>) -> (Outcome, String, Option<i32>) {
    let result = match state(look) {
        State::Ended(end) => attribute(&end, stop, look.deadline),
        State::Gone(gone) if gone.proven => vanished(&gone.why, stop),
        other => panic!("not over: {other:?}"),
    };
    (result.outcome, result.reason, result.exit_code)
}

fn failed(reason: &str, code: Option<i32>) -> (Outcome, String, Option<i32>) {
    (Outcome::Failed, reason.to_owned(), code)
}

fn succeeded() -> (Outcome, String, Option<i32>) {
    (Outcome::Succeeded, "Completed".to_owned(), Some(0))
}

#[test]
fn a_code_that_server_and_evidence_agree_on_is_the_command_s() {
    for code in [1, 2, 42, 125, 126, 127, 128, 130, 137, 139, 143, 255] {
        let sandbox = exited(code.into());
        let expected = failed("NonZeroExit", Some(code.into()));
        assert_eq!(result(&look(&sandbox, wrote(code)), None), expected);
    }
    assert_eq!(result(&look(&exited(0), wrote(0)), None), succeeded());
    let sandbox = exited(3);
    let end = ended_as(&look(&sandbox, wrote(3)));
    assert_eq!(
        (end.started_at, end.finished_at),
        (Some(at(CREATED)), Some(at("2026-01-02T03:10:05Z")))
    );
}

#[test]
fn a_code_without_evidence_is_none_unless_it_is_sigkill_s() {
    for evidence in [None, Some(Evidence::Starting)] {
        for code in [0, 1, 2, 125, 126, 127, 130, 143, 255] {
            let sandbox = exited(code);
            let look = look(&sandbox, evidence);
            assert_eq!(result(&look, None), failed("ExecutionLost", None), "{code}");
            assert_eq!(ended_as(&look).started(), evidence.is_some(), "{code}");
        }
        let killed = exited(137);
        assert_eq!(
            result(&look(&killed, evidence), None),
            failed("NonZeroExit", Some(137))
        );
    }
}

#[test]
fn an_end_written_before_the_sandbox_was_ended_otherwise_stands() {
    for shown in [0, 137, 255] {
        assert_eq!(
            result(&look(&exited(shown), wrote(0)), None),
            succeeded(),
            "{shown}"
        );
        assert_eq!(
            result(&look(&exited(shown), wrote(3)), None),
            failed("NonZeroExit", Some(3))
        );
    }
    for shown in [1, 3, 143] {
        assert_eq!(
            result(&look(&exited(shown), wrote(0)), None),
            failed("ExecutionLost", None),
            "{shown}"
        );
    }
}

#[test]
fn a_stopped_sandbox_is_no_success_whatever_its_command_made_of_the_signal() {
    for code in [0, 5, 143] {
        let sandbox = exited(0);
        let look = look(&sandbox, wrote_after_a_signal(code));
        assert_eq!(result(&look, None), failed("SandboxStopped", Some(code.into())));
    }
}

#[test]
fn only_the_command_s_own_death_for_want_of_memory_is_out_of_memory() {
    let told = |code, evidence| {
        let sandbox = exited(code);
        let look = Look {
            out_of_memory: true,
            ..look(&sandbox, evidence)
        };
        (result(&look, None), ended_as(&look).note)
    };
    let oom = failed("OOMKilled", Some(137));
    assert_eq!(told(137, wrote(137)), (oom.clone(), None));
    assert_eq!(told(137, None), (oom, None));
    let (result, note) = told(0, wrote(0));
    assert_eq!(result, succeeded());
    assert!(note.unwrap().contains("too much memory"));
    assert_eq!(told(3, wrote(3)).0, failed("NonZeroExit", Some(3)));
    assert_eq!(told(0, None).0, failed("ExecutionLost", None));
}

#[test]
fn a_command_that_never_started_says_why() {
    for (code, evidence, reason) in [
        (127, Evidence::Unstartable { code: 127 }, "StartError"),
        (126, Evidence::Unstartable { code: 126 }, "StartError"),
        (125, Evidence::NoWorkingDirectory, "StartError"),
        (1, Evidence::NoLauncher, "StartError"),
        (1, Evidence::TooLong, "StartError"),
        (125, Evidence::TooLate, "StartTooLate"),
        (125, Evidence::NoClock, "StartTooLate"),
        (125, Evidence::NoPlace, "StartError"),
        // Stopped in the meantime.
        (0, Evidence::TooLate, "StartTooLate"),
    ] {
        let sandbox = exited(code);
        let look = look(&sandbox, Some(evidence));
        assert_eq!(result(&look, None), failed(reason, None), "{evidence:?}");
        assert!(!ended_as(&look).started());
    }
    assert_eq!(
        result(&look(&exited(0), Some(Evidence::NoLauncher)), None),
        failed("ExecutionLost", None)
    );
}

#[test]
fn a_reason_counts_before_the_state_it_comes_with() {
    for state in ["Pending", "Running", "Terminated", "Failed", "Unknown", ""] {
        let done = sandbox(state, Some("PodSucceeded"), "");
        assert_eq!(result(&look(&done, wrote(0)), None), succeeded(), "{state}");
        assert_eq!(
            result(&look(&done, None), None),
            failed("ExecutionLost", None),
            "{state}"
        );
        for reason in ["PodFailed", "TASK_FAILED"] {
            let failure = sandbox(state, Some(reason), "");
            assert_eq!(
                result(&look(&failure, wrote(4)), None),
                failed("NonZeroExit", Some(4))
            );
            assert_eq!(
                result(&look(&failure, None), None),
                failed("ExecutionLost", None),
                "{state}"
            );
        }
    }
}

#[test]
fn an_expired_sandbox_is_the_deadline_s_or_a_stop_s_but_never_a_success() {
    let expired = sandbox("Terminated", Some("SandboxExpired"), "");
    for evidence in [None, Some(Evidence::Starting), wrote_after_a_signal(0)] {
        let look = |deadline| Look {
            deadline,
            ..look(&expired, evidence)
        };
        let code = evidence.filter(|e| *e != Evidence::Starting).map(|_| 0);
        assert_eq!(result(&look(None), None), failed("SandboxExpired", code));
        let passed = look(Some(at("2026-01-02T03:10:00Z")));
        assert_eq!(result(&passed, None), failed("DeadlineExceeded", code));
        let ahead = look(Some(at("2026-01-02T03:12:00Z")));
        assert_eq!(result(&ahead, None), failed("SandboxExpired", code));
        let cancel = stop(StopReason::CancelRequested, None);
        assert_eq!(
            result(&look(None), Some(&cancel)),
            (Outcome::Cancelled, "CancelRequested".to_owned(), code)
        );
    }
    assert_eq!(result(&look(&expired, wrote(0)), None), succeeded());
}

#[test]
fn a_failure_for_a_reason_to_come_ends_the_job_with_the_server_s_words() {
    let failure = sandbox(
        "Failed",
        Some("SOMETHING_NEW"),
        &format!("no\tnode {}", "漢".repeat(3000)),
    );
    let look = look(&failure, None);
    assert_eq!(result(&look, None), failed("ExecutionLost", None));
    let message = attribute(&ended_as(&look), None, None).message.unwrap();
    assert!(
        message.contains("SOMETHING_NEW") && message.contains("no node 漢"),
        "{message}"
    );
    assert!(message.len() <= 1024);
}

#[test]
fn terminated_for_no_known_reason_is_unknown_until_it_is_gone_unless_the_end_was_written() {
    for reason in [None, Some("SOMETHING_NEW"), Some("")] {
        let over = sandbox("Terminated", reason, "");
        for evidence in [None, Some(Evidence::Starting)] {
            let State::Gone(gone) = state(&look(&over, evidence)) else {
                panic!("{reason:?}");
            };
            assert_eq!(
                (gone.proven, gone.why.reason.as_str()),
                (false, "ExecutionNotFound")
            );
        }
        assert_eq!(result(&look(&over, wrote(0)), None), succeeded());
        assert_eq!(
            result(&look(&over, wrote_after_a_signal(0)), None),
            failed("SandboxStopped", Some(0))
        );
    }
}

#[test]
fn a_state_that_is_not_the_end_never_is_whatever_the_log_says() {
    for word in [
        "Pending",
        "Allocated",
        "Running",
        "Pausing",
        "Paused",
        "Resuming",
        "Stopping",
        "Unknown",
        "Hibernating",
        "terminated",
        "FAILED",
        "",
    ] {
        for reason in [
            None,
            Some("CONTAINER_RUNNING"),
            Some("CONTAINER_STATE_UNKNOWN"),
            Some("NEW"),
        ] {
            for evidence in [None, Some(Evidence::Starting), wrote(0), Some(Evidence::TooLate)] {
                let shown = sandbox(word, reason, "exited with code 0.");
                let state = state(&look(&shown, evidence));
                assert!(
                    matches!(state, State::Running(_) | State::Waiting(_)),
                    "{word}: {state:?}"
                );
            }
        }
    }
}

#[test]
fn a_command_runs_once_its_sandbox_is_up_and_does_not_wait_again() {
    let running = |word: &str, started| {
        let shown = sandbox(word, None, "");
        let look = Look {
            started,
            ..look(&shown, None)
        };
        matches!(state(&look), State::Running(running) if running.started_at == Some(at(CREATED)))
    };
    for word in ["Running", "Pausing", "Resuming", "Stopping", "Paused"] {
        assert!(running(word, false) && running(word, true), "{word}");
    }
    for word in ["Pending", "Allocated", "Unknown", "Hibernating", ""] {
        assert!(!running(word, false) && running(word, true), "{word}");
    }
}

#[test]
fn a_freeze_is_our_stop_only_if_we_asked_for_one() {
    let frozen = sandbox("Paused", Some("CONTAINER_PAUSED"), "Sandbox container is paused.");
    for (stop_requested, expected) in [(false, None), (true, Some(at(ASKED)))] {
        let look = Look {
            stop_requested,
            ..look(&frozen, None)
        };
        let State::Running(running) = state(&look) else {
            panic!();
        };
        assert_eq!(running.stopping_since, expected);
    }
}

#[test]
fn what_died_by_our_delivered_stop_is_the_stop_s_and_what_ended_before_is_its_own() {
    let killed = exited(137);
    let delivered = stop(StopReason::CancelRequested, Some("2026-01-02T03:10:00Z"));
    let cancelled = (Outcome::Cancelled, "CancelRequested".to_owned(), Some(137));
    assert_eq!(
        result(&look(&killed, Some(Evidence::Starting)), Some(&delivered)),
        cancelled
    );
    let undelivered = stop(StopReason::CancelRequested, None);
    assert_eq!(
        result(&look(&exited(0), wrote(0)), Some(&undelivered)),
        succeeded()
    );
}

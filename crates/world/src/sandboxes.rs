//! What an OpenSandbox server shows of simulated executions, each a sandbox, and what the OpenSandbox adapter makes of
//! it, in either mode.

use ayatori_core::execution::{Prospect, State};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::stage::Recorded;
use ayatori_opensandbox_adapter::meaning;
use ayatori_opensandbox_adapter::wire::Sandbox;
use jiff::Timestamp;

use crate::backend::{Ending, Execution, Life, Who};
use crate::eyes::List;
use crate::objects::{Wishes, job, second};

pub(crate) fn prospect(asked_for: &Job, backend: BackendIdentity, list: &List) -> Prospect {
    let sandboxes: Vec<_> = (0..)
        .zip(list)
        .filter_map(|(number, execution)| Some(sandbox(number, (*execution).as_ref()?)))
        .collect();
    meaning::prospect(asked_for, &sandboxes, backend)
}

/// Entrypoint mode: the server's own words, and what the wrapper left in the log.
pub(crate) fn state(recorded: Recorded<'_>, number: u8, execution: &Execution, now: Timestamp) -> State {
    let said = match execution.life {
        Life::Ended(Ending::Exited) => ["starting", "ended 0"].as_slice(),
        Life::Ended(Ending::Signalled) => &["starting", "ended 0 after a signal"],
        Life::Ended(Ending::TooLate) => &["too late"],
        Life::Ended(Ending::Unmeasured) => &["starting"],
        _ => &[],
    };
    let attempt = execution.attempt;
    let log: String = said
        .iter()
        .map(|word| format!("ayatori attempt{attempt}: {word}.\n"))
        .collect();
    meaning::state(recorded, &sandbox(number, execution), &log, now)
}

fn sandbox(number: u8, execution: &Execution) -> Sandbox {
    let (state, reason, message) = match execution.life {
        Life::Pending | Life::Stuck => ("Pending", "CONTAINER_STARTING", ""),
        Life::Paused => ("Paused", "CONTAINER_PAUSED", ""),
        Life::Ended(Ending::Exited | Ending::Signalled) => (
            "Terminated",
            "CONTAINER_EXITED",
            "Sandbox container exited successfully.",
        ),
        Life::Ended(Ending::TooLate) => (
            "Failed",
            "CONTAINER_EXITED_ERROR",
            "Sandbox container exited with code 125.",
        ),
        // As when the daemon was killed under it: the code is lost.
        Life::Ended(_) => (
            "Failed",
            "CONTAINER_EXITED_ERROR",
            "Sandbox container exited with code 255.",
        ),
        _ => ("Running", "CONTAINER_RUNNING", ""),
    };
    let whose = job(execution.uid, Wishes::NONE, 0);
    Sandbox {
        id: format!("sandbox{number}"),
        state: state.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_at: Some(second(i64::from(execution.ended))),
        created_at: Some(second(0)),
        expires_at: None,
        metadata: meaning::metadata(&whose, &format!("attempt{}", execution.attempt)),
    }
}

/// Execd mode: the files in the sandbox, of which the first one made decides.
pub(crate) fn inside(recorded: Recorded<'_>, number: u8, execution: &Execution, now: Timestamp) -> State {
    let hold = hold(number);
    let file = |word: &str| Some(format!("ayatori {hold}: {word}.\n"));
    let started = || file("starting at 1800000000");
    let by_us = execution.stop.is_some_and(|(_, who)| who == Who::Us);
    let (start, end) = match execution.life {
        Life::Running | Life::Ended(Ending::Exited) if by_us => (started(), file("stopped")),
        Life::Running => (started(), None),
        Life::Ended(Ending::Exited) => (started(), file("ended 0")),
        Life::Ended(Ending::Unstarted | Ending::StillHeld) if by_us => (file("stopped"), file("stopped")),
        Life::Ended(Ending::Unstarted | Ending::StillHeld) => (file("lost"), file("lost")),
        Life::Ended(_) => (started(), file("lost")),
        _ => (None, None),
    };
    meaning::state_inside(recorded, end.as_deref(), start.as_deref(), true, now)
}

/// Who a sandbox says it is.
pub(crate) fn hold(number: u8) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

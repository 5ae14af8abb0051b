//! What a Job may say, given what its command does and how often it really started.

use ayatori_core::job::{JobResult, Outcome};
use ayatori_e2e::replica::Adapter;

use crate::plan::{Deed, Fate, PlannedJob};

/// Ends of which the Job says that nobody knows them, or that nothing began.
const UNKNOWN_ENDS: [&str; 2] = ["ExecutionLost", "SandboxExpired"];
const NEVER_STARTED: [&str; 3] = ["StartTooLate", "JobClassReplaced", "ParametersReplaced"];

/// What is known of one Job without asking its adapter, and what it says.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// By the command's own count.
    pub(crate) starts: u32,
    /// Sandboxes that were ever made for it.
    pub(crate) sandboxes: usize,
    /// Create requests that reached the server's side of the line.
    pub(crate) requests: u32,
    pub(crate) result: Option<JobResult>,
    pub(crate) revised: Vec<JobResult>,
    pub(crate) finished: bool,
    pub(crate) deleting: bool,
    pub(crate) gone: bool,
    /// Whether what runs its command was restarted while it lived. dockerd takes along what runs in sandboxes; a kubelet
    /// gives up a container that it was just starting, and starts one again that it had not seen start.
    pub(crate) interrupted: bool,
}

/// How a Job came out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its command ran to its own end, which the Job tells.
    Ran,
    /// It was stopped as it was asked to be.
    Stopped,
    /// It says truthfully that it does not know, or that nothing was started.
    Lost(String),
    /// It was deleted before it ended.
    Deleted,
}

/// A promise that was not kept to a Job, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// It says what is not so, or its command started twice.
    Wrong(String),
    /// It does not end, or does not go.
    Stuck(String),
}

/// Holds one Job's words against the evidence.
pub(crate) fn judge(job: &PlannedJob, evidence: &Evidence) -> Result<Verdict, Broken> {
    let wrong = |what: String| Err(Broken::Wrong(what));
    let stuck = |what: &str| Err(Broken::Stuck(what.to_owned()));
    let Evidence {
        starts,
        sandboxes,
        requests,
        ..
    } = *evidence;
    if starts > 1 || sandboxes > 1 || requests > 1 {
        return wrong(format!(
            "{starts} starts, {sandboxes} sandboxes, {requests} create requests"
        ));
    }
    if !evidence.revised.is_empty() {
        return wrong(format!(
            "its result {:?} became {:?}",
            evidence.result, evidence.revised
        ));
    }
    let Some(result) = &evidence.result else {
        return match (job.fate.goes() && evidence.gone, evidence.finished) {
            (_, true) => wrong("it is finished without a result".to_owned()),
            (true, false) => Ok(Verdict::Deleted),
            (false, false) if evidence.gone => wrong("it vanished".to_owned()),
            (false, false) if evidence.deleting => stuck("it does not go"),
            (false, false) => stuck("it does not end"),
        };
    };
    if !evidence.gone && (evidence.deleting || matches!(job.fate, Fate::Expires { .. })) {
        return stuck("it has ended and does not go");
    }
    let own_code = match job.deed {
        Deed::Exits { code, .. } => Some(i32::from(code)),
        Deed::Sleeps | Deed::Obeys => None,
    };
    let told = (result.outcome, result.reason.as_str());
    let untrue = || wrong(format!("{starts} starts, and it says {result:?}"));
    let of_sandboxes = job.class.adapter == Adapter::OpenSandbox;
    let killed_by_docker = of_sandboxes && evidence.interrupted;
    let left_by_kubelet = !of_sandboxes && evidence.interrupted;
    match told {
        (Outcome::Succeeded, "Completed") => {
            if own_code == Some(0) && result.exit_code == Some(0) && starts == 1 {
                Ok(Verdict::Ran)
            } else {
                untrue()
            }
        }
        (Outcome::Failed, "NonZeroExit") => {
            let killed = killed_by_docker && matches!(result.exit_code, Some(137 | 143));
            if starts == 1 && killed {
                Ok(Verdict::Lost("killed with dockerd".to_owned()))
            } else if starts == 1 && own_code.is_some_and(|code| code != 0) && result.exit_code == own_code {
                Ok(Verdict::Ran)
            } else {
                untrue()
            }
        }
        (Outcome::Cancelled, "CancelRequested") if matches!(job.fate, Fate::Cancelled { .. }) => {
            Ok(Verdict::Stopped)
        }
        (Outcome::Cancelled, "JobDeleted")
            if matches!(job.fate, Fate::Deleted { .. } | Fate::Recreated { .. }) =>
        {
            Ok(Verdict::Stopped)
        }
        (Outcome::Failed, "DeadlineExceeded") if matches!(job.fate, Fate::Deadline { .. }) => {
            Ok(Verdict::Stopped)
        }
        (Outcome::Failed, "StartingDeadlineExceeded")
            if matches!(job.fate, Fate::StartingDeadline { .. }) =>
        {
            Ok(Verdict::Stopped)
        }
        // Its code is what was measured, and no success, whatever it is.
        (Outcome::Failed, "SandboxStopped") if killed_by_docker && starts == 1 => {
            Ok(Verdict::Lost("SandboxStopped".to_owned()))
        }
        (Outcome::Failed, reason) if NEVER_STARTED.contains(&reason) && starts == 0 => {
            Ok(Verdict::Lost(reason.to_owned()))
        }
        (Outcome::Failed, "StartError") if left_by_kubelet && starts == 0 => {
            Ok(Verdict::Lost("StartError".to_owned()))
        }
        // Everything else that is broken here leaves the end of what runs to be measured.
        (Outcome::Failed, reason)
            if UNKNOWN_ENDS.contains(&reason)
                && result.exit_code.is_none()
                && (evidence.interrupted || (of_sandboxes && starts == 0)) =>
        {
            Ok(Verdict::Lost(reason.to_owned()))
        }
        _ => untrue(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::Class;

    fn job(deed: Deed, fate: Fate) -> PlannedJob {
        PlannedJob {
            name: "job".to_owned(),
            at: Duration::ZERO,
            class: Class {
                adapter: Adapter::OpenSandbox,
                recreated: false,
            },
            deed,
            fate,
        }
    }

    fn says(outcome: Outcome, reason: &str, exit_code: Option<i32>, starts: u32) -> Evidence {
        Evidence {
            starts,
            sandboxes: 1,
            requests: 1,
            result: Some(JobResult {
                outcome,
                reason: reason.to_owned(),
                exit_code,
                signal: None,
                message: None,
            }),
            revised: Vec::new(),
            finished: true,
            deleting: false,
            gone: false,
            interrupted: false,
        }
    }

    #[test]
    fn what_a_job_says_is_held_against_what_its_command_does_and_how_often_it_started() {
        use Outcome::{Cancelled, Failed, Succeeded};
        let exits = |code| Deed::Exits {
            after: Duration::ZERO,
            code,
        };
        let (left, cancelled) = (
            Fate::Left,
            Fate::Cancelled {
                after: Duration::ZERO,
            },
        );
        for (deed, fate, evidence, right) in [
            (exits(0), left, says(Succeeded, "Completed", Some(0), 1), true),
            (exits(0), left, says(Succeeded, "Completed", Some(0), 0), false),
            (exits(0), left, says(Succeeded, "Completed", Some(0), 2), false),
            (exits(3), left, says(Succeeded, "Completed", Some(0), 1), false),
            (exits(3), left, says(Failed, "NonZeroExit", Some(3), 1), true),
            (exits(3), left, says(Failed, "NonZeroExit", Some(4), 1), false),
            (exits(3), left, says(Failed, "NonZeroExit", Some(137), 1), false),
            (exits(3), left, says(Failed, "ExecutionLost", None, 0), true),
            (exits(3), left, says(Failed, "ExecutionLost", None, 1), false),
            (exits(3), left, says(Failed, "ExecutionLost", Some(3), 1), false),
            (exits(3), left, says(Failed, "StartTooLate", None, 0), true),
            (exits(3), left, says(Failed, "StartTooLate", None, 1), false),
            (
                Deed::Obeys,
                cancelled,
                says(Cancelled, "CancelRequested", None, 1),
                true,
            ),
            (
                Deed::Obeys,
                cancelled,
                says(Succeeded, "Completed", Some(0), 1),
                false,
            ),
            (
                Deed::Obeys,
                left,
                says(Cancelled, "CancelRequested", None, 1),
                false,
            ),
            (
                Deed::Sleeps,
                left,
                says(Failed, "DeadlineExceeded", None, 1),
                false,
            ),
        ] {
            let judged = judge(&job(deed, fate), &evidence);
            assert_eq!(judged.is_ok(), right, "{deed:?} {evidence:?}: {judged:?}");
        }
    }

    #[test]
    fn a_sandbox_was_stopped_by_somebody_only_if_there_was_somebody() {
        let planned = job(Deed::Obeys, Fate::Left);
        let alone = says(Outcome::Failed, "SandboxStopped", Some(0), 1);
        assert!(judge(&planned, &alone).is_err());
        let stopped = Evidence {
            interrupted: true,
            ..alone
        };
        assert!(judge(&planned, &stopped).is_ok());
    }

    #[test]
    fn what_runs_is_lost_only_with_what_runs_it_and_a_sandbox_also_before_its_start() {
        let exits = Deed::Exits {
            after: Duration::ZERO,
            code: 0,
        };
        let in_sandbox = job(exits, Fate::Left);
        let mut in_pod = in_sandbox.clone();
        in_pod.class.adapter = Adapter::Kubernetes;
        for (planned, reason, starts, interrupted, right) in [
            (&in_sandbox, "ExecutionLost", 0, false, true),
            (&in_sandbox, "ExecutionLost", 1, false, false),
            (&in_sandbox, "ExecutionLost", 1, true, true),
            (&in_sandbox, "StartError", 0, true, false),
            (&in_pod, "ExecutionLost", 0, false, false),
            (&in_pod, "ExecutionLost", 1, false, false),
            (&in_pod, "ExecutionLost", 1, true, true),
            (&in_pod, "ExecutionLost", 2, true, false),
            (&in_pod, "StartError", 0, false, false),
            (&in_pod, "StartError", 0, true, true),
            (&in_pod, "StartError", 1, true, false),
            (&in_pod, "SandboxStopped", 1, true, false),
        ] {
            let evidence = Evidence {
                interrupted,
                ..says(Outcome::Failed, reason, None, starts)
            };
            assert_eq!(judge(planned, &evidence).is_ok(), right, "{evidence:?}");
        }
    }

    #[test]
    fn a_job_that_is_to_go_and_stays_is_stuck_though_it_has_ended() {
        let stuck = |planned: &PlannedJob, evidence: &Evidence| {
            matches!(judge(planned, evidence), Err(Broken::Stuck(_)))
        };
        let exits = Deed::Exits {
            after: Duration::ZERO,
            code: 0,
        };
        let expires = job(exits, Fate::Expires { seconds: 3 });
        let ended = says(Outcome::Succeeded, "Completed", Some(0), 1);
        assert!(stuck(&expires, &ended));
        let gone = Evidence {
            gone: true,
            ..ended.clone()
        };
        assert_eq!(judge(&expires, &gone), Ok(Verdict::Ran));
        let after = Duration::ZERO;
        let deleting = Evidence {
            deleting: true,
            ..ended
        };
        assert!(stuck(&job(exits, Fate::Deleted { after }), &deleting));
    }

    #[test]
    fn a_result_that_changes_a_job_that_vanishes_and_one_that_does_not_end_are_wrong() {
        let planned = job(Deed::Sleeps, Fate::Left);
        let mut revised = says(Outcome::Failed, "ExecutionLost", None, 0);
        revised.revised.extend(revised.result.clone());
        let unfinished = Evidence {
            result: None,
            finished: false,
            ..says(Outcome::Failed, "ExecutionLost", None, 0)
        };
        let vanished = Evidence {
            gone: true,
            ..unfinished.clone()
        };
        for evidence in [&revised, &unfinished, &vanished] {
            assert!(judge(&planned, evidence).is_err(), "{evidence:?}");
        }
        let after = Duration::ZERO;
        let deleted = judge(&job(Deed::Sleeps, Fate::Deleted { after }), &vanished);
        assert_eq!(deleted, Ok(Verdict::Deleted));
    }
}

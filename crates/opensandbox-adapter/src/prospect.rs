//! What a list of a Job's sandboxes shows of a Job of which none is recorded.

use ayatori_core::execution::{ExecutionName, Prospect, Why};
use ayatori_core::job::{BackendIdentity, Job};

use crate::mapping::{self, Phase};
use crate::metadata;
use crate::wire::Sandbox;

/// `sandboxes` are all that carry the Job's UID. A sandbox that no attempt explains is adopted too: it was made
/// before etcd was restored from a backup.
pub(crate) fn prospect(job: &Job, sandboxes: &[Sandbox], backend: BackendIdentity) -> Prospect {
    if let Some(stranger) = sandboxes.iter().find(|s| !metadata::is_of(&s.metadata, job)) {
        return Prospect::Conflict(foreign(&stranger.id));
    }
    let attempt = job
        .status
        .as_ref()
        .and_then(|s| s.execution.as_ref()?.attempt.as_ref());
    let of_attempt = |s: &&Sandbox| {
        let attempt = attempt.map(|a| a.id.as_str());
        attempt.is_none() || metadata::attempt(&s.metadata) == attempt
    };
    let mut candidates = sandboxes.iter().filter(of_attempt);
    match (candidates.next(), candidates.next()) {
        (Some(only), None) if sandboxes.len() == 1 => {
            let name = name(&only.id);
            if mapping::phase(only) == Phase::Pending {
                Prospect::Pending(name, backend)
            } else {
                Prospect::Found(name, backend)
            }
        }
        (None, None) if sandboxes.is_empty() => Prospect::Absent,
        _ => {
            let ids: Vec<_> = sandboxes.iter().map(|s| s.id.as_str()).collect();
            Prospect::Conflict(Why::new(
                "ForeignExecution",
                format!(
                    "sandboxes {} all say that they are of this Job; this adapter made at most one of them. Delete \
                     those that it did not make",
                    ids.join(", ")
                ),
            ))
        }
    }
}

/// The name of a sandbox. There is nothing like an instance of it.
pub(crate) fn name(id: &str) -> ExecutionName {
    ExecutionName {
        id: id.to_owned(),
        uid: None,
    }
}

/// Why a sandbox that carries the Job's UID is not believed.
pub(crate) fn foreign(id: &str) -> Why {
    Why::new(
        "ForeignExecution",
        format!(
            "sandbox {id} carries the UID of this Job and another namespace or name: this adapter did not make it, or \
             somebody has changed its metadata"
        ),
    )
}

#[cfg(test)]
mod tests {
    use ayatori_core::job::{Attempt, Execution, JobStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn job(attempt: Option<&str>) -> Job {
        let mut job = Job::default();
        job.metadata.name = Some("build".to_owned());
        job.metadata.namespace = Some("team".to_owned());
        job.metadata.uid = Some("uid-1".to_owned());
        let attempt = attempt.map(|id| Attempt {
            id: id.to_owned(),
            send_before: Time(jiff::Timestamp::UNIX_EPOCH),
            start_before: Time(jiff::Timestamp::UNIX_EPOCH),
        });
        job.status = Some(JobStatus {
            execution: Some(Execution {
                attempt,
                ..Execution::default()
            }),
            ..JobStatus::default()
        });
        job
    }

    fn sandbox(id: &str, state: &str, attempt: &str) -> Sandbox {
        Sandbox {
            id: id.to_owned(),
            state: state.to_owned(),
            reason: None,
            message: None,
            last_transition_at: None,
            created_at: None,
            expires_at: None,
            metadata: metadata::of_sandbox(&job(None), attempt),
        }
    }

    fn told(attempt: Option<&str>, sandboxes: &[Sandbox]) -> String {
        match prospect(&job(attempt), sandboxes, BackendIdentity::default()) {
            Prospect::Absent => "absent".to_owned(),
            Prospect::Found(name, _) => format!("found {}", name.id),
            Prospect::Pending(name, _) => format!("pending {}", name.id),
            Prospect::Conflict(why) => why.reason,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn one_sandbox_of_the_attempt_is_adopted_and_nothing_else() {
        let stranger = || {
            let mut stranger = sandbox("s", "Running", "a");
            let name = "execution.ayatori.ddupan.top/job-name".to_owned();
            stranger.metadata.insert(name, "other".to_owned());
            stranger
        };
        for (attempt, sandboxes, expected) in [
            (Some("a"), vec![], "absent"),
            (Some("a"), vec![sandbox("1", "Running", "a")], "found 1"),
            (Some("a"), vec![sandbox("1", "Terminated", "a")], "found 1"),
            (Some("a"), vec![sandbox("1", "Hibernating", "a")], "found 1"),
            (Some("a"), vec![sandbox("1", "Pending", "a")], "pending 1"),
            (Some("a"), vec![sandbox("1", "Allocated", "a")], "pending 1"),
            (None, vec![sandbox("1", "Running", "old")], "found 1"),
            (
                Some("a"),
                vec![sandbox("1", "Running", "old")],
                "ForeignExecution",
            ),
            (
                Some("a"),
                vec![sandbox("1", "Running", "a"), sandbox("2", "Running", "a")],
                "ForeignExecution",
            ),
            (
                Some("a"),
                vec![sandbox("1", "Running", "a"), sandbox("2", "Running", "old")],
                "ForeignExecution",
            ),
            (None, vec![stranger()], "ForeignExecution"),
        ] {
            assert_eq!(
                told(attempt, &sandboxes),
                expected,
                "attempt {attempt:?}, {sandboxes:#?}"
            );
        }
    }
}

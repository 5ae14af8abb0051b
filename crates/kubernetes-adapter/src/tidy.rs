//! Pods that nobody looks after: our finalizer keeps them, and no Job needs them to be kept.
//!
//! A pod that was recorded is let go by the release of its Job, and by nothing here. What remains are pods that
//! were never recorded and are being deleted, and pods whose Job is gone although its finalizer should have kept
//! it. Both are rare, so each costs a live read of its Job, and few are looked at in one round; the next round goes
//! on where it ended, or pods for which nothing can be done yet would keep all others from being looked at.

use std::sync::Arc;
use std::time::Duration;

use ayatori_core::job::Job;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::mpsc::Receiver;
use tokio::time::{MissedTickBehavior, interval};

use crate::requests::{Failure, Requests};
use crate::view::{Container, Phase, Pod};
use crate::watch::Caches;

/// How often all pods are looked over.
const ROUND: Duration = Duration::from_secs(30);
/// How many pods are looked after in one round.
const PER_ROUND: usize = 100;
/// How many suspects may wait to be looked at. The rounds find those for which there was no room.
pub(crate) const SUSPECTS: usize = 1000;
/// How long a pod may be in a state that the Job's own release or removal should end.
const LINGERING: SignedDuration = SignedDuration::from_secs(60);

/// What a kept pod needs, given what the API server itself shows of its Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
    Nothing,
    LetGo,
    Delete,
}

/// Whether a pod that has just changed should be looked at now: it is held, so almost certainly not recorded,
/// and somebody deletes it. Its batch Job makes no progress until it is gone.
pub(crate) fn is_suspect(pod: &Pod) -> bool {
    pod.is_kept() && pod.is_held() && pod.never_runs()
}

/// Looks after such pods for as long as the adapter runs.
pub(crate) async fn keep_tidy(requests: Requests, caches: Arc<Caches>, mut suspects: Receiver<Arc<Pod>>) {
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        let pods = tokio::select! {
            pod = suspects.recv() => match pod {
                Some(pod) => vec![pod],
                None => return,
            },
            _ = rounds.tick() => {
                let now = Timestamp::now();
                following(&mut last, caches.kept_pods(|pod| lingers(pod, now)))
            }
        };
        for pod in pods {
            if let Err(failure) = look_after(&requests, &pod).await {
                tracing::debug!(
                    namespace = pod.id.namespace,
                    pod = pod.id.name,
                    ?failure,
                    "a leftover pod is looked at again later"
                );
            }
        }
    }
}

/// Where a pod stands in the order of the rounds: by its age.
type Place = (Option<Timestamp>, String);

/// The pods of the next round, oldest first from the last one of the round before; the very oldest follow the
/// youngest.
fn following(last: &mut Option<Place>, mut pods: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
    let place = |pod: &Pod| Some((pod.created, pod.id.uid.clone()));
    pods.sort_by_cached_key(|pod| place(pod));
    let seen = pods.partition_point(|pod| place(pod) <= *last);
    pods.rotate_left(seen);
    pods.truncate(PER_ROUND);
    *last = pods.last().and_then(|pod| place(pod));
    pods
}

fn lingers(pod: &Pod, now: Timestamp) -> bool {
    let long_ago = |at: Option<Timestamp>| at.is_some_and(|at| now.duration_since(at) > LINGERING);
    let over = pod.phase == Phase::Terminal || pod.never_runs();
    match pod.deletion {
        Some(requested) => over && long_ago(Some(requested)),
        None => (over || pod.controller.is_none()) && long_ago(pod.created) && long_ago(Some(ended(pod))),
    }
}

fn ended(pod: &Pod) -> Timestamp {
    match &pod.main {
        Container::Terminated(t) => t.finished_at.unwrap_or(Timestamp::UNIX_EPOCH),
        Container::Running { .. } | Container::Waiting { .. } | Container::Unmentioned => {
            Timestamp::UNIX_EPOCH
        }
    }
}

async fn look_after(requests: &Requests, pod: &Pod) -> Result<(), Failure> {
    let job = requests.job(&pod.id.namespace, &pod.id.job_name).await?;
    match care(pod, job.as_ref()) {
        Care::Nothing => Ok(()),
        Care::LetGo => {
            tracing::info!(
                namespace = pod.id.namespace,
                pod = pod.id.name,
                "a pod that no Job needs is let go"
            );
            requests.let_go(pod).await
        }
        Care::Delete => {
            tracing::warn!(
                namespace = pod.id.namespace,
                pod = pod.id.name,
                "a pod whose Job is gone is deleted"
            );
            requests.delete_pod(pod).await
        }
    }
}

fn care(pod: &Pod, job: Option<&Job>) -> Care {
    let over = pod.phase == Phase::Terminal || pod.never_runs();
    let Some(job) = job.filter(|job| job.metadata.uid.as_ref() == Some(&pod.id.job_uid)) else {
        return match pod.deletion {
            // Nobody will ever read its code.
            _ if over => Care::LetGo,
            Some(_) => Care::Nothing,
            // With a controller, its owners' deletion reaches it.
            None if pod.controller.is_some() => Care::Nothing,
            None => Care::Delete,
        };
    };
    let execution = job.status.as_ref().and_then(|s| s.execution.as_ref());
    let recorded = execution.and_then(|e| e.uid.as_deref());
    match (recorded, pod.deletion) {
        (Some(recorded), _) if recorded == pod.id.uid => Care::Nothing,
        // One that may have run and is not recorded yet will be: it is the only one that may count.
        (None, Some(_)) if pod.never_runs() => Care::LetGo,
        (Some(_), Some(_)) => Care::LetGo,
        (None, _) | (Some(_), None) => Care::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use ayatori_core::job::{Execution, JobStatus};

    use super::*;
    use crate::view::Identity;

    const DELETED: Option<Timestamp> = Some(Timestamp::UNIX_EPOCH);

    fn job(uid: &str, recorded: Option<&str>) -> Job {
        let execution = recorded.map(|uid| Execution {
            uid: Some(uid.to_owned()),
            ..Execution::default()
        });
        let mut job = Job {
            status: Some(JobStatus {
                execution,
                ..JobStatus::default()
            }),
            ..Job::default()
        };
        job.metadata.uid = Some(uid.to_owned());
        job
    }

    fn pod(node: Option<&str>, deletion: Option<Timestamp>, phase: Phase, controller: Option<&str>) -> Pod {
        let id = Identity {
            uid: "pod".to_owned(),
            job_uid: "job".to_owned(),
            ..Identity::default()
        };
        let node = node.map(str::to_owned);
        Pod {
            id,
            node,
            deletion,
            phase,
            controller: controller.map(str::to_owned),
            ..Pod::default()
        }
    }

    #[test]
    fn every_lingering_pod_has_its_turn_oldest_first() {
        let aged = |age: usize| {
            let mut pod = pod(None, DELETED, Phase::Open, None);
            pod.id.uid = format!("{age:03}");
            Arc::new(pod)
        };
        let mut last = None;
        let mut round = |pods: std::ops::Range<usize>| {
            let round = following(&mut last, pods.rev().map(aged).collect());
            let uids = round.iter().map(|pod| pod.id.uid.parse::<usize>().unwrap());
            uids.collect::<Vec<_>>()
        };
        assert_eq!(round(0..250), (0..100).collect::<Vec<_>>());
        // Those between that have gone meanwhile leave no gap.
        assert_eq!(round(150..250), (150..250).collect::<Vec<_>>());
        assert_eq!(round(0..250), (0..100).collect::<Vec<_>>());
        assert_eq!(round(0..150), (100..150).chain(0..50).collect::<Vec<_>>());
        assert_eq!(round(0..10), (0..10).collect::<Vec<_>>());
        assert_eq!(round(0..0), [0; 0]);
    }

    #[test]
    fn only_pods_that_no_job_needs_are_let_go() {
        let (mine, other, none) = (
            job("job", Some("pod")),
            job("job", Some("other")),
            job("job", None),
        );
        let successor = job("successor", Some("pod"));
        let owner = Some("batch");
        for (what, pod, job, expected) in [
            (
                "recorded, held, deleted",
                pod(None, DELETED, Phase::Open, owner),
                Some(&mine),
                Care::Nothing,
            ),
            (
                "recorded, over",
                pod(Some("n"), DELETED, Phase::Terminal, owner),
                Some(&mine),
                Care::Nothing,
            ),
            (
                "not recorded, held",
                pod(None, None, Phase::Open, owner),
                Some(&none),
                Care::Nothing,
            ),
            (
                "not recorded, held, deleted",
                pod(None, DELETED, Phase::Open, owner),
                Some(&none),
                Care::LetGo,
            ),
            (
                "not recorded yet, on a node, deleted",
                pod(Some("n"), DELETED, Phase::Open, owner),
                Some(&none),
                Care::Nothing,
            ),
            (
                "another is recorded",
                pod(None, None, Phase::Open, owner),
                Some(&other),
                Care::Nothing,
            ),
            (
                "another is recorded, deleted",
                pod(Some("n"), DELETED, Phase::Open, owner),
                Some(&other),
                Care::LetGo,
            ),
            (
                "Job gone, runs",
                pod(Some("n"), None, Phase::Open, owner),
                None,
                Care::Nothing,
            ),
            (
                "Job gone, runs, orphaned",
                pod(Some("n"), None, Phase::Open, None),
                None,
                Care::Delete,
            ),
            (
                "Job gone, is being ended",
                pod(Some("n"), DELETED, Phase::Open, None),
                None,
                Care::Nothing,
            ),
            (
                "Job gone, over",
                pod(Some("n"), None, Phase::Terminal, owner),
                None,
                Care::LetGo,
            ),
            (
                "Job replaced, never ran",
                pod(None, DELETED, Phase::Open, owner),
                Some(&successor),
                Care::LetGo,
            ),
        ] {
            assert_eq!(care(&pod, job), expected, "{what}");
        }
    }
}

//! Jobs as the cache keeps them: whole, but packed.
//!
//! Of ten thousand Jobs nearly all only wait, for their end or for their TTL, and an unpacked one takes four times the
//! memory. Nothing of it is left out: who decides unpacks the Job and has all of it. Beside it stands what a Job is
//! searched for among many.

use std::borrow::{Borrow, Cow};
use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, LazyLock};

use ayatori_core::conditions::{self, DELETION_BLOCKED, FINISHED, RESULT_UNKNOWN, SCHEDULED};
use ayatori_core::job::{Job, JobState, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::ObjectRef;
use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};

use crate::desks::Purpose;

/// A Job that is like most: what others have in common with it takes next to no room.
static TYPICAL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let job: Job = serde_json::from_str(include_str!("kept/typical.json")).expect("it is a Job");
    text(&job)
});

/// A Job that is kept.
#[derive(Clone)]
pub struct Kept {
    /// Which Job it is, and nothing else.
    metadata: ObjectMeta,
    /// Name of the class that accepted it, else of the one it asks for; empty if it asks for none.
    pub class: Arc<str>,
    /// The class that accepted it.
    pub accepted: Option<Arc<Accepted>>,
    /// Its state in one word.
    pub state: JobState,
    /// Whether nothing of it was ever seen in a backend, and it is not finished.
    pub is_unscheduled: bool,
    /// Whether it has an execution that is not released.
    is_executed: bool,
    /// Whether its ResultUnknown is True.
    pub is_unknown: bool,
    /// Whether its DeletionBlocked is True.
    pub is_blocked: bool,
    /// What it takes a place for.
    pub purpose: Purpose,
    packed: Box<[u8]>,
}

/// What Jobs are told apart by that a class accepted.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Accepted {
    /// Its controller.
    pub controller: String,
    /// Its UID.
    pub uid: String,
    /// The UID of its parameters.
    pub parameters_uid: String,
}

/// Packs Jobs. Those of one class share what they have of it.
#[derive(Debug, Default)]
pub struct Packer {
    names: HashSet<Arc<str>>,
    accepted: HashSet<Arc<Accepted>>,
}

impl Packer {
    /// The Job as it is kept.
    pub fn pack(&mut self, job: &Job) -> Kept {
        let metadata = ObjectMeta {
            name: job.metadata.name.clone(),
            namespace: job.metadata.namespace.clone(),
            uid: job.metadata.uid.clone(),
            ..ObjectMeta::default()
        };
        let status = job.status.as_ref();
        let accepted = status
            .and_then(|status| status.resolved_job_class.as_ref())
            .map(|class| Accepted {
                controller: class.controller_name.clone(),
                uid: class.uid.clone(),
                parameters_uid: class.parameters_ref.uid.clone(),
            });
        let execution = status.and_then(|status| status.execution.as_ref());
        let holds = |condition: &str| conditions::is_true(conditions_of(status), condition);
        Kept {
            metadata,
            class: shared(&mut self.names, class_of(job), Arc::from),
            accepted: accepted.map(|accepted| shared(&mut self.accepted, accepted, Arc::new)),
            state: status
                .and_then(|status| status.state)
                .unwrap_or(JobState::Waiting),
            is_unscheduled: !holds(SCHEDULED) && !holds(FINISHED),
            is_executed: execution.is_some_and(|execution| execution.release_time.is_none()),
            is_unknown: holds(RESULT_UNKNOWN),
            is_blocked: holds(DELETION_BLOCKED),
            purpose: Purpose::of(job),
            packed: compress_prepend_size_with_dict(&text(job), &TYPICAL).into(),
        }
    }
}

/// The one of these that equals this.
fn shared<T: Eq + Hash + ?Sized, V: Borrow<T>>(
    known: &mut HashSet<Arc<T>>,
    value: V,
    make: impl FnOnce(V) -> Arc<T>,
) -> Arc<T> {
    if let Some(known) = known.get(value.borrow()) {
        return known.clone();
    }
    // New ones are rare: the time to forget those that no Job has any more.
    known.retain(|old| Arc::strong_count(old) > 1);
    let new = make(value);
    known.insert(new.clone());
    new
}

impl Kept {
    /// The whole Job.
    pub fn whole(&self) -> Job {
        let text = decompress_size_prepended_with_dict(&self.packed, &TYPICAL).expect("it was packed so");
        serde_json::from_slice(&text).expect("a Job was packed")
    }

    /// Whether the class with this UID accepted it.
    pub fn is_accepted_by(&self, class_uid: Option<&str>) -> bool {
        let accepted = self.accepted.as_ref();
        accepted.is_some_and(|accepted| class_uid == Some(&accepted.uid))
    }

    /// Whether it may have something where the parameters with this UID say.
    pub fn is_executed_by(&self, parameters_uid: Option<&str>) -> bool {
        let accepted = self.accepted.as_ref();
        self.is_executed && accepted.is_some_and(|accepted| parameters_uid == Some(&accepted.parameters_uid))
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.whole().fmt(f)
    }
}

/// Where a Job is kept.
pub fn key(job: &ObjectRef<Job>) -> ObjectRef<Kept> {
    let key = ObjectRef::new(&job.name);
    match &job.namespace {
        Some(namespace) => key.within(namespace),
        None => key,
    }
}

/// Name of the class that accepted a Job, else of the one it asks for; empty if it asks for none.
pub fn class_of(job: &Job) -> &str {
    let accepted = job.status.as_ref().and_then(|s| s.resolved_job_class.as_ref());
    let asked = || job.spec.job_class_name.as_deref();
    accepted
        .map(|class| class.name.as_str())
        .or_else(asked)
        .unwrap_or_default()
}

fn conditions_of(status: Option<&JobStatus>) -> &[Condition] {
    status.map_or(&[], |status| &status.conditions)
}

fn text(job: &Job) -> Vec<u8> {
    serde_json::to_vec(job).expect("a Job has nothing that JSON has not")
}

/// It stands for the Job.
impl Resource for Kept {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Job::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Job::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Job::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Job::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use ayatori_core::job::Execution;

    use super::*;

    /// A Job that has ended, of other names, times and UIDs than the typical one.
    fn job() -> Job {
        let text = include_str!("kept/typical.json")
            .replace("\"job\"", "\"nightly-4711\"")
            .replace("rootless", "microvm")
            .replace("default", "team-a")
            .replace("00000000-0000", "2ea03d4e-9669")
            .replace("2026-01-01T00:00", "2027-11-30T01:30");
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn nothing_of_a_job_is_lost_however_little_it_has_in_common_with_others() {
        let bare: Job =
            serde_json::from_str(r#"{"metadata": {"name": "bare"}, "spec": {"image": "app"}}"#).unwrap();
        let mut long = job();
        long.spec.args = (0..1000_u32)
            .map(|n| n.wrapping_mul(2_654_435_761).to_string())
            .collect();
        for job in [bare, long, job()] {
            let kept = Packer::default().pack(&job);
            assert_eq!(kept.whole(), job);
            assert_eq!(kept.meta().uid, job.metadata.uid);
            assert_eq!(ObjectRef::from_obj(&kept), key(&ObjectRef::from_obj(&job)));
        }
    }

    #[test]
    fn an_ordinary_job_takes_a_quarter_of_its_text() {
        let job = job();
        let (packed, text) = (Packer::default().pack(&job).packed.len(), text(&job).len());
        assert!(packed * 4 < text, "{packed} of {text} bytes");
    }

    #[test]
    fn what_jobs_are_searched_for_stands_beside_them_and_names_are_shared() {
        let mut packer = Packer::default();
        let mut job = job();
        let (one, other) = (packer.pack(&job), packer.pack(&job));
        assert_eq!((&*one.class, one.state), ("microvm", JobState::Succeeded));
        let uid = &job
            .status
            .as_ref()
            .unwrap()
            .resolved_job_class
            .as_ref()
            .unwrap()
            .uid;
        assert!(
            one.is_accepted_by(Some(uid)) && !one.is_accepted_by(Some("other")) && !one.is_accepted_by(None)
        );
        assert!(Arc::ptr_eq(
            one.accepted.as_ref().unwrap(),
            other.accepted.as_ref().unwrap()
        ));
        assert!(!one.is_unscheduled && !one.is_unknown && !one.is_blocked);
        assert!(Arc::ptr_eq(&one.class, &other.class));

        job.status = None;
        job.spec.job_class_name = None;
        let fresh = packer.pack(&job);
        assert_eq!((&*fresh.class, fresh.state), ("", JobState::Waiting));
        assert!(fresh.accepted.is_none() && fresh.is_unscheduled);
        drop((one, other));
        packer.pack(&Job {
            spec: ayatori_core::job::JobSpec {
                job_class_name: Some("new".to_owned()),
                ..job.spec.clone()
            },
            ..job
        });
        assert!(!packer.names.contains("microvm"));
    }

    #[test]
    fn an_edit_of_parameters_concerns_what_has_an_execution_there_that_is_not_released() {
        let released = job().status.unwrap().execution.unwrap();
        let running = Execution {
            release_time: None,
            ..released.clone()
        };
        let uid = |job: &Job| {
            let class = job.status.as_ref()?.resolved_job_class.as_ref()?;
            Some(class.parameters_ref.uid.clone())
        };
        for (execution, concerned) in [(Some(running), true), (Some(released), false), (None, false)] {
            let mut job = job();
            job.status.as_mut().unwrap().execution = execution;
            let kept = Packer::default().pack(&job);
            assert_eq!(kept.is_executed_by(uid(&job).as_deref()), concerned, "{job:?}");
            assert!(!kept.is_executed_by(Some("another")) && !kept.is_executed_by(None));
        }
        let fresh = Job {
            status: None,
            ..job()
        };
        assert!(
            !Packer::default()
                .pack(&fresh)
                .is_executed_by(uid(&job()).as_deref())
        );
    }
}

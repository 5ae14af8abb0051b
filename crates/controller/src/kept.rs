//! Jobs as the cache keeps them: whole, but packed.
//!
//! Of ten thousand Jobs nearly all only wait, for their end or for their TTL, and an unpacked one takes four times the
//! memory. Nothing of it is left out: who decides unpacks the Job and has all of it. Beside it stands what a Job is
//! searched for among many.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, LazyLock};

use ayatori_core::conditions::{self, DELETION_BLOCKED, FINISHED, RESULT_UNKNOWN, SCHEDULED};
use ayatori_core::job::{Job, JobState, JobStatus};
use ayatori_core::stage::is_deleting;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::ObjectRef;
use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};

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
    /// Controller of the class that accepted it.
    pub controller: Option<Arc<str>>,
    /// Its state in one word.
    pub state: JobState,
    /// Whether nothing of it was ever seen in a backend, and it is not finished.
    pub is_unscheduled: bool,
    /// Whether its ResultUnknown is True.
    pub is_unknown: bool,
    /// Whether its DeletionBlocked is True.
    pub is_blocked: bool,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    packed: Box<[u8]>,
}

/// Packs Jobs. Those of one class share its name.
#[derive(Debug, Default)]
pub struct Packer {
    names: HashSet<Arc<str>>,
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
        let accepted = status.and_then(|status| status.resolved_job_class.as_ref());
        let holds = |condition: &str| conditions::is_true(conditions_of(status), condition);
        Kept {
            metadata,
            class: self.name(class_of(job)),
            controller: accepted.map(|class| self.name(&class.controller_name)),
            state: status
                .and_then(|status| status.state)
                .unwrap_or(JobState::Waiting),
            is_unscheduled: !holds(SCHEDULED) && !holds(FINISHED),
            is_unknown: holds(RESULT_UNKNOWN),
            is_blocked: holds(DELETION_BLOCKED),
            is_deleting: is_deleting(job),
            packed: compress_prepend_size_with_dict(&text(job), &TYPICAL).into(),
        }
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        // New ones are rare: the time to forget those that no Job has any more.
        self.names.retain(|name| Arc::strong_count(name) > 1);
        let name: Arc<str> = name.into();
        self.names.insert(name.clone());
        name
    }
}

impl Kept {
    /// The whole Job.
    pub fn whole(&self) -> Job {
        let text = decompress_size_prepended_with_dict(&self.packed, &TYPICAL).expect("it was packed so");
        serde_json::from_slice(&text).expect("a Job was packed")
    }

    /// Whether a class accepted it.
    pub fn is_accepted(&self) -> bool {
        self.controller.is_some()
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
        assert!(one.is_accepted() && !one.is_unscheduled && !one.is_unknown && !one.is_blocked);
        assert!(Arc::ptr_eq(&one.class, &other.class));

        job.status = None;
        job.spec.job_class_name = None;
        let fresh = packer.pack(&job);
        assert_eq!((&*fresh.class, fresh.state), ("", JobState::Waiting));
        assert!(!fresh.is_accepted() && fresh.is_unscheduled);
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
}

//! The metadata of our sandboxes: how lists find them, and how one is told from a stranger's.

use std::collections::BTreeMap;

use ayatori_core::job::Job;
use ayatori_core::names::{JOB_NAME_LABEL, JOB_NAMESPACE_LABEL, JOB_UID_LABEL};
use kube::ResourceExt;

/// Whose sandbox it is: what one list of all sandboxes of this adapter is filtered by.
const MANAGED_BY: (&str, &str) = ("execution.ayatori.ddupan.top/managed-by", "opensandbox-adapter");
/// The create request that made it.
const ATTEMPT: &str = "execution.ayatori.ddupan.top/attempt";

/// What every sandbox of this adapter carries.
pub(crate) fn of_all() -> [(&'static str, &'static str); 1] {
    [MANAGED_BY]
}

/// What every sandbox of a Job carries.
pub(crate) fn of_job(uid: &str) -> [(&'static str, &str); 2] {
    [MANAGED_BY, (JOB_UID_LABEL, uid)]
}

/// What the sandbox that an attempt creates for a Job carries. Names of Jobs and of namespaces are legal values:
/// the definition of Jobs limits theirs to that.
pub(crate) fn of_sandbox(job: &Job, attempt: &str) -> BTreeMap<String, String> {
    let (key, value) = MANAGED_BY;
    [
        (key, value.to_owned()),
        (JOB_NAMESPACE_LABEL, job.namespace().unwrap_or_default()),
        (JOB_NAME_LABEL, job.name_any()),
        (JOB_UID_LABEL, job.uid().unwrap_or_default()),
        (ATTEMPT, attempt.to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// The Job that a sandbox with this metadata says it is of, by UID.
pub(crate) fn job_uid(metadata: &BTreeMap<String, String>) -> Option<&str> {
    metadata.get(JOB_UID_LABEL).map(String::as_str)
}

/// The attempt that a sandbox with this metadata says it is of.
pub(crate) fn attempt(metadata: &BTreeMap<String, String>) -> Option<&str> {
    metadata.get(ATTEMPT).map(String::as_str)
}

/// Whether everything that this metadata says of its Job is true.
pub(crate) fn is_of(metadata: &BTreeMap<String, String>, job: &Job) -> bool {
    let says = |key: &str, value: Option<String>| metadata.get(key) == value.as_ref() && value.is_some();
    says(JOB_UID_LABEL, job.uid())
        && says(JOB_NAME_LABEL, job.metadata.name.clone())
        && says(JOB_NAMESPACE_LABEL, job.namespace())
}

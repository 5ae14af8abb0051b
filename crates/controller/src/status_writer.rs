//! Every write to the project's own objects, each fenced by what it was decided on.

use std::fmt::Debug;
use std::sync::Arc;

use ayatori_core::job::{Job, JobStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::failure::WriteError;
use crate::lease::Leadership;
use crate::telemetry::{Metrics, traces};
use crate::unknown_fields::{Shown, UnknownFields};

/// The one who writes. Every status write carries the resourceVersion it was decided on, changes only the
/// fields that differ, so that fields of a newer version survive, and is validated strictly, so that an
/// adapter newer than the CRDs fails loudly.
#[derive(Clone)]
pub struct StatusWriter {
    client: Client,
    params: PatchParams,
    leadership: Leadership,
    unknown: Arc<UnknownFields>,
    metrics: Metrics,
}

/// What can be written: anything that is read, printed and sent as a typed object.
pub trait Writable:
    Resource<DynamicType = ()> + Clone + Debug + Default + DeserializeOwned + Serialize
{
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + Default + DeserializeOwned + Serialize> Writable for K {}

impl StatusWriter {
    /// A writer that writes as `manager` while it leads.
    pub fn new(
        client: Client,
        manager: &str,
        leadership: Leadership,
        unknown: Arc<UnknownFields>,
        metrics: Metrics,
    ) -> Self {
        Self {
            client,
            params: PatchParams::apply(manager).validation_strict(),
            leadership,
            unknown,
            metrics,
        }
    }

    /// The same for another leadership.
    pub fn under(&self, leadership: Leadership) -> Self {
        Self {
            leadership,
            ..self.clone()
        }
    }

    /// Whether this writer may write now.
    pub fn may_write(&self) -> Result<(), WriteError> {
        if self.leadership.holds() {
            Ok(())
        } else {
            Err(WriteError::NotLeading)
        }
    }

    /// Stores a status decided on `object`.
    pub async fn report<K: Writable, S: Serialize>(
        &self,
        object: &K,
        old: Option<&S>,
        new: &S,
    ) -> Result<K, WriteError> {
        let status = difference(&to_value(&old), &to_value(&Some(new)));
        let patch = json!({ "metadata": { "resourceVersion": object.resource_version() }, "status": status });
        self.patch(object, "report", patch, true).await
    }

    /// Puts a finalizer on `object`.
    pub async fn protect<K: Writable>(&self, object: &K, finalizer: &str) -> Result<K, WriteError> {
        let mut finalizers = object.finalizers().to_vec();
        finalizers.push(finalizer.to_owned());
        self.finalizers(object, "protect", finalizers).await
    }

    /// Takes a finalizer off `object`, and nobody else's.
    pub async fn unprotect<K: Writable>(&self, object: &K, finalizer: &str) -> Result<K, WriteError> {
        let finalizers = object
            .finalizers()
            .iter()
            .filter(|f| *f != finalizer)
            .cloned()
            .collect();
        self.finalizers(object, "unprotect", finalizers).await
    }

    /// Deletes a Job whose TTL is over, if it still is as it was when that was decided: the API server compares, in
    /// the same step in which it deletes.
    pub async fn collect(&self, job: &Job) -> Result<(), WriteError> {
        const OPERATION: &str = "collect";
        self.may_write()?;
        let api = Api::<Job>::namespaced(self.client.clone(), &job.namespace().unwrap_or_default());
        let preconditions = Preconditions {
            uid: job.uid(),
            resource_version: job.resource_version(),
        };
        let params = DeleteParams::background().preconditions(preconditions);
        let result = api.delete(&job.name_any(), &params).await;
        traces::did_something();
        self.metrics.wrote(OPERATION, result.as_ref().err());
        result.map(|_| ()).map_err(|e| WriteError::of(OPERATION, &e))
    }

    async fn finalizers<K: Writable>(
        &self,
        object: &K,
        operation: &'static str,
        finalizers: Vec<String>,
    ) -> Result<K, WriteError> {
        let finalizers = if finalizers.is_empty() {
            Value::Null
        } else {
            json!(finalizers)
        };
        let patch = json!({
            "metadata": { "resourceVersion": object.resource_version(), "uid": object.uid(), "finalizers": finalizers }
        });
        self.patch(object, operation, patch, false).await
    }

    async fn patch<K: Writable>(
        &self,
        object: &K,
        operation: &'static str,
        patch: Value,
        status: bool,
    ) -> Result<K, WriteError> {
        self.may_write()?;
        let api = shown::<K>(&self.client, object.namespace().as_deref());
        let name = object.name_any();
        let patch = Patch::Merge(patch);
        let result = if status {
            api.patch_status(&name, &self.params, &patch).await
        } else {
            api.patch(&name, &self.params, &patch).await
        };
        traces::did_something();
        self.metrics.wrote(operation, result.as_ref().err());
        let stored = result.map_err(|e| WriteError::of(operation, &e))?;
        let unknown = stored.unknown.ok_or_else(|| WriteError::undecodable(operation))?;
        self.unknown.note(&K::kind(&()), stored.object.meta(), unknown);
        Ok(stored.object)
    }
}

/// The API of a kind, whose answers are read with all that this version does not know.
fn shown<K: Writable>(client: &Client, namespace: Option<&str>) -> Api<Shown<K>> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &()),
        None => Api::all(client.clone()),
    }
}

/// What `Job` statuses need most, spelled out.
impl StatusWriter {
    /// Stores a Job's status.
    pub async fn report_job(&self, job: &Job, status: &JobStatus) -> Result<Job, WriteError> {
        self.report(job, job.status.as_ref(), status).await
    }
}

fn to_value<S: Serialize>(object: &S) -> Value {
    serde_json::to_value(object).unwrap_or(Value::Null)
}

/// The JSON merge patch (RFC 7386) that turns `old` into `new`, which holds no null: such a patch can set none.
pub fn difference(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return new.clone();
    };
    let mut patch = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            Some(same) if same == value => {}
            Some(before) => {
                patch.insert(key.clone(), difference(before, value));
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_holds_what_differs_and_nothing_else() {
        for (old, new, patch) in [
            (json!(null), json!({"a": 1}), json!({"a": 1})),
            (
                json!({"a": 1, "b": {"c": 1, "d": 2}}),
                json!({"a": 1, "b": {"c": 1, "d": 3}}),
                json!({"b": {"d": 3}}),
            ),
            (
                json!({"a": 1, "b": {"c": 1, "d": 2}}),
                json!({"b": {"c": 1}}),
                json!({"a": null, "b": {"d": null}}),
            ),
            (json!({"l": [1, 2]}), json!({"l": [1]}), json!({"l": [1]})),
            (json!({"a": 1}), json!({"a": 1}), json!({})),
        ] {
            assert_eq!(difference(&old, &new), patch, "{old} to {new}");
        }
    }
}

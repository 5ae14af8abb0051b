//! Fields of a spec that this version does not know.
//!
//! An adapter may be older than the definitions in the cluster. What it would silently leave out of an object
//! somebody asked for, and so it has to know that there is something: then it can say so instead.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::DynamicObject;
use serde::de::DeserializeOwned;
use serde_ignored::Path;
use serde_json::{Value, json};

/// The paths of unknown fields of all cached objects, by UID. Most objects have none, and no entry.
///
/// Unknown fields are a fact of one generation of an object, and not every look shows them: right after the
/// definitions have changed, a watch that began before still leaves out what the old ones did not have. So what one
/// look has shown stays noted for that generation, and our own writes, whose answers come by the new definitions,
/// are looks too.
#[derive(Debug, Default)]
pub struct UnknownFields {
    of: Mutex<HashMap<String, Seen>>,
}

#[derive(Debug)]
struct Seen {
    generation: Option<i64>,
    fields: Vec<String>,
}

impl UnknownFields {
    /// Remembers what of an object is unknown now.
    pub(crate) fn note(&self, metadata: &ObjectMeta, fields: Vec<String>) {
        let uid = metadata.uid.clone().unwrap_or_default();
        let generation = metadata.generation;
        let mut of = self.locked();
        let known_before = of.get(&uid).is_some_and(|seen| seen.generation == generation);
        match (fields.is_empty(), known_before) {
            (true, true) => {}
            (true, false) => drop(of.remove(&uid)),
            (false, _) => drop(of.insert(uid, Seen { generation, fields })),
        }
    }

    /// Forgets an object.
    pub(crate) fn forget(&self, metadata: &ObjectMeta) {
        self.locked().remove(metadata.uid.as_deref().unwrap_or_default());
    }

    /// The unknown fields of an object, as paths.
    pub fn of(&self, metadata: &ObjectMeta) -> Vec<String> {
        let uid = metadata.uid.as_deref().unwrap_or_default();
        self.locked()
            .get(uid)
            .map(|seen| seen.fields.clone())
            .unwrap_or_default()
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object as this version understands it, and the fields of its spec that it does not. The metadata alone if
/// it cannot be understood at all.
pub(crate) fn understand<K>(object: DynamicObject) -> Result<(K, Vec<String>), Box<ObjectMeta>>
where
    K: Resource + DeserializeOwned,
{
    let DynamicObject {
        metadata, mut data, ..
    } = object;
    if let Value::Object(fields) = &mut data {
        fields.insert("metadata".to_owned(), json!({}));
    }
    let mut unknown = Vec::new();
    let understood = serde_ignored::deserialize::<_, _, K>(data, |path| {
        let path = written(&path);
        if path.starts_with("spec.") {
            unknown.push(path);
        }
    });
    match understood {
        Ok(mut object) => {
            *object.meta_mut() = metadata;
            Ok((object, unknown))
        }
        Err(_) => Err(Box::new(metadata)),
    }
}

/// A path as people write it: `spec.env[0].name`.
fn written(path: &Path<'_>) -> String {
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", written(parent)),
        Path::Map { parent, key } => match written(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            written(parent)
        }
    }
}

#[cfg(test)]
mod tests {
    use ayatori_core::job::Job;
    use ayatori_core::job_class::JobClass;
    use ayatori_core::parameters::KubernetesExecutionParameters;

    use super::*;

    fn object(spec: Value, status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "execution.ayatori.ddupan.top/v1alpha1",
            "kind": "Any",
            "metadata": { "name": "a", "uid": "u", "labels": { "unknown": "label" } },
            "spec": spec,
            "status": status,
        }))
        .unwrap()
    }

    fn unknown_of<K: Resource + DeserializeOwned>(spec: Value) -> Vec<String> {
        let (known, unknown) = understand::<K>(object(spec, json!({ "future": 1 }))).unwrap();
        assert_eq!(known.meta().uid.as_deref(), Some("u"));
        unknown
    }

    #[test]
    fn a_field_of_a_spec_that_this_version_does_not_know_is_found_wherever_it_is() {
        let job = json!({
            "image": "app",
            "gpu": { "count": 1 },
            "env": [{ "name": "A", "value": "1" }, { "name": "B", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k", "version": 3 } } }],
            "resources": { "limits": { "cpu": 1, "gpu": "2" } },
        });
        let mut found = unknown_of::<Job>(job);
        found.sort();
        assert_eq!(
            found,
            [
                "spec.env[1].valueFrom.secretKeyRef.version",
                "spec.gpu",
                "spec.resources.limits.gpu"
            ]
        );
        let class = json!({
            "controllerName": "a.example/b",
            "parametersRef": { "group": "g", "kind": "k", "name": "n" },
            "allowedImages": ["registry.example/*"],
        });
        assert_eq!(unknown_of::<JobClass>(class), ["spec.allowedImages"]);
        let parameters = json!({ "podSecurityContext": { "runAsNonRoot": true, "future": 1 } });
        assert_eq!(
            unknown_of::<KubernetesExecutionParameters>(parameters),
            ["spec.podSecurityContext.future"]
        );
    }

    #[test]
    fn what_is_written_in_full_and_empty_lists_are_known() {
        let job = json!({ "image": "app", "command": [], "env": [], "resources": {}, "suspend": null });
        assert_eq!(unknown_of::<Job>(job), Vec::<String>::new());
    }

    #[test]
    fn what_cannot_be_understood_at_all_keeps_its_metadata() {
        let metadata = understand::<Job>(object(json!({ "image": 1 }), json!({}))).unwrap_err();
        assert_eq!(
            (metadata.name.as_deref(), metadata.uid.as_deref()),
            (Some("a"), Some("u"))
        );
    }

    #[test]
    fn what_is_unknown_of_an_object_is_remembered_until_it_changes_or_goes() {
        let unknown = UnknownFields::default();
        let metadata = |uid: &str, generation| ObjectMeta {
            uid: Some(uid.to_owned()),
            generation: Some(generation),
            ..ObjectMeta::default()
        };
        unknown.note(&metadata("a", 1), vec!["spec.x".to_owned()]);
        unknown.note(&metadata("b", 1), vec!["spec.y".to_owned()]);
        // A watch from before a change of the definitions does not show it.
        unknown.note(&metadata("a", 1), vec![]);
        assert_eq!(unknown.of(&metadata("a", 1)), ["spec.x"]);
        unknown.note(&metadata("a", 2), vec![]);
        unknown.forget(&metadata("b", 1));
        assert!(unknown.of(&metadata("a", 2)).is_empty() && unknown.of(&metadata("b", 1)).is_empty());
    }
}

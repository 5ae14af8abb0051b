//! Fields of a spec that this version does not know.
//!
//! An adapter may be older than the definitions in the cluster. What it would silently leave out of an object
//! somebody asked for, and so it has to know that there is something: then it can say so instead.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::DynamicResourceScope;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_ignored::Path;
use serde_json::value::RawValue;

use crate::unmanaged::unmanaged;

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
    kind: String,
    generation: Option<i64>,
    fields: Vec<String>,
    /// Whether it was there since the last list of its kind began.
    listed: bool,
}

impl UnknownFields {
    /// Remembers what of an object of this kind is unknown now.
    pub(crate) fn note(&self, kind: &str, metadata: &ObjectMeta, fields: Vec<String>) {
        let uid = metadata.uid.clone().unwrap_or_default();
        let generation = metadata.generation;
        let mut of = self.locked();
        let before = of.get_mut(&uid).filter(|seen| seen.generation == generation);
        match (fields.is_empty(), before) {
            (true, Some(seen)) => seen.listed = true,
            (true, None) => drop(of.remove(&uid)),
            (false, _) => {
                let kind = kind.to_owned();
                let seen = Seen {
                    kind,
                    generation,
                    fields,
                    listed: true,
                };
                of.insert(uid, seen);
            }
        }
    }

    /// The objects of this kind are listed anew.
    pub(crate) fn list(&self, kind: &str) {
        let mut of = self.locked();
        let of_kind = of.values_mut().filter(|seen| seen.kind == kind);
        of_kind.for_each(|seen| seen.listed = false);
    }

    /// All objects of this kind were listed: those that were not are gone, and nothing else ever says so of what went
    /// while a watch was interrupted.
    pub(crate) fn listed(&self, kind: &str) {
        self.locked().retain(|_, seen| seen.listed || seen.kind != kind);
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

/// An object as the API server shows it. Read from the text of the answer object by object, so that of a long list
/// nothing is in memory at once but the text and what is kept.
#[derive(Clone, Debug)]
pub(crate) struct Shown<K> {
    /// The object; nothing but its metadata where `unknown` is `None`.
    pub(crate) object: K,
    /// The fields of its spec that this version does not know, as paths; `None` if it cannot be understood at all.
    pub(crate) unknown: Option<Vec<String>>,
}

impl<'de, K> Deserialize<'de> for Shown<K>
where
    K: Resource + Default + DeserializeOwned,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let text = unmanaged(text.get());
        let (mut object, unknown) = match understand::<K>(&text) {
            Ok((object, unknown)) => (object, Some(unknown)),
            Err(_) => {
                let Bare { metadata } = serde_json::from_str(&text).map_err(D::Error::custom)?;
                let mut object = K::default();
                *object.meta_mut() = metadata;
                (object, None)
            }
        };
        trim(object.meta_mut());
        Ok(Self { object, unknown })
    }
}

/// What is understood of any object.
#[derive(Deserialize)]
struct Bare {
    metadata: ObjectMeta,
}

fn understand<K: DeserializeOwned>(text: &str) -> serde_json::Result<(K, Vec<String>)> {
    let mut unknown = Vec::new();
    let object = serde_ignored::deserialize(&mut serde_json::Deserializer::from_str(text), |path| {
        let path = written(&path);
        if path.starts_with("spec.") {
            unknown.push(path);
        }
    })?;
    Ok((object, unknown))
}

/// Drops what no decision reads.
fn trim(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// It stands for what it shows.
impl<K: Resource> Resource for Shown<K> {
    type DynamicType = K::DynamicType;
    /// Whatever that of `K` is: who asks says.
    type Scope = DynamicResourceScope;

    fn kind(of: &K::DynamicType) -> Cow<'_, str> {
        K::kind(of)
    }

    fn group(of: &K::DynamicType) -> Cow<'_, str> {
        K::group(of)
    }

    fn version(of: &K::DynamicType) -> Cow<'_, str> {
        K::version(of)
    }

    fn plural(of: &K::DynamicType) -> Cow<'_, str> {
        K::plural(of)
    }

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
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
    use serde_json::{Value, json};

    use super::*;

    fn shown<K: Resource + Default + DeserializeOwned>(spec: Value, status: Value) -> Shown<K> {
        let text = json!({
            "apiVersion": "execution.ayatori.ddupan.top/v1alpha1",
            "kind": "Any",
            "metadata": {
                "name": "a",
                "uid": "u",
                "labels": { "unknown": "label" },
                "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b" },
                "managedFields": [{ "manager": "m", "fieldsV1": { "f:spec": {} } }],
            },
            "spec": spec,
            "status": status,
        });
        serde_json::from_str(&text.to_string()).unwrap()
    }

    fn unknown_of<K: Resource + Default + DeserializeOwned>(spec: Value) -> Vec<String> {
        let shown = shown::<K>(spec, json!({ "future": 1 }));
        let metadata = shown.meta();
        assert_eq!(metadata.uid.as_deref(), Some("u"));
        assert!(metadata.managed_fields.is_none());
        assert_eq!(
            metadata.annotations,
            Some([("a".to_owned(), "b".to_owned())].into())
        );
        shown.unknown.unwrap()
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
        let shown = shown::<Job>(json!({ "image": 1 }), json!({}));
        assert!(shown.unknown.is_none());
        let metadata = shown.meta();
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
        let note = |metadata, fields: &[&str]| {
            let fields = fields.iter().map(|field| (*field).to_owned());
            unknown.note("Job", &metadata, fields.collect());
        };
        note(metadata("a", 1), &["spec.x"]);
        note(metadata("b", 1), &["spec.y"]);
        // A watch from before a change of the definitions does not show it.
        note(metadata("a", 1), &[]);
        assert_eq!(unknown.of(&metadata("a", 1)), ["spec.x"]);
        note(metadata("a", 2), &[]);
        unknown.forget(&metadata("b", 1));
        assert!(unknown.of(&metadata("a", 2)).is_empty() && unknown.of(&metadata("b", 1)).is_empty());
    }

    #[test]
    fn what_went_while_a_watch_was_interrupted_is_forgotten_with_the_next_list_of_its_kind() {
        let unknown = UnknownFields::default();
        let metadata = |uid: &str| ObjectMeta {
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        };
        let note = |kind, uid, fields: &[&str]| {
            let fields = fields.iter().map(|field| (*field).to_owned());
            unknown.note(kind, &metadata(uid), fields.collect());
        };
        for (kind, uid) in [
            ("Job", "gone"),
            ("Job", "stays"),
            ("Job", "old"),
            ("JobClass", "class"),
        ] {
            note(kind, uid, &["spec.x"]);
        }
        unknown.list("Job");
        note("Job", "stays", &["spec.x"]);
        // Shown by a list that comes by older definitions.
        note("Job", "old", &[]);
        assert!(
            !unknown.of(&metadata("gone")).is_empty(),
            "the list is not complete yet"
        );
        unknown.listed("Job");
        for (uid, remains) in [("gone", false), ("stays", true), ("old", true), ("class", true)] {
            assert_eq!(!unknown.of(&metadata(uid)).is_empty(), remains, "{uid}");
        }
    }
}

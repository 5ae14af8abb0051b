//! The Secrets and ConfigMaps a Job refers to: whether they exist, and what they hold.
//!
//! Only by `get`, never by list or watch, and no value is kept between two questions. What is remembered for a
//! moment is that an object is missing, so that many Jobs that wait for the same one cost one request.
//!
//! [`References::check`] looks at names of keys only: values are skipped while the answer is parsed, and references
//! with `optional: true` are not looked up at all. [`References::values`] reads values, for backends that have to be
//! handed them. `imagePullSecrets` are not checked, since Kubernetes pulls without those that are missing, and a
//! registry that then refuses says so.
//!
//! Answers are parsed here and not by [`kube::Client::request`], which logs the text of an answer it cannot parse.

use std::array;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use ayatori_core::execution::Why;
use ayatori_core::job::{Job, KeySelector, ObjectSelector};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::GetParams;
use kube::core::Request;
use kube::{Client, Error, Resource, ResourceExt};
use secrecy::SecretSlice;
use secrecy::zeroize::Zeroizing;
use serde::de::{DeserializeOwned, IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::failure::brief;

/// How many references are looked up at the same time, for all Jobs together.
const SLOTS: usize = 8;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a missing object is taken to be missing still: less than the time between two looks at a waiting Job.
const MISSING_FOR: Duration = Duration::from_secs(3);

/// How many missing objects a slot remembers.
const REMEMBERED: usize = 128;

/// An answer about a Job. The inner error is what is wrong with the Job's references, the outer one says that this
/// could not be found out at present.
pub type Answer<T> = Result<Result<T, Why>, Why>;

/// The data of a Secret, by key.
pub type SecretData = BTreeMap<String, SecretSlice<u8>>;

/// In which namespaces references to Secrets are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretScope {
    /// Nowhere: not checked, and no values can be had.
    Nowhere,
    /// In these. A Job elsewhere may not refer to Secrets.
    Namespaces(Vec<String>),
    /// In all.
    Everywhere,
}

/// Looks up references.
pub struct References {
    client: Client,
    secrets: SecretScope,
    /// An object always has the same slot: of many Jobs that wait for it, one asks, and the others see what it found.
    slots: [Mutex<Missing>; SLOTS],
    hasher: RandomState,
}

/// What kind of object is referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

/// What the environment of a Job refers to, as it is at this moment. An object that does not exist is not there.
#[derive(Debug, Default)]
pub struct Data {
    /// Secrets by name.
    pub secrets: BTreeMap<String, SecretData>,
    /// ConfigMaps by name. Their `binaryData` is no part of it: the kubelet makes no variables of that.
    pub config_maps: BTreeMap<String, BTreeMap<String, String>>,
}

/// One of a Job's `imagePullSecrets`.
#[derive(Debug)]
pub struct PullSecret {
    /// Its name.
    pub name: String,
    /// Its type, such as `kubernetes.io/dockerconfigjson`.
    pub type_: String,
    /// What it holds.
    pub data: SecretData,
}

/// Objects that were missing, and when that was seen.
#[derive(Default)]
struct Missing(HashMap<(Kind, String, String), Instant>);

/// Why a question has no good answer.
enum Trouble {
    /// Something about the Job.
    OfJob(Why),
    /// It could not be found out.
    Unanswered(Why),
}

/// One object, with the keys of it that must exist.
#[derive(Debug, PartialEq, Eq)]
struct Reference<'a> {
    kind: Kind,
    name: &'a str,
    keys: Vec<&'a str>,
}

/// The keys of a Secret or ConfigMap.
#[derive(Deserialize)]
struct Keys {
    data: Option<BTreeMap<String, IgnoredAny>>,
}

#[derive(Deserialize)]
struct SecretObject {
    #[serde(rename = "type")]
    type_: Option<String>,
    data: Option<BTreeMap<String, Encoded>>,
}

#[derive(Deserialize)]
struct ConfigMapObject {
    data: Option<BTreeMap<String, String>>,
}

/// A value that was base64 in the answer.
struct Encoded(SecretSlice<u8>);

impl References {
    /// Looks up Secrets in that scope, and ConfigMaps everywhere.
    pub fn new(client: Client, secrets: SecretScope) -> Self {
        Self {
            client,
            secrets,
            slots: array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
        }
    }

    /// The first thing the Job refers to that does not exist, in the order of its spec. Where no Secrets may be
    /// looked up at all, references to them are passed over.
    pub async fn check(&self, job: &Job) -> Answer<()> {
        let namespace = job.namespace().unwrap_or_default();
        for reference in needed_by(job) {
            if reference.kind == Kind::Secret && self.secrets == SecretScope::Nowhere {
                continue;
            }
            match self.look_up(&namespace, &reference).await {
                Ok(()) => {}
                Err(trouble) => return trouble.into(),
            }
        }
        Ok(Ok(()))
    }

    /// The data of everything the Job's environment refers to, optional or not, read now. What is missing is missing
    /// in the data; that a Secret may not be read is an error even if it is optional.
    pub async fn values(&self, job: &Job) -> Answer<Data> {
        match self.data_of(job).await {
            Ok(data) => Ok(Ok(data)),
            Err(trouble) => trouble.into(),
        }
    }

    /// Those of the Job's `imagePullSecrets` that exist, in their order.
    pub async fn pull_secrets(&self, job: &Job) -> Answer<Vec<PullSecret>> {
        let namespace = job.namespace().unwrap_or_default();
        let mut found = Vec::new();
        for reference in &job.spec.image_pull_secrets {
            match self.secret(&namespace, &reference.name).await {
                Ok(None) => {}
                Ok(Some(secret)) => found.push(PullSecret {
                    name: reference.name.clone(),
                    type_: secret.type_.clone().unwrap_or_default(),
                    data: secret.into_data(),
                }),
                Err(trouble) => return trouble.into(),
            }
        }
        Ok(Ok(found))
    }

    /// The value of one key of a Secret, which no Job refers to.
    pub async fn secret_key(&self, namespace: &str, name: &str, key: &str) -> Answer<SecretSlice<u8>> {
        let found = match self.secret(namespace, name).await {
            Ok(Some(secret)) => secret.into_data().remove(key),
            Ok(None) => return Ok(Err(Kind::Secret.absent(namespace, name))),
            Err(trouble) => return trouble.into(),
        };
        Ok(found.ok_or_else(|| Kind::Secret.key_absent(namespace, name, key)))
    }

    async fn look_up(&self, namespace: &str, reference: &Reference<'_>) -> Result<(), Trouble> {
        let Reference { kind, name, keys } = reference;
        self.allows(*kind, namespace, name)?;
        let mut slot = self.slot(*kind, namespace, name).await;
        if slot.holds(*kind, namespace, name) {
            return Err(Trouble::OfJob(kind.missing(namespace, name)));
        }
        // Where no key is asked for, only metadata is read.
        let metadata_only = keys.is_empty();
        let Some(found) = self.get::<Keys>(*kind, namespace, name, metadata_only).await? else {
            slot.note(*kind, namespace, name);
            return Err(Trouble::OfJob(kind.missing(namespace, name)));
        };
        let found = found.data.unwrap_or_default();
        match keys.iter().find(|key| !found.contains_key(**key)) {
            None => Ok(()),
            Some(key) => Err(Trouble::OfJob(kind.key_missing(namespace, name, key))),
        }
    }

    async fn data_of(&self, job: &Job) -> Result<Data, Trouble> {
        let namespace = job.namespace().unwrap_or_default();
        let names: BTreeSet<_> = all_of(job).map(|(kind, name, ..)| (kind, name)).collect();
        let mut data = Data::default();
        for (kind, name) in names {
            match kind {
                Kind::Secret => {
                    if let Some(secret) = self.secret(&namespace, name).await? {
                        data.secrets.insert(name.to_owned(), secret.into_data());
                    }
                }
                Kind::ConfigMap => {
                    let _slot = self.slot(kind, &namespace, name).await;
                    if let Some(found) = self.get::<ConfigMapObject>(kind, &namespace, name, false).await? {
                        data.config_maps
                            .insert(name.to_owned(), found.data.unwrap_or_default());
                    }
                }
            }
        }
        Ok(data)
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SecretObject>, Trouble> {
        self.allows(Kind::Secret, namespace, name)?;
        let _slot = self.slot(Kind::Secret, namespace, name).await;
        self.get(Kind::Secret, namespace, name, false).await
    }

    fn allows(&self, kind: Kind, namespace: &str, name: &str) -> Result<(), Trouble> {
        let allowed = match (kind, &self.secrets) {
            (Kind::ConfigMap, _) | (Kind::Secret, SecretScope::Everywhere) => true,
            (Kind::Secret, SecretScope::Nowhere) => false,
            (Kind::Secret, SecretScope::Namespaces(allowed)) => allowed.iter().any(|n| n == namespace),
        };
        if allowed {
            return Ok(());
        }
        Err(Trouble::OfJob(Why::new(
            "ReferenceForbidden",
            format!(
                "Secret {name:?} cannot be looked up: the adapter may not read Secrets of namespace {namespace}; have \
                 the namespace added to its --secret-namespaces, or do not refer to a Secret"
            ),
        )))
    }

    async fn slot(&self, kind: Kind, namespace: &str, name: &str) -> MutexGuard<'_, Missing> {
        let slots = u64::try_from(SLOTS).expect("a small number");
        let hash = self.hasher.hash_one((kind, namespace, name)) % slots;
        let slot = usize::try_from(hash).ok().and_then(|index| self.slots.get(index));
        slot.expect("a remainder is less than its divisor").lock().await
    }

    /// The object, if it exists, as far as `T` has it. Its text is wiped here; what the connection's own buffers held
    /// of it cannot be.
    async fn get<T: DeserializeOwned>(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
        metadata_only: bool,
    ) -> Result<Option<T>, Trouble> {
        let (url, resource) = match kind {
            Kind::Secret => (Secret::url_path(&(), Some(namespace)), "secrets"),
            Kind::ConfigMap => (ConfigMap::url_path(&(), Some(namespace)), "configmaps"),
        };
        let unanswered = |why: &str| {
            Trouble::Unanswered(Why::new(
                "BackendUnavailable",
                format!("the API server did not get {resource}: {why}"),
            ))
        };
        let (request, parameters) = (Request::new(url), GetParams::default());
        let request = if metadata_only {
            request.get_metadata(name, &parameters)
        } else {
            request.get(name, &parameters)
        };
        let request = request.map_err(|e| unanswered(&format!("the request cannot be built: {e}")))?;
        let answer = tokio::time::timeout(TIMEOUT, self.client.request_text(request)).await;
        let text = match answer {
            Ok(Ok(text)) => Zeroizing::new(text),
            Ok(Err(Error::Api(status))) if status.code == 404 => return Ok(None),
            Ok(Err(Error::Api(status))) if status.code == 403 => {
                return Err(Trouble::OfJob(Why::new(
                    "ReferenceForbidden",
                    format!(
                        "{} {name:?} cannot be looked up: the adapter may not get {resource} in namespace {namespace}; \
                         have its chart's roles installed for that namespace",
                        kind.word()
                    ),
                )));
            }
            Ok(Err(error)) => return Err(unanswered(&brief(&error))),
            Err(_) => return Err(unanswered(&format!("no answer within {} s", TIMEOUT.as_secs()))),
        };
        // What serde says of a value may quote it.
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|_| unanswered(&format!("the answer is no {}", kind.word())))
    }
}

impl Missing {
    fn holds(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        let key = (kind, namespace.to_owned(), name.to_owned());
        self.0.get(&key).is_some_and(|seen| seen.elapsed() < MISSING_FOR)
    }

    fn note(&mut self, kind: Kind, namespace: &str, name: &str) {
        self.0.retain(|_, seen| seen.elapsed() < MISSING_FOR);
        if self.0.len() < REMEMBERED {
            let key = (kind, namespace.to_owned(), name.to_owned());
            self.0.insert(key, Instant::now());
        }
    }
}

impl Kind {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Secret => "Secret",
            Kind::ConfigMap => "ConfigMap",
        }
    }

    /// Why a Job waits that needs an object that does not exist.
    pub fn missing(self, namespace: &str, name: &str) -> Why {
        or_optional(self.absent(namespace, name))
    }

    /// Why a Job waits that needs a key which the object does not have.
    pub fn key_missing(self, namespace: &str, name: &str, key: &str) -> Why {
        or_optional(self.key_absent(namespace, name, key))
    }

    fn absent(self, namespace: &str, name: &str) -> Why {
        let word = self.word();
        Why::new(
            format!("{word}NotFound"),
            format!("{word} {name:?} does not exist in namespace {namespace}; create it"),
        )
    }

    fn key_absent(self, namespace: &str, name: &str, key: &str) -> Why {
        let word = self.word();
        Why::new(
            format!("{word}KeyNotFound"),
            format!("{word} {name:?} in namespace {namespace} has no key {key:?}; add it"),
        )
    }
}

/// What a Job refers to it may also do without.
fn or_optional(why: Why) -> Why {
    let message = format!("{}, or make the reference optional", why.message);
    Why::new(why.reason, message)
}

impl<T> From<Trouble> for Answer<T> {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::OfJob(why) => Ok(Err(why)),
            Trouble::Unanswered(why) => Err(why),
        }
    }
}

impl SecretObject {
    fn into_data(self) -> SecretData {
        let data = self.data.unwrap_or_default().into_iter();
        data.map(|(key, Encoded(value))| (key, value)).collect()
    }
}

impl<'de> Deserialize<'de> for Encoded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Decode;
        impl Visitor<'_> for Decode {
            type Value = Encoded;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("base64")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Encoded, E> {
                let mut buffer = Zeroizing::new(vec![0; base64::decoded_len_estimate(text.len())]);
                let length = BASE64_STANDARD
                    .decode_slice(text, &mut buffer)
                    .map_err(|_| E::custom("not base64"))?;
                // Copied, not cut: shrinking may move it and leave the old place as it was.
                let value = buffer.get(..length).unwrap_or_default();
                Ok(Encoded(SecretSlice::from(Box::<[u8]>::from(value))))
            }
        }
        deserializer.deserialize_str(Decode)
    }
}

/// The first Secret that the Job's environment refers to, optional or not.
pub fn secret_in_environment(job: &Job) -> Option<&str> {
    all_of(job)
        .find(|(kind, ..)| *kind == Kind::Secret)
        .map(|(_, name, ..)| name)
}

/// What a Job cannot start without, one entry per object, in the order of its spec.
fn needed_by(job: &Job) -> Vec<Reference<'_>> {
    let mut found: Vec<Reference<'_>> = Vec::new();
    for (kind, name, key, optional) in all_of(job) {
        if optional {
            continue;
        }
        match found.iter_mut().find(|r| r.kind == kind && r.name == name) {
            Some(known) => known.keys.extend(key),
            None => found.push(Reference {
                kind,
                name,
                keys: key.into_iter().collect(),
            }),
        }
    }
    found
}

/// Everything a Job's environment refers to: kind, name, key if it is one, and whether it is optional.
fn all_of(job: &Job) -> impl Iterator<Item = (Kind, &str, Option<&str>, bool)> {
    let of_keys = job
        .spec
        .env
        .iter()
        .filter_map(|variable| variable.value_from.as_ref())
        .flat_map(|source| {
            let secret = source.secret_key_ref.as_ref().map(|r| one_key(Kind::Secret, r));
            secret.into_iter().chain(
                source
                    .config_map_key_ref
                    .as_ref()
                    .map(|r| one_key(Kind::ConfigMap, r)),
            )
        });
    let of_objects = job.spec.env_from.iter().flat_map(|source| {
        let secret = source.secret_ref.as_ref().map(|r| whole(Kind::Secret, r));
        secret
            .into_iter()
            .chain(source.config_map_ref.as_ref().map(|r| whole(Kind::ConfigMap, r)))
    });
    of_keys.chain(of_objects)
}

fn one_key(kind: Kind, selector: &KeySelector) -> (Kind, &str, Option<&str>, bool) {
    let optional = selector.optional == Some(true);
    (kind, &selector.name, Some(&selector.key), optional)
}

fn whole(kind: Kind, selector: &ObjectSelector) -> (Kind, &str, Option<&str>, bool) {
    (kind, &selector.name, None, selector.optional == Some(true))
}

#[cfg(test)]
mod tests;

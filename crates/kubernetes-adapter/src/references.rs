//! Whether the Secrets and ConfigMaps a Job refers to exist.
//!
//! Only by `get`, never by list or watch, and only names of keys are looked at: values are skipped while the
//! answer is parsed. References with `optional: true` are not looked up at all. `imagePullSecrets` are not
//! either, since Kubernetes pulls without those that are missing, and a registry that then refuses says so.

use std::collections::BTreeMap;

use ayatori_core::execution::Why;
use ayatori_core::job::{Job, KeySelector, ObjectSelector};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::GetParams;
use kube::core::Request;
use kube::{Client, Resource, ResourceExt};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::Semaphore;

use crate::requests::{Ask, Failure};

/// How many references are looked up at the same time, for all Jobs together.
const AT_ONCE: usize = 8;

/// In which namespaces references to Secrets are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretScope {
    /// Nowhere: a missing Secret shows when the kubelet looks for it, as ContainerConfigError.
    Nowhere,
    /// In these. A Job elsewhere may not refer to Secrets.
    Namespaces(Vec<String>),
    /// In all.
    Everywhere,
}

/// Looks up references.
pub(crate) struct References {
    client: Client,
    secrets: SecretScope,
    slots: Semaphore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Secret,
    ConfigMap,
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
    #[serde(default)]
    data: Option<BTreeMap<String, IgnoredAny>>,
}

impl References {
    pub(crate) fn new(client: Client, secrets: SecretScope) -> Self {
        Self {
            client,
            secrets,
            slots: Semaphore::new(AT_ONCE),
        }
    }

    /// The first thing the Job refers to that does not exist, in the order of its spec. The outer error says
    /// that this could not be found out.
    pub(crate) async fn check(&self, job: &Job) -> Result<Result<(), Why>, Why> {
        let namespace = job.namespace().unwrap_or_default();
        for reference in references_of(job) {
            let found = match reference.kind {
                Kind::ConfigMap => self.look_up(&namespace, &reference).await,
                Kind::Secret => match &self.secrets {
                    SecretScope::Nowhere => continue,
                    SecretScope::Namespaces(allowed) if !allowed.contains(&namespace) => {
                        return Ok(Err(out_of_scope(&namespace, reference.name)));
                    }
                    SecretScope::Namespaces(_) | SecretScope::Everywhere => {
                        self.look_up(&namespace, &reference).await
                    }
                },
            };
            if let Err(why) = found? {
                return Ok(Err(why));
            }
        }
        Ok(Ok(()))
    }

    async fn look_up(&self, namespace: &str, reference: &Reference<'_>) -> Result<Result<(), Why>, Why> {
        // Never closed.
        let _slot = self.slots.acquire().await;
        let Reference { kind, name, keys } = reference;
        let word = kind.word();
        match self.keys_of(namespace, reference).await {
            Ok(None) => Ok(Err(Why::new(
                format!("{word}NotFound"),
                format!(
                    "{word} {name:?} does not exist in namespace {namespace}; create it, or make the reference optional"
                ),
            ))),
            Ok(Some(found)) => Ok(match keys.iter().find(|key| !found.contains_key(**key)) {
                None => Ok(()),
                Some(key) => Err(Why::new(
                    format!("{word}KeyNotFound"),
                    format!(
                        "{word} {name:?} in namespace {namespace} has no key {key:?}; add it, or make the reference optional"
                    ),
                )),
            }),
            Err(Failure::Rejected(why)) => Ok(Err(Why::new(
                "ReferenceForbidden",
                format!("{word} {name:?} cannot be looked up: {}", why.message),
            ))),
            Err(failure) => Err(failure.why()),
        }
    }

    /// The keys of the object, if it exists. Where none is asked for, only its metadata is read.
    async fn keys_of(
        &self,
        namespace: &str,
        reference: &Reference<'_>,
    ) -> Result<Option<BTreeMap<String, IgnoredAny>>, Failure> {
        let (url, resource) = match reference.kind {
            Kind::Secret => (Secret::url_path(&(), Some(namespace)), "secrets"),
            Kind::ConfigMap => (ConfigMap::url_path(&(), Some(namespace)), "configmaps"),
        };
        let found = async {
            let (request, parameters) = (Request::new(url), GetParams::default());
            let request = if reference.keys.is_empty() {
                request.get_metadata(reference.name, &parameters)
            } else {
                request.get(reference.name, &parameters)
            };
            self.client
                .request::<Keys>(request.map_err(kube::Error::BuildRequest)?)
                .await
        };
        match (Ask {
            verb: "get",
            resource,
            namespace,
        })
        .send(found)
        .await
        {
            Ok(keys) => Ok(Some(keys.data.unwrap_or_default())),
            Err(Failure::Stale) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Secret => "Secret",
            Kind::ConfigMap => "ConfigMap",
        }
    }
}

/// What a Job cannot start without, one entry per object, in the order of its spec.
fn references_of(job: &Job) -> Vec<Reference<'_>> {
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
    let mut found: Vec<Reference<'_>> = Vec::new();
    for (kind, name, key, optional) in of_keys.chain(of_objects) {
        if optional == Some(true) {
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

fn one_key(kind: Kind, selector: &KeySelector) -> (Kind, &str, Option<&str>, Option<bool>) {
    (kind, &selector.name, Some(&selector.key), selector.optional)
}

fn whole(kind: Kind, selector: &ObjectSelector) -> (Kind, &str, Option<&str>, Option<bool>) {
    (kind, &selector.name, None, selector.optional)
}

fn out_of_scope(namespace: &str, name: &str) -> Why {
    Why::new(
        "ReferenceForbidden",
        format!(
            "Secret {name:?} cannot be looked up: the adapter may not read Secrets of namespace {namespace}; have the \
             namespace added to its --secret-namespaces, or do not refer to a Secret"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::{api_server, job};

    fn there(path: &str) -> (u16, serde_json::Value) {
        let secret = json!({ "metadata": { "name": "s" }, "data": { "k": "c2VjcmV0" } });
        match path.split('?').next().unwrap_or_default().rsplit('/').next() {
            Some("s" | "c") => (200, secret),
            Some("forbidden") => (
                403,
                json!("secrets \"forbidden\" is forbidden: User \"x\" cannot get resource \"secrets\""),
            ),
            Some("broken") => (500, json!("etcd is away")),
            _ => (404, json!("not found")),
        }
    }

    async fn checked(spec: &str, scope: SecretScope) -> (String, usize) {
        let (client, asked) = api_server(|_, path| there(path));
        let answer = match References::new(client, scope).check(&job(spec)).await {
            Ok(Ok(())) => "all there".to_owned(),
            Ok(Err(why)) => why.reason,
            Err(why) => format!("not answered: {}", why.reason),
        };
        let asked = asked.lock().unwrap();
        assert!(
            asked
                .iter()
                .all(|a| a.method == "GET" && !a.path.contains("watch=true"))
        );
        (answer, asked.len())
    }

    fn env(source: &str) -> String {
        format!("spec: {{ env: [{{ name: A, valueFrom: {{ {source} }} }}] }}")
    }

    fn env_from(source: &str) -> String {
        format!("spec: {{ envFrom: [{{ {source} }}] }}")
    }

    #[tokio::test]
    async fn what_a_job_refers_to_must_exist_unless_it_is_optional() {
        for (spec, expected, requests) in [
            (env("secretKeyRef: { name: s, key: k }"), "all there", 1),
            (
                env("secretKeyRef: { name: s, key: absent }"),
                "SecretKeyNotFound",
                1,
            ),
            (env("secretKeyRef: { name: absent, key: k }"), "SecretNotFound", 1),
            (
                env("secretKeyRef: { name: absent, key: k, optional: true }"),
                "all there",
                0,
            ),
            (
                env("secretKeyRef: { name: forbidden, key: k }"),
                "ReferenceForbidden",
                1,
            ),
            (
                env("secretKeyRef: { name: broken, key: k }"),
                "not answered: BackendUnavailable",
                1,
            ),
            (env("configMapKeyRef: { name: c, key: k }"), "all there", 1),
            (
                env("configMapKeyRef: { name: c, key: absent }"),
                "ConfigMapKeyNotFound",
                1,
            ),
            (env_from("secretRef: { name: s }"), "all there", 1),
            (env_from("secretRef: { name: absent }"), "SecretNotFound", 1),
            (env_from("configMapRef: { name: absent }"), "ConfigMapNotFound", 1),
            (
                env_from("configMapRef: { name: absent, optional: true }"),
                "all there",
                0,
            ),
            (
                "spec: { imagePullSecrets: [{ name: absent }] }".to_owned(),
                "all there",
                0,
            ),
        ] {
            let found = checked(&spec, SecretScope::Everywhere).await;
            assert_eq!(found, (expected.to_owned(), requests), "{spec}");
        }
    }

    #[tokio::test]
    async fn an_object_is_asked_for_once_however_often_it_is_referred_to() {
        let spec = "
            spec:
              env:
              - { name: A, valueFrom: { secretKeyRef: { name: s, key: k } } }
              - { name: B, valueFrom: { secretKeyRef: { name: s, key: k } } }
              envFrom: [{ secretRef: { name: s } }]
        ";
        assert_eq!(
            checked(spec, SecretScope::Everywhere).await,
            ("all there".to_owned(), 1)
        );
    }

    #[tokio::test]
    async fn secrets_are_looked_up_only_where_the_adapter_may() {
        let spec = env("secretKeyRef: { name: absent, key: k }");
        for (scope, expected, requests) in [
            (SecretScope::Nowhere, "all there", 0),
            (
                SecretScope::Namespaces(vec!["other".to_owned()]),
                "ReferenceForbidden",
                0,
            ),
            (
                SecretScope::Namespaces(vec!["team".to_owned()]),
                "SecretNotFound",
                1,
            ),
        ] {
            assert_eq!(
                checked(&spec, scope.clone()).await,
                (expected.to_owned(), requests),
                "{scope:?}"
            );
        }
    }
}

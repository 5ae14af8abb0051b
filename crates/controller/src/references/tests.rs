use std::sync::{Arc, Mutex};

use futures::future::join_all;
use kube::client::Body;
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::*;

/// A client of an API server that answers each path, and the list of what was asked.
fn api_server(
    answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static,
) -> (Client, Arc<Mutex<Vec<String>>>) {
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let (answer, written) = (Arc::new(answer), log.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (answer, log) = (answer.clone(), written.clone());
        async move {
            let path = request.uri().to_string();
            log.lock().unwrap().push(format!("{} {path}", request.method()));
            // A real server takes its time, in which others come to ask too.
            tokio::task::yield_now().await;
            let (code, object) = answer(&path);
            let body = match object {
                Value::String(text) if code < 300 => text,
                Value::String(message) => {
                    json!({ "kind": "Status", "status": "Failure", "code": code, "message": message })
                        .to_string()
                }
                object => object.to_string(),
            };
            let response = http::Response::builder()
                .status(code)
                .body(Body::from(body.into_bytes()));
            Ok::<_, Error>(response.unwrap())
        }
    });
    (Client::new(service, "default"), log)
}

/// Secret `s` and ConfigMap `c`, each with the key `k`.
fn there(path: &str) -> (u16, Value) {
    match path.split('?').next().and_then(|p| p.rsplit('/').next()) {
        Some("s") => (
            200,
            json!({ "type": "Opaque", "data": { "k": "c2VjcmV0", "empty": "", "bytes": "//4AQQ==" } }),
        ),
        Some("c") => (
            200,
            json!({ "data": { "k": "plain" }, "binaryData": { "b": "AAE=" } }),
        ),
        Some("bare") => (200, json!({ "metadata": { "name": "bare" } })),
        Some("garbled") => (200, json!({ "data": { "k": "canary!" } })),
        Some("cut") => (200, json!(r#"{"data":{"k":"canary"#)),
        Some("forbidden") => (403, json!("secrets \"forbidden\" is forbidden")),
        Some("unauthorized") => (401, json!("Unauthorized")),
        Some("broken") => (500, json!("etcd is away")),
        _ => (404, json!("not found")),
    }
}

fn job(spec: Value) -> Job {
    serde_json::from_value(json!({
        "apiVersion": "execution.ayatori.ddupan.top/v1alpha1",
        "kind": "Job",
        "metadata": { "name": "build", "namespace": "team" },
        "spec": merged(json!({ "image": "app" }), spec),
    }))
    .unwrap()
}

fn merged(mut object: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    object.as_object_mut().unwrap().extend(more);
    object
}

fn secret_key(name: &str, key: &str) -> Value {
    env(json!({ "secretKeyRef": { "name": name, "key": key } }))
}

fn env(source: Value) -> Value {
    json!({ "env": [{ "name": "A", "valueFrom": source }] })
}

fn env_from(source: Value) -> Value {
    json!({ "envFrom": [source] })
}

fn word<T>(answer: Answer<T>) -> String {
    match answer {
        Ok(Ok(_)) => "good".to_owned(),
        Ok(Err(why)) => why.reason,
        Err(why) => format!("not answered: {}", why.reason),
    }
}

async fn checked(spec: &Value, scope: SecretScope) -> (String, usize) {
    let (client, asked) = api_server(there);
    let answer = References::new(client, scope).check(&job(spec.clone())).await;
    let asked = asked.lock().unwrap();
    assert!(
        asked
            .iter()
            .all(|a| a.starts_with("GET ") && !a.contains("watch=true"))
    );
    (word(answer), asked.len())
}

#[tokio::test]
async fn what_a_job_refers_to_must_exist_unless_it_is_optional() {
    let config_map_key = |name, key| env(json!({ "configMapKeyRef": { "name": name, "key": key } }));
    for (spec, expected, requests) in [
        (secret_key("s", "k"), "good", 1),
        (secret_key("s", "absent"), "SecretKeyNotFound", 1),
        (secret_key("bare", "k"), "SecretKeyNotFound", 1),
        (secret_key("absent", "k"), "SecretNotFound", 1),
        (
            env(json!({ "secretKeyRef": { "name": "absent", "key": "k", "optional": true } })),
            "good",
            0,
        ),
        (secret_key("forbidden", "k"), "ReferenceForbidden", 1),
        (
            secret_key("unauthorized", "k"),
            "not answered: BackendUnavailable",
            1,
        ),
        (secret_key("broken", "k"), "not answered: BackendUnavailable", 1),
        (secret_key("cut", "k"), "not answered: BackendUnavailable", 1),
        (config_map_key("c", "k"), "good", 1),
        (config_map_key("c", "absent"), "ConfigMapKeyNotFound", 1),
        (config_map_key("c", "b"), "ConfigMapKeyNotFound", 1),
        (env_from(json!({ "secretRef": { "name": "s" } })), "good", 1),
        (
            env_from(json!({ "secretRef": { "name": "absent" } })),
            "SecretNotFound",
            1,
        ),
        (
            env_from(json!({ "configMapRef": { "name": "absent" } })),
            "ConfigMapNotFound",
            1,
        ),
        (
            env_from(json!({ "configMapRef": { "name": "absent", "optional": true } })),
            "good",
            0,
        ),
        (json!({ "imagePullSecrets": [{ "name": "absent" }] }), "good", 0),
    ] {
        let found = checked(&spec, SecretScope::Everywhere).await;
        assert_eq!(found, (expected.to_owned(), requests), "{spec}");
    }
}

#[tokio::test]
async fn an_object_is_asked_for_once_however_often_it_is_referred_to() {
    let spec = json!({
        "env": [
            { "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
            { "name": "B", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
        ],
        "envFrom": [{ "secretRef": { "name": "s" } }],
    });
    let found = checked(&spec, SecretScope::Everywhere).await;
    assert_eq!(found, ("good".to_owned(), 1));

    let (client, asked) = api_server(there);
    let values = References::new(client, SecretScope::Everywhere)
        .values(&job(spec))
        .await;
    assert_eq!(
        (word(values), asked.lock().unwrap().len()),
        ("good".to_owned(), 1)
    );
}

#[tokio::test]
async fn secrets_are_looked_up_only_where_the_adapter_may() {
    let spec = secret_key("absent", "k");
    for (scope, expected, requests) in [
        (SecretScope::Nowhere, "good", 0),
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
        let found = checked(&spec, scope.clone()).await;
        assert_eq!(found, (expected.to_owned(), requests), "{scope:?}");
    }
}

#[tokio::test]
async fn values_and_pull_secrets_are_read_only_where_the_adapter_may() {
    for optional in [false, true] {
        let job = job(merged(
            env(json!({ "secretKeyRef": { "name": "s", "key": "k", "optional": optional } })),
            json!({ "imagePullSecrets": [{ "name": "s" }] }),
        ));
        for scope in [
            SecretScope::Nowhere,
            SecretScope::Namespaces(vec!["other".to_owned()]),
        ] {
            let (client, asked) = api_server(there);
            let references = References::new(client, scope);
            assert_eq!(word(references.values(&job).await), "ReferenceForbidden");
            assert_eq!(word(references.pull_secrets(&job).await), "ReferenceForbidden");
            assert!(asked.lock().unwrap().is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_jobs_that_wait_for_the_same_secret_cost_one_request() {
    let (client, asked) = api_server(there);
    let references = References::new(client, SecretScope::Everywhere);
    let jobs: Vec<_> = (0..100).map(|_| job(secret_key("absent", "k"))).collect();
    for polls in 1..=3 {
        let answers = join_all(jobs.iter().map(|job| references.check(job))).await;
        assert!(answers.into_iter().all(|answer| word(answer) == "SecretNotFound"));
        assert_eq!(asked.lock().unwrap().len(), polls);
        tokio::time::advance(MISSING_FOR).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_missing_is_seen_soon_after_it_appears() {
    let created = Arc::new(Mutex::new(false));
    let seen = created.clone();
    let (client, _) = api_server(move |path| there(if *seen.lock().unwrap() { "s" } else { path }));
    let references = References::new(client, SecretScope::Everywhere);
    let job = job(secret_key("late", "k"));
    assert_eq!(word(references.check(&job).await), "SecretNotFound");
    *created.lock().unwrap() = true;
    let values = references.values(&job).await.unwrap().unwrap();
    assert!(
        values.secrets.contains_key("late"),
        "values are read now, whatever was missing a moment ago"
    );
    tokio::time::advance(MISSING_FOR).await;
    assert_eq!(word(references.check(&job).await), "good");
}

#[test]
fn what_is_remembered_as_missing_is_bounded() {
    let mut missing = Missing::default();
    for number in 0..10 * REMEMBERED {
        missing.note(Kind::Secret, "team", &number.to_string());
    }
    assert_eq!(missing.0.len(), REMEMBERED);
    assert!(missing.holds(Kind::Secret, "team", "0"));
    assert!(!missing.holds(Kind::ConfigMap, "team", "0"));
    assert!(!missing.holds(Kind::Secret, "other", "0"));
}

#[tokio::test]
async fn values_hold_what_exists_and_say_nothing_of_what_does_not() {
    let spec = json!({
        "env": [
            { "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
            { "name": "B", "valueFrom": { "secretKeyRef": { "name": "absent", "key": "k" } } },
            { "name": "C", "valueFrom": { "configMapKeyRef": { "name": "gone", "key": "k", "optional": true } } },
        ],
        "envFrom": [{ "configMapRef": { "name": "c" } }, { "secretRef": { "name": "bare" } }],
    });
    let (client, _) = api_server(there);
    let references = References::new(client, SecretScope::Everywhere);
    let data = references.values(&job(spec)).await.unwrap().unwrap();

    assert_eq!(data.secrets.keys().collect::<Vec<_>>(), ["bare", "s"]);
    let secret = &data.secrets["s"];
    assert_eq!(secret["k"].expose_secret(), b"secret");
    assert_eq!(secret["empty"].expose_secret(), b"");
    assert_eq!(secret["bytes"].expose_secret(), [0xff, 0xfe, 0x00, 0x41]);
    assert!(data.secrets["bare"].is_empty());
    assert_eq!(
        data.config_maps,
        BTreeMap::from([(
            "c".to_owned(),
            BTreeMap::from([("k".to_owned(), "plain".to_owned())])
        )])
    );
    assert!(!format!("{data:?}").contains("115"), "the bytes of a value");
}

#[tokio::test]
async fn an_answer_that_cannot_be_parsed_is_not_repeated() {
    for name in ["garbled", "cut"] {
        let (client, _) = api_server(there);
        let references = References::new(client, SecretScope::Everywhere);
        let why = references.values(&job(secret_key(name, "k"))).await.unwrap_err();
        assert_eq!(
            (why.reason.as_str(), why.message.as_str()),
            (
                "BackendUnavailable",
                "the API server did not get secrets: the answer is no Secret"
            )
        );
    }
}

#[tokio::test]
async fn pull_secrets_keep_their_order_and_leave_out_what_is_missing() {
    let names = ["bare", "absent", "s"].map(|name| json!({ "name": name }));
    let (client, _) = api_server(there);
    let references = References::new(client, SecretScope::Everywhere);
    let found = references
        .pull_secrets(&job(json!({ "imagePullSecrets": names })))
        .await
        .unwrap()
        .unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|s| (s.name.as_str(), s.type_.as_str()))
        .collect();
    assert_eq!(found, [("bare", ""), ("s", "Opaque")]);
}

#[test]
fn the_first_secret_of_an_environment_is_named_even_if_it_is_optional() {
    let secret = json!({ "secretRef": { "name": "s", "optional": true } });
    for (spec, expected) in [
        (json!({}), None),
        (env_from(json!({ "configMapRef": { "name": "c" } })), None),
        (json!({ "imagePullSecrets": [{ "name": "s" }] }), None),
        (env_from(secret), Some("s")),
        (secret_key("t", "k"), Some("t")),
    ] {
        assert_eq!(secret_in_environment(&job(spec.clone())), expected, "{spec}");
    }
}

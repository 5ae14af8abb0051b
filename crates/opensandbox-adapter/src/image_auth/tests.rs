use ayatori_controller::references::SecretData;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD};
use secrecy::SecretSlice;
use serde_json::{Value, json};

use super::*;

const JSON: &str = "kubernetes.io/dockerconfigjson";
const CFG: &str = "kubernetes.io/dockercfg";

fn pull_secret(type_: &str, key: &str, content: &str) -> PullSecret {
    let value = SecretSlice::from(Box::<[u8]>::from(content.as_bytes()));
    PullSecret {
        name: "pull".to_owned(),
        type_: type_.to_owned(),
        data: SecretData::from([(key.to_owned(), value)]),
    }
}

fn configuration(auths: &Value) -> PullSecret {
    pull_secret(JSON, ".dockerconfigjson", &json!({ "auths": auths }).to_string())
}

/// A Secret that names each registry, with the registry as its user.
fn naming(registries: &[&str]) -> PullSecret {
    let entries = registries
        .iter()
        .map(|r| ((*r).to_owned(), json!({ "username": r, "password": "p" })));
    configuration(&Value::Object(entries.collect()))
}

fn users(image: &str, secrets: &[PullSecret]) -> Vec<String> {
    let found = credentials(image, secrets).unwrap();
    found
        .iter()
        .map(|auth| auth.username.expose_secret().to_owned())
        .collect()
}

#[test]
fn a_registry_fits_images_by_host_port_and_path() {
    for (registry, image, fits) in [
        ("registry.example", "registry.example/app", true),
        ("registry.example", "registry.example/team/app:1.2", true),
        (
            "registry.example",
            "registry.example/app@sha256:0123456789abcdef0123456789abcdef",
            true,
        ),
        ("https://registry.example", "registry.example/app", true),
        ("http://registry.example/", "registry.example/app", true),
        ("https://registry.example/v1/", "registry.example/app", true),
        ("https://registry.example/v2/", "registry.example/app", true),
        (
            "https://registry.example/v2/team",
            "registry.example/team/app",
            true,
        ),
        (
            "https://registry.example/v2/team",
            "registry.example/other/app",
            false,
        ),
        ("https://user@registry.example", "registry.example/app", true),
        ("registry.example", "other.example/app", false),
        ("registry.example", "registry.example.org/app", false),
        ("registry.example", "app", false),
        ("registry.example", "registry.example:5000/app", false),
        ("registry.example:5000", "registry.example:5000/app:1", true),
        ("registry.example:5000", "registry.example/app", false),
        ("registry.example:5000", "registry.example:5001/app", false),
        ("registry.example/team", "registry.example/team/app:1", true),
        ("registry.example/team", "registry.example/team-b/app", true),
        ("registry.example/team/", "registry.example/team-b/app", false),
        ("registry.example/team", "registry.example/app", false),
        ("*.registry.example", "eu.registry.example/app", true),
        ("*.registry.example", "registry.example/app", false),
        ("*.registry.example", "a.b.registry.example/app", false),
        ("eu-*.example", "eu-1.example/app", true),
        ("eu-?.example", "eu-12.example/app", false),
        ("*", "registry.example/app", false),
        ("*.*", "registry.example/app", true),
        ("localhost:5000", "localhost:5000/app", true),
        ("localhost", "localhost/app", true),
        ("[::1]:5000", "[::1]:5000/app", true),
        ("[::1]", "[::1]:5000/app", false),
    ] {
        let found = users(image, &[naming(&[registry])]);
        assert_eq!(!found.is_empty(), fits, "{registry} for {image}");
    }
}

#[test]
fn docker_hub_is_known_by_its_aliases() {
    for (registry, image, fits) in [
        ("docker.io", "app", true),
        ("docker.io", "team/app:1", true),
        ("docker.io/library", "app:1", true),
        ("docker.io/team", "app", false),
        ("https://index.docker.io/v1/", "app", true),
        ("https://index.docker.io/v1/", "team/app", true),
        ("https://index.docker.io/v1/", "docker.io/team/app", true),
        ("https://index.docker.io/v1/", "index.docker.io/team/app", true),
        ("index.docker.io", "docker.io/app", true),
        ("index.docker.io", "registry.example/app", false),
        // Its password is nobody else's business, although the kubelet would send it there.
        ("index.docker.io", "localhost/app", false),
        ("index.docker.io", "docker.io:5000/app", false),
        ("registry-1.docker.io", "app", false),
    ] {
        let found = users(image, &[naming(&[registry])]);
        assert_eq!(!found.is_empty(), fits, "{registry} for {image}");
    }
    // What fits by itself is preferred to the alias.
    let both = naming(&["docker.io", "https://index.docker.io/v1/"]);
    assert_eq!(users("app", &[both]), ["docker.io"]);
}

#[test]
fn the_more_specific_comes_first_and_of_equals_the_earlier_secret() {
    let secrets = [
        naming(&[
            "registry.example",
            "registry.example/team",
            "registry.example/other",
        ]),
        naming(&["https://registry.example", "registry.example/team/app"]),
    ];
    assert_eq!(
        users("registry.example/team/app:1", &secrets),
        [
            "registry.example/team/app",
            "registry.example/team",
            "registry.example",
            "https://registry.example",
        ]
    );
}

#[test]
fn users_are_read_from_every_form() {
    let with =
        |encoded: String| json!({ "r.example": { "auth": encoded, "username": "not", "password": "this" } });
    let cfg = json!({ "r.example": { "username": "u", "password": "p:w", "email": "e" } }).to_string();
    for secret in [
        configuration(&json!({ "r.example": { "username": "u", "password": "p:w", "auth": "" } })),
        configuration(&with(BASE64_STANDARD.encode("u:p:w"))),
        configuration(&with(BASE64_STANDARD_NO_PAD.encode("u:p:w"))),
        configuration(&with(format!("{}\n", BASE64_STANDARD.encode("u:p:w")))),
        pull_secret(CFG, ".dockercfg", &cfg),
    ] {
        let found = credentials("r.example/app", &[secret]).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].username.expose_secret(), "u");
        assert_eq!(found[0].password.expose_secret(), "p:w");
        let printed = format!("{found:?}");
        assert!(!printed.contains("p:w"), "{printed}");
    }
}

#[test]
fn what_names_no_user_is_passed_over() {
    for secret in [
        configuration(&json!({})),
        configuration(&json!({ "r.example": {} })),
        configuration(&json!({ "r.example": { "identitytoken": "t" } })),
        pull_secret(JSON, ".dockerconfigjson", "{}"),
        pull_secret(JSON, ".dockerconfigjson", r#"{"auths":null}"#),
        pull_secret(JSON, ".dockerconfigjson", ""),
        pull_secret(JSON, ".dockercfg", "no JSON"),
        pull_secret("Opaque", ".dockerconfigjson", "no JSON"),
    ] {
        assert!(users("r.example/app", &[secret]).is_empty());
    }
    assert!(users("r.example/app", &[]).is_empty());
}

#[test]
fn a_malformed_secret_is_named_and_not_quoted() {
    let auth = |auth: &str| configuration(&json!({ "other.example": { "auth": auth } }));
    for secret in [
        pull_secret(JSON, ".dockerconfigjson", "canary"),
        pull_secret(JSON, ".dockerconfigjson", r#"{"auths":"canary"}"#),
        pull_secret(
            JSON,
            ".dockerconfigjson",
            r#"{"auths":{"r":{"username":7,"password":"canary"}}}"#,
        ),
        pull_secret(CFG, ".dockercfg", r#"{"r":"canary"}"#),
        auth("canary!"),
        auth(&BASE64_STANDARD.encode("canary")),
        auth(&BASE64_STANDARD.encode([0xff, 0xfe, b':'])),
    ] {
        let why = credentials("r.example/app", &[secret]).unwrap_err();
        assert_eq!(why.reason, "InvalidSecretValue");
        assert!(why.message.contains("\"pull\""), "{why:?}");
        assert!(!why.message.contains("canary"), "{why:?}");
    }
}

#[test]
fn patterns_match_whole_parts_in_bounded_time() {
    for (pattern, part, expected) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("a*c", "abbc", true),
        ("a*c", "abb", false),
        ("*b*", "abc", true),
        ("?", "", false),
        ("a?", "ab", true),
        ("a", "ab", false),
    ] {
        assert_eq!(matches(pattern, part), expected, "{pattern} {part}");
    }
    assert!(!matches(&"a*".repeat(40), &"a".repeat(39)));
    assert!(!matches(&format!("{}b", "*a".repeat(40)), &"a".repeat(250)));
}

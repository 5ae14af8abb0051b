//! What parameters may be.

use anyhow::ensure;
use ayatori_core::crd;
use ayatori_e2e::api::{Run, Verdict, Verdict::Accepted, Verdict::Refused, in_namespace, merged};
use serde_json::{Value, json};

use crate::samples::opensandbox_spec;
use crate::{creations, dry_run, spec_change, transitions};

#[tokio::test]
#[rustfmt::skip]
async fn kubernetes_parameters_are_created_only_with_valid_fields() -> anyhow::Result<()> {
    const TOLERATION: Verdict = Refused("has a toleration that Kubernetes refuses");
    let tolerate = |toleration: Value| json!({ "scheduling": { "tolerations": [toleration] } });
    let select = |labels: Value| json!({ "scheduling": { "nodeSelector": labels } });
    creations(
        crd::kubernetes_parameters(),
        json!({}),
        vec![
            ("nothing", json!({}), Accepted),
            (
                "the parameters of the draft",
                json!({
                    "serviceAccountName": "ayatori-job", "runtimeClassName": "runc", "imagePullPolicy": "IfNotPresent",
                    "scheduling": {
                        "nodeSelector": { "ayatori.ddupan.top/node-role": "execution" },
                        "tolerations": [{ "key": "ayatori.ddupan.top/execution", "operator": "Equal", "value": "true", "effect": "NoSchedule" }],
                    },
                    "podSecurityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
                    "containerSecurityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                }),
                Accepted,
            ),
            ("a service account with a bad name", json!({ "serviceAccountName": "A_b" }), Refused("must be the name of an object")),
            ("a runtime class with a bad name", json!({ "runtimeClassName": "" }), Refused("must be the name of an object")),
            ("a pull policy nobody knows", json!({ "imagePullPolicy": "Sometimes" }), Refused("Unsupported value: \"Sometimes\"")),
            ("a toleration of everything", tolerate(json!({ "operator": "Exists" })), Accepted),
            ("a toleration for a time", tolerate(json!({ "key": "a", "effect": "NoExecute", "tolerationSeconds": 60 })), Accepted),
            ("a toleration without a key", tolerate(json!({ "operator": "Equal", "value": "a" })), TOLERATION),
            ("an operator nobody knows", tolerate(json!({ "key": "a", "operator": "Like" })), TOLERATION),
            ("an effect nobody knows", tolerate(json!({ "key": "a", "effect": "Never" })), TOLERATION),
            ("Exists with a value", tolerate(json!({ "key": "a", "operator": "Exists", "value": "b" })), TOLERATION),
            ("a time for an effect without one", tolerate(json!({ "key": "a", "effect": "NoSchedule", "tolerationSeconds": 60 })), TOLERATION),
            ("a node selector by a key that is none", select(json!({ "a b": "c" })), Refused("has a key or value that no label can have")),
            ("a node selector by a value that is none", select(json!({ "a": "b/c" })), Refused("has a key or value that no label can have")),
            ("65 tolerations", json!({ "scheduling": { "tolerations": vec![json!({ "operator": "Exists" }); 65] } }), Refused("Too many")),
        ],
    )
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn opensandbox_parameters_are_created_only_with_a_safe_endpoint() -> anyhow::Result<()> {
    const WORDS: Verdict = Refused("spec.endpoint: Forbidden: must be a base URL");
    const HTTPS: Verdict = Refused("spec.endpoint must begin with https://");
    let endpoint = |url: &str| json!({ "endpoint": url });
    let insecure = |url: &str| json!({ "endpoint": url, "allowInsecureHTTP": true });
    creations(
        crd::opensandbox_parameters(),
        opensandbox_spec(),
        vec![
            ("a host", endpoint("https://h"), Accepted),
            ("a host, a port and a path", endpoint("https://h.example:8443/base/"), Accepted),
            ("an IPv6 address", endpoint("https://[::1]:8443/base/"), Accepted),
            ("http where it is allowed", insecure("http://127.0.0.1:8080"), Accepted),
            ("https where http is allowed", insecure("https://h"), Accepted),
            ("http where it is not allowed", endpoint("http://h"), HTTPS),
            ("http where it is explicitly not allowed", json!({ "endpoint": "http://h", "allowInsecureHTTP": false }), HTTPS),
            ("a user and a password", endpoint("https://u:p%40ss@h/"), WORDS),
            ("a user", endpoint("https://u@h/"), WORDS),
            ("an empty user", endpoint("https://@h/"), WORDS),
            ("a user where http is allowed", insecure("http://u:p@h/"), WORDS),
            ("a scheme in upper case", endpoint("HTTPS://h"), WORDS),
            ("a query", endpoint("https://h?api_key=x"), WORDS),
            ("an empty query", endpoint("https://h/?"), WORDS),
            ("a fragment", endpoint("https://h/#f"), WORDS),
            ("another scheme", endpoint("ftp://h"), WORDS),
            ("a file", endpoint("file:///etc/passwd"), WORDS),
            ("white space", endpoint("https://h/a b"), WORDS),
            ("a backslash", endpoint("https://h\\@x/"), WORDS),
            ("no host", endpoint("https:///base"), WORDS),
            ("nothing", endpoint(""), WORDS),
            ("no endpoint", json!({ "endpoint": null }), Refused("spec.endpoint: Required value")),
        ],
    )
    .await
}

#[tokio::test]
async fn a_refused_endpoint_does_not_repeat_its_password() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let crd = crd::opensandbox_parameters();
        for url in [
            "https://u:s3cret@h/",
            "http://u:s3cret@h/",
            "https://h/?key=s3cret",
            "https://h/#s3cret",
        ] {
            let object = run.object(&crd, "x", merged(opensandbox_spec(), &json!({ "endpoint": url })));
            match run.objects(&crd).create(&dry_run(), &object).await {
                Err(kube::Error::Api(status)) => {
                    ensure!(!status.message.contains("s3cret"), "{}", status.message)
                }
                other => anyhow::bail!("{url} was not refused: {other:?}"),
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn opensandbox_parameters_are_created_only_with_fields_that_fit_together() -> anyhow::Result<()> {
    let template = json!({ "image": "pool/image:1", "limits": { "cpu": "1", "memory": "1Gi" } });
    let pool = json!({ "poolRef": "p", "commandMode": "Execd", "poolTemplate": template });
    let pool_without = |field: &str| merged(pool.clone(), &json!({ field: null }));
    let secret = |field: &str, value: &str| json!({ "apiKeySecretRef": { field: value } });
    creations(
        crd::opensandbox_parameters(),
        opensandbox_spec(),
        vec![
            ("a pool with all that it needs", pool.clone(), Accepted),
            ("a pool without a command mode", pool_without("commandMode"), Refused("spec.poolRef needs spec.commandMode: Execd")),
            ("a pool with an entrypoint", merged(pool.clone(), &json!({ "commandMode": "Entrypoint" })), Refused("spec.poolRef needs spec.commandMode: Execd")),
            ("a pool without a template", pool_without("poolTemplate"), Refused("spec.poolRef needs spec.poolTemplate")),
            ("a template without a pool", pool_without("poolRef"), Refused("spec.poolTemplate describes a pool")),
            ("a pool with a bad name", merged(pool.clone(), &json!({ "poolRef": "P!" })), Refused("must be the name of an object")),
            ("a template with a bad image", merged(pool, &json!({ "poolTemplate": { "image": "UPPER//bad" } })), Refused("must be an image reference")),
            ("Execd without a pool", json!({ "commandMode": "Execd" }), Accepted),
            ("a command mode nobody knows", json!({ "commandMode": "Shell" }), Refused("Unsupported value: \"Shell\"")),
            ("a request mapping nobody knows", json!({ "requestMapping": "Maybe" }), Refused("Unsupported value: \"Maybe\"")),
            ("certificates", json!({ "caBundle": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n" }), Accepted),
            ("text instead of certificates", json!({ "caBundle": "MIIB" }), Refused("must hold PEM certificates")),
            (
                "a private key among certificates",
                json!({ "caBundle": "-----BEGIN CERTIFICATE-----\n-----BEGIN EC PRIVATE KEY-----\n" }),
                Refused("must hold PEM certificates"),
            ),
            ("a namespace with a dot", secret("namespace", "a.b"), Refused("must be the name of a namespace")),
            ("a Secret with a bad name", secret("name", "A"), Refused("must be the name of an object")),
            ("a key with a slash", secret("key", "a/b"), Refused("must be a key of a Secret or ConfigMap")),
            ("no Secret", json!({ "apiKeySecretRef": null }), Refused("spec.apiKeySecretRef: Required value")),
        ],
    )
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn opensandbox_parameters_show_their_defaults_and_may_be_edited() -> anyhow::Result<()> {
    let other = json!({ "endpoint": "https://other.example", "apiKeySecretRef": { "key": "other" }, "allowSecretEnv": true });
    let rows = vec![
        spec_change("endpoint, key and permissions may change", json!({}), other, Accepted),
        spec_change("http is not slipped in", json!({}), json!({ "endpoint": "http://h" }), Refused("spec.endpoint must begin with https://")),
        spec_change(
            "nor is what allows it taken away",
            json!({ "endpoint": "http://h", "allowInsecureHTTP": true }),
            json!({ "allowInsecureHTTP": false }),
            Refused("spec.endpoint must begin with https://"),
        ),
    ];
    transitions(crd::opensandbox_parameters(), opensandbox_spec(), rows).await?;
    in_namespace(async |run: Run| {
        let crd = crd::opensandbox_parameters();
        let stored = run
            .objects(&crd)
            .create(&dry_run(), &run.object(&crd, "defaults", opensandbox_spec()))
            .await?;
        let expected = json!({
            "commandMode": "Entrypoint", "requestMapping": "AdmissionOnly",
            "allowSecretEnv": false, "allowImageAuth": false, "allowInsecureHTTP": false,
        });
        ensure!(
            stored.data["spec"] == merged(opensandbox_spec(), &expected),
            "{}",
            stored.data["spec"]
        );
        Ok(())
    })
    .await
}

//! What the adapters' accounts may do, exactly and with reasons. The roles for people: `roles.rs`.
//!
//! Needs the charts installed with their default values, as far as they give rights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use ayatori_e2e::accounts::{KUBERNETES_ADAPTER, OPENSANDBOX_ADAPTER, SYSTEM_NAMESPACE, client_as, rights};
use ayatori_e2e::api;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde::Deserialize;
use serde_json::{Value, json};

/// An adapter's account, and the file that explains its rights.
struct Adapter {
    user: &'static str,
    golden: &'static str,
}

const ADAPTERS: [Adapter; 2] = [
    Adapter {
        user: KUBERNETES_ADAPTER,
        golden: include_str!("../golden/kubernetes-adapter-rbac.txt"),
    },
    Adapter {
        user: OPENSANDBOX_ADAPTER,
        golden: include_str!("../golden/opensandbox-adapter-rbac.txt"),
    },
];

impl Adapter {
    /// Its rights, one a line: where, on what, which verbs.
    async fn rights(&self) -> anyhow::Result<BTreeSet<String>> {
        let adapter = client_as(self.user).await?;
        let everywhere = rights(&adapter, "default").await?;
        let mut at_home = rights(&adapter, SYSTEM_NAMESPACE).await?;
        at_home.retain(|what, verbs| everywhere.get(what) != Some(verbs));
        Ok([("everywhere", everywhere), (SYSTEM_NAMESPACE, at_home)]
            .into_iter()
            .flat_map(|(place, rights)| {
                rights.into_iter().map(move |(what, verbs)| {
                    format!(
                        "{place} {what} {}",
                        verbs.into_iter().collect::<Vec<_>>().join(",")
                    )
                })
            })
            .collect())
    }

    /// The lines of the golden file, each with its reason.
    fn explained(&self) -> anyhow::Result<BTreeMap<String, &'static str>> {
        self.golden
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| {
                let (right, reason) = line
                    .split_once(" # ")
                    .with_context(|| format!("no reason is given for: {line}"))?;
                Ok((
                    right.split_whitespace().collect::<Vec<_>>().join(" "),
                    reason.trim(),
                ))
            })
            .collect()
    }
}

#[tokio::test]
async fn each_adapter_holds_exactly_the_rights_that_its_golden_file_explains() -> anyhow::Result<()> {
    let lines = |rights: Vec<&String>| {
        rights
            .iter()
            .map(|right| format!("\n  {right}"))
            .collect::<String>()
    };
    for adapter in &ADAPTERS {
        let held = adapter.rights().await?;
        let explained = adapter.explained()?.into_keys().collect::<BTreeSet<_>>();
        let (unexplained, missing) = (
            held.difference(&explained).collect::<Vec<_>>(),
            explained.difference(&held).collect::<Vec<_>>(),
        );
        ensure!(
            unexplained.is_empty() && missing.is_empty(),
            "{}: rights held and not explained:{}\nexplained and not held:{}",
            adapter.user,
            lines(unexplained),
            lines(missing)
        );
    }
    Ok(())
}

#[tokio::test]
async fn no_right_of_an_adapter_is_a_wildcard() -> anyhow::Result<()> {
    // Paths of the API itself, which every account may discover, end in `/*`.
    let of_objects = |right: &String| !right.contains(" /");
    for adapter in &ADAPTERS {
        let rights = adapter.rights().await?;
        let wild: Vec<_> = rights
            .into_iter()
            .filter(of_objects)
            .filter(|r| r.contains('*'))
            .collect();
        ensure!(wild.is_empty(), "{}: {wild:?}", adapter.user);
    }
    Ok(())
}

#[tokio::test]
async fn the_opensandbox_adapter_can_neither_run_anything_in_the_cluster_nor_read_its_users_secrets()
-> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let secret = json!({"metadata": {"name": "theirs"}, "stringData": {"key": "value"}});
        Api::<Secret>::namespaced(run.client.clone(), &run.namespace)
            .create(&PostParams::default(), &serde_json::from_value(secret)?)
            .await?;
        let adapter = client_as(OPENSANDBOX_ADAPTER).await?;
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "localhost/busybox:1"}]});
        let batch_job: BatchJob = serde_json::from_value(json!({
            "metadata": {"name": "mine"}, "spec": {"template": {"spec": pod}}
        }))?;
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "mine"}, "spec": pod}))?;
        let pods = Api::<Pod>::namespaced(adapter.clone(), &run.namespace);
        let batch_jobs = Api::<BatchJob>::namespaced(adapter.clone(), &run.namespace);
        let secrets = Api::<Secret>::namespaced(adapter.clone(), &run.namespace);
        let (all, everything) = (PostParams::default(), ListParams::default());
        for (what, refusal) in [
            ("create a pod", pods.create(&all, &pod).await.err()),
            ("list pods", pods.list(&everything).await.err()),
            ("create a batch Job", batch_jobs.create(&all, &batch_job).await.err()),
            ("read a Secret", secrets.get("theirs").await.err()),
            ("list Secrets", secrets.list(&everything).await.err()),
            (
                "list Secrets everywhere",
                Api::<Secret>::all(adapter.clone()).list(&everything).await.err(),
            ),
        ] {
            let code = match &refusal {
                Some(kube::Error::Api(status)) => status.code,
                _ => 0,
            };
            ensure!(code == 403, "to {what} was not forbidden: {refusal:?}");
        }
        Ok(())
    })
    .await
}

/// Every rule of a rendered chart that mentions Secrets: the role's namespace, the names, and the verbs.
fn secret_rules(chart: &str, values: &[&str]) -> anyhow::Result<Vec<SecretRule>> {
    let helm = std::env::var("AYATORI_HELM").unwrap_or_else(|_| "helm".to_owned());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../charts")
        .join(chart);
    let rendered = Command::new(&helm)
        .args(["template", chart, "--namespace", SYSTEM_NAMESPACE])
        .arg(folder)
        .args(values.iter().map(|value| format!("--set={value}")))
        .output()
        .with_context(|| format!("running {helm}; set AYATORI_HELM to where Helm is"))?;
    ensure!(
        rendered.status.success(),
        "{}",
        String::from_utf8_lossy(&rendered.stderr)
    );
    let rendered = String::from_utf8(rendered.stdout)?;
    let mut rules = Vec::new();
    for document in serde_yaml::Deserializer::from_str(&rendered) {
        let object = Value::deserialize(document)?;
        let namespace = object
            .pointer("/metadata/namespace")
            .and_then(Value::as_str)
            .unwrap_or_default();
        for rule in object
            .get("rules")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let words = |field: &str| -> Vec<String> {
                rule.get(field)
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(Into::into)
                    .collect()
            };
            if words("resources")
                .iter()
                .any(|resource| resource == "secrets" || resource == "*")
            {
                rules.push((
                    namespace.to_owned(),
                    words("resourceNames").join(","),
                    words("verbs").join(","),
                ));
            }
        }
    }
    Ok(rules)
}

type SecretRule = (String, String, String);

fn secret_rule(namespace: &str, names: &str, verbs: &str) -> SecretRule {
    (namespace.to_owned(), names.to_owned(), verbs.to_owned())
}

#[test]
fn secrets_are_read_one_by_one_and_only_where_the_values_allow_it() -> anyhow::Result<()> {
    let get = |namespace: &str| secret_rule(namespace, "", "get");
    for (values, expected) in [
        (vec![], vec![get("")]),
        (
            vec!["secretChecks.namespaces={team-a,team-b}"],
            vec![get("team-a"), get("team-b")],
        ),
        (vec!["secretChecks.enabled=false"], vec![]),
        (
            vec!["secretChecks.enabled=false", "secretChecks.namespaces={team-a}"],
            vec![],
        ),
    ] {
        let rules = secret_rules("kubernetes-adapter", &values)?;
        ensure!(rules == expected, "with {values:?}: {rules:?}");
    }
    Ok(())
}

#[test]
fn api_keys_are_read_where_they_are_and_secrets_of_jobs_only_where_the_values_allow_it() -> anyhow::Result<()>
{
    let get = |namespace: &str| secret_rule(namespace, "", "get");
    let keys = |namespace: &str, names: &str| secret_rule(namespace, names, "get,list,watch");
    for (values, expected) in [
        (vec![], vec![keys(SYSTEM_NAMESPACE, "")]),
        (
            vec![
                "apiKeySecrets.namespaces={keys}",
                "apiKeySecrets.names={one,other}",
            ],
            vec![keys("keys", "one,other")],
        ),
        (
            vec!["secrets.mode=All"],
            vec![get(""), keys(SYSTEM_NAMESPACE, "")],
        ),
        (
            vec!["secrets.mode=Namespaces", "secrets.namespaces={team-a,team-b}"],
            vec![keys(SYSTEM_NAMESPACE, ""), get("team-a"), get("team-b")],
        ),
    ] {
        let rules = secret_rules("opensandbox-adapter", &values)?;
        ensure!(rules == expected, "with {values:?}: {rules:?}");
    }
    for values in [
        ["secrets.mode=Namespaces"],
        ["secrets.namespaces={team-a}"],
        ["secrets.mode=Some"],
    ] {
        let refused = secret_rules("opensandbox-adapter", &values).is_err();
        ensure!(refused, "{values:?} is taken");
    }
    Ok(())
}

//! Policies as the chart renders them with other values, bound to the namespaces of one test.

use std::path::Path;

use anyhow::{Context, ensure};
use ayatori_e2e::api::{RUN_LABEL, Run};
use kube::api::{DeleteParams, PostParams};
use kube::core::{DynamicObject, TypeMeta};
use kube::discovery::ApiResource;
use kube::{Api, ResourceExt};
use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;

/// The policies and bindings that the chart `execution-api` has with these values; each value is `key=json`.
pub(crate) async fn render(values: &[String]) -> anyhow::Result<Vec<DynamicObject>> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/execution-api");
    let helm = std::env::var("AYATORI_HELM").unwrap_or_else(|_| "helm".to_owned());
    let rendered = Command::new(&helm)
        .args(["template", "execution-api"])
        .arg(chart)
        .args(values.iter().map(|value| format!("--set-json={value}")))
        .output()
        .await
        .with_context(|| format!("running {helm}; set AYATORI_HELM to where Helm is"))?;
    let complaint = String::from_utf8_lossy(&rendered.stderr);
    ensure!(
        rendered.status.success(),
        "the chart cannot be rendered: {complaint}"
    );
    let documents = std::str::from_utf8(&rendered.stdout).context("reading the rendered chart")?;
    let mut policies = Vec::new();
    for document in serde_yaml::Deserializer::from_str(documents) {
        let object = Value::deserialize(document).context("reading a rendered object")?;
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        if kind.starts_with("ValidatingAdmissionPolicy") {
            policies.push(serde_json::from_value(object)?);
        }
    }
    Ok(policies)
}

/// Runs a test with the policy of that name as these values make it, which judges the test's namespace alone.
pub(crate) async fn with_policy(
    run: &Run,
    policy: &str,
    values: &[&str],
    test: impl AsyncFn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let selector = format!(
        r#"admission.namespaceSelector={{"matchExpressions":null,"matchLabels":{{"kubernetes.io/metadata.name":"{}"}}}}"#,
        run.namespace
    );
    let values: Vec<_> = values
        .iter()
        .map(|value| (*value).to_owned())
        .chain([selector])
        .collect();
    let objects: Vec<_> = render(&values)
        .await?
        .into_iter()
        .filter(|object| object.name_any() == policy)
        .map(|object| as_of_test(run, object))
        .collect();
    let outcome = async {
        ensure!(
            objects.len() == 2,
            "the chart has no policy {policy} with {values:?}"
        );
        for object in &objects {
            api_of(run, object)?
                .create(&PostParams::default(), object)
                .await
                .with_context(|| format!("creating {}", object.name_any()))?;
        }
        test().await
    }
    .await;
    for object in &objects {
        let deleted = api_of(run, object)?
            .delete(&object.name_any(), &DeleteParams::default())
            .await;
        if outcome.is_ok() {
            deleted.with_context(|| format!("deleting {}", object.name_any()))?;
        }
    }
    outcome
}

/// The same under a name that no other test and no release uses.
fn as_of_test(run: &Run, mut object: DynamicObject) -> DynamicObject {
    let name = format!("{}-{}", run.namespace, object.name_any());
    if let Some(policy) = object.data.pointer_mut("/spec/policyName") {
        *policy = name.clone().into();
    }
    object.metadata.name = Some(name);
    object.metadata.labels = Some([(RUN_LABEL.to_owned(), run.namespace.clone())].into());
    object
}

fn api_of(run: &Run, object: &DynamicObject) -> anyhow::Result<Api<DynamicObject>> {
    let TypeMeta { api_version, kind } = object.types.clone().context("an object without a kind")?;
    let (group, version) = api_version
        .split_once('/')
        .context("a policy of the core group")?;
    let plural = match kind.as_str() {
        "ValidatingAdmissionPolicy" => "validatingadmissionpolicies",
        _ => "validatingadmissionpolicybindings",
    };
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: api_version.clone(),
        kind,
        plural: plural.to_owned(),
    };
    Ok(Api::all_with(run.client.clone(), &resource))
}

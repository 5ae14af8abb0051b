//! The charts of this checkout: what they render, and what the API server says of it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::replica::helm;

/// That of the definitions, the roles and the policies.
pub const API: &str = "execution-api";
/// All of them.
pub const CHARTS: [&str; 3] = [API, "kubernetes-adapter", "opensandbox-adapter"];

/// The folder of a chart.
pub fn folder(chart: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../charts")
        .join(chart)
}

/// A file of values that turn everything on.
pub fn everything(chart: &str) -> PathBuf {
    folder(chart).join("ci/everything-values.yaml")
}

/// A path as an argument.
pub fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is no text", path.display()))
}

/// What a chart renders for a namespace, with these arguments for its values, in a cluster that has the Prometheus
/// operator.
pub async fn render(chart: &str, namespace: &str, values: &[&str]) -> anyhow::Result<Vec<Value>> {
    let folder = folder(chart);
    let template = ["template", chart, text(&folder)?, "--namespace", namespace];
    let operator = ["--api-versions", "monitoring.coreos.com/v1"];
    let yaml = helm(&[&template[..], &operator, values].concat()).await?;
    let all = serde_yaml::Deserializer::from_str(&yaml).map(Value::deserialize);
    let all = all.collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().filter(|object| !object.is_null()).collect())
}

/// Whether an object is one for the Prometheus operator.
pub fn is_monitoring(object: &Value) -> bool {
    let version = object.get("apiVersion").and_then(Value::as_str);
    version.is_some_and(|version| version.starts_with("monitoring.coreos.com/"))
}

/// Asks the API server to apply all this strictly and to keep nothing of it; fails if it has anything to say.
pub async fn applies(objects: &[&Value]) -> anyhow::Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let kubectl =
        std::env::var_os("AYATORI_KUBECTL").context("AYATORI_KUBECTL is not set: run `cargo xtask test`")?;
    let mut child = Command::new(kubectl)
        .args(["apply", "--server-side", "--force-conflicts", "--dry-run=server"])
        .args(["--validate=strict", "--warnings-as-errors", "--filename=-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("running kubectl")?;
    let mut input = child.stdin.take().context("kubectl has no input")?;
    let document = serde_json::to_vec(&list)?;
    // What it says is read while it is still being told.
    let telling = async {
        let told = input.write_all(&document).await;
        drop(input);
        told
    };
    let (told, output) = futures::join!(telling, child.wait_with_output());
    let output = output?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "refused: {said}");
    told.context("kubectl did not read everything")
}

//! What the charts tell the Prometheus operator, judged by its own definitions.

use std::path::Path;

use anyhow::{Context, ensure};
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::charts::{self, CHARTS, text};
use ayatori_e2e::replica::kubectl;
use serde_json::Value;
use tokio::process::Command;

use crate::TURN;

/// What of the Prometheus operator is used here: a module, at the version in the `go.mod` beside this name.
const OPERATOR: (&str, &str) = (
    "cluster/prometheus-operator",
    "github.com/prometheus-operator/prometheus-operator",
);

#[tokio::test(flavor = "multi_thread")]
async fn what_the_charts_tell_the_prometheus_operator_is_valid_by_its_own_definitions() -> anyhow::Result<()>
{
    let _turn = TURN.lock().await;
    let definitions = definitions_of_the_operator().await?;
    let files = ["--filename", &definitions[0], "--filename", &definitions[1]];
    kubectl(&[&["apply", "--server-side"], &files[..]].concat()).await?;
    let outcome = async {
        let established = ["wait", "--for=condition=Established", "--timeout=60s"];
        kubectl(&[&established[..], &files].concat()).await?;
        let mut found = 0;
        for chart in CHARTS {
            let everything = charts::everything(chart);
            let rendered = charts::render(chart, SYSTEM_NAMESPACE, &["--values", text(&everything)?]).await?;
            let told: Vec<_> = rendered
                .iter()
                .filter(|object| charts::is_monitoring(object))
                .collect();
            charts::applies(&told)
                .await
                .with_context(|| format!("chart {chart}"))?;
            found += told.len();
        }
        ensure!(
            found == 3,
            "{found} objects for the operator: one of each chart was expected"
        );
        anyhow::Ok(())
    };
    let outcome = outcome.await;
    kubectl(&[&["delete", "--timeout=60s"], &files[..]].concat()).await?;
    outcome
}

/// The files that define a ServiceMonitor and a PrometheusRule.
async fn definitions_of_the_operator() -> anyhow::Result<[String; 2]> {
    let (folder, module) = OPERATOR;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let downloaded = Command::new("go")
        .args(["mod", "download", "-json", module])
        .current_dir(&folder)
        .output()
        .await
        .context("running Go")?;
    let said = String::from_utf8_lossy(&downloaded.stderr);
    ensure!(
        downloaded.status.success(),
        "{module} cannot be downloaded: {said}"
    );
    let downloaded: Value = serde_json::from_slice(&downloaded.stdout)?;
    let folder = downloaded
        .get("Dir")
        .and_then(Value::as_str)
        .context("Go names no folder")?;
    Ok(["servicemonitors", "prometheusrules"].map(|plural| {
        format!("{folder}/example/prometheus-operator-crd/monitoring.coreos.com_{plural}.yaml")
    }))
}

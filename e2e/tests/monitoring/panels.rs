//! The queries of the dashboard's panels.

use anyhow::{Context, ensure};
use ayatori_e2e::prometheus::{Prometheus, Series};
use serde::Deserialize;

const DASHBOARD: &str = include_str!("../../../charts/execution-api/files/dashboard.json");

/// Panels that show nothing here, and why.
const EMPTY: [(&str, &str); 0] = [];

/// What Grafana puts into a query, as it does with everything chosen; the longer names first.
const VARIABLES: [(&str, &str); 4] = [
    ("$__rate_interval", "5s"),
    ("$__range", "1m"),
    ("$class", ".*"),
    ("$job", ".*"),
];

/// What panels show a zero by.
const OR_NOTHING: &str = " or vector(0)";

#[derive(Deserialize)]
struct Dashboard {
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
struct Panel {
    title: String,
    /// None, of a row.
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    expr: String,
}

/// Fails unless every query of every panel is understood and has given numbers.
pub(crate) async fn check(prometheus: &Prometheus) -> anyhow::Result<()> {
    let dashboard: Dashboard = serde_json::from_str(DASHBOARD).context("the dashboard cannot be read")?;
    let mut problems = Vec::new();
    let mut queries = 0;
    for Panel { title, targets } in &dashboard.panels {
        let may_be_empty = EMPTY.iter().any(|(panel, _)| panel == title);
        for Target { expr } in targets {
            queries += 1;
            let shown = prometheus.history(&filled_in(expr)).await;
            let shown = shown.with_context(|| format!("panel {title}"))?;
            let has_numbers = shown.iter().flat_map(Series::numbers).next().is_some();
            if !has_numbers && !may_be_empty {
                problems.push(format!("{title}: {expr}"));
            }
        }
    }
    ensure!(queries > 30, "only {queries} queries were found");
    ensure!(
        problems.is_empty(),
        "panels that show nothing:\n{}",
        problems.join("\n")
    );
    Ok(())
}

/// As Grafana sends it, but for what a panel shows where there is nothing: that would also be there of a misspelt name.
fn filled_in(query: &str) -> String {
    let query = query.trim_end_matches(OR_NOTHING);
    VARIABLES.iter().fold(query.to_owned(), |query, (name, value)| {
        query.replace(name, value)
    })
}

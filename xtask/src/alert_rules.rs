//! The alert rules of the chart `execution-api`, judged by promtool as Helm renders them.

use crate::{
    checkout, command,
    programs::{self, Program},
};
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_yaml::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

const TESTS: &str = include_str!("alert_rules/tests.yaml");
const HOW_TO: &str = include_str!("../../docs/how-to/monitor.md");
/// What the tests call the rules.
const RULES: &str = "rules.yaml";

/// The groups of rules that the chart has with these values, as a file of Prometheus would hold them.
fn rendered(values: &[&str]) -> Result<String> {
    let mut helm = Command::new(programs::path(Program::Helm)?);
    helm.args(["template", "execution-api"])
        .arg(checkout::root().join("charts/execution-api"))
        .arg("--set=monitoring.prometheusRule.enabled=true")
        .arg("--show-only=templates/prometheusrule.yaml")
        .args(values.iter().map(|value| format!("--set={value}")));
    let object = Value::deserialize(serde_yaml::Deserializer::from_str(&command::output(&mut helm)?))?;
    let groups = object.get("spec").context("a PrometheusRule without a spec")?;
    Ok(serde_yaml::to_string(groups)?)
}

/// Runs promtool beside these rules, and returns what it printed.
fn promtool(rules: &str, arguments: &[&str]) -> Result<String> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join(RULES), rules)?;
    fs::write(folder.path().join("tests.yaml"), TESTS)?;
    command::output(
        Command::new(programs::path(Program::Promtool)?)
            .current_dir(folder.path())
            .args(arguments),
    )
}

/// The alerts in these rules.
fn alerts(rules: &str) -> Result<Vec<Value>> {
    let rules: Value = serde_yaml::from_str(rules)?;
    let groups = rules.get("groups").and_then(Value::as_sequence);
    let of_group = |group: &Value| group.get("rules").and_then(Value::as_sequence).cloned();
    Ok(groups
        .into_iter()
        .flatten()
        .filter_map(of_group)
        .flatten()
        .collect())
}

fn text<'a>(alert: &'a Value, path: &[&str]) -> &'a str {
    let found = path.iter().try_fold(alert, |value, key| value.get(*key));
    found.and_then(Value::as_str).unwrap_or_default()
}

#[test]
fn the_alert_rules_are_valid_and_do_what_their_tests_say() {
    let rules = rendered(&[]).unwrap();
    promtool(&rules, &["check", "rules", "--lint=all", "--lint-fatal", RULES]).unwrap();
    promtool(&rules, &["test", "rules", "tests.yaml"]).unwrap();
}

#[test]
fn every_alert_is_tested_has_a_severity_and_leads_to_its_runbook() {
    let alerts = alerts(&rendered(&[]).unwrap()).unwrap();
    assert!(!alerts.is_empty());
    for alert in &alerts {
        let name = text(alert, &["alert"]);
        assert!(TESTS.contains(&format!("\"{name}\"")), "{name} has no test");
        let severity = text(alert, &["labels", "severity"]);
        assert!(["critical", "warning"].contains(&severity), "{name}: {severity}");
        assert!(
            HOW_TO.contains(&format!("| `{name}` | {severity} |")),
            "{name} is not in the table of docs/how-to/monitor.md"
        );
        let url = text(alert, &["annotations", "runbook_url"]);
        let runbook = Path::new(url).file_name().unwrap();
        let runbook = fs::read_to_string(checkout::root().join("docs/runbooks").join(runbook));
        assert!(
            runbook.is_ok_and(|runbook| runbook.contains(&format!("`{name}`"))),
            "no runbook at {url} names {name}"
        );
    }
}

#[test]
fn values_decide_on_each_alert() {
    let of = "monitoring.prometheusRule";
    let values = [
        format!("{of}.alerts.AyatoriNoLeader.enabled=false"),
        format!("{of}.alerts.AyatoriQueueBacklog.for=3s"),
        format!("{of}.alerts.AyatoriQueueBacklog.severity=page"),
        format!("{of}.alerts.AyatoriDeletionsLate.window=7m"),
        format!("{of}.alerts.AyatoriDeletionsLate.threshold=600"),
        format!("{of}.alertLabels.team=platform"),
        format!("{of}.runbooks=https://books.example/"),
    ];
    let values: Vec<_> = values.iter().map(String::as_str).collect();
    let alerts = alerts(&rendered(&values).unwrap()).unwrap();
    let find = |name: &str| alerts.iter().find(|alert| text(alert, &["alert"]) == name);
    assert!(find("AyatoriNoLeader").is_none());
    let backlog = find("AyatoriQueueBacklog").unwrap();
    assert_eq!(text(backlog, &["for"]), "3s");
    assert_eq!(text(backlog, &["labels", "severity"]), "page");
    assert_eq!(text(backlog, &["labels", "team"]), "platform");
    assert_eq!(
        text(backlog, &["annotations", "runbook_url"]),
        "https://books.example/queue-backlog.md"
    );
    let late = text(find("AyatoriDeletionsLate").unwrap(), &["expr"]);
    assert!(late.contains("[7m]") && late.ends_with("> 600"), "{late}");
}

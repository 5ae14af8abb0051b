//! The coverage table, compared with what a test run saw.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::checkout;

const TABLE: &str = "docs/reference/coverage.md";
/// What a row may say instead of naming a test.
const EXCUSES: [&str; 3] = [
    "with the OpenSandbox adapter",
    "deferred by the draft",
    "not tested:",
];

/// Fails, and names them, if the table names tests that are not among those that ran and passed, or if a row
/// names none and does not say why.
pub(crate) fn check(passed: &BTreeSet<String>) -> Result<()> {
    let path = checkout::root().join(TABLE);
    let table = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let problems = problems(&table, passed);
    ensure!(problems.is_empty(), "{TABLE}:\n  {}", problems.join("\n  "));
    Ok(())
}

/// The name of a test that passed, from a line such as `test module::name ... ok`, without its modules.
pub(crate) fn passed(line: &str) -> Option<&str> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... ok")?;
    name.rsplit("::").next()
}

fn problems(table: &str, passed: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    for row in rows(table) {
        let proof = row.last().copied().unwrap_or_default();
        let names: Vec<_> = proof.split('`').skip(1).step_by(2).collect();
        if names.is_empty() && !EXCUSES.iter().any(|excuse| proof.starts_with(excuse)) {
            let what = row.first().copied().unwrap_or_default();
            problems.push(format!("no test is named for: {what}"));
        }
        let absent = names.into_iter().filter(|name| !passed.contains(*name));
        problems.extend(absent.map(|name| format!("did not run and pass: {name}")));
    }
    problems
}

/// The cells of every row of every table, but for headings and the lines below them.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    let is_rule = |line: &str| line.starts_with("| ---");
    let mut rows = Vec::new();
    for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
        if line.starts_with('|') && !is_rule(line) && !is_rule(next) {
            rows.push(line.trim_matches('|').split('|').map(str::trim).collect());
        }
    }
    rows.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Words with `code` in them.

| what | proven by |
| --- | --- |
| it runs `once` | `it_runs`, `it_runs_once` |
| it scales | deferred by the draft |
| it flies | `it_flies` |
| it sings | some day |
";

    #[test]
    fn a_row_names_tests_that_passed_or_says_why_it_names_none() {
        let passed = ["it_runs", "it_runs_once"].map(str::to_owned).into();
        assert_eq!(
            problems(TEXT, &passed),
            ["did not run and pass: it_flies", "no test is named for: it sings"]
        );
    }

    #[test]
    fn only_what_passed_counts_as_run() {
        for (line, expected) in [
            ("test lives::a_whole_life ... ok", Some("a_whole_life")),
            ("test alone ... ok", Some("alone")),
            ("test broken ... FAILED", None),
            ("test slow has been running for over 60 seconds", None),
            ("test result: ok. 1 passed", None),
        ] {
            assert_eq!(passed(line), expected, "{line}");
        }
    }
}

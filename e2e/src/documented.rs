//! Tables of the documents, held against what a test saw.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::transcript;

/// Fails unless the table below this heading of a document in `docs/` has exactly these rows. Leaves a transcript
/// with the table as it was seen, ready to be put there, and every cell that differs.
pub fn expect(document: &str, heading: &str, head: &[&str], rows: Vec<Vec<String>>) -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(document);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let seen: Vec<Vec<String>> = std::iter::once(head.iter().map(ToString::to_string).collect())
        .chain(rows)
        .collect();
    let differences = differences(&table(&text, heading), &seen);

    let mut said = format!("# {heading}, as seen\n\n{}", markdown(&seen));
    for difference in &differences {
        let _ = writeln!(said, "\n- {difference}");
    }
    transcript::keep(&said)?;
    ensure!(
        differences.is_empty(),
        "docs/{document} under \"{heading}\" differs from what was seen: {}\nIf what was seen is right, write:\n{}",
        differences.join("; "),
        markdown(&seen)
    );
    Ok(())
}

/// The cells of the first table below a heading, with its head and without the rule below that.
fn table(text: &str, heading: &str) -> Vec<Vec<String>> {
    let below = text
        .lines()
        .skip_while(|line| line.trim_start_matches('#').trim() != heading || !line.starts_with('#'))
        .skip(1)
        .take_while(|line| !line.starts_with('#'));
    below
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .filter(|line| !line.starts_with("| ---"))
        .map(|line| {
            let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
            inner.split('|').map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
}

fn markdown(table: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (number, row) in table.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if number == 0 {
            let _ = writeln!(text, "|{}", " --- |".repeat(row.len()));
        }
    }
    text
}

fn differences(expected: &[Vec<String>], seen: &[Vec<String>]) -> Vec<String> {
    let name = |row: &[String]| row.first().cloned().unwrap_or_default();
    let mut differences = Vec::new();
    for row in seen {
        match expected.iter().find(|candidate| name(candidate) == name(row)) {
            None => differences.push(format!("no row {:?}", name(row))),
            Some(found) if found != row => {
                differences.push(format!(
                    "expected {}; seen {}",
                    found.join(" | "),
                    row.join(" | ")
                ));
            }
            Some(_) => {}
        }
    }
    let gone = expected
        .iter()
        .filter(|row| !seen.iter().any(|s| name(s) == name(row)));
    differences.extend(gone.map(|row| format!("the row {:?} was not seen", name(row))));
    differences
}

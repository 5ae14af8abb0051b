//! The one version: of the workspace, of the charts and of the changelog's newest entry.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::Path;

/// The charts, which are released together.
pub(crate) const CHARTS: [&str; 3] = ["execution-api", "kubernetes-adapter", "opensandbox-adapter"];

/// What stands instead of a date at a version that is not out.
const UNRELEASED: &str = "Unreleased";

/// The newest entry of the changelog.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) notes: String,
    title: String,
}

impl Entry {
    pub(crate) fn must_be_dated(&self) -> Result<()> {
        ensure!(
            !self.title.ends_with(UNRELEASED),
            "CHANGELOG.md still says \"{}\": put the date of the release there",
            self.title
        );
        Ok(())
    }
}

/// The entry of this version, where nothing in the checkout says another.
pub(crate) fn agree(checkout: &Path, version: &str) -> Result<Entry> {
    for chart in CHARTS {
        chart_agrees(checkout, chart, version)?;
    }
    let changelog = read(&checkout.join("CHANGELOG.md"))?;
    let entries = parse_changelog::parse(&changelog).context("cannot read CHANGELOG.md")?;
    let (_, newest) = entries.first().context("CHANGELOG.md has no entry")?;
    ensure!(
        newest.version == version,
        "the newest entry of CHANGELOG.md is \"{}\", but Cargo.toml says {version}",
        newest.title
    );
    ensure!(
        !newest.notes.is_empty(),
        "CHANGELOG.md says nothing about {version}"
    );
    Ok(Entry {
        notes: newest.notes.to_owned(),
        title: newest.title.to_owned(),
    })
}

fn chart_agrees(checkout: &Path, chart: &str, version: &str) -> Result<()> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Chart {
        version: String,
        app_version: String,
    }
    let file = format!("charts/{chart}/Chart.yaml");
    let found: Chart = serde_yaml::from_str(&read(&checkout.join(&file))?)
        .with_context(|| format!("cannot understand {file}"))?;
    for (field, value) in [("version", found.version), ("appVersion", found.app_version)] {
        ensure!(
            value == version,
            "{file} has {field} {value}, but Cargo.toml says {version}"
        );
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout;

    /// A checkout whose charts and changelog say what they are given.
    fn checkout_of(chart: &str, changelog: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in CHARTS {
            let path = folder.path().join("charts").join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("Chart.yaml"), chart).unwrap();
        }
        std::fs::write(folder.path().join("CHANGELOG.md"), changelog).unwrap();
        folder
    }

    const CHART: &str = "version: 1.2.3\nappVersion: 1.2.3\n";
    const CHANGELOG: &str =
        "# Changelog\n\n## [1.2.3] - 2026-12-01\n\n- News.\n\n## [1.2.2] - 2026-11-01\n\n- Old.\n";

    #[test]
    fn workspace_charts_and_changelog_have_one_version() {
        agree(checkout::root(), env!("CARGO_PKG_VERSION")).unwrap();
    }

    #[test]
    fn the_notes_are_those_of_the_newest_entry() {
        let checkout = checkout_of(CHART, CHANGELOG);
        let entry = agree(checkout.path(), "1.2.3").unwrap();
        assert_eq!(entry.notes, "- News.");
        entry.must_be_dated().unwrap();
    }

    #[test]
    fn whatever_says_another_version_is_named() {
        let unknown = "## [Unreleased]\n\n- News.\n";
        let silent = "## [1.2.3] - 2026-12-01\n\n## [1.2.2] - 2026-11-01\n\n- Old.\n";
        let cases = [
            (
                "version: 1.2.2\nappVersion: 1.2.3\n",
                CHANGELOG,
                "has version 1.2.2",
            ),
            (
                "version: 1.2.3\nappVersion: v1.2.3\n",
                CHANGELOG,
                "has appVersion v1.2.3",
            ),
            (CHART, unknown, "is \"[Unreleased]\""),
            (CHART, silent, "says nothing about 1.2.3"),
        ];
        for (chart, changelog, expected) in cases {
            let checkout = checkout_of(chart, changelog);
            let error = agree(checkout.path(), "1.2.3").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_entry_without_a_date_is_no_release() {
        let checkout = checkout_of(CHART, "## [1.2.3] - Unreleased\n\n- News.\n");
        let entry = agree(checkout.path(), "1.2.3").unwrap();
        let error = entry.must_be_dated().unwrap_err().to_string();
        assert!(error.contains("[1.2.3] - Unreleased"), "{error}");
    }
}

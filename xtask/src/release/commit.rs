//! The commit that is released.

use crate::command;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// What HEAD is, and what differs from it.
pub(crate) struct Commit {
    /// When it was made: the one time that may stand in a released file.
    pub(crate) time: SystemTime,
    tags: Vec<String>,
    changes: String,
}

impl Commit {
    pub(crate) fn read(checkout: &Path) -> Result<Commit> {
        let git = |arguments: &[&str]| {
            command::output(Command::new("git").current_dir(checkout).args(arguments))
                .map(|text| text.trim_end().to_owned())
                .context("a release is made from a Git checkout")
        };
        let seconds = git(&["log", "-1", "--format=%ct"])?.parse()?;
        let tags = git(&["tag", "--points-at", "HEAD"])?;
        Ok(Commit {
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            tags: tags.lines().map(str::to_owned).collect(),
            changes: git(&["status", "--porcelain"])?,
        })
    }

    /// As `SOURCE_DATE_EPOCH` wants it.
    pub(crate) fn seconds(&self) -> u64 {
        self.time
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())
    }

    pub(crate) fn must_be_clean(&self) -> Result<()> {
        ensure!(
            self.changes.is_empty(),
            "these files differ from the commit, or are not in it; commit or remove them:\n{}",
            self.changes
        );
        Ok(())
    }

    pub(crate) fn must_be_tagged(&self, tag: &str) -> Result<()> {
        ensure!(
            self.tags.iter().any(|found| found == tag),
            "HEAD has no tag {tag}, which releases are made from; `git tag --annotate {tag}` makes it, \
             and --dry-run rehearses without"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(folder: &Path, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.current_dir(folder)
            .args(["-c", "user.name=x", "-c", "user.email=x@example.com"])
            .args(["-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"])
            .env("GIT_COMMITTER_DATE", "1700000000 +0000");
        command::output(git.args(arguments)).unwrap();
    }

    #[test]
    fn a_release_is_made_from_a_tagged_commit_without_changes() {
        let folder = tempfile::tempdir().unwrap();
        let read = || Commit::read(folder.path()).unwrap();
        git(folder.path(), &["init", "--quiet"]);
        git(
            folder.path(),
            &["commit", "--quiet", "--allow-empty", "--message", "x"],
        );
        assert_eq!(read().seconds(), 1_700_000_000);
        assert!(read().must_be_clean().is_ok());
        let untagged = read().must_be_tagged("v1.2.3").unwrap_err();
        assert!(untagged.to_string().contains("no tag v1.2.3"), "{untagged}");

        git(folder.path(), &["tag", "v1.2.3"]);
        assert!(read().must_be_tagged("v1.2.3").is_ok());
        assert!(read().must_be_tagged("1.2.3").is_err());

        std::fs::write(folder.path().join("new"), "").unwrap();
        let changed = read().must_be_clean().unwrap_err();
        assert!(changed.to_string().contains("?? new"), "{changed}");
    }
}

//! The charts as archives that name the released images, the same for the same commit.

use crate::{command, image::ADAPTERS};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

/// Writes the archive of a chart. Helm keeps the files' times, so each gets that of the commit.
pub(crate) fn package(
    helm: &Path,
    chart: &Path,
    registry: &str,
    time: SystemTime,
    folder: &Path,
) -> Result<()> {
    let name = chart.file_name().context("a chart has a folder of its name")?;
    let staging = tempfile::tempdir().context("cannot make a folder for a chart")?;
    let staged = staging.path().join(name);
    copy(chart, &staged)?;
    if let Some(adapter) = ADAPTERS.iter().find(|adapter| name == adapter.chart) {
        name_the_image(&staged.join("values.yaml"), adapter.package, registry)?;
    }
    set_times(&staged, time)?;
    command::output(
        Command::new(helm)
            .arg("package")
            .arg(&staged)
            .arg("--destination")
            .arg(folder),
    )?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy(&from, &to)?;
        } else {
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    Ok(())
}

/// A checkout's chart names the image that `cargo xtask image` builds, a released one that which was pushed.
fn name_the_image(values: &Path, package: &str, registry: &str) -> Result<()> {
    let text = fs::read_to_string(values).with_context(|| format!("cannot read {}", values.display()))?;
    let local = format!("repository: localhost/{package}\n");
    ensure!(
        text.matches(&local).count() == 1,
        "{} should say `{}` once",
        values.display(),
        local.trim_end()
    );
    fs::write(
        values,
        text.replace(&local, &format!("repository: {registry}/{package}\n")),
    )
    .with_context(|| format!("cannot write {}", values.display()))
}

fn set_times(folder: &Path, time: SystemTime) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            set_times(&path, time)?;
        } else {
            File::options()
                .append(true)
                .open(&path)
                .and_then(|file| file.set_modified(time))
                .with_context(|| format!("cannot set the time of {}", path.display()))?;
        }
    }
    Ok(())
}

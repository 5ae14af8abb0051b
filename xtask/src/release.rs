//! `cargo xtask release`: everything that a release publishes, as files in one folder.
//!
//! Nothing is published here: the workflow `release.yml` does that with these files. The same commit gives the same
//! files on the same machine, byte for byte.

mod charts;
mod checksums;
mod commit;
mod sbom;
mod versions;

use crate::{
    archive, checkout, crds,
    image::{self, ADAPTERS},
    programs::{self, Program},
    progress::Progress,
};
use anyhow::{Context, Result};
use commit::Commit;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;
use versions::CHARTS;

/// This workspace's version, which everything in it has.
const VERSION: &str = env!("CARGO_PKG_VERSION");

const NOTES: &str = "RELEASE_NOTES.md";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A rehearsal: the same files, also from a commit without a tag and a changelog entry without a date.
    #[arg(long)]
    dry_run: bool,
    /// In a rehearsal: also with changes that are not committed.
    #[arg(long, requires = "dry_run")]
    allow_dirty: bool,
    /// In a rehearsal: Cargo's profile for the adapters; `image` builds in a fraction of the time.
    #[arg(long, requires = "dry_run", default_value = "release")]
    profile: String,
    /// Where the images will be, which the charts name.
    #[arg(long, default_value = "ghcr.io/ayatori/execution")]
    registry: String,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let commit = Commit::read(checkout::root())?;
    let entry = check(args, &commit)?;
    let (helm, cyclonedx) = (
        programs::path(Program::Helm)?,
        programs::path(Program::CargoCyclonedx)?,
    );
    let images = image::Args::for_release(&args.profile, &args.registry, VERSION);
    image::build(&images)?;

    let building = tempfile::Builder::new()
        .prefix(".release-")
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in(checkout::target())
        .context("cannot make a folder for the release")?;
    let folder = building.path();
    let mut progress = Progress::start(format!("collecting release {VERSION}"), 4);
    add_images(&images, folder)?;
    progress.step("bills of materials");
    sbom::write(&cyclonedx, &images, &commit, VERSION, folder)?;
    progress.step("charts and definitions");
    add_sources(&helm, &args.registry, commit.time, folder)?;
    add(folder, NOTES, &(entry.notes + "\n"))?;
    progress.step("checksums");
    checksums::write(folder)?;
    progress.finish();

    let finished = checkout::target().join(format!("release-{VERSION}"));
    replace(building, &finished)?;
    print!("{}", fs::read_to_string(finished.join(checksums::FILE))?);
    print!("{}", next(args, &finished));
    Ok(ExitCode::SUCCESS)
}

/// What has to hold before anything is built.
fn check(args: &Args, commit: &Commit) -> Result<versions::Entry> {
    let entry = versions::agree(checkout::root(), VERSION)?;
    crds::check()?;
    if !args.allow_dirty {
        commit.must_be_clean()?;
    }
    if !args.dry_run {
        entry.must_be_dated()?;
        commit.must_be_tagged(&tag())?;
    }
    Ok(entry)
}

/// The tag has a `v`. The version never has.
fn tag() -> String {
    format!("v{VERSION}")
}

fn add_images(images: &image::Args, folder: &Path) -> Result<()> {
    for adapter in &ADAPTERS {
        let archive = images.archive(adapter);
        let to = folder.join(format!(
            "{}-{VERSION}-linux-{}.tar",
            adapter.package,
            archive::architecture()
        ));
        fs::copy(&archive, &to)
            .and_then(|_| fs::set_permissions(&to, Permissions::from_mode(0o644)))
            .with_context(|| format!("cannot copy {}", archive.display()))?;
    }
    Ok(())
}

/// What is not built, but taken from the checkout: the charts and the definitions.
fn add_sources(helm: &Path, registry: &str, time: SystemTime, folder: &Path) -> Result<()> {
    for chart in CHARTS {
        let chart = checkout::root().join("charts").join(chart);
        charts::package(helm, &chart, registry, time, folder)?;
    }
    add(
        folder,
        &format!("execution-api-crds-{VERSION}.yaml"),
        &crds::in_one_file()?,
    )
}

fn add(folder: &Path, name: &str, content: &str) -> Result<()> {
    fs::write(folder.join(name), content).with_context(|| format!("cannot write {name}"))
}

/// Puts the finished folder where an earlier one may be, so that there is a whole one or none.
fn replace(building: tempfile::TempDir, finished: &Path) -> Result<()> {
    if finished.exists() {
        fs::remove_dir_all(finished).with_context(|| format!("cannot remove {}", finished.display()))?;
    }
    fs::rename(building.keep(), finished).with_context(|| format!("cannot write {}", finished.display()))
}

/// What a maintainer does with the files, or instead of a rehearsal.
fn next(args: &Args, finished: &Path) -> String {
    let (tag, registry) = (tag(), &args.registry);
    let images = ADAPTERS
        .each_ref()
        .map(|adapter| format!("\n  {registry}/{}:{VERSION}", adapter.package));
    let charts = CHARTS.map(|chart| format!("\n  oci://{registry}/charts/{chart}:{VERSION}"));
    let (images, charts) = (images.concat(), charts.concat());
    let first = if args.dry_run {
        format!(
            "\nTo release it: date the entry in CHANGELOG.md, merge, then\n  \
             git tag --annotate --message 'Release {VERSION}' {tag}\n  git push origin {tag}\n"
        )
    } else {
        String::new()
    };
    format!(
        "{}: complete, nothing is published.\n{first}\nThe workflow release.yml builds the files for the tag {tag} \
         and publishes{images}{charts}\n  the GitHub release {tag}, with all files and {NOTES} as its text\n",
        finished.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        archive::{Defaults, Image, Layer},
        command,
    };
    use std::collections::BTreeMap;
    use std::process::Command;
    use std::time::Duration;

    const REGISTRY: &str = "registry.example/team";

    /// A release with stand-ins for what takes minutes to build.
    fn release() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut layer = Layer::default();
        layer.file("usr/bin/x", 0o755, "x");
        let image = Image::new(&[&layer], &Defaults::default()).unwrap();
        image
            .write(&folder.path().join("x.tar"), &["x:1".into()])
            .unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let helm = programs::path(Program::Helm).unwrap();
        add_sources(&helm, REGISTRY, time, folder.path()).unwrap();
        checksums::write(folder.path()).unwrap();
        folder
    }

    fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
        entries
            .map(|entry| {
                (
                    entry.file_name().into_string().unwrap(),
                    fs::read(entry.path()).unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn the_same_commit_gives_the_same_files() {
        let (first, second) = (release(), release());
        let (first, second) = (files(first.path()), files(second.path()));
        let expected = [
            "SHA256SUMS".to_owned(),
            format!("execution-api-{VERSION}.tgz"),
            format!("execution-api-crds-{VERSION}.yaml"),
            format!("kubernetes-adapter-{VERSION}.tgz"),
            format!("opensandbox-adapter-{VERSION}.tgz"),
            "x.tar".to_owned(),
        ];
        assert!(first.keys().eq(&expected), "{:?}", first.keys());
        for (name, content) in &first {
            assert!(second.get(name) == Some(content), "{name} differs");
        }
    }

    #[test]
    fn a_chart_tells_the_time_of_the_commit_alone() {
        let release = release();
        for chart in CHARTS {
            let mut tar = Command::new("tar");
            tar.args(["--list", "--verbose", "--full-time", "--utc", "--gzip", "--file"])
                .arg(release.path().join(format!("{chart}-{VERSION}.tgz")));
            let listed = command::output(&mut tar).unwrap();
            assert!(listed.contains("values.yaml"), "{listed}");
            assert!(
                listed.lines().all(|line| line.contains(" 2023-11-14 22:13:20 ")),
                "{listed}"
            );
        }
    }

    #[test]
    fn the_sums_can_be_checked_by_anyone() {
        let release = release();
        let check = || {
            let mut sha256sum = Command::new("sha256sum");
            command::output(sha256sum.current_dir(release.path()).args([
                "--check",
                "--strict",
                checksums::FILE,
            ]))
        };
        assert_eq!(check().unwrap().matches(": OK").count(), 5);
        fs::write(release.path().join("x.tar"), "y").unwrap();
        assert!(check().is_err());
    }

    #[test]
    fn a_released_chart_installs_the_released_image() {
        let release = release();
        for adapter in &ADAPTERS {
            let chart = release.path().join(format!("{}-{VERSION}.tgz", adapter.chart));
            let helm = programs::path(Program::Helm).unwrap();
            let manifests = command::output(Command::new(helm).arg("template").arg(chart)).unwrap();
            let image = format!("image: \"{REGISTRY}/{}:{VERSION}\"", adapter.package);
            assert!(manifests.contains(&image), "{manifests}");
        }
    }

    #[test]
    fn the_definitions_are_one_stream_of_all_four() {
        let text = crds::in_one_file().unwrap();
        let kinds: Vec<String> = serde_yaml::Deserializer::from_str(&text)
            .map(|document| {
                let document: serde_json::Value = serde::Deserialize::deserialize(document).unwrap();
                document
                    .pointer("/spec/names/kind")
                    .unwrap()
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        assert_eq!(
            kinds,
            [
                "Job",
                "JobClass",
                "KubernetesExecutionParameters",
                "OpenSandboxExecutionParameters"
            ]
        );
    }
}

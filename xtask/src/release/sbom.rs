//! A bill of materials for each image, in CycloneDX: the crates of its binary, and the Debian packages whose libraries
//! it holds.

use super::commit::Commit;
use crate::{checkout, command, image, image::ADAPTERS};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes the bill of each adapter, of the committed sources and of the libraries of this machine.
pub(crate) fn write(
    cyclonedx: &Path,
    images: &image::Args,
    commit: &Commit,
    version: &str,
    folder: &Path,
) -> Result<()> {
    // It writes beside each manifest, so it gets a copy.
    let sources = tempfile::tempdir().context("cannot make a folder for the sources")?;
    copy_commit(sources.path())?;
    command::output(
        Command::new(cyclonedx)
            .arg("cyclonedx") // it is made to be called by cargo
            .current_dir(sources.path())
            .args(["--format=json", "--spec-version=1.5", "--describe=binaries"])
            .arg("--no-build-deps")
            .env("SOURCE_DATE_EPOCH", commit.seconds().to_string()),
    )?;
    let libraries = debian_packages(&image::shared_libraries(images)?)?;
    for adapter in &ADAPTERS {
        let package = adapter.package;
        // An adapter's crate lies in a folder of its chart's name.
        let written = Path::new("crates")
            .join(adapter.chart)
            .join(format!("{package}_bin.cdx.json"));
        let text = fs::read_to_string(sources.path().join(&written))
            .with_context(|| format!("cargo-cyclonedx did not write {}", written.display()))?;
        let bill = complete(&text, sources.path(), &libraries)
            .with_context(|| format!("cannot understand {}", written.display()))?;
        let path = folder.join(format!("{package}-{version}.cdx.json"));
        fs::write(&path, bill).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn copy_commit(to: &Path) -> Result<()> {
    let archive = tempfile::NamedTempFile::new()?;
    command::output(
        Command::new("git")
            .current_dir(checkout::root())
            .args(["archive", "--format=tar", "HEAD", "--output"])
            .arg(archive.path()),
    )?;
    tar::Archive::new(File::open(archive.path())?)
        .unpack(to)
        .context("cannot unpack the commit")
}

/// The bill with the libraries added, and without the name of the folder it was made in.
fn complete(text: &str, sources: &Path, libraries: &BTreeSet<DebianPackage>) -> Result<String> {
    let text = text.replace(&format!("path+file://{}/", sources.display()), "path+file:///");
    let mut bill: Value = serde_json::from_str(&text)?;
    bill.get_mut("components")
        .and_then(Value::as_array_mut)
        .context("it lists no components")?
        .extend(libraries.iter().map(DebianPackage::component));
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

/// An installed package, as the machine's package manager names it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct DebianPackage {
    name: String,
    version: String,
    architecture: String,
    /// Such as `debian` and `debian-12`.
    vendor: String,
    distribution: String,
}

impl DebianPackage {
    fn component(&self) -> Value {
        let url = self.url();
        json!({
            "type": "library",
            "bom-ref": url,
            "name": self.name,
            "version": self.version,
            "purl": url,
        })
    }

    /// The package's URL: <https://github.com/package-url/purl-spec>.
    fn url(&self) -> String {
        let version = self.version.replace('+', "%2B").replace(':', "%3A");
        format!(
            "pkg:deb/{}/{}@{version}?arch={}&distro={}",
            self.vendor, self.name, self.architecture, self.distribution
        )
    }
}

/// The packages that these files belong to.
fn debian_packages(files: &BTreeSet<PathBuf>) -> Result<BTreeSet<DebianPackage>> {
    let release = fs::read_to_string("/etc/os-release").context("cannot tell which system this is")?;
    let said = |key| os_release(&release, key).with_context(|| format!("/etc/os-release has no {key}"));
    let vendor = said("ID")?;
    let distribution = format!("{vendor}-{}", said("VERSION_ID")?);
    files
        .iter()
        .map(|file| {
            let owner = owner(file)?;
            let mut show = Command::new("dpkg-query");
            show.args([
                "--show",
                "--showformat=${Package} ${Version} ${Architecture}",
                &owner,
            ]);
            let shown = command::output(&mut show)?;
            let mut words = shown.split_whitespace().map(str::to_owned);
            let (Some(name), Some(version), Some(architecture)) = (words.next(), words.next(), words.next())
            else {
                anyhow::bail!("dpkg-query said \"{shown}\" about {owner}");
            };
            Ok(DebianPackage {
                name,
                version,
                architecture,
                vendor: vendor.to_owned(),
                distribution: distribution.clone(),
            })
        })
        .collect()
}

/// The package that a file came with. Where `/lib` is a link to `/usr/lib`, packages know either name.
fn owner(file: &Path) -> Result<String> {
    let search = |path: &Path| command::output(Command::new("dpkg-query").arg("--search").arg(path));
    let below_usr = Path::new("/usr").join(file.strip_prefix("/").unwrap_or(file));
    let said = search(file).or_else(|_| search(&below_usr)).with_context(|| {
        format!(
            "no Debian package has {}: build releases on Debian or Ubuntu",
            file.display()
        )
    })?;
    let (owner, _) = said
        .split_once(": ")
        .with_context(|| format!("dpkg-query said \"{said}\""))?;
    Ok(owner.to_owned())
}

/// The value of a key, without its quotes.
fn os_release<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .find_map(|(name, value)| (name == key).then(|| value.trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libc() -> DebianPackage {
        DebianPackage {
            name: "libc6".into(),
            version: "1:2.36-9+deb12u14".into(),
            architecture: "amd64".into(),
            vendor: "debian".into(),
            distribution: "debian-12".into(),
        }
    }

    #[test]
    fn a_bill_names_libraries_beside_crates_and_no_folder_of_the_builder() {
        let crates =
            r#"{"components": [{"bom-ref": "path+file:///build/x/crates/core#ayatori-core@0.1.0"}]}"#;
        let bill = complete(crates, Path::new("/build/x"), &BTreeSet::from([libc()])).unwrap();
        assert!(!bill.contains("/build/x"), "{bill}");
        let bill: Value = serde_json::from_str(&bill).unwrap();
        assert_eq!(
            bill.pointer("/components/0/bom-ref").unwrap(),
            "path+file:///crates/core#ayatori-core@0.1.0"
        );
        assert_eq!(
            bill.pointer("/components/1/purl").unwrap(),
            "pkg:deb/debian/libc6@1%3A2.36-9%2Bdeb12u14?arch=amd64&distro=debian-12"
        );
    }

    #[test]
    fn the_system_is_read_with_and_without_quotes() {
        let text = "PRETTY_NAME=\"Debian GNU/Linux 12\"\nVERSION_ID=\"12\"\nID=debian\n";
        assert_eq!(os_release(text, "ID"), Some("debian"));
        assert_eq!(os_release(text, "VERSION_ID"), Some("12"));
        assert_eq!(os_release(text, "NAME"), None);
    }

    #[test]
    fn a_file_is_found_by_the_package_that_brought_it() {
        let bash = BTreeSet::from(["/bin/bash".into()]);
        let found = debian_packages(&bash).unwrap();
        assert!(found.iter().map(|package| &package.name).eq(["bash"]));
    }
}

//! The images every test needs, and loading archives into the cluster.

use super::Cluster;
use crate::{
    archive::{Defaults, Image, Layer},
    checkout, command,
};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const BUSYBOX_PLACES: [&str; 2] = ["/bin/busybox", "/usr/bin/busybox"];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/tmp:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";

/// Writes and loads `localhost/busybox:1` and `localhost/pause:1`, then every archive the project has built.
pub(crate) fn load_all(cluster: &Cluster) -> Result<()> {
    for archive in base_images(cluster)?.into_iter().chain(built_images()?) {
        load(cluster, &archive)?;
    }
    Ok(())
}

/// Loads one archive.
pub(crate) fn load(cluster: &Cluster, archive: &Path) -> Result<()> {
    cluster
        .ctr(&[
            "--namespace=k8s.io",
            "images",
            "import",
            &archive.display().to_string(),
        ])
        .map(drop)
        .with_context(|| format!("cannot load {}", archive.display()))
}

fn base_images(cluster: &Cluster) -> Result<Vec<PathBuf>> {
    let layer = busybox()?;
    let environment = ["PATH=/bin"];
    let images = [
        (
            "busybox",
            Defaults {
                command: &["sh"],
                environment: &environment,
                ..Defaults::default()
            },
        ),
        (
            "pause",
            Defaults {
                entrypoint: &["/bin/sleep", "infinity"],
                user: "65532",
                ..Defaults::default()
            },
        ),
    ];
    images
        .iter()
        .map(|(name, defaults)| {
            let path = cluster.state(&format!("images/{name}.tar"));
            Image::new(&layer, defaults)?.write(&path, &[format!("localhost/{name}:1")])?;
            Ok(path)
        })
        .collect()
}

/// A root file system of the machine's static busybox.
fn busybox() -> Result<Layer> {
    let binary = BUSYBOX_PLACES
        .iter()
        .map(Path::new)
        .find(|path| path.is_file())
        .context("no busybox")?;
    let content = std::fs::read(binary)?;
    if command::output(Command::new("ldd").arg(binary)).is_ok() {
        bail!(
            "{} is not linked statically: install busybox-static",
            binary.display()
        );
    }
    let mut layer = Layer::default();
    for folder in ["dev", "proc", "root", "sys"] {
        layer.folder(folder, 0o755);
    }
    layer.folder("tmp", 0o1777);
    layer.file("etc/passwd", 0o644, PASSWD);
    layer.file("etc/group", 0o644, GROUP);
    for applet in command::output(Command::new(binary).arg("--list"))?.lines() {
        layer.link(&format!("bin/{applet}"), "busybox");
    }
    layer.file("bin/busybox", 0o755, content);
    Ok(layer)
}

fn built_images() -> Result<Vec<PathBuf>> {
    let Ok(folder) = std::fs::read_dir(checkout::images()) else {
        return Ok(Vec::new());
    };
    let mut archives = folder
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    archives.retain(|path| path.extension().is_some_and(|extension| extension == "tar"));
    archives.sort();
    Ok(archives)
}

//! The images every test needs, and loading archives into the cluster.

use super::{Cluster, docker};
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

/// The base images: `localhost/<name>:1`, whose archive is `images/<name>.tar` of the cluster's state.
const BUSYBOX: &str = "busybox";
const PAUSE: &str = "pause";
/// One static program, `/bin/true`, and no shell.
const STATIC: &str = "static";
/// What OpenSandbox puts into every sandbox.
const EXECD: &str = "opensandbox-execd";

/// What the server looks for in the execd image.
const BOOTSTRAP: &str = include_str!("../../../e2e/cluster/opensandbox/bootstrap.sh");
const EXECD_PROGRAM: &str = include_str!("../../../e2e/cluster/opensandbox/execd.sh");

/// Loads the base images of pods, then every archive the project has built, into containerd.
pub(crate) fn load_all(cluster: &Cluster) -> Result<()> {
    let base = [BUSYBOX, PAUSE, STATIC].map(|name| archive(cluster, name));
    for archive in base.into_iter().chain(built_images()?) {
        load(cluster, &archive)?;
    }
    Ok(())
}

/// Loads the base images of sandboxes, which are those of pods where both have them, into dockerd.
pub(crate) fn load_into_docker(cluster: &Cluster) -> Result<()> {
    for image in [BUSYBOX, STATIC, EXECD] {
        let archive = archive(cluster, image).display().to_string();
        docker::run(cluster, &["load", "--input", &archive])?;
    }
    Ok(())
}

/// The name of the execd image.
pub(crate) fn execd() -> String {
    reference(EXECD)
}

/// Loads an image into dockerd under these names. It is busybox too, but says by its environment that it is
/// another: Docker tells images apart by content, and calls one of several names by the first.
pub(crate) fn load_private(cluster: &Cluster, names: &[String]) -> Result<()> {
    let binary = busybox()?;
    let path = archive(cluster, "private");
    let defaults = Defaults {
        command: &["sh"],
        environment: &["PATH=/bin", "FROM_REGISTRY=yes"],
        ..Defaults::default()
    };
    Image::new(&[&userland(&binary)?], &defaults)?.write(&path, names)?;
    docker::run(cluster, &["load", "--input", &path.display().to_string()]).map(drop)
}

fn reference(image: &str) -> String {
    format!("localhost/{image}:1")
}

fn archive(cluster: &Cluster, image: &str) -> PathBuf {
    cluster.state(&format!("images/{image}.tar"))
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

/// Writes the archives of the base images.
pub(crate) fn write_base(cluster: &Cluster) -> Result<()> {
    let binary = busybox()?;
    let mut alone = Layer::default();
    alone.file("bin/true", 0o755, binary.content.clone());
    let shell = userland(&binary)?;
    let mut execd = userland(&binary)?;
    execd.file("execd", 0o755, EXECD_PROGRAM);
    execd.file("bootstrap.sh", 0o755, BOOTSTRAP);

    let commands = Defaults {
        command: &["sh"],
        environment: &["PATH=/bin"],
        ..Defaults::default()
    };
    let wait = Defaults {
        entrypoint: &["/bin/sleep", "infinity"],
        user: "65532",
        ..Defaults::default()
    };
    let succeed = Defaults {
        command: &["/bin/true"],
        ..Defaults::default()
    };
    let images = [
        (BUSYBOX, &shell, &commands),
        (PAUSE, &shell, &wait),
        (STATIC, &alone, &succeed),
        (EXECD, &execd, &commands),
    ];
    for (name, layer, defaults) in images {
        Image::new(&[layer], defaults)?.write(&archive(cluster, name), &[reference(name)])?;
    }
    Ok(())
}

/// The machine's static busybox.
struct Busybox {
    path: &'static Path,
    content: Vec<u8>,
}

fn busybox() -> Result<Busybox> {
    let path = BUSYBOX_PLACES
        .iter()
        .map(Path::new)
        .find(|path| path.is_file())
        .context("no busybox")?;
    if command::output(Command::new("ldd").arg(path)).is_ok() {
        bail!(
            "{} is not linked statically: install busybox-static",
            path.display()
        );
    }
    let content = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Busybox { path, content })
}

/// A root file system of busybox.
fn userland(busybox: &Busybox) -> Result<Layer> {
    let mut layer = Layer::default();
    for folder in ["dev", "proc", "root", "sys"] {
        layer.folder(folder, 0o755);
    }
    layer.folder("tmp", 0o1777);
    layer.file("etc/passwd", 0o644, PASSWD);
    layer.file("etc/group", 0o644, GROUP);
    for applet in command::output(Command::new(busybox.path).arg("--list"))?.lines() {
        layer.link(&format!("bin/{applet}"), "busybox");
    }
    layer.file("bin/busybox", 0o755, busybox.content.clone());
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

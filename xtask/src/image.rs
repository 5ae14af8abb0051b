//! `cargo xtask image`: the adapters as OCI images, made without a container engine.
//!
//! An image holds the binary, the shared libraries it names, and a user: no shell, no package manager, no
//! certificate authorities. It runs as 65532 on a read-only root file system. All but the binary is one layer, which
//! the adapters share.

use crate::{
    archive::{Defaults, Image, Layer},
    checkout, cluster, command,
};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// An adapter: the package of its binary, which also names the image, and its chart.
pub(crate) struct Adapter {
    pub(crate) package: &'static str,
    pub(crate) chart: &'static str,
    /// Values of the chart that fit the local cluster.
    pub(crate) local_values: &'static [&'static str],
}

/// All of them.
pub(crate) const ADAPTERS: [Adapter; 2] = [
    Adapter {
        package: "ayatori-kubernetes-adapter",
        chart: "kubernetes-adapter",
        local_values: &[],
    },
    Adapter {
        package: "ayatori-opensandbox-adapter",
        chart: "opensandbox-adapter",
        // It may try to read a Job's Secrets wherever it is; it has the right where somebody gives it, as tests do in
        // their namespaces.
        local_values: &["extraArgs={--allow-secrets}"],
    },
];

/// The registry of images that are never pushed.
const LOCAL: &str = "localhost";

/// Debian's number for nobody in particular, as distroless images use it.
const USER: &str = "65532:65532";
const PASSWD: &str = "nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n";
const GROUP: &str = "nonroot:x:65532:\n";
/// How glibc looks names up: without this file it would not ask DNS.
const NSSWITCH: &str = "hosts: files dns\n";

const LABELS: [(&str, &str); 3] = [
    ("org.opencontainers.image.source", env!("CARGO_PKG_REPOSITORY")),
    ("org.opencontainers.image.version", env!("CARGO_PKG_VERSION")),
    ("org.opencontainers.image.licenses", env!("CARGO_PKG_LICENSE")),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Cargo's profile: `image` builds in a fraction of the time, `release` is what is published.
    #[arg(long, default_value = "image")]
    profile: String,
    /// Features of the adapters to build in, as for cargo.
    #[arg(long)]
    features: Option<String>,
    /// Where the images will be pulled from: what their names begin with.
    #[arg(long, default_value = LOCAL)]
    registry: String,
    /// The images' tag; on this machine each also gets one that changes with its content alone.
    #[arg(long, default_value = "dev")]
    tag: String,
    /// Load the images into the running local cluster.
    #[arg(long)]
    load: bool,
}

impl Args {
    /// What `deploy` and the tests install.
    pub(crate) fn for_local_cluster() -> Args {
        Args {
            profile: "image".into(),
            features: None,
            registry: LOCAL.into(),
            tag: "dev".into(),
            load: true,
        }
    }

    /// What `release` collects.
    pub(crate) fn for_release(profile: &str, registry: &str, version: &str) -> Args {
        Args {
            profile: profile.into(),
            features: None,
            registry: registry.into(),
            tag: version.into(),
            load: false,
        }
    }

    /// Where an adapter's archive is written.
    pub(crate) fn archive(&self, adapter: &Adapter) -> PathBuf {
        let package = adapter.package;
        checkout::images().join(match self.tag.as_str() {
            "dev" => format!("{package}.tar"),
            tag => format!("{package}-{tag}.tar"),
        })
    }

    fn names(&self, package: &str, content_tag: &str) -> Vec<String> {
        let name = |tag| format!("{}/{package}:{tag}", self.registry);
        // One name alone can be pushed without saying which.
        let own = (self.registry == LOCAL).then(|| name(content_tag));
        std::iter::once(name(&self.tag)).chain(own).collect()
    }
}

/// An image whose archive was written.
pub(crate) struct Built {
    pub(crate) adapter: &'static Adapter,
    /// Changes with the content alone, so a Deployment rolls out exactly when something changed.
    pub(crate) content_tag: String,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    for built in build(args)? {
        if let Some(name) = args.names(built.adapter.package, &built.content_tag).last() {
            println!("{name}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds every adapter and writes its archive.
pub(crate) fn build(args: &Args) -> Result<Vec<Built>> {
    compile(args)?;
    let base = base(args)?;
    ADAPTERS
        .iter()
        .map(|adapter| archive(adapter, &base, args))
        .collect()
}

fn compile(args: &Args) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(checkout::root())
        .args(["build", "--profile", &args.profile]);
    cargo.arg("--target-dir").arg(checkout::target());
    for adapter in &ADAPTERS {
        cargo.args(["--package", adapter.package]);
    }
    if let Some(features) = &args.features {
        cargo.args(["--features", features]);
    }
    if args.profile == "release" {
        cargo.args(["--config", &without_paths()]);
    }
    command::run(&mut cargo)
}

/// Keeps the names of this machine's folders, which panics would print, out of what is published: it is then the same
/// wherever it was built.
fn without_paths() -> String {
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
        .unwrap_or_default();
    let remap = |from: &Path, to| format!("--remap-path-prefix={}={to}", from.display());
    let flags = [remap(&cargo_home, "/cargo"), remap(checkout::root(), "/source")];
    format!("build.rustflags={flags:?}")
}

/// Where cargo has put an adapter.
fn binary(adapter: &Adapter, args: &Args) -> PathBuf {
    let folder = if args.profile == "dev" {
        "debug"
    } else {
        &args.profile
    };
    checkout::target().join(folder).join(adapter.package)
}

/// What every adapter needs beside its binary.
fn base(args: &Args) -> Result<Layer> {
    let mut layer = Layer::default();
    layer.file("etc/passwd", 0o644, PASSWD);
    layer.file("etc/group", 0o644, GROUP);
    layer.file("etc/nsswitch.conf", 0o644, NSSWITCH);
    for library in shared_libraries(args)? {
        let inside = library
            .strip_prefix("/")
            .unwrap_or(&library)
            .display()
            .to_string();
        layer.file(&inside, 0o755, read(&library)?);
    }
    Ok(layer)
}

/// The files of this machine that are in the images: the libraries of the adapters, once each.
pub(crate) fn shared_libraries(args: &Args) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for adapter in &ADAPTERS {
        let ldd = command::output(Command::new("ldd").arg(binary(adapter, args)))?;
        found.extend(libraries(&ldd));
    }
    Ok(found)
}

fn archive(adapter: &'static Adapter, base: &Layer, args: &Args) -> Result<Built> {
    let package = adapter.package;
    let image = image(package, base, &binary(adapter, args))?;
    let content_tag = image.content_tag();
    let archive = args.archive(adapter);
    let names = args.names(package, &content_tag);
    image.write(&archive, &names)?;
    eprintln!(
        "{} ({} MiB): {}",
        names.join(", "),
        archive.metadata()?.len() >> 20,
        archive.display()
    );
    if args.load {
        cluster::load(&cluster::ours()?, &archive)?;
    }
    Ok(Built { adapter, content_tag })
}

fn image(package: &str, base: &Layer, binary: &Path) -> Result<Image> {
    let mut own = Layer::default();
    own.file(&format!("usr/bin/{package}"), 0o755, read(binary)?);
    let entrypoint = format!("/usr/bin/{package}");
    Image::new(
        &[base, &own],
        &Defaults {
            user: USER,
            entrypoint: &[&entrypoint],
            labels: &LABELS,
            ..Defaults::default()
        },
    )
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The files that `ldd` names: the libraries and the loader. The kernel's own (`linux-vdso`) has no file.
fn libraries(ldd: &str) -> Vec<PathBuf> {
    ldd.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_read_from_what_ldd_says() {
        let said = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007f)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libgcc_s.so.1",
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(libraries(said), expected.map(PathBuf::from));
    }

    #[test]
    fn a_static_binary_needs_no_library() {
        assert!(libraries("\tstatically linked\n").is_empty());
    }
}

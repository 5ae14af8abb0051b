//! The pinned programs (Kubernetes, etcd, Helm, cargo-deny, OpenSandbox): built once, kept by version. And Prometheus,
//! as Debian has it.
//!
//! Versions stand in the `go.mod` and `constraints.txt` files under `e2e`, those of crates below. A program is built into a
//! temporary folder and renamed, so a crash never leaves half of one, and two builds at once end as one. They are
//! kept in `${AYATORI_CACHE:-$HOME/.cache/ayatori}/<program>/<version>-<hash of what it is built from>`,
//! outside the checkout: a second clone builds nothing.

use crate::{checkout, command, progress::Progress};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program the project pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Program {
    Etcd,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    Kubelet,
    KubeProxy,
    Kubectl,
    Helm,
    CargoDeny,
    CargoCyclonedx,
    Actionlint,
    Mdbook,
    Prometheus,
    Promtool,
    /// Its path is that of the Python that has it. No tool for people.
    #[value(skip)]
    OpensandboxServer,
    /// The Python client of Kubernetes; likewise.
    #[value(skip)]
    KubernetesClient,
}

/// Where a program comes from.
enum Source {
    /// A Go tool of the module in `folder`, versioned by the module that provides it.
    Go {
        folder: &'static str,
        module: &'static str,
        package: String,
    },
    /// A crate's binary, and how it is built.
    Crate {
        version: &'static str,
        options: &'static [&'static str],
    },
    /// A Python package in a virtual environment, with the versions of everything in it stated in a file.
    Python { constraints: &'static str },
    /// A package of this machine's Debian, in whatever version that has. Unpacked and not installed: it would come
    /// with a service that runs.
    Debian { package: &'static str },
}

impl Source {
    /// The folder of the cache that all versions of what comes from here are in.
    fn folder(&self, program: Program) -> &'static str {
        match self {
            Source::Debian { package } => package,
            Source::Go { .. } | Source::Crate { .. } | Source::Python { .. } => program.name(),
        }
    }
}

impl Program {
    /// What a local cluster needs.
    pub(crate) const CLUSTER: [Program; 8] = [
        Program::Etcd,
        Program::KubeApiserver,
        Program::KubeControllerManager,
        Program::KubeScheduler,
        Program::Kubectl,
        Program::Kubelet,
        Program::KubeProxy,
        Program::OpensandboxServer,
    ];

    /// What a control plane without a node needs.
    pub(crate) const CONTROL_PLANE: [Program; 5] = [
        Program::Etcd,
        Program::KubeApiserver,
        Program::KubeControllerManager,
        Program::KubeScheduler,
        Program::Kubectl,
    ];

    /// What tests need, whether there is a cluster or not.
    pub(crate) const TESTS: [Program; 3] = [Program::Helm, Program::Prometheus, Program::Promtool];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Program::Etcd => "etcd",
            Program::KubeApiserver => "kube-apiserver",
            Program::KubeControllerManager => "kube-controller-manager",
            Program::KubeScheduler => "kube-scheduler",
            Program::Kubelet => "kubelet",
            Program::KubeProxy => "kube-proxy",
            Program::Kubectl => "kubectl",
            Program::Helm => "helm",
            Program::CargoDeny => "cargo-deny",
            Program::CargoCyclonedx => "cargo-cyclonedx",
            Program::Actionlint => "actionlint",
            Program::Prometheus => "prometheus",
            Program::Promtool => "promtool",
            Program::Mdbook => "mdbook",
            Program::OpensandboxServer => "opensandbox-server",
            Program::KubernetesClient => "kubernetes",
        }
    }

    fn source(self) -> Source {
        match self {
            Program::Etcd => Source::Go {
                folder: "e2e/cluster/etcd",
                module: "go.etcd.io/etcd/server/v3",
                package: "go.etcd.io/etcd/server/v3".into(),
            },
            Program::Helm => Source::Go {
                folder: "e2e/cluster/helm",
                module: "helm.sh/helm/v4",
                package: "helm.sh/helm/v4/cmd/helm".into(),
            },
            Program::CargoDeny => Source::Crate {
                version: "0.20.2",
                options: &[],
            },
            // It works for a second.
            Program::CargoCyclonedx => Source::Crate {
                version: "0.5.9",
                options: &["--debug"],
            },
            // Some fifty pages need neither its server nor the compiler's best.
            Program::Mdbook => Source::Crate {
                version: "0.5.4",
                options: &["--no-default-features", "--debug"],
            },
            Program::Actionlint => Source::Go {
                folder: "e2e/cluster/actionlint",
                module: "github.com/rhysd/actionlint",
                package: "github.com/rhysd/actionlint/cmd/actionlint".into(),
            },
            Program::Prometheus | Program::Promtool => Source::Debian {
                package: "prometheus",
            },
            Program::OpensandboxServer => Source::Python {
                constraints: "e2e/cluster/opensandbox/constraints.txt",
            },
            Program::KubernetesClient => Source::Python {
                constraints: "e2e/callers/constraints.txt",
            },
            Program::KubeApiserver
            | Program::KubeControllerManager
            | Program::KubeScheduler
            | Program::Kubelet
            | Program::KubeProxy
            | Program::Kubectl => Source::Go {
                folder: "e2e/cluster",
                module: "k8s.io/kubernetes",
                package: format!("k8s.io/kubernetes/cmd/{}", self.name()),
            },
        }
    }

    /// Without these a Kubernetes program reports v0.0.0, and Helm its branch.
    fn linker_flags(self, version: &str) -> String {
        let stamp = match self {
            Program::Etcd
            | Program::CargoDeny
            | Program::CargoCyclonedx
            | Program::Actionlint
            | Program::Mdbook
            | Program::Prometheus
            | Program::Promtool
            | Program::OpensandboxServer
            | Program::KubernetesClient => String::new(),
            Program::Helm => format!(" -X helm.sh/helm/v4/internal/version.version=v{version}"),
            Program::KubeApiserver
            | Program::KubeControllerManager
            | Program::KubeScheduler
            | Program::Kubelet
            | Program::KubeProxy
            | Program::Kubectl => {
                let mut numbers = version.split('.');
                let (major, minor) = (
                    numbers.next().unwrap_or_default(),
                    numbers.next().unwrap_or_default(),
                );
                let variable = "k8s.io/component-base/version.git";
                format!(
                    " -X {variable}Version=v{version} -X {variable}Major={major} -X {variable}Minor={minor}"
                )
            }
        };
        format!("-s -w{stamp}")
    }
}

/// Builds what is not there yet.
pub(crate) fn ensure(programs: &[Program]) -> Result<()> {
    programs.iter().try_for_each(|program| path(*program).map(drop))
}

/// The path of a program, which is built first when this machine has not got it.
pub(crate) fn path(program: Program) -> Result<PathBuf> {
    let build = Build::plan(program)?;
    let binary = build.binary_in(&build.kept);
    if !binary.is_file() {
        build
            .run()
            .with_context(|| format!("cannot build {} {}", program.name(), build.version))?;
    }
    Ok(binary)
}

/// A build that is decided, whether it is still to be made or not.
struct Build {
    program: Program,
    source: Source,
    version: String,
    flags: String,
    kept: PathBuf,
}

impl Build {
    fn plan(program: Program) -> Result<Build> {
        let source = program.source();
        let read = |path: PathBuf| {
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let (version, flags, key) = match &source {
            Source::Crate { version, .. } => ((*version).to_owned(), String::new(), String::new()),
            Source::Go {
                folder,
                module,
                package,
            } => {
                let folder_path = checkout::root().join(folder);
                let (go_mod, go_sum) = (
                    read(folder_path.join("go.mod"))?,
                    read(folder_path.join("go.sum"))?,
                );
                let version = required_version(&go_mod, module)
                    .with_context(|| format!("{folder}/go.mod does not require {module}"))?;
                let flags = program.linker_flags(&version);
                let key = format!("-{}", key(&[&go_mod, &go_sum, package, "\n", &flags, "\n"]));
                (version, flags, key)
            }
            Source::Python { constraints } => {
                let pinned = read(checkout::root().join(constraints))?;
                let version = pinned_version(&pinned, program.name())
                    .with_context(|| format!("{constraints} does not pin {}", program.name()))?;
                (version, String::new(), format!("-{}", key(&[&pinned])))
            }
            Source::Debian { .. } => ("debian".to_owned(), String::new(), String::new()),
        };
        let kept = cache()?
            .join(source.folder(program))
            .join(format!("{version}{key}"));
        Ok(Build {
            program,
            source,
            version,
            flags,
            kept,
        })
    }

    fn binary_in(&self, folder: &Path) -> PathBuf {
        match self.source {
            Source::Go { .. } => folder.join(self.program.name()),
            Source::Crate { .. } => folder.join("bin").join(self.program.name()),
            // The scripts beside it name the folder they were installed into, which was another.
            Source::Python { .. } => folder.join("bin/python3"),
            Source::Debian { .. } => folder.join("usr/bin").join(self.program.name()),
        }
    }

    fn run(&self) -> Result<()> {
        let parent = self.kept.parent().context("the cache has no parent folder")?;
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        let building = tempfile::Builder::new()
            .prefix(".building-")
            .permissions(std::fs::Permissions::from_mode(0o755)) // other users may share the cache
            .tempdir_in(parent)?;
        match &self.source {
            Source::Go { folder, package, .. } => self.go_build(folder, package, building.path())?,
            Source::Crate { version, options } => self.cargo_install(version, options, building.path())?,
            Source::Python { constraints } => self.pip_install(constraints, building.path())?,
            Source::Debian { package } => unpack(package, building.path())?,
        }
        if self.kept.exists() && !self.binary_in(&self.kept).is_file() {
            // The Python that an environment was made with has gone.
            std::fs::remove_dir_all(&self.kept)
                .with_context(|| format!("cannot remove {}", self.kept.display()))?;
        }
        match std::fs::rename(building.path(), &self.kept) {
            Err(_) if self.binary_in(&self.kept).is_file() => Ok(()), // another build was first
            renamed => renamed.with_context(|| format!("cannot rename to {}", self.kept.display())),
        }
    }

    fn go_build(&self, folder: &str, package: &str, out: &Path) -> Result<()> {
        let go = |arguments: &[&OsStr]| {
            let mut command = Command::new("go");
            command
                .current_dir(checkout::root().join(folder))
                .env("CGO_ENABLED", "0")
                .args(arguments);
            command
        };
        let listed = command::output(&mut go(&["list".as_ref(), "-deps".as_ref(), package.as_ref()]))
            .context("Go is needed to build the cluster's programs: https://go.dev/doc/install")?;
        let mut progress = Progress::start(self.title(), listed.lines().count() as u64);
        let binary = self.binary_in(out);
        let arguments: [&OsStr; 9] = [
            "build".as_ref(),
            "-v".as_ref(), // names each package as it is compiled
            "-trimpath".as_ref(),
            "-buildvcs=false".as_ref(), // the checkout says nothing about these programs
            "-ldflags".as_ref(),
            self.flags.as_ref(),
            "-o".as_ref(),
            binary.as_ref(),
            package.as_ref(),
        ];
        watch(&mut go(&arguments), &mut progress)?;
        progress.finish();
        Ok(())
    }

    fn cargo_install(&self, version: &str, options: &[&str], out: &Path) -> Result<()> {
        let mut progress = Progress::start(self.title(), 0);
        let mut install = Command::new("cargo");
        install
            .args(["install", "--locked", "--version", version, "--root"])
            .arg(out)
            .args(options)
            .arg(self.program.name())
            .env_remove("CARGO_TARGET_DIR")
            .current_dir(out); // away from this workspace's own configuration
        watch(&mut install, &mut progress)?;
        progress.finish();
        Ok(())
    }

    fn pip_install(&self, constraints: &str, out: &Path) -> Result<()> {
        let mut progress = Progress::start(self.title(), 0);
        command::output(Command::new("python3").args(["-m", "venv"]).arg(out))
            .context("Python 3.10 or newer with its venv module is needed")?;
        let mut install = Command::new(out.join("bin/python3"));
        install
            .args(["-m", "pip", "install", "--no-input", "--progress-bar=off"])
            .args(["--only-binary=:all:", "--constraint"])
            .arg(checkout::root().join(constraints))
            .arg(self.program.name());
        watch(&mut install, &mut progress)?;
        progress.finish();
        Ok(())
    }

    fn title(&self) -> String {
        format!("building {} {}", self.program.name(), self.version)
    }
}

/// Puts what is in a Debian package into a folder.
fn unpack(package: &str, folder: &Path) -> Result<()> {
    let apt =
        |arguments: &[&str]| command::output(Command::new("apt-get").current_dir(folder).args(arguments));
    let download = || apt(&["-qq", "download", package]);
    if download().is_err() {
        // A fresh machine has not heard of any package yet.
        apt(&["-qq", "update"])
            .and_then(|_| download())
            .with_context(|| {
                format!("{package} comes from Debian or Ubuntu, of which this machine has no packages")
            })?;
    }
    let archive = std::fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("apt-get has downloaded no {package}"))?;
    command::output(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(&archive)
            .arg(folder),
    )?;
    std::fs::remove_file(&archive).with_context(|| format!("cannot remove {}", archive.display()))
}

/// Runs a build that prints a line per step; shows its end when it fails.
fn watch(build: &mut Command, progress: &mut Progress) -> Result<()> {
    let (lines, printed) = std::io::pipe()?;
    build
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(printed);
    let mut child = build.spawn()?;
    // Our own ends of the pipe: it is read until the last one is closed.
    build.stdout(Stdio::null()).stderr(Stdio::null());
    let mut said = Vec::new();
    for line in BufReader::new(lines).lines() {
        let line = line?;
        progress.step(line.trim());
        said.push(line);
    }
    let status = child.wait()?;
    if !status.success() {
        let end = said.split_off(said.len().saturating_sub(20)).join("\n");
        bail!("the build ended with {status}:\n{end}");
    }
    Ok(())
}

fn cache() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("AYATORI_CACHE").filter(|folder| !folder.is_empty()) {
        return std::path::absolute(folder).context("AYATORI_CACHE is not a usable path");
    }
    let home = std::env::home_dir().context("neither AYATORI_CACHE nor HOME is set")?;
    Ok(home.join(".cache/ayatori"))
}

/// The version, without its `v`, at which a `go.mod` requires a module.
fn required_version(go_mod: &str, module: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        let version = (words.next() == Some(module)).then(|| words.next()).flatten()?;
        version.strip_prefix('v').map(str::to_owned)
    })
}

/// The version at which a constraints file pins a package.
fn pinned_version(constraints: &str, package: &str) -> Option<String> {
    constraints.lines().find_map(|line| {
        let (name, version) = line.split_once("==")?;
        (name == package).then(|| version.to_owned())
    })
}

/// What a program is built from, as twelve hexadecimal digits.
fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_either_form_of_require() {
        let go_mod = "module m\n\nrequire k8s.io/kubernetes v1.35.4 // indirect\n\nrequire (\n\tgo.etcd.io/bbolt v1.4.3\n)\n\
                      replace k8s.io/api => k8s.io/api v0.35.4\n";
        assert_eq!(
            required_version(go_mod, "k8s.io/kubernetes").as_deref(),
            Some("1.35.4")
        );
        assert_eq!(
            required_version(go_mod, "go.etcd.io/bbolt").as_deref(),
            Some("1.4.3")
        );
        assert_eq!(required_version(go_mod, "k8s.io/api"), None);
    }

    #[test]
    fn the_version_of_a_package_is_read_from_its_own_line() {
        let constraints = "# pinned\nopensandbox==9\nopensandbox-server==1.1.1\n";
        assert_eq!(
            pinned_version(constraints, "opensandbox-server").as_deref(),
            Some("1.1.1")
        );
        assert_eq!(pinned_version(constraints, "server"), None);
    }

    #[test]
    fn a_kubernetes_program_is_stamped_with_its_version() {
        let flags = Program::Kubelet.linker_flags("1.35.4");
        assert!(
            flags.contains("gitVersion=v1.35.4") && flags.contains("gitMinor=35"),
            "{flags}"
        );
    }

    #[test]
    fn another_go_sum_is_another_program() {
        assert_ne!(key(&["mod", "sum"]), key(&["mod", "sum2"]));
        assert_eq!(key(&["mod", "sum"]).len(), 12);
    }

    #[test]
    fn every_program_has_a_planned_place() {
        for program in Program::value_variants() {
            let build = Build::plan(*program).unwrap();
            assert!(
                build
                    .kept
                    .file_name()
                    .unwrap()
                    .to_string_lossy()
                    .starts_with(&build.version)
            );
        }
    }
}

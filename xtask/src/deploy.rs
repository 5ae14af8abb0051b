//! `cargo xtask deploy`: the charts of this checkout, installed with Helm.

use crate::{
    checkout, cluster, command,
    image::{self, ADAPTERS, Adapter, Built},
    programs::{self, Program},
};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Where everything is installed.
pub(crate) const NAMESPACE: &str = "ayatori-system";
const API_CHART: &str = "execution-api";
/// What pods may be there: the adapters need no more, and nobody should get more by their namespace.
const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce=restricted";

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Install into the cluster of $KUBECONFIG. It must be able to pull the images, so say which, of each
    /// adapter: `--set kubernetes-adapter:image.repository=… --set image.tag=…`.
    #[arg(long)]
    use_current_context: bool,
    /// Do not build and load the adapters' images: they are there, under the names given by `--set`.
    #[arg(long)]
    skip_images: bool,
    /// A value of the adapters' charts, as for Helm; of one of them, with its name before it.
    #[arg(long, value_name = "[CHART:]KEY=VALUE")]
    set: Vec<String>,
    /// A file of values of the adapters' charts, likewise.
    #[arg(long, value_name = "[CHART:]FILE")]
    values: Vec<String>,
    /// A value of the execution-api chart.
    #[arg(long, value_name = "KEY=VALUE")]
    api_set: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let target = Target::choose(args)?;
    let images = if args.use_current_context || args.skip_images {
        Vec::new()
    } else {
        image::build(&image::Args::for_local_cluster())?
    };
    target.install(API_CHART, &set(&args.api_set))?;
    target.restrict()?;
    for adapter in &ADAPTERS {
        let image = images
            .iter()
            .find(|built| built.adapter.package == adapter.package);
        target.install(adapter.chart, &values(image, adapter, args))?;
    }
    target.show()?;
    Ok(ExitCode::SUCCESS)
}

/// The values of an adapter's chart; the caller's come last and win.
fn values(image: Option<&Built>, adapter: &Adapter, args: &Args) -> Vec<String> {
    let mut values = Vec::new();
    if !args.use_current_context {
        values.extend(adapter.local_values.iter().map(|value| format!("--set={value}")));
    }
    if let Some(built) = image {
        values.extend([
            format!("--set=image.repository=localhost/{}", adapter.package),
            "--set=image.pullPolicy=Never".into(),
            // In quotes a tag of digits alone would stay a string; --set-string is Helm's way.
            format!("--set-string=image.tag={}", built.content_tag),
        ]);
    }
    let files = args.values.iter().filter_map(|file| of_chart(file, adapter));
    values.extend(files.map(|file| format!("--values={file}")));
    let single = args.set.iter().filter_map(|value| of_chart(value, adapter));
    values.extend(single.map(|value| format!("--set={value}")));
    values
}

/// What is meant for this adapter's chart, without the chart's name.
fn of_chart<'a>(value: &'a str, adapter: &Adapter) -> Option<&'a str> {
    let named = value
        .split_once(':')
        .filter(|(chart, _)| ADAPTERS.iter().any(|adapter| adapter.chart == *chart));
    match named {
        Some((chart, value)) => (chart == adapter.chart).then_some(value),
        None => Some(value),
    }
}

fn set(values: &[String]) -> Vec<String> {
    values.iter().map(|value| format!("--set={value}")).collect()
}

/// The cluster that is installed into.
struct Target {
    kubeconfig: PathBuf,
    /// Whether it is the local cluster, where nothing is anybody else's.
    is_ours: bool,
    helm: PathBuf,
    kubectl: PathBuf,
}

impl Target {
    fn choose(args: &Args) -> Result<Target> {
        let kubeconfig = if args.use_current_context {
            std::env::var_os("KUBECONFIG")
                .map(PathBuf::from)
                .context("--use-current-context needs $KUBECONFIG")?
        } else {
            cluster::ours()?.kubeconfig()
        };
        let (helm, kubectl) = (programs::path(Program::Helm)?, programs::path(Program::Kubectl)?);
        Ok(Target {
            kubeconfig,
            is_ours: !args.use_current_context,
            helm,
            kubectl,
        })
    }

    fn run(&self, program: &PathBuf, arguments: &[&str]) -> Result<String> {
        command::output(
            Command::new(program)
                .env("KUBECONFIG", &self.kubeconfig)
                .args(arguments),
        )
    }

    /// Installs or upgrades a chart and waits until it is rolled out.
    fn install(&self, chart: &str, values: &[String]) -> Result<()> {
        let folder = checkout::root().join("charts").join(chart).display().to_string();
        let mut arguments = vec!["upgrade", "--install", chart, &folder, "--namespace", NAMESPACE];
        arguments.extend(["--create-namespace", "--wait", "--timeout=3m"]);
        if self.is_ours {
            // What the charts say holds, also where somebody else has scaled or labelled since, or has applied the
            // definitions before, as tests of the API alone do.
            arguments.extend(["--take-ownership", "--force-conflicts"]);
        }
        arguments.extend(values.iter().map(String::as_str));
        eprintln!("installing {chart} …");
        if let Err(error) = self.run(&self.helm, &arguments) {
            let pods = self
                .run(&self.kubectl, &["--namespace", NAMESPACE, "get", "pods"])
                .unwrap_or_default();
            let events = self
                .run(
                    &self.kubectl,
                    &[
                        "--namespace",
                        NAMESPACE,
                        "get",
                        "events",
                        "--sort-by=.lastTimestamp",
                    ],
                )
                .unwrap_or_default();
            bail!("{error:#}\n{pods}\n{events}");
        }
        Ok(())
    }

    /// Lets the API server refuse pods that are not restricted, before there are any.
    fn restrict(&self) -> Result<()> {
        let label = ["label", "--overwrite", "namespace", NAMESPACE, POD_SECURITY];
        self.run(&self.kubectl, &label).map(drop)
    }

    fn show(&self) -> Result<()> {
        print!("{}", self.run(&self.helm, &["list", "--namespace", NAMESPACE])?);
        print!(
            "{}",
            self.run(
                &self.kubectl,
                &["--namespace", NAMESPACE, "get", "deployments,pods"]
            )?
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_values_come_after_the_images() {
        let adapter = ADAPTERS.first().unwrap();
        let built = Built {
            adapter,
            content_tag: "0123456789ab".into(),
        };
        let args = Args {
            set: vec!["replicaCount=2".into()],
            ..Args::default()
        };
        let values = values(Some(&built), adapter, &args);
        assert!(
            values.contains(&"--set-string=image.tag=0123456789ab".to_owned()),
            "{values:?}"
        );
        assert_eq!(values.last().unwrap(), "--set=replicaCount=2");
    }

    #[test]
    fn a_value_may_be_meant_for_one_adapter_alone() {
        let args = Args {
            use_current_context: true,
            set: vec![
                "kubernetes-adapter:image.repository=a.example:5000/k".into(),
                "opensandbox-adapter:image.repository=a.example:5000/o".into(),
                "image.tag=1:2".into(),
            ],
            values: vec!["opensandbox-adapter:values.yaml".into()],
            ..Args::default()
        };
        let of_each = ADAPTERS.each_ref().map(|adapter| values(None, adapter, &args));
        assert_eq!(
            of_each,
            [
                vec!["--set=image.repository=a.example:5000/k", "--set=image.tag=1:2"],
                vec![
                    "--values=values.yaml",
                    "--set=image.repository=a.example:5000/o",
                    "--set=image.tag=1:2"
                ],
            ]
        );
    }

    #[test]
    fn in_another_cluster_and_without_an_image_the_chart_decides() {
        let args = Args {
            use_current_context: true,
            ..Args::default()
        };
        for adapter in &ADAPTERS {
            assert!(values(None, adapter, &args).is_empty());
        }
    }
}

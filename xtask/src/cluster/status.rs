//! `cluster status`.

use super::{
    description::{Cluster, other_on_this_machine},
    node,
};
use anyhow::Result;
use std::io::{Write, stdout};
use std::process::ExitCode;

/// Prints every part; succeeds if all are well.
pub(crate) fn print() -> Result<ExitCode> {
    let mut out = stdout().lock();
    let Some(cluster) = Cluster::of_this_checkout()? else {
        writeln!(
            out,
            "no cluster of this checkout; `cargo xtask cluster up` starts one"
        )?;
        if let Some(other) = other_on_this_machine()?.filter(Cluster::is_alive) {
            writeln!(
                out,
                "one of another checkout runs: {}",
                other.description.state.display()
            )?;
        }
        return Ok(ExitCode::FAILURE);
    };
    let mut well = true;
    writeln!(out, "{:20} {:>8}  HEALTH", "PART", "PID")?;
    for part in cluster.description.mode.parts() {
        let process = cluster.process(part)?;
        let health = match &process {
            Some(_) => part.health(&cluster).err().map(|error| error.to_string()),
            None => Some("stopped".to_owned()),
        };
        well &= health.is_none();
        let pid = process.map_or("-".to_owned(), |process| process.pid.to_string());
        writeln!(out, "{part:20} {pid:>8}  {}", health.as_deref().unwrap_or("ok"))?;
    }
    let version = version(&cluster).unwrap_or_else(|_| "unknown: the API server does not answer".to_owned());
    writeln!(out, "version     {version}")?;
    if cluster.description.mode.has_node() {
        let ready = "--output=jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let ready = cluster
            .kubectl(&["get", "node", node::NAME, ready])
            .is_ok_and(|status| status == "True");
        well &= ready;
        writeln!(
            out,
            "node        {} {}",
            node::NAME,
            if ready { "Ready" } else { "not Ready" }
        )?;
    }
    writeln!(out, "server      {}", cluster.server())?;
    writeln!(out, "kubeconfig  {}", cluster.kubeconfig().display())?;
    writeln!(out, "logs        {}", cluster.state("logs").display())?;
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn version(cluster: &Cluster) -> Result<String> {
    let version: serde_json::Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", "/version"])?)?;
    let text = version.get("gitVersion").and_then(serde_json::Value::as_str);
    Ok(text.unwrap_or("unknown").to_owned())
}

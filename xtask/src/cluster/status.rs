//! `cluster status`.

use super::{
    description::{Cluster, other_on_this_machine},
    node,
};
use anyhow::Result;
use std::process::ExitCode;

/// Prints every part; succeeds if all are well.
pub(crate) fn print() -> Result<ExitCode> {
    let Some(cluster) = Cluster::of_this_checkout()? else {
        println!("no cluster of this checkout; `cargo xtask cluster up` starts one");
        if let Some(other) = other_on_this_machine()?.filter(Cluster::is_alive) {
            println!(
                "one of another checkout runs: {}",
                other.description.state.display()
            );
        }
        return Ok(ExitCode::FAILURE);
    };
    let mut well = true;
    println!("{:20} {:>8}  HEALTH", "PART", "PID");
    for part in cluster.description.mode.parts() {
        let process = cluster.process(part)?;
        let health = match &process {
            Some(_) => part.health(&cluster).err().map(|error| error.to_string()),
            None => Some("stopped".to_owned()),
        };
        well &= health.is_none();
        let pid = process.map_or("-".to_owned(), |process| process.pid.to_string());
        println!(
            "{part:20} {pid:>8}  {}",
            health.unwrap_or_else(|| "ok".to_owned())
        );
    }
    println!(
        "version     {}",
        version(&cluster).unwrap_or_else(|error| error.to_string())
    );
    if cluster.description.mode.has_node() {
        let ready = "--output=jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let ready = cluster
            .kubectl(&["get", "node", node::NAME, ready])
            .is_ok_and(|status| status == "True");
        well &= ready;
        println!(
            "node        {} {}",
            node::NAME,
            if ready { "Ready" } else { "not Ready" }
        );
    }
    println!("server      {}", cluster.server());
    println!("kubeconfig  {}", cluster.kubeconfig().display());
    println!("logs        {}", cluster.state("logs").display());
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

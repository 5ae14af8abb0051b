//! The flags of adapters, as the reference has them.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use clap::{Arg, ArgAction, Args, Command};

use crate::page;

const REFERENCE: &str = "docs/reference/configuration.md";

/// The one default that differs from replica to replica.
const IDENTITY: (&str, &str) = ("identity", "the host's name and a random number");

#[test]
fn every_flag_is_in_the_reference_with_its_default() -> anyhow::Result<()> {
    check::<ayatori_controller::adapter::Options>("Flags of every adapter")?;
    check::<ayatori_kubernetes_adapter::backend::Options>("Flags of the Kubernetes adapter")?;
    check::<ayatori_opensandbox_adapter::backend::Options>("Flags of the OpenSandbox adapter")
}

fn check<O: Args>(section: &str) -> anyhow::Result<()> {
    let command = O::augment_args(Command::new("adapter"));
    let real: BTreeSet<_> = command.get_arguments().filter_map(row).collect();
    let page = std::fs::read_to_string(page::root().join(REFERENCE))?;
    let (_, rest) = page
        .split_once(&format!("## {section}\n"))
        .with_context(|| format!("{REFERENCE} has no section {section}"))?;
    let table = rest.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter(|line| line.starts_with("| `--"));
    let documented: BTreeSet<_> = rows
        .filter_map(|row| row.rsplit_once(" | "))
        .map(|(flag, _)| flag.to_owned())
        .collect();
    ensure!(
        documented == real,
        "{REFERENCE}, {section}:\n{documented:#?}\nand the adapter has\n{real:#?}"
    );
    Ok(())
}

/// The first two cells of a flag's row.
fn row(flag: &Arg) -> Option<String> {
    let name = flag.get_long()?;
    let variable = flag
        .get_env()
        .map(|name| format!(" (`{}`)", name.to_string_lossy()));
    let default = match flag.get_default_values() {
        _ if name == IDENTITY.0 => IDENTITY.1.to_owned(),
        _ if matches!(flag.get_action(), ArgAction::SetTrue) => "off".to_owned(),
        [] => "none".to_owned(),
        values => {
            let values: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
            let value = values.join(",");
            match value.parse::<u64>() {
                Ok(_) => value,
                Err(_) => format!("`{value}`"),
            }
        }
    };
    Some(format!(
        "| `--{name}`{} | {default}",
        variable.unwrap_or_default()
    ))
}

//! `cargo xtask demo`, the command that the README and the tutorial begin with.

use std::path::Path;

use anyhow::{Context, ensure};
use ayatori_e2e::api::PATIENCE;
use ayatori_e2e::replica::{kubectl, xtask};
use ayatori_e2e::shell::Shell;

use crate::output;
use crate::page::{self, Block};

/// After this line it prints the commands that take back what it has created.
const REMOVAL: &str = "To remove what this has created:\n";
/// What everything is called that it has created.
const NAMES: [&str; 3] = ["demo", "demo-sandboxed", "sandboxed"];

#[tokio::test]
async fn the_demo_tells_what_the_tutorial_shows() -> anyhow::Result<()> {
    let state =
        std::env::var_os("AYATORI_CLUSTER").context("AYATORI_CLUSTER is not set: run `cargo xtask test`")?;
    let server = Path::new(&state).join("opensandbox");
    let server = server.to_str().context("AYATORI_CLUSTER is no text")?;
    let was_there = kubectl(&["get", "namespace", "demo", "--ignore-not-found"]).await?;

    let told = xtask(&["demo", "--use-current-context", "--opensandbox", server]).await?;
    if was_there.is_empty() {
        remove(&told).await?;
    }
    let pages = page::all()?;
    let tutorial = pages.iter().find(|page| page.path == "docs/tutorial.md");
    let blocks = &tutorial.context("there is no tutorial")?.blocks;
    // The output of all other commands stands directly below them.
    let shown: Vec<&Block> = blocks
        .iter()
        .filter(|b| b.language == "text" && !b.follows)
        .collect();
    ensure!(
        shown.len() == 2,
        "the tutorial shows the stories and the table: {shown:?}"
    );
    for block in shown {
        if let Some(line) = output::missing(&block.text, &told) {
            anyhow::bail!("the tutorial shows the line\n{line}\nand the demo tells\n{told}");
        }
    }
    Ok(())
}

/// Follows the demo's last words; nothing that it has created is left.
async fn remove(told: &str) -> anyhow::Result<()> {
    let (_, commands) = told
        .split_once(REMOVAL)
        .context("it does not say how to remove it")?;
    let shell = Shell::of("default").await?;
    let mut bash = shell.command("bash");
    let running = bash.args(["-ec", commands]).output();
    let ran = tokio::time::timeout(PATIENCE, running).await;
    let ran = ran.with_context(|| format!("takes too long: {commands}"))??;
    let said = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "{commands}{said}");
    let left = kubectl(&["get", "namespaces,jobclasses,kep,osep", "--output=name"]).await?;
    let is_its = |object: &&str| NAMES.iter().any(|name| object.ends_with(&format!("/{name}")));
    let left: Vec<_> = left.lines().filter(is_its).collect();
    ensure!(left.is_empty(), "the demo's last commands leave {left:?}");
    Ok(())
}

//! `cargo xtask demo`, the command that the README and the tutorial begin with.

use std::path::Path;

use anyhow::{Context, ensure};
use ayatori_e2e::replica::{kubectl, xtask};

use crate::output;
use crate::page::{self, Block};

/// What it leaves for people to look at, in an order in which it goes: the API key last, for it is needed until then.
const LEFT: [&[&str]; 6] = [
    &["delete", "ajobs", "--all", "--namespace=demo", "--timeout=2m"],
    &[
        "delete",
        "ajobs",
        "--all",
        "--namespace=demo-sandboxed",
        "--timeout=2m",
    ],
    &["delete", "jobclasses", "demo", "sandboxed", "--timeout=1m"],
    &["delete", "kep/demo", "osep/sandboxed", "--timeout=1m"],
    &["delete", "namespaces", "demo", "demo-sandboxed", "--wait=false"],
    &["delete", "secret", "opensandbox", "--namespace=ayatori-system"],
];

#[tokio::test]
async fn the_demo_tells_what_the_tutorial_shows() -> anyhow::Result<()> {
    let state =
        std::env::var_os("AYATORI_CLUSTER").context("AYATORI_CLUSTER is not set: run `cargo xtask test`")?;
    let server = Path::new(&state).join("opensandbox");
    let server = server.to_str().context("AYATORI_CLUSTER is no text")?;
    let was_there = kubectl(&["get", "namespace", "demo", "--ignore-not-found"]).await?;

    let told = xtask(&["demo", "--use-current-context", "--opensandbox", server]).await?;
    if was_there.is_empty() {
        for command in LEFT {
            kubectl(command).await?;
        }
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

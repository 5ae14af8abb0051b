//! A hundred Jobs under fire; `cargo xtask chaos` runs as many as it is told. In a file of its own, because it disturbs
//! every other test.

use anyhow::{Context, ensure};
use tokio::process::Command;

#[tokio::test]
async fn a_hundred_jobs_under_fire_start_once_each_and_tell_the_truth() -> anyhow::Result<()> {
    let mut chaos = Command::new(env!("CARGO_BIN_EXE_chaos"));
    let status = chaos.args(["--jobs", "100", "--seed", "1"]).status().await;
    let status = status.context("running the program that sets fire")?;
    ensure!(status.success(), "it ended with {status}: see above");
    Ok(())
}

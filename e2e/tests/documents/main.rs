//! Every command of the README and of `docs/` works as it stands there. What a document's blocks show is run in order,
//! in one shell, in a namespace of its own; what is not run says why in `exceptions`.

mod demo;
mod exceptions;
mod flags;
mod output;
mod page;
mod stage;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Instant;

use anyhow::ensure;
use exceptions::{EXCEPTIONS, Treatment};
use futures::{StreamExt, stream};
use page::{Block, Page};
use stage::Stage;

/// Languages of blocks that are shown and are no commands. Blocks of code are held to their files below.
const SHOWN: [&str; 4] = ["text", "json", "promql", "rust"];

fn treatment(page: &Page, block: &Block) -> Treatment {
    EXCEPTIONS
        .iter()
        .find(|(path, line, _)| *path == page.path && block.first_line().starts_with(line))
        .map_or(Treatment::Run, |(_, _, treatment)| *treatment)
}

#[test]
fn every_block_says_what_it_is_and_no_exception_is_for_nothing() -> anyhow::Result<()> {
    let mut problems = String::new();
    let pages = page::all()?;
    let known = ["sh", "yaml", "python"]
        .into_iter()
        .chain(SHOWN)
        .collect::<BTreeSet<_>>();
    let mut blocks = BTreeSet::new();
    for page in &pages {
        for block in &page.blocks {
            if !known.contains(block.language.as_str()) {
                writeln!(problems, "{}: a block of {:?}", page.path, block.language)?;
            }
            let is_run = block.language == "sh" && treatment(page, block) == Treatment::Run;
            let all = block.text.split_whitespace().any(|word| word == "--all");
            if is_run && all {
                writeln!(
                    problems,
                    "{}: is everything meant? {}",
                    page.path,
                    block.first_line()
                )?;
            }
            blocks.insert((page.path.as_str(), block.first_line()));
        }
    }
    for (path, line, treatment) in EXCEPTIONS {
        if !blocks
            .iter()
            .any(|(page, first)| page == path && first.starts_with(line))
        {
            writeln!(problems, "{path}: no such block any more: {line}")?;
        }
        if let Treatment::Elsewhere(why) | Treatment::Trial(why) = treatment {
            ensure!(!why.is_empty(), "{path}: no reason is given for {line}");
        }
    }
    ensure!(problems.is_empty(), "{problems}");
    Ok(())
}

#[test]
fn the_callers_that_are_shown_are_those_that_are_tested() -> anyhow::Result<()> {
    for (path, language, file) in [
        ("docs/how-to/use-from-ci.md", "sh", "run-job.sh"),
        ("docs/how-to/use-from-python.md", "python", "run_job.py"),
        ("docs/how-to/use-from-rust.md", "rust", "run_job.rs"),
    ] {
        let code = std::fs::read_to_string(page::root().join("e2e/callers").join(file))?;
        let pages = page::all()?;
        let shows = |page: &Page| {
            page.path == path
                && page
                    .blocks
                    .iter()
                    .any(|b| b.language == language && b.text == code)
        };
        ensure!(
            pages.iter().any(shows),
            "{path} does not show e2e/callers/{file} as it is"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_documents_works() -> anyhow::Result<()> {
    let pages = page::all()?;
    let with_commands = pages
        .iter()
        .filter(|page| page.blocks.iter().any(|block| runs(page, block)));
    // They mostly wait.
    let problems: Vec<String> = stream::iter(with_commands)
        .map(async |page| {
            let begun = Instant::now();
            let played = Stage::play(page).await;
            println!("{:5.1} s  {}", begun.elapsed().as_secs_f64(), page.path);
            played.err().map(|error| format!("{}: {error:#}", page.path))
        })
        .buffer_unordered(6)
        .filter_map(async |problem| problem)
        .collect()
        .await;
    ensure!(problems.is_empty(), "{}", problems.join("\n\n"));
    Ok(())
}

fn runs(page: &Page, block: &Block) -> bool {
    let is_code = ["sh", "yaml"].contains(&block.language.as_str());
    is_code && !matches!(treatment(page, block), Treatment::Elsewhere(_))
}

//! `cargo xtask book`: the documents as one book for the browser, none of whose links leads nowhere.

mod links;

use crate::{
    checkout, command,
    programs::{self, Program},
};
use anyhow::{Context, Result, ensure};
use links::{Page, SUMMARY};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What documents may link to besides each other, and which is held to the same rules.
const PAGES_OUTSIDE: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Check every link of the documents, and make a book of them under target/book.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only check the links.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let pages = pages()?;
    let problems = links::problems(&pages, |path| checkout::root().join(path).exists());
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    if !args.check {
        let book = checkout::target().join("book");
        bind(&pages, &book)?;
        println!("{}", book.join("html/index.html").display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Every page by its path in the checkout.
fn pages() -> Result<BTreeMap<PathBuf, Page>> {
    let mut paths: Vec<PathBuf> = PAGES_OUTSIDE.iter().map(PathBuf::from).collect();
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(checkout::root().join(&folder));
        for entry in entries.with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(checkout::root().join(&path));
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        Ok((path, Page::parse(text)))
    };
    paths.into_iter().map(read).collect()
}

/// Makes the book. What its pages link to outside of it, they link to in the repository.
fn bind(pages: &BTreeMap<PathBuf, Page>, book: &Path) -> Result<()> {
    if book.exists() {
        fs::remove_dir_all(book).with_context(|| format!("cannot remove {}", book.display()))?;
    }
    for (path, page) in pages.iter().filter(|(path, _)| path.starts_with(links::FOLDER)) {
        let text = page.with_links_outside_at(path, env!("CARGO_PKG_REPOSITORY"));
        let bound = place_of(&book.join(path))?;
        fs::write(&bound, text).with_context(|| format!("cannot write {}", bound.display()))?;
        // Pictures, for the most part.
        let others = page
            .targets(path)
            .filter(|to| to.starts_with(links::FOLDER) && !pages.contains_key(to));
        for other in others.filter(|to| checkout::root().join(to).is_file()) {
            let bound = place_of(&book.join(&other))?;
            fs::copy(checkout::root().join(&other), &bound)
                .with_context(|| format!("cannot copy {}", other.display()))?;
        }
    }
    let settings = book.join("book.toml");
    fs::copy(checkout::root().join("book.toml"), settings).context("cannot copy book.toml")?;
    let mut mdbook = Command::new(programs::path(Program::Mdbook)?);
    command::output(
        mdbook
            .arg("build")
            .arg("--dest-dir")
            .arg(book.join("html"))
            .arg(book),
    )
    .with_context(|| format!("mdbook cannot make a book of docs/{SUMMARY}"))
    .map(drop)
}

/// This path, in a folder that exists.
fn place_of(path: &Path) -> Result<PathBuf> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_of_the_documents_leads_somewhere_and_every_page_is_in_the_summary() {
        let problems = links::problems(&pages().unwrap(), |path| checkout::root().join(path).exists());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}

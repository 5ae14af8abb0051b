//! A document, and the blocks in it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// One document.
pub(crate) struct Page {
    /// Its path in the repository.
    pub(crate) path: String,
    pub(crate) blocks: Vec<Block>,
}

/// A fenced block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// What it says it is; the first word after the fence.
    pub(crate) language: String,
    pub(crate) text: String,
    /// Whether it follows the block before it with nothing between them.
    pub(crate) follows: bool,
}

impl Block {
    /// The line that it is known by.
    pub(crate) fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }

    /// The name of the file that it says it is: in its first line, a comment.
    pub(crate) fn file(&self) -> Option<&str> {
        let name = self.first_line().strip_prefix("# ")?.split(' ').next()?;
        name.ends_with(".yaml").then_some(name)
    }
}

/// Where the repository lies.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The README and all that lies under `docs`.
pub(crate) fn all() -> anyhow::Result<Vec<Page>> {
    let mut paths = vec!["README.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder))? {
            let entry = entry?;
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if path.ends_with(".md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.into_iter().map(Page::read).collect()
}

impl Page {
    fn read(path: String) -> anyhow::Result<Page> {
        let text = std::fs::read_to_string(root().join(&path)).with_context(|| format!("reading {path}"))?;
        let blocks = blocks(&text);
        Ok(Page { path, blocks })
    }
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let mut adjacent = false;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let info = match kind {
                    CodeBlockKind::Fenced(info) => info.into_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                open = Some(Block {
                    language: info.split([' ', ',']).next().unwrap_or_default().to_owned(),
                    text: String::new(),
                    follows: adjacent,
                });
            }
            Event::End(TagEnd::CodeBlock) => {
                blocks.extend(open.take());
                adjacent = true;
            }
            Event::Text(words) => match &mut open {
                Some(block) => block.text.push_str(&words),
                None => adjacent = false,
            },
            _ => {}
        }
    }
    blocks
}

#[test]
fn blocks_are_found_in_lists_too_and_know_what_they_follow() {
    let found =
        blocks("a\n\n```sh\none\n```\n\n```text\ntwo\n```\n\n1. b\n\n   ```sh run\n   three\n   ```\n");
    let seen: Vec<_> = found
        .iter()
        .map(|b| (b.language.as_str(), b.text.as_str(), b.follows))
        .collect();
    assert_eq!(
        seen,
        [
            ("sh", "one\n", false),
            ("text", "two\n", true),
            ("sh", "three\n", false)
        ]
    );
}

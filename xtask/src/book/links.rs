//! Where the pages link to.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// The folder of the pages of the book.
pub(super) const FOLDER: &str = "docs";
/// The page that lists all others, in that folder.
pub(super) const SUMMARY: &str = "SUMMARY.md";

/// One document.
pub(super) struct Page {
    text: String,
    links: Vec<Link>,
    anchors: BTreeSet<String>,
}

struct Link {
    target: String,
    /// Where the whole link stands in the text.
    place: Range<usize>,
}

/// What a link leads to in the checkout.
struct Target {
    path: PathBuf,
    anchor: Option<String>,
}

impl Page {
    pub(super) fn parse(text: String) -> Page {
        let mut links = Vec::new();
        let mut anchors = BTreeSet::new();
        let mut heading: Option<String> = None;
        for (event, place) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => links.push(Link {
                    target: dest_url.into_string(),
                    place,
                }),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap_or_default());
                    let repeated = (1..).map(|n| format!("{anchor}-{n}"));
                    let free = std::iter::once(anchor.clone()).chain(repeated);
                    anchors.extend(free.into_iter().find(|anchor| !anchors.contains(anchor)));
                }
                Event::Text(words) | Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                _ => {}
            }
        }
        Page { text, links, anchors }
    }

    /// What it links to in the checkout.
    pub(super) fn targets(&self, own: &Path) -> impl Iterator<Item = PathBuf> {
        let resolved = self.links.iter().map(|link| resolve(own, &link.target));
        resolved.flatten().map(|target| target.path)
    }

    /// The text, whose links to what is not in the book lead into the repository.
    pub(super) fn with_links_outside_at(&self, own: &Path, repository: &str) -> String {
        let mut text = self.text.clone();
        for Link { target, place } in self.links.iter().rev() {
            let Some(Target { path, .. }) = resolve(own, target) else {
                continue;
            };
            let Some(link) = self.text.get(place.clone()).filter(|_| !path.starts_with(FOLDER)) else {
                continue;
            };
            let anchor = target.split_once('#').map(|(_, anchor)| format!("#{anchor}"));
            let url = format!(
                "{repository}/blob/main/{}{}",
                path.display(),
                anchor.unwrap_or_default()
            );
            text.replace_range(place.clone(), &link.replace(target.as_str(), &url));
        }
        text
    }
}

/// What is wrong with the links of the pages, and which page the summary lacks.
pub(super) fn problems(pages: &BTreeMap<PathBuf, Page>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    let mut listed = BTreeSet::new();
    let summary = Path::new(FOLDER).join(SUMMARY);
    for (own, page) in pages {
        for Link { target, .. } in &page.links {
            let Some(Target { path, anchor }) = resolve(own, target) else {
                continue;
            };
            if !exists(&path) {
                problems.push(format!("{}: no such file: {target}", own.display()));
            } else if let (Some(anchor), Some(page)) = (anchor, pages.get(&path))
                && !page.anchors.contains(&anchor)
            {
                problems.push(format!("{}: no such heading: {target}", own.display()));
            }
            if *own == summary {
                listed.insert(path);
            }
        }
    }
    for page in pages.keys().filter(|page| page.starts_with(FOLDER)) {
        if *page != summary && !listed.contains(page) {
            problems.push(format!("{}: {} is not listed", summary.display(), page.display()));
        }
    }
    problems
}

/// What a link of a page leads to in the checkout; nothing for what leads out of it.
fn resolve(own: &Path, target: &str) -> Option<Target> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (target, None),
    };
    let mut resolved = match path {
        "" => {
            return Some(Target {
                path: own.to_owned(),
                anchor,
            });
        }
        _ => own.parent()?.to_owned(),
    };
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            Component::Normal(name) => resolved.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Some(Target {
        path: resolved,
        anchor,
    })
}

/// How both mdBook and code forges call the place of a heading.
fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(texts: &[(&str, &str)]) -> BTreeMap<PathBuf, Page> {
        let parse = |(path, text): &(&str, &str)| (PathBuf::from(path), Page::parse((*text).to_owned()));
        texts.iter().map(parse).collect()
    }

    #[test]
    fn a_link_needs_its_file_and_its_heading_and_a_page_its_line_in_the_summary() {
        let pages = pages(&[
            ("docs/SUMMARY.md", "[A](a.md)"),
            (
                "docs/a.md",
                "# What's `new`?\n[b](how/b.md#yes) [me](#whats-new) [x](../gone.rs) [y](../README.md#no)",
            ),
            (
                "docs/how/b.md",
                "## Yes\n[a](../a.md#whats-new) [out](https://example.com/#no)",
            ),
            ("README.md", ""),
        ]);
        assert_eq!(
            problems(&pages, |path| path != Path::new("gone.rs")),
            [
                "docs/a.md: no such file: ../gone.rs",
                "docs/a.md: no such heading: ../README.md#no",
                "docs/SUMMARY.md: docs/how/b.md is not listed",
            ]
        );
    }

    #[test]
    fn in_the_book_only_links_out_of_it_are_changed() {
        let text = "[in](b.md), [`out`](../../examples/a.yaml#L3) and [far](https://example.com)";
        let page = Page::parse(text.to_owned());
        let targets: Vec<_> = page.targets(Path::new("docs/how/a.md")).collect();
        assert_eq!(targets, ["docs/how/b.md", "examples/a.yaml"].map(PathBuf::from));
        assert_eq!(
            page.with_links_outside_at(Path::new("docs/how/a.md"), "https://forge.example/x"),
            "[in](b.md), [`out`](https://forge.example/x/blob/main/examples/a.yaml#L3) and [far](https://example.com)"
        );
    }
}

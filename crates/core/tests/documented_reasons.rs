//! Every reason that the code gives has its place in `docs/reference/conditions.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What a reason follows in the code, at most one plain argument before it. Those that are put together
/// (`{kind}NotFound`) or chosen before they are given are not found this way.
const MARKERS: [&str; 8] = [
    "Why::new(",
    "Statement::holds(",
    "Statement::fails(",
    "result(",
    "failed(",
    "gone(",
    "StopReason::",
    "reason: ",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The sources of a crate, without its tests and what is only there for tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() && name != "testing" {
            sources(&path, found)?;
        } else if name.ends_with(".rs") && !["tests.rs", "fixture.rs"].contains(&name.as_str()) {
            found.push(path);
        }
    }
    Ok(())
}

/// The words of a source that are given as reasons.
fn reasons(source: &str) -> impl Iterator<Item = &str> {
    let code = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    MARKERS.iter().flat_map(move |marker| {
        code.split(marker).skip(1).filter_map(|rest| {
            let (before, literal) = rest.split_once('"')?;
            let plain = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_:,=>".contains(c);
            let (word, _) = literal.split_once('"')?;
            let is_word = word.starts_with(|c: char| c.is_ascii_uppercase())
                && word.chars().all(|c| c.is_ascii_alphanumeric());
            (before.chars().all(plain) && before.matches(',').count() <= 1 && is_word).then_some(word)
        })
    })
}

#[test]
fn every_reason_in_the_code_is_explained_in_the_reference() -> Result<(), Box<dyn std::error::Error>> {
    let mut files = Vec::new();
    for member in fs::read_dir(root().join("crates"))? {
        sources(&member?.path().join("src"), &mut files)?;
    }
    let mut given = BTreeMap::new();
    for file in &files {
        let source = fs::read_to_string(file)?;
        given.extend(reasons(&source).map(|word| (word.to_owned(), file.clone())));
    }
    // Else the search has gone blind.
    for word in [
        "JobClassNotFound",
        "NonZeroExit",
        "NotAccepted",
        "CancelRequested",
        "BackendRejected",
    ] {
        assert!(given.contains_key(word), "{word} is not found any more");
    }
    let reference = fs::read_to_string(root().join("docs/reference/conditions.md"))?;
    let missing: Vec<_> = given
        .iter()
        .filter(|(word, _)| {
            !reference.contains(&format!("`{word}`")) && !reference.contains(&format!("/{word}`"))
        })
        .map(|(word, file)| format!("{word} ({})", file.display()))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/reference/conditions.md has to say cause and remedy of: {}",
        missing.join(", ")
    );
    Ok(())
}

//! `SHA256SUMS`, as `sha256sum --check` reads it.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

pub(crate) const FILE: &str = "SHA256SUMS";

/// Writes the sums of all files in a folder, by name.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().display().to_string();
        let content = fs::read(entry.path()).with_context(|| format!("cannot read {name}"))?;
        lines.push((name, hex(&Sha256::digest(content))));
    }
    lines.sort();
    let text: String = lines
        .iter()
        .map(|(name, sum)| format!("{sum}  {name}\n"))
        .collect();
    fs::write(folder.join(FILE), text).with_context(|| format!("cannot write {FILE}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

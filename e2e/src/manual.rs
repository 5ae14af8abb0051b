//! The commands that the documentation gives people, as they stand there.

use std::path::Path;

use anyhow::{Context, ensure};

/// The shell blocks of the section with this heading, of a page under `docs/`, one after the other.
pub fn commands(page: &str, heading: &str) -> anyhow::Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut commands = String::new();
    let (mut in_section, mut in_block) = (false, false);
    for line in text.lines() {
        match line {
            "```" => in_block = false,
            "```sh" => in_block = true,
            _ if in_block && in_section => {
                commands.push_str(line);
                commands.push('\n');
            }
            _ if !in_block && line.starts_with('#') => in_section = line == heading,
            _ => {}
        }
    }
    ensure!(!commands.is_empty(), "{page} gives no commands under `{heading}`");
    Ok(commands)
}

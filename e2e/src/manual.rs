//! The commands that the documentation gives people, as they stand there.

use std::path::Path;

use anyhow::{Context, ensure};

/// The shell blocks of the section with this heading, of a page under `docs/`, one after the other.
pub fn commands(page: &str, heading: &str) -> anyhow::Result<String> {
    let blocks = blocks(page, heading)?.into_iter();
    let commands: String = blocks
        .filter(|(language, _)| *language == Language::Shell)
        .map(|(_, text)| text)
        .collect();
    ensure!(!commands.is_empty(), "{page} gives no commands under `{heading}`");
    Ok(commands)
}

/// What a reader of the section does: the same, and in between he applies what it shows as YAML.
pub fn steps(page: &str, heading: &str) -> anyhow::Result<String> {
    let steps: String = blocks(page, heading)?
        .into_iter()
        .map(|(language, text)| match language {
            Language::Shell => text,
            Language::Yaml => format!("kubectl apply --filename - <<'YAML'\n{text}YAML\n"),
        })
        .collect();
    ensure!(!steps.is_empty(), "{page} shows nothing to do under `{heading}`");
    Ok(steps)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Shell,
    Yaml,
}

fn blocks(page: &str, heading: &str) -> anyhow::Result<Vec<(Language, String)>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut blocks = Vec::new();
    let (mut in_section, mut open) = (false, None::<(Option<Language>, String)>);
    for line in text.lines() {
        match (&mut open, line) {
            (Some(_), "```") => {
                if let Some((Some(language), text)) = open.take().filter(|_| in_section) {
                    blocks.push((language, text));
                }
            }
            (Some((_, text)), line) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, "```sh") => open = Some((Some(Language::Shell), String::new())),
            (None, "```yaml") => open = Some((Some(Language::Yaml), String::new())),
            (None, line) if line.starts_with("```") => open = Some((None, String::new())),
            (None, line) if line.starts_with('#') => in_section = line == heading,
            (None, _) => {}
        }
    }
    Ok(blocks)
}

//! The documents, followed to the letter by somebody who has nothing else.

use std::os::unix::fs::symlink;
use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_e2e::charts;
use ayatori_e2e::manual;
use ayatori_e2e::opensandbox::OpenSandbox;
use ayatori_e2e::shell::Shell;
use ayatori_e2e::world::IMAGE;
use serde_json::Value;

use crate::releases::Release;

/// The page with what is the same for both adapters.
pub(crate) const INSTALL: &str = "how-to/install.md";
/// That of the other adapter.
pub(crate) const OPENSANDBOX: &str = "how-to/opensandbox.md";

/// How long the commands of one section may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A certificate as a document shows it.
const CERTIFICATE: &str = "    -----BEGIN CERTIFICATE-----\n    …\n    -----END CERTIFICATE-----\n";

/// The documents, the words in them that only their reader knows, and a terminal.
pub(crate) struct Book {
    shell: Shell,
    words: Vec<(String, String)>,
}

impl Book {
    /// Where this namespace is the current one. Images are called what they were called when all this was installed.
    pub(crate) async fn open(
        namespace: &str,
        releases: &[Release],
        server: &OpenSandbox,
    ) -> anyhow::Result<Self> {
        let shell = Shell::of(namespace).await?;
        symlink(charts::folder(""), shell.folder().join("charts"))?;
        symlink(charts::folder("../examples"), shell.folder().join("examples"))?;
        shell.write("FILE", &server.api_key)?;
        let indented = server.authority.lines().map(|line| format!("    {line}\n"));
        let mut words = vec![
            ("registry.example/busybox:1".to_owned(), IMAGE.to_owned()),
            ("https://opensandbox.example".to_owned(), server.endpoint.clone()),
            (CERTIFICATE.to_owned(), indented.collect()),
            // So that kubectl itself says what does not go, before the test is tired of waiting.
            ("--timeout=15m".to_owned(), "--timeout=4m".to_owned()),
        ];
        for release in releases.iter().filter(|release| release.is_adapter()) {
            words.push(image(release)?);
        }
        Ok(Self { shell, words })
    }

    /// The same in the next version: with this word after each of those.
    pub(crate) fn revise(&mut self, revisions: &[(&str, &str)]) {
        for (word, more) in revisions {
            self.words.push(((*word).to_owned(), format!("{word} {more}")));
        }
    }

    /// Does what a section says.
    pub(crate) async fn follow(&self, page: &str, heading: &str) -> anyhow::Result<()> {
        let run = self.run(&manual::steps(page, heading)?).await;
        run.with_context(|| format!("{page}, {heading}"))
    }

    /// Installs everything, or upgrades it.
    pub(crate) async fn install(&self) -> anyhow::Result<()> {
        self.follow(INSTALL, "## Install").await?;
        self.follow(OPENSANDBOX, "## Install the adapter").await
    }

    /// Runs the one command of the section on removal that begins like this.
    pub(crate) async fn remove(&self, begins: &str) -> anyhow::Result<()> {
        let commands = manual::commands(INSTALL, "## Remove")?;
        let command = commands.lines().find(|line| line.starts_with(begins));
        let command = command.with_context(|| format!("{INSTALL} has no command {begins} …"))?;
        self.run(command).await
    }

    /// Runs commands as a document shows them.
    pub(crate) async fn run(&self, commands: &str) -> anyhow::Result<()> {
        let here = self
            .words
            .iter()
            .fold(commands.to_owned(), |text, (word, by)| text.replace(word, by));
        let mut bash = self.shell.command("bash");
        let running = bash.args(["-euxc", &here]).output();
        let ran = tokio::time::timeout(PATIENCE, running).await;
        let ran = ran.with_context(|| format!("this takes too long:\n{here}"))??;
        let said = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "this fails:\n{here}\nand says:\n{said}");
        Ok(())
    }
}

/// How a document gives an adapter its image, and how it is given here.
fn image(release: &Release) -> anyhow::Result<(String, String)> {
    let given = |key: &str| {
        let value = release.values.pointer(key).and_then(Value::as_str);
        value.with_context(|| format!("{} was given no {key}", release.chart))
    };
    Ok((
        format!(
            "image.repository=registry.example/ayatori-{} --set image.tag=0.1.0",
            release.chart
        ),
        format!(
            "image.repository={} --set-string image.tag={}",
            given("/image/repository")?,
            given("/image/tag")?
        ),
    ))
}

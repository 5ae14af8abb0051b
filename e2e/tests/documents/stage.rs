//! What a document takes for granted, and its commands run in order.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use ayatori_e2e::sandboxes::with_sandboxes;
use ayatori_e2e::shell::Shell;
use ayatori_e2e::world::{IMAGE, World, with_world};
use serde_json::json;

use crate::exceptions::Treatment;
use crate::page::{self, Block, Page};
use crate::{output, runs, treatment};

/// How long all commands of a document may take.
const PATIENCE: Duration = Duration::from_secs(240);
/// Stands between what two blocks print.
const CUT: &str = "\u{1e}";

/// A document's part of the cluster.
pub(crate) struct Stage<'a> {
    page: &'a Page,
    shell: Shell,
    /// Words of the document, and what stands for them here.
    words: Vec<(&'static str, String)>,
    namespace: String,
    /// A name that nothing has.
    new_name: String,
}

impl Stage<'_> {
    /// Runs everything that a document shows; fails with the first command that does not do as it says.
    pub(crate) async fn play(page: &Page) -> anyhow::Result<()> {
        // Whoever reads these has an OpenSandbox server.
        if ["docs/tutorial.md", "docs/how-to/opensandbox.md"].contains(&page.path.as_str()) {
            with_sandboxes(async |sandboxes| {
                let class = sandboxes.class.clone();
                Stage::play_in(page, &sandboxes.world, Some(class)).await
            })
            .await
        } else {
            with_world(async |world: World| Stage::play_in(page, &world, None).await).await
        }
    }

    async fn play_in(page: &Page, world: &World, sandboxed: Option<String>) -> anyhow::Result<()> {
        let shell = Shell::of(&world.namespace).await?;
        for (path, name) in [
            ("charts", "charts"),
            ("examples", "examples"),
            ("e2e/callers/run-job.sh", "run-job.sh"),
        ] {
            symlink(page::root().join(path), shell.folder().join(name))?;
        }
        let ready: String = sandboxed.iter().chain([&world.class]).map(ready).collect();
        let stage = Stage {
            page,
            shell,
            words: words(page, world, sandboxed),
            namespace: world.namespace.clone(),
            new_name: format!("{}-new", world.namespace),
        };
        stage.write_files()?;
        stage.try_yaml().await?;
        stage.run(&(ready + &scene(page, world))).await
    }

    /// The text with the words of this place.
    fn here(&self, text: &str) -> String {
        let mut here = text.replace("registry.example/busybox:1", IMAGE);
        for (word, by) in &self.words {
            here = replace_word(&here, word, by);
        }
        here
    }

    /// The text with names of classes that nothing has.
    fn shown(&self, text: &str) -> String {
        let text = replace_word(text, "team-a", &self.namespace);
        ["rootless", "sandboxed", "sandboxed-warm"]
            .iter()
            .fold(text, |text, name| replace_word(&text, name, &self.new_name))
    }

    fn blocks(&self, language: &str) -> impl Iterator<Item = (&Block, Treatment)> {
        let of_language = self
            .page
            .blocks
            .iter()
            .filter(move |block| block.language == language);
        of_language
            .filter(|block| runs(self.page, block))
            .map(|block| (block, treatment(self.page, block)))
    }

    /// Blocks that say which file they are are files for the commands.
    fn write_files(&self) -> anyhow::Result<()> {
        for (block, _) in self.blocks("yaml") {
            if let Some(file) = block.file() {
                self.shell.write(file, &self.here(&block.text))?;
            }
        }
        Ok(())
    }

    /// The API server would take the objects that are shown, and the charts the values.
    async fn try_yaml(&self) -> anyhow::Result<()> {
        for (block, treatment) in self.blocks("yaml") {
            let file = self.shell.write(".block.yaml", &self.shown(&block.text))?;
            let mut command = match treatment {
                Treatment::Values(chart) => {
                    let mut helm = self.shell.command("helm");
                    helm.args(["template", chart])
                        .arg(page::root().join("charts").join(chart))
                        .arg("--values");
                    helm
                }
                _ => {
                    let mut kubectl = self.shell.command("kubectl");
                    kubectl.args(["create", "--dry-run=server", "--filename"]);
                    kubectl
                }
            };
            let tried = command.arg(file).output().await?;
            let said = String::from_utf8_lossy(&tried.stderr);
            ensure!(tried.status.success(), "{}\n{said}", block.text);
        }
        Ok(())
    }

    /// Runs the commands in one shell, as a person does who goes through the page.
    async fn run(&self, scene: &str) -> anyhow::Result<()> {
        let blocks: Vec<_> = self.blocks("sh").collect();
        let mut script = format!("set -eu\n{scene}\n");
        for (block, treatment) in &blocks {
            let commands = self.here(&block.text);
            let _ = match treatment {
                Treatment::Trial(_) => writeln!(
                    script,
                    "echo '{CUT}'\nkubectl() {{ command kubectl \"$@\" --dry-run=server; }}\n{commands}\nunset -f kubectl"
                ),
                Treatment::FindsNothing => writeln!(script, "echo '{CUT}'\n{{ {commands}\n}} || test $? = 1"),
                Treatment::Refused => writeln!(script, "echo '{CUT}'\n! {{ {commands}\n}}"),
                _ => writeln!(script, "echo '{CUT}'\n{commands}"),
            };
        }
        let script = format!("exec 2>&1\n{script}");
        let running = self.shell.command("bash").args(["-c", &script]).output();
        let ran = tokio::time::timeout(PATIENCE, running).await;
        let ran = ran.with_context(|| format!("not within {} s:\n{script}", PATIENCE.as_secs()))??;
        let printed = String::from_utf8_lossy(&ran.stdout);
        let mut printed = printed.split(&format!("{CUT}\n")).collect::<Vec<_>>().into_iter();
        let before = printed.next().unwrap_or_default();
        let printed: Vec<_> = printed.collect();
        if !ran.status.success() {
            match blocks.get(printed.len().wrapping_sub(1)) {
                Some((block, _)) => bail!("this fails:\n{}\n{}", block.text, printed.last().unwrap_or(&"")),
                None => bail!("what the page takes for granted cannot be had: {before}"),
            }
        }
        for ((block, treatment), printed) in blocks.iter().zip(printed) {
            let Some(shown) = self.shown_after(block) else {
                continue;
            };
            let shown = self.here(&shown.text);
            if *treatment == Treatment::Refused {
                // One long line, which the document breaks.
                ensure!(
                    output::one_line(printed).contains(&output::one_line(&shown)),
                    "{}\nprints\n{printed}",
                    block.text
                );
            } else if let Some(line) = output::missing(&shown, printed) {
                bail!("{}\nshows the line\n{line}\nand prints\n{printed}", block.text);
            }
        }
        Ok(())
    }

    /// The output that stands directly below a block.
    fn shown_after(&self, block: &Block) -> Option<&Block> {
        let mut blocks = self
            .page
            .blocks
            .iter()
            .skip_while(|other| !std::ptr::eq(*other, block));
        blocks
            .nth(1)
            .filter(|next| next.follows && next.language == "text")
    }
}

/// What stands in a document for names that its readers know.
fn words(page: &Page, world: &World, sandboxed: Option<String>) -> Vec<(&'static str, String)> {
    let (namespace, class) = (world.namespace.clone(), world.class.clone());
    let team = match page.path.as_str() {
        INSTALL => format!("{namespace}-team"), // it creates that namespace
        _ => namespace.clone(),
    };
    let mut words = vec![
        ("team-a", team),
        ("NAMESPACE", namespace),
        ("rootless", class.clone()),
        ("demo", class.clone()),
        ("registry.example/team/builder:1.4", IMAGE.to_owned()),
    ];
    if let Some(sandboxed) = sandboxed {
        words.push(("sandboxed", sandboxed));
    }
    // Runbooks say which kind of object it is that they call NAME.
    match page.path.as_str() {
        "docs/how-to/opensandbox.md" => {
            words.push(("opensandbox", class));
            words.push(("FILE", "/etc/hostname".to_owned()));
        }
        "docs/runbooks/drain-an-adapter.md" | "docs/runbooks/ambiguous-default-class.md" => {
            words.push(("NAME", class));
        }
        path if path.starts_with("docs/runbooks/") => words.push(("NAME", "build".to_owned())),
        _ => {}
    }
    words
}

fn ready(class: &String) -> String {
    format!("kubectl wait --for=condition=Ready jobclass/{class} --timeout=2m\n")
}

/// What a document takes for granted, as commands.
fn scene(page: &Page, world: &World) -> String {
    let World { namespace, class, .. } = world;
    let default = format!(
        "kubectl annotate namespace {namespace} execution.ayatori.ddupan.top/default-job-class={class}\n"
    );
    let more = match page.path.as_str() {
        "docs/tutorial.md" => {
            let allow = format!("kubectl label namespace {namespace} demo.ayatori.ddupan.top/allowed=true\n");
            let policy = json!({ "spec": {
                "allowedNamespaces": { "matchLabels": { "demo.ayatori.ddupan.top/allowed": "true" } },
                "resources": {
                    "defaults": {
                        "requests": { "cpu": "50m", "memory": "16Mi" },
                        "limits": { "cpu": "1", "memory": "64Mi" },
                    },
                    "maximum": { "limits": { "cpu": "2", "memory": "1Gi" } },
                },
            } });
            return default
                + &allow
                + &format!("kubectl patch jobclass {class} --type=merge --patch '{policy}'\n");
        }
        INSTALL => {
            let team = format!("{namespace}-team");
            return default
                + &format!("trap 'kubectl delete namespace {team} --wait=false --ignore-not-found' EXIT\n");
        }
        "docs/how-to/use-from-kubectl.md" => {
            "kubectl create secret generic release --from-literal=token=secret"
        }
        "docs/how-to/cancel-and-deadlines.md"
        | "docs/runbooks/result-unknown.md"
        | "docs/runbooks/stuck-deletion.md"
        | "docs/runbooks/restore-etcd.md"
        | "docs/reference/traces.md" => RUNNING,
        _ => "",
    };
    default + more
}

const INSTALL: &str = "docs/how-to/install.md";

/// A Job that runs.
const RUNNING: &str = r#"
kubectl create --filename - <<'YAML'
apiVersion: execution.ayatori.ddupan.top/v1alpha1
kind: Job
metadata: {name: build}
spec: {image: "localhost/busybox:1", command: [sh, -c, "trap 'exit 143' TERM; sleep 600 & wait"]}
YAML
kubectl wait --for=condition=Started ajob/build --timeout=2m
"#;

/// Replaces a word where it is not a part of another.
fn replace_word(text: &str, word: &str, by: &str) -> String {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "-_.".contains(c));
    let mut replaced = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(word) {
        replaced.push_str(before);
        let whole = !is_part(replaced.chars().next_back()) && !is_part(after.chars().next());
        replaced.push_str(if whole { by } else { word });
        rest = after;
    }
    replaced + rest
}

#[test]
fn only_whole_words_are_replaced() {
    assert_eq!(
        replace_word("NAME RENAME NAMES ajob/NAME", "NAME", "x"),
        "x RENAME NAMES ajob/x"
    );
}

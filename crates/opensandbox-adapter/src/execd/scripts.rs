//! The scripts in a sandbox that waits for its command: the one that waits, the one that runs the command unless
//! something came first, and the one that stops it. What they write is read by [`super::inside`].

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ayatori_core::execution::Why;
use secrecy::{ExposeSecret, SecretString};

use crate::environment::Environment;
use crate::request::unsupported;
use crate::wire::RunCommand;
use crate::wrapper::{LAUNCH, NAME, script};

const HOLD: &str = include_str!("hold.sh");
const RUN: &str = include_str!("run.sh");
const STOP: &str = include_str!("stop.sh");

/// What the names of our own variables begin with.
const OURS: &str = "ayatori_";

/// The longest variable that Linux lets a process have, in bytes, with the NUL at its end (`MAX_ARG_STRLEN`).
const LONGEST: usize = 128 * 1024;

/// What a sandbox calls itself while its container is up. A container that is started again is another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldId(String);

impl HoldId {
    /// The id in a text from outside, which is a UUID. It becomes part of paths.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let groups: Vec<_> = text.split('-').map(str::len).collect();
        let hex = |c: char| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c);
        (groups == [8, 4, 4, 4, 12] && text.chars().all(hex)).then(|| Self(text.to_owned()))
    }

    /// A file of what lasts in the sandbox.
    pub(super) fn file(&self, name: &str) -> String {
        format!("/tmp/.ayatori-{self}/{name}")
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The file in which a sandbox with this attempt in its metadata says who it is.
pub(super) fn named(attempt: &str) -> String {
    format!("/tmp/.ayatori-{attempt}")
}

/// The entrypoint of a sandbox that waits that long.
pub(crate) fn hold(attempt: &str, time: Duration) -> Vec<SecretString> {
    [
        "/bin/sh".to_owned(),
        "-c".to_owned(),
        script(&[HOLD]),
        NAME.to_owned(),
        attempt.to_owned(),
        time.as_secs().to_string(),
    ]
    .map(SecretString::from)
    .into()
}

/// The request to run the command in the sandbox that calls itself so, unless something came first.
pub(crate) fn run(hold: &HoldId, working_dir: Option<&str>, environment: Environment) -> RunCommand {
    let mut envs: BTreeMap<_, _> = environment.variables.into_iter().collect();
    let mut ours = |name: String, value: SecretString| envs.insert(format!("{OURS}{name}"), value);
    ours("id".to_owned(), hold.to_string().into());
    ours("directory".to_owned(), working_dir.unwrap_or_default().into());
    ours("words".to_owned(), environment.command.len().to_string().into());
    for (number, word) in (1..).zip(environment.command) {
        ours(word_name(number), word);
    }
    RunCommand {
        command: script(&[RUN, LAUNCH]),
        background: true,
        envs,
    }
}

/// The request to stop what the sandbox that calls itself so runs or may come to run.
pub(crate) fn stop(hold: &HoldId) -> RunCommand {
    RunCommand {
        command: script(&[STOP]),
        background: true,
        envs: [(format!("{OURS}id"), hold.to_string().into())].into(),
    }
}

/// What of an environment cannot be handed over in this way.
pub(crate) fn check(environment: &Environment) -> Result<(), Why> {
    if let Some((name, _)) = environment
        .variables
        .iter()
        .find(|(name, _)| name.starts_with(OURS))
    {
        return Err(Why::new(
            "ReservedEnvName",
            format!(
                "the environment variable {name:?} has a name that the adapter uses itself; give it another name"
            ),
        ));
    }
    for (number, word) in (1..).zip(&environment.command) {
        // With `=` and NUL.
        let name = OURS
            .len()
            .saturating_add(word_name(number).len())
            .saturating_add(2);
        if name.saturating_add(word.expose_secret().len()) > LONGEST {
            return Err(unsupported(&format!(
                "word {number} of the command is longer than {LONGEST} bytes with its name, which Linux does not take; \
                 hand it over as a file"
            )));
        }
    }
    Ok(())
}

fn word_name(number: usize) -> String {
    format!("word_{number}")
}

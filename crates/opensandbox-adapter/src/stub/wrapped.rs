//! What the script around a command does, without running it.

use jiff::{SignedDuration, Timestamp};

use super::Script;

/// The script of a sandbox that comes up at this time. In an entrypoint without the wrapper all words count, else
/// those of the command.
pub(super) fn direct(entrypoint: &[String], at: Timestamp) -> Script {
    let Some(wrapped) = Wrapped::of(entrypoint) else {
        return Script::of_words(entrypoint);
    };
    if at.as_second() < wrapped.earliest {
        return wrapped.refuses("no clock");
    }
    if at.as_second() >= wrapped.latest {
        return wrapped.refuses("too late");
    }
    wrapped.starts()
}

/// An entrypoint with the wrapper.
struct Wrapped<'a> {
    /// What its lines begin with.
    mark: String,
    earliest: i64,
    latest: i64,
    command: &'a [String],
}

impl<'a> Wrapped<'a> {
    fn of(entrypoint: &'a [String]) -> Option<Self> {
        let [_, _, _, name, attempt, earliest, latest, _, command @ ..] = entrypoint else {
            return None;
        };
        Some(Self {
            mark: format!("{name} {attempt}"),
            earliest: earliest.parse().ok()?,
            latest: latest.parse().ok()?,
            command,
        })
    }

    fn refuses(&self, why: &str) -> Script {
        Script {
            starts: false,
            runs: Some(SignedDuration::ZERO),
            exit: 125,
            last_words: self.says(why),
            ..Script::default()
        }
    }

    fn starts(&self) -> Script {
        let script = Script::of_words(self.command);
        let end = format!("ended {}", script.exit);
        let last_words = match script.exit {
            _ if script.starts => self.says(&end),
            code => self.says(&format!("unstartable {code}")) + &self.says(&end),
        };
        Script {
            first_words: format!("{}: starting.\n", self.mark),
            last_words,
            ..script
        }
    }

    /// To both streams, as the wrapper does.
    fn says(&self, what: &str) -> String {
        format!("\n{}: {what}.\n", self.mark).repeat(2)
    }
}

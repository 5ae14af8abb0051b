//! How a command is started at most once in a sandbox, and what shows how it ended.
//!
//! The server cannot tell an end from a stop: its launcher exits with 0 when a sandbox is stopped. Nor does it know of
//! a time after which a request must not be carried out any more. So the sandbox's entrypoint is not the command but a
//! small script around it, [`entrypoint`]. It refuses to start the command late, hands it its input, output,
//! environment and words as they are, passes signals on to it, and writes into the container's log what became of it:
//! [`evidence`] reads that. `docs/decisions/0007-evidence-of-an-end.md` says why it is the log.
//!
//! # What the command sees of it
//! - Lines of ours in the log: one before its output, an empty one and one of ours after it, on both streams. They
//!   hold the id of the attempt, never a word of the command or its environment. Output that is still on its way in
//!   the other stream may come later than they do, and what a left-over process writes in its last moments, too.
//! - An empty file in `/tmp`, in `/var/tmp` and in `/`, wherever one may be written: they keep the command from starting
//!   again in a container that is started again. Such a Job's end is not known. Where none may be written, by a user other
//!   than root in an image without a `/tmp` for everybody, the command is not started at all.
//! - Its parent is the script, which ends with the command. What it leaves running is killed with the sandbox.
//! - Interrupts (INT, QUIT) are ignored where the shell or the launcher ignores them for what they start with `&`:
//!   dash, busybox and the launcher do.
//! - A file without `#!` is run by the shell, as `execvp` does. Kubernetes calls that an exec format error.
//! - Variables with names that are none to a shell (`my.var`) are dropped by dash and busybox, and a shell sets some
//!   of its own: `PWD`, and bash also `SHLVL`.
//!
//! # Guarantees
//! - The command is started at most once, within the fence by the clock of the sandbox, else not at all.
//! - An end in the evidence was written after the command had ended, unless the command itself wrote such a line. It
//!   could know the id, from `/proc`. That way it can say of itself what it could as well say by its exit code.
//! - Lines that contradict each other are no evidence.

use jiff::Timestamp;
use secrecy::SecretString;

/// Says whether the command may be run.
const FENCE: &str = include_str!("wrapper.sh");

/// Runs it.
pub(crate) const LAUNCH: &str = include_str!("launch.sh");

/// What the script calls itself, in the shell's own messages too.
pub(crate) const NAME: &str = "ayatori";

/// Where files mark a sandbox in which the command has started: any of them does. `/tmp` may be emptied when a container
/// is started again, or be missing; the others may belong to root.
const MARKED: [&str; 3] = ["/tmp", "/var/tmp", ""];

/// The files that do so, as one word of names without spaces.
fn marks(attempt: &str) -> String {
    MARKED
        .map(|place| format!("{place}/.ayatori-{attempt}"))
        .join(" ")
}

/// When a command may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// No clock that is right shows less: when the attempt was made, less the skew of clocks that is allowed. Some
    /// containers are shown an uptime of their own, and with it a time long gone by, in which every fence is ahead.
    pub earliest: Timestamp,
    /// From then on the command is not started any more.
    pub latest: Timestamp,
}

/// The entrypoint of a sandbox that runs the command once, in the working directory if one is given; it has to be
/// absolute, and is made if it is missing, as a container runtime does, though with the rights of the image's user.
pub fn entrypoint(
    attempt: &str,
    fence: Fence,
    working_dir: Option<&str>,
    command: impl IntoIterator<Item = SecretString>,
) -> Vec<SecretString> {
    let wrapper = [
        "/bin/sh".to_owned(),
        "-c".to_owned(),
        script(&[FENCE, LAUNCH]),
        NAME.to_owned(),
        attempt.to_owned(),
        fence.earliest.as_second().to_string(),
        fence.latest.as_second().to_string(),
        working_dir.unwrap_or_default().to_owned(),
        marks(attempt),
    ];
    wrapper
        .into_iter()
        .map(SecretString::from)
        .chain(command)
        .collect()
}

/// The parts of a script as they are sent. Every list of sandboxes repeats them for each, so their comments stay here.
pub(crate) fn script(parts: &[&str]) -> String {
    parts
        .iter()
        .flat_map(|part| part.lines())
        .filter(|line| !line.trim_start().starts_with('#') && !line.is_empty())
        .flat_map(|line| [line, "\n"])
        .collect()
}

/// What the log of a sandbox shows of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// It was about to be started. Nothing is known of its end.
    Starting,
    /// It ended.
    Ended {
        /// Its exit code, or 128 and the number of the signal that ended it.
        code: u8,
        /// Somebody sent a signal to stop before, which was passed on to it.
        signalled: bool,
    },
    /// There was no such command (127), or it could not be executed (126).
    Unstartable {
        /// The shell's code for that.
        code: u8,
    },
    /// The working directory could not be made or entered: the command was not started.
    NoWorkingDirectory,
    /// The fence had passed: the command was not started.
    TooLate,
    /// The time could not be read: the command was not started.
    NoClock,
    /// No file could be written that keeps the command from starting again: it was not started.
    NoPlace,
    /// The launcher could not run in this image, or found no shell in it: the command was not started.
    NoLauncher,
    /// Linux did not take as long an environment: the command was not started.
    TooLong,
}

/// What the log of a sandbox shows of the attempt's command: the tail of the log, in any order and with any text
/// around. Nothing, if it shows nothing or two things that cannot both be so.
pub fn evidence(log: &str, attempt: &str) -> Option<Evidence> {
    let mark = format!("{NAME} {attempt}: ");
    let mut said: Vec<_> = log.split(&mark).skip(1).filter_map(statement).collect();
    said.sort_unstable();
    said.dedup();
    match said.as_slice() {
        [] => launch_failure(log),
        [only]
        | [
            Evidence::Starting,
            only @ (Evidence::Ended { .. } | Evidence::Unstartable { .. }),
        ] => Some(*only),
        // The script's child tells that it could not become the command; the script only sees its code.
        [Evidence::Starting, rest @ ..] | rest => match rest {
            [
                Evidence::Ended { code, .. },
                why @ Evidence::Unstartable { code: same },
            ] if code == same => Some(*why),
            _ => None,
        },
    }
}

/// Whether the log of a sandbox shows that the attempt's command was about to be started, and does not show that it was
/// not.
pub(crate) fn has_begun(log: &str, attempt: &str) -> bool {
    matches!(
        evidence(log, attempt),
        Some(Evidence::Starting | Evidence::Ended { .. })
    )
}

/// What a line of the script says, up to its full stop: without that the line was cut.
fn statement(text: &str) -> Option<Evidence> {
    let (statement, _) = text.split_once('.')?;
    let words: Vec<_> = statement.split(' ').collect();
    match words.as_slice() {
        ["starting"] => Some(Evidence::Starting),
        ["too", "late"] => Some(Evidence::TooLate),
        ["no", "clock"] => Some(Evidence::NoClock),
        ["no", "place"] => Some(Evidence::NoPlace),
        ["no", "working", "directory"] => Some(Evidence::NoWorkingDirectory),
        ["unstartable", code] => exit_code(code).map(|code| Evidence::Unstartable { code }),
        ["ended", code] => exit_code(code).map(|code| Evidence::Ended {
            code,
            signalled: false,
        }),
        ["ended", code, "after", "a", "signal"] => exit_code(code).map(|code| Evidence::Ended {
            code,
            signalled: true,
        }),
        _ => None,
    }
}

/// The code, if it is written as a shell writes it.
fn exit_code(text: &str) -> Option<u8> {
    text.parse().ok().filter(|code: &u8| code.to_string() == text)
}

/// The container runtime or the server's launcher says that it could not run in the image, or found no usable shell.
fn launch_failure(log: &str) -> Option<Evidence> {
    log.lines().find_map(
        |line| match line.split_once("exec /opt/opensandbox/bootstrap.sh: ") {
            Some((_, "argument list too long")) => Some(Evidence::TooLong),
            Some(_) => Some(Evidence::NoLauncher),
            None => line
                .contains("neither bash nor sh found in PATH")
                .then_some(Evidence::NoLauncher),
        },
    )
}

#[cfg(test)]
mod tests;

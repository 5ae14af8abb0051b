//! What a sandbox in Entrypoint mode means in the words of [`ayatori_core::execution`]. Pure.
//!
//! The server's own words are judged by their reason before their state, for its runtimes publish the same end under
//! different states, and a state that is not known says nothing. None of them alone shows how a command ended: a
//! stopped sandbox "exited successfully", one whose daemon was killed "exited with code 255", and any other code may
//! be the launcher's. A code counts if the wrapper's [`Evidence`] says the same, or if the sandbox was ended in
//! another way after the evidence was written. Death by SIGKILL alone needs none: it takes every process along.

use ayatori_core::conditions::{PENDING, clean};
use ayatori_core::execution::{End, Exit, Gone, Running, State, Stopper, Waiting, Why};
use jiff::Timestamp;

use crate::wire::Sandbox;
use crate::wrapper::Evidence;

/// How much of a message from outside goes into a condition.
const EXCERPT: usize = 512;

/// What a process that died by SIGKILL ends with, by the convention of shells and of the server.
const KILLED: i32 = 137;

/// What Docker gives a container whose code it has lost.
const UNKNOWN_CODE: i32 = 255;

const START_ERROR: &str = "StartError";

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not come up.
    Pending,
    /// It is up.
    Up,
    /// It is up, and its processes are frozen.
    Frozen,
    /// No process of it runs any more. The code is the server's, where it shows one.
    Over(Option<i32>),
    /// It outlived its expiry, and no process of it runs any more.
    Expired,
    /// The server says that it has ended, for a reason that is not known to mean that.
    SaidToBeOver,
    /// The server says something else that is not known.
    Unknown,
}

/// Where a sandbox is in its life.
pub fn phase(sandbox: &Sandbox) -> Phase {
    match sandbox.reason.as_deref() {
        Some("CONTAINER_EXITED" | "PodSucceeded") => Phase::Over(Some(0)),
        Some("CONTAINER_EXITED_ERROR") => Phase::Over(sandbox.message.as_deref().and_then(code_in)),
        Some("PodFailed" | "TASK_FAILED") => Phase::Over(None),
        Some("SandboxExpired") => Phase::Expired,
        _ => match sandbox.state.as_str() {
            "Pending" | "Allocated" => Phase::Pending,
            "Running" | "Pausing" | "Resuming" | "Stopping" => Phase::Up,
            "Paused" => Phase::Frozen,
            "Failed" => Phase::Over(None),
            "Terminated" => Phase::SaidToBeOver,
            _ => Phase::Unknown,
        },
    }
}

/// The exit code in `Sandbox container exited with code 3.`
fn code_in(message: &str) -> Option<i32> {
    let (_, rest) = message.rsplit_once("exited with code ")?;
    rest.trim_end_matches('.').parse().ok()
}

/// Whether the runtime's events of a sandbox say that a process of it was killed for want of memory.
pub fn says_out_of_memory(events: &str) -> bool {
    events
        .lines()
        .filter_map(|line| line.strip_prefix("Event:"))
        .any(|event| event.trim_start().starts_with("OOMKilled"))
}

/// One look at the recorded sandbox.
#[derive(Clone, Debug)]
pub struct Look<'a> {
    /// As the server shows it.
    pub sandbox: &'a Sandbox,
    /// What its log shows. That the log could not be read is no look.
    pub evidence: Option<Evidence>,
    /// Whether its events say that a process of it was killed for want of memory.
    pub out_of_memory: bool,
    /// The time at which the server was asked.
    pub at: Timestamp,
    /// Whether the command was seen running or ended before.
    pub started: bool,
    /// Whether we asked for its end: nobody else's freeze is our stop.
    pub stop_requested: bool,
    /// When the Job's own time runs out.
    pub deadline: Option<Timestamp>,
    /// When its expiry should be put off.
    pub renew_at: Option<Timestamp>,
}

/// What became of the recorded sandbox.
pub fn state(look: &Look<'_>) -> State {
    match phase(look.sandbox) {
        Phase::Over(code) => State::Ended(over(look, code)),
        Phase::Expired => State::Ended(expired(look)),
        Phase::SaidToBeOver => said_to_be_over(look),
        Phase::Frozen => running(look, look.stop_requested.then_some(look.at)),
        Phase::Up => running(look, None),
        Phase::Pending | Phase::Unknown if look.has_started() => running(look, None),
        Phase::Pending => waiting(Why::new(PENDING, "the server prepares the sandbox"), None),
        Phase::Unknown => {
            let shown = format!(
                "the server shows the sandbox in a state that is not known: {:?}",
                look.sandbox.state
            );
            waiting(Why::new(PENDING, clean(&shown, EXCERPT)), None)
        }
    }
}

impl Look<'_> {
    fn has_started(&self) -> bool {
        self.started || matches!(self.evidence, Some(Evidence::Starting | Evidence::Ended { .. }))
    }
}

fn running(look: &Look<'_>, stopping_since: Option<Timestamp>) -> State {
    State::Running(Running {
        started_at: look.sandbox.created_at,
        node: None,
        stopping_since,
        renew_at: look.renew_at,
    })
}

/// A sandbox that has just come up, and whose log does not show yet that its command is started.
pub(crate) fn undecided(stopping_since: Option<Timestamp>) -> State {
    let why = Why::new(PENDING, "the sandbox is up, and has not started its command yet");
    waiting(why, stopping_since)
}

fn waiting(why: Why, stopping_since: Option<Timestamp>) -> State {
    State::Waiting(Waiting {
        why,
        node: None,
        stopping_since,
    })
}

/// The end of a sandbox of which no process runs any more; the server shows `code`, or none.
fn over(look: &Look<'_>, code: Option<i32>) -> End {
    let unstarted = look
        .evidence
        // A launcher that says so and then exits with 0 is none that we know.
        .filter(|evidence| !matches!(evidence, Evidence::NoLauncher | Evidence::TooLong) || code != Some(0))
        .and_then(unstarted);
    if let Some(why) = unstarted {
        return end(look, Exit::Unstartable(why));
    }
    match look.evidence {
        Some(Evidence::Ended {
            code: written,
            signalled,
        }) if outlasts(i32::from(written), code) => ended(look, i32::from(written), signalled),
        _ if code == Some(KILLED) => ended(look, KILLED, false),
        _ => unmeasured(look, code),
    }
}

/// Why the command was not started, where the evidence says so.
fn unstarted(evidence: Evidence) -> Option<Why> {
    let (reason, message) = match evidence {
        Evidence::Starting | Evidence::Ended { .. } => return None,
        Evidence::Unstartable { code: 126 } => (
            START_ERROR,
            "the command cannot be executed; check spec.command and the image",
        ),
        Evidence::Unstartable { .. } => (
            START_ERROR,
            "there is no such command in the image; check spec.command and the image",
        ),
        Evidence::NoWorkingDirectory => (
            START_ERROR,
            "spec.workingDir could not be made or entered; it has to be an absolute path that the image's user may use",
        ),
        Evidence::TooLate => (
            "StartTooLate",
            "the sandbox came up after the time until which the command may start, so it was not started; create the Job again",
        ),
        Evidence::NoClock => (
            "StartTooLate",
            "the time could not be read in the sandbox, or lies before the Job's start, so the command was not started; \
             the runtime has to show the host's /proc/stat and /proc/uptime, or the image hold date",
        ),
        Evidence::NoPlace => (
            START_ERROR,
            "nowhere could a file be written that keeps the command from starting twice, so it was not started; \
             give the image a /tmp that its user may write to",
        ),
        Evidence::NoLauncher => (
            START_ERROR,
            "OpenSandbox's launcher cannot run in the image: it needs a /bin/sh of the node's architecture",
        ),
        Evidence::TooLong => (
            START_ERROR,
            "command, args and environment together are longer than Linux lets a process be given there, often 2 MiB; \
             put content into files of the image, or fetch it from the command",
        ),
    };
    Some(Why::new(reason, message))
}

/// The end that the evidence alone shows, where it shows one.
pub(crate) fn end_by(evidence: Evidence) -> Option<(Exit, Stopper)> {
    match evidence {
        Evidence::Ended { code, signalled } => {
            let exit = Exit::Code {
                code: code.into(),
                out_of_memory: false,
            };
            Some((exit, stopper(signalled)))
        }
        _ => unstarted(evidence).map(|why| (Exit::Unstartable(why), Stopper::Nobody)),
    }
}

/// Who ended a command that somebody had sent a signal to stop before, or not.
fn stopper(signalled: bool) -> Stopper {
    if !signalled {
        return Stopper::Nobody;
    }
    Stopper::Other(Why::new(
        "SandboxStopped",
        "somebody stopped the sandbox while the command ran",
    ))
}

/// Whether a code that was written down is the command's although the server shows this one: the same, none, or one
/// that tells of an end of the sandbox that came after the command's.
fn outlasts(written: i32, shown: Option<i32>) -> bool {
    match shown {
        None | Some(0 | KILLED | UNKNOWN_CODE) => true,
        Some(shown) => shown == written,
    }
}

fn ended(look: &Look<'_>, code: i32, signalled: bool) -> End {
    let child = look.out_of_memory && code != KILLED;
    End {
        started_at: look.sandbox.created_at,
        stopped_by: stopper(signalled),
        note: child.then(|| "a process of the sandbox was killed for using too much memory".to_owned()),
        ..end(
            look,
            Exit::Code {
                code,
                out_of_memory: look.out_of_memory,
            },
        )
    }
}

/// How the command ended is not known, nor, unless it was seen, whether it was started.
fn unmeasured(look: &Look<'_>, code: Option<i32>) -> End {
    let shown = match code {
        Some(0) => "the server says that the sandbox exited, as it does of one that was stopped".to_owned(),
        Some(UNKNOWN_CODE) => {
            "the server says that the sandbox exited with code 255, as it does when the code was lost"
                .to_owned()
        }
        Some(code) => format!("the server says that the sandbox exited with code {code}"),
        None => told(look.sandbox),
    };
    let log = match look.evidence {
        Some(Evidence::Ended { code, .. }) => format!("its log says that the command ended with {code}"),
        _ => "its log does not show how the command ended".to_owned(),
    };
    End {
        started_at: look.sandbox.created_at.filter(|_| look.has_started()),
        note: Some(format!(
            "{shown}, and {log}; the exit code of the command is not known"
        )),
        ..end(look, Exit::Unmeasured)
    }
}

/// A runtime ended the sandbox because it outlived its expiry. A command that had ended before has its own result.
fn expired(look: &Look<'_>) -> End {
    let end = over(look, None);
    let ended_before = match look.evidence {
        None | Some(Evidence::Starting) => false,
        Some(Evidence::Ended { signalled, .. }) => !signalled,
        Some(
            Evidence::Unstartable { .. }
            | Evidence::NoWorkingDirectory
            | Evidence::TooLate
            | Evidence::NoClock
            | Evidence::NoPlace
            | Evidence::NoLauncher
            | Evidence::TooLong,
        ) => true,
    };
    if ended_before {
        return end;
    }
    let at = look.sandbox.last_transition_at.map(whole_seconds);
    let passed = |deadline: Timestamp| at.is_some_and(|at| deadline <= at);
    let stopped_by = if look.deadline.is_some_and(passed) {
        Stopper::Deadline
    } else {
        Stopper::Anybody(Why::new(
            "SandboxExpired",
            "the sandbox outlived its expiry before that was put off; the command did not end by itself",
        ))
    };
    End {
        stopped_at: at,
        stopped_by,
        ..end
    }
}

/// The server says that it is over, but not in words that prove it. Only evidence that the command had ended does;
/// else the sandbox has to be gone before anything is certain.
fn said_to_be_over(look: &Look<'_>) -> State {
    match look.evidence {
        None | Some(Evidence::Starting) => State::Gone(Gone {
            proven: false,
            why: Why::new(
                "ExecutionNotFound",
                format!(
                    "{}; that does not show how the command ended, nor that it did, before the sandbox is gone",
                    told(look.sandbox)
                ),
            ),
        }),
        Some(_) => State::Ended(over(look, None)),
    }
}

/// What the server says of a sandbox, for people.
pub(crate) fn told(sandbox: &Sandbox) -> String {
    let reason = sandbox.reason.as_deref().unwrap_or("no reason");
    let message = sandbox.message.as_deref().unwrap_or_default();
    let told = format!(
        "the server shows the sandbox as {} ({reason}) {message}",
        sandbox.state
    );
    clean(&told, EXCERPT).trim_end_matches(['.', ' ']).to_owned()
}

fn end(look: &Look<'_>, exit: Exit) -> End {
    End {
        exit,
        started_at: None,
        finished_at: look.sandbox.last_transition_at.map(whole_seconds),
        stopped_at: None,
        stopped_by: Stopper::Nobody,
        node: None,
        note: None,
    }
}

/// The second that the time lies in: what the API stores.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests;

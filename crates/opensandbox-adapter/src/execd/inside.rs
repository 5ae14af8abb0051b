//! What the files in a sandbox that waits for its command, or has run it, say. Pure.
//!
//! They are read one by one, the later written first: what is missing was missing when a file was read that is always
//! there before it. Whoever runs in the sandbox can write them too, and say by that of the Job's command what it could
//! as well say by its exit code; what is none of our words is never an end.

use jiff::Timestamp;

use super::scripts::HoldId;
use crate::wrapper::{self, Evidence, NAME};

/// What became of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Inside {
    /// It is waited for.
    Held,
    /// It was started.
    Started(Since),
    /// It was started, and the stop came before its end.
    Stopped(Since),
    /// It ended, or could not be started, before any stop.
    Ended(Since, Evidence),
    /// It was started, and then the container ended and was started again.
    Lost(Since),
    /// It is never started.
    Never(Never),
    /// Nobody waits for it there.
    Nothing,
    /// Something is written there that is none of our words.
    Garbled,
}

/// When the command was started, where the sandbox could tell.
pub(crate) type Since = Option<Timestamp>;

/// What came before the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Never {
    /// The stop.
    Stopped,
    /// The end of the time for which it was waited for.
    TooLate,
    /// The end of the container, which was then started again.
    Lost,
}

impl Inside {
    /// Whether nothing else can follow.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Inside::Ended(..) | Inside::Lost(_) | Inside::Never(_) | Inside::Stopped(_) => true,
            Inside::Held | Inside::Started(_) | Inside::Nothing | Inside::Garbled => false,
        }
    }

    /// What these files show: `end`, then `start`, then whether there is a `hold`.
    pub(super) fn read(id: &HoldId, end: Option<&str>, start: Option<&str>, hold: bool) -> Self {
        let taken = match start {
            Some(start) => match first(id, start) {
                Some(taken) => taken,
                None => return Inside::Garbled,
            },
            // An end without a start is not ours either.
            None if end.is_some() => return Inside::Garbled,
            None if hold => return Inside::Held,
            None => return Inside::Nothing,
        };
        let since = match taken {
            First::Command(since) => since,
            First::Other(never) => return Inside::Never(never),
        };
        match end {
            None => Inside::Started(since),
            Some(end) => match statement(id, end) {
                Some("stopped") => Inside::Stopped(since),
                Some("lost") => Inside::Lost(since),
                _ => evidence(id, end).map_or(Inside::Garbled, |evidence| Inside::Ended(since, evidence)),
            },
        }
    }
}

/// Who came first.
enum First {
    Command(Since),
    Other(Never),
}

fn first(id: &HoldId, start: &str) -> Option<First> {
    match statement(id, start)? {
        "stopped" => Some(First::Other(Never::Stopped)),
        "too late" => Some(First::Other(Never::TooLate)),
        "lost" => Some(First::Other(Never::Lost)),
        "starting" => Some(First::Command(None)),
        other => {
            let seconds = other.strip_prefix("starting at ")?.parse().ok()?;
            Some(First::Command(Timestamp::from_second(seconds).ok()))
        }
    }
}

/// The one thing that a file says.
fn statement<'a>(id: &HoldId, text: &'a str) -> Option<&'a str> {
    text.trim()
        .strip_prefix(&format!("{NAME} {id}: "))?
        .strip_suffix('.')
}

/// How the command ended, as the script that ran it tells.
fn evidence(id: &HoldId, end: &str) -> Option<Evidence> {
    wrapper::evidence(end, &id.to_string()).filter(|evidence| match evidence {
        Evidence::Ended { .. } | Evidence::Unstartable { .. } | Evidence::NoWorkingDirectory => true,
        Evidence::Starting
        | Evidence::TooLate
        | Evidence::NoClock
        | Evidence::NoPlace
        | Evidence::NoLauncher
        | Evidence::TooLong => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0f8e1c52-7d1b-4c0e-9d5a-3a5d2d8f6b11";

    fn said(what: &str) -> String {
        format!("ayatori {ID}: {what}.\n")
    }

    fn read(end: Option<&str>, start: Option<&str>, hold: bool) -> Inside {
        Inside::read(&HoldId::parse(ID).unwrap(), end, start, hold)
    }

    #[test]
    fn who_came_first_and_what_ended_first_decide() {
        let at = Timestamp::from_second(1_800_000_000).ok();
        let ended = |code| Evidence::Ended {
            code,
            signalled: false,
        };
        for (end, start, hold, expected) in [
            (None, None, false, Inside::Nothing),
            (None, None, true, Inside::Held),
            (None, Some("starting"), true, Inside::Started(None)),
            (None, Some("starting at 1800000000"), true, Inside::Started(at)),
            (
                Some("ended 0"),
                Some("starting at 1800000000"),
                true,
                Inside::Ended(at, ended(0)),
            ),
            (
                Some("ended 3"),
                Some("starting"),
                false,
                Inside::Ended(None, ended(3)),
            ),
            (
                Some("no working directory"),
                Some("starting"),
                true,
                Inside::Ended(None, Evidence::NoWorkingDirectory),
            ),
            (Some("stopped"), Some("starting"), true, Inside::Stopped(None)),
            (Some("lost"), Some("starting"), true, Inside::Lost(None)),
            (
                Some("stopped"),
                Some("stopped"),
                true,
                Inside::Never(Never::Stopped),
            ),
            (None, Some("stopped"), true, Inside::Never(Never::Stopped)),
            (None, Some("too late"), true, Inside::Never(Never::TooLate)),
            (Some("lost"), Some("lost"), true, Inside::Never(Never::Lost)),
        ] {
            let [end, start] = [end, start].map(|text| text.map(said));
            assert_eq!(
                read(end.as_deref(), start.as_deref(), hold),
                expected,
                "end {end:?}, start {start:?}"
            );
        }
    }

    #[test]
    fn what_is_missing_cut_or_of_another_is_never_an_end() {
        let start = said("starting");
        let of_another = said("ended 0").replace("0f8e", "0f8f");
        for end in [
            "",
            "0",
            "ended 0.",
            "exit_code: 0",
            &said("ended 0").replace('.', ""),
            &said("ended"),
            &said("ended 00"),
            &said("ended 300"),
            &said("starting"),
            &format!("{}{}", said("ended 0"), said("ended 3")),
            &of_another,
            "exec /opt/opensandbox/bootstrap.sh: no such file",
        ] {
            assert_eq!(read(Some(end), Some(&start), true), Inside::Garbled, "{end:?}");
        }
        assert_eq!(read(Some(&said("ended 0")), None, true), Inside::Garbled);
        for start in ["", "starting", &said("starting at noon"), &of_another] {
            assert_eq!(read(None, Some(start), true), Inside::Garbled, "{start:?}");
            assert_eq!(
                read(Some(&said("ended 0")), Some(start), true),
                Inside::Garbled,
                "{start:?}"
            );
        }
    }

    #[test]
    fn only_a_uuid_names_a_hold() {
        assert!(HoldId::parse(&format!("{ID}\n")).is_some());
        for text in [
            "",
            "x",
            "../../etc/passwd",
            &ID.to_uppercase(),
            &format!("{ID}-"),
            &ID.replace('-', "/"),
        ] {
            assert_eq!(HoldId::parse(text), None, "{text:?}");
        }
    }
}

//! What the real adapters make of what a backend shows: simulated objects and answers go in, and what comes out are
//! the words that decisions are made on.
//!
//! The same is said of the same, so each thing is looked at once.

use std::collections::HashMap;

use ayatori_core::execution::{ExecutionName, Gone, Prospect, State, Why};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::stage::Stage;
use foldhash::fast::FixedState;

use crate::backend::{Execution, Kind, Life};
use crate::mind::{Listed, Place};
use crate::objects::{Library, Version, number_in, tick};
use crate::state::SLOTS;
use crate::{cluster, sandboxes};

/// What there was to be seen of the recorded execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sight {
    Shown {
        number: u8,
        execution: Execution,
        /// Its node does not report: this is what it last said.
        silent: bool,
    },
    /// It does not exist, or nobody shows it any more.
    Missing {
        silent: bool,
        /// So long that nothing of it can run.
        settled: bool,
    },
    /// Nobody answers.
    Lost,
}

/// What an adapter said of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Seen(u16);

/// What an adapter said of a Job of which nothing is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Word(u16);

/// The executions that a list shows, by their numbers.
pub(crate) type List = [Option<Execution>; SLOTS];

/// The eyes of one kind of adapter, and all that they have seen.
pub(crate) struct Eyes {
    kind: Kind,
    states: Vec<State>,
    prospects: Vec<Prospect>,
    sights: HashMap<(Version, Sight, u8), Seen, FixedState>,
    lists: HashMap<(Version, List), Listed, FixedState>,
}

impl Eyes {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            states: Vec::new(),
            prospects: Vec::new(),
            sights: HashMap::default(),
            lists: HashMap::default(),
        }
    }

    pub(crate) fn state(&self, seen: Seen) -> &State {
        &self.states[usize::from(seen.0)]
    }

    pub(crate) fn prospect(&self, word: Word) -> &Prospect {
        &self.prospects[usize::from(word.0)]
    }

    /// What becomes of the recorded execution, seen at a tick of the own clock.
    pub(crate) fn look(&mut self, library: &Library, version: Version, sight: Sight, clock: u8) -> Seen {
        let sight = match sight {
            Sight::Shown {
                number,
                execution,
                silent,
            } => Sight::Shown {
                number,
                execution: shown(execution),
                silent,
            },
            Sight::Missing { .. } | Sight::Lost => sight,
        };
        if let Some(known) = self.sights.get(&(version, sight, clock)) {
            return *known;
        }
        let state = self.look_really(library.job(version), sight, clock);
        let seen = Seen(keep(&mut self.states, state));
        self.sights.insert((version, sight, clock), seen);
        seen
    }

    fn look_really(&self, job: &Job, sight: Sight, clock: u8) -> State {
        let Stage::Recorded(recorded) = Stage::of(job) else {
            panic!("only a recorded execution is looked at: {job:?}");
        };
        match (self.kind, sight) {
            (_, Sight::Lost) => State::Unobservable(Why::new("BackendUnreachable", "nobody answers")),
            (Kind::Named, _) => cluster::state(recorded, sight),
            (Kind::Unnamed | Kind::SingleShot, Sight::Missing { settled, .. }) => State::Gone(Gone {
                proven: settled,
                why: Why::new("ExecutionNotFound", "the server does not know it any more"),
            }),
            (
                Kind::Unnamed,
                Sight::Shown {
                    number, execution, ..
                },
            ) => sandboxes::inside(recorded, number, &execution, tick(clock)),
            (
                Kind::SingleShot,
                Sight::Shown {
                    number, execution, ..
                },
            ) => sandboxes::state(recorded, number, &execution, tick(clock)),
        }
    }

    /// What a list of a Job's executions comes to, if it shows any.
    pub(crate) fn list(&mut self, library: &Library, version: Version, list: &List) -> Listed {
        let list = list.map(|execution| execution.map(shown));
        if let Some(known) = self.lists.get(&(version, list)) {
            return *known;
        }
        let listed = self.list_really(library.job(version), &list);
        self.lists.insert((version, list), listed);
        listed
    }

    fn list_really(&mut self, job: &Job, list: &List) -> Listed {
        // Names lead back to what they are names of.
        let backend = BackendIdentity::default();
        let prospect = match self.kind {
            Kind::Named => cluster::prospect(job, backend, list),
            Kind::SingleShot => sandboxes::prospect(job, backend, list),
            Kind::Unnamed => held(list).map_or(Prospect::Absent, |number| {
                Prospect::Found(name(self.kind, number, 0), backend)
            }),
        };
        let place = |name: &ExecutionName| {
            let number = number_in(name.uid.as_deref().unwrap_or(&name.id));
            let execution = list[usize::from(number)].expect("what is listed");
            Place {
                number,
                batch: execution.batch,
                server: execution.server,
            }
        };
        match prospect {
            Prospect::Absent => Listed::Nothing,
            Prospect::Found(name, _) => Listed::Found(place(&name)),
            Prospect::Pending(name, _) => Listed::Pending(place(&name)),
            said @ (Prospect::Preparing(_) | Prospect::Spoilt(_) | Prospect::Conflict(_)) => {
                Listed::Otherwise(Word(keep(&mut self.prospects, said)))
            }
        }
    }
}

/// Execd mode, where one asks in each sandbox that is up: whichever is not held any more, else the first. That is all
/// there is to it; the rest of it are requests.
fn held(list: &List) -> Option<u8> {
    let numbers = || (0_u8..).zip(list).filter_map(|(number, e)| Some((number, (*e)?)));
    numbers()
        .find(|(_, e)| e.life != Life::Held)
        .or_else(|| numbers().next())
        .map(|(number, _)| number)
}

/// What no backend shows is not looked at.
fn shown(execution: Execution) -> Execution {
    Execution {
        asked_by: 0,
        born: 0,
        ..execution
    }
}

fn keep<T: PartialEq>(all: &mut Vec<T>, thing: T) -> u16 {
    let number = all.iter().position(|known| *known == thing).unwrap_or_else(|| {
        all.push(thing);
        all.len() - 1
    });
    u16::try_from(number).expect("adapters have few words")
}

/// The name of an execution.
pub(crate) fn name(kind: Kind, number: u8, batch: u8) -> ExecutionName {
    match kind {
        Kind::Named => ExecutionName {
            id: format!("batch{batch}"),
            uid: Some(format!("pod{number}")),
        },
        Kind::Unnamed => ExecutionName {
            id: format!("sandbox{number}"),
            uid: Some(sandboxes::hold(number)),
        },
        Kind::SingleShot => ExecutionName {
            id: format!("sandbox{number}"),
            uid: None,
        },
    }
}

/// What an adapter said, in a few words.
pub(crate) fn words(state: &State) -> String {
    match state {
        State::Held => "it is held".to_owned(),
        State::Waiting(waiting) => format!("it waits ({})", waiting.why.reason),
        State::Running(running) if running.stopping_since.is_some() => "it runs, told to end".to_owned(),
        State::Running(_) => "it runs".to_owned(),
        State::Ended(end) => format!("it has ended: {:?}, stopped by {:?}", end.exit, end.stopped_by),
        State::Gone(gone) if gone.proven => "it is gone for good".to_owned(),
        State::Gone(gone) => format!(
            "it is not to be found, which proves nothing ({})",
            gone.why.reason
        ),
        State::Unobservable(why) => format!("it cannot be seen ({})", why.reason),
    }
}

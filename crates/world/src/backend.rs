//! Executions and requests on their way, and what a backend shows of them.

use ayatori_core::execution::{End, ExecutionName, Exit, State, Stopper, Waiting, Why};
use ayatori_core::execution::{Gone, Running};
use jiff::Timestamp;

use crate::objects::{TICK, second};

/// How a backend starts commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Holds executions before their command, and creates under a name, like batch/v1 Jobs.
    Named,
    /// Holds executions before their command; every create request makes another one.
    Unnamed,
    /// Creating is starting.
    SingleShot,
}

impl Kind {
    pub(crate) fn holds(self) -> bool {
        match self {
            Kind::Named | Kind::Unnamed => true,
            Kind::SingleShot => false,
        }
    }
}

/// Where an execution is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Life {
    /// Not created yet.
    #[default]
    Unborn,
    /// Held before its command.
    Held,
    /// Let go, or created; its command comes up.
    Pending,
    /// It will never come up, and never say so.
    Stuck,
    Running,
    /// Its command is frozen.
    Paused,
    Ended(Ending),
    /// It does not exist any more.
    Gone,
}

/// How an execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Ending {
    /// Its command exited with code 0, as many do also when they are told to stop.
    Exited,
    /// Its command never started.
    Unstarted,
    /// Its command refused to start after its fence.
    TooLate,
    /// Somebody stopped it and the backend does not tell how it ended.
    Unmeasured,
}

/// Who asked for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Who {
    /// We did, and the backend says so.
    Us,
    /// The backend does not say.
    Somebody,
}

/// One execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Execution {
    pub(crate) life: Life,
    /// The Job it was created for.
    pub(crate) uid: u8,
    /// The batch Job it belongs to.
    pub(crate) batch: u8,
    /// Whether lists show it.
    pub(crate) listed: bool,
    /// Its batch Job's deadline was set to now.
    pub(crate) expiring: bool,
    /// The second in which an end of it was asked for, and by whom.
    pub(crate) stop: Option<(i16, Who)>,
    /// The second in which it ended.
    pub(crate) ended: i16,
    /// The second after which its command refuses to start.
    pub(crate) fence: i16,
    pub(crate) server: u8,
    /// The tick in which it was created.
    pub(crate) born: u8,
    /// The process that waits for the answer to its creation, counted from one.
    pub(crate) asked_by: u8,
}

impl Execution {
    pub(crate) fn exists(&self) -> bool {
        !matches!(self.life, Life::Unborn | Life::Gone)
    }

    pub(crate) fn runs(&self) -> bool {
        matches!(self.life, Life::Running | Life::Paused)
    }

    /// Nothing of it is left but that it was there.
    pub(crate) fn vanish(&mut self) {
        *self = Self {
            life: Life::Gone,
            uid: self.uid,
            batch: self.batch,
            ..Self::default()
        };
    }
}

/// The second of something that happens in a tick. An end by itself lies before a foreign stop, and that before
/// whatever a process does in the tick: they happened in this order if they happened in one tick at all, since
/// a stop that came first is what its end lies after.
pub(crate) fn of_own_end(tick: u8) -> i16 {
    whole(tick) - 60
}

pub(crate) fn of_foreign_stop(tick: u8) -> i16 {
    whole(tick) - 50
}

pub(crate) fn of_our_stop(tick: u8) -> i16 {
    whole(tick) + 1
}

pub(crate) fn of_stopped_end(tick: u8) -> i16 {
    whole(tick) + 2
}

fn whole(tick: u8) -> i16 {
    i16::try_from(i64::from(tick) * TICK).unwrap()
}

/// A request on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Message {
    #[default]
    None,
    Create {
        uid: u8,
        fence: i16,
        server: u8,
        by: u8,
    },
    Start {
        execution: u8,
        by: u8,
    },
}

impl Message {
    /// The process that waits for its answer, counted from one; nobody any more: zero.
    pub(crate) fn by(&mut self) -> Option<&mut u8> {
        match self {
            Message::None => None,
            Message::Create { by, .. } | Message::Start { by, .. } => Some(by),
        }
    }
}

/// What was seen of the recorded execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Sight {
    Seen {
        life: Life,
        stop: Option<(i16, Who)>,
        ended: i16,
    },
    /// It does not exist; nothing of it runs any more.
    Missing,
    /// It is not to be seen, and may run.
    Lost,
}

impl Sight {
    pub(crate) fn of(execution: &Execution) -> Self {
        match execution.life {
            Life::Unborn | Life::Gone => Sight::Missing,
            life => Sight::Seen {
                life,
                stop: execution.stop,
                ended: execution.ended,
            },
        }
    }

    /// In the words of the project.
    pub(crate) fn state(self) -> State {
        let why = |reason: &str| Why::new(reason, "said by the simulated backend");
        let (life, stop, ended) = match self {
            Sight::Missing => {
                return State::Gone(Gone {
                    proven: true,
                    why: why("ExecutionNotFound"),
                });
            }
            Sight::Lost => return State::Unobservable(why("BackendUnreachable")),
            Sight::Seen { life, stop, ended } => (life, stop, ended),
        };
        let time = |at: i16| -> Timestamp { second(i64::from(at)) };
        let stopping_since = stop.map(|(at, _)| time(at));
        let end = |exit: Exit, finished_at, stopped_by| {
            State::Ended(End {
                exit,
                started_at: None,
                finished_at,
                stopped_at: stopping_since,
                stopped_by,
                node: None,
                note: None,
            })
        };
        let stopper = match stop {
            None => Stopper::Nobody,
            Some((_, Who::Us)) => Stopper::Deadline,
            Some((_, Who::Somebody)) => Stopper::Anybody(why("PodDeleted")),
        };
        match life {
            Life::Held => State::Held,
            Life::Unborn | Life::Pending | Life::Stuck | Life::Gone => State::Waiting(Waiting {
                why: why("Pending"),
                node: None,
                stopping_since,
            }),
            Life::Running | Life::Paused => State::Running(Running {
                renew_at: None,
                started_at: None,
                node: None,
                stopping_since,
            }),
            Life::Ended(Ending::Exited) => end(
                Exit::Code {
                    code: 0,
                    out_of_memory: false,
                },
                Some(time(ended)),
                stopper,
            ),
            Life::Ended(Ending::Unstarted) => end(Exit::NeverStarted, None, stopper),
            Life::Ended(Ending::TooLate) => end(Exit::Unstartable(why("StartTooLate")), None, stopper),
            Life::Ended(Ending::Unmeasured) => {
                end(Exit::Unmeasured, None, Stopper::Anybody(why("SandboxStopped")))
            }
        }
    }
}

/// The name of an execution.
pub(crate) fn name(kind: Kind, number: u8, batch: u8) -> ExecutionName {
    match kind {
        Kind::Named => ExecutionName {
            id: format!("batch{batch}"),
            uid: Some(format!("pod{number}")),
        },
        Kind::Unnamed | Kind::SingleShot => ExecutionName {
            id: format!("sandbox{number}"),
            uid: None,
        },
    }
}

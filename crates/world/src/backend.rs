//! Executions, and requests on their way.

use crate::objects::TICK;

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
    /// It runs on, on a node that does not report, and nothing shows it any more.
    Orphaned,
    Ended(Ending),
    /// It does not exist any more.
    Gone,
}

/// How an execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Ending {
    /// Its command exited with code 0, as many do also when they are told to stop.
    Exited,
    /// It had been let go, and its command never started.
    Unstarted,
    /// It was never let go.
    StillHeld,
    /// Its command refused to start after its fence.
    TooLate,
    /// Its command ended and the backend has lost how.
    Unmeasured,
    /// Its command exited with code 0 after somebody had sent it a signal to stop.
    Signalled,
}

/// Who asked for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Who {
    /// We did, and the backend says so.
    Us,
    /// The backend does not say.
    Somebody,
    /// The cluster evicted it, and says so.
    Evictor,
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
    /// The second in which its kubelet deleted it, that being over; zero if it did not.
    pub(crate) rewritten: i16,
    /// The second in which it ended.
    pub(crate) ended: i16,
    /// The second after which its command refuses to start.
    pub(crate) fence: i16,
    /// Number of the attempt that created it; zero if it was prepared.
    pub(crate) attempt: u8,
    pub(crate) server: u8,
    /// The tick in which it was created.
    pub(crate) born: u8,
    /// The process that waits for the answer to its creation, counted from one.
    pub(crate) asked_by: u8,
}

impl Execution {
    /// Whether its backend shows it.
    pub(crate) fn exists(&self) -> bool {
        !matches!(self.life, Life::Unborn | Life::Gone | Life::Orphaned)
    }

    pub(crate) fn runs(&self) -> bool {
        matches!(self.life, Life::Running | Life::Paused | Life::Orphaned)
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

pub(crate) fn of_kubelets_own_delete(tick: u8) -> i16 {
    whole(tick) + 3
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
        attempt: u8,
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

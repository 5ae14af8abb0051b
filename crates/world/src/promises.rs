//! What must never be the case.

use std::fmt;

use ayatori_core::job::{Outcome, StopReason};

use crate::backend::{Execution, Life};
use crate::objects::{Card, Library, Version};
use crate::state::{End, Truth, World};

/// A promise, and how it was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Broken {
    StartedTwice,
    StartedAfterFinished,
    FinishedWhileRunning,
    FalseSuccess,
    OwnEndHidden,
    NobodyStopped,
    OutsiderCalledOurs,
    NeverStartedButDid,
    LostButKnown,
    FinalChanged,
    CreatedBeforeAccepted,
    GoneWhileRunning,
    StartedAfterGone,
    AnothersExecution,
    KilledUnasked,
    WriteRefused,
}

/// The promises, each checked by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Promise {
    OneStart,
    TrueResult,
    FinalResult,
    NothingBeforeAcceptance,
    FinalizerKept,
    OwnExecutionsOnly,
    LegalWrites,
    /// Not seen in a state, but in where it leads: see [`crate::search`].
    AnEnd,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Promise::OneStart => "one start",
            Promise::TrueResult => "a true result",
            Promise::FinalResult => "a final result",
            Promise::NothingBeforeAcceptance => "nothing before acceptance",
            Promise::FinalizerKept => "the finalizer stays while something runs",
            Promise::OwnExecutionsOnly => "nobody else's executions are touched",
            Promise::LegalWrites => "no write is refused",
            Promise::AnEnd => "every Job comes to its end",
        })
    }
}

impl Broken {
    pub(crate) fn promise(self) -> Promise {
        match self {
            Broken::StartedTwice => Promise::OneStart,
            Broken::FinishedWhileRunning
            | Broken::StartedAfterFinished
            | Broken::FalseSuccess
            | Broken::OwnEndHidden
            | Broken::NobodyStopped
            | Broken::OutsiderCalledOurs
            | Broken::NeverStartedButDid
            | Broken::KilledUnasked
            | Broken::LostButKnown => Promise::TrueResult,
            Broken::FinalChanged => Promise::FinalResult,
            Broken::CreatedBeforeAccepted => Promise::NothingBeforeAcceptance,
            Broken::GoneWhileRunning | Broken::StartedAfterGone => Promise::FinalizerKept,
            Broken::AnothersExecution => Promise::OwnExecutionsOnly,
            Broken::WriteRefused => Promise::LegalWrites,
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Broken::StartedTwice => "the command was started twice",
            Broken::StartedAfterFinished => "the command was started after the Job was Finished",
            Broken::FinishedWhileRunning => "the Job is Finished while its command runs",
            Broken::FalseSuccess => "a success that was none",
            Broken::OwnEndHidden => "the command ended by itself, and the Job says otherwise",
            Broken::NobodyStopped => "the Job says that it was stopped, and no stop is stored",
            Broken::OutsiderCalledOurs => {
                "an outsider ended the command before a stop was stored, and it is called ours"
            }
            Broken::NeverStartedButDid => "the Job says that its command did not start, and it did",
            Broken::LostButKnown => "the Job says that its execution is lost, and nothing was",
            Broken::FinalChanged => "what was final has changed",
            Broken::CreatedBeforeAccepted => "something was created before Accepted was stored",
            Broken::GoneWhileRunning => "the finalizer is off while the command runs",
            Broken::StartedAfterGone => "the command was started after the finalizer was off",
            Broken::AnothersExecution => "the execution of another Job was touched",
            Broken::KilledUnasked => "a command was killed by us although no stop was stored",
            Broken::WriteRefused => "the API server refuses a write that was decided on what is stored",
        })
    }
}

impl World {
    /// What can be seen wrong with a world as it is.
    pub(crate) fn check(&mut self, library: &Library) {
        let card = library.card(self.job);
        for execution in self.executions.into_iter().filter(Execution::runs) {
            if self.truth(execution.uid).gone {
                self.breaks(Broken::GoneWhileRunning);
            }
            if execution.uid == card.uid && card.finished {
                self.breaks(Broken::FinishedWhileRunning);
            }
        }
    }

    /// A command starts.
    pub(crate) fn starts(&mut self, number: usize, library: &Library) {
        let uid = self.executions[number].uid;
        self.executions[number].life = Life::Running;
        let truth = self.truth(uid);
        truth.starts = (truth.starts + 1).min(2);
        let (twice, gone) = (truth.starts > 1, truth.gone);
        let card = library.card(self.job);
        if twice {
            self.breaks(Broken::StartedTwice);
        } else if gone {
            self.breaks(Broken::StartedAfterGone);
        } else if card.uid == uid && card.finished {
            self.breaks(Broken::StartedAfterFinished);
        }
    }

    /// Something is created for a Job.
    pub(crate) fn creates(&mut self, uid: u8) {
        if !self.truth(uid).accepted {
            self.breaks(Broken::CreatedBeforeAccepted);
        }
    }

    /// The API server stores a version, or lets the Job go.
    pub(crate) fn stores(&mut self, to: Version, library: &Library) {
        let (old, new) = (library.card(self.job), library.card(to));
        if old.finished && (!new.finished || old.result != new.result) {
            self.breaks(Broken::FinalChanged);
        }
        if new.accepted.is_some() {
            self.truth(new.uid).accepted = true;
        }
        if let Some(broken) = (new.finished && !old.finished)
            .then(|| false_result(new, *self.truth(new.uid)))
            .flatten()
        {
            self.breaks(broken);
        }
        let goes = new.deleting && !new.protected;
        if goes || (old.protected && !new.protected) {
            self.truth(new.uid).gone = true;
        }
        self.job = if goes { Version::NONE } else { to };
    }
}

/// Whether a result is not what happened.
fn false_result(card: &Card, truth: Truth) -> Option<Broken> {
    let result = card.result.as_ref()?;
    let own = truth.end == Some(End::ByItself);
    let stop_words = [
        StopReason::CancelRequested,
        StopReason::DeadlineExceeded,
        StopReason::StartingDeadlineExceeded,
        StopReason::JobDeleted,
    ]
    .map(|reason| format!("{reason:?}"));
    let stopped = stop_words.contains(&result.reason);
    let measured = result.exit_code == Some(0);
    match (result.outcome, result.reason.as_str()) {
        (Outcome::Succeeded, _) => (!own || !measured).then_some(Broken::FalseSuccess),
        _ if own && !truth.destroyed && !truth.blurred => Some(Broken::OwnEndHidden),
        _ if stopped && truth.starts > 0 && card.stop.is_none() => Some(Broken::NobodyStopped),
        _ if stopped && truth.end == Some(End::ByOutsider) && !truth.blurred => {
            Some(Broken::OutsiderCalledOurs)
        }
        _ if stopped => None,
        (_, "ExecutionLost") => {
            let explained = truth.destroyed || truth.end == Some(End::ByOutsider) || truth.starts == 0;
            (!explained).then_some(Broken::LostButKnown)
        }
        (_, "PodDeleted" | "Evicted" | "SandboxStopped") => {
            let explained = truth.destroyed || truth.end.is_some() || truth.starts == 0;
            (!explained).then_some(Broken::NeverStartedButDid)
        }
        _ => (truth.starts > 0).then_some(Broken::NeverStartedButDid),
    }
}

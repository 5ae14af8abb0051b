//! Deliberate faults around `decide`, in what a process stores, asks, believes and does. Each must be found, so that a
//! search that finds nothing has shown that it can.

use std::fmt;

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    AcceptanceNotStored,
    AttemptNotStored,
    StartWithoutRecord,
    TrustsStaleReads,
    IgnoresUids,
    ResendsUnanswered,
    RepeatsRequests,
    RunsTheLostAgain,
    StartsWhatItListsFirst,
    UnguardedStart,
    IgnoresTheFence,
    NoMargin,
    ReadsTheClockAfterwards,
    ReleasesEarly,
    StopsByDeleting,
    BelievesAcceptedStops,
    BelievesExits,
    IgnoresWhoAskedFirst,
    BelievesAnotherServer,
    BelievesThatSilenceIsAnEnd,
    DropsFinalizerAtOnce,
    WritesWithoutAVersion,
    NeverLooksAgain,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::AcceptanceNotStored => "an execution is prepared with the acceptance in memory only",
            Fault::AttemptNotStored => "the create request is sent with the attempt in memory only",
            Fault::StartWithoutRecord => "what was found is started with the record in memory only",
            Fault::TrustsStaleReads => "what was decided is written, whatever is stored by now",
            Fault::IgnoresUids => "whatever has the Job's name is taken for the Job's",
            Fault::ResendsUnanswered => "an unanswered create request is taken for a refused one",
            Fault::RepeatsRequests => "something below sends a create request again after a 504",
            Fault::RunsTheLostAgain => "a recorded execution that is gone is replaced",
            Fault::StartsWhatItListsFirst => "the first execution of a list is started, not the recorded one",
            Fault::UnguardedStart => "a start does its work again each time it arrives",
            Fault::IgnoresTheFence => "the command starts however late it comes up",
            Fault::NoMargin => "the margin is smaller than the skew of the clocks",
            Fault::ReadsTheClockAfterwards => "a list's answer is taken to be as old as its arrival",
            Fault::ReleasesEarly => {
                "the execution is given back when its end is seen, before the result is stored"
            }
            Fault::StopsByDeleting => "a command is ended by deleting its execution",
            Fault::BelievesAcceptedStops => {
                "a stop counts as delivered when the server has accepted it (202)"
            }
            Fault::BelievesExits => "a sandbox that exited in order is a success",
            Fault::IgnoresWhoAskedFirst => {
                "the time of a pod's deletion is not compared with that of the stop"
            }
            Fault::BelievesAnotherServer => "a 404 of another server is taken for proof",
            Fault::BelievesThatSilenceIsAnEnd => {
                "a pod that vanished from a node that does not report is taken to have ended"
            }
            Fault::WritesWithoutAVersion => {
                "what was decided on an old copy is sent without its version, and the rules judge it"
            }
            Fault::NeverLooksAgain => "a Job that was seen once is not looked at again",
            Fault::DropsFinalizerAtOnce => "the finalizer is dropped as soon as the Job is being deleted",
        })
    }
}

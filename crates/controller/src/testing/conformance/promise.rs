//! The promises, in words.

use std::fmt;

/// What a backend promises; [`Promise::sentence`] has it in words.
#[allow(missing_docs)] // each has its sentence
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promise {
    NothingIsShownOfNothing,
    PreparingStartsNothing,
    TheRecordedStartsOnce,
    OnlyTheRecordedStarts,
    SubmittingStartsOnce,
    NothingIsSentTooLate,
    NothingStartsTooLate,
    LostAnswersAreUnanswered,
    RefusalsAreRefused,
    ExitCodesAreExact,
    MissingCommandsAreStartErrors,
    WhatRunsHasNotEnded,
    StopsEnd,
    StopsEndTheStubborn,
    StoppedIsNotEndedByItself,
    AnEarlierEndKeepsItsCode,
    ReleaseGivesBack,
    RemoveLeavesNothing,
    ThePreparedCanBeRemoved,
    TheLateCanBeDiscarded,
    RenewingPutsOffTheExpiry,
    NamesakesDoNotMeet,
    ChangesAreTold,
    StrangersAreLeftAlone,
    WhatVanishedIsNoSuccess,
    SilenceProvesNothing,
    CreationIsBounded,
    NoSecretIsTold,
}

impl Promise {
    /// All of them, in the order in which they are reported.
    pub const ALL: &[Self] = &[
        Self::NothingIsShownOfNothing,
        Self::PreparingStartsNothing,
        Self::TheRecordedStartsOnce,
        Self::OnlyTheRecordedStarts,
        Self::SubmittingStartsOnce,
        Self::NothingIsSentTooLate,
        Self::NothingStartsTooLate,
        Self::LostAnswersAreUnanswered,
        Self::RefusalsAreRefused,
        Self::ExitCodesAreExact,
        Self::MissingCommandsAreStartErrors,
        Self::WhatRunsHasNotEnded,
        Self::StopsEnd,
        Self::StopsEndTheStubborn,
        Self::StoppedIsNotEndedByItself,
        Self::AnEarlierEndKeepsItsCode,
        Self::ReleaseGivesBack,
        Self::RemoveLeavesNothing,
        Self::ThePreparedCanBeRemoved,
        Self::TheLateCanBeDiscarded,
        Self::RenewingPutsOffTheExpiry,
        Self::NamesakesDoNotMeet,
        Self::ChangesAreTold,
        Self::StrangersAreLeftAlone,
        Self::WhatVanishedIsNoSuccess,
        Self::SilenceProvesNothing,
        Self::CreationIsBounded,
        // The last: it judges everything that was said before.
        Self::NoSecretIsTold,
    ];

    /// The promise.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NothingIsShownOfNothing => "nothing is shown of a Job of which nothing exists",
            Self::PreparingStartsNothing => {
                "preparing, also twice, starts nothing; what is prepared is found, and held until it is started"
            }
            Self::TheRecordedStartsOnce => {
                "the recorded execution starts once, however often and by whichever replica it is started"
            }
            Self::OnlyTheRecordedStarts => "a start of what was not recorded starts nothing",
            Self::SubmittingStartsOnce => "a submission starts once and is found under the name it was given",
            Self::NothingIsSentTooLate => "no create request is sent after its window",
            Self::NothingStartsTooLate => "no command starts after its fence, and the end says so",
            Self::LostAnswersAreUnanswered => "a create request whose answer was lost is told as unanswered",
            Self::RefusalsAreRefused => "a create request that the server refused is told as refused",
            Self::ExitCodesAreExact => "exit codes are told exactly",
            Self::MissingCommandsAreStartErrors => {
                "a command that does not exist is a StartError, and no code"
            }
            Self::WhatRunsHasNotEnded => "nothing is told as ended while its process runs",
            Self::StopsEnd => {
                "a stop, also sent often and by two replicas, ends the process for the stop's reason"
            }
            Self::StopsEndTheStubborn => "a stop ends also a process that ignores being told to end",
            Self::StoppedIsNotEndedByItself => {
                "a process that exits with 0 when it is stopped has not succeeded"
            }
            Self::AnEarlierEndKeepsItsCode => "an end before a stop keeps its own code",
            Self::ReleaseGivesBack => "a release, also a second one, leaves nothing running",
            Self::RemoveLeavesNothing => {
                "what remains is told before a removal; after it, also a second one, nothing does"
            }
            Self::ThePreparedCanBeRemoved => "what was prepared and never recorded can be removed, unstarted",
            Self::TheLateCanBeDiscarded => "what was created and never recorded can be discarded",
            Self::RenewingPutsOffTheExpiry => {
                "where executions expire, a renewal, also by two replicas, puts that off and touches nothing else"
            }
            Self::NamesakesDoNotMeet => "Jobs of one name in two namespaces do not touch each other",
            Self::ChangesAreTold => "every change of an execution is among the changes",
            Self::StrangersAreLeftAlone => {
                "what somebody else made in the Job's name is not taken for its own, nor removed"
            }
            Self::WhatVanishedIsNoSuccess => "an execution deleted behind the adapter's back is no success",
            Self::SilenceProvesNothing => {
                "while the server cannot be reached nothing is called absent, ended, gone or done"
            }
            Self::CreationIsBounded => {
                "no more may be created at once than a bound, and who is turned away is woken"
            }
            Self::NoSecretIsTold => "no text for people holds a value of the Job's environment",
        }
    }

    /// Whether it needs the server for itself: its faults would be everybody's.
    pub(super) fn is_tried_alone(self) -> bool {
        match self {
            Self::LostAnswersAreUnanswered
            | Self::RefusalsAreRefused
            | Self::SilenceProvesNothing
            | Self::CreationIsBounded
            | Self::NoSecretIsTold => true,
            Self::NothingIsShownOfNothing
            | Self::PreparingStartsNothing
            | Self::TheRecordedStartsOnce
            | Self::OnlyTheRecordedStarts
            | Self::SubmittingStartsOnce
            | Self::NothingIsSentTooLate
            | Self::NothingStartsTooLate
            | Self::ExitCodesAreExact
            | Self::MissingCommandsAreStartErrors
            | Self::WhatRunsHasNotEnded
            | Self::StopsEnd
            | Self::StopsEndTheStubborn
            | Self::StoppedIsNotEndedByItself
            | Self::AnEarlierEndKeepsItsCode
            | Self::ReleaseGivesBack
            | Self::RemoveLeavesNothing
            | Self::ThePreparedCanBeRemoved
            | Self::TheLateCanBeDiscarded
            | Self::RenewingPutsOffTheExpiry
            | Self::NamesakesDoNotMeet
            | Self::ChangesAreTold
            | Self::StrangersAreLeftAlone
            | Self::WhatVanishedIsNoSuccess => false,
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.sentence())
    }
}

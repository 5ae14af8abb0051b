//! How each promise is tried.

mod ending;
mod faults;
mod lasting;
mod leaving;
mod starting;
mod submitting;

use crate::testing::conformance::world::World;
use crate::testing::conformance::{Promise, Subject};

/// Tries one promise.
pub(super) async fn keep<S: Subject>(promise: Promise, world: &World<'_, S>) -> anyhow::Result<()> {
    match promise {
        Promise::NothingIsShownOfNothing => starting::nothing_is_shown_of_nothing(world).await,
        Promise::PreparingStartsNothing => starting::preparing_starts_nothing(world).await,
        Promise::TheRecordedStartsOnce => starting::the_recorded_starts_once(world).await,
        Promise::OnlyTheRecordedStarts => starting::only_the_recorded_starts(world).await,
        Promise::CreationIsBounded => starting::creation_is_bounded(world).await,
        Promise::TheLateCanBeDiscarded => leaving::the_late_can_be_discarded(world).await,
        Promise::RenewingPutsOffTheExpiry => lasting::renewing_puts_off_the_expiry(world).await,
        Promise::NamesakesDoNotMeet => starting::namesakes_do_not_meet(world).await,
        Promise::SubmittingStartsOnce => submitting::submitting_starts_once(world).await,
        Promise::NothingIsSentTooLate => submitting::nothing_is_sent_too_late(world).await,
        Promise::NothingStartsTooLate => submitting::nothing_starts_too_late(world).await,
        Promise::LostAnswersAreUnanswered => submitting::lost_answers_are_unanswered(world).await,
        Promise::RefusalsAreRefused => submitting::refusals_are_refused(world).await,
        Promise::ExitCodesAreExact => ending::exit_codes_are_exact(world).await,
        Promise::MissingCommandsAreStartErrors => ending::missing_commands_are_start_errors(world).await,
        Promise::WhatRunsHasNotEnded => ending::what_runs_has_not_ended(world).await,
        Promise::StopsEnd => ending::stops_end(world).await,
        Promise::StopsEndTheStubborn => ending::stops_end_the_stubborn(world).await,
        Promise::StoppedIsNotEndedByItself => ending::stopped_is_not_ended_by_itself(world).await,
        Promise::AnEarlierEndKeepsItsCode => ending::an_earlier_end_keeps_its_code(world).await,
        Promise::ChangesAreTold => ending::changes_are_told(world).await,
        Promise::ReleaseGivesBack => leaving::release_gives_back(world).await,
        Promise::RemoveLeavesNothing => leaving::remove_leaves_nothing(world).await,
        Promise::ThePreparedCanBeRemoved => leaving::the_prepared_can_be_removed(world).await,
        Promise::StrangersAreLeftAlone => leaving::strangers_are_left_alone(world).await,
        Promise::WhatVanishedIsNoSuccess => faults::what_vanished_is_no_success(world).await,
        Promise::SilenceProvesNothing => faults::silence_proves_nothing(world).await,
        Promise::NoSecretIsTold => faults::no_secret_is_told(world).await,
    }
}

//! How each promise is tried.

mod ending;
mod faults;
mod lasting;
mod leaving;
mod starting;
mod submitting;

use std::pin::Pin;

use crate::testing::conformance::world::World;
use crate::testing::conformance::{Promise, Subject};

/// Tries one promise.
pub(super) fn keep<'a, S: Subject>(promise: Promise, world: &'a World<'_, S>) -> Kept<'a> {
    match promise {
        Promise::NothingIsShownOfNothing => boxed(|| starting::nothing_is_shown_of_nothing(world)),
        Promise::PreparingStartsNothing => boxed(|| starting::preparing_starts_nothing(world)),
        Promise::TheRecordedStartsOnce => boxed(|| starting::the_recorded_starts_once(world)),
        Promise::OnlyTheRecordedStarts => boxed(|| starting::only_the_recorded_starts(world)),
        Promise::CreationIsBounded => boxed(|| starting::creation_is_bounded(world)),
        Promise::TheLateCanBeDiscarded => boxed(|| leaving::the_late_can_be_discarded(world)),
        Promise::RenewingPutsOffTheExpiry => boxed(|| lasting::renewing_puts_off_the_expiry(world)),
        Promise::NamesakesDoNotMeet => boxed(|| starting::namesakes_do_not_meet(world)),
        Promise::SubmittingStartsOnce => boxed(|| submitting::submitting_starts_once(world)),
        Promise::NothingIsSentTooLate => boxed(|| submitting::nothing_is_sent_too_late(world)),
        Promise::NothingStartsTooLate => boxed(|| submitting::nothing_starts_too_late(world)),
        Promise::LostAnswersAreUnanswered => boxed(|| submitting::lost_answers_are_unanswered(world)),
        Promise::RefusalsAreRefused => boxed(|| submitting::refusals_are_refused(world)),
        Promise::ExitCodesAreExact => boxed(|| ending::exit_codes_are_exact(world)),
        Promise::MissingCommandsAreStartErrors => boxed(|| ending::missing_commands_are_start_errors(world)),
        Promise::WhatRunsHasNotEnded => boxed(|| ending::what_runs_has_not_ended(world)),
        Promise::StopsEnd => boxed(|| ending::stops_end(world)),
        Promise::StopsEndTheStubborn => boxed(|| ending::stops_end_the_stubborn(world)),
        Promise::StoppedIsNotEndedByItself => boxed(|| ending::stopped_is_not_ended_by_itself(world)),
        Promise::AnEarlierEndKeepsItsCode => boxed(|| ending::an_earlier_end_keeps_its_code(world)),
        Promise::ChangesAreTold => boxed(|| ending::changes_are_told(world)),
        Promise::ReleaseGivesBack => boxed(|| leaving::release_gives_back(world)),
        Promise::RemoveLeavesNothing => boxed(|| leaving::remove_leaves_nothing(world)),
        Promise::ThePreparedCanBeRemoved => boxed(|| leaving::the_prepared_can_be_removed(world)),
        Promise::StrangersAreLeftAlone => boxed(|| leaving::strangers_are_left_alone(world)),
        Promise::WhatVanishedIsNoSuccess => boxed(|| faults::what_vanished_is_no_success(world)),
        Promise::SilenceProvesNothing => boxed(|| faults::silence_proves_nothing(world)),
        Promise::NoSecretIsTold => boxed(|| faults::no_secret_is_told(world)),
    }
}

type Kept<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// Puts a future onto the heap where it is made: a function with room for all of them would need more stack than a test
/// has.
fn boxed<'a, F: Future<Output = anyhow::Result<()>> + 'a>(make: impl FnOnce() -> F) -> Kept<'a> {
    Box::pin(make())
}

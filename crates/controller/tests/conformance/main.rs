//! The fake backend keeps every promise, and the suite notices when a backend does not.

#![allow(clippy::unwrap_used)] // the server is in memory, and answers

mod fake;
mod sinner;

use ayatori_controller::testing::conformance::{self, Promise, Verdict};
use ayatori_core::parameters::CommandMode;
use fake::FakeSubject;
use futures::FutureExt;
use futures::future::join_all;
use sinner::{Sin, Sinner};

#[tokio::test]
async fn the_fake_conforms_where_it_holds() -> anyhow::Result<()> {
    let subject = FakeSubject::new(CommandMode::Execd, |fake, _| fake);
    conformance::run(&subject).await?.verdict()
}

#[tokio::test]
async fn the_fake_conforms_where_creating_is_starting() -> anyhow::Result<()> {
    let subject = FakeSubject::new(CommandMode::Entrypoint, |fake, _| fake);
    conformance::run(&subject).await?.verdict()
}

#[tokio::test]
async fn every_promise_is_tried_on_the_fake_by_one_protocol_or_the_other() -> anyhow::Result<()> {
    let mut kept = vec![];
    for mode in [CommandMode::Execd, CommandMode::Entrypoint] {
        let report = conformance::run(&FakeSubject::new(mode, |fake, _| fake)).await?;
        let of_this = report.verdicts().iter();
        kept.extend(
            of_this
                .filter(|(_, verdict)| *verdict == Verdict::Kept)
                .map(|(promise, _)| *promise),
        );
    }
    let missing: Vec<_> = Promise::ALL
        .iter()
        .filter(|promise| !kept.contains(promise))
        .collect();
    assert!(missing.is_empty(), "never tried: {missing:?}");
    Ok(())
}

#[tokio::test]
async fn each_sin_against_a_promise_is_noticed() -> anyhow::Result<()> {
    let trials = sins()
        .into_iter()
        .map(|(sin, mode, promise)| commit(sin, mode, promise).boxed_local());
    let unnoticed: Vec<_> = join_all(trials)
        .await
        .into_iter()
        .filter_map(Result::err)
        .collect();
    anyhow::ensure!(unnoticed.is_empty(), "{unnoticed:#?}");
    Ok(())
}

async fn commit(sin: Sin, mode: CommandMode, promise: Promise) -> anyhow::Result<()> {
    let subject = FakeSubject::new(mode, move |fake, server| Sinner::new(fake, server, sin));
    let report = conformance::try_these(&subject, &[promise]).await?;
    anyhow::ensure!(
        report.broken() == [promise],
        "{sin:?} should break {promise:?}:\n{report}"
    );
    Ok(())
}

#[test]
fn there_is_a_sin_against_every_promise() {
    let missing: Vec<_> = Promise::ALL
        .iter()
        .filter(|promise| sins().iter().all(|(_, _, against)| against != *promise))
        .collect();
    assert!(
        missing.is_empty(),
        "no sin tries whether the suite notices: {missing:?}"
    );
}

#[tokio::test]
async fn a_subject_that_can_cause_nothing_does_not_pass() -> anyhow::Result<()> {
    let subject = FakeSubject::new(CommandMode::Execd, |fake, _| fake).without_faults();
    let report = conformance::run(&subject).await?;
    let required = [Promise::WhatVanishedIsNoSuccess, Promise::SilenceProvesNothing];
    assert_eq!(report.broken(), required);
    let left = |(_, verdict): &&(Promise, Verdict)| matches!(verdict, Verdict::NotTried(_));
    assert_eq!(report.verdicts().iter().filter(left).count(), 1, "{report}");
    assert!(report.verdict().is_err());
    Ok(())
}

/// Each sin, where it is committed, and the promise it breaks.
#[rustfmt::skip] // one row, one line
fn sins() -> Vec<(Sin, CommandMode, Promise)> {
    use CommandMode::{Entrypoint, Execd};
    vec![
        (Sin::ShowsAnEndOfNothing, Execd, Promise::NothingIsShownOfNothing),
        (Sin::StartsByPreparing, Execd, Promise::PreparingStartsNothing),
        (Sin::StartsAgain, Execd, Promise::TheRecordedStartsOnce),
        (Sin::StartsWhatItFinds, Execd, Promise::OnlyTheRecordedStarts),
        (Sin::SubmitsTwice, Entrypoint, Promise::SubmittingStartsOnce),
        (Sin::SendsWhatIsLate, Entrypoint, Promise::NothingIsSentTooLate),
        (Sin::HasNoFence, Entrypoint, Promise::NothingStartsTooLate),
        (Sin::CallsTheLostRefused, Entrypoint, Promise::LostAnswersAreUnanswered),
        (Sin::CallsTheRefusedUnanswered, Entrypoint, Promise::RefusalsAreRefused),
        (Sin::CutsCodes, Execd, Promise::ExitCodesAreExact),
        (Sin::CutsCodes, Entrypoint, Promise::ExitCodesAreExact),
        (Sin::CallsMissingCommands127, Execd, Promise::MissingCommandsAreStartErrors),
        (Sin::CallsMissingCommands127, Entrypoint, Promise::MissingCommandsAreStartErrors),
        (Sin::CallsTheRunningEnded, Execd, Promise::WhatRunsHasNotEnded),
        (Sin::CallsTheRunningEnded, Entrypoint, Promise::WhatRunsHasNotEnded),
        (Sin::StopsNothing, Execd, Promise::StopsEnd),
        (Sin::StopsNothing, Entrypoint, Promise::StopsEnd),
        (Sin::OnlyAsksPolitely, Execd, Promise::StopsEndTheStubborn),
        (Sin::ForgetsTheStop, Execd, Promise::StoppedIsNotEndedByItself),
        (Sin::BlamesTheStop, Execd, Promise::AnEarlierEndKeepsItsCode),
        (Sin::BlamesTheStop, Entrypoint, Promise::AnEarlierEndKeepsItsCode),
        (Sin::RestartsByReleasing, Execd, Promise::ReleaseGivesBack),
        (Sin::CallsEverythingNothing, Execd, Promise::RemoveLeavesNothing),
        (Sin::RemovesNothing, Entrypoint, Promise::RemoveLeavesNothing),
        (Sin::ForgetsThePrepared, Execd, Promise::ThePreparedCanBeRemoved),
        (Sin::DiscardsNothing, Entrypoint, Promise::TheLateCanBeDiscarded),
        (Sin::RenewsNothing, Execd, Promise::RenewingPutsOffTheExpiry),
        (Sin::RenewsNothing, Entrypoint, Promise::RenewingPutsOffTheExpiry),
        (Sin::RestartsByRenewing, Execd, Promise::RenewingPutsOffTheExpiry),
        (Sin::GoesByTheName, Execd, Promise::NamesakesDoNotMeet),
        (Sin::GoesByTheName, Entrypoint, Promise::NamesakesDoNotMeet),
        (Sin::TellsNoChange, Execd, Promise::ChangesAreTold),
        (Sin::TakesStrangers, Execd, Promise::StrangersAreLeftAlone),
        (Sin::TakesStrangers, Entrypoint, Promise::StrangersAreLeftAlone),
        (Sin::RemovesStrangers, Entrypoint, Promise::StrangersAreLeftAlone),
        (Sin::CallsTheVanishedDone, Execd, Promise::WhatVanishedIsNoSuccess),
        (Sin::CallsTheVanishedDone, Entrypoint, Promise::WhatVanishedIsNoSuccess),
        (Sin::TakesSilenceForGone, Execd, Promise::SilenceProvesNothing),
        (Sin::TakesSilenceForDone, Execd, Promise::SilenceProvesNothing),
        (Sin::TakesSilenceForAbsent, Entrypoint, Promise::SilenceProvesNothing),
        (Sin::TakesSilenceForNothing, Execd, Promise::SilenceProvesNothing),
        (Sin::WakesNobody, Execd, Promise::CreationIsBounded),
        (Sin::RepeatsSecrets, Execd, Promise::NoSecretIsTold),
        (Sin::RepeatsSecrets, Entrypoint, Promise::NoSecretIsTold),
    ]
}

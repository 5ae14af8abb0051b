//! What a run of the suite came to.

use std::fmt;

use crate::testing::conformance::Promise;

/// What one promise came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was tried and kept.
    Kept,
    /// It was tried and broken, for this reason.
    Broken(String),
    /// It is about something this backend does not do.
    DoesNotApply(String),
    /// The subject could not cause what it is about.
    NotTried(String),
}

/// Why a promise was neither kept nor broken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Beside {
    #[error("{0}")]
    DoesNotApply(String),
    #[error("{0}")]
    NotTried(String),
}

impl Verdict {
    pub(super) fn of(kept: anyhow::Result<()>) -> Self {
        let Err(error) = kept else {
            return Self::Kept;
        };
        match error.downcast_ref::<Beside>() {
            Some(Beside::DoesNotApply(why)) => Self::DoesNotApply(why.clone()),
            Some(Beside::NotTried(why)) => Self::NotTried(why.clone()),
            None => Self::Broken(format!("{error:#}")),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => write!(to, "kept"),
            Self::Broken(why) => write!(to, "BROKEN: {why}"),
            Self::DoesNotApply(why) => write!(to, "does not apply: {why}"),
            Self::NotTried(why) => write!(to, "not tried: {why}"),
        }
    }
}

/// Every promise with its verdict. Printed, it is a table.
#[derive(Clone, Debug)]
pub struct Report {
    verdicts: Vec<(Promise, Verdict)>,
}

impl Report {
    pub(super) fn new(mut verdicts: Vec<(Promise, Verdict)>) -> Self {
        verdicts.sort_by_key(|(promise, _)| *promise);
        Self { verdicts }
    }

    /// Every promise with its verdict.
    pub fn verdicts(&self) -> &[(Promise, Verdict)] {
        &self.verdicts
    }

    /// The promises that were broken.
    pub fn broken(&self) -> Vec<Promise> {
        let broken = |(promise, verdict): &(Promise, Verdict)| {
            matches!(verdict, Verdict::Broken(_)).then_some(*promise)
        };
        self.verdicts.iter().filter_map(broken).collect()
    }

    /// Prints the table; an error if a promise was broken.
    pub fn verdict(self) -> anyhow::Result<()> {
        println!("{self}");
        let broken = self.broken();
        anyhow::ensure!(
            broken.is_empty(),
            "the backend does not conform, broken are: {broken:?}"
        );
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.verdicts.iter().map(|(p, _)| p.sentence().len()).max();
        let width = width.unwrap_or_default();
        for (promise, verdict) in &self.verdicts {
            writeln!(to, "{:width$} | {verdict}", promise.sentence())?;
        }
        Ok(())
    }
}

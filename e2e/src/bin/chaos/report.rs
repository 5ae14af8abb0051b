//! What came of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// The most that may pass between the last fault and the last change.
const QUIET_WITHIN: f64 = 120.0;

/// All figures of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    /// Objects, with those that were created again under a name.
    pub(crate) jobs: usize,
    pub(crate) seconds: f64,
    /// How often each kind of fault came.
    pub(crate) faults: BTreeMap<String, u32>,
    /// Adapter processes that ended, killed or by themselves, and were started again.
    pub(crate) restarts: u32,
    /// How many Jobs ran to their end, were stopped, were lost, or deleted.
    pub(crate) verdicts: BTreeMap<String, usize>,
    /// Starts that the commands counted.
    pub(crate) starts: u64,
    /// The most that any Job had of them.
    pub(crate) most_starts: u32,
    /// Jobs whose command started more than once, or that say what is not so.
    pub(crate) wrong: Vec<String>,
    /// Jobs that did not end, or did not go when they were deleted.
    pub(crate) stuck: Vec<String>,
    /// What was still there when every Job was gone.
    pub(crate) leaks: Vec<String>,
    /// From the end of the last fault to the last change of anything.
    pub(crate) seconds_to_quiet: f64,
    /// Changes after that.
    pub(crate) changes_after_quiet: u64,
}

impl Report {
    /// Whether every promise was kept.
    pub(crate) fn holds(&self) -> bool {
        self.wrong.is_empty()
            && self.stuck.is_empty()
            && self.leaks.is_empty()
            && self.seconds_to_quiet <= QUIET_WITHIN
            && self.changes_after_quiet == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            to,
            "seed {}: {} Jobs in {:.0} s, {} starts, at most {} of one Job",
            self.seed, self.jobs, self.seconds, self.starts, self.most_starts
        )?;
        writeln!(to, "\nfaults")?;
        for (kind, count) in &self.faults {
            writeln!(to, "{count:>6}  {kind}")?;
        }
        writeln!(to, "{:>6}  adapter processes started again", self.restarts)?;
        writeln!(to, "\nJobs")?;
        for (verdict, count) in &self.verdicts {
            writeln!(to, "{count:>6}  {verdict}")?;
        }
        writeln!(to, "\npromises")?;
        for (what, broken) in [
            ("wrong", &self.wrong),
            ("stuck", &self.stuck),
            ("left behind", &self.leaks),
        ] {
            writeln!(to, "{:>6}  {what}", broken.len())?;
            for each in broken {
                writeln!(to, "        {each}")?;
            }
        }
        writeln!(
            to,
            "{:>6.1}  seconds from the last fault until nothing changed any more (at most {QUIET_WITHIN})",
            self.seconds_to_quiet
        )?;
        writeln!(to, "{:>6}  changes after that", self.changes_after_quiet)?;
        let verdict = if self.holds() {
            "every promise was kept"
        } else {
            "a promise was broken"
        };
        writeln!(to, "\n{verdict}")
    }
}

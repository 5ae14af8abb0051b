//! The stages of a Job, as its conditions tell them: which of them a write has ended, and how long each took.

use ayatori_core::conditions::{self, ACCEPTED, FINISHED, SCHEDULED, STARTED};
use ayatori_core::job::JobStatus;
use jiff::Timestamp;

/// In the order in which they come. Finished may skip those before it.
const STAGES: [&str; 4] = [ACCEPTED, SCHEDULED, STARTED, FINISHED];

/// The way to one condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    /// The condition that became True.
    pub(crate) name: &'static str,
    /// When the one before did, or the Job was created.
    pub(crate) began: Timestamp,
    /// When this one did.
    pub(crate) ended: Timestamp,
}

/// The stages that the write of `after` over `before` has ended. Conditions that are True stay so: a stage is ended by
/// one write, whoever makes it.
pub(crate) fn ended(
    created: Timestamp,
    before: Option<&JobStatus>,
    after: &JobStatus,
) -> impl Iterator<Item = Stage> {
    let mut began = created;
    STAGES.into_iter().filter_map(move |name| {
        let since = conditions::true_since(&after.conditions, name)?;
        let stage = Stage {
            name,
            began,
            // The API keeps whole seconds, of clocks that differ.
            ended: since.max(began),
        };
        began = stage.ended;
        let known = before.is_some_and(|before| conditions::is_true(&before.conditions, name));
        (!known).then_some(stage)
    })
}

#[cfg(test)]
mod tests {
    use ayatori_core::conditions::Statement;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn status(conditions: &[(&'static str, i64)]) -> JobStatus {
        let mut status = JobStatus::default();
        for (name, second) in conditions {
            let statement = Statement::holds(name, "Because", "it is so");
            conditions::state(&mut status.conditions, statement, Some(1), at(*second));
        }
        status
    }

    #[test]
    fn a_stage_lasts_from_the_one_before_and_is_ended_by_one_write() {
        let accepted = status(&[(ACCEPTED, 12)]);
        let started = status(&[(ACCEPTED, 12), (SCHEDULED, 15), (STARTED, 14)]);
        let finished = status(&[(ACCEPTED, 12), (SCHEDULED, 15), (STARTED, 14), (FINISHED, 40)]);
        let mut waits = JobStatus::default();
        let refused = Statement::fails(ACCEPTED, "NoDefaultJobClass", "none");
        conditions::state(&mut waits.conditions, refused, Some(1), at(11));
        for (what, before, after, expected) in [
            ("nothing yet", None, &waits, vec![]),
            ("accepted", Some(&waits), &accepted, vec![(ACCEPTED, 10, 12)]),
            (
                "two at once, by clocks that differ",
                Some(&accepted),
                &started,
                vec![(SCHEDULED, 12, 15), (STARTED, 15, 15)],
            ),
            ("finished", Some(&started), &finished, vec![(FINISHED, 15, 40)]),
            ("released", Some(&finished), &finished, vec![]),
            (
                "never accepted",
                Some(&waits),
                &status(&[(FINISHED, 20)]),
                vec![(FINISHED, 10, 20)],
            ),
        ] {
            let stages: Vec<_> = ended(at(10), before, after)
                .map(|s| (s.name, s.began.as_second(), s.ended.as_second()))
                .collect();
            assert_eq!(stages, expected, "{what}");
        }
    }
}

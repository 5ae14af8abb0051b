//! Whether a Job ended as it should, and as its like on another class.

use ayatori_core::conditions::{ACCEPTED, find};
use ayatori_core::job::Job;
use std::fmt;

/// Says on a Job how it should end.
const EXPECT: &str = "demo.ayatori.ddupan.top/expect";

/// How a Job should end; absent where it does not say.
pub(super) fn expected(job: &Job) -> Option<&str> {
    job.metadata.annotations.as_ref()?.get(EXPECT).map(String::as_str)
}

/// How a Job ended, as its status says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    /// Outcome and reason, or why it did not come so far.
    words: String,
    exit_code: Option<i32>,
    /// A stop was asked for. What code a stopped command has, and whether anybody sees it, depends on how a backend
    /// stops.
    stopped: bool,
    gone: bool,
}

impl Ending {
    pub(super) fn of(job: &Job) -> Ending {
        let status = job.status.clone().unwrap_or_default();
        let words = match (&status.result, find(&status.conditions, ACCEPTED)) {
            (Some(result), _) => format!("{:?}, {}", result.outcome, result.reason),
            (None, Some(c)) if c.status == "False" => format!("Rejected, {}", c.reason),
            (None, _) => status
                .state
                .map_or_else(|| "nothing".to_owned(), |state| format!("{state:?}")),
        };
        Ending {
            words,
            exit_code: status.result.and_then(|result| result.exit_code),
            stopped: status.execution.is_some_and(|execution| execution.stop.is_some()),
            gone: is_gone(job),
        }
    }

    /// Whether it is what the Job's annotation says.
    pub(super) fn is_as(&self, expected: &str) -> bool {
        let uncounted = Ending {
            exit_code: None,
            ..self.clone()
        };
        self.to_string() == expected || (self.stopped && uncounted.to_string() == expected)
    }

    /// Whether another backend's is the same to whoever created the Jobs.
    pub(super) fn equals(&self, other: &Ending) -> bool {
        let code = self.exit_code == other.exit_code || (self.stopped && other.stopped);
        code && (&self.words, self.gone) == (&other.words, other.gone)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.words)?;
        if let Some(code) = self.exit_code {
            write!(to, ", {code}")?;
        }
        if self.gone {
            write!(to, ", then gone")?;
        }
        Ok(())
    }
}

pub(super) fn is_gone(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

/// One row of the comparison: a Job's name, and its ending on each class.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) endings: Vec<Ending>,
}

impl Row {
    pub(super) fn is_equal(&self) -> bool {
        self.endings
            .split_first()
            .is_none_or(|(first, others)| others.iter().all(|other| first.equals(other)))
    }
}

/// The rows below the names of the classes, in columns.
pub(super) fn table(classes: &[&str], rows: &[Row]) -> String {
    let heading = std::iter::once("JOB").chain(classes.iter().copied());
    let mut lines = vec![heading.map(str::to_owned).collect::<Vec<_>>()];
    for row in rows {
        let mut line = vec![row.name.clone()];
        line.extend(row.endings.iter().map(Ending::to_string));
        line.push(if row.is_equal() { "equal" } else { "DIFFERENT" }.to_owned());
        lines.push(line);
    }
    let width = |column: usize| {
        lines
            .iter()
            .filter_map(|line| line.get(column))
            .map(String::len)
            .max()
    };
    let widths: Vec<usize> = (0..=classes.len()).filter_map(width).collect();
    let pad = |(column, cell): (usize, &String)| {
        let width = widths.get(column).copied().unwrap_or_default();
        format!("{cell:width$}")
    };
    lines
        .iter()
        .map(|line| {
            let cells: Vec<String> = line.iter().enumerate().map(pad).collect();
            format!("{}\n", cells.join("   ").trim_end())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(words: &str, exit_code: Option<i32>, stopped: bool) -> Ending {
        Ending {
            words: words.to_owned(),
            exit_code,
            stopped,
            gone: false,
        }
    }

    #[test]
    fn only_of_a_stopped_command_backends_may_tell_different_exit_codes() {
        let (succeeded, failed) = ("Succeeded, Completed", "Failed, NonZeroExit");
        let cancelled = "Cancelled, CancelRequested";
        for (one, other, equal) in [
            (
                ending(succeeded, Some(0), false),
                ending(succeeded, Some(0), false),
                true,
            ),
            (
                ending(succeeded, Some(0), false),
                ending(succeeded, None, false),
                false,
            ),
            (
                ending(failed, Some(3), false),
                ending(failed, Some(4), false),
                false,
            ),
            (
                ending(failed, Some(3), false),
                ending(succeeded, Some(3), false),
                false,
            ),
            (
                ending(cancelled, Some(143), true),
                ending(cancelled, None, true),
                true,
            ),
            (
                ending(cancelled, Some(143), true),
                ending(cancelled, None, false),
                false,
            ),
        ] {
            assert_eq!(one.equals(&other), equal, "{one:?}, {other:?}");
        }
        assert!(ending(cancelled, Some(143), true).is_as(cancelled));
        assert!(!ending(failed, Some(3), false).is_as(failed));
    }

    #[test]
    fn a_difference_stands_out_in_the_table() {
        let rows = [
            Row {
                name: "a".into(),
                endings: vec![ending("Succeeded, Completed", Some(0), false); 2],
            },
            Row {
                name: "longer".into(),
                endings: vec![
                    ending("Failed, NonZeroExit", Some(3), false),
                    ending("Failed, ExecutionLost", None, false),
                ],
            },
        ];
        let expected = "\
JOB      one                       two
a        Succeeded, Completed, 0   Succeeded, Completed, 0   equal
longer   Failed, NonZeroExit, 3    Failed, ExecutionLost     DIFFERENT
";
        assert_eq!(table(&["one", "two"], &rows), expected);
    }
}

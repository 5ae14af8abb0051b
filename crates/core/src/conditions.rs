//! Conditions: the words in which every object says what it waits for.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The class: its spec is valid and its parameters exist. The Job: a class took it.
pub const ACCEPTED: &str = "Accepted";
/// The class: new executions can be created now.
pub const READY: &str = "Ready";
/// The Job: its execution exists in the backend and is recorded.
pub const SCHEDULED: &str = "Scheduled";
/// The Job: its command has been started.
pub const STARTED: &str = "Started";
/// The Job: it ended, and `status.result` says how.
pub const FINISHED: &str = "Finished";
/// The Job: what became of the execution cannot be observed at present.
pub const RESULT_UNKNOWN: &str = "ResultUnknown";
/// Any object: what keeps it alive although it is being deleted.
pub const DELETION_BLOCKED: &str = "DeletionBlocked";

/// Reason of conditions that no controller has looked at yet.
pub const PENDING: &str = "Pending";

/// The longest message kept, in bytes. What comes from outside is cut to this.
pub const MESSAGE_LIMIT: usize = 1024;

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody knows.
    Unknown,
}

impl Truth {
    /// The word Kubernetes uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Truth::True => "True",
            Truth::False => "False",
            Truth::Unknown => "Unknown",
        }
    }
}

/// One thing to say about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Type of the condition.
    pub type_: &'static str,
    /// Whether it holds.
    pub truth: Truth,
    /// Stable word for the cause.
    pub reason: String,
    /// For people: names the object, the field and the fix.
    pub message: String,
}

impl Statement {
    /// A statement that `type_` holds.
    pub fn holds(type_: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            type_,
            truth: Truth::True,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// A statement that `type_` does not hold.
    pub fn fails(type_: &'static str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            type_,
            truth: Truth::False,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// The condition of that type, if any.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of that type is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == Truth::True.as_str())
}

/// Whether the condition of that type exists and is not Unknown/Pending, the value no controller wrote.
pub fn was_judged(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.reason != PENDING)
}

/// Since when the condition of that type has been True.
pub fn true_since(conditions: &[Condition], type_: &str) -> Option<Timestamp> {
    find(conditions, type_)
        .filter(|c| c.status == Truth::True.as_str())
        .map(|c| c.last_transition_time.0)
}

/// Puts a statement into a list of conditions. The transition time moves only when the status does, and a
/// statement that says what was already said changes nothing.
pub fn state(conditions: &mut Vec<Condition>, statement: Statement, generation: Option<i64>, now: Timestamp) {
    let Statement {
        type_,
        truth,
        reason,
        message,
    } = statement;
    let message = clean(&message, MESSAGE_LIMIT);
    let previous = conditions.iter_mut().find(|c| c.type_ == type_);
    let last_transition_time = match &previous {
        Some(c) if c.status == truth.as_str() => c.last_transition_time.clone(),
        _ => whole_seconds(now),
    };
    let next = Condition {
        type_: type_.to_owned(),
        status: truth.as_str().to_owned(),
        reason,
        message,
        observed_generation: generation,
        last_transition_time,
    };
    match previous {
        Some(c) => *c = next,
        None => conditions.push(next),
    }
}

/// The time as the API stores it: whole seconds.
pub fn whole_seconds(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Makes text from outside fit for a status: control characters become spaces, of which none are left at its ends, and
/// what exceeds `limit` bytes is cut at a character, with an ellipsis. What is clean stays as it is.
pub fn clean(text: &str, limit: usize) -> String {
    const ELLIPSIS: char = '…';
    let text = text.trim_matches(|c: char| c.is_whitespace() || c.is_control());
    let fits = text.len() <= limit;
    let room = if fits {
        limit
    } else {
        limit.saturating_sub(ELLIPSIS.len_utf8())
    };
    let mut out = String::with_capacity(text.len().min(limit));
    for c in text.chars() {
        let c = if c.is_control() { ' ' } else { c };
        if out.len() + c.len_utf8() > room {
            break;
        }
        out.push(c);
    }
    if !fits {
        out.push(ELLIPSIS);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut conditions = vec![];
        state(
            &mut conditions,
            Statement::fails(ACCEPTED, "A", "a"),
            Some(1),
            at(10),
        );
        state(
            &mut conditions,
            Statement::fails(ACCEPTED, "B", "b"),
            Some(2),
            at(20),
        );
        assert_eq!(conditions[0].last_transition_time.0, at(10));
        assert_eq!(
            (conditions[0].reason.as_str(), conditions[0].observed_generation),
            ("B", Some(2))
        );
        state(
            &mut conditions,
            Statement::holds(ACCEPTED, "C", "c"),
            Some(2),
            at(30),
        );
        assert_eq!(conditions[0].last_transition_time.0, at(30));
        assert_eq!(true_since(&conditions, ACCEPTED), Some(at(30)));
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn text_from_outside_is_cut_at_a_character_and_carries_no_control_characters() {
        for (text, limit, expected) in [
            ("plain", 10, "plain"),
            ("  two\nlines\t", 20, "two lines"),
            ("\u{1b}[1mbold\u{1b} \u{7f}", 20, "[1mbold"),
            ("漢漢漢漢", 10, "漢漢…"),
            ("ééééé", 8, "éé…"),
            ("", 5, ""),
            ("abcdef", 3, "…"),
        ] {
            let cut = clean(text, limit);
            assert_eq!(cut, expected);
            assert_eq!(clean(&cut, limit), cut, "what is clean stays as it is");
            assert!(cut.len() <= limit);
        }
    }
}

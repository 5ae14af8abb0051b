//! Conditions: whatever is said of an object and in whatever order, its conditions tell when each began to hold.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use ayatori_core::conditions::{
    self, ACCEPTED, DELETION_BLOCKED, FINISHED, MESSAGE_LIMIT, READY, RESULT_UNKNOWN, SCHEDULED, STARTED,
    Statement, Truth,
};
use jiff::Timestamp;

const TYPES: [&str; 7] = [
    ACCEPTED,
    READY,
    SCHEDULED,
    STARTED,
    FINISHED,
    RESULT_UNKNOWN,
    DELETION_BLOCKED,
];
const REASONS: [&str; 3] = ["Pending", "JobClassNotReady", "Accepted"];

#[derive(Arbitrary, Debug)]
struct Said {
    type_: u8,
    truth: u8,
    reason: u8,
    message: String,
    generation: Option<i64>,
    /// When, in tenths of seconds; clocks go back too.
    at: i32,
}

pub(crate) fn check(data: &[u8]) {
    let Ok(history) = Vec::<Said>::arbitrary_take_rest(Unstructured::new(data)) else {
        return;
    };
    let mut kept = Vec::new();
    // By type: its truth, since when, and how many came before it.
    let mut model: BTreeMap<&str, (Truth, i64, usize)> = BTreeMap::new();
    for said in &history {
        let Ok(now) = Timestamp::from_millisecond(i64::from(said.at) * 100) else {
            continue;
        };
        let statement = said.statement();
        let (type_, truth) = (statement.type_, statement.truth);
        let message = statement.message.clone();
        conditions::state(&mut kept, statement.clone(), said.generation, now);

        let count = model.len();
        let entry = model.entry(type_).or_insert((truth, now.as_second(), count));
        if entry.0 != truth {
            (entry.0, entry.1) = (truth, now.as_second());
        }
        assert_eq!(kept.len(), model.len(), "one of each type");
        for (type_, (truth, since, place)) in &model {
            let condition = &kept[*place];
            assert_eq!(
                (condition.type_.as_str(), condition.status.as_str()),
                (*type_, truth.as_str())
            );
            assert_eq!(
                condition.last_transition_time.0,
                Timestamp::from_second(*since).expect("a time of before")
            );
        }
        let condition = conditions::find(&kept, type_).expect("it was just said").clone();
        assert_eq!(
            (condition.observed_generation, condition.reason.as_str()),
            (said.generation, said.reason())
        );
        assert_eq!(conditions::is_true(&kept, type_), truth == Truth::True);
        let since = conditions::true_since(&kept, type_);
        assert_eq!(
            since,
            (truth == Truth::True).then_some(condition.last_transition_time.0)
        );
        let shown = &condition.message;
        assert!(
            shown.len() <= MESSAGE_LIMIT && !shown.chars().any(char::is_control),
            "{shown:?}"
        );
        if message.len() <= MESSAGE_LIMIT {
            assert_eq!(
                shown.chars().count(),
                message
                    .trim_matches(|c: char| c.is_whitespace() || c.is_control())
                    .chars()
                    .count(),
                "what fits is kept"
            );
        }

        // Said again, however much later, it changes nothing; nor does its own cleaned message.
        let before = kept.clone();
        let later = now
            .saturating_add(jiff::SignedDuration::from_hours(1))
            .unwrap_or(now);
        conditions::state(&mut kept, statement.clone(), said.generation, later);
        assert_eq!(kept, before);
        let cleaned = Statement {
            message: shown.clone(),
            ..statement
        };
        conditions::state(&mut kept, cleaned, said.generation, later);
        assert_eq!(kept, before);
    }
}

impl Said {
    fn reason(&self) -> &'static str {
        REASONS[usize::from(self.reason) % REASONS.len()]
    }

    fn statement(&self) -> Statement {
        Statement {
            type_: TYPES[usize::from(self.type_) % TYPES.len()],
            truth: [Truth::True, Truth::False, Truth::Unknown][usize::from(self.truth) % 3],
            reason: self.reason().to_owned(),
            message: self.message.clone(),
        }
    }
}

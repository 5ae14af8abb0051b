//! Quantities: what always holds of them, and what Kubernetes says of a table of them.

use std::cmp::Ordering;

use crate::text;
use ayatori_core::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

pub(crate) fn check(data: &[u8]) {
    let Some(texts) = text(data) else { return };
    let (one, other) = texts.split_once('\n').unwrap_or((texts, "1"));
    let (Ok(one), Ok(other)) = (one.parse::<Quantity>(), other.parse::<Quantity>()) else {
        return;
    };
    holds(&one);
    holds(&other);
    let order = one.cmp(&other);
    assert_eq!(other.cmp(&one), order.reverse());
    assert_eq!(one == other, order == Ordering::Equal);
    if let (Some(left), Some(right)) = (one.to_millis_rounded_up(), other.to_millis_rounded_up()) {
        // Rounding keeps the order, and may make equal what is not.
        assert!(left.cmp(&right) == order || left == right);
    }
}

fn holds(quantity: &Quantity) {
    let written = quantity.to_string();
    assert_eq!(ApiQuantity::from(quantity).0, written);
    assert_eq!(written.parse().as_ref(), Ok(quantity));

    let shortest = quantity.canonical();
    let again: Quantity = shortest.parse().expect("a canonical form is a quantity");
    assert_eq!(again, *quantity);
    // Kubernetes too writes a binary quantity that no power of 1024 divides without a suffix, which makes it a decimal one.
    if !shortest.ends_with(|last: char| last.is_ascii_digit()) || shortest.contains('e') {
        assert_eq!(again.canonical(), shortest);
    }
    let settled: Quantity = again.canonical().parse().expect("a canonical form is a quantity");
    assert_eq!(settled.canonical(), again.canonical());
    assert!(!shortest.contains(['.', '+']));

    assert!(!(quantity.is_zero() && quantity.is_negative()));
    let zero = "0".parse::<Quantity>().expect("a number");
    let sign = match (quantity.is_zero(), quantity.is_negative()) {
        (true, _) => Ordering::Equal,
        (false, true) => Ordering::Less,
        (false, false) => Ordering::Greater,
    };
    assert_eq!(quantity.cmp(&zero), sign);

    let (whole, millis) = (quantity.to_bytes_rounded_up(), quantity.to_millis_rounded_up());
    for number in [whole, millis].into_iter().flatten() {
        assert_eq!(number.cmp(&0), sign, "nothing but zero is rounded to zero");
    }
    if let Some(millis) = millis {
        let away_from_zero = i128::from(millis.signum()) * i128::from(millis.unsigned_abs().div_ceil(1000));
        assert_eq!(whole.map(i128::from), Some(away_from_zero));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Questions to `e2e/cluster/differential`, and its answers: `fuzz/README.md` tells how they are made.
    const TABLE: (&str, &str) = (
        include_str!("../quantities/questions.jsonl"),
        include_str!("../quantities/answers.jsonl"),
    );

    #[test]
    fn a_quantity_is_what_the_table_says_that_it_is_to_kubernetes() {
        let (questions, answers) = TABLE;
        assert_eq!(questions.lines().count(), answers.lines().count());
        for (question, answer) in questions.lines().zip(answers.lines()) {
            let read = |line: &str| serde_json::from_str::<Value>(line).unwrap();
            let (question, answer) = (read(question), read(answer));
            let text = question["quantity"].as_str().unwrap();
            let ours = text.parse::<Quantity>().ok();
            let canonical = ours.as_ref().map(Quantity::canonical);
            assert_eq!(canonical.as_deref(), answer["canonical"].as_str(), "{text:?}");
            let Some(ours) = ours else { continue };
            for (ours, theirs) in [
                (ours.to_bytes_rounded_up(), &answer["value"]),
                (ours.to_millis_rounded_up(), &answer["millis"]),
            ] {
                // There is none beyond 64 bits here, and below zero Kubernetes' own is not to be trusted.
                let same = ours.is_none_or(|ours| ours < 0 || Some(ours) == theirs.as_i64());
                assert!(same, "{text:?}: {ours:?}, {theirs}");
            }
        }
    }
}

//! The patch that turns one status into another does so, says nothing of what stays, and leaves alone what it does not
//! know. Two JSON documents, one on each line.

use ayatori_controller::status_writer::difference;
use serde_json::{Map, Value};

use crate::text;

pub(crate) fn check(data: &[u8]) {
    let Some((old, new)) = text(data).and_then(|text| text.split_once('\n')) else {
        return;
    };
    let read = |text: &str| serde_json::from_str::<Value>(text).ok();
    let (Some(old), Some(new)) = (read(old), read(new)) else {
        return;
    };
    let new = without_nulls(new);
    let patch = difference(&old, &new);
    assert_eq!(patched(old.clone(), &patch), new, "by {patch}");

    let stored = without_nulls(old.clone());
    if let (Value::Object(stored), Value::Object(wanted)) = (stored, &new) {
        let nothing = difference(&new, &new);
        assert_eq!(nothing, Value::Object(Map::new()));
        // A field of a version to come, which was not there when the difference was taken.
        let mut newer = stored;
        newer.insert("\u{0}later".to_owned(), Value::Bool(true));
        let Value::Object(after) = patched(Value::Object(newer), &patch) else {
            panic!("an object stays one")
        };
        assert_eq!(
            after.get("\u{0}later"),
            wanted.get("\u{0}later").or(Some(&Value::Bool(true)))
        );
    }
}

/// What statuses are written as: what is absent is left out.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name, without_nulls(value)))
            .collect(),
        other => other,
    }
}

/// `MergePatch` as RFC 7386 writes it down.
fn patched(target: Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else {
        return patch.clone();
    };
    let mut target = match target {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            let before = target.remove(name).unwrap_or(Value::Null);
            target.insert(name.clone(), patched(before, value));
        }
    }
    Value::Object(target)
}

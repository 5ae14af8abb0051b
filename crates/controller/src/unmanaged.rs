//! Objects without their `managedFields`: most of the text of many, which no adapter reads. To find
//! where they stand takes a fraction of what it takes to read them.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow, rename = "managedFields")]
    managed_fields: Option<&'a RawValue>,
}

/// The text of an object, with `null` for its `managedFields`, if it has any.
pub fn unmanaged(text: &str) -> Cow<'_, str> {
    let shorter = || {
        let Parts { metadata } = serde_json::from_str(text).ok()?;
        let Metadata { managed_fields } = serde_json::from_str(metadata.get()).ok()?;
        let fields = managed_fields?.get();
        // A part of the text, borrowed from it.
        let begin = fields.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
        let rest = text.get(begin.checked_add(fields.len())?..)?;
        Some([text.get(..begin)?, "null", rest].concat())
    };
    shorter().map_or(Cow::Borrowed(text), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn nothing_but_the_managed_fields_is_missing() {
        let text = r#"{
            "kind": "Pod",
            "metadata": {
                "name": "a", "labels": {"managedFields": "\"}"},
                "managedFields": [{"manager": "ä", "fieldsV1": {"f:metadata": {"f:labels": {"k:{\"a\":\"]}\"}": {}}}}}],
                "uid": "u"
            },
            "spec": {"containers": [{"name": "c", "env": [{"name": "managedFields", "value": "metadata"}]}]}
        }"#;
        let mut whole: Pod = serde_json::from_str(text).unwrap();
        assert!(whole.metadata.managed_fields.take().is_some());
        let shorter = unmanaged(text);
        assert!(!shorter.contains("f:labels"), "{shorter}");
        assert_eq!(serde_json::from_str::<Pod>(&shorter).unwrap(), whole);
    }

    #[test]
    fn what_has_none_stays_as_it_is() {
        for text in [
            r#"{"metadata": {"name": "a"}, "spec": {}}"#,
            r#"{"metadata": {"managedFields": null}}"#,
            r#"{"spec": {"metadata": {"managedFields": []}}}"#,
            r#"{"metadata": []}"#,
            "[]",
            "nothing",
        ] {
            assert!(matches!(unmanaged(text), Cow::Borrowed(_)), "{text}");
        }
    }
}

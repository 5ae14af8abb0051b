//! The reference of the API's fields, from the schemas of the CRDs.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

/// Fields whose own fields get no rows, and their types: those of Kubernetes itself, which its own reference
/// explains, and the pair that is the same everywhere.
const KNOWN_TYPES: [(&str, &str); 7] = [
    ("limits", "cpu, memory"),
    ("requests", "cpu, memory"),
    ("conditions", "[]Condition"),
    ("allowedNamespaces", "LabelSelector"),
    ("podSecurityContext", "PodSecurityContext"),
    ("containerSecurityContext", "SecurityContext"),
    ("tolerations", "[]Toleration"),
];

/// One page about all kinds.
pub(crate) fn render(crds: &[Value]) -> Result<String> {
    let mut page = "<!-- Generated from crates/core by `cargo xtask crds`. Do not edit. -->\n\
        # Fields of the API\n\n\
        Group and version are `execution.ayatori.ddupan.top/v1alpha1`. A field in **bold** is required. What a \
        condition or result may say is in [Conditions, reasons and results](conditions.md). CPU and memory are \
        quantities of Kubernetes: cores (`2`, `500m`) and bytes (`512Mi`, `1.5Gi`). `kubectl explain` shows the same.\n"
        .to_owned();
    for crd in crds {
        kind(&mut page, crd)?;
    }
    Ok(page)
}

fn kind(page: &mut String, crd: &Value) -> Result<()> {
    let text = |path: &str| crd.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let schema = crd
        .pointer("/spec/versions/0/schema/openAPIV3Schema")
        .context("a CRD without a schema")?;
    let scope = match text("/spec/scope") {
        "Namespaced" => "Lives in a namespace",
        _ => "Cluster-wide",
    };
    let short: Vec<_> = crd
        .pointer("/spec/names/shortNames")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|name| format!("`{name}`"))
        .collect();
    let about = words(schema);
    let (kind, short) = (text("/spec/names/kind"), short.join(", "));
    writeln!(page, "\n## {kind}\n\n{about} {scope}; for short {short}.")?;
    for part in ["spec", "status"] {
        let Some(schema) = schema.pointer(&format!("/properties/{part}")) else {
            continue;
        };
        writeln!(page, "\n| field | type | default | |\n| --- | --- | --- | --- |")?;
        fields(page, schema, part)?;
    }
    Ok(())
}

/// A row for each field of an object, followed by those of the field's own fields.
fn fields(page: &mut String, object: &Value, path: &str) -> Result<()> {
    let required: Vec<_> = object
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, schema) in object
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let known = KNOWN_TYPES
            .iter()
            .find(|(end, _)| end == name)
            .map(|(_, type_)| *type_);
        let path = format!("{path}.{name}");
        let shown = if required.contains(&name.as_str()) {
            format!("**`{path}`**")
        } else {
            format!("`{path}`")
        };
        let type_ = known.map_or_else(|| type_of(schema), str::to_owned);
        let default = schema
            .get("default")
            .filter(|d| !d.is_array())
            .map(|d| format!("`{}`", plain(d)));
        let default = default.unwrap_or_default();
        writeln!(page, "| {shown} | {type_} | {default} | {} |", words(schema))?;
        if known.is_none() {
            let (inner, path) = match schema.get("items") {
                Some(items) => (items, format!("{path}[]")),
                None => (schema, path),
            };
            fields(page, inner, &path)?;
        }
    }
    Ok(())
}

fn type_of(schema: &Value) -> String {
    let empty = Map::new();
    let schema = schema.as_object().unwrap_or(&empty);
    if schema.contains_key("x-kubernetes-int-or-string") {
        return "quantity".to_owned();
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let values: Vec<_> = values.iter().map(|v| format!("`{}`", plain(v))).collect();
        return values.join(", ");
    }
    let format = schema.get("format").and_then(Value::as_str);
    match schema.get("type").and_then(Value::as_str).unwrap_or("any") {
        "array" => format!("[]{}", schema.get("items").map_or_else(String::new, type_of)),
        "object" => match schema.get("additionalProperties") {
            Some(values) => format!("map of {}", type_of(values)),
            None => "object".to_owned(),
        },
        "string" if format == Some("date-time") => "time".to_owned(),
        other => other.to_owned(),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What a schema says about itself, on one line of a table.
fn words(schema: &Value) -> String {
    let text = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_has_a_row_with_its_type_default_and_words() {
        let schema = json!({ "description": "A thing.", "properties": { "spec": { "required": ["size"], "properties": {
            "size": { "type": "integer", "description": "How\nlarge." },
            "mode": { "enum": ["A", "B"], "default": "A", "description": "Either a|b." },
            "parts": { "type": "array", "items": { "type": "object", "properties": { "at": { "type": "string", "format": "date-time" } } } },
            "tolerations": { "type": "array", "items": { "properties": { "key": {} } }, "description": "Of pods." },
        } } } });
        let crd = json!({ "spec": {
            "scope": "Cluster", "names": { "kind": "Thing", "shortNames": ["th"] },
            "versions": [{ "schema": { "openAPIV3Schema": schema } }],
        } });
        let page = render(&[crd]).unwrap();
        for line in [
            "## Thing",
            "A thing. Cluster-wide; for short `th`.",
            "| **`spec.size`** | integer |  | How large. |",
            "| `spec.mode` | `A`, `B` | `A` | Either a\\|b. |",
            "| `spec.parts` | []object |  |  |",
            "| `spec.parts[].at` | time |  |  |",
            "| `spec.tolerations` | []Toleration |  | Of pods. |",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("tolerations[].key"));
    }
}

//! The CustomResourceDefinitions as they are installed.
//!
//! The types state what a single field may hold. Added here is what takes the whole object to say: which
//! fields never change, which parts of the status are set once, and the status a new object is shown with
//! until a controller looks at it.
//!
//! Every rule about a transition stands at the root of the schema. A rule on a field is not evaluated when the
//! field, or anything above it, is removed; a patch of `status: null` would pass it. For the same reason the
//! rules compare presence too. What is not a transition accepts what was already so, since an object stored
//! under an older schema has to be able to drop its finalizer.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use kube::core::{Reason, Rule};
use serde_json::{Map, Value, json};

use crate::conditions::{ACCEPTED, FINISHED, PENDING, READY, RESULT_UNKNOWN, SCHEDULED, STARTED};
use crate::job::Job;
use crate::job_class::JobClass;
use crate::parameters::{KubernetesExecutionParameters, OpenSandboxExecutionParameters};

/// Longest name of a Job or JobClass, in characters: both become label values.
pub const NAME_LIMIT: usize = 63;

/// Most characters that `command`, `args` and the names and values of `env` hold together.
///
/// etcd stores an object of at most 1.5 MiB, and a Job that cannot take its status would be stuck for ever. One
/// character can take six bytes there (`<` is written `\u003c`): 768 KiB at worst, and half of the room is left
/// for metadata, references and the status.
pub const TEXT_LIMIT: usize = 128 * 1024;

/// All four definitions.
pub fn all() -> [CustomResourceDefinition; 4] {
    [
        job(),
        job_class(),
        kubernetes_parameters(),
        opensandbox_parameters(),
    ]
}

/// The definition of `Job`.
pub fn job() -> CustomResourceDefinition {
    let rules = [job_spec_rules(), job_status_rules(), job_finish_rules()].concat();
    let message = "waiting for controller: neither the adapter of its class nor a controller that spec.managedBy names has \
                   looked at this Job yet";
    let status = json!({ "state": "Waiting", "conditions": [pending(ACCEPTED, message)] });
    finish(Job::crd(), rules, vec![("status", status)])
}

/// The definition of `JobClass`.
pub fn job_class() -> CustomResourceDefinition {
    let rules = vec![
        name_limit("JobClass"),
        immutable("controllerName", "JobClass"),
        immutable("parametersRef", "JobClass"),
    ];
    let message = "waiting for controller: no adapter has looked at this JobClass yet";
    let status = json!({ "conditions": [pending(ACCEPTED, message), pending(READY, message)] });
    finish(JobClass::crd(), rules, vec![("status", status)])
}

/// The definition of `KubernetesExecutionParameters`.
pub fn kubernetes_parameters() -> CustomResourceDefinition {
    finish(KubernetesExecutionParameters::crd(), Vec::new(), Vec::new())
}

/// The definition of `OpenSandboxExecutionParameters`.
pub fn opensandbox_parameters() -> CustomResourceDefinition {
    let defaults = vec![
        ("spec.commandMode", json!("Entrypoint")),
        ("spec.requestMapping", json!("AdmissionOnly")),
        ("spec.allowSecretEnv", json!(false)),
        ("spec.allowImageAuth", json!(false)),
        ("spec.allowInsecureHTTP", json!(false)),
    ];
    finish(
        OpenSandboxExecutionParameters::crd(),
        opensandbox_rules(),
        defaults,
    )
}

// ---- Job: the spec ----

/// Fields of a Job that nobody changes, and the few that change in one direction.
fn job_spec_rules() -> Vec<Rule> {
    let mut rules = vec![name_limit("Job"), text_limit()];
    rules.extend(["image", "jobClassName", "workingDir", "resources"].map(|field| immutable(field, "Job")));
    rules.extend(["command", "args", "env", "envFrom", "imagePullSecrets"].map(immutable_list));
    rules.extend(
        [
            "activeDeadlineSeconds",
            "startingDeadlineSeconds",
            "terminationGracePeriodSeconds",
            "managedBy",
        ]
        .map(|field| immutable(field, "Job")),
    );
    rules.push(forbidden(
        "spec.suspend",
        format!("{} || !{}", is_set("oldSelf", "spec.suspend"), is_set("self", "spec.suspend")),
        "spec.suspend may go from true to false, never back: set spec.cancelRequested to true to stop the Job",
    ));
    rules.push(forbidden(
        "spec.cancelRequested",
        format!(
            "!{} || {}",
            is_set("oldSelf", "spec.cancelRequested"),
            is_set("self", "spec.cancelRequested")
        ),
        "spec.cancelRequested cannot be taken back once it is true: create a new Job instead",
    ));
    rules
}

fn text_limit() -> Rule {
    let texts =
        |field: &str| format!("(has(self.spec.{field}) ? self.spec.{field}.map(s, size(s)).sum() : 0)");
    let env = "(has(self.spec.env) ? self.spec.env.map(e, size(e.name) + (has(e.value) ? size(e.value) : 0)).sum() : 0)";
    Rule::new(format!(
        "oldSelf.hasValue() || {} + {} + {env} <= {TEXT_LIMIT}",
        texts("command"),
        texts("args")
    ))
    .optional_old_self(true)
    .field_path(".spec")
    .reason(Reason::FieldValueForbidden)
    .message(
        format!(
            "spec.command, spec.args and spec.env hold more than {TEXT_LIMIT} characters together: \
                 keep large input in a ConfigMap, a Secret, the image or an object store"
        )
        .as_str(),
    )
}

// ---- Job: the status ----

/// What a status says once and for all.
fn job_status_rules() -> Vec<Rule> {
    let mut rules: Vec<Rule> = [
        "resolvedJobClass",
        "resources",
        "startTime",
        "finishTime",
        "result",
        "execution.id",
        "execution.uid",
        "execution.nodeName",
        "execution.startRequestedTime",
        "execution.stop.reason",
        "execution.stop.requestedTime",
        "execution.stop.deliveredTime",
        "execution.releaseTime",
    ]
    .into_iter()
    .map(set_once)
    .collect();
    rules.extend([
        attempt_is_kept(),
        backend_is_kept(),
        no_start_after_stop(),
        no_release_before_the_end(),
    ]);
    rules.extend([ACCEPTED, SCHEDULED, STARTED, FINISHED].map(stays_true));
    rules
}

const ATTEMPT: &str = "status.execution.attempt";
const BACKEND: &str = "status.execution.backend";
const EXECUTION_ID: &str = "status.execution.id";

/// The one create request that may have been sent is forgotten only where it provably created nothing.
fn attempt_is_kept() -> Rule {
    forbidden(
        ATTEMPT,
        format!(
            "{} || ({} && {})",
            kept(ATTEMPT),
            absent("self", BACKEND),
            nothing_created()
        ),
        "status.execution.attempt never changes: it may only be removed, together with status.execution.backend, while status.execution.id is unset",
    )
}

/// As is the server it went to.
fn backend_is_kept() -> Rule {
    forbidden(
        BACKEND,
        format!(
            "{} || ({} && {} && {})",
            kept(BACKEND),
            present("oldSelf", ATTEMPT),
            absent("self", BACKEND),
            nothing_created()
        ),
        "status.execution.backend never changes: it may only be removed, together with status.execution.attempt, while status.execution.id is unset",
    )
}

fn nothing_created() -> String {
    [
        absent("self", ATTEMPT),
        absent("self", EXECUTION_ID),
        absent("oldSelf", EXECUTION_ID),
    ]
    .join(" && ")
}

/// A replica that decided to start on a copy read before the stop was stored must not have its way.
fn no_start_after_stop() -> Rule {
    const START: &str = "status.execution.startRequestedTime";
    forbidden(
        START,
        format!(
            "{} || {} || {}",
            absent("oldSelf", "status.execution.stop"),
            present("oldSelf", START),
            absent("self", START)
        ),
        "status.execution.startRequestedTime cannot be set any more: status.execution.stop is set, and a stopped Job is not started",
    )
}

/// What was released is looked after by nobody any more.
fn no_release_before_the_end() -> Rule {
    const RELEASE: &str = "status.execution.releaseTime";
    forbidden(
        RELEASE,
        format!(
            "{} || {} || {}",
            present("oldSelf", RELEASE),
            absent("self", RELEASE),
            present("self", "status.finishTime")
        ),
        "status.execution.releaseTime cannot be set yet: status.finishTime is not set, and what may run is not released",
    )
}

/// A condition that became True stays True, and stays True since the same time.
fn stays_true(condition: &str) -> Rule {
    forbidden(
        "status.conditions",
        format!(
            "{} || oldSelf.status.conditions.all(o, o.type != '{condition}' || o.status != 'True' || ({} && \
             self.status.conditions.exists(c, c.type == '{condition}' && c.status == 'True' && c.lastTransitionTime == o.lastTransitionTime)))",
            absent("oldSelf", "status.conditions"),
            present("self", "status.conditions"),
        ),
        &format!("status.conditions: {condition} is True and stays so, with its lastTransitionTime"),
    )
}

/// What has to be there when a Job becomes `Finished=True`.
///
/// A status cannot be written at creation, so these can be plain transition rules: they judge the write that
/// finishes the Job and leave alone one that was finished before.
fn job_finish_rules() -> Vec<Rule> {
    let becomes_finished = format!(
        "{} && !{}",
        is_true("self", FINISHED),
        is_true("oldSelf", FINISHED)
    );
    let needs = |field: &str| {
        required(
            field,
            format!("!({becomes_finished}) || {}", present("self", field)),
            &format!("{field} must be set in the write that sets the condition {FINISHED} to True"),
        )
    };
    vec![
        needs("status.result"),
        needs("status.finishTime"),
        forbidden(
            "status.conditions",
            format!(
                "!({} && {}) || ({} && {})",
                is_true("self", FINISHED),
                is_true("self", RESULT_UNKNOWN),
                is_true("oldSelf", FINISHED),
                is_true("oldSelf", RESULT_UNKNOWN)
            ),
            "status.conditions: Finished and ResultUnknown exclude each other: what is final is known",
        ),
        forbidden(
            STATE,
            format!(
                "!{finished} || {} || ({} && !{})",
                tells_outcome("self"),
                is_true("oldSelf", FINISHED),
                tells_outcome("oldSelf"),
                finished = is_true("self", FINISHED),
            ),
            "status.state of a finished Job is the outcome of its result",
        ),
    ]
}

const STATE: &str = "status.state";

/// Whether the one word that people read is that of the result. Compared with literals: two strings without a limit
/// cost too much.
fn tells_outcome(of: &str) -> String {
    const OUTCOME: &str = "status.result.outcome";
    let same = ["Succeeded", "Failed", "Cancelled"]
        .map(|word| format!("{of}.{STATE} == '{word}' && {of}.{OUTCOME} == '{word}'"))
        .join(" || ");
    format!("({} && {} && ({same}))", present(of, OUTCOME), present(of, STATE))
}

// ---- OpenSandboxExecutionParameters ----

/// What the fields of the parameters demand of each other.
fn opensandbox_rules() -> Vec<Rule> {
    let set = |of: &str, field: &str| format!("has({of}.spec.{field})");
    vec![
        unless_already(
            "spec.endpoint",
            |of| {
                format!(
                    "!{of}.spec.endpoint.startsWith('http://') || {}",
                    is_set(of, "spec.allowInsecureHTTP")
                )
            },
            "spec.endpoint must begin with https://; http:// needs spec.allowInsecureHTTP: true, and is for isolated development only",
        ),
        unless_already(
            "spec.poolRef",
            |of| {
                let execd = format!("{} && {of}.spec.commandMode == 'Execd'", set(of, "commandMode"));
                format!("!{} || ({execd})", set(of, "poolRef"))
            },
            "spec.poolRef needs spec.commandMode: Execd, because a pool's sandboxes run before they are given a command",
        ),
        unless_already(
            "spec.poolRef",
            |of| format!("!{} || {}", set(of, "poolRef"), set(of, "poolTemplate")),
            "spec.poolRef needs spec.poolTemplate: state the image and limits of the pool's sandboxes there",
        ),
        unless_already(
            "spec.poolTemplate",
            |of| format!("!{} || {}", set(of, "poolTemplate"), set(of, "poolRef")),
            "spec.poolTemplate describes a pool: set spec.poolRef too, or leave it out",
        ),
    ]
}

// ---- The vocabulary of the rules ----

fn forbidden(field: &str, rule: String, message: &str) -> Rule {
    Rule::new(rule)
        .message(message)
        .field_path(format!(".{field}"))
        .reason(Reason::FieldValueForbidden)
}

fn required(field: &str, rule: String, message: &str) -> Rule {
    Rule::new(rule)
        .message(message)
        .field_path(format!(".{field}"))
        .reason(Reason::FieldValueRequired)
}

/// A rule about one state of an object, `of` standing for the object. Broken by what is stored, it does not
/// stand in the way of other changes.
fn unless_already(field: &str, rule: impl Fn(&str) -> String, message: &str) -> Rule {
    let broken_before = format!("oldSelf.hasValue() && !({})", rule("oldSelf.value()"));
    forbidden(field, format!("({}) || ({broken_before})", rule("self")), message).optional_old_self(true)
}

fn name_limit(kind: &str) -> Rule {
    let rule = format!("oldSelf.hasValue() || size(self.metadata.name) <= {NAME_LIMIT}");
    let message = format!(
        "metadata.name of a {kind} has at most {NAME_LIMIT} characters, because it becomes a label value: choose a shorter name"
    );
    // No field path: the schema of a custom resource does not reach into its metadata.
    Rule::new(rule)
        .message(message.as_str())
        .reason(Reason::FieldValueForbidden)
        .optional_old_self(true)
}

/// `spec.FIELD` is what it was at creation, present or not.
fn immutable(field: &str, kind: &str) -> Rule {
    let (new, old) = (format!("self.spec.{field}"), format!("oldSelf.spec.{field}"));
    forbidden(
        &format!("spec.{field}"),
        format!("has({new}) == has({old}) && (!has({new}) || {new} == {old})"),
        &format!("spec.{field} is immutable: create a new {kind} instead"),
    )
}

/// The same for a list, whose absence and emptiness mean the same and which typed clients do not tell apart.
fn immutable_list(field: &str) -> Rule {
    let list = |of: &str| format!("(has({of}.spec.{field}) ? {of}.spec.{field} : [])");
    forbidden(
        &format!("spec.{field}"),
        format!("{} == {}", list("self"), list("oldSelf")),
        &format!("spec.{field} is immutable: create a new Job instead"),
    )
}

/// `status.FIELD`, once present, stays as it is.
fn set_once(field: &str) -> Rule {
    let field = format!("status.{field}");
    forbidden(
        &field,
        kept(&field),
        &format!("{field} is set once: it cannot be changed or removed"),
    )
}

/// The field was absent, or is what it was.
fn kept(field: &str) -> String {
    format!(
        "{} || ({} && self.{field} == oldSelf.{field})",
        absent("oldSelf", field),
        present("self", field)
    )
}

/// Every step of the path is there: `has()` alone fails where a parent is missing.
fn present(of: &str, path: &str) -> String {
    let mut reached = of.to_owned();
    let steps: Vec<String> = path
        .split('.')
        .map(|step| {
            reached = format!("{reached}.{step}");
            format!("has({reached})")
        })
        .collect();
    format!("({})", steps.join(" && "))
}

fn absent(of: &str, path: &str) -> String {
    format!("!{}", present(of, path))
}

/// An optional boolean is true.
fn is_set(of: &str, path: &str) -> String {
    format!("({} && {of}.{path})", present(of, path))
}

fn is_true(of: &str, condition: &str) -> String {
    format!(
        "({} && {of}.status.conditions.exists(c, c.type == '{condition}' && c.status == 'True'))",
        present(of, "status.conditions")
    )
}

/// A condition no controller has written yet. It needs a time; the epoch says that there was none.
fn pending(type_: &str, message: &str) -> Value {
    json!({
        "type": type_,
        "status": "Unknown",
        "reason": PENDING,
        "message": message,
        "lastTransitionTime": "1970-01-01T00:00:00Z",
    })
}

// ---- From the derived definition to the installed one ----

/// Places where Kubernetes' own types are embedded, which come without limits: the longest string and the
/// largest list or map in each. A label's key has at most 317 characters.
const KUBERNETES_TYPES: [(&str, usize, usize); 4] = [
    ("/properties/spec/properties/allowedNamespaces", 317, 16),
    ("/properties/spec/properties/podSecurityContext", 1024, 64),
    ("/properties/spec/properties/containerSecurityContext", 1024, 64),
    ("/properties/spec/properties/scheduling", 317, 64),
];

fn finish(
    derived: CustomResourceDefinition,
    rules: Vec<Rule>,
    defaults: Vec<(&str, Value)>,
) -> CustomResourceDefinition {
    let mut crd = serde_json::to_value(derived).expect("a CustomResourceDefinition is JSON");
    let schema = crd
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
        .expect("a derived definition has one version with a schema");
    tidy(schema);
    if let Some(condition) = schema.pointer_mut("/properties/status/properties/conditions/items/properties") {
        limit_condition(condition);
    }
    for (place, longest, largest) in KUBERNETES_TYPES {
        if let Some(embedded) = schema.pointer_mut(place) {
            limit(embedded, longest, largest);
        }
    }
    for (field, default) in defaults {
        set(
            schema,
            &format!("/properties/{}", field.replace('.', "/properties/")),
            "default",
            default,
        );
    }
    if !rules.is_empty() {
        set(schema, "", "x-kubernetes-validations", json!(rules));
    }
    serde_json::from_value(crd).expect("it is still a CustomResourceDefinition")
}

fn set(schema: &mut Value, pointer: &str, key: &str, value: Value) {
    let object = schema
        .pointer_mut(pointer)
        .and_then(Value::as_object_mut)
        .expect("a derived schema has this place");
    object.insert(key.to_owned(), value);
}

/// Takes out what `Option` leaves in a derived schema: null is no value of ours, so the API server drops a
/// null where it would otherwise store it. Titles only repeat the names of Rust types, and the line breaks of a
/// doc comment are those of the source file.
fn tidy(schema: &mut Value) {
    visit(schema, &mut |object| {
        object.remove("nullable");
        object.remove("title");
        if let Some(Value::String(description)) = object.get_mut("description") {
            let paragraphs = description
                .split("\n\n")
                .map(|paragraph| paragraph.replace('\n', " "));
            *description = paragraphs.collect::<Vec<_>>().join("\n\n");
        }
        if let Some(Value::Array(values)) = object.get_mut("enum") {
            values.retain(|value| !value.is_null());
        }
    });
}

/// The limits that `metav1.Condition` documents for Go, with a shorter message: at most 16 of them have to fit
/// beside the spec.
fn limit_condition(properties: &mut Value) {
    for (property, limits) in [
        ("/type", json!({ "minLength": 1, "maxLength": 316 })),
        ("/status", json!({ "enum": ["True", "False", "Unknown"] })),
        ("/reason", json!({ "minLength": 1, "maxLength": 256 })),
        ("/message", json!({ "maxLength": 2048 })),
    ] {
        if let (Some(Value::Object(schema)), Value::Object(limits)) =
            (properties.pointer_mut(property), limits)
        {
            schema.extend(limits);
        }
    }
}

/// Bounds all that has no bound: without one the API server has to assume the worst for the cost of a rule.
fn limit(schema: &mut Value, longest: usize, largest: usize) {
    visit(schema, &mut |object| {
        let (key, most) = match object.get("type").and_then(Value::as_str) {
            Some("string") if !object.contains_key("enum") && !object.contains_key("format") => {
                ("maxLength", longest)
            }
            Some("array") => ("maxItems", largest),
            Some("object") if object.contains_key("additionalProperties") => ("maxProperties", largest),
            _ => return,
        };
        object.entry(key).or_insert_with(|| most.into());
    });
}

/// Calls `act` on every schema in the tree, parents first.
fn visit(schema: &mut Value, act: &mut impl FnMut(&mut Map<String, Value>)) {
    let Value::Object(object) = schema else { return };
    act(object);
    for key in ["items", "additionalProperties"] {
        if let Some(child) = object.get_mut(key) {
            visit(child, act);
        }
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(|property| visit(property, act));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(crd: &CustomResourceDefinition) -> Value {
        let crd = serde_json::to_value(crd).unwrap();
        crd.pointer("/spec/versions/0/schema/openAPIV3Schema")
            .unwrap()
            .clone()
    }

    /// Path and schema of every node, properties by name.
    fn nodes(crd: &CustomResourceDefinition) -> Vec<(String, Map<String, Value>)> {
        fn walk(path: &str, schema: &Value, found: &mut Vec<(String, Map<String, Value>)>) {
            let object = schema.as_object().expect("a schema is an object");
            found.push((path.to_owned(), object.clone()));
            for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
                if let Some(child) = object.get(key) {
                    walk(&format!("{path}{mark}"), child, found);
                }
            }
            for (name, property) in object
                .get("properties")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                walk(&format!("{path}.{name}"), property, found);
            }
        }
        let mut found = Vec::new();
        walk(&crd.spec.names.kind, &schema(crd), &mut found);
        found
    }

    fn every_node() -> Vec<(String, Map<String, Value>)> {
        all().iter().flat_map(nodes).collect()
    }

    #[test]
    fn null_is_a_value_nowhere() {
        for (path, schema) in every_node() {
            assert!(!schema.contains_key("nullable"), "{path} is nullable");
            let values = schema.get("enum").and_then(Value::as_array);
            assert!(
                !values.is_some_and(|v| v.contains(&Value::Null)),
                "{path} may be null"
            );
        }
    }

    #[test]
    fn every_property_is_documented() {
        for (path, schema) in every_node() {
            // Items and map values are described by the list or map they are in.
            if path.ends_with(']') || path.ends_with('}') {
                continue;
            }
            let description = schema
                .get("description")
                .and_then(Value::as_str)
                .unwrap_or_default();
            assert!(!description.is_empty(), "{path} has no description");
            assert!(!description.contains("Auto-generated"), "{path}: {description}");
        }
    }

    #[test]
    fn every_string_list_and_map_is_bounded() {
        for (path, schema) in every_node() {
            let has = |key: &str| schema.contains_key(key);
            let bounded = match schema.get("type").and_then(Value::as_str) {
                Some("string") => has("maxLength") || has("enum") || has("format"),
                Some("array") => has("maxItems"),
                Some("object") => has("properties") && !has("additionalProperties") || has("maxProperties"),
                Some("integer" | "boolean" | "number") => true,
                Some(_) => false,
                None => has("x-kubernetes-int-or-string") && has("maxLength"),
            };
            assert!(bounded, "{path} has no limit: {schema:?}");
        }
    }

    #[test]
    fn no_schema_keeps_unknown_fields() {
        for (path, schema) in every_node() {
            assert!(
                !schema.contains_key("x-kubernetes-preserve-unknown-fields"),
                "{path} keeps unknown fields"
            );
        }
    }

    #[test]
    fn every_message_speaks_to_people() {
        for (path, schema) in every_node() {
            for rule in schema
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                let message = rule.get("message").and_then(Value::as_str).unwrap_or_default();
                assert!(!message.is_empty(), "{path}: no message for {rule}");
                for jargon in ["self", "oldSelf", "has(", "=="] {
                    assert!(!message.contains(jargon), "{path}: {message}");
                }
            }
        }
    }

    #[test]
    fn the_default_status_decodes_into_our_types() {
        for crd in [job(), job_class()] {
            let status = schema(&crd)
                .pointer("/properties/status/default")
                .unwrap()
                .clone();
            let conditions = match crd.spec.names.kind.as_str() {
                "Job" => {
                    serde_json::from_value::<crate::job::JobStatus>(status.clone())
                        .unwrap()
                        .conditions
                }
                _ => {
                    serde_json::from_value::<crate::job_class::JobClassStatus>(status.clone())
                        .unwrap()
                        .conditions
                }
            };
            assert!(!conditions.is_empty());
            for condition in conditions {
                assert_eq!(
                    (condition.status.as_str(), condition.reason.as_str()),
                    ("Unknown", PENDING)
                );
            }
        }
    }
}

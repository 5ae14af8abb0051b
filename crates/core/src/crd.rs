//! The CustomResourceDefinitions as they are installed.
//!
//! The types state what a single field may hold. Added here is what takes the whole object to say: which
//! fields never change, which parts of the status are set once, and the status a new object is shown with
//! until a controller looks at it.
//!
//! Every write is judged by all of these rules, and what they cost the API server is the way to a field: at each
//! step it copies the schema of every field there. So a rule stands as deep as it can, best at the field itself.
//! There it is not evaluated when the field, or anything above it, was or becomes absent. Each such way out is shut
//! by a rule one step up: a field with a rule of its own cannot be removed from its parent, nor the parent from its
//! own, up to a parent that is always there, since it is required (`spec`) or has a default (`status`). What is not a
//! transition accepts what was already so, since an object stored under an older schema has to be able to drop its
//! finalizer.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use kube::core::{Message, Reason, Rule};
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
        immutable("spec.controllerName", "JobClass"),
        immutable("spec.parametersRef", "JobClass"),
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
fn job_spec_rules() -> Vec<Placed> {
    let mut rules = vec![name_limit("Job"), text_limit(), immutable("spec.image", "Job")];
    rules.extend(
        [
            "spec.jobClassName",
            "spec.workingDir",
            "spec.resources",
            "spec.activeDeadlineSeconds",
            "spec.startingDeadlineSeconds",
            "spec.terminationGracePeriodSeconds",
            "spec.managedBy",
        ]
        .into_iter()
        .flat_map(immutable_if_any),
    );
    rules.extend(
        [
            "spec.command",
            "spec.args",
            "spec.env",
            "spec.envFrom",
            "spec.imagePullSecrets",
        ]
        .into_iter()
        .flat_map(immutable_list),
    );
    rules.push(forbidden(
        "spec",
        "spec.suspend",
        format!("!{} || {}", is_set("self.?suspend"), is_set("oldSelf.?suspend")),
        "spec.suspend may go from true to false, never back: set spec.cancelRequested to true to stop the Job",
    ));
    rules.push(forbidden(
        "spec",
        "spec.cancelRequested",
        format!(
            "!{} || {}",
            is_set("oldSelf.?cancelRequested"),
            is_set("self.?cancelRequested")
        ),
        "spec.cancelRequested cannot be taken back once it is true: create a new Job instead",
    ));
    rules
}

fn text_limit() -> Placed {
    let texts = |field: &str| format!("(has(self.{field}) ? self.{field}.map(s, size(s)).sum() : 0)");
    let env =
        "(has(self.env) ? self.env.map(e, size(e.name) + (has(e.value) ? size(e.value) : 0)).sum() : 0)";
    forbidden(
        "spec",
        "spec",
        format!(
            "oldSelf.hasValue() || {} + {} + {env} <= {TEXT_LIMIT}",
            texts("command"),
            texts("args")
        ),
        format!(
            "spec.command, spec.args and spec.env hold more than {TEXT_LIMIT} characters together: \
             keep large input in a ConfigMap, a Secret, the image or an object store"
        )
        .as_str(),
    )
    .at_creation_too()
}

// ---- Job: the status ----

/// What a status says once and for all.
fn job_status_rules() -> Vec<Placed> {
    let fields = [
        "status.resolvedJobClass",
        "status.resources",
        "status.startTime",
        "status.finishTime",
        "status.result",
        "status.execution.id",
        "status.execution.uid",
        "status.execution.nodeName",
        "status.execution.startRequestedTime",
        "status.execution.stop.deliveredTime",
        "status.execution.releaseTime",
    ];
    let mut rules: Vec<Placed> = fields.into_iter().flat_map(set_once).collect();
    // A stop has both of these, says the schema.
    rules.extend(
        [STOP_REASON, "status.execution.stop.requestedTime"]
            .map(|field| never_changes(field, &words_of_set_once(field))),
    );
    rules.extend([
        status_is_kept(),
        execution_is_kept(),
        stop_is_kept(),
        no_start_after_stop(),
        no_release_before_the_end(),
    ]);
    rules.extend(stays_true());
    rules.extend(attempt_is_kept());
    rules.extend(backend_is_kept());
    rules
}

const EXECUTION: &str = "status.execution";
const ATTEMPT: &str = "status.execution.attempt";
const BACKEND: &str = "status.execution.backend";
const STOP_REASON: &str = "status.execution.stop.reason";
const CONDITIONS: &str = "status.conditions";

/// With its default there always is a status. Were there none, no rule in it would be evaluated.
fn status_is_kept() -> Placed {
    forbidden(
        "",
        "status",
        not_removed("status"),
        "status says what is set once: it cannot be removed",
    )
}

/// An execution of which anything is set once cannot be removed as a whole.
fn execution_is_kept() -> Placed {
    // What a stop holds is its reason first.
    let parts = [
        ("id", "status.execution.id"),
        ("uid", "status.execution.uid"),
        ("nodeName", "status.execution.nodeName"),
        ("startRequestedTime", "status.execution.startRequestedTime"),
        ("stop", STOP_REASON),
        ("releaseTime", "status.execution.releaseTime"),
    ];
    let any = parts
        .map(|(part, _)| format!("has(oldSelf.execution.{part})"))
        .join(" || ");
    let first = parts
        .map(|(part, field)| {
            format!(
                "has(oldSelf.execution.{part}) ? '{}' : ",
                words_of_set_once(field)
            )
        })
        .concat();
    forbidden(
        "status",
        EXECUTION,
        format!("{} || !({any})", not_removed("execution")),
        Message::Expression(format!("{first}''")),
    )
}

/// Nor can a stop.
fn stop_is_kept() -> Placed {
    forbidden(
        EXECUTION,
        STOP_REASON,
        not_removed("stop"),
        words_of_set_once(STOP_REASON).as_str(),
    )
}

/// The one create request that may have been sent is forgotten only where it provably created nothing.
fn attempt_is_kept() -> [Placed; 2] {
    const WORDS: &str = "status.execution.attempt never changes: it may only be removed, together with status.execution.backend, while status.execution.id is unset";
    let removed_in_time = format!("(!has(self.backend) && {})", nothing_created());
    fixed(ATTEMPT, WORDS, |name| {
        format!("{} || {removed_in_time}", not_removed(name))
    })
}

/// As is the server it went to.
fn backend_is_kept() -> [Placed; 3] {
    const WORDS: &str = "status.execution.backend never changes: it may only be removed, together with status.execution.attempt, while status.execution.id is unset";
    let removed_in_time = format!(
        "(has(oldSelf.attempt) && !has(self.attempt) && {})",
        nothing_created()
    );
    [
        never_changes(BACKEND, WORDS),
        forbidden(
            EXECUTION,
            BACKEND,
            format!("{} || {removed_in_time}", not_removed("backend")),
            WORDS,
        ),
        // With the whole execution too; that it held no id is for `execution_is_kept`.
        forbidden(
            "status",
            BACKEND,
            format!(
                "{} || !has(oldSelf.execution.backend) || has(oldSelf.execution.attempt)",
                not_removed("execution")
            ),
            WORDS,
        ),
    ]
}

fn nothing_created() -> &'static str {
    "!has(self.id) && !has(oldSelf.id)"
}

/// A replica that decided to start on a copy read before the stop was stored must not have its way.
fn no_start_after_stop() -> Placed {
    forbidden(
        EXECUTION,
        "status.execution.startRequestedTime",
        "!has(oldSelf.stop) || has(oldSelf.startRequestedTime) || !has(self.startRequestedTime)".into(),
        "status.execution.startRequestedTime cannot be set any more: status.execution.stop is set, and a stopped Job is not started",
    )
}

/// What was released is looked after by nobody any more.
fn no_release_before_the_end() -> Placed {
    forbidden(
        "status",
        "status.execution.releaseTime",
        "has(self.finishTime) || !has(self.execution) || !has(self.execution.releaseTime) || \
         (has(oldSelf.execution) && has(oldSelf.execution.releaseTime))"
            .into(),
        "status.execution.releaseTime cannot be set yet: status.finishTime is not set, and what may run is not released",
    )
}

/// A condition that became True stays True, and stays True since the same time.
fn stays_true() -> [Placed; 2] {
    const LASTING: [&str; 4] = [ACCEPTED, SCHEDULED, STARTED, FINISHED];
    let any = LASTING.map(|type_| format!("'{type_}'")).join(", ");
    let kept = "self.exists(c, c.type == o.type && c.status == 'True' && c.lastTransitionTime == o.lastTransitionTime)";
    // The message is put together only for a write that is refused.
    let rule = |place: &str, unless: &str, old: &str, but: &str| {
        let names = LASTING.map(|type_| {
            let words = format!("'{CONDITIONS}: {type_} is True and stays so, with its lastTransitionTime'");
            format!("{old}.exists(o, o.type == '{type_}' && o.status == 'True'{but}) ? {words} : ")
        });
        forbidden(
            place,
            CONDITIONS,
            format!("{unless}!{old}.exists(o, o.status == 'True' && o.type in [{any}]{but})"),
            Message::Expression(format!("{}''", names.concat())),
        )
    };
    let not_removed = format!("{} || ", not_removed("conditions"));
    [
        rule(CONDITIONS, "", "oldSelf", &format!(" && !{kept}")),
        rule("status", &not_removed, "oldSelf.conditions", ""),
    ]
}

/// What has to be there when a Job becomes `Finished=True`.
///
/// A status cannot be written at creation, so these can be plain transition rules: they judge the write that
/// finishes the Job and leave alone one that was finished before.
fn job_finish_rules() -> Vec<Placed> {
    let becomes_finished = format!(
        "{} && !{}",
        is_true("self", FINISHED),
        is_true("oldSelf", FINISHED)
    );
    // While there is no result, only the first and the third have to look through the conditions.
    vec![
        required(
            "status",
            "status.result",
            format!("has(self.result) || !({becomes_finished})"),
            &format!("status.result must be set in the write that sets the condition {FINISHED} to True"),
        ),
        required(
            "status",
            "status.finishTime",
            format!("has(self.finishTime) || !has(self.result) || !({becomes_finished})"),
            &format!("status.finishTime must be set in the write that sets the condition {FINISHED} to True"),
        ),
        forbidden(
            "status",
            CONDITIONS,
            format!(
                "!({} && {}) || ({} && {})",
                is_true("self", RESULT_UNKNOWN),
                is_true("self", FINISHED),
                is_true("oldSelf", FINISHED),
                is_true("oldSelf", RESULT_UNKNOWN)
            ),
            "status.conditions: Finished and ResultUnknown exclude each other: what is final is known",
        ),
        // A result that is missing is for the first, and one that was missing before is nobody's business.
        forbidden(
            "status",
            "status.state",
            format!(
                "!has(self.result) || {} || !{} || ({} && !{})",
                tells_outcome("self"),
                is_true("self", FINISHED),
                is_true("oldSelf", FINISHED),
                tells_outcome("oldSelf"),
            ),
            "status.state of a finished Job is the outcome of its result",
        ),
    ]
}

/// Whether the one word that people read is that of the result. Compared with literals: two strings without a limit
/// cost too much.
fn tells_outcome(of: &str) -> String {
    let same = ["Succeeded", "Failed", "Cancelled"]
        .map(|word| format!("{of}.state == '{word}' && {of}.result.outcome == '{word}'"))
        .join(" || ");
    format!("(has({of}.state) && has({of}.result) && has({of}.result.outcome) && ({same}))")
}

// ---- OpenSandboxExecutionParameters ----

/// What the fields of the parameters demand of each other.
fn opensandbox_rules() -> Vec<Placed> {
    let set = |of: &str, field: &str| format!("has({of}.spec.{field})");
    vec![
        unless_already(
            "spec.endpoint",
            |of| {
                format!(
                    "!{of}.spec.endpoint.startsWith('http://') || {}",
                    is_set(&format!("{of}.spec.?allowInsecureHTTP"))
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

/// A rule and where in the schema it stands: `self` is what is there.
#[derive(Clone)]
struct Placed {
    /// Names of fields with dots between them, none for the root.
    place: String,
    rule: Rule,
}

impl Placed {
    /// A rule at `place` that speaks of `field`, both as paths from the root.
    fn new(place: &str, field: &str, reason: Reason, rule: String, message: impl Into<Message>) -> Placed {
        let below = field
            .strip_prefix(place)
            .expect("a rule speaks of what is below it");
        let mut rule = Rule::new(rule).message(message).reason(reason);
        if !below.is_empty() {
            rule = rule.field_path(format!(".{}", below.trim_start_matches('.')));
        }
        Placed {
            place: place.to_owned(),
            rule,
        }
    }

    /// Judges also what was not there before; `oldSelf` is then an optional.
    fn at_creation_too(mut self) -> Placed {
        self.rule = self.rule.optional_old_self(true);
        self
    }
}

fn forbidden(place: &str, field: &str, rule: String, message: impl Into<Message>) -> Placed {
    Placed::new(place, field, Reason::FieldValueForbidden, rule, message)
}

fn required(place: &str, field: &str, rule: String, message: &str) -> Placed {
    Placed::new(place, field, Reason::FieldValueRequired, rule, message)
}

/// A rule about one state of an object, `of` standing for the object. Broken by what is stored, it does not
/// stand in the way of other changes.
fn unless_already(field: &str, rule: impl Fn(&str) -> String, message: &str) -> Placed {
    let broken_before = format!("oldSelf.hasValue() && !({})", rule("oldSelf.value()"));
    forbidden(
        "",
        field,
        format!("({}) || ({broken_before})", rule("self")),
        message,
    )
    .at_creation_too()
}

fn name_limit(kind: &str) -> Placed {
    let rule = format!("oldSelf.hasValue() || size(self.metadata.name) <= {NAME_LIMIT}");
    let message = format!(
        "metadata.name of a {kind} has at most {NAME_LIMIT} characters, because it becomes a label value: choose a shorter name"
    );
    // No field path: the schema of a custom resource does not reach into its metadata.
    forbidden("", "", rule, message.as_str()).at_creation_too()
}

/// The field, which every object has, is what it was at creation.
fn immutable(field: &str, kind: &str) -> Placed {
    never_changes(field, &words_of_immutable(field, kind))
}

/// The field of a Job is what it was at creation, present or not.
fn immutable_if_any(field: &str) -> [Placed; 2] {
    fixed(field, &words_of_immutable(field, "Job"), |name| {
        format!("has(self.{name}) == has(oldSelf.{name})")
    })
}

/// The same for a list, whose absence and emptiness mean the same and which typed clients do not tell apart.
fn immutable_list(field: &str) -> [Placed; 2] {
    fixed(field, &words_of_immutable(field, "Job"), |name| {
        format!(
            "has(self.{name}) ? has(oldSelf.{name}) || size(self.{name}) == 0 \
             : !has(oldSelf.{name}) || size(oldSelf.{name}) == 0"
        )
    })
}

fn words_of_immutable(field: &str, kind: &str) -> String {
    format!("{field} is immutable: create a new {kind} instead")
}

/// The field, once present, stays as it is, as long as its parent is there.
fn set_once(field: &str) -> [Placed; 2] {
    fixed(field, &words_of_set_once(field), not_removed)
}

fn words_of_set_once(field: &str) -> String {
    format!("{field} is set once: it cannot be changed or removed")
}

/// The field is what it was, if it was and is there.
fn never_changes(field: &str, message: &str) -> Placed {
    forbidden(field, field, "self == oldSelf".into(), message)
}

/// The field never changes, and neither does, as far as this rule of its parent says, whether it is there.
fn fixed(field: &str, message: &str, presence: impl FnOnce(&str) -> String) -> [Placed; 2] {
    let (parent, name) = parent_and_name(field);
    [
        never_changes(field, message),
        forbidden(parent, field, presence(name), message),
    ]
}

/// The field is there if it was.
fn not_removed(name: &str) -> String {
    format!("has(self.{name}) || !has(oldSelf.{name})")
}

fn parent_and_name(field: &str) -> (&str, &str) {
    field.rsplit_once('.').unwrap_or(("", field))
}

/// An optional boolean, named `self.?field`, is true.
fn is_set(field: &str) -> String {
    format!("{field}.orValue(false)")
}

/// So it is in the status `of`.
fn is_true(of: &str, condition: &str) -> String {
    format!(
        "(has({of}.conditions) && {of}.conditions.exists(c, c.type == '{condition}' && c.status == 'True'))"
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
    rules: Vec<Placed>,
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
    if let Some(Value::Object(status)) = schema.pointer_mut("/properties/status") {
        // Whoever writes it owns all of it: one at a time, by patches that name the version they were decided on, never
        // by server-side apply. Otherwise `metadata.managedFields` lists each field in it, takes most of what is stored
        // of a Job, and is worked out anew at every write.
        status.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
    }
    for (field, default) in defaults {
        schema_of(schema, field).insert("default".to_owned(), default);
    }
    for Placed { place, rule } in rules {
        let rules = schema_of(schema, &place)
            .entry("x-kubernetes-validations")
            .or_insert_with(|| json!([]));
        rules.as_array_mut().expect("rules are a list").push(json!(rule));
    }
    serde_json::from_value(crd).expect("it is still a CustomResourceDefinition")
}

/// The schema of a field, named by its path from the root.
fn schema_of<'a>(root: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    let steps = field.split('.').filter(|step| !step.is_empty());
    let pointer: String = steps.map(|step| format!("/properties/{step}")).collect();
    root.pointer_mut(&pointer)
        .and_then(Value::as_object_mut)
        .expect("a derived schema has this place")
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
                let text = |key: &str| rule.get(key).and_then(Value::as_str);
                // Of an expression, what people read stands between quotes.
                let literals =
                    |expression: &str| expression.split('\'').skip(1).step_by(2).collect::<String>();
                let message = text("message").map(str::to_owned);
                let message = message
                    .or_else(|| text("messageExpression").map(literals))
                    .unwrap_or_default();
                assert!(!message.is_empty(), "{path}: no message for {rule}");
                for jargon in ["self", "oldSelf", "has(", "=="] {
                    assert!(!message.contains(jargon), "{path}: {message}");
                }
            }
        }
    }

    /// A field under a rule about its change is always there, or its parent has a rule about its removal; and so is
    /// the parent.
    #[test]
    fn no_rule_is_evaded_by_removing_what_it_stands_at() {
        for crd in all() {
            let schemas: std::collections::BTreeMap<_, _> = nodes(&crd).into_iter().collect();
            let rules = |path: &str| {
                let rules = schemas[path]
                    .get("x-kubernetes-validations")
                    .and_then(Value::as_array);
                let rules = rules.into_iter().flatten();
                rules.filter_map(|rule| rule["rule"].as_str()).collect::<Vec<_>>()
            };
            let under_a_rule = schemas
                .keys()
                .filter(|path| rules(path).iter().any(|rule| rule.contains("oldSelf")));
            for path in under_a_rule {
                let mut field = path.as_str();
                while let Some((parent, name)) = field.rsplit_once('.') {
                    let required = schemas[parent].get("required").and_then(Value::as_array);
                    let kept = required.is_some_and(|names| names.contains(&json!(name)))
                        || rules(parent).iter().any(|rule| {
                            rule.starts_with(&format!("has(self.{name})"))
                                && rule.contains(&format!("has(oldSelf.{name})"))
                        });
                    assert!(kept, "{path}: {field} can be removed");
                    field = parent;
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

//! What a class may be, and become.

use ayatori_core::crd;
use ayatori_e2e::api::{Verdict, Verdict::Accepted, Verdict::Refused};
use serde_json::{Value, json};

use crate::samples::{LATER, NOON, class_spec, condition};
use crate::{creations, spec_change, status_change, transitions};

#[tokio::test]
#[rustfmt::skip]
async fn a_class_is_created_only_with_valid_fields() -> anyhow::Result<()> {
    const OPERATOR: Verdict = Refused("has an operator that is none of In, NotIn");
    const LABEL: Verdict = Refused("has a key or value that no label can have");
    const EMPTY: Verdict = Refused("spec.allowedNamespaces: Invalid value: must not be empty");
    let reference = |field: &str, value: &str| json!({ "parametersRef": { field: value } });
    let selector = |selector: Value| json!({ "allowedNamespaces": selector });
    let expression = |expression: Value| json!({ "allowedNamespaces": { "matchExpressions": [expression] } });
    creations(
        crd::job_class(),
        class_spec(),
        vec![
            ("the simplest class", json!({}), Accepted),
            ("no controller", json!({ "controllerName": null }), Refused("spec.controllerName: Required value")),
            ("a controller without a domain", json!({ "controllerName": "kubernetes" }), Refused("must be a domain-prefixed path")),
            ("a controller whose name is too long", json!({ "controllerName": format!("example.com/{}", "a".repeat(242)) }), Refused("spec.controllerName: Too long")),
            ("no parameters", json!({ "parametersRef": null }), Refused("spec.parametersRef: Required value")),
            ("parameters in the core group", reference("group", ""), Refused("must be an API group")),
            ("a group that is none", reference("group", "Example.com"), Refused("must be an API group")),
            ("a group that is too long", reference("group", &"a".repeat(254)), Refused("spec.parametersRef.group: Too long")),
            ("a kind that is none", reference("kind", "1Kind!"), Refused("must be a kind")),
            ("a kind that is too long", reference("kind", &"A".repeat(64)), Refused("spec.parametersRef.kind: Too long")),
            ("an empty name", reference("name", ""), Refused("must be the name of an object")),
            ("a name that is too long", reference("name", &"a".repeat(254)), Refused("spec.parametersRef.name: Too long")),
            ("a selector of everything by mistake", selector(json!({})), EMPTY),
            ("a selector with empty parts", selector(json!({ "matchLabels": {}, "matchExpressions": [] })), EMPTY),
            ("a selector by labels", selector(json!({ "matchLabels": { "example.com/team": "a", "env": "" } })), Accepted),
            ("In with values", expression(json!({ "key": "team", "operator": "In", "values": ["a", "b"] })), Accepted),
            ("NotIn with values", expression(json!({ "key": "team", "operator": "NotIn", "values": ["a"] })), Accepted),
            ("Exists without values", expression(json!({ "key": "team", "operator": "Exists" })), Accepted),
            ("DoesNotExist without values", expression(json!({ "key": "team", "operator": "DoesNotExist", "values": [] })), Accepted),
            ("In without values", expression(json!({ "key": "team", "operator": "In" })), OPERATOR),
            ("NotIn without values", expression(json!({ "key": "team", "operator": "NotIn", "values": [] })), OPERATOR),
            ("Exists with values", expression(json!({ "key": "team", "operator": "Exists", "values": ["a"] })), OPERATOR),
            ("DoesNotExist with values", expression(json!({ "key": "team", "operator": "DoesNotExist", "values": ["a"] })), OPERATOR),
            ("an operator nobody knows", expression(json!({ "key": "team", "operator": "Gt", "values": ["1"] })), OPERATOR),
            ("a key that is none", expression(json!({ "key": "a b", "operator": "Exists" })), LABEL),
            ("a value that is none", expression(json!({ "key": "a", "operator": "In", "values": ["a b"] })), LABEL),
            ("a label key that is none", selector(json!({ "matchLabels": { "-a": "b" } })), LABEL),
            ("a label value that is none", selector(json!({ "matchLabels": { "a": "b/c" } })), LABEL),
        ],
    )
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn a_class_offers_only_a_policy_that_agrees_with_itself() -> anyhow::Result<()> {
    let policy = |policy: Value| json!({ "resources": policy });
    let limits = |cpu: &str| json!({ "limits": { "cpu": cpu } });
    creations(
        crd::job_class(),
        class_spec(),
        vec![
            (
                "the policy of the draft",
                policy(json!({
                    "defaults": { "requests": { "cpu": "250m", "memory": "256Mi" }, "limits": { "cpu": "2", "memory": "2Gi" } },
                    "minimum": { "requests": { "cpu": "100m" } },
                    "maximum": { "limits": { "cpu": "8", "memory": "16Gi" } },
                })),
                Accepted,
            ),
            ("a minimum above the maximum", policy(json!({ "minimum": limits("9"), "maximum": limits("8") })), Refused("minimum")),
            ("a default above the maximum", policy(json!({ "defaults": limits("9"), "maximum": limits("8") })), Refused("maximum")),
            ("a default below the minimum", policy(json!({ "defaults": limits("1"), "minimum": limits("2") })), Refused("minimum")),
            ("a default request above the default limit", policy(json!({ "defaults": { "requests": { "cpu": "3" }, "limits": { "cpu": "2000m" } } })), Refused("defaults")),
            ("a negative maximum", policy(json!({ "maximum": limits("-1") })), Refused("maximum")),
            ("a maximum of zero", policy(json!({ "maximum": limits("0") })), Refused("maximum")),
            ("a quantity that is none", policy(json!({ "maximum": limits("much") })), Refused("quantity")),
        ],
    )
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn the_identity_of_a_class_never_changes() -> anyhow::Result<()> {
    const CONTROLLER: Verdict = Refused(
        "spec.controllerName: Forbidden: spec.controllerName is immutable: create a new JobClass instead",
    );
    const PARAMETERS: Verdict = Refused(
        "spec.parametersRef: Forbidden: spec.parametersRef is immutable: create a new JobClass instead",
    );
    let everyone = json!({ "allowedNamespaces": { "matchLabels": { "a": "b" } } });
    transitions(
        crd::job_class(),
        class_spec(),
        vec![
            spec_change("another controller is another class", json!({}), json!({ "controllerName": "example.com/other" }), CONTROLLER),
            spec_change("other parameters are another class", json!({}), json!({ "parametersRef": { "name": "other" } }), PARAMETERS),
            spec_change("another kind of parameters, too", json!({}), json!({ "parametersRef": { "kind": "Other" } }), PARAMETERS),
            spec_change("the namespaces may change", json!({}), everyone.clone(), Accepted),
            spec_change("the namespaces may be opened by leaving them out", everyone, json!({ "allowedNamespaces": null }), Accepted),
            spec_change("the policy may change", json!({}), json!({ "resources": { "maximum": { "limits": { "cpu": "1" } } } }), Accepted),
            status_change(
                "the conditions of a class come and go",
                json!({ "conditions": [condition("Ready", "True", NOON)] }),
                json!({ "conditions": [condition("Ready", "False", LATER)] }),
                Accepted,
            ),
        ],
    )
    .await
}

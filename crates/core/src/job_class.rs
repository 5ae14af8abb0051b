//! The `JobClass` resource: a service level for Jobs, offered by the platform.

// `KubeSchema` puts a copy of each struct, with its `pub`, into a function; columns share a type.
#![allow(unreachable_pub, clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::format;
use crate::resources::ResourcePolicy;

/// What a class offers, to whom, and which controller provides it.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "execution.ayatori.ddupan.top",
    version = "v1alpha1",
    kind = "JobClass",
    plural = "jobclasses",
    singular = "jobclass",
    shortname = "jc",
    category = "ayatori",
    status = "JobClassStatus",
    selectable = ".spec.controllerName",
    printcolumn(name = "Controller", type_ = "string", json_path = ".spec.controllerName"),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Accepted")].status"#
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Default",
        type_ = "string",
        json_path = r".metadata.annotations.execution\.ayatori\.ddupan\.top/is-default-job-class",
        description = "Whether Jobs that choose no class get this one: `true`, on at most one class."
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    ),
    derive = "PartialEq",
    derive = "Default",
    doc = "A service level for one-shot executions. Callers name it; which backend provides it is the platform's business."
)]
#[serde(rename_all = "camelCase")]
pub struct JobClassSpec {
    /// Controller that owns this class and its Jobs, as a domain-prefixed path, for example
    /// `execution.ayatori.ddupan.top/kubernetes`. Immutable: another backend is another class.
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::controller_name())]
    pub controller_name: String,

    /// The controller's own cluster-scoped parameters object. Immutable.
    pub parameters_ref: ParametersReference,

    /// Namespaces whose Jobs may use the class. Absent: all. An empty selector is refused, because a typing
    /// error must not mean everyone. Changes affect only Jobs that are not accepted yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = format::selector_says_something())]
    #[x_kube(validation = format::selector_operators())]
    #[x_kube(validation = format::selector_labels())]
    pub allowed_namespaces: Option<LabelSelector>,

    /// Defaults and bounds for the CPU and memory of Jobs. Changes affect only Jobs that are not accepted yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourcePolicy>,
}

/// A cluster-scoped parameters object.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParametersReference {
    /// API group of the parameters object.
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::api_group())]
    pub group: String,
    /// Kind of the parameters object; each controller documents the kinds it supports.
    #[schemars(length(max = 63))]
    #[x_kube(validation = format::kind())]
    pub kind: String,
    /// Name of the parameters object.
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::object_name())]
    pub name: String,
}

/// Whether the class is valid and its backend available. Written only by the controller that owns it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobClassStatus {
    /// `metadata.generation` that this status was decided on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Accepted: the class is valid and its parameters exist. Ready: new executions can be created now.
    /// DeletionBlocked: what keeps a deleted class alive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

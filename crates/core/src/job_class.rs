//! The `JobClass` resource: a service level for Jobs, offered by the platform.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

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
    derive = "PartialEq",
    derive = "Default",
    doc = "A service level for one-shot executions. Callers name it; which backend provides it is the platform's business."
)]
#[serde(rename_all = "camelCase")]
pub struct JobClassSpec {
    /// Controller that owns this class and its Jobs, as a domain-prefixed path, for example
    /// `execution.ayatori.ddupan.top/kubernetes`. Immutable: another backend is another class.
    pub controller_name: String,

    /// The controller's own cluster-scoped parameters object. Immutable.
    pub parameters_ref: ParametersReference,

    /// Namespaces whose Jobs may use the class. Absent: all. An empty selector is refused, because a typing
    /// error must not mean everyone. Changes affect only Jobs that are not accepted yet.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    pub group: String,
    /// Kind of the parameters object; each controller documents the kinds it supports.
    pub kind: String,
    /// Name of the parameters object.
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
    pub conditions: Vec<Condition>,
}

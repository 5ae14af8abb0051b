//! The parameters objects of the adapters: how each backend runs the Jobs of a class.

// `KubeSchema` puts a copy of each struct, with its `pub`, into a function; columns share a type.
#![allow(unreachable_pub, clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSecurityContext, SecurityContext, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::format;
use crate::resources::ResourceQuantities;

/// How the Kubernetes adapter runs the Jobs of a class.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "execution.ayatori.ddupan.top",
    version = "v1alpha1",
    kind = "KubernetesExecutionParameters",
    plural = "kubernetesexecutionparameters",
    singular = "kubernetesexecutionparameters",
    shortname = "kep",
    category = "ayatori",
    status = "ParametersStatus",
    printcolumn(name = "RuntimeClass", type_ = "string", json_path = ".spec.runtimeClassName"),
    printcolumn(
        name = "ServiceAccount",
        type_ = "string",
        json_path = ".spec.serviceAccountName"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    derive = "PartialEq",
    derive = "Default",
    doc = "Parameters of JobClasses that run as native batch/v1 Jobs."
)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesExecutionParametersSpec {
    /// ServiceAccount the pods run as, provided under this name in every allowed namespace. Where it is
    /// missing the Job waits and says so; there is no fallback. Absent: the namespace's `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::object_name())]
    pub service_account_name: Option<String>,

    /// RuntimeClass of the pods. The class is not Ready while it does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::object_name())]
    pub runtime_class_name: Option<String>,

    /// Where the pods may be placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Scheduling>,

    /// Security context of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_security_context: Option<PodSecurityContext>,

    /// Security context of the main container; a namespace with the "restricted" Pod Security level needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_security_context: Option<SecurityContext>,

    /// When the kubelet pulls the image. Always: before every start. IfNotPresent: when the node does not have
    /// it. Never: the node must have it. Absent: the kubelet's default for the image's tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<ImagePullPolicy>,
}

/// Where pods may be placed.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels a node must carry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = format::labels())]
    pub node_selector: BTreeMap<String, String>,
    /// Taints the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = format::tolerations())]
    pub tolerations: Vec<Toleration>,
}

/// When the kubelet pulls the image.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImagePullPolicy {
    /// Before every start.
    Always,
    /// When the node does not have it.
    IfNotPresent,
    /// Never: the node must have it.
    Never,
}

impl ImagePullPolicy {
    /// The name Kubernetes uses.
    pub fn as_str(self) -> &'static str {
        match self {
            ImagePullPolicy::Always => "Always",
            ImagePullPolicy::IfNotPresent => "IfNotPresent",
            ImagePullPolicy::Never => "Never",
        }
    }
}

/// How the OpenSandbox adapter runs the Jobs of a class.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "execution.ayatori.ddupan.top",
    version = "v1alpha1",
    kind = "OpenSandboxExecutionParameters",
    plural = "opensandboxexecutionparameters",
    singular = "opensandboxexecutionparameters",
    shortname = "osep",
    category = "ayatori",
    status = "ParametersStatus",
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".spec.endpoint"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.commandMode"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.poolRef"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    derive = "PartialEq",
    derive = "Default",
    doc = "Parameters of JobClasses that run in OpenSandbox sandboxes."
)]
#[serde(rename_all = "camelCase")]
pub struct OpenSandboxExecutionParametersSpec {
    /// Base URL of the OpenSandbox API: `https`, without credentials, query or fragment.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = format::base_url())]
    pub endpoint: String,

    /// Key of a Secret that holds the API key.
    pub api_key_secret_ref: SecretKeyReference,

    /// PEM certificates of the authorities that may have signed the endpoint's certificate, in addition to
    /// the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 262144))]
    #[x_kube(validation = format::pem_certificates())]
    pub ca_bundle: Option<String>,

    /// Pool the sandboxes are taken from. Needs `commandMode: Execd` and `poolTemplate`, and excludes
    /// `allowSecretEnv`: a pool may hand a sandbox on to the next who asks. The class is not Ready while the server
    /// has no such pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::object_name())]
    pub pool_ref: Option<String>,

    /// What every sandbox of the pool has. A Job is accepted only if its image and limits are exactly this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_template: Option<PoolTemplate>,

    /// Entrypoint (default): the command is the sandbox's entrypoint. Execd: the sandbox is started first and
    /// the command run inside it, for runtimes whose API cannot show the end of the entrypoint, and where a
    /// command must not be lost with an unanswered request. The image then needs `ln`, `mkdir`, `mv`, `rm`
    /// and `sleep` besides `/bin/sh`, and a `/tmp` to write to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_mode: Option<CommandMode>,

    /// AdmissionOnly (default): requests count only against the class, limits become the sandbox's. Native:
    /// the backend honours requests too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_mapping: Option<RequestMapping>,

    /// Allows Jobs to send values of Secrets as environment variables to the OpenSandbox API. Not together with
    /// `poolRef`. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_secret_env: Option<bool>,

    /// Allows Jobs to send image pull credentials to the OpenSandbox API. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_image_auth: Option<bool>,

    /// Allows an `http` endpoint, where the adapter itself runs with `--allow-insecure-http`. For isolated
    /// development only. Default false.
    #[serde(rename = "allowInsecureHTTP", skip_serializing_if = "Option::is_none")]
    pub allow_insecure_http: Option<bool>,
}

/// One key of a Secret, in a namespace the adapter may read.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyReference {
    /// Namespace of the Secret.
    #[schemars(length(max = 63))]
    #[x_kube(validation = format::namespace())]
    pub namespace: String,
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::object_name())]
    pub name: String,
    /// Key in its data.
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::data_key())]
    pub key: String,
}

/// What every sandbox of a pool has.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolTemplate {
    /// Image of the pool's sandboxes.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = format::image())]
    pub image: String,
    /// Limits of the pool's sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceQuantities>,
}

/// How the command gets into the sandbox.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandMode {
    /// As the sandbox's entrypoint.
    Entrypoint,
    /// Through the daemon inside a running sandbox.
    Execd,
}

/// What becomes of resource requests.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestMapping {
    /// They count only against the class.
    AdmissionOnly,
    /// They are sent to the backend, which honours them.
    Native,
}

/// Whether the parameters are usable. Written only by the adapter that owns the kind.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParametersStatus {
    /// `metadata.generation` that this status was decided on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// DeletionBlocked: the classes that keep a deleted object alive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

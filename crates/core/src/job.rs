//! The `Job` resource: one execution of one command, with one result.

// `KubeSchema` puts a copy of each struct, with its `pub`, into a function; columns share a type.
#![allow(unreachable_pub, clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::format;
use crate::resources::ResourceRequirements;

/// What to run, once. Everything but `suspend`, `cancelRequested` and `ttlSecondsAfterFinished` is immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "execution.ayatori.ddupan.top",
    version = "v1alpha1",
    kind = "Job",
    plural = "jobs",
    singular = "job",
    shortname = "ajob",
    shortname = "ajobs",
    category = "ayatori",
    namespaced,
    status = "JobStatus",
    selectable = ".spec.jobClassName",
    selectable = ".status.state",
    selectable = ".status.resolvedJobClass.name",
    printcolumn(name = "Class", type_ = "string", json_path = ".status.resolvedJobClass.name"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Exit", type_ = "integer", json_path = ".status.result.exitCode"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Waiting",
        type_ = "string",
        json_path = r#".status.conditions[?(@.status!="True")].reason"#,
        priority = 1,
        description = "Why it has not come further: the reason of the first condition that is not True."
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.result.reason",
        priority = 1,
        description = "Why it ended as it did."
    ),
    printcolumn(
        name = "Controller",
        type_ = "string",
        json_path = ".status.resolvedJobClass.controllerName",
        priority = 1
    ),
    printcolumn(
        name = "Execution",
        type_ = "string",
        json_path = ".status.execution.id",
        priority = 1
    ),
    derive = "PartialEq",
    derive = "Default",
    doc = "A one-shot execution that runs exactly once on the backend its JobClass names and reports one final result."
)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    /// Name of the JobClass that runs this Job. When absent, the namespace's annotation
    /// `execution.ayatori.ddupan.top/default-job-class` decides, then the single class annotated as the
    /// global default. A class that does not exist or refuses the Job is reported, never replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = format::object_name())]
    pub job_class_name: Option<String>,

    /// Container image to run, with tag or digest, for example `registry.example/team/app:1.2`.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = format::image())]
    pub image: String,

    /// Entrypoint. When absent the image's own entrypoint runs, where the backend supports that.
    /// `$(NAME)` is replaced by the value of the environment variable NAME, `$$` by a single `$`.
    /// `command`, `args` and the names and values of `env` hold at most 131072 characters together, and no
    /// NUL character: no process can be given one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 65536), regex(pattern = format::NO_NUL)))]
    pub command: Vec<String>,

    /// Arguments to the entrypoint; expanded like `command`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 65536), regex(pattern = format::NO_NUL)))]
    pub args: Vec<String>,

    /// Absolute directory in the container to run in. When absent, the image's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096), regex(pattern = format::NO_NUL))]
    #[x_kube(validation = format::absolute_path())]
    pub working_dir: Option<String>,

    /// Environment variables, unique by name: at most 256, of at most 32768 characters each. They take
    /// precedence over `envFrom`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub env: Vec<EnvVar>,

    /// Sources whose keys all become environment variables; later sources win over earlier ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env_from: Vec<EnvFromSource>,

    /// Secrets in the Job's namespace that hold credentials for the image's registry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub image_pull_secrets: Vec<LocalObjectReference>,

    /// CPU and memory. What is left out is filled in from the class; `status.resources` shows the outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,

    /// Seconds from acceptance until the Job is stopped as DeadlineExceeded: waiting, starting and running
    /// all count. At least 1. No limit when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2147483647))]
    pub active_deadline_seconds: Option<i32>,

    /// Seconds from creation within which the command must have started, else the Job ends as
    /// StartingDeadlineExceeded. Also bounds a Job that no class accepts. At least 1. No limit when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2147483647))]
    pub starting_deadline_seconds: Option<i32>,

    /// Seconds a stopped process may take to end after TERM before it is killed: 0 to 86400, one day. When
    /// absent, the backend's own default. Refused with UnsupportedFeature where the backend has no graceful stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub termination_grace_period_seconds: Option<i32>,

    /// Seconds after `status.finishTime` until the Job is deleted. May be changed at any time. When absent,
    /// the Job is kept until somebody deletes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2147483647))]
    pub ttl_seconds_after_finished: Option<i32>,

    /// While true, nothing is accepted or created. May go from true to false, never back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,

    /// Set to true to stop the Job. A process that had already ended keeps its own result. Cannot be undone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_requested: Option<bool>,

    /// Controller that runs this Job, as a domain-prefixed path. Absent or
    /// `execution.ayatori.ddupan.top/job-controller`: the adapter of the class. Anything else: the adapters
    /// neither run, report on nor finish the Job; only its TTL still counts. That controller has to patch the
    /// status: a server-side apply of a part of it replaces all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = format::controller_name())]
    pub managed_by: Option<String>,
}

/// One environment variable.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = (
    "!(has(self.value) && has(self.valueFrom))",
    "value and valueFrom exclude each other: keep one of them, or neither for an empty value"
))]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Name of the variable: any printable ASCII but `=`.
    #[schemars(length(max = 256))]
    #[x_kube(validation = format::env_name())]
    pub name: String,
    /// Its value. `$(NAME)` refers to a variable defined before it; `$$` is a single `$`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768), regex(pattern = format::NO_NUL))]
    pub value: Option<String>,
    /// Where to take the value from. Not together with `value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<EnvVarSource>,
}

/// Exactly one of its fields is set.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = (
    "has(self.secretKeyRef) != has(self.configMapKeyRef)",
    "exactly one source must be set: secretKeyRef or configMapKeyRef"
))]
#[serde(rename_all = "camelCase")]
pub struct EnvVarSource {
    /// A key of a Secret in the Job's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeySelector>,
    /// A key of a ConfigMap in the Job's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeySelector>,
}

/// One key of a Secret or ConfigMap.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeySelector {
    /// Name of the object.
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::object_name())]
    pub name: String,
    /// Key in its data.
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::data_key())]
    pub key: String,
    /// When true, a missing object or key leaves the variable unset. Otherwise the Job waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// A Secret or ConfigMap all of whose keys become environment variables. Exactly one source is set.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = (
    "has(self.secretRef) != has(self.configMapRef)",
    "exactly one source must be set: secretRef or configMapRef"
))]
#[serde(rename_all = "camelCase")]
pub struct EnvFromSource {
    /// Put in front of every key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    #[x_kube(validation = format::env_prefix())]
    pub prefix: Option<String>,
    /// A Secret in the Job's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<ObjectSelector>,
    /// A ConfigMap in the Job's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ObjectSelector>,
}

/// A whole Secret or ConfigMap.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectSelector {
    /// Name of the object.
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::object_name())]
    pub name: String,
    /// When true, a missing object contributes nothing. Otherwise the Job waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// An object in the Job's namespace.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalObjectReference {
    /// Name of the object.
    #[schemars(length(max = 253))]
    #[x_kube(validation = format::object_name())]
    pub name: String,
}

/// What became of a Job. Written only by the controller that owns it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    /// `metadata.generation` that this status was decided on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// One word for people, derived from the conditions; programs read the conditions. Suspended: held back by
    /// `spec.suspend`. Rejected: no class accepts it as it is. Waiting: for a class, for its controller, or for
    /// the backend. Starting: in the backend, the command has not started. Running. Stopping: a stop was
    /// requested, the process may still run. Unknown: the backend cannot be observed. Succeeded: ended with exit
    /// code 0. Failed: ended in any other way that nobody asked for. Cancelled: ended because somebody asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,

    /// The class that accepted the Job, as it was then. Set once, together with `resources`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved_job_class: Option<ResolvedJobClass>,

    /// Effective CPU and memory, as executed. Set once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,

    /// What was intended in the backend, what exists there, and how it was stopped and released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<Execution>,

    /// When the command was started, by the backend's clock. Set once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the end was recorded: the trusted terminal time from which the TTL counts. Set once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_time: Option<Time>,

    /// The final result. Set once, together with `Finished=True`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<JobResult>,

    /// How to find the logs of this execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation: Option<Correlation>,

    /// Accepted, Scheduled, Started and Finished, each of which becomes True at most once and in this order;
    /// ResultUnknown while the truth cannot be observed; DeletionBlocked while a deletion waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    #[schemars(length(max = 16))]
    pub conditions: Vec<Condition>,
}

/// One word for people.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum JobState {
    /// `spec.suspend` holds it back.
    Suspended,
    /// No class accepts it as it is; `Accepted` says why.
    Rejected,
    /// Waiting for a class, for its controller, or for the backend to take it.
    Waiting,
    /// Exists in the backend; the command has not started.
    Starting,
    /// The command runs.
    Running,
    /// A stop was requested; the process may still run.
    Stopping,
    /// The backend cannot be observed.
    Unknown,
    /// Ended with exit code 0.
    Succeeded,
    /// Ended in any other way that nobody asked for.
    Failed,
    /// Ended because somebody asked for it.
    Cancelled,
}

/// The class that accepted a Job.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedJobClass {
    /// Name of the class.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// UID of the class. A class recreated under the same name is another class.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// Controller that owns the Job from here on.
    #[schemars(length(min = 1, max = 253))]
    pub controller_name: String,
    /// The class's parameters object.
    pub parameters_ref: ResolvedParametersReference,
}

/// The parameters object of the class that accepted a Job.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedParametersReference {
    /// API group of the parameters object.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// Kind of the parameters object.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name of the parameters object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// UID of the parameters object.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// The Job's execution in its backend. Every field is set once; `attempt` and `backend` may be cleared
/// together after a proven refusal, while `id` is unset.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Execution {
    /// The backend's name for the execution: UID of the batch/v1 Job, or id of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub id: Option<String>,
    /// The one instance that may run the command: UID of the pod. Unset for backends without instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub uid: Option<String>,
    /// Node the execution was placed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub node_name: Option<String>,
    /// Which server the execution lives on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendIdentity>,
    /// When the start of exactly this execution was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_requested_time: Option<Time>,
    /// The one create request that may have been sent, for backends where creating is starting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// The stop that was requested, and when it took effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// When the backend's resources of the ended execution were given back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_time: Option<Time>,
}

/// Identity of the server that holds an execution. Answers of any other server prove nothing.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendIdentity {
    /// UID of the parameters object that named the server.
    #[serde(rename = "parametersUID")]
    #[schemars(length(min = 1, max = 64))]
    pub parameters_uid: String,
    /// Hash of the server's endpoint; empty where the backend is this cluster.
    #[schemars(length(max = 128))]
    pub endpoint_hash: String,
}

/// A create request that is sent at most once.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Random id of the attempt, carried by the request.
    #[schemars(length(min = 1, max = 63))]
    pub id: String,
    /// The request is not sent after this time.
    pub send_before: Time,
    /// The command refuses to start after this time.
    pub start_before: Time,
}

/// A requested stop.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stop {
    /// Why the Job is stopped; decides the result if the process ends because of it. CancelRequested:
    /// `spec.cancelRequested`. DeadlineExceeded: `spec.activeDeadlineSeconds` passed. StartingDeadlineExceeded:
    /// `spec.startingDeadlineSeconds` passed before the command ran. JobDeleted: the Job is being deleted.
    pub reason: StopReason,
    /// When the stop was decided.
    pub requested_time: Time,
    /// When the backend had recorded the stop before an end of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered_time: Option<Time>,
}

/// Why a Job is stopped.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StopReason {
    /// `spec.cancelRequested`.
    CancelRequested,
    /// `spec.activeDeadlineSeconds` passed.
    DeadlineExceeded,
    /// `spec.startingDeadlineSeconds` passed before the command ran.
    StartingDeadlineExceeded,
    /// The Job is being deleted.
    JobDeleted,
}

/// How a Job ended.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    /// The process ended by itself with exit code 0.
    Succeeded,
    /// Any other end that nobody asked for.
    Failed,
    /// The Job was stopped on request.
    Cancelled,
}

/// The final result.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobResult {
    /// Succeeded: the process ended by itself with exit code 0. Failed: any other end that nobody asked for.
    /// Cancelled: the Job was stopped on request.
    pub outcome: Outcome,
    /// Stable word for the cause, such as Completed, NonZeroExit, OOMKilled or DeadlineExceeded.
    #[schemars(length(min = 1, max = 128))]
    pub reason: String,
    /// Exit code of the command as the backend measured it. Absent when it was not measured. Equal on every class
    /// where `reason` is Completed or NonZeroExit; read it only there. After a stop some backends have measured how the
    /// process ended upon a signal, others have no code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal that, by shell convention, an exit code above 128 stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// For people: at most 1 KiB, never output of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

/// How to find the logs of an execution.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Correlation {
    /// Label selector that matches what this Job, and no other, left in the log store.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub selector: Option<String>,
    /// Link into the log store, from the adapter's `--logs-url-template`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub url: Option<String>,
}

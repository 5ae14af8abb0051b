//! The fixed names of the API: group, controllers, annotations, labels, finalizers.

/// API group of all kinds.
pub const GROUP: &str = "execution.ayatori.ddupan.top";
/// The one version.
pub const VERSION: &str = "v1alpha1";

/// Controller name of the Kubernetes adapter.
pub const KUBERNETES_CONTROLLER: &str = "execution.ayatori.ddupan.top/kubernetes";
/// Controller name of the OpenSandbox adapter.
pub const OPENSANDBOX_CONTROLLER: &str = "execution.ayatori.ddupan.top/opensandbox";
/// The controllers of our own domain that exist. A class that names another one of our domain is a mistake.
pub const KNOWN_CONTROLLERS: [&str; 2] = [KUBERNETES_CONTROLLER, OPENSANDBOX_CONTROLLER];

/// Value of `spec.managedBy` that means the same as leaving it out.
pub const JOB_CONTROLLER: &str = "execution.ayatori.ddupan.top/job-controller";

/// Annotation on a Namespace: the class of its Jobs that name none.
pub const NAMESPACE_DEFAULT_CLASS: &str = "execution.ayatori.ddupan.top/default-job-class";
/// Annotation on a JobClass: `"true"` makes it the global default.
pub const IS_DEFAULT_CLASS: &str = "execution.ayatori.ddupan.top/is-default-job-class";

/// Annotation on a Job: the `traceparent` of its caller, whose trace it becomes part of.
pub const TRACEPARENT: &str = "execution.ayatori.ddupan.top/traceparent";

/// Label on what a backend holds for a Job: the Job's UID.
pub const JOB_UID_LABEL: &str = "execution.ayatori.ddupan.top/job-uid";
/// Label: the Job's name.
pub const JOB_NAME_LABEL: &str = "execution.ayatori.ddupan.top/job-name";
/// Label: the Job's namespace.
pub const JOB_NAMESPACE_LABEL: &str = "execution.ayatori.ddupan.top/job-namespace";
/// Label: the Job's class.
pub const JOB_CLASS_LABEL: &str = "execution.ayatori.ddupan.top/job-class";

/// Finalizer on a Job: its execution must be gone first.
pub const EXECUTION_FINALIZER: &str = "execution.ayatori.ddupan.top/execution-cleanup";
/// Finalizer on a JobClass: no accepted Job may need it any more.
pub const CLASS_FINALIZER: &str = "execution.ayatori.ddupan.top/job-class-protection";
/// Finalizer on a parameters object: no class may refer to it any more.
pub const PARAMETERS_FINALIZER: &str = "execution.ayatori.ddupan.top/parameters-protection";
/// Finalizer on pods of the Kubernetes backend: their exit code must have been read.
pub const RESULT_FINALIZER: &str = "execution.ayatori.ddupan.top/result";
/// Scheduling gate on pods of the Kubernetes backend: only the recorded one may run.
pub const START_GATE: &str = "execution.ayatori.ddupan.top/start";

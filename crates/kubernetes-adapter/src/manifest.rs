//! The batch Job of a Job. Pure: nothing is read and nothing can fail.
//!
//! Its pods are born held by our scheduling gate, so creating it starts nothing, and carry our finalizer, so
//! their exit code cannot be collected before it was read. It never replaces a pod on its own account, has a
//! deadline of its own only as a guard against an adapter that is away, and no TTL.

use std::collections::BTreeMap;

use ayatori_core::execution::Why;
use ayatori_core::job::{EnvFromSource, EnvVar, Job, LocalObjectReference};
use ayatori_core::lifecycle::active_deadline;
use ayatori_core::names::{
    JOB_CLASS_LABEL, JOB_NAME_LABEL, JOB_NAMESPACE_LABEL, JOB_UID_LABEL, RESULT_FINALIZER, START_GATE,
};
use ayatori_core::parameters::KubernetesExecutionParametersSpec;
use ayatori_core::resources::{ResourceQuantities, ResourceRequirements};
use ayatori_core::stage::Accepted;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};

/// Name of the container that runs the command. Others that somebody injects are never read.
pub(crate) const CONTAINER: &str = "job";

/// The batch Job of an accepted Job. `guard` is how long after the Job's own deadline Kubernetes ends it.
pub(crate) fn batch_job(
    accepted: Accepted<'_>,
    parameters: &KubernetesExecutionParametersSpec,
    name: &str,
    guard: SignedDuration,
    now: Timestamp,
) -> Result<batch::Job, Why> {
    let job = accepted.job();
    let labels = labels(accepted);
    // The API server sets a UID and a namespace on everything it stores.
    let owner =
        owner(job).ok_or_else(|| Why::new("BackendRejected", "the Job has no UID: it was never stored"))?;
    Ok(batch::Job {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: job.namespace(),
            labels: Some(labels.clone()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(batch::JobSpec {
            parallelism: Some(1),
            completions: Some(1),
            backoff_limit: Some(0),
            // With Failed, the only choice beside a failure policy, a pod that is going is not replaced.
            pod_replacement_policy: Some("Failed".to_owned()),
            pod_failure_policy: Some(failure_policy()),
            active_deadline_seconds: active_deadline(job, accepted.at()).map(|at| remaining(at, guard, now)),
            template: core::PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    finalizers: Some(vec![RESULT_FINALIZER.to_owned()]),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(job, accepted.resources(), parameters)),
            },
            ..batch::JobSpec::default()
        }),
        status: None,
    })
}

fn labels(accepted: Accepted<'_>) -> BTreeMap<String, String> {
    let job = accepted.job();
    [
        (JOB_NAME_LABEL, job.name_any()),
        (JOB_NAMESPACE_LABEL, job.namespace().unwrap_or_default()),
        (JOB_UID_LABEL, job.uid().unwrap_or_default()),
        (JOB_CLASS_LABEL, accepted.class().name.clone()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// The owner must not go before its batch Job does, also when it is deleted in the foreground; the right to say
/// so is `update` on `jobs/finalizers`.
fn owner(job: &Job) -> Option<OwnerReference> {
    Some(OwnerReference {
        block_owner_deletion: Some(true),
        ..job.controller_owner_ref(&())?
    })
}

fn remaining(deadline: Timestamp, guard: SignedDuration, now: Timestamp) -> i64 {
    deadline
        .duration_since(now)
        .max(SignedDuration::ZERO)
        .saturating_add(guard)
        .as_secs()
        .max(1)
}

/// One pod, whatever becomes of it. The failure's message keeps the exit code in the batch Job.
fn failure_policy() -> batch::PodFailurePolicy {
    let fail_job = || batch::PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        ..Default::default()
    };
    batch::PodFailurePolicy {
        rules: vec![
            batch::PodFailurePolicyRule {
                on_exit_codes: Some(batch::PodFailurePolicyOnExitCodesRequirement {
                    container_name: Some(CONTAINER.to_owned()),
                    operator: "NotIn".to_owned(),
                    values: vec![0],
                }),
                ..fail_job()
            },
            batch::PodFailurePolicyRule {
                on_pod_conditions: Some(vec![batch::PodFailurePolicyOnPodConditionsPattern {
                    type_: "DisruptionTarget".to_owned(),
                    status: Some("True".to_owned()),
                }]),
                ..fail_job()
            },
        ],
    }
}

fn pod(
    job: &Job,
    resources: &ResourceRequirements,
    parameters: &KubernetesExecutionParametersSpec,
) -> core::PodSpec {
    let scheduling = parameters.scheduling.clone().unwrap_or_default();
    core::PodSpec {
        containers: vec![container(job, resources, parameters)],
        restart_policy: Some("Never".to_owned()),
        enable_service_links: Some(false),
        scheduling_gates: Some(vec![core::PodSchedulingGate {
            name: START_GATE.to_owned(),
        }]),
        service_account_name: parameters.service_account_name.clone(),
        runtime_class_name: parameters.runtime_class_name.clone(),
        security_context: parameters.pod_security_context.clone(),
        node_selector: some(scheduling.node_selector),
        tolerations: some(scheduling.tolerations),
        image_pull_secrets: some(
            job.spec
                .image_pull_secrets
                .iter()
                .map(pull_secret)
                .collect::<Vec<_>>(),
        ),
        termination_grace_period_seconds: job.spec.termination_grace_period_seconds.map(i64::from),
        ..core::PodSpec::default()
    }
}

fn container(
    job: &Job,
    resources: &ResourceRequirements,
    parameters: &KubernetesExecutionParametersSpec,
) -> core::Container {
    let spec = &job.spec;
    core::Container {
        name: CONTAINER.to_owned(),
        image: Some(spec.image.clone()),
        image_pull_policy: parameters.image_pull_policy.map(|p| p.as_str().to_owned()),
        command: some(spec.command.clone()),
        args: some(spec.args.clone()),
        working_dir: spec.working_dir.clone(),
        env: some(spec.env.iter().map(env).collect::<Vec<_>>()),
        env_from: some(spec.env_from.iter().map(env_from).collect::<Vec<_>>()),
        resources: Some(core::ResourceRequirements {
            requests: quantities(resources.requests.as_ref()),
            limits: quantities(resources.limits.as_ref()),
            claims: None,
        }),
        security_context: parameters.container_security_context.clone(),
        ..core::Container::default()
    }
}

fn quantities(amounts: Option<&ResourceQuantities>) -> Option<BTreeMap<String, Quantity>> {
    let amounts = amounts?;
    let named = [("cpu", &amounts.cpu), ("memory", &amounts.memory)];
    some(
        named
            .into_iter()
            .filter_map(|(name, amount)| Some((name.to_owned(), amount.clone()?)))
            .collect(),
    )
}

/// Values of Secrets stay where they are: the reference goes on, and the kubelet reads it.
fn env(variable: &EnvVar) -> core::EnvVar {
    core::EnvVar {
        name: variable.name.clone(),
        value: variable.value.clone(),
        value_from: variable.value_from.as_ref().map(|source| core::EnvVarSource {
            secret_key_ref: source.secret_key_ref.as_ref().map(|r| core::SecretKeySelector {
                name: r.name.clone(),
                key: r.key.clone(),
                optional: r.optional,
            }),
            config_map_key_ref: source
                .config_map_key_ref
                .as_ref()
                .map(|r| core::ConfigMapKeySelector {
                    name: r.name.clone(),
                    key: r.key.clone(),
                    optional: r.optional,
                }),
            ..core::EnvVarSource::default()
        }),
    }
}

fn env_from(source: &EnvFromSource) -> core::EnvFromSource {
    core::EnvFromSource {
        prefix: source.prefix.clone(),
        secret_ref: source.secret_ref.as_ref().map(|r| core::SecretEnvSource {
            name: r.name.clone(),
            optional: r.optional,
        }),
        config_map_ref: source.config_map_ref.as_ref().map(|r| core::ConfigMapEnvSource {
            name: r.name.clone(),
            optional: r.optional,
        }),
    }
}

fn pull_secret(reference: &LocalObjectReference) -> core::LocalObjectReference {
    core::LocalObjectReference {
        name: reference.name.clone(),
    }
}

/// Nothing instead of something empty.
fn some<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{JOB_UID, accepted, at, job, parse};

    fn made(job: &Job, parameters: &str) -> batch::Job {
        let parameters: KubernetesExecutionParametersSpec = parse(parameters);
        batch_job(
            accepted(job),
            &parameters,
            "build-x",
            SignedDuration::from_secs(120),
            at(10),
        )
        .unwrap()
    }

    #[test]
    fn the_smallest_job_becomes_a_held_batch_job_with_one_pod() {
        let job = job("spec: { image: app }\nstatus: { resources: {} }");
        let expected: batch::Job = parse(&format!(
            "
            metadata: &metadata
              name: build-x
              namespace: team
              labels: &labels
                execution.ayatori.ddupan.top/job-name: build
                execution.ayatori.ddupan.top/job-namespace: team
                execution.ayatori.ddupan.top/job-uid: {JOB_UID}
                execution.ayatori.ddupan.top/job-class: rootless
              ownerReferences:
              - apiVersion: execution.ayatori.ddupan.top/v1alpha1
                kind: Job
                name: build
                uid: {JOB_UID}
                controller: true
                blockOwnerDeletion: true
            spec:
              parallelism: 1
              completions: 1
              backoffLimit: 0
              podReplacementPolicy: Failed
              podFailurePolicy:
                rules:
                - {{ action: FailJob, onExitCodes: {{ containerName: job, operator: NotIn, values: [0] }} }}
                - {{ action: FailJob, onPodConditions: [{{ type: DisruptionTarget, status: 'True' }}] }}
              template:
                metadata:
                  labels: *labels
                  finalizers: [execution.ayatori.ddupan.top/result]
                spec:
                  restartPolicy: Never
                  enableServiceLinks: false
                  schedulingGates: [{{ name: execution.ayatori.ddupan.top/start }}]
                  containers: [{{ name: job, image: app, resources: {{}} }}]
            "
        ));
        assert_eq!(made(&job, "{}"), expected);
    }

    #[test]
    fn everything_a_job_and_its_parameters_say_reaches_the_pod_and_secrets_stay_references() {
        let job = job("
            spec:
              image: app
              command: [/bin/run]
              args: ['$(A)']
              workingDir: /src
              env:
              - { name: A, value: x }
              - { name: EMPTY }
              - { name: S, valueFrom: { secretKeyRef: { name: s, key: k, optional: true } } }
              - { name: C, valueFrom: { configMapKeyRef: { name: c, key: k } } }
              envFrom:
              - { prefix: P_, secretRef: { name: s } }
              - { configMapRef: { name: c, optional: true } }
              imagePullSecrets: [{ name: pull }]
              activeDeadlineSeconds: 60
              terminationGracePeriodSeconds: 5
            status:
              resources: { requests: { cpu: 250m }, limits: { cpu: '1', memory: 1.5Gi } }
        ");
        let parameters = "
            serviceAccountName: runner
            runtimeClassName: kata
            imagePullPolicy: IfNotPresent
            scheduling:
              nodeSelector: { disk: ssd }
              tolerations: [{ key: ci, operator: Exists }]
            podSecurityContext: { runAsNonRoot: true }
            containerSecurityContext: { allowPrivilegeEscalation: false }
        ";
        let expected: core::PodSpec = parse(
            "
            serviceAccountName: runner
            runtimeClassName: kata
            nodeSelector: { disk: ssd }
            tolerations: [{ key: ci, operator: Exists }]
            securityContext: { runAsNonRoot: true }
            imagePullSecrets: [{ name: pull }]
            terminationGracePeriodSeconds: 5
            restartPolicy: Never
            enableServiceLinks: false
            schedulingGates: [{ name: execution.ayatori.ddupan.top/start }]
            containers:
            - name: job
              image: app
              imagePullPolicy: IfNotPresent
              command: [/bin/run]
              args: ['$(A)']
              workingDir: /src
              env:
              - { name: A, value: x }
              - { name: EMPTY }
              - { name: S, valueFrom: { secretKeyRef: { name: s, key: k, optional: true } } }
              - { name: C, valueFrom: { configMapKeyRef: { name: c, key: k } } }
              envFrom:
              - { prefix: P_, secretRef: { name: s } }
              - { configMapRef: { name: c, optional: true } }
              resources: { requests: { cpu: 250m }, limits: { cpu: '1', memory: 1.5Gi } }
              securityContext: { allowPrivilegeEscalation: false }
        ",
        );
        let spec = made(&job, parameters).spec.unwrap();
        assert_eq!(spec.template.spec.unwrap(), expected);
        // Accepted at second 2, made at second 10, guarded for 120 seconds more.
        assert_eq!(spec.active_deadline_seconds, Some(60 - 8 + 120));
    }

    #[test]
    fn a_deadline_that_has_passed_leaves_the_guard() {
        let job = job("spec: { image: app, activeDeadlineSeconds: 1 }\nstatus: { resources: {} }");
        assert_eq!(made(&job, "{}").spec.unwrap().active_deadline_seconds, Some(120));
    }
}

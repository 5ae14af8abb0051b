//! Namespaces with and without the policies, classes that are never ready, and what becomes of a Job.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use ayatori_core::conditions::{self, ACCEPTED, PENDING};
use ayatori_core::job::Job;
use ayatori_core::job_class::JobClass;
use ayatori_core::names::{GROUP, KUBERNETES_CONTROLLER};
use ayatori_core::parameters::{KubernetesExecutionParameters, KubernetesExecutionParametersSpec};
use ayatori_e2e::api::{self, RUN_LABEL, Run, merged};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// How long anything that should happen may take.
const PATIENCE: Duration = Duration::from_secs(150);

/// Who judges the Jobs of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judges {
    /// The policies, then the controllers: the default.
    Policies,
    /// The controllers alone.
    Controllers,
}

impl Judges {
    pub(crate) const ALL: [Judges; 2] = [Judges::Policies, Judges::Controllers];

    /// What a namespace is labelled with to have these judges.
    pub(crate) fn labels(self) -> BTreeMap<String, String> {
        match self {
            Judges::Policies => BTreeMap::new(),
            Judges::Controllers => [(format!("{GROUP}/admission"), "controllers-only".to_owned())].into(),
        }
    }
}

/// What the API server answered to the creation of a Job.
#[derive(Debug)]
pub(crate) enum Answer {
    Created,
    /// A policy refused it, with this message.
    Refused(String),
}

/// Parameters of the Kubernetes adapter that make classes never ready, so that nothing of theirs is executed.
pub(crate) async fn create_parameters(run: &Run) -> anyhow::Result<()> {
    let spec = KubernetesExecutionParametersSpec {
        runtime_class_name: Some(format!("{}-does-not-exist", run.namespace)),
        ..KubernetesExecutionParametersSpec::default()
    };
    let mut parameters = KubernetesExecutionParameters::new(&run.namespace, spec);
    parameters.metadata.labels = Some(ours(run));
    Api::all(run.client.clone())
        .create(&PostParams::default(), &parameters)
        .await
        .context("creating parameters")?;
    Ok(())
}

/// A class with those parameters and this policy, accepted by the adapter and seen by the admission policy.
pub(crate) async fn create_class(
    run: &Run,
    name: &str,
    annotations: BTreeMap<String, String>,
    policy: &Value,
) -> anyhow::Result<()> {
    let reference = json!({ "group": GROUP, "kind": "KubernetesExecutionParameters", "name": run.namespace });
    let spec = json!({ "controllerName": KUBERNETES_CONTROLLER, "parametersRef": reference });
    let mut class = JobClass::new(name, serde_json::from_value(merged(spec, policy))?);
    class.metadata.labels = Some(ours(run));
    class.metadata.annotations = Some(annotations);
    let classes: Api<JobClass> = Api::all(run.client.clone());
    classes
        .create(&PostParams::default(), &class)
        .await
        .with_context(|| format!("creating class {name} with {policy}"))?;

    let accepted = |class: Option<&JobClass>| {
        class
            .and_then(|c| c.status.as_ref())
            .is_some_and(|s| conditions::is_true(&s.conditions, ACCEPTED))
    };
    tokio::time::timeout(PATIENCE, await_condition(classes, name, accepted))
        .await
        .with_context(|| format!("class {name} is not accepted: does the adapter run?"))??;
    // Whatever a class says, no Job of it may have such a limit.
    let hopeless = json!({ "jobClassName": name, "resources": { "limits": { "cpu": "-1" } } });
    api::eventually(&format!("the policy judges by class {name}"), async || {
        let answer = try_create(run, &run.namespace, "hopeless", &hopeless).await?;
        Ok(matches!(answer, Answer::Refused(_)))
    })
    .await
}

fn ours(run: &Run) -> BTreeMap<String, String> {
    [(RUN_LABEL.to_owned(), run.namespace.clone())].into()
}

/// A Job that would do nothing.
pub(crate) fn job(metadata: ObjectMeta, spec: &Value) -> anyhow::Result<Job> {
    let plain = json!({ "image": ayatori_e2e::world::IMAGE, "command": ["true"] });
    let mut job = Job::new("", serde_json::from_value(merged(plain, spec))?);
    job.metadata = metadata;
    Ok(job)
}

pub(crate) fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}

/// Creates a Job.
pub(crate) async fn create(run: &Run, namespace: &str, name: &str, spec: &Value) -> anyhow::Result<Answer> {
    submit(run, namespace, &PostParams::default(), &job(named(name), spec)?).await
}

/// Asks what would become of the creation of a Job.
pub(crate) async fn try_create(
    run: &Run,
    namespace: &str,
    name: &str,
    spec: &Value,
) -> anyhow::Result<Answer> {
    try_create_job(run, namespace, &job(named(name), spec)?).await
}

/// Asks what would become of the creation of this Job.
pub(crate) async fn try_create_job(run: &Run, namespace: &str, job: &Job) -> anyhow::Result<Answer> {
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    submit(run, namespace, &dry, job).await
}

async fn submit(run: &Run, namespace: &str, params: &PostParams, job: &Job) -> anyhow::Result<Answer> {
    let jobs: Api<Job> = Api::namespaced(run.client.clone(), namespace);
    answer(jobs.create(params, job).await).with_context(|| format!("creating Job {}", job.name_any()))
}

/// Tells the refusal of a policy from other errors.
pub(crate) fn answer<T>(answer: Result<T, kube::Error>) -> anyhow::Result<Answer> {
    match answer {
        Ok(_) => Ok(Answer::Created),
        Err(kube::Error::Api(status)) if status.message.contains("ValidatingAdmissionPolicy '") => {
            Ok(Answer::Refused(status.message.clone()))
        }
        Err(error) => Err(error.into()),
    }
}

/// The condition Accepted of a Job once it has that reason.
pub(crate) async fn when_accepted_says(
    run: &Run,
    namespace: &str,
    name: &str,
    reason: &str,
) -> anyhow::Result<Condition> {
    let jobs: Api<Job> = Api::namespaced(run.client.clone(), namespace);
    let says = |job: Option<&Job>| accepted(job).is_some_and(|c| c.reason == reason);
    match tokio::time::timeout(PATIENCE, await_condition(jobs.clone(), name, says)).await {
        Ok(job) => accepted(job?.as_ref()).cloned().context("the Job is gone"),
        Err(_) => {
            let job = jobs.get(name).await?;
            bail!("Accepted does not say {reason}, but {:?}", accepted(Some(&job)))
        }
    }
}

fn accepted(job: Option<&Job>) -> Option<&Condition> {
    conditions::find(&job?.status.as_ref()?.conditions, ACCEPTED)
}

/// Whether no controller has said a word about the Job.
pub(crate) fn is_untouched(job: &Job) -> bool {
    accepted(Some(job)).is_some_and(|c| c.reason == PENDING)
}

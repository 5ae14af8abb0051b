//! What a create request says, and what is asked of the API server for it.

use anyhow::{Context, ensure};
use ayatori_core::conditions::ACCEPTED;
use ayatori_core::job::{EnvVar, EnvVarSource, Job, JobSpec, KeySelector, Outcome};
use ayatori_core::names::{JOB_NAME_LABEL, JOB_NAMESPACE_LABEL, JOB_UID_LABEL};
use ayatori_core::resources::{ResourceQuantities, ResourceRequirements};
use ayatori_e2e::api::{RUN_LABEL, eventually};
use ayatori_e2e::audit;
use ayatori_e2e::ground::{holds, when, when_gone};
use ayatori_e2e::world::expect;
use ayatori_opensandbox_adapter::backend::Options;
use ayatori_opensandbox_adapter::stub::Stub;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::trial::{Trial, options, with, with_server};

#[tokio::test]
async fn limits_are_sent_in_whole_bytes_and_millicores_and_never_rounded_down() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        for (cpu, memory, sent_cpu, sent_memory) in [
            ("100u", "1.5Gi", "10m", "1610612736"),
            ("1k", "8192001m", "1000000m", "8193"),
            ("0.1", "1e4", "100m", "10000"),
        ] {
            let quantities = ResourceQuantities {
                cpu: Some(Quantity(cpu.to_owned())),
                memory: Some(Quantity(memory.to_owned())),
            };
            let job = trial
                .create_with("", |spec| {
                    spec.resources = Some(ResourceRequirements {
                        limits: Some(quantities),
                        ..ResourceRequirements::default()
                    });
                })
                .await?;
            let job = trial.when_finished(&job).await?;
            let requests = trial.requests_for(&job);
            let limits = requests.first().and_then(|r| r.get("resourceLimits"));
            ensure!(
                limits == Some(&json!({"cpu": sent_cpu, "memory": sent_memory})),
                "cpu {cpu}, memory {memory}: {limits:?}"
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_without_a_command_is_refused_before_anything_is_sent() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create_with("", |spec| spec.command.clear()).await?;
        trial.when_says(&job, ACCEPTED, "CommandRequired").await?;
        ensure!(trial.posts(&job) == 0);
        Ok(())
    })
    .await
}

/// Another namespace of the test, of this name.
async fn namespace(trial: &Trial, name: &str) -> anyhow::Result<Api<Job>> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    namespace
        .labels_mut()
        .insert(RUN_LABEL.to_owned(), trial.namespace.clone());
    let created = Api::all(trial.client.clone())
        .create(&PostParams::default(), &namespace)
        .await;
    created.with_context(|| format!("creating namespace {name}"))?;
    Ok(Api::namespaced(trial.client.clone(), name))
}

#[tokio::test]
async fn jobs_of_one_name_in_two_namespaces_have_sandboxes_of_their_own() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let elsewhere = namespace(trial, &format!("{}-b", trial.namespace)).await?;
        let here = trial.create_named("build", "runs=forever", |_| {}).await?;
        elsewhere
            .create(&PostParams::default(), &trial.job("build", "runs=forever"))
            .await?;
        let here = trial.when_started(&here).await?;
        let started = |job: &Job| holds(job, "Started");
        let there = when(elsewhere.clone(), "build", "started", started).await?;
        ensure!(trial.server.sandboxes().len() == 2 && there.uid() != here.uid());
        trial.delete(&here).await?;
        trial.when_gone(&here).await?;
        ensure!(trial.server.sandboxes() == [trial.sandbox(&there)?]);
        trial.server.end(&trial.sandbox(&there)?, 137);
        let there = when(elsewhere.clone(), "build", "finished", |job| {
            holds(job, "Finished")
        })
        .await?;
        expect(&there, Outcome::Failed, "NonZeroExit", Some(137))?;
        elsewhere.delete("build", &DeleteParams::default()).await?;
        when_gone(elsewhere, "build").await
    })
    .await
}

#[tokio::test]
async fn the_longest_names_there_can_be_are_legal_metadata() -> anyhow::Result<()> {
    const LONGEST: usize = 63;
    with(async |trial| {
        let _adapter = trial.start().await?;
        let long = |begin: &str| format!("{begin}{}", "x".repeat(LONGEST - begin.len()));
        let name = long(&format!("{}-", trial.namespace));
        let jobs = namespace(trial, &name).await?;
        let created = jobs
            .create(&PostParams::default(), &trial.job(&long("build.of-"), ""))
            .await?;
        let job = when(jobs.clone(), &created.name_any(), "finished", |job| {
            holds(job, "Finished")
        })
        .await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        let requests = trial.requests_for(&job);
        let metadata = requests.first().and_then(|r| r.get("metadata")?.as_object());
        let metadata = metadata.context("no metadata was sent")?;
        for (key, value) in [
            (JOB_NAMESPACE_LABEL, &name),
            (JOB_NAME_LABEL, &job.name_any()),
            (JOB_UID_LABEL, &job.uid().unwrap_or_default()),
        ] {
            ensure!(
                metadata.get(key).and_then(Value::as_str) == Some(value),
                "{metadata:?}"
            );
        }
        let legal = |value: &str| {
            let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            value.len() <= LONGEST
                && value.chars().all(inner)
                && outer(value.chars().next())
                && outer(value.chars().last())
        };
        for (key, value) in metadata {
            ensure!(value.as_str().is_some_and(legal), "{key}: {value}");
        }
        jobs.delete(&job.name_any(), &DeleteParams::default()).await?;
        when_gone(jobs, &job.name_any()).await
    })
    .await
}

/// A variable with the value of a Secret's key.
fn of_secret(secret: &str) -> EnvVar {
    EnvVar {
        name: "TOKEN".to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(KeySelector {
                name: secret.to_owned(),
                key: "token".to_owned(),
                ..KeySelector::default()
            }),
            ..EnvVarSource::default()
        }),
    }
}

#[tokio::test]
async fn a_secret_that_the_class_does_not_allow_is_not_even_read() -> anyhow::Result<()> {
    const VALUE: &str = "canary-of-a-secret";
    let options = Options {
        allow_secrets: true,
        ..options()
    };
    with_server(Stub::start().await?, options, async |trial| {
        let _adapter = trial.start().await?;
        for secret in ["forbidden", "allowed"] {
            trial.store_secret(secret, "token", VALUE).await?;
        }
        let uses = |secret: &'static str| move |spec: &mut JobSpec| spec.env = vec![of_secret(secret)];
        let refused = trial.create_with("", uses("forbidden")).await?;
        trial.when_says(&refused, ACCEPTED, "SecretEnvNotAllowed").await?;
        trial.delete(&refused).await?;
        trial.when_gone(&refused).await?;

        // With consent it is read, which the log then shows.
        trial.edit_parameters(json!({"allowSecretEnv": true})).await?;
        let job = trial.create_with("", uses("allowed")).await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        let requests = trial.requests_for(&job);
        let sent = requests.first().and_then(|r| r.pointer("/env/TOKEN"));
        ensure!(sent.and_then(Value::as_str) == Some(VALUE), "{sent:?}");
        let reads = |secret: &str| {
            let requests = audit::requests_about(&trial.namespace, &trial.class)?;
            let reads = requests.iter().filter(|entry| entry.reads_secret(secret));
            anyhow::Ok(reads.count())
        };
        eventually(
            "the audit log shows that the allowed Secret was read",
            async || Ok(reads("allowed")? > 0),
        )
        .await?;
        ensure!(reads("forbidden")? == 0, "the Secret was read");
        let secrets = Api::<Secret>::namespaced(trial.client.clone(), &trial.namespace);
        secrets.get("forbidden").await?;
        eventually("a read of the other one would be seen", async || {
            Ok(reads("forbidden")? == 1)
        })
        .await
    })
    .await
}

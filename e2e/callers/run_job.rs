//! Runs a command as a Job and ends as it did: `run-job IMAGE COMMAND [ARGS…]`, in the namespace of the kubeconfig.
//! Ends with 125 where there is no code of the command.

use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use ayatori_core::conditions::{self, FINISHED};
use ayatori_core::job::{Job, JobResult, JobSpec};
use futures::StreamExt;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher::watch_object};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // An error of `main` itself would end with 1, which is a code that commands have.
    exit_code().await.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::from(125)
    })
}

/// Runs the command of the arguments and returns its code.
async fn exit_code() -> anyhow::Result<ExitCode> {
    // rustls wants to be told which provider of cryptography to take: the one that kube's feature `ring` brings.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut arguments = std::env::args().skip(1);
    let spec = JobSpec {
        image: arguments.next().context("usage: run-job IMAGE COMMAND [ARGS…]")?,
        command: arguments.collect(),
        active_deadline_seconds: Some(3600),
        ttl_seconds_after_finished: Some(86_400),
        ..JobSpec::default()
    };
    let jobs = Api::default_namespaced(Client::try_default().await?);
    let result = run(&jobs, spec, Duration::from_secs(3900)).await?;
    match (result.reason.as_str(), result.exit_code) {
        ("Completed" | "NonZeroExit", Some(code)) => Ok(ExitCode::from(u8::try_from(code)?)),
        (reason, _) => {
            let message = result.message.unwrap_or_default();
            bail!("{:?}: {reason}: {message}", result.outcome)
        }
    }
}

/// Creates a Job and returns its result. Cancels it if that takes too long.
async fn run(jobs: &Api<Job>, spec: JobSpec, patience: Duration) -> anyhow::Result<JobResult> {
    let mut job = Job::new("", spec);
    job.metadata.name = None;
    job.metadata.generate_name = Some("run-".to_owned());
    let name = jobs.create(&PostParams::default(), &job).await?.name_any();
    let Ok(result) = tokio::time::timeout(patience, finished(jobs, &name)).await else {
        let cancel = Patch::Merge(json!({ "spec": { "cancelRequested": true } }));
        jobs.patch(&name, &PatchParams::default(), &cancel).await?;
        bail!("Job {name} was not finished within {patience:?}: cancelled");
    };
    result
}

/// Returns the result of a Job once it is finished.
async fn finished(jobs: &Api<Job>, name: &str) -> anyhow::Result<JobResult> {
    let mut changes = pin!(watch_object(jobs.clone(), name).default_backoff());
    let mut said = Vec::new();
    while let Some(seen) = changes.next().await {
        match seen {
            Ok(Some(job)) => {
                let status = job.status.unwrap_or_default();
                if conditions::is_true(&status.conditions, FINISHED) {
                    return status.result.context("a finished Job has a result");
                }
                let waits = status.conditions.into_iter().filter(|c| c.status == "False");
                let waits_for: Vec<_> = waits.map(|c| c.message).collect();
                if !waits_for.is_empty() && waits_for != said {
                    eprintln!("{name} waits: {}", waits_for.join("; "));
                    said = waits_for;
                }
            }
            Ok(None) => bail!("somebody deleted Job {name}"),
            // The API server may be away for a moment; the Job goes on meanwhile.
            Err(error) => eprintln!("asking again: {error}"),
        }
    }
    bail!("nobody watches Job {name} any more")
}

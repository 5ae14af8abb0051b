//! Whose Job it is: ours, nobody's, or somebody else's.

use anyhow::{Context, ensure};
use ayatori_controller::testing::replica::NAME;
use ayatori_core::conditions::{ACCEPTED, FINISHED, READY};
use ayatori_core::job::{Job, JobSpec, Outcome};
use ayatori_core::job_class::{JobClass, JobClassSpec, ParametersReference};
use ayatori_core::names::{EXECUTION_FINALIZER, GROUP, IS_DEFAULT_CLASS, NAMESPACE_DEFAULT_CLASS};
use ayatori_e2e::world::expect;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use crate::trial::{Mode, Trial, condition, holds, status, when, with, with_both};

fn class(name: &str, controller: &str) -> JobClass {
    JobClass::new(
        name,
        JobClassSpec {
            controller_name: controller.to_owned(),
            parameters_ref: ParametersReference {
                group: "example.com".to_owned(),
                kind: "Parameters".to_owned(),
                name: "none".to_owned(),
            },
            ..JobClassSpec::default()
        },
    )
}

fn of_class(name: &str) -> impl FnOnce(&mut JobSpec) {
    move |spec| spec.job_class_name = Some(name.to_owned())
}

fn of_no_class(spec: &mut JobSpec) {
    spec.job_class_name = None;
}

fn message(job: &Job, type_: &str) -> String {
    condition(job, type_)
        .map(|c| c.message.clone())
        .unwrap_or_default()
}

#[tokio::test]
async fn a_job_without_a_single_default_class_says_so() -> anyhow::Result<()> {
    with(Mode::Hold, async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create_with("", of_no_class).await?;
        trial
            .when_says(&job, ACCEPTED, "NoDefaultJobClass")
            .await
            .context("does the cluster have a default class?")?;
        let names = ["a", "b"].map(|n| format!("{}-{n}", trial.namespace));
        for name in &names {
            let mut default = class(name, "example.com/other");
            default
                .annotations_mut()
                .insert(IS_DEFAULT_CLASS.to_owned(), "true".to_owned());
            trial.create_global(default).await?;
        }
        let job = trial
            .when_says(&job, ACCEPTED, "AmbiguousDefaultJobClass")
            .await?;
        let said = message(&job, ACCEPTED);
        ensure!(names.iter().all(|name| said.contains(name)), "{said}");
        ensure!(job.finalizers().is_empty(), "{:?}", job.finalizers());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_default_class_of_the_namespace_is_taken() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        annotate_namespace(trial, "missing").await?;
        let job = trial.create_with("", of_no_class).await?;
        trial.when_says(&job, ACCEPTED, "JobClassNotFound").await?;
        annotate_namespace(trial, &trial.class).await?;
        expect(
            &trial.when_finished(&job).await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )
    })
    .await
}

async fn annotate_namespace(trial: &Trial, class: &str) -> anyhow::Result<()> {
    let patch = json!({ "metadata": { "annotations": { NAMESPACE_DEFAULT_CLASS: class } } });
    let namespaces = Api::<Namespace>::all(trial.client.clone());
    namespaces
        .patch(&trial.namespace, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_job_of_a_missing_class_waits_for_it() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let name = format!("{}-later", trial.namespace);
        let job = trial.create_with("", of_class(&name)).await?;
        let waiting = trial.when_says(&job, ACCEPTED, "JobClassNotFound").await?;
        ensure!(
            message(&waiting, ACCEPTED).contains(&name),
            "{}",
            message(&waiting, ACCEPTED)
        );
        trial.create_class(&name).await?;
        expect(
            &trial.when_finished(&job).await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )
    })
    .await
}

#[tokio::test]
async fn a_class_of_a_controller_that_does_not_exist_says_so_and_so_do_its_jobs() -> anyhow::Result<()> {
    with(Mode::Hold, async |trial| {
        let _adapter = trial.start().await?;
        let name = format!("{}-unknown", trial.namespace);
        trial
            .create_global(class(&name, &format!("{GROUP}/nonsense")))
            .await?;
        let job = trial.create_with("", of_class(&name)).await?;
        trial.when_says(&job, ACCEPTED, "UnsupportedController").await?;
        let says = |class: &JobClass, type_: &str, reason: &str| {
            class
                .status
                .iter()
                .flat_map(|s| &s.conditions)
                .any(|c| c.type_ == type_ && c.reason == reason)
        };
        let judged = |class: &JobClass| {
            says(class, ACCEPTED, "UnsupportedController") && says(class, READY, "NotAccepted")
        };
        let class = when(
            Api::<JobClass>::all(trial.client.clone()),
            &name,
            "not accepted",
            judged,
        )
        .await?;
        ensure!(class.finalizers().is_empty(), "{:?}", class.finalizers());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_that_nobody_owns_can_be_cancelled_expires_is_collected_and_deleted() -> anyhow::Result<()> {
    with(Mode::Hold, async |trial| {
        let _adapter = trial.start().await?;
        let unowned = async |adjust: fn(&mut JobSpec)| {
            trial
                .create_with("", |spec| {
                    of_class("missing")(spec);
                    adjust(spec);
                })
                .await
        };
        let cancelled = unowned(|_| {}).await?;
        let late = unowned(|spec| spec.starting_deadline_seconds = Some(1)).await?;
        let collected = unowned(|spec| {
            spec.cancel_requested = Some(true);
            spec.ttl_seconds_after_finished = Some(1);
        })
        .await?;
        let deleted = unowned(|_| {}).await?;

        trial.when_says(&cancelled, ACCEPTED, "JobClassNotFound").await?;
        trial.cancel(&cancelled).await?;
        let cancelled = trial.when_finished(&cancelled).await?;
        expect(&cancelled, Outcome::Cancelled, "CancelRequested", None)?;
        let late = trial.when_finished(&late).await?;
        expect(&late, Outcome::Failed, "StartingDeadlineExceeded", None)?;
        trial.when_gone(&collected).await?;
        // A finalizer of ours on a Job that never got anywhere is taken off.
        trial
            .patch(
                &deleted,
                json!({ "metadata": { "finalizers": [EXECUTION_FINALIZER] } }),
            )
            .await?;
        trial.delete(&deleted).await?;
        trial.when_gone(&deleted).await
    })
    .await
}

#[tokio::test]
async fn nothing_is_written_to_what_belongs_to_another_controller() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let name = format!("{}-foreign", trial.namespace);
        let theirs = trial.create_global(class(&name, "example.com/other")).await?;
        let foreign = trial.create_with("", of_class(&name)).await?;
        // Whatever would have been done to the earlier Job was done before the end of the later one.
        let ours = trial.create("runs=100").await?;
        trial.when_released(&ours).await?;
        let foreign = trial.jobs.get(&foreign.name_any()).await?;
        let theirs = Api::<JobClass>::all(trial.client.clone())
            .get(&theirs.name_any())
            .await?;
        ensure!(
            is_untouched(&foreign) && is_untouched(&theirs),
            "{foreign:?} {theirs:?}"
        );
        ensure!(
            condition(&foreign, ACCEPTED).is_some_and(|c| c.reason == "Pending"),
            "{:?}",
            foreign.status
        );
        trial.delete(&foreign).await?;
        trial.when_gone(&foreign).await
    })
    .await
}

fn is_untouched<K: Resource>(object: &K) -> bool {
    let ours = |manager: &str| manager == NAME;
    object.finalizers().is_empty()
        && !object
            .managed_fields()
            .iter()
            .any(|f| f.manager.as_deref().is_some_and(ours))
}

#[tokio::test]
async fn an_object_that_cannot_be_decoded_stops_no_other() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let broken = trial.create_with("", of_class("missing")).await?;
        trial.when_says(&broken, ACCEPTED, "JobClassNotFound").await?;
        // The API server takes any two digits for an offset; no clock knows this one.
        let patch = Patch::Merge(json!({ "status": { "startTime": "2026-01-01T00:00:00+99:00" } }));
        let stored = kube::Api::<kube::core::DynamicObject>::namespaced_with(
            trial.client.clone(),
            &trial.namespace,
            &kube::discovery::ApiResource::erase::<Job>(&()),
        );
        stored
            .patch_status(&broken.name_any(), &PatchParams::default(), &patch)
            .await?;
        let seen = trial.jobs.get(&broken.name_any()).await;
        let outcome = async {
            ensure!(seen.is_err(), "it can be decoded after all");
            // Neither an adapter that was there nor one that starts now is stopped.
            let job = trial.create("").await?;
            expect(
                &trial.when_finished(&job).await?,
                Outcome::Succeeded,
                "Completed",
                Some(0),
            )?;
            _adapter.kill().await;
            let _next = trial.start().await?;
            let job = trial.create("exit=3").await?;
            expect(
                &trial.when_finished(&job).await?,
                Outcome::Failed,
                "NonZeroExit",
                Some(3),
            )
        }
        .await;
        // It may hold any class, so it must go before they do.
        stored
            .delete(&broken.name_any(), &kube::api::DeleteParams::default())
            .await?;
        outcome
    })
    .await
}

#[tokio::test]
async fn a_class_that_forbids_the_namespace_refuses_until_it_does_not() -> anyhow::Result<()> {
    with(Mode::Hold, async |trial| {
        let _adapter = trial.start().await?;
        let classes = Api::<JobClass>::all(trial.client.clone());
        let allow = async |label: &str| {
            let selector = json!({ "matchLabels": { "kubernetes.io/metadata.name": label } });
            let patch = Patch::Merge(json!({ "spec": { "allowedNamespaces": selector } }));
            classes.patch(&trial.class, &PatchParams::default(), &patch).await
        };
        // Suspended, so that no admission policy has a say in it before the controller does.
        let job = trial.create_with("", |spec| spec.suspend = Some(true)).await?;
        allow("nobody").await?;
        trial.patch(&job, json!({ "spec": { "suspend": false } })).await?;
        trial.when_says(&job, ACCEPTED, "NamespaceNotAllowed").await?;
        ensure!(
            !holds(&trial.jobs.get(&job.name_any()).await?, FINISHED),
            "a refusal is not the end"
        );
        allow(&trial.namespace).await?;
        let job = trial.when_finished(&job).await?;
        ensure!(
            status(&job)
                .resolved_job_class
                .is_some_and(|c| c.name == trial.class),
            "{:?}",
            job.status
        );
        expect(&job, Outcome::Succeeded, "Completed", Some(0))
    })
    .await
}

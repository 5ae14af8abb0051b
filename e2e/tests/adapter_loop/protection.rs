//! Classes and parameters objects stay for as long as somebody needs them.

use anyhow::{Context, ensure};
use ayatori_core::conditions::{DELETION_BLOCKED, SCHEDULED, find};
use ayatori_core::execution::Why;
use ayatori_core::job::Outcome;
use ayatori_core::job_class::JobClass;
use ayatori_core::names::{CLASS_FINALIZER, PARAMETERS_FINALIZER};
use ayatori_core::parameters::OpenSandboxExecutionParameters;
use ayatori_e2e::world::expect;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::trial::{Trial, when, when_gone, with_both};

fn classes(trial: &Trial) -> Api<JobClass> {
    Api::all(trial.client.clone())
}

fn parameters(trial: &Trial) -> Api<OpenSandboxExecutionParameters> {
    Api::all(trial.client.clone())
}

#[tokio::test]
async fn a_class_and_its_parameters_are_protected_before_the_class_is_ready() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let class = trial.when_ready().await?;
        let parameters = parameters(trial).get(&trial.class).await?;
        ensure!(
            class.finalizers() == [CLASS_FINALIZER],
            "{:?}",
            class.finalizers()
        );
        ensure!(
            parameters.finalizers() == [PARAMETERS_FINALIZER],
            "{:?}",
            parameters.finalizers()
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deleted_class_stays_while_a_job_of_it_runs_and_takes_no_new_one() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        classes(trial)
            .delete(&trial.class, &DeleteParams::default())
            .await?;
        let blocked = trial
            .when_class("blocked", |class| {
                class
                    .status
                    .as_ref()
                    .is_some_and(|s| find(&s.conditions, DELETION_BLOCKED).is_some())
            })
            .await?;
        let said = blocked
            .status
            .as_ref()
            .and_then(|s| find(&s.conditions, DELETION_BLOCKED));
        let said = said.map_or("", |c| &c.message);
        ensure!(said.contains(&job.name_any()), "it does not name the Job: {said}");
        let late = trial.create("").await?;
        trial.when_says(&late, "Accepted", "JobClassTerminating").await?;
        trial.server.end(&job.uid().unwrap_or_default(), 0);
        expect(
            &trial.when_finished(&job).await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )?;
        when_gone(classes(trial), &trial.class).await?;
        trial
            .when_says(&late, "Accepted", "JobClassNotFound")
            .await
            .map(drop)
    })
    .await
}

#[tokio::test]
async fn deleted_parameters_stay_while_a_class_refers_to_them() -> anyhow::Result<()> {
    with_both(async |trial| {
        let _adapter = trial.start().await?;
        parameters(trial)
            .delete(&trial.class, &DeleteParams::default())
            .await?;
        let blocked = |p: &OpenSandboxExecutionParameters| {
            p.status
                .as_ref()
                .is_some_and(|s| find(&s.conditions, DELETION_BLOCKED).is_some())
        };
        let object = when(parameters(trial), &trial.class, "blocked", blocked).await?;
        let said = object
            .status
            .as_ref()
            .and_then(|s| find(&s.conditions, DELETION_BLOCKED));
        ensure!(said.is_some_and(|c| c.message.contains(&trial.class)), "{said:?}");
        trial
            .when_class("not accepted", |class| {
                let accepted = class
                    .status
                    .as_ref()
                    .and_then(|s| find(&s.conditions, "Accepted"));
                accepted.is_some_and(|c| c.reason == "ParametersTerminating")
            })
            .await?;
        classes(trial)
            .delete(&trial.class, &DeleteParams::default())
            .await?;
        when_gone(classes(trial), &trial.class).await?;
        when_gone(parameters(trial), &trial.class).await
    })
    .await
}

#[tokio::test]
async fn a_job_does_not_run_on_a_class_that_only_has_the_name_of_its_own() -> anyhow::Result<()> {
    with_both(async |trial| {
        trial
            .server
            .misbehave(|faults| faults.not_ready = Some(Why::new("Full", "no room")));
        let _adapter = trial.start_unready().await?;
        let job = trial.create("").await?;
        trial.when_says(&job, SCHEDULED, "JobClassNotReady").await?;
        // Somebody removes the class by force, and makes another one.
        let mut again = classes(trial).get(&trial.class).await?;
        classes(trial)
            .delete(&trial.class, &DeleteParams::default())
            .await?;
        let force = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        classes(trial)
            .patch(&trial.class, &PatchParams::default(), &force)
            .await?;
        again = JobClass::new(&trial.class, again.spec);
        trial
            .create_global(again)
            .await
            .context("making the class again")?;
        trial.server.misbehave(|faults| faults.not_ready = None);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "JobClassReplaced", None)?;
        ensure!(trial.counts(&job).creates == 0, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

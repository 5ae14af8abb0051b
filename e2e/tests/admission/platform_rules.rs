//! What a platform can demand of every Job, by values of the chart.

use anyhow::ensure;
use ayatori_core::job::Job;
use ayatori_core::names::EXECUTION_FINALIZER;
use ayatori_e2e::api::{self, Run};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::rendered::{render, with_policy};
use crate::scene::{Answer, answer, create, try_create};

const POLICY: &str = "ayatori-job-rules";
const CAPPED: [&str; 4] = [
    "admission.rules.jobClassName.required=true",
    "admission.rules.ttlSecondsAfterFinished.maximum=3600",
    "admission.rules.activeDeadlineSeconds.maximum=7200",
    "admission.rules.startingDeadlineSeconds.maximum=600",
];
const REQUIRED: [&str; 3] = [
    "admission.rules.ttlSecondsAfterFinished.required=true",
    "admission.rules.activeDeadlineSeconds.required=true",
    "admission.rules.startingDeadlineSeconds.required=true",
];

/// A Job that the rules of [`CAPPED`] allow, with these changes.
fn job(changes: &Value) -> Value {
    let allowed = json!({
        "jobClassName": "none",
        "ttlSecondsAfterFinished": 3600,
        "activeDeadlineSeconds": 7200,
        "startingDeadlineSeconds": 600,
    });
    api::merged(allowed, changes)
}

/// Returns once the test's policy judges, as it shows by refusing a Job that states nothing.
async fn in_force(run: &Run) -> anyhow::Result<()> {
    api::eventually("the policy is in force", async || {
        let answer = try_create(run, &run.namespace, "hopeless", &json!({})).await?;
        Ok(matches!(answer, Answer::Refused(_)))
    })
    .await
}

fn expect(about: &Value, words: Option<&str>, answer: &Answer) -> anyhow::Result<()> {
    match (words, answer) {
        (None, Answer::Created) => Ok(()),
        (Some(words), Answer::Refused(message)) if message.contains(words) => Ok(()),
        (None, _) => anyhow::bail!("{about}: {answer:?}, and should be allowed"),
        (Some(words), _) => anyhow::bail!("{about}: {answer:?}, and should be refused with `{words}`"),
    }
}

#[tokio::test]
async fn with_default_values_nothing_is_demanded_and_values_that_make_no_sense_are_refused()
-> anyhow::Result<()> {
    let of_chart = async |values: &[&str]| {
        let values: Vec<_> = values.iter().map(|value| (*value).to_owned()).collect();
        let policies = render(&values).await?;
        let mut names: Vec<_> = policies.into_iter().filter_map(|p| p.metadata.name).collect();
        names.dedup();
        anyhow::Ok(names)
    };
    let names = of_chart(&[]).await?;
    ensure!(names.contains(&"ayatori-class-policy".to_owned()), "{names:?}");
    for policy in [POLICY, "ayatori-no-gitops"] {
        ensure!(!names.contains(&policy.to_owned()), "{policy} is on by default");
    }
    let names = of_chart(&["admission.classPolicy.enabled=false"]).await?;
    ensure!(!names.contains(&"ayatori-class-policy".to_owned()), "{names:?}");
    for value in [
        "admission.rules.ttlSecondsAfterFinished.maximum=0",
        r#"admission.rules.activeDeadlineSeconds.maximum="1h""#,
        "admission.rules.activeDeadlineSeconds.maximum=2147483648",
        "admission.rules.ttl.required=true",
    ] {
        ensure!(of_chart(&[value]).await.is_err(), "{value} is taken");
    }
    Ok(())
}

#[tokio::test]
async fn a_maximum_refuses_what_is_above_it_and_what_is_left_out() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        with_policy(&run, POLICY, &CAPPED, async || {
            in_force(&run).await?;
            for (changes, words) in [
                (json!({}), None),
                (json!({ "ttlSecondsAfterFinished": 0 }), None),
                (
                    json!({ "jobClassName": null }),
                    Some("JobClassNameRequired: spec.jobClassName is not set"),
                ),
                (
                    json!({ "ttlSecondsAfterFinished": null }),
                    Some("TTLRequired: spec.ttlSecondsAfterFinished is not set, so it would be kept for ever, which this cluster does not allow; set it to 3600 or less"),
                ),
                (
                    json!({ "ttlSecondsAfterFinished": 3601 }),
                    Some("TTLTooLong: spec.ttlSecondsAfterFinished is 3601, above the maximum of this cluster, 3600; set it to 3600 or less"),
                ),
                (
                    json!({ "activeDeadlineSeconds": null }),
                    Some("ActiveDeadlineRequired: spec.activeDeadlineSeconds is not set"),
                ),
                (
                    json!({ "activeDeadlineSeconds": 2_147_483_647 }),
                    Some("ActiveDeadlineTooLong: spec.activeDeadlineSeconds is 2147483647, above the maximum of this cluster, 7200"),
                ),
                (
                    json!({ "startingDeadlineSeconds": null }),
                    Some("StartingDeadlineRequired: spec.startingDeadlineSeconds is not set"),
                ),
                (
                    json!({ "startingDeadlineSeconds": 601 }),
                    Some("StartingDeadlineTooLong: spec.startingDeadlineSeconds is 601, above the maximum of this cluster, 600"),
                ),
            ] {
                let answer = try_create(&run, &run.namespace, "job", &job(&changes)).await?;
                expect(&changes, words, &answer)?;
            }
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn what_is_only_required_may_have_any_value() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        with_policy(&run, POLICY, &REQUIRED, async || {
            in_force(&run).await?;
            let longest = json!({
                "jobClassName": null,
                "ttlSecondsAfterFinished": i32::MAX,
                "activeDeadlineSeconds": i32::MAX,
                "startingDeadlineSeconds": i32::MAX,
            });
            for (changes, words) in [
                (longest, None),
                (
                    json!({ "ttlSecondsAfterFinished": null }),
                    Some("TTLRequired: spec.ttlSecondsAfterFinished is not set"),
                ),
                (
                    json!({ "activeDeadlineSeconds": null }),
                    Some("ActiveDeadlineRequired: spec.activeDeadlineSeconds is not set"),
                ),
                (
                    json!({ "startingDeadlineSeconds": null }),
                    Some("StartingDeadlineRequired: spec.startingDeadlineSeconds is not set"),
                ),
            ] {
                let answer = try_create(&run, &run.namespace, "job", &job(&changes)).await?;
                expect(&changes, words, &answer)?;
            }
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_job_of_before_the_rules_can_be_changed_and_deleted_but_not_made_worse() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let jobs: Api<Job> = Api::namespaced(run.client.clone(), &run.namespace);
        // Managed by another, so that no controller of ours meddles.
        let old = json!({ "managedBy": "example.com/other", "ttlSecondsAfterFinished": 86400 });
        create(&run, &run.namespace, "old", &old).await?;
        with_policy(&run, POLICY, &CAPPED, async || {
            in_force(&run).await?;
            let patch = async |change: &Value| {
                answer(
                    jobs.patch("old", &PatchParams::default(), &Patch::Merge(change))
                        .await,
                )
            };
            for (change, words) in [
                (json!({ "metadata": { "labels": { "a": "b" } } }), None),
                (
                    json!({ "metadata": { "finalizers": [EXECUTION_FINALIZER] } }),
                    None,
                ),
                (json!({ "metadata": { "finalizers": null } }), None),
                (json!({ "spec": { "cancelRequested": true } }), None),
                (
                    json!({ "spec": { "ttlSecondsAfterFinished": 86401 } }),
                    Some("TTLTooLong: spec.ttlSecondsAfterFinished is 86401"),
                ),
                (
                    json!({ "spec": { "ttlSecondsAfterFinished": null } }),
                    Some("TTLRequired:"),
                ),
                (json!({ "spec": { "ttlSecondsAfterFinished": 60 } }), None),
                (
                    json!({ "spec": { "ttlSecondsAfterFinished": null } }),
                    Some("TTLRequired:"),
                ),
            ] {
                expect(&change, words, &patch(&change).await?)?;
            }
            jobs.delete("old", &DeleteParams::default()).await?;
            Ok(())
        })
        .await
    })
    .await
}

//! What people see with kubectl: lists, explanations, waiting, the story of one Job.

use ayatori_core::job::Outcome;
use ayatori_e2e::replica::kubectl;
use ayatori_e2e::world::{World, expect, with_world};

fn has_in_order(text: &str, words: &[&str]) {
    let mut rest = text;
    for word in words {
        let found = rest.split_once(word);
        assert!(found.is_some(), "no {word:?} where it is expected in:\n{text}");
        rest = found.map_or("", |(_, after)| after);
    }
}

#[tokio::test]
async fn a_list_of_jobs_shows_class_state_and_exit_and_more_when_asked() -> anyhow::Result<()> {
    with_world(async |world: World| {
        world.create(&world.job("three", "exit 3")).await?;
        expect(
            &world.when_finished("three").await?,
            Outcome::Failed,
            "NonZeroExit",
            Some(3),
        )?;
        let list = kubectl(&["--namespace", &world.namespace, "get", "ajobs"]).await?;
        has_in_order(
            &list,
            &[
                "NAME",
                "CLASS",
                "STATE",
                "EXIT",
                "AGE",
                "three",
                &world.class,
                "Failed",
                "3",
            ],
        );
        let wide = kubectl(&["--namespace", &world.namespace, "get", "ajob", "--output=wide"]).await?;
        has_in_order(
            &wide,
            &[
                "REASON",
                "CONTROLLER",
                "EXECUTION",
                "NonZeroExit",
                "ayatori.ddupan.top/kubernetes",
            ],
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn one_condition_covers_every_ending_for_kubectl_wait() -> anyhow::Result<()> {
    with_world(async |world: World| {
        world.create(&world.job("good", "exit 0")).await?;
        world.create(&world.job("bad", "exit 1")).await?;
        let mut never = world.job("never", "true");
        never.spec.suspend = Some(true);
        world.create(&never).await?;
        world.cancel("never").await?;
        let namespace = ["--namespace", world.namespace.as_str()];
        for name in ["ajob/good", "ajob/bad", "ajob/never"] {
            let wait = ["wait", "--for=condition=Finished", name, "--timeout=60s"];
            let said = kubectl(&[&namespace[..], &wait].concat()).await?;
            assert!(said.contains("condition met"), "{said}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn describe_tells_the_story_in_events() -> anyhow::Result<()> {
    with_world(async |world: World| {
        world.create(&world.job("told", "exit 0")).await?;
        world.when_finished("told").await?;
        world
            .eventually("the Events are written", async || {
                let text = kubectl(&["--namespace", &world.namespace, "describe", "ajob", "told"]).await?;
                Ok(text
                    .split("Events:")
                    .nth(1)
                    .is_some_and(|events| events.contains("Succeeded")))
            })
            .await?;
        let text = kubectl(&["--namespace", &world.namespace, "describe", "ajob", "told"]).await?;
        let events = text.split("Events:").nth(1).unwrap();
        has_in_order(
            events,
            &[
                "Accepted",
                "accepted by JobClass",
                "Scheduled",
                "Started",
                "Succeeded",
                "exit code 0",
            ],
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn explain_says_what_a_field_means_who_sets_it_and_what_absent_means() -> anyhow::Result<()> {
    let version = "--api-version=execution.ayatori.ddupan.top/v1alpha1";
    let spec = kubectl(&["explain", "job.spec", version]).await?;
    has_in_order(
        &spec,
        &[
            "KIND:",
            "Job",
            "activeDeadlineSeconds",
            "from acceptance",
            "cancelRequested",
            "Cannot be undone",
        ],
    );
    let result = kubectl(&["explain", "job.status.result.exitCode", version]).await?;
    has_in_order(&result, &["as the backend measured it", "Absent when it was not"]);
    let class = kubectl(&["explain", "jobclass.spec.allowedNamespaces", version]).await?;
    has_in_order(&class, &["Absent: all"]);
    Ok(())
}

//! What the kubelet's containers did is what their Jobs say, on a real kubelet, by the deployed adapter.

use anyhow::ensure;
use ayatori_core::conditions::{self, ACCEPTED, FINISHED, SCHEDULED, STARTED};
use ayatori_core::job::{Job, JobState, Outcome};
use ayatori_core::resources::{ResourceQuantities, ResourceRequirements};
use ayatori_e2e::api::DEADLINE;
use ayatori_e2e::world::{World, expect, result, with_world};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ResourceQuota, ServiceAccount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

fn memory(job: &mut Job, limit: &str) {
    let limits = ResourceQuantities {
        memory: Some(Quantity(limit.to_owned())),
        ..ResourceQuantities::default()
    };
    job.spec.resources = Some(ResourceRequirements {
        limits: Some(limits),
        ..ResourceRequirements::default()
    });
}

#[tokio::test]
async fn every_exit_code_arrives_as_it_was() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let codes = [0, 1, 2, 3, 42, 125, 126, 127, 128, 130, 137, 139, 143, 255];
        for code in codes {
            world
                .create(&world.job(&format!("exit-{code}"), &format!("exit {code}")))
                .await?;
        }
        for code in codes {
            let name = format!("exit-{code}");
            let job = world.when_finished(&name).await?;
            let (outcome, reason) = if code == 0 {
                (Outcome::Succeeded, "Completed")
            } else {
                (Outcome::Failed, "NonZeroExit")
            };
            expect(&job, outcome, reason, Some(code))?;
            ensure!(
                world.starts(&name) == 1,
                "{name} started {} times",
                world.starts(&name)
            );
            let signal = (code > 128 && code <= 192).then(|| code - 128);
            ensure!(
                result(&job)?.signal == signal,
                "{name}: signal {:?}",
                result(&job)?.signal
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_finished_job_has_its_whole_story_in_order() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let created = world.create(&world.job("story", "sleep 2")).await?;
        let job = world.when_finished("story").await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        let status = job.status.as_ref().unwrap();
        let mut last = Timestamp::MIN;
        for type_ in [ACCEPTED, SCHEDULED, STARTED, FINISHED] {
            let since = conditions::true_since(&status.conditions, type_);
            let since = since.unwrap_or_else(|| panic!("{type_} is not True: {:?}", status.conditions));
            assert!(since >= last, "{type_} came before the condition in front of it");
            last = since;
        }
        assert_eq!(status.state, Some(JobState::Succeeded));
        assert_eq!(status.observed_generation, created.metadata.generation);
        let execution = status.execution.as_ref().unwrap();
        let pods = world.pods(&job).await?;
        assert_eq!(pods.len(), 1, "one pod, kept for its logs");
        assert_eq!(execution.uid, pods[0].uid());
        assert_eq!(execution.id, world.batch_jobs(&job).await?[0].uid());
        assert_eq!(execution.node_name.as_deref(), Some("node1"));
        let selector = status
            .correlation
            .as_ref()
            .and_then(|c| c.selector.clone())
            .unwrap();
        assert!(selector.ends_with(&job.uid().unwrap()), "{selector}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn ends_of_every_kind_are_told_apart() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut oom = world.job("oom", "exec tail /dev/zero");
        memory(&mut oom, "16Mi");
        world.create(&oom).await?;
        world
            .create(&world.job("killed-child", "sh -c 'kill -9 $$$$'; exit $?"))
            .await?;
        let mut absent = world.job("absent", "");
        absent.spec.command = vec!["/does/not/exist".to_owned()];
        world.create(&absent).await?;
        let mut directory = world.job("directory", "");
        directory.spec.command = vec!["/tmp".to_owned()];
        world.create(&directory).await?;
        let mut nowhere = world.job("nowhere", "true");
        nowhere.spec.working_dir = Some("/bin/busybox".to_owned());
        world.create(&nowhere).await?;

        for (name, outcome, reason, code, meaning) in [
            ("oom", Outcome::Failed, "OOMKilled", Some(137), ""),
            ("killed-child", Outcome::Failed, "NonZeroExit", Some(137), ""),
            (
                "absent",
                Outcome::Failed,
                "StartError",
                None,
                "there is no such command in the image; ",
            ),
            (
                "directory",
                Outcome::Failed,
                "StartError",
                None,
                "the command cannot be executed; ",
            ),
            ("nowhere", Outcome::Failed, "StartError", None, "spec.workingDir "),
        ] {
            let job = world.when_finished(name).await?;
            expect(&job, outcome, reason, code)?;
            let said = result(&job)?.message.clone().unwrap_or_default();
            ensure!(said.starts_with(meaning), "{name}: {said}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_cancelled_job_is_cancelled_whatever_its_process_makes_of_it() -> anyhow::Result<()> {
    with_world(async |world: World| {
        for (name, then) in [
            ("plain", "sleep 600"),
            ("trap", "trap 'exit 0' TERM; sleep 600 & wait"),
            ("deaf", "trap '' TERM; sleep 600"),
        ] {
            let mut job = world.job(name, then);
            job.spec.termination_grace_period_seconds = Some(3);
            world.create(&job).await?;
        }
        for name in ["plain", "trap", "deaf"] {
            world.when_started(name).await?;
            world.cancel(name).await?;
        }
        for (name, code) in [("plain", None), ("trap", Some(0)), ("deaf", Some(137))] {
            let job = world.when_finished(name).await?;
            let code = code.or(result(&job)?.exit_code);
            expect(&job, Outcome::Cancelled, "CancelRequested", code)?;
            ensure!(world.starts(name) == 1);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_cancelled_at_once_ends_cancelled_and_leaves_nothing() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let names: Vec<_> = (0..10).map(|i| format!("early-{i}")).collect();
        for name in &names {
            world.create(&world.job(name, "sleep 600")).await?;
            world.cancel(name).await?;
        }
        for name in &names {
            let job = world.when_finished(name).await?;
            ensure!(
                result(&job)?.outcome == Outcome::Cancelled,
                "{name}: {:?}",
                result(&job)?
            );
            ensure!(world.starts(name) <= 1);
            world.delete(name).await?;
            world.when_gone(name).await?;
            ensure!(world.batch_jobs(&job).await?.is_empty() && world.pods(&job).await?.is_empty());
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn deadlines_stop_what_runs_what_waits_and_what_nobody_accepts() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut runs = world.job("runs", "trap 'exit 0' TERM; sleep 600 & wait");
        runs.spec.active_deadline_seconds = Some(DEADLINE);
        world.create(&runs).await?;
        let mut pulls = world.job("pulls", "true");
        pulls.spec.image = "localhost:5999/none:1".to_owned();
        pulls.spec.active_deadline_seconds = Some(DEADLINE);
        world.create(&pulls).await?;
        let mut starts = world.job("starts", "true");
        starts.spec.image = "localhost:5999/none:1".to_owned();
        starts.spec.starting_deadline_seconds = Some(8);
        world.create(&starts).await?;
        let mut unaccepted = world.job("unaccepted", "true");
        unaccepted.spec.job_class_name = Some("nobody-has-this-class".to_owned());
        unaccepted.spec.starting_deadline_seconds = Some(2);
        world.create(&unaccepted).await?;

        world.when_says("pulls", STARTED, "ImagePullFailed").await?;
        for (name, reason, code, starts) in [
            ("runs", "DeadlineExceeded", Some(0), 1),
            ("pulls", "DeadlineExceeded", None, 0),
            ("starts", "StartingDeadlineExceeded", None, 0),
            ("unaccepted", "StartingDeadlineExceeded", None, 0),
        ] {
            expect(&world.when_finished(name).await?, Outcome::Failed, reason, code)?;
            ensure!(
                world.starts(name) == starts,
                "{name} started {} times",
                world.starts(name)
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_a_job_waits_for_is_said_and_it_runs_as_soon_as_that_appears() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let class = format!("{}-account", world.namespace);
        world
            .create_class(
                &class,
                serde_json::from_value(json!({"serviceAccountName": "runner"}))?,
                |_| {},
            )
            .await?;
        let mut job = world.job("account", "true");
        job.spec.job_class_name = Some(class);
        world.create(&job).await?;
        let mut suspended = world.job("suspended", "true");
        suspended.spec.suspend = Some(true);
        world.create(&suspended).await?;
        let mut secret = world.job("secret", "[ \"$TOKEN\" = hush ]");
        secret.spec.env = serde_json::from_value(json!([
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "later", "key": "token"}}}
        ]))?;
        world.create(&secret).await?;

        let waiting = world
            .when_says("account", SCHEDULED, "ServiceAccountNotFound")
            .await?;
        let message = &conditions::find(&waiting.status.unwrap().conditions, SCHEDULED)
            .unwrap()
            .message
            .clone();
        ensure!(message.contains("runner"), "{message}");
        world.when_says("suspended", ACCEPTED, "Suspended").await?;
        world.when_says("secret", ACCEPTED, "SecretNotFound").await?;

        let create = PostParams::default();
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "runner"}}))?;
        Api::namespaced(world.client.clone(), &world.namespace)
            .create(&create, &account)
            .await?;
        world
            .patch("suspended", json!({"spec": {"suspend": false}}))
            .await?;
        let later: k8s_openapi::api::core::v1::Secret =
            serde_json::from_value(json!({"metadata": {"name": "later"}, "stringData": {"token": "hush"}}))?;
        Api::namespaced(world.client.clone(), &world.namespace)
            .create(&create, &later)
            .await?;
        for name in ["account", "suspended", "secret"] {
            expect(
                &world.when_finished(name).await?,
                Outcome::Succeeded,
                "Completed",
                Some(0),
            )?;
            ensure!(world.starts(name) == 1);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_quota_holds_a_job_back_and_lets_it_go() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), &world.namespace);
        let none: ResourceQuota =
            serde_json::from_value(json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}))?;
        quotas.create(&PostParams::default(), &none).await?;
        world
            .eventually("the quota is in force", async || {
                Ok(quotas.get("none").await?.status.is_some_and(|s| s.hard.is_some()))
            })
            .await?;
        world.create(&world.job("held", "true")).await?;
        world.when_says("held", SCHEDULED, "QuotaExceeded").await?;
        ensure!(world.starts("held") == 0);
        quotas.delete("none", &DeleteParams::default()).await?;
        expect(
            &world.when_finished("held").await?,
            Outcome::Succeeded,
            "Completed",
            Some(0),
        )
    })
    .await
}

#[tokio::test]
async fn a_deleted_job_takes_its_process_with_it() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut job = world.job("gone", "trap '' TERM; sleep 600");
        job.spec.termination_grace_period_seconds = Some(1);
        world.create(&job).await?;
        let job = world.when_started("gone").await?;
        world.delete("gone").await?;
        world.when_gone("gone").await?;
        ensure!(world.pods(&job).await?.is_empty(), "a pod outlived its Job");
        ensure!(
            world.batch_jobs(&job).await?.is_empty(),
            "a batch Job outlived its Job"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_finished_job_goes_when_its_time_to_live_is_over_and_not_before() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut job = world.job("short", "true");
        job.spec.ttl_seconds_after_finished = Some(3);
        world.create(&job).await?;
        let job = world.when_finished("short").await?;
        let finished = job.status.as_ref().and_then(|s| s.finish_time.clone()).unwrap().0;
        world.when_gone("short").await?;
        let lived = Timestamp::now().duration_since(finished);
        ensure!(lived.as_secs() >= 3, "gone after {lived:?}");
        ensure!(world.pods(&job).await?.is_empty() && world.batch_jobs(&job).await?.is_empty());
        Ok(())
    })
    .await
}

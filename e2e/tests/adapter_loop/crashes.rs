//! Crashes at every step, and more than one leader.

use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_controller::testing::death::{Death, Moment};
use ayatori_controller::testing::replica::Replica;
use ayatori_core::conditions::{FINISHED, STARTED};
use ayatori_core::job::{Job, Outcome};
use ayatori_e2e::api;
use ayatori_e2e::world::{expect, result};
use futures::future::try_join_all;
use kube::ResourceExt;

use crate::trial::{Mode, PATIENCE, Trial, holds, with_both};

/// What happens to a Job, besides crashes.
#[derive(Clone, Copy, Debug)]
enum Story {
    Succeeds,
    IsCancelled,
    IsDeleted,
}

impl Story {
    fn script(self) -> &'static str {
        match self {
            Story::Succeeds => "runs=50",
            Story::IsCancelled | Story::IsDeleted => "runs=forever",
        }
    }

    /// Plays it to its end, from wherever it is.
    async fn play(self, trial: &Trial, job: &Job) -> anyhow::Result<()> {
        let started_or_over = |job: &Job| holds(job, STARTED) || holds(job, FINISHED);
        match self {
            Story::Succeeds => {
                trial.when_released(job).await?;
            }
            Story::IsCancelled => {
                trial.when(job, "started", started_or_over).await?;
                trial.cancel(job).await?;
                trial.when_released(job).await?;
            }
            Story::IsDeleted => {
                let is_asked_for = |job: &Job| job.metadata.deletion_timestamp.is_some();
                if trial
                    .jobs
                    .get_opt(&job.name_any())
                    .await?
                    .is_some_and(|job| !is_asked_for(&job))
                {
                    trial.when(job, "started", started_or_over).await?;
                    trial.delete(job).await?;
                }
                trial.when_gone(job).await?;
            }
        }
        Ok(())
    }

    /// Whether it came out right, whatever happened on the way.
    async fn check(self, trial: &Trial, job: &Job) -> anyhow::Result<()> {
        let counts = trial.counts(job);
        if let Story::IsDeleted = self {
            ensure!(counts.starts <= 1, "{counts:?}");
        } else {
            let job = trial.jobs.get(&job.name_any()).await?;
            let lost = result(&job)?.reason == "ExecutionLost";
            if lost && trial.mode == Mode::SingleShot {
                // The process died between storing the attempt and sending it: nobody may send it now.
                ensure!(counts.starts == 0, "{counts:?}, and the Job is lost");
            } else if let Story::Succeeds = self {
                expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
                ensure!(counts.starts == 1, "{counts:?}");
            } else {
                ensure!(result(&job)?.outcome == Outcome::Cancelled, "{:?}", result(&job)?);
                ensure!(counts.starts == 1, "{counts:?}");
            }
        }
        let uid = job.uid().unwrap_or_default();
        let left: Vec<_> = trial
            .server
            .executions()
            .into_iter()
            .filter(|e| e.job_uid == uid)
            .collect();
        ensure!(left.is_empty(), "left behind: {left:#?}");
        Ok(())
    }
}

/// Plays a story once for every step an adapter takes in it, with a crash before and one after the step; the
/// next adapter takes over each time.
async fn with_a_crash_at_every_step(story: Story) -> anyhow::Result<()> {
    with_both(async |trial| {
        trial.start().await?.kill().await;
        for step in 1.. {
            for moment in [Moment::Before, Moment::After] {
                let died = with_a_crash(trial, story, Death::at(step, moment))
                    .await
                    .with_context(|| format!("{story:?} with a crash {moment:?} step {step}"))?;
                if !died {
                    ensure!(step > 5, "the whole story took {step} steps?");
                    return Ok(());
                }
            }
        }
        Ok(())
    })
    .await
}

/// Whether the story was long enough for the crash to happen.
async fn with_a_crash(trial: &Trial, story: Story, death: Death) -> anyhow::Result<bool> {
    let first = trial.start_mortal(death).await?;
    let job = trial.create(story.script()).await?;
    let died = tokio::select! {
        () = first.died() => true,
        played = story.play(trial, &job) => {
            played?;
            false
        }
    };
    first.kill().await;
    let second = trial.start().await?;
    story.play(trial, &job).await?;
    story.check(trial, &job).await?;
    second.kill().await;
    Ok(died)
}

#[tokio::test]
async fn a_crash_at_any_step_starts_no_command_twice() -> anyhow::Result<()> {
    with_a_crash_at_every_step(Story::Succeeds).await
}

#[tokio::test]
async fn a_crash_at_any_step_of_a_cancel_forgets_nothing() -> anyhow::Result<()> {
    with_a_crash_at_every_step(Story::IsCancelled).await
}

#[tokio::test]
async fn a_crash_at_any_step_of_a_deletion_leaves_nothing_behind() -> anyhow::Result<()> {
    with_a_crash_at_every_step(Story::IsDeleted).await
}

#[tokio::test]
async fn many_jobs_survive_many_crashes() -> anyhow::Result<()> {
    with_both(async |trial| {
        trial.start().await?.kill().await;
        let jobs = try_join_all((0..20).map(|_| trial.create(Story::Succeeds.script()))).await?;
        for (crash, step) in [17, 5, 31, 11, 2, 23, 7, 29, 13, 19].into_iter().enumerate() {
            let moment = if crash % 2 == 0 {
                Moment::After
            } else {
                Moment::Before
            };
            let mortal = trial.start_mortal(Death::at(step, moment)).await?;
            tokio::time::timeout(PATIENCE, mortal.died())
                .await
                .with_context(|| format!("no crash {moment:?} step {step}"))?;
            mortal.kill().await;
        }
        let _survivor = trial.start().await?;
        for job in jobs {
            Story::Succeeds.play(trial, &job).await?;
            Story::Succeeds.check(trial, &job).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn two_leaders_at_once_start_every_command_once() -> anyhow::Result<()> {
    with_both(async |trial| {
        // Leases in two namespaces: both believe that they lead.
        api::in_namespace(async |elsewhere| {
            let _one = trial.start().await?;
            let _two = Replica::start(trial.backend(), &elsewhere.namespace, "two").await?;
            // Slow enough for each to see what the other is about to do.
            trial
                .server
                .misbehave(|faults| faults.latency = Duration::from_millis(100));
            let jobs = try_join_all((0..30).map(|_| trial.create("runs=50"))).await?;
            for job in jobs {
                let job = trial.when_released(&job).await?;
                expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
                ensure!(trial.counts(&job).starts == 1, "{:?}", trial.counts(&job));
            }
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_standby_takes_over_from_a_leader_that_died() -> anyhow::Result<()> {
    with_both(async |trial| {
        let leader = trial.start().await?;
        let _standby = Replica::start(trial.backend(), &trial.namespace, "two").await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        leader.kill().await;
        trial.server.end(&job.uid().unwrap_or_default(), 0);
        let job = trial.when_released(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!(trial.counts(&job).starts == 1, "{:?}", trial.counts(&job));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_leader_that_stops_hands_over_without_a_wait_for_its_lease() -> anyhow::Result<()> {
    with_both(async |trial| {
        let leader = trial.start().await?;
        let _standby = Replica::start(trial.backend(), &trial.namespace, "two").await?;
        let job = trial.create("runs=forever").await?;
        trial.when_started(&job).await?;
        let began = std::time::Instant::now();
        leader.stop().await?;
        trial.server.end(&job.uid().unwrap_or_default(), 0);
        trial.when_finished(&job).await?;
        ensure!(began.elapsed().as_secs() < 6, "it took {:?}", began.elapsed());
        Ok(())
    })
    .await
}

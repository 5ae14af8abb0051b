//! Many Jobs: what they cost a server, and what a silent server costs the Jobs of another.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ayatori_core::conditions::{READY, SCHEDULED, STARTED};
use ayatori_core::job::{Job, Outcome};
use ayatori_core::names::JOB_UID_LABEL;
use ayatori_e2e::api::PATIENCE;
use ayatori_e2e::ground::{class_condition, condition, holds, when, within};
use ayatori_e2e::world::expect;
use ayatori_opensandbox_adapter::stub::{Call, Fault, Faults, Stub};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Api;

use crate::trial::{Trial, with};

/// How many requests a test has under way at a time.
const AT_ONCE: usize = 10;

/// Creates so many Jobs of this class.
async fn create_many(trial: &Trial, class: &str, count: usize, script: &str) -> anyhow::Result<Vec<Job>> {
    stream::iter(0..count)
        .map(|_| trial.create_with(script, |spec| spec.job_class_name = Some(class.to_owned())))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Returns once `holds` says so of every Job of the test.
async fn when_all(trial: &Trial, what: &str, holds: impl Fn(&Job) -> bool) -> anyhow::Result<()> {
    ayatori_e2e::api::eventually(what, async || {
        let jobs = trial.jobs.list(&kube::api::ListParams::default()).await?;
        Ok(jobs.iter().all(&holds))
    })
    .await
}

/// How many Jobs are observed, and how many sandboxes: those of another cluster's Jobs make up for what is left out.
fn jobs_and_sandboxes() -> (usize, usize) {
    match std::env::var_os("AYATORI_TEST_ALL") {
        Some(_) => (450, 450),
        None => (30, 450),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_running_sandboxes_are_observed_by_a_few_lists_and_never_one_by_one() -> anyhow::Result<()> {
    const PAGE: usize = 200;
    const ROUNDS: usize = 10;
    let (jobs, sandboxes) = jobs_and_sandboxes();
    with(async |trial| {
        let _adapter = trial.start().await?;
        let created = create_many(trial, &trial.class, jobs, "runs=forever").await?;
        when_all(trial, "all Jobs run", |job| holds(job, STARTED)).await?;
        let like = created.first().and_then(|job| trial.requests_for(job).pop());
        let mut like = like.context("nothing was created")?;
        let others: Vec<_> = (jobs..sandboxes)
            .map(|number| {
                let uid = like.get_mut("metadata").and_then(|m| m.get_mut(JOB_UID_LABEL));
                if let Some(uid) = uid {
                    *uid = format!("of-another-cluster-{number}").into();
                }
                trial.server.put(&like)
            })
            .collect();
        let one_by_one = || -> usize {
            let calls = [Call::Get, Call::Log, Call::Events];
            calls.map(|call| trial.server.calls(call)).iter().sum()
        };
        let (before, lists) = (one_by_one(), trial.server.calls(Call::List));
        let began = Instant::now();
        let pages = sandboxes.div_ceil(PAGE);
        trial.after_more(ROUNDS * pages, Call::List).await?;
        let intervals = began.elapsed().as_secs_f64() * 1000.0 / f64::from(trial.options.poll_milliseconds);
        let lists = trial.server.calls(Call::List) - lists;
        println!("{sandboxes} sandboxes, {jobs} Jobs: {lists} lists within {intervals:.1} intervals");
        let asked = one_by_one() - before;
        ensure!(asked == 0, "{asked} sandboxes were asked for one by one");
        // A round may be under way at either end, and the class is probed now and then.
        let bound = (intervals + 2.0) * pages as f64;
        ensure!(
            lists as f64 <= bound,
            "{lists} lists within {intervals:.1} intervals"
        );
        others.iter().for_each(|sandbox| trial.server.vanish(sandbox));
        Ok(())
    })
    .await
}

/// How long 50 short Jobs took from their creation to their end, sorted.
async fn times(trial: &Trial) -> anyhow::Result<Vec<Duration>> {
    const JOBS: usize = 50;
    let mut times: Vec<Duration> = stream::iter(0..JOBS)
        .map(async |_| {
            let began = Instant::now();
            let job = trial.create("").await?;
            let job = trial.when_finished(&job).await?;
            expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
            trial.expect_one_post(&job, 1)?;
            anyhow::Ok(began.elapsed())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    times.sort_unstable();
    Ok(times)
}

fn quantile(times: &[Duration], percent: usize) -> Duration {
    let last = times.len().saturating_sub(1);
    times
        .get((times.len() * percent / 100).min(last))
        .copied()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_jobs_on_a_silent_server_slow_no_job_of_another_class() -> anyhow::Result<()> {
    const SILENT: usize = 200;
    let silent = Stub::start().await?;
    with(async |trial| {
        let _adapter = trial.start().await?;
        let other = format!("{}-silent", trial.class);
        trial.create_class(&other, trial.parameters(&silent)).await?;
        let ready = |class: &ayatori_core::job_class::JobClass| {
            class_condition(class, READY).is_some_and(|c| c.status == "True")
        };
        when(Api::all(trial.client.clone()), &other, "ready", ready).await?;
        let alone = times(trial).await?;

        silent.set(|faults| faults.on_all(&Fault::Silent));
        let stuck = create_many(trial, &other, SILENT, "").await?;
        let waits = |job: &Job| {
            let silent = job.spec.job_class_name.as_deref() == Some(other.as_str());
            !silent
                || condition(job, SCHEDULED)
                    .is_some_and(|c| c.reason == "BackendUnavailable" || c.reason == "JobClassNotReady")
        };
        when_all(trial, "every Job on the silent server says that it waits", waits).await?;
        // While the loop finds out, and tells 200 Jobs, it has more to do.
        let meanwhile = within(PATIENCE, times(trial)).await??;
        let not_ready = |class: &ayatori_core::job_class::JobClass| !ready(class);
        when(Api::all(trial.client.clone()), &other, "not ready", not_ready).await?;
        let told = |job: &Job| {
            let silent = job.spec.job_class_name.as_deref() == Some(other.as_str());
            !silent || condition(job, SCHEDULED).is_some_and(|c| c.reason == "JobClassNotReady")
        };
        when_all(trial, "every Job on the silent server waits for its class", told).await?;
        let beside = within(PATIENCE, times(trial)).await??;
        for (what, times) in [
            ("alone", &alone),
            ("while 200 are told of a silent server", &meanwhile),
            ("beside 200 on a silent server", &beside),
        ] {
            println!(
                "50 Jobs {what}: p50 {:?}, p99 {:?}",
                quantile(times, 50),
                quantile(times, 99)
            );
        }
        ensure!(
            silent.calls(Call::Create) == 0,
            "something was asked of the silent server"
        );
        // All the while they waited: the others have run past them, and not after them.
        when_all(trial, "every Job on the silent server still waits", told).await?;
        // What was never created there is not waited for.
        let never_ran = stuck.first().context("no Job was created")?;
        trial.delete(never_ran).await?;
        trial.when_gone(never_ran).await?;
        silent.set(|faults| *faults = Faults::default());
        Ok(())
    })
    .await
}

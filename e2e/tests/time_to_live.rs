//! A finished Job goes when its time to live is over: not before, not much later, however many there are,
//! whatever its end was, and whoever was away meanwhile.
//!
//! Most Jobs here are managed by a controller of their own, which is the test: it writes their ends, and the
//! adapter does nothing for them but to count their time to live.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ayatori_core::conditions::SCHEDULED;
use ayatori_core::job::{Job, Outcome};
use ayatori_e2e::api::DEADLINE;
use ayatori_e2e::replica::Stage;
use ayatori_e2e::world::{PATIENCE, World, expect, with_world};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher::{Event, watcher};
use kube::runtime::{WatchStreamExt, watcher as watching};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Mutex;

/// How many Jobs expire together.
const CROWD: usize = 2000;
/// How many requests of the test are under way at the same time.
const HANDS: usize = 40;
/// The crowd's time to live.
const TTL: i32 = 5;

/// A crowd keeps the whole machine busy, and one test takes the adapter away, so the tests take turns.
static TURN: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn of_two_thousand_jobs_that_expire_in_the_same_second_none_goes_early_and_all_go_soon()
-> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    with_world(async |world: World| {
        for (name, ttl) in [("for-ever", None), ("nearly-for-ever", Some(i32::MAX))] {
            create_finished(&world, name, ttl).await?;
        }
        let crowd = Crowd::gather(&world).await?;
        crowd.goes(&world).await?;
        let stay: Vec<_> = world
            .jobs
            .list(&ListParams::default())
            .await?
            .iter()
            .map(Job::name_any)
            .collect();
        ensure!(
            stay == ["for-ever", "nearly-for-ever"],
            "these are left: {stay:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_expires_while_no_adapter_runs_or_soon_after_it_starts_goes_when_it_should() -> anyhow::Result<()>
{
    let _turn = TURN.lock().await;
    with_world(async |world: World| {
        let stage = Stage::take(&world.client).await?;
        let outcome = async {
            create_finished(&world, "overdue", Some(0)).await?;
            let crowd = Crowd::gather(&world).await?;
            stage.forget_leaders().await?;
            let replica = stage.start("next", None)?;
            let started = Instant::now();
            let (overdue, crowd) = futures::join!(world.when_gone("overdue"), crowd.goes(&world));
            overdue?;
            crowd?;
            println!(
                "all was over {:.1} s after the start",
                started.elapsed().as_secs_f64()
            );
            replica.kill().await
        }
        .await;
        stage.clear().await?;
        outcome
    })
    .await
}

#[tokio::test]
async fn every_kind_of_end_has_a_time_that_its_time_to_live_counts_from() -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    with_world(async |world: World| {
        let unready = format!("{}-unready", world.namespace);
        let parameters = serde_json::from_value(json!({ "runtimeClassName": "nobody-has-this" }))?;
        world.create_class(&unready, parameters, |_| {}).await?;

        let mut fails = world.job("fails", "exit 1");
        fails.spec.ttl_seconds_after_finished = Some(2);
        world.create(&fails).await?;
        let mut late = world.job("late", "sleep 600");
        late.spec.active_deadline_seconds = Some(DEADLINE);
        late.spec.termination_grace_period_seconds = Some(1);
        late.spec.ttl_seconds_after_finished = Some(2);
        world.create(&late).await?;
        let mut never = world.job("never", "true");
        never.spec.job_class_name = Some(unready);
        never.spec.ttl_seconds_after_finished = Some(2);
        world.create(&never).await?;
        world.when_says("never", SCHEDULED, "JobClassNotReady").await?;
        world.cancel("never").await?;

        let gone = async |name: &str, outcome, reason| {
            let job = world.when_finished(name).await?;
            let result = job
                .status
                .as_ref()
                .and_then(|s| s.result.as_ref())
                .context("no result")?;
            expect(&job, outcome, reason, result.exit_code)?;
            let finished = finish_time(&job)?;
            world.when_gone(name).await?;
            let lived = Timestamp::now().duration_since(finished);
            ensure!(
                lived >= SignedDuration::from_secs(2),
                "{name} went after {lived:?}"
            );
            anyhow::Ok(())
        };
        let (fails, late, never) = futures::join!(
            gone("fails", Outcome::Failed, "NonZeroExit"),
            gone("late", Outcome::Failed, "DeadlineExceeded"),
            gone("never", Outcome::Cancelled, "CancelRequested"),
        );
        fails.and(late).and(never)
    })
    .await
}

#[tokio::test]
async fn a_long_time_to_live_keeps_the_record_and_not_the_process() -> anyhow::Result<()> {
    let _turn = TURN.lock().await;
    with_world(async |world: World| {
        let mut job = world.job("kept", "trap '' TERM; sleep 600");
        job.spec.active_deadline_seconds = Some(DEADLINE);
        job.spec.termination_grace_period_seconds = Some(1);
        job.spec.ttl_seconds_after_finished = Some(3600);
        world.create(&job).await?;
        let job = world.when_finished("kept").await?;
        expect(&job, Outcome::Failed, "DeadlineExceeded", Some(137))?;
        world
            .eventually("no pod of it is open", async || {
                let open = |phase: Option<&str>| !matches!(phase, Some("Succeeded" | "Failed"));
                let pods = world.pods(&job).await?;
                Ok(!pods
                    .iter()
                    .any(|p| open(p.status.as_ref().and_then(|s| s.phase.as_deref()))))
            })
            .await?;
        ensure!(
            world.jobs.get_opt("kept").await?.is_some(),
            "the record went with the process"
        );
        Ok(())
    })
    .await
}

/// Jobs that expire in the same second.
struct Crowd {
    expiry: Timestamp,
}

impl Crowd {
    /// Creates them, and returns before they expire.
    async fn gather(world: &World) -> anyhow::Result<Self> {
        let began = Instant::now();
        let names: Vec<_> = (0..CROWD).map(|i| format!("crowd-{i}")).collect();
        each(&names, async |name| {
            world.create(&managed(world, name, Some(TTL))).await.map(drop)
        })
        .await?;
        // To write their ends takes about as long as to create them; they end when that is done.
        let writing = began.elapsed().saturating_mul(2) + Duration::from_secs(2);
        let end = Timestamp::from_second((Timestamp::now() + writing).as_second())?;
        each(&names, async |name| finish(world, name, end).await).await?;
        let expiry = end + SignedDuration::from_secs(i64::from(TTL));
        ensure!(
            Timestamp::now() < expiry,
            "the machine is too slow for this test: the Jobs expired while they were prepared"
        );
        Ok(Self { expiry })
    }

    /// Sees them go, and says how late they were.
    async fn goes(&self, world: &World) -> anyhow::Result<()> {
        let mut late = vec![];
        let seeing = async {
            let mut events = watcher(world.jobs.clone(), watching::Config::default())
                .default_backoff()
                .boxed();
            while late.len() < CROWD {
                match events.try_next().await? {
                    Some(Event::Delete(job)) if job.name_any().starts_with("crowd-") => {
                        late.push(Timestamp::now().duration_since(self.expiry).as_secs_f64());
                    }
                    Some(_) => {}
                    None => bail!("the watch ended"),
                }
            }
            anyhow::Ok(())
        };
        let limit =
            Duration::try_from(self.expiry.duration_since(Timestamp::now())).unwrap_or_default() + PATIENCE;
        match tokio::time::timeout(limit, seeing).await {
            Ok(seen) => seen?,
            Err(_) => bail!("{} of {CROWD} Jobs went within {} s", late.len(), limit.as_secs()),
        }
        late.sort_by(f64::total_cmp);
        let at = |part: usize| late.get(CROWD * part / 100).copied().unwrap_or_default();
        let (first, last) = (at(0), late.last().copied().unwrap_or_default());
        println!(
            "{CROWD} Jobs expired at once: the first went after {first:.2} s, p50 {:.2} s, p99 {:.2} s, the last {last:.2} s",
            at(50),
            at(99)
        );
        ensure!(first >= 0.0, "a Job went {} s early", -first);
        Ok(())
    }
}

async fn each(names: &[String], each: impl AsyncFn(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
    stream::iter(names)
        .map(|name| each(name))
        .buffer_unordered(HANDS)
        .try_collect()
        .await
}

async fn create_finished(world: &World, name: &str, ttl: Option<i32>) -> anyhow::Result<()> {
    world.create(&managed(world, name, ttl)).await?;
    finish(world, name, Timestamp::now()).await
}

fn managed(world: &World, name: &str, ttl: Option<i32>) -> Job {
    let mut job = world.job(name, "true");
    job.spec.managed_by = Some("example.com/test".to_owned());
    job.spec.ttl_seconds_after_finished = ttl;
    job
}

async fn finish(world: &World, name: &str, at: Timestamp) -> anyhow::Result<()> {
    let at = Time(at);
    let status = json!({
        "state": "Succeeded", "finishTime": at, "result": { "outcome": "Succeeded", "reason": "Completed" },
        "conditions": [{
            "type": "Finished", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": at,
        }],
    });
    let patch = Patch::Merge(json!({ "status": status }));
    let jobs: &Api<Job> = &world.jobs;
    jobs.patch_status(name, &PatchParams::default(), &patch)
        .await
        .with_context(|| format!("writing the end of Job {name}"))?;
    Ok(())
}

fn finish_time(job: &Job) -> anyhow::Result<Timestamp> {
    let time = job.status.as_ref().and_then(|s| s.finish_time.as_ref());
    Ok(time.context("it is finished without a finishTime")?.0)
}

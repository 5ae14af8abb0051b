//! The OpenSandbox adapter dies around its one create request, or sleeps: against the real server no command starts
//! twice, and what is reported of it is true.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_core::conditions::{self, RESULT_UNKNOWN};
use ayatori_core::job::{Job, Outcome};
use ayatori_core::parameters::OpenSandboxExecutionParametersSpec;
use ayatori_e2e::gate::{Gate, Opening, Progress};
use ayatori_e2e::replica::{Adapter, Replica, Stage, was_killed};
use ayatori_e2e::sandboxes::{Sandboxes, with_sandboxes};
use ayatori_e2e::world::{expect, result};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};

/// How many Jobs are hit in each window.
const HITS: usize = 20;
/// Clocks are the same here, and lists show everything at once.
const FLAGS: [&str; 4] = [
    "--allow-insecure-http",
    "--clock-skew-seconds=1",
    "--list-lag-seconds=2",
    "--create-concurrency=64",
];
/// Where no command is to start any more, it is soon known that none has.
const SHORT_FENCE: &str = "--fence-seconds=10";
/// Long enough for a few sandboxes at a time.
const FENCE: &str = "--fence-seconds=30";
/// Long enough for many sandboxes at once on a busy machine.
const LONG_FENCE: &str = "--fence-seconds=90";
/// How soon a process that is to die does.
const LIFE: Duration = Duration::from_secs(60);
/// How a Job ends of which nothing was started, or nobody knows.
const UNSTARTED: [&str; 2] = ["ExecutionLost", "StartTooLate"];
/// What commands do, after leaving their mark.
const THEN: &str = "sleep 2; exit 3";

/// A cluster without the deployed OpenSandbox adapter, and a server behind a gate.
struct Scene<'a> {
    sandboxes: &'a Sandboxes,
    stage: &'a Stage,
    gate: Gate,
}

/// A moment of death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Window {
    /// Before the attempt was stored.
    Accepted,
    /// After that, before the request was sent.
    Attempted,
    /// The request was on its way to the server.
    Sent,
    /// The server was at it.
    Received,
    /// The answer was on its way back.
    Answered,
    /// The answer was read, and at least one of these Jobs not recorded.
    Read,
}

impl Scene<'_> {
    /// Starts a replica that leads at once.
    async fn start(&self, fault: Option<&str>, fence: &str) -> anyhow::Result<Replica> {
        self.stage.forget_leaders().await?;
        let flags = [&FLAGS[..], &[fence]].concat();
        self.stage.start_with("only", fault, &flags)
    }

    /// Waits until the class is ready, so that no Job's status tells of anything but its own life.
    async fn warm_up(&self) -> anyhow::Result<()> {
        let replica = self.start(None, LONG_FENCE).await?;
        let world = &self.sandboxes.world;
        world.create(&self.sandboxes.job("first", "true")).await?;
        let first = world.when_finished("first").await?;
        expect(&first, Outcome::Succeeded, "Completed", Some(0))?;
        replica.kill().await
    }

    async fn create(&self, window: Window, i: usize) -> anyhow::Result<Job> {
        let name = name(window, i);
        self.sandboxes
            .world
            .create(&self.sandboxes.job(&name, THEN))
            .await
    }

    /// The fault hook counts writes of this Job's status: Accepted, the attempt, the record.
    fn fault(&self, window: Window, i: usize, write: u32, moment: &str) -> String {
        let namespace = &self.sandboxes.world.namespace;
        format!("{namespace}/jobs/{}:{write}:{moment}", name(window, i))
    }

    /// One Job, and death at one write of its status.
    async fn one(&self, window: Window, i: usize, moment: &str) -> anyhow::Result<Job> {
        let fault = self.fault(window, i, 2, moment);
        let mut replica = self.start(Some(&fault), SHORT_FENCE).await?;
        let job = self.create(window, i).await?;
        let ended = replica.ended(LIFE).await?;
        ensure!(
            ended.is_some_and(was_killed),
            "{window:?} {i}: it did not die: {ended:?}"
        );
        if window == Window::Attempted {
            ensure!(self.gate.creates(&job) == 0, "{window:?} {i}: a request was sent");
        }
        Ok(job)
    }

    /// Many Jobs whose create requests all come just so far.
    async fn many(&self, window: Window, opening: Opening, progress: Progress) -> anyhow::Result<Vec<Job>> {
        self.gate.open(opening);
        let mut jobs = Vec::new();
        for i in 0..HITS {
            jobs.push(self.create(window, i).await?);
        }
        let what = format!("the requests of {window:?} are {progress:?}");
        let world = &self.sandboxes.world;
        let all_came = async || Ok(jobs.iter().all(|job| self.gate.progress(job) >= Some(progress)));
        world.eventually(&what, all_came).await?;
        Ok(jobs)
    }

    /// Nothing that was said of the Job is untrue; how it ended.
    async fn judge(&self, window: Window, job: &Job) -> anyhow::Result<String> {
        let job = self.sandboxes.world.when_finished(&job.name_any()).await?;
        let witness = &self.sandboxes.witness;
        let (starts, sandboxes) = (witness.starts(&job), witness.sandboxes(&job));
        let (name, requests) = (job.name_any(), self.gate.creates(&job));
        ensure!(starts <= 1, "{name}: {starts} starts");
        ensure!(sandboxes <= 1, "{name}: {sandboxes} sandboxes");
        ensure!(requests <= 1, "{name}: {requests} create requests");
        match window {
            Window::Attempted | Window::Sent => {
                expect(&job, Outcome::Failed, "ExecutionLost", None)?;
                ensure!(starts == 0, "{name}: lost, and yet started");
            }
            // The next one to die may have taken it further, and been hit in any window.
            Window::Accepted if UNSTARTED.contains(&result(&job)?.reason.as_str()) => {}
            Window::Accepted | Window::Received | Window::Answered | Window::Read => {
                expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
                ensure!(starts == 1, "{name}: {starts} starts");
            }
        }
        Ok(result(&job)?.reason.clone())
    }
}

fn name(window: Window, i: usize) -> String {
    format!("{window:?}-{i}").to_lowercase()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_killed_before_during_or_after_its_create_request_starts_no_command_twice()
-> anyhow::Result<()> {
    on_stage(async |scene: &Scene<'_>| {
        scene.warm_up().await?;
        let mut hit: BTreeMap<Window, Vec<Job>> = BTreeMap::new();
        for i in 0..HITS {
            let job = scene.one(Window::Attempted, i, "after").await?;
            hit.entry(Window::Attempted).or_default().push(job);
        }
        for i in 0..HITS / 4 {
            let job = scene.one(Window::Accepted, i, "before").await?;
            hit.entry(Window::Accepted).or_default().push(job);
        }

        let replica = scene.start(None, SHORT_FENCE).await?;
        let jobs = scene.many(Window::Sent, Opening::Shut, Progress::Sent).await?;
        replica.kill().await?;
        let all_there = jobs
            .iter()
            .all(|job| scene.gate.progress(job) == Some(Progress::Sent));
        ensure!(all_there, "a request has passed the gate");
        hit.insert(Window::Sent, jobs);

        let replica = scene.start(None, LONG_FENCE).await?;
        let jobs = scene
            .many(Window::Received, Opening::OneWay, Progress::PassedOn)
            .await?;
        replica.kill().await?;
        hit.insert(Window::Received, jobs);

        let replica = scene.start(None, LONG_FENCE).await?;
        let jobs = scene
            .many(Window::Answered, Opening::OneWay, Progress::Answered)
            .await?;
        // What it is answered now it never reads.
        replica.freeze()?;
        scene.gate.open(Opening::Wide);
        let returned = async || {
            Ok(jobs
                .iter()
                .all(|job| scene.gate.progress(job) == Some(Progress::Returned)))
        };
        scene
            .sandboxes
            .world
            .eventually("the answers are returned", returned)
            .await?;
        replica.kill().await?;
        hit.insert(Window::Answered, jobs);

        let fault = scene.fault(Window::Read, 0, 3, "before");
        let mut replica = scene.start(Some(&fault), LONG_FENCE).await?;
        let jobs = scene
            .many(Window::Read, Opening::OneWay, Progress::Answered)
            .await?;
        scene.gate.open(Opening::Wide);
        let ended = replica.ended(LIFE).await?;
        ensure!(ended.is_some_and(was_killed), "it did not die: {ended:?}");
        hit.insert(Window::Read, jobs);

        let last = scene.start(None, LONG_FENCE).await?;
        println!(
            "{:12} {:>5} {:>7} {:>6}  results",
            "killed when", "Jobs", "created", "starts"
        );
        for (window, jobs) in &hit {
            let mut ends: BTreeMap<String, usize> = BTreeMap::new();
            for job in jobs {
                *ends.entry(scene.judge(*window, job).await?).or_default() += 1;
            }
            let witness = &scene.sandboxes.witness;
            let created: usize = jobs.iter().map(|job| witness.sandboxes(job)).sum();
            let starts: usize = jobs.iter().map(|job| witness.starts(job)).sum();
            let window = format!("{window:?}");
            println!("{window:12} {:>5} {created:>7} {starts:>6}  {ends:?}", jobs.len());
        }
        last.kill().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_jobs_that_come_while_the_adapter_dies_again_and_again_all_end_truly() -> anyhow::Result<()> {
    on_stage(async |scene: &Scene<'_>| {
        let mut replica = scene.start(None, FENCE).await?;
        let mut beat = tokio::time::interval(Duration::from_millis(250));
        let mut jobs = Vec::new();
        for i in 0..30 {
            beat.tick().await;
            let job = scene.sandboxes.job(&format!("job-{i}"), THEN);
            jobs.push(scene.sandboxes.world.create(&job).await?);
            if i % 6 == 5 {
                replica.kill().await?;
                replica = scene.start(None, FENCE).await?;
            }
        }
        let (mut ran, mut lost) = (0, 0);
        for job in &jobs {
            let job = scene.sandboxes.world.when_finished(&job.name_any()).await?;
            let (starts, sandboxes) = (
                scene.sandboxes.witness.starts(&job),
                scene.sandboxes.witness.sandboxes(&job),
            );
            let result = result(&job)?;
            match result.reason.as_str() {
                "NonZeroExit" => {
                    ensure!(
                        starts == 1 && result.exit_code == Some(3),
                        "{}: {starts} starts",
                        job.name_any()
                    );
                    ran += 1;
                }
                "ExecutionLost" | "StartTooLate" => {
                    ensure!(starts <= 1, "{}: {starts} starts", job.name_any());
                    lost += 1;
                }
                _ => anyhow::bail!("{} ended as {result:?}", job.name_any()),
            }
            ensure!(sandboxes <= 1, "{}: {sandboxes} sandboxes", job.name_any());
            ensure!(
                scene.gate.creates(&job) <= 1,
                "{}: asked for twice",
                job.name_any()
            );
        }
        println!("30 Jobs, the adapter killed 5 times: {ran} ran, {lost} were lost");
        ensure!(ran >= 10, "only {ran} ran");
        replica.kill().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_sleeps_through_its_send_window_sends_nothing_when_it_wakes_up() -> anyhow::Result<()> {
    on_stage(async |scene: &Scene<'_>| {
        let (world, witness) = (&scene.sandboxes.world, &scene.sandboxes.witness);
        let flags = |fence: &'static str| [&FLAGS[..], &[fence]].concat();
        scene.stage.forget_leaders().await?;
        let mut sleeper = scene.stage.start_with("sleeper", None, &flags(SHORT_FENCE))?;
        scene.stage.when_leads("sleeper").await?;
        let standby = scene.stage.start_with("standby", None, &flags(LONG_FENCE))?;
        let mut jobs = Vec::new();
        for i in 0..20 {
            if i == 8 {
                // In the middle of its work for those before.
                sleeper.freeze()?;
            }
            let job = scene.sandboxes.job(&format!("job-{i}"), THEN);
            jobs.push(world.create(&job).await?);
        }
        for job in &jobs {
            world.when_finished(&job.name_any()).await?;
        }
        sleeper.wake_up()?;
        let ended = sleeper.ended(Duration::from_secs(30)).await?;
        ensure!(
            ended.is_some_and(|status| !status.success()),
            "the old leader goes on: {ended:?}"
        );
        world.create(&scene.sandboxes.job("afterwards", "true")).await?;
        let afterwards = world.when_finished("afterwards").await?;
        expect(&afterwards, Outcome::Succeeded, "Completed", Some(0))?;
        let mut ran = 0;
        for (i, job) in jobs.iter().enumerate() {
            let job = world.jobs.get(&job.name_any()).await?;
            ensure!(
                scene.gate.creates(&job) <= 1 && witness.sandboxes(&job) <= 1,
                "job-{i}: created twice"
            );
            let starts = witness.starts(&job);
            if result(&job)?.reason == "NonZeroExit" {
                ensure!(starts == 1, "job-{i}: {starts} starts");
                ran += 1;
            } else {
                ensure!(i < 8, "job-{i} was lost, and it came later: {:?}", result(&job)?);
                ensure!(UNSTARTED.contains(&result(&job)?.reason.as_str()));
                ensure!(starts == 0, "job-{i}: lost, and yet started");
            }
        }
        println!("20 Jobs, the leader asleep from the 9th: {ran} ran, the others were not started");
        standby.kill().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_server_says_of_a_running_job_proves_nothing_until_its_own_is_back() -> anyhow::Result<()>
{
    on_stage(async |scene: &Scene<'_>| {
        let (world, witness) = (&scene.sandboxes.world, &scene.sandboxes.witness);
        // The same server by another name: it could tell everything, and is another all the same.
        let other = Gate::before(&scene.sandboxes.server).await?;
        let replica = scene.start(None, LONG_FENCE).await?;
        world
            .create(&scene.sandboxes.job("runs", "sleep 8; exit 3"))
            .await?;
        world.when_started("runs").await?;
        let move_to = async |gate: &Gate| {
            let endpoint = serde_json::json!({"endpoint": gate.endpoint});
            scene
                .sandboxes
                .change_parameters(&scene.sandboxes.class, endpoint)
                .await
        };
        move_to(&other).await?;
        let unknown = |job: Option<&Job>| {
            job.and_then(|job| job.status.as_ref())
                .is_some_and(|status| conditions::is_true(&status.conditions, RESULT_UNKNOWN))
        };
        world.when("runs", "its result is unknown", unknown).await?;
        // One that comes now runs there.
        let new = world.create(&scene.sandboxes.job("new", "exit 4")).await?;
        expect(
            &world.when_finished("new").await?,
            Outcome::Failed,
            "NonZeroExit",
            Some(4),
        )?;
        ensure!(other.creates(&new) == 1 && scene.gate.creates(&new) == 0);
        let job = world.jobs.get("runs").await?;
        ensure!(unknown(Some(&job)) && job.status.as_ref().is_some_and(|s| s.result.is_none()));

        move_to(&scene.gate).await?;
        let job = world.when_finished("runs").await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
        ensure!(other.creates(&job) == 0 && witness.starts(&job) == 1);
        // What is at the other one is cleaned up there.
        move_to(&other).await?;
        world.delete("new").await?;
        world.when_gone("new").await?;
        move_to(&scene.gate).await?;
        replica.kill().await
    })
    .await
}

/// Runs a test with the deployed adapter off and the server behind a gate, and brings the adapter back however the
/// test ends. Tests of this file share the one stage, so they take turns.
async fn on_stage(test: impl AsyncFnOnce(&Scene<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _turn = TURN.lock().await;
    with_sandboxes(async |mut sandboxes: Sandboxes| {
        let gate = Gate::before(&sandboxes.server).await?;
        let class = format!("{}-gated", sandboxes.class);
        let parameters = OpenSandboxExecutionParametersSpec {
            endpoint: gate.endpoint.clone(),
            ca_bundle: None,
            allow_insecure_http: Some(true),
            ..sandboxes.parameters()
        };
        sandboxes.create_class(&class, parameters, |_| {}).await?;
        sandboxes.class = class;
        let stage = Stage::take_from(&sandboxes.world.client, Adapter::OpenSandbox).await?;
        let scene = Scene {
            sandboxes: &sandboxes,
            stage: &stage,
            gate,
        };
        let outcome = test(&scene).await;
        // Only what knows of the gate can clean up behind it.
        let cleaned = clean_up(&scene).await.context("cleaning up");
        stage.clear().await?;
        outcome.and(cleaned)
    })
    .await
}

async fn clean_up(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.gate.open(Opening::Wide);
    let cleaner = scene.start(None, SHORT_FENCE).await?;
    let jobs = &scene.sandboxes.world.jobs;
    jobs.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    let all_gone = async || Ok(jobs.list(&ListParams::default()).await?.items.is_empty());
    scene
        .sandboxes
        .world
        .eventually("all Jobs are gone", all_gone)
        .await?;
    cleaner.kill().await
}

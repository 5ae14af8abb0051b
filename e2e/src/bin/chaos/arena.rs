//! The run: a namespace, two adapters of two replicas, the Jobs and what becomes of them, and the count in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use ayatori_core::names::{JOB_NAMESPACE_LABEL, JOB_UID_LABEL};
use ayatori_e2e::api::{PATIENCE, when_no_namespace_goes};
use ayatori_e2e::counter::Counter;
use ayatori_e2e::gate::Gate;
use ayatori_e2e::replica::{Adapter, Stage, xtask};
use ayatori_e2e::sandboxes::{Sandboxes, with_sandboxes};
use futures::future::try_join_all;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::classes::Classes;
use crate::crew::{Crew, REPLICAS, identity};
use crate::faults::{Damage, Target};
use crate::ground::{Ground, SUCCESSOR, second};
use crate::judge::{Broken, Evidence, Verdict, judge};
use crate::observer::{Observer, SeenJob};
use crate::persist::persist;
use crate::plan::{Fate, Plan};
use crate::report::Report;
use crate::starts::Starts;
use crate::wire::Wire;

/// What adapters of pods are told: nobody asks for their health.
const POD_FLAGS: &[&str] = &["--listen=127.0.0.1:0"];
/// What adapters of sandboxes are told: also that clocks are the same here, that lists show everything at once, and that
/// nobody reads logs of what has ended.
const SANDBOX_FLAGS: &[&str] = &[
    "--listen=127.0.0.1:0",
    "--allow-insecure-http",
    "--clock-skew-seconds=1",
    "--list-lag-seconds=2",
    "--fence-seconds=45",
    "--log-window-seconds=3",
];
/// How many Jobs there are at a time that have not ended: on a slow machine the others come later, and the faults go on
/// as long. Without a bound every Job would wait for its turn, and none would meet a fault.
const PLACES: usize = 60;
/// How long nothing has to change until it is called quiet.
const QUIET: Duration = Duration::from_secs(10);
/// How long it stays under observation then.
const AFTERWARDS: Duration = Duration::from_secs(15);
/// How long after the last fault a Job that has not ended is called stuck, and likewise one that does not go.
const STUCK: Duration = Duration::from_secs(300);
/// How often it is said how far it is.
const TELLING: Duration = Duration::from_secs(10);

/// Runs all of it.
pub(crate) async fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = None;
    with_sandboxes(async |sandboxes: Sandboxes| {
        let client = sandboxes.world.client.clone();
        when_no_namespace_goes(&client).await?;
        let pods = Stage::take_from(&client, Adapter::Kubernetes).await?;
        let boxes = Stage::take_from(&client, Adapter::OpenSandbox).await?;
        let outcome = on_stages(plan, sandboxes, &pods, &boxes).await;
        // Whatever a fault has left broken.
        let repaired = xtask(&["cluster", "up"]).await;
        pods.clear().await?;
        boxes.clear().await?;
        repaired?;
        report = Some(outcome?);
        Ok(())
    })
    .await?;
    report.context("there is no report")
}

async fn on_stages(plan: &Plan, sandboxes: Sandboxes, pods: &Stage, boxes: &Stage) -> anyhow::Result<Report> {
    let begin = Instant::now();
    let client = sandboxes.world.client.clone();
    let namespace = sandboxes.world.namespace.clone();
    let cluster = PathBuf::from(std::env::var_os("AYATORI_CLUSTER").context("AYATORI_CLUSTER is not set")?);
    let starts = Starts::watch(&cluster)?;
    let gate = Gate::before(&sandboxes.server).await?;
    let address = gate
        .endpoint
        .strip_prefix("http://")
        .context("a gate elsewhere")?;
    let wire = Wire::to(address.parse()?).await?;
    let ground = Ground {
        jobs: Api::namespaced(client.clone(), &namespace),
        namespace,
        pods: Counter::listen(&client).await?,
        client,
    };
    let logs = cluster.with_file_name("chaos");
    std::fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    pods.forget_leaders().await?;
    boxes.forget_leaders().await?;
    let mut crew = Crew::default();
    // The stages outlive the crew: it is ended below, whatever happens.
    for (adapter, stage, flags) in [
        (Adapter::Kubernetes, pods, POD_FLAGS),
        (Adapter::OpenSandbox, boxes, SANDBOX_FLAGS),
    ] {
        for replica in 0..REPLICAS {
            let identity = identity(adapter, replica);
            let log = std::fs::File::create(logs.join(format!("{identity}.log")))?;
            let stage = stage.clone();
            crew.hire(adapter, identity.clone(), move || {
                stage.start_logged(&identity, &log, flags)
            });
        }
    }
    let judged = async {
        let battle = battle(plan, &ground, &sandboxes, &crew, &wire).await?;
        let mut report = battle.judge(plan, &ground, &starts, &gate);
        let leaks = battle.clean_up(&ground, &sandboxes, &mut report.stuck).await?;
        report.leaks.extend(leaks);
        anyhow::Ok(report)
    }
    .await;
    let restarts = crew.end().await?;
    let mut report = judged?;
    report.restarts = restarts;
    report.seconds = begin.elapsed().as_secs_f64();
    Ok(report)
}

/// What happened while things were broken, and until it was quiet.
struct Battle {
    observer: Observer,
    damage: Damage,
    seconds_to_quiet: f64,
    changes_after_quiet: u64,
    /// What still ran when it was quiet.
    left_running: Vec<String>,
}

async fn battle(
    plan: &Plan,
    ground: &Ground,
    sandboxes: &Sandboxes,
    crew: &Crew,
    wire: &Wire,
) -> anyhow::Result<Battle> {
    let target = Target {
        client: &ground.client,
        namespace: &ground.namespace,
        crew,
        wire,
    };
    target.label("true".into()).await?;
    let classes = Classes {
        ground,
        sandboxes,
        endpoint: format!("http://{}", wire.address),
    };
    classes.create_all().await?;
    let observer = Observer::of(&ground.client, &ground.namespace);

    eprintln!(
        "{} Jobs in at least {} s, under fire; what the adapters say is in target/chaos",
        plan.jobs.len(),
        plan.length.as_secs()
    );
    let places = Semaphore::new(PLACES);
    let to_come = AtomicUsize::new(plan.jobs.len());
    let lives = try_join_all(plan.jobs.iter().map(async |planned| {
        sleep(planned.at).await;
        let _place = places.acquire().await?;
        ground.live(planned).await?;
        to_come.fetch_sub(1, Ordering::Relaxed);
        // One that does not end must not keep all others from coming.
        let _ = timeout(PATIENCE, observer.when_over(&planned.name)).await;
        anyhow::Ok(())
    }));
    let attack = async {
        let over = || to_come.load(Ordering::Relaxed) == 0;
        let striking = target.attack(&plan.faults, over);
        let recreating = classes.recreate_until(over);
        let (mut damage, recreations) = tokio::try_join!(striking, recreating)?;
        damage.faults.extend(recreations);
        eprintln!("{} faults are over", damage.faults.values().sum::<u32>());
        anyhow::Ok((damage, Instant::now()))
    };
    let (_, (damage, last_fault)) = tokio::select! {
        done = async { tokio::try_join!(lives, attack) } => done?,
        never = tell(&observer) => match never {},
    };
    // Whatever happens to be well already.
    xtask(&["cluster", "up"]).await?;

    let quiet_at = tokio::select! {
        quiet_at = when_quiet(&observer, last_fault) => quiet_at,
        never = tell(&observer) => match never {},
    };
    let before = observer.seen().changes;
    sleep(AFTERWARDS).await;
    let changes_after_quiet = observer.seen().changes - before;
    let left_running = left_running(ground, sandboxes).await?;
    Ok(Battle {
        observer,
        damage,
        seconds_to_quiet: quiet_at.saturating_duration_since(last_fault).as_secs_f64(),
        changes_after_quiet,
        left_running,
    })
}

/// What still runs of Jobs that have all ended: of pods those that have not ended, and of sandboxes all that are there.
async fn left_running(ground: &Ground, sandboxes: &Sandboxes) -> anyhow::Result<Vec<String>> {
    let pods = Api::<Pod>::namespaced(ground.client.clone(), &ground.namespace);
    let not_ended = ListParams::default()
        .labels(JOB_UID_LABEL)
        .fields("status.phase!=Succeeded,status.phase!=Failed");
    let pods = pods.list(&not_ended).await?;
    let pods = pods.iter().map(|pod| format!("pod {}", pod.name_any()));
    let sandboxes = sandboxes.of_namespace().await?;
    let sandboxes = sandboxes.iter().map(|sandbox| format!("sandbox {}", sandbox.id));
    let all = pods.chain(sandboxes);
    Ok(all
        .map(|what| format!("{what}, when every Job had ended"))
        .collect())
}

/// When the last change was, once there is none any more and nothing is to come; or now, when that takes too long.
async fn when_quiet(observer: &Observer, last_fault: Instant) -> Instant {
    let mut interval = tokio::time::interval(Duration::from_millis(500));
    loop {
        interval.tick().await;
        let seen = observer.seen();
        let over = seen
            .jobs
            .values()
            .all(|job| job.gone || (job.finished && !job.deleting));
        if over && seen.last_change.elapsed() >= QUIET {
            return seen.last_change;
        }
        if last_fault.elapsed() >= STUCK {
            return Instant::now();
        }
    }
}

/// Says how far it is, for those who wait.
async fn tell(observer: &Observer) -> Infallible {
    let mut interval = tokio::time::interval(TELLING);
    loop {
        interval.tick().await;
        let seen = observer.seen();
        let count = |of: fn(&SeenJob) -> bool| seen.jobs.values().filter(|job| of(job)).count();
        eprintln!(
            "{} Jobs, {} ended, {} gone, nothing changed for {} s",
            seen.jobs.len(),
            count(|job| job.finished),
            count(|job| job.gone),
            seen.last_change.elapsed().as_secs()
        );
    }
}

impl Battle {
    /// Holds what every Job says against what was counted.
    fn judge(&self, plan: &Plan, ground: &Ground, starts: &Starts, gate: &Gate) -> Report {
        let seen = self.observer.seen();
        let mut report = Report {
            seed: plan.seed,
            jobs: seen.jobs.len(),
            seconds: 0.0,
            faults: self.damage.faults.clone(),
            restarts: 0,
            verdicts: BTreeMap::new(),
            starts: 0,
            most_starts: 0,
            wrong: Vec::new(),
            stuck: Vec::new(),
            leaks: self.left_running.clone(),
            seconds_to_quiet: self.seconds_to_quiet,
            changes_after_quiet: self.changes_after_quiet,
        };
        let planned: BTreeMap<_, _> = plan.jobs.iter().map(|job| (job.name.as_str(), job)).collect();
        let named: BTreeSet<_> = seen.jobs.values().map(|job| job.name.as_str()).collect();
        for job in plan.jobs.iter().filter(|job| !job.fate.goes()) {
            if !named.contains(job.name.as_str()) {
                report
                    .wrong
                    .push(format!("{}: it was planned, and nobody saw it", job.name));
            }
        }
        for (uid, job) in &seen.jobs {
            let Some(planned) = planned.get(job.name.as_str()) else {
                report.wrong.push(format!("{}: nobody planned it", job.name));
                continue;
            };
            let mut planned = (*planned).clone();
            if job.token == second(&planned.name) {
                planned.deed = SUCCESSOR;
                planned.fate = Fate::Left;
            }
            let (sandboxes, in_sandboxes) = starts.of(uid);
            let in_pods = ground.pods.starts(&format!("{}/{}", ground.namespace, job.token));
            let evidence = Evidence {
                starts: in_sandboxes + in_pods,
                sandboxes,
                requests: gate.creates_of(uid),
                result: job.result.clone(),
                revised: job.revised.clone(),
                finished: job.finished,
                deleting: job.deleting,
                gone: job.gone,
                interrupted: (self.damage.without_runner(planned.class.adapter))
                    .any(|time| job.lived_in(time)),
            };
            report.starts += u64::from(evidence.starts);
            report.most_starts = report.most_starts.max(evidence.starts);
            match judge(&planned, &evidence) {
                Ok(verdict) => {
                    let word = match verdict {
                        Verdict::Ran => "ran to their own end".to_owned(),
                        Verdict::Stopped => "were stopped as asked".to_owned(),
                        Verdict::Deleted => "were deleted before their end".to_owned(),
                        Verdict::Lost(reason) => format!("say {reason}"),
                    };
                    *report.verdicts.entry(word).or_default() += 1;
                }
                Err(broken) => {
                    let (what, others) = match broken {
                        Broken::Wrong(what) => (what, &mut report.wrong),
                        Broken::Stuck(what) => (what, &mut report.stuck),
                    };
                    others.push(format!(
                        "{} ({uid}, {:?}, {:?}): {what}; {}",
                        job.token, planned.class, planned.fate, job.story
                    ));
                }
            }
        }
        report
    }

    /// Deletes every Job; what is still there afterwards. A Job that does not go is stuck.
    async fn clean_up(
        &self,
        ground: &Ground,
        sandboxes: &Sandboxes,
        stuck: &mut Vec<String>,
    ) -> anyhow::Result<Vec<String>> {
        let all = ListParams::default();
        persist("deleting all Jobs", async || {
            ground
                .jobs
                .delete_collection(&DeleteParams::default(), &all)
                .await
                .map(drop)
        })
        .await?;
        let end = Instant::now() + STUCK;
        let mut interval = tokio::time::interval(Duration::from_secs(1));
        loop {
            interval.tick().await;
            let left = ground.jobs.list(&all).await?.items;
            if left.is_empty() {
                break;
            }
            if Instant::now() >= end {
                stuck.extend(left.iter().map(|job| format!("{} does not go", job.name_any())));
                break;
            }
        }
        let ours = ListParams::default().labels(JOB_UID_LABEL);
        let mut leaks = Vec::new();
        for _ in 0..30 {
            interval.tick().await;
            leaks.clear();
            let batch_jobs = Api::<BatchJob>::namespaced(ground.client.clone(), &ground.namespace);
            leaks.extend(
                batch_jobs
                    .list(&ours)
                    .await?
                    .iter()
                    .map(|job| format!("batch Job {}", job.name_any())),
            );
            let pods = Api::<Pod>::namespaced(ground.client.clone(), &ground.namespace);
            leaks.extend(
                pods.list(&ours)
                    .await?
                    .iter()
                    .map(|pod| format!("pod {}", pod.name_any())),
            );
            let left = sandboxes.of_namespace().await?;
            leaks.extend(left.iter().map(|sandbox| format!("sandbox {}", sandbox.id)));
            let filter = format!("label={JOB_NAMESPACE_LABEL}={}", ground.namespace);
            let containers = ["ps", "--all", "--quiet", "--filter", &filter];
            let containers = sandboxes.server.docker(&containers).await?;
            leaks.extend(containers.lines().map(|id| format!("container {id}")));
            // Owner references and the server need a moment.
            if leaks.is_empty() {
                break;
            }
        }
        Ok(leaks)
    }
}

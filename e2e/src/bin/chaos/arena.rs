//! The run: a namespace, two adapters of two replicas, the Jobs and what becomes of them, and the count in the end.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_core::job::{Job, JobSpec};
use ayatori_core::job_class::{JobClass, JobClassSpec};
use ayatori_core::names::{JOB_NAMESPACE_LABEL, JOB_UID_LABEL};
use ayatori_core::parameters::{
    KubernetesExecutionParameters, KubernetesExecutionParametersSpec, OpenSandboxExecutionParameters,
    OpenSandboxExecutionParametersSpec,
};
use ayatori_e2e::counter::Counter;
use ayatori_e2e::gate::Gate;
use ayatori_e2e::replica::{Adapter, Stage, xtask};
use ayatori_e2e::sandboxes::{Sandboxes, with_sandboxes};
use ayatori_e2e::witness::Witness;
use ayatori_e2e::world::IMAGE;
use futures::future::try_join_all;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::faults::{ADMITTED_LABEL, Target, gone_already};
use crate::judge::{Evidence, Verdict, judge};
use crate::observer::{Observer, SeenJob, TOKEN_LABEL};
use crate::plan::{Class, Deed, Fate, Plan, PlannedJob};
use crate::report::Report;
use crate::starts::Starts;
use crate::wire::Wire;

/// Replicas of each adapter.
const REPLICAS: usize = 2;
/// What adapters of sandboxes are told: clocks are the same here, lists show everything at once, and nobody reads logs
/// of what has ended.
const SANDBOX_FLAGS: &[&str] = &[
    "--allow-insecure-http",
    "--clock-skew-seconds=1",
    "--list-lag-seconds=2",
    "--fence-seconds=45",
    "--log-window-seconds=3",
];
/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(15);
/// How long an outage may last.
const OUTAGE: Duration = Duration::from_secs(240);
/// Between two tries.
const RETRY: Duration = Duration::from_millis(250);
/// How long nothing has to change until it is called quiet.
const QUIET: Duration = Duration::from_secs(10);
/// How long it stays under observation then.
const AFTERWARDS: Duration = Duration::from_secs(15);
/// How long after the last fault a Job that has not ended is called stuck, and likewise one that does not go.
const STUCK: Duration = Duration::from_secs(300);
/// How often it is said how far it is.
const TELLING: Duration = Duration::from_secs(10);
/// Between two recreations of a class.
const RECREATION: Duration = Duration::from_secs(12);
/// What the second Job of a name does.
const SUCCESSOR: Deed = Deed::Exits {
    after: Duration::from_millis(200),
    code: 7,
};

/// Tries again until it works: the API server is away now and then.
pub(crate) async fn persist<T>(
    what: &str,
    ask: impl AsyncFn() -> Result<T, kube::Error>,
) -> anyhow::Result<T> {
    let end = Instant::now() + OUTAGE;
    loop {
        let error = match timeout(REQUEST, ask()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        ensure!(Instant::now() < end, "{what} does not work: {error}");
        sleep(RETRY).await;
    }
}

/// What a replica is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// SIGKILL, and a new process.
    Die,
    /// SIGSTOP, and SIGCONT after this time.
    Sleep(Duration),
    /// SIGKILL, for good.
    End,
}

/// The adapter processes, each started again whenever it ends, as the kubelet would.
pub(crate) struct Crew {
    members: Vec<Member>,
}

struct Member {
    adapter: Adapter,
    orders: mpsc::UnboundedSender<Order>,
    task: JoinHandle<anyhow::Result<(Adapter, u32)>>,
}

impl Crew {
    /// To one replica.
    pub(crate) fn order(&self, adapter: Adapter, replica: usize, order: Order) {
        let mut of_adapter = self.members.iter().filter(|member| member.adapter == adapter);
        if let Some(member) = of_adapter.nth(replica) {
            // Fails only where its task has failed, which the end of the run tells.
            let _ = member.orders.send(order);
        }
    }

    /// To all replicas of an adapter.
    pub(crate) fn order_all(&self, adapter: Adapter, order: Order) {
        (0..REPLICAS).for_each(|replica| self.order(adapter, replica, order));
    }

    /// Ends all of them; how often one was started again.
    async fn end(self) -> anyhow::Result<u32> {
        let mut restarts = 0;
        for Member { orders, task, .. } in self.members {
            let _ = orders.send(Order::End);
            restarts += task.await??.1;
        }
        Ok(restarts)
    }
}

/// Keeps one replica running.
async fn keep(
    start: impl Fn() -> anyhow::Result<ayatori_e2e::replica::Replica>,
    adapter: Adapter,
    mut orders: mpsc::UnboundedReceiver<Order>,
) -> anyhow::Result<(Adapter, u32)> {
    for restarts in 0.. {
        let mut replica = start()?;
        loop {
            let order = tokio::select! {
                ended = replica.ended(Duration::MAX) => {
                    ended?;
                    sleep(Duration::from_secs(1)).await;
                    break;
                }
                order = orders.recv() => order.unwrap_or(Order::End),
            };
            match order {
                Order::Sleep(time) => {
                    // One that has just ended cannot.
                    if replica.freeze().is_ok() {
                        sleep(time).await;
                        replica.wake_up()?;
                    }
                }
                Order::Die => {
                    replica.kill().await?;
                    break;
                }
                Order::End => {
                    replica.kill().await?;
                    return Ok((adapter, restarts));
                }
            }
        }
    }
    Ok((adapter, u32::MAX))
}

/// Everything a Job's task needs.
struct Ground {
    client: Client,
    jobs: Api<Job>,
    namespace: String,
    /// `KEY-pods` and `KEY-sandboxes`, and the same with `-again`.
    key: String,
    pods: Counter,
}

impl Ground {
    fn class(&self, class: Class) -> String {
        let backend = match class.adapter {
            Adapter::Kubernetes => "pods",
            Adapter::OpenSandbox => "sandboxes",
        };
        let again = if class.recreated { "-again" } else { "" };
        format!("{}-{backend}{again}", self.key)
    }

    /// One Job of the plan, under a token of its own.
    fn job(&self, planned: &PlannedJob, token: &str, deed: Deed) -> Job {
        let then = match deed {
            Deed::Exits { after, code } => format!("sleep {}; exit {code}", after.as_secs_f32()),
            Deed::Sleeps => "sleep 600".to_owned(),
            Deed::Obeys => "trap 'exit 0' TERM; sleep 600 & wait".to_owned(),
        };
        let (command, grace) = match planned.class.adapter {
            Adapter::Kubernetes => (
                self.pods.command(&format!("{}/{token}", self.namespace), &then),
                Some(2),
            ),
            Adapter::OpenSandbox => (Witness::command(&then), None),
        };
        let mut spec = JobSpec {
            job_class_name: Some(self.class(planned.class)),
            image: IMAGE.to_owned(),
            command,
            termination_grace_period_seconds: grace,
            ..JobSpec::default()
        };
        match planned.fate {
            Fate::Deadline { seconds } => spec.active_deadline_seconds = Some(seconds),
            Fate::StartingDeadline { seconds } => spec.starting_deadline_seconds = Some(seconds),
            Fate::Expires { seconds } => spec.ttl_seconds_after_finished = Some(seconds),
            Fate::Left | Fate::Cancelled { .. } | Fate::Deleted { .. } | Fate::Recreated { .. } => {}
        }
        let mut job = Job::new(&planned.name, spec);
        job.labels_mut().insert(TOKEN_LABEL.to_owned(), token.to_owned());
        job
    }

    /// Creates it, whatever stands in the way.
    async fn create(&self, job: &Job) -> anyhow::Result<()> {
        let token = job.labels().get(TOKEN_LABEL);
        persist("creating a Job", async || {
            match self.jobs.create(&PostParams::default(), job).await {
                // By the try before, whose answer was lost; or an earlier one of that name is not gone yet.
                Err(kube::Error::Api(status)) if status.is_already_exists() => {
                    let there = self.jobs.get(&job.name_any()).await?;
                    if there.labels().get(TOKEN_LABEL) == token {
                        Ok(())
                    } else {
                        Err(kube::Error::Api(status))
                    }
                }
                other => other.map(drop),
            }
        })
        .await
    }

    /// The life of one planned Job, as far as it is not the adapters'.
    async fn live(&self, planned: &PlannedJob) -> anyhow::Result<()> {
        let name = planned.name.clone();
        self.create(&self.job(planned, &name, planned.deed)).await?;
        match planned.fate {
            Fate::Left | Fate::Deadline { .. } | Fate::StartingDeadline { .. } | Fate::Expires { .. } => {}
            Fate::Cancelled { after } => {
                sleep(after).await;
                let patch = Patch::Merge(json!({"spec": {"cancelRequested": true}}));
                persist("cancelling a Job", async || {
                    let patched = self.jobs.patch(&name, &PatchParams::default(), &patch).await;
                    patched.map(drop)
                })
                .await?;
            }
            Fate::Deleted { after } => {
                sleep(after).await;
                self.delete(&name).await?;
            }
            Fate::Recreated { after } => {
                sleep(after).await;
                self.delete(&name).await?;
                let successor = PlannedJob {
                    fate: Fate::Left,
                    ..planned.clone()
                };
                self.create(&self.job(&successor, &second(&name), SUCCESSOR))
                    .await?;
            }
        }
        Ok(())
    }

    async fn delete(&self, name: &str) -> anyhow::Result<()> {
        persist("deleting a Job", async || {
            gone_already(self.jobs.delete(name, &DeleteParams::default()).await.map(drop))
        })
        .await
    }
}

/// The token of the second Job of a name.
fn second(name: &str) -> String {
    format!("{name}.second")
}

/// Runs all of it.
pub(crate) async fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = None;
    with_sandboxes(async |sandboxes: Sandboxes| {
        let client = sandboxes.world.client.clone();
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
        namespace: namespace.clone(),
        key: namespace.clone(),
        pods: Counter::listen(&client).await?,
        client,
    };
    let logs = cluster.with_file_name("chaos");
    std::fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))?;
    pods.forget_leaders().await?;
    boxes.forget_leaders().await?;
    let mut crew = Crew { members: Vec::new() };
    // The stages outlive the crew: it is ended below, whatever happens.
    for (adapter, stage, flags) in [
        (Adapter::Kubernetes, pods, &[][..]),
        (Adapter::OpenSandbox, boxes, SANDBOX_FLAGS),
    ] {
        for replica in 0..REPLICAS {
            let identity = format!("{}-{replica}", adapter.name());
            let log = std::fs::File::create(logs.join(format!("{identity}.log")))?;
            let start = stage.starter(identity, log, flags)?;
            let (orders, received) = mpsc::unbounded_channel();
            let task = tokio::spawn(keep(start, adapter, received));
            crew.members.push(Member {
                adapter,
                orders,
                task,
            });
        }
    }
    let battle = battle(plan, &ground, &sandboxes, &crew, &wire).await;
    let judged = match battle {
        Ok(battle) => {
            let mut report = battle.judge(plan, &ground, &starts, &gate);
            report.leaks = battle.clean_up(&ground, &sandboxes, &mut report.stuck).await?;
            Ok(report)
        }
        Err(error) => Err(error),
    };
    let restarts = crew.end().await?;
    let mut report = judged?;
    report.restarts = restarts;
    report.seconds = begin.elapsed().as_secs_f64();
    Ok(report)
}

/// What happened while things were broken, and until it was quiet.
struct Battle {
    observer: Observer,
    faults: BTreeMap<String, u32>,
    seconds_to_quiet: f64,
    changes_after_quiet: u64,
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
        "{} Jobs in {} s, under fire; what the adapters say is in target/chaos",
        plan.jobs.len(),
        plan.length.as_secs()
    );
    let lives = try_join_all(plan.jobs.iter().map(async |planned| {
        sleep(planned.at).await;
        ground.live(planned).await
    }));
    let attack = async {
        let striking = target.attack(&plan.faults, plan.length);
        let recreating = classes.recreate_until(Instant::now() + plan.length);
        let (mut faults, recreations) = tokio::try_join!(striking, recreating)?;
        faults.insert("a class recreated under its name".to_owned(), recreations);
        eprintln!("{} faults are over", faults.values().sum::<u32>());
        anyhow::Ok((faults, Instant::now()))
    };
    let (_, (faults, last_fault)) = tokio::select! {
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
    Ok(Battle {
        observer,
        faults,
        seconds_to_quiet: quiet_at.saturating_duration_since(last_fault).as_secs_f64(),
        changes_after_quiet,
    })
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
            .all(|job| job.finished || job.gone || job.deleting);
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

/// The four classes, and their parameters of the same names.
struct Classes<'a> {
    ground: &'a Ground,
    sandboxes: &'a Sandboxes,
    endpoint: String,
}

impl Classes<'_> {
    async fn create_all(&self) -> anyhow::Result<()> {
        for adapter in [Adapter::Kubernetes, Adapter::OpenSandbox] {
            for recreated in [false, true] {
                self.create(Class { adapter, recreated }).await?;
            }
        }
        Ok(())
    }

    async fn create(&self, class: Class) -> anyhow::Result<()> {
        let admitted = |spec: &mut JobClassSpec| {
            let selector = json!({"matchLabels": {ADMITTED_LABEL: "true"}});
            spec.allowed_namespaces = serde_json::from_value(selector).ok();
        };
        let name = self.ground.class(class);
        match class.adapter {
            Adapter::Kubernetes => {
                let plain = KubernetesExecutionParametersSpec::default();
                self.sandboxes.world.create_class(&name, plain, admitted).await
            }
            Adapter::OpenSandbox => {
                let parameters = OpenSandboxExecutionParametersSpec {
                    endpoint: self.endpoint.clone(),
                    ca_bundle: None,
                    allow_insecure_http: Some(true),
                    ..self.sandboxes.parameters()
                };
                self.sandboxes.create_class(&name, parameters, admitted).await
            }
        }
    }

    /// Deletes and creates again the classes that are meant to be; how often that came about.
    async fn recreate_until(&self, end: Instant) -> anyhow::Result<u32> {
        let mut recreations = 0;
        while Instant::now() + RECREATION < end {
            sleep(RECREATION).await;
            for adapter in [Adapter::Kubernetes, Adapter::OpenSandbox] {
                let class = Class {
                    adapter,
                    recreated: true,
                };
                self.recreate(class).await?;
                recreations += 1;
            }
        }
        Ok(recreations)
    }

    async fn recreate(&self, class: Class) -> anyhow::Result<()> {
        let name = self.ground.class(class);
        let end = Instant::now() + OUTAGE;
        loop {
            let client = || self.ground.client.clone();
            remove(&Api::<JobClass>::all(client()), &name).await?;
            match class.adapter {
                Adapter::Kubernetes => {
                    remove(&Api::<KubernetesExecutionParameters>::all(client()), &name).await?;
                }
                Adapter::OpenSandbox => {
                    remove(&Api::<OpenSandboxExecutionParameters>::all(client()), &name).await?;
                }
            }
            // Where the API server goes meanwhile, who knows what was created: from the beginning then.
            match self.create(class).await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => sleep(RETRY).await,
            }
        }
    }
}

/// Deletes an object and returns once it is gone.
async fn remove<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    persist("deleting a class", async || {
        gone_already(api.delete(name, &DeleteParams::default()).await.map(drop))
    })
    .await?;
    let end = Instant::now() + OUTAGE;
    loop {
        if persist("looking for a class", async || api.get_opt(name).await)
            .await?
            .is_none()
        {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{name} does not go");
        sleep(RETRY).await;
    }
}

impl Battle {
    /// Holds what every Job says against what was counted.
    fn judge(&self, plan: &Plan, ground: &Ground, starts: &Starts, gate: &Gate) -> Report {
        let seen = self.observer.seen();
        let killed_by_docker = self.faults.keys().any(|kind| kind.ends_with(" dockerd"));
        let mut report = Report {
            seed: plan.seed,
            jobs: seen.jobs.len(),
            seconds: 0.0,
            faults: self.faults.clone(),
            restarts: 0,
            verdicts: BTreeMap::new(),
            starts: 0,
            wrong: Vec::new(),
            stuck: Vec::new(),
            leaks: Vec::new(),
            seconds_to_quiet: self.seconds_to_quiet,
            changes_after_quiet: self.changes_after_quiet,
        };
        let planned: BTreeMap<_, _> = plan.jobs.iter().map(|job| (job.name.as_str(), job)).collect();
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
                killed_by_docker,
            };
            report.starts += u64::from(evidence.starts);
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
                Err(what) => {
                    let told = format!(
                        "{} ({uid}, {:?}, {:?}): {what}; {}",
                        job.token, planned.class, planned.fate, job.story
                    );
                    if job.finished || job.gone {
                        report.wrong.push(told);
                    } else {
                        report.stuck.push(told);
                    }
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

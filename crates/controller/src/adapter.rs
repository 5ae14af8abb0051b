//! An adapter's process from start to end: caches, leases, the three controllers, health, shutdown.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use ayatori_core::lifecycle::Settings;
use futures::{FutureExt, StreamExt, stream};
use kube::Client;
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::backoff::Backoff;
use crate::caches::{self, Caches, Queue, Queues};
use crate::desks::Desks;
use crate::dispatch::Dispatcher;
use crate::events;
use crate::health::{self, Readiness};
use crate::kept;
use crate::latest::Latest;
use crate::lease::Candidate;
use crate::reconcile_class::{self, ClassContext};
use crate::reconcile_job::{self, Deputy, JobContext};
use crate::status_writer::StatusWriter;
use crate::telemetry::census::{Census, Strangers};
use crate::telemetry::{self, LogFormat, Telemetry};

/// The Lease of whoever speaks for objects that nobody owns; one for all adapters.
const UNOWNED_LEASE: &str = "unowned";
/// The task that holds it.
const SECOND_LEASE: &str = "the second lease";
/// How many parameters objects are looked at at a time.
const PARAMETERS_AT_A_TIME: usize = 4;
/// How long a shutdown waits for what is under way.
const GRACE: Duration = Duration::from_secs(10);

/// What every adapter can be told on its command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Namespace of the adapter's Leases.
    #[arg(long, env = "POD_NAMESPACE", default_value = "ayatori-system")]
    pub namespace: String,

    /// This replica's name in Leases and Events, unlike any other's.
    #[arg(long, env = "POD_NAME", default_value_t = unique_identity())]
    pub identity: String,

    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,

    /// How log lines look.
    #[arg(long, value_enum, default_value = "json")]
    pub log_format: LogFormat,

    /// Which log lines are written: a level, or a list of target=level.
    #[arg(long, default_value = "info")]
    pub log_level: String,

    /// Link into the log store for status.correlation.url; {namespace}, {name} and {uid} are filled in.
    #[arg(long)]
    pub logs_url_template: Option<String>,

    /// How many Jobs of one class are looked at at the same time; as many besides of those that are being deleted, and a
    /// quarter as many of those of which only remains are to be cleaned up.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    pub workers: u16,

    /// Where traces and metrics are sent by OTLP over gRPC, as http://HOST:PORT or https://HOST:PORT. Without it they are
    /// sent nowhere.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
}

impl Options {
    /// Starts logging as these options say.
    pub fn init_logs(&self) -> anyhow::Result<()> {
        telemetry::init_logs(self.log_format, &self.log_level)
    }

    /// Begins to tell of the adapter called `name`, as these options say. Needs a runtime.
    pub fn telemetry(&self, name: &'static str) -> anyhow::Result<Telemetry> {
        let endpoint = self
            .otlp_endpoint
            .as_deref()
            .filter(|endpoint| !endpoint.is_empty());
        Telemetry::start(name, &self.identity, endpoint)
    }

    /// What decisions depend on, as these options say.
    pub fn settings(&self) -> Settings {
        Settings {
            logs_url_template: self.logs_url_template.clone(),
            ..Settings::default()
        }
    }
}

/// Runs an adapter called `name` until it is told to stop, or an error. `make` is given the client to build
/// the backend with, and whom the backend may tell of its requests. Logging is the caller's: see [`Options::init_logs`]; and so are the settings, which begin as
/// [`Options::settings`].
pub async fn run<B>(
    name: &'static str,
    options: Options,
    settings: Settings,
    make: impl AsyncFnOnce(Client, Telemetry) -> anyhow::Result<B>,
) -> anyhow::Result<()>
where
    B: Backend,
{
    let telemetry = options.telemetry(name)?;
    let running = async {
        let client = crate::client::connect(telemetry.metrics()).await?;
        let backend = make(client.clone(), telemetry.clone()).await?;
        let stopped = asked_to_stop();
        run_until(name, options, settings, &telemetry, client, backend, stopped).await
    };
    let ended = running.await;
    telemetry.shutdown().await;
    ended
}

/// Runs an adapter called `name` until `stopped`, or an error. Dropping the future is a crash: nothing is
/// finished and no Lease released.
pub async fn run_until<B: Backend>(
    name: &'static str,
    options: Options,
    settings: Settings,
    telemetry: &Telemetry,
    client: Client,
    backend: B,
    stopped: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let backend = Arc::new(backend);
    let mut stopped = pin!(stopped);
    tracing::info!(
        name,
        version = env!("CARGO_PKG_VERSION"),
        controller = backend.controller_name(),
        "starting"
    );

    let metrics = telemetry.metrics().clone();
    let readiness = Readiness::default();
    let mut tasks = JoinSet::new();
    let serving = health::serve(options.listen, metrics.clone(), readiness.clone());
    tasks.spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(error = format!("{error:#}"), "health");
        }
        "the health server"
    });

    let (caches, writers) = Caches::<B::Parameters>::new();
    let caches = Arc::new(caches);
    let (jobs, job_queue) = Queue::new();
    let (classes, class_queue) = Queue::new();
    let (parameters, parameters_queue) = Queue::new();
    let queues = Arc::new(Queues {
        jobs,
        classes,
        parameters,
    });
    let keeping = caches::keep::<B>(
        client.clone(),
        writers,
        caches.clone(),
        queues.clone(),
        metrics.clone(),
    );
    tasks.spawn(keeping.map(|()| "the caches"));
    tasks.spawn(wake_from_backend(backend.clone(), caches.clone(), queues.clone()));

    let mut candidate = Candidate::new(client.clone(), &options.namespace, name, &options.identity);
    let (stop, deputies) = (CancellationToken::new(), CancellationToken::new());
    let over = CancellationToken::new();
    let _over_when_dropped = over.clone().drop_guard();
    let until_leading = async {
        caches.filled(&readiness).await?;
        readiness
            .after("the first look at the backend", backend.ready())
            .await;
        readiness.set();
        candidate.acquire().await;
        anyhow::Ok(())
    };
    tokio::select! {
        result = until_leading => result?,
        () = &mut stopped => return Ok(()),
        ended = tasks.join_next() => bail!("{} ended", what_ended(ended)),
    }
    metrics.leads(name, true);

    let (storyteller, telling) =
        events::storyteller(client.clone(), name, &options.identity, metrics.clone());
    tasks.spawn(telling.map(|()| "the storyteller"));
    let unknown = caches.unknown.clone();
    let writer = StatusWriter::new(
        client.clone(),
        name,
        candidate.leadership(),
        unknown,
        metrics.clone(),
    );
    let mut second = Candidate::new(
        client.clone(),
        &options.namespace,
        UNOWNED_LEASE,
        &format!("{name}/{}", options.identity),
    );
    let census = Census {
        backend: Arc::downgrade(&backend),
        caches: Arc::downgrade(&caches),
        leadership: candidate.leadership(),
        deputy: second.leadership(),
        strangers: Strangers::default(),
    };
    census.begin(&metrics);
    let deputy = Deputy {
        leadership: second.leadership(),
        writer: writer.under(second.leadership()),
    };
    {
        let (caches, queues, metrics, stop) =
            (caches.clone(), queues.clone(), metrics.clone(), deputies.clone());
        tasks.spawn(async move {
            while !stop.is_cancelled() {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = second.acquire() => {}
                }
                metrics.leads(UNOWNED_LEASE, true);
                caches.wake_all(&queues);
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = second.keep() => metrics.leads(UNOWNED_LEASE, false),
                }
            }
            second.release().await;
            SECOND_LEASE
        });
    }

    let desks = Arc::new(Desks::new(options.workers, caches.classes.clone()));
    let jobs = Arc::new(JobContext {
        backend: backend.clone(),
        client: client.clone(),
        caches: caches.clone(),
        writer: writer.clone(),
        deputy: deputy.clone(),
        storyteller: storyteller.clone(),
        settings,
        metrics: metrics.clone(),
        traces: telemetry.traces().cloned(),
        latest: Latest::default(),
        backoff: Backoff::default(),
        desks: desks.clone(),
    });
    let classes = Arc::new(ClassContext {
        backend,
        client,
        caches: caches.clone(),
        writer,
        deputy,
        storyteller,
        metrics: metrics.clone(),
        latest: Latest::default(),
        latest_parameters: Latest::default(),
        desks: Semaphore::new(PARAMETERS_AT_A_TIME),
        backoff: Backoff::default(),
        backoff_parameters: Backoff::default(),
    });
    queues.jobs.open();
    queues.classes.open();
    queues.parameters.open();
    caches.wake_all(&queues);
    let mut controllers = JoinSet::new();
    let look = move |job, desk| reconcile_job::reconcile(job, desk, jobs.clone());
    let dispatcher = Dispatcher::new(caches.jobs.clone(), desks.clone(), metrics.clone(), look);
    controllers.spawn(dispatcher.run(job_queue, stop.clone(), over));
    let for_parameters = classes.clone();
    controllers.spawn(control(
        caches.classes.clone(),
        class_queue,
        stop.clone(),
        move |o| reconcile_class::reconcile(o, classes.clone()).boxed(),
    ));
    controllers.spawn(control(
        caches.parameters.clone(),
        parameters_queue,
        stop.clone(),
        move |o| reconcile_class::reconcile_parameters(o, for_parameters.clone()).boxed(),
    ));

    tokio::select! {
        () = &mut stopped => {}
        () = candidate.keep() => {
            metrics.leads(name, false);
            bail!("the lease {name} was lost; another replica works now");
        }
        ended = tasks.join_next() => bail!("{} ended", what_ended(ended)),
        ended = controllers.join_next() => bail!("{} ended", what_ended(ended)),
    }
    tracing::info!("stopping");
    stop.cancel();
    desks.close();
    // Nothing new is begun, and what is under way is finished under the leases that are still renewed.
    let finishing = async { while controllers.join_next().await.is_some() {} };
    tokio::select! {
        () = finishing => {}
        () = candidate.keep() => tracing::warn!("the lease {name} was lost before what was under way had ended"),
        () = tokio::time::sleep(GRACE) => {
            tracing::warn!("what was under way did not end in time; the next leader takes it up");
        }
    }
    deputies.cancel();
    let leaving = async { while !matches!(tasks.join_next().await, None | Some(Ok(SECOND_LEASE))) {} };
    if tokio::time::timeout(GRACE, leaving).await.is_err() {
        tracing::debug!("the second lease was not given up in time; it expires by itself");
    }
    candidate.release().await;
    Ok(())
}

/// A name that no other process has.
fn unique_identity() -> String {
    use std::hash::{BuildHasher, RandomState};
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let random = RandomState::new().hash_one(std::process::id());
    format!("{}-{random:016x}", host.trim())
}

/// Feeds the controller of classes or parameters from its queue until it is told to stop. How many objects are looked at
/// at a time is up to `reconcile`: parameters have desks; classes are few, and each is probed within a time limit.
async fn control<K, F>(
    store: Store<K>,
    queue: UnboundedReceiver<ObjectRef<K>>,
    stop: CancellationToken,
    reconcile: F,
) -> &'static str
where
    K: kube::Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
    F: Fn(Arc<K>) -> futures::future::BoxFuture<'static, Result<Action, Infallible>> + Send + 'static,
{
    let queue = stream::unfold(queue, async |mut queue| {
        queue
            .recv()
            .await
            .map(|object| (Ok::<_, Infallible>(object), queue))
    })
    .take_until(stop.cancelled_owned());
    applier(
        move |object, _| reconcile(object),
        // Every failure has been answered with a time to come back.
        |_, error, _| match *error {},
        Arc::new(()),
        store,
        Box::pin(queue),
        Config::default(),
    )
    .for_each(async |_| {})
    .await;
    "a controller"
}

/// Wakes the Jobs and classes of which something changed in the backend.
async fn wake_from_backend<B: Backend>(
    backend: Arc<B>,
    caches: Arc<Caches<B::Parameters>>,
    queues: Arc<Queues<B::Parameters>>,
) -> &'static str {
    let jobs = backend
        .changes()
        .for_each(async |job| queues.jobs.push(kept::key(&job)));
    let classes = backend.class_changes().for_each(async |name| match name {
        Some(name) => queues.classes.push(ObjectRef::new(&name)),
        None => caches
            .classes
            .state()
            .iter()
            .for_each(|c| queues.classes.push(ObjectRef::from_obj(&**c))),
    });
    tokio::select! {
        () = jobs => "the watch of the backend",
        () = classes => "the watch of the backend's classes",
    }
}

fn what_ended(ended: Option<Result<&'static str, tokio::task::JoinError>>) -> String {
    match ended {
        Some(Ok(name)) => name.to_owned(),
        Some(Err(error)) => format!("a task panicked ({error}), so everything"),
        None => "everything".to_owned(),
    }
}

async fn asked_to_stop() {
    let mut terminate = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(signal) => signal,
        Err(error) => {
            tracing::error!(%error, "SIGTERM cannot be handled");
            return std::future::pending().await;
        }
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// Runs `main` of an adapter on a runtime of its own, and says on standard error why it ended.
pub fn block_on(main: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no runtime")?
        .block_on(main)
}

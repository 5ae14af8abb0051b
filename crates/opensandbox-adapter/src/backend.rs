//! The [`Backend`] of OpenSandbox servers: finds the server, and asks and tells it what [`crate::entrypoint`] or
//! [`crate::execd`] says, or what is the same however commands are started.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ayatori_controller::backend::Backend;
use ayatori_controller::references::{References, SecretScope};
use ayatori_controller::telemetry::Telemetry;
use ayatori_core::admission::Admissible;
use ayatori_core::execution::{
    Answer, ExecutionName, Prospect, Protocol, Remains, State, Submission, Why, Windows,
};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::job_class::JobClass;
use ayatori_core::lifecycle::Settings;
use ayatori_core::names::OPENSANDBOX_CONTROLLER;
use ayatori_core::parameters::{CommandMode, OpenSandboxExecutionParameters, RequestMapping};
use ayatori_core::stage::{Accepted, Attempted, Closed, Departing, Recorded};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use jiff::{SignedDuration, Timestamp};
use kube::Client as ApiClient;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;

use crate::client;
use crate::entrypoint;
use crate::execd;
use crate::failure::Failure;
use crate::keys::Keys;
use crate::prospect::prospect;
use crate::reached::{Reached, recorded_id, uid};
use crate::reasons::{scheduling, unavailable, unobservable, unreached};
use crate::request;
use crate::server::{self, Manners, Servers};
use crate::slots::Slot;

/// What the OpenSandbox adapter can be told on its command line.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "opensandbox")] // clap names it after the type, and the adapter's own are Options too
pub struct Options {
    /// Allow parameters with `allowInsecureHTTP` to name an `http` endpoint. API keys and Secrets then cross the
    /// network readable: for isolated development only.
    #[arg(long)]
    pub allow_insecure_http: bool,

    /// Read Secrets that Jobs refer to, in all namespaces, for classes that allow that. Needs the right to get
    /// Secrets. Without this and --secret-namespaces such Jobs are refused with ReferenceForbidden.
    #[arg(long)]
    pub allow_secrets: bool,

    /// Read them in these namespaces only.
    #[arg(long, value_delimiter = ',', conflicts_with = "allow_secrets")]
    pub secret_namespaces: Vec<String>,

    /// Endpoints whose runtime is known to honour resource requests: only there `requestMapping: Native` is Ready.
    #[arg(long, value_delimiter = ',')]
    pub native_request_endpoints: Vec<String>,

    /// Seconds after its attempt was stored in which a create request may be sent.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=300))]
    pub send_window_seconds: u32,

    /// Seconds after its attempt was stored in which the command may start. Has to cover the pull of the image; a
    /// Job whose create request was never answered is held up for as long.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub fence_seconds: u32,

    /// Seconds by which the clocks of the adapter and of sandboxes may differ.
    #[arg(long, default_value_t = 30)]
    pub clock_skew_seconds: u32,

    /// Seconds for which a created sandbox may be missing from the server's lists.
    #[arg(long, default_value_t = 60)]
    pub list_lag_seconds: u32,

    /// Seconds for which the sandbox of an ended Job is kept, so that its log can be collected.
    #[arg(long, default_value_t = 30)]
    pub log_window_seconds: u32,

    /// Seconds for which a sandbox waits for its command, where commands are started in sandboxes that are up already
    /// (commandMode Execd). Then it ends, and the command is not started any more.
    #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u32).range(10..=86_400))]
    pub hold_seconds: u32,

    /// Milliseconds between two looks into a sandbox in which a command runs (commandMode Execd): lists do not show
    /// that it has ended.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(50..))]
    pub inside_poll_milliseconds: u32,

    /// Milliseconds between two lists of a server's sandboxes, while there are any to look after.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(50..))]
    pub poll_milliseconds: u32,

    /// Seconds a server may take for any answer, but for that to a create request.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub call_timeout_seconds: u32,

    /// Seconds a server may take to answer a create request: it pulls the image before it answers.
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u32).range(1..))]
    pub create_timeout_seconds: u32,

    /// How many create requests one server is sent at a time.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub create_concurrency: u16,
}

/// What a command line says that says nothing.
impl Default for Options {
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct Silent {
            #[command(flatten)]
            options: Options,
        }
        <Silent as clap::Parser>::parse_from(["adapter"]).options
    }
}

impl Options {
    /// The settings of the loop that follow from these options.
    pub fn settings(&self, general: Settings) -> Settings {
        let lag = SignedDuration::from_secs(self.list_lag_seconds.into());
        Settings {
            margin: self.clock_skew().saturating_add(lag),
            ..general
        }
    }

    fn clock_skew(&self) -> SignedDuration {
        SignedDuration::from_secs(self.clock_skew_seconds.into())
    }

    fn send_window(&self) -> SignedDuration {
        SignedDuration::from_secs(self.send_window_seconds.into())
    }

    fn secret_scope(&self) -> SecretScope {
        match (self.allow_secrets, self.secret_namespaces.as_slice()) {
            (true, _) => SecretScope::Everywhere,
            (false, namespaces) => SecretScope::Namespaces(namespaces.to_vec()),
        }
    }

    fn hold(&self) -> Duration {
        Duration::from_secs(self.hold_seconds.into())
    }

    fn manners(&self) -> Manners {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Manners {
            client: client::Options {
                call: seconds(self.call_timeout_seconds),
                create: seconds(self.create_timeout_seconds),
                ..client::Options::default()
            },
            poll: Duration::from_millis(self.poll_milliseconds.into()),
            inside: Duration::from_millis(self.inside_poll_milliseconds.into()),
            creates: self.create_concurrency.into(),
        }
    }
}

/// The backend of all OpenSandbox servers that parameters name.
pub struct OpenSandboxBackend {
    servers: Servers,
    references: References,
    options: Options,
    controller: String,
    /// Taken by the one who listens.
    changes: Mutex<Option<mpsc::UnboundedReceiver<ObjectRef<Job>>>>,
    class_changes: Mutex<Option<mpsc::UnboundedReceiver<()>>>,
}

impl OpenSandboxBackend {
    /// A backend that has connected to nothing.
    pub fn new(client: &ApiClient, options: &Options) -> Self {
        let (tell, changes) = mpsc::unbounded_channel();
        let (tell_classes, class_changes) = mpsc::unbounded_channel();
        let keys = Keys::new(client.clone(), tell_classes);
        Self {
            servers: Servers::new(keys, options.manners(), tell),
            references: References::new(client.clone(), options.secret_scope()),
            options: options.clone(),
            controller: OPENSANDBOX_CONTROLLER.to_owned(),
            changes: Mutex::new(Some(changes)),
            class_changes: Mutex::new(Some(class_changes)),
        }
    }

    /// The same, whose requests are told of there.
    #[must_use]
    pub fn telling(self, telemetry: Telemetry) -> Self {
        Self {
            servers: self.servers.telling(telemetry),
            ..self
        }
    }

    /// The same as the backend of another controller's classes, out of the way of whoever owns the usual ones.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn called(self, controller: impl Into<String>) -> Self {
        let controller = controller.into();
        Self { controller, ..self }
    }

    /// The server that holds what a Job has, with a client for it.
    async fn reach(&self, parameters: Option<&OpenSandboxExecutionParameters>) -> Result<Reached, Why> {
        let parameters = parameters.ok_or_else(parameters_gone)?;
        // They may have been edited since the class was judged: no key and no Secret goes where they must not.
        self.validate(parameters)?;
        let server = self.servers.of(parameters);
        let client = server.client().await?;
        Ok(Reached { server, client })
    }

    /// Where sandboxes may wait of a Job of which nothing is recorded, and their ids. They run nothing and end by
    /// themselves, so a server that cannot be asked holds nobody up.
    async fn unrecorded(
        &self,
        job: &Job,
        parameters: Option<&OpenSandboxExecutionParameters>,
    ) -> Option<(Reached, Vec<String>)> {
        // Where creating is starting, no create request is sent before an attempt is stored.
        let parameters = parameters.filter(|parameters| mode(parameters) == CommandMode::Execd)?;
        let found = async {
            let reached = self.reach(Some(parameters)).await?;
            let left = reached.left(job, None).await?;
            Ok::<_, Why>((reached, left))
        };
        let found = found.await;
        if let Err(why) = &found {
            tracing::info!(
                reason = why.reason,
                message = why.message,
                "sandboxes that may wait for nothing are left to end by themselves"
            );
        }
        found.ok()
    }

    async fn can_execute(
        &self,
        job: &Job,
        admissible: &Admissible,
        parameters: &OpenSandboxExecutionParameters,
    ) -> Result<Result<(), Why>, Why> {
        let possible = request::check(job, &admissible.resources, &parameters.spec)
            .and_then(|()| execd::check(job, admissible, &parameters.spec));
        if let Err(why) = possible {
            return Ok(Err(why));
        }
        if let Err(why) = self.references.check(job).await? {
            return Ok(Err(why));
        }
        // Values are looked at now, so that what is wrong with them is said before the Job is accepted, and again
        // when they are sent.
        match mode(parameters) {
            CommandMode::Entrypoint => {
                let words = request::Words::of(job, &parameters.spec, &self.references).await?;
                Ok(words.map(drop))
            }
            CommandMode::Execd => execd::can_start(job, &parameters.spec, &self.references).await,
        }
    }
}

/// Whether a sandbox of the Job can exist: one was asked for, and its release is not stored.
fn may_hold_something(job: Departing<'_>) -> bool {
    job.execution()
        .is_some_and(|e| e.release_time.is_none() && (e.id.is_some() || e.attempt.is_some()))
}

fn parameters_gone() -> Why {
    Why::new(
        "ParametersReplaced",
        "the parameters object that was recorded when the Job was accepted is gone, and with it the way to its server",
    )
}

/// How commands of a class with these parameters are started.
fn mode(parameters: &OpenSandboxExecutionParameters) -> CommandMode {
    parameters.spec.command_mode.unwrap_or(CommandMode::Entrypoint)
}

/// How the command of a recorded execution was started, whatever the parameters say now: only what is held has a name
/// of its own inside.
fn mode_of(job: Recorded<'_>) -> CommandMode {
    match job.uid() {
        Some(_) => CommandMode::Execd,
        None => CommandMode::Entrypoint,
    }
}

fn once<T: Send + 'static>(receiver: &Mutex<Option<mpsc::UnboundedReceiver<T>>>) -> BoxStream<'static, T> {
    match receiver.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(receiver) => stream::unfold(receiver, async |mut receiver| {
            let next = receiver.recv().await?;
            Some((next, receiver))
        })
        .boxed(),
        None => {
            tracing::error!("changes were asked for twice; only the first one who asked is told of them");
            stream::pending().boxed()
        }
    }
}

impl Backend for OpenSandboxBackend {
    type Parameters = OpenSandboxExecutionParameters;
    type Slot = Slot;

    fn controller_name(&self) -> &str {
        &self.controller
    }

    fn protocol(&self, parameters: &Self::Parameters) -> Protocol {
        match mode(parameters) {
            CommandMode::Execd => Protocol::Hold,
            CommandMode::Entrypoint => Protocol::SingleShot(Windows {
                send: self.options.send_window(),
                fence: SignedDuration::from_secs(self.options.fence_seconds.into()),
            }),
        }
    }

    fn identity(&self, parameters: &Self::Parameters) -> BackendIdentity {
        server::identity(parameters)
    }

    fn validate(&self, parameters: &Self::Parameters) -> Result<(), Why> {
        let spec = &parameters.spec;
        let secure = client::check_endpoint(&spec.endpoint, spec.ca_bundle.as_deref())?;
        let allowed = spec.allow_insecure_http == Some(true) && self.options.allow_insecure_http;
        if !secure && !allowed {
            return Err(Why::new(
                "InvalidEndpoint",
                "spec.endpoint is not https; http needs spec.allowInsecureHTTP and an adapter that runs with \
                 --allow-insecure-http, for isolated development only",
            ));
        }
        if spec.pool_ref.is_none() {
            return Ok(());
        }
        if mode(parameters) != CommandMode::Execd || spec.pool_template.is_none() {
            return Err(Why::new(
                "PoolNotSupported",
                "spec.poolRef needs commandMode Execd, since with a pool the lifecycle API cannot show the end of a \
                 command, and spec.poolTemplate, since the server does not show what its sandboxes have",
            ));
        }
        if spec.allow_secret_env == Some(true) {
            return Err(Why::new(
                "SecretEnvNotAllowed",
                "spec.allowSecretEnv and spec.poolRef exclude each other: a sandbox of a pool may be handed on to the \
                 next who asks, with what a Job has left in it",
            ));
        }
        Ok(())
    }

    async fn probe(&self, _: &JobClass, parameters: &Self::Parameters) -> Result<Why, Why> {
        let spec = &parameters.spec;
        if spec.request_mapping == Some(RequestMapping::Native)
            && !self.options.native_request_endpoints.contains(&spec.endpoint)
        {
            return Err(Why::new(
                "RequestsNotHonoured",
                "spec.requestMapping is Native, and this server is not known to honour resource requests; use \
                 AdmissionOnly, or have the endpoint added to the adapter's --native-request-endpoints",
            ));
        }
        let Reached { client, .. } = self.reach(Some(parameters)).await?;
        let reachable = Why::new("BackendReachable", "the server answers and accepts the API key");
        match client.probe().await {
            Ok(()) => {}
            // It is there, and knows us.
            Err(Failure::Busy { .. }) => return Ok(reachable),
            Err(failure @ Failure::Unauthorized { .. }) => {
                return Err(Why::new("AuthenticationFailed", failure.to_string()));
            }
            Err(failure) => return Err(Why::new("BackendUnreachable", failure.to_string())),
        }
        let unreachable = |failure: Failure| Why::new("BackendUnreachable", failure.to_string());
        match (mode(parameters), &spec.pool_ref) {
            (CommandMode::Entrypoint, _) if client.has_pools().await.map_err(unreachable)? => Err(Why::new(
                "RuntimeCannotShowEnd",
                "the server runs sandboxes in Kubernetes, where its API cannot show how a command ended; use \
                 commandMode Execd",
            )),
            (CommandMode::Execd, Some(pool)) if !client.has_pool(pool).await.map_err(unreachable)? => {
                Err(Why::new(
                    "PoolNotSupported",
                    format!("the server has no pool {pool:?}; create it there, or correct spec.poolRef"),
                ))
            }
            (CommandMode::Entrypoint | CommandMode::Execd, _) => Ok(reachable),
        }
    }

    async fn admit(
        &self,
        job: &Job,
        admissible: &Admissible,
        parameters: &Self::Parameters,
    ) -> Result<Result<(), Why>, Why> {
        self.can_execute(job, admissible, parameters).await
    }

    async fn survey(
        &self,
        accepted: Accepted<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> Result<Prospect, Why> {
        let job = accepted.job();
        let attempted = job
            .status
            .as_ref()
            .and_then(|s| s.execution.as_ref())
            .is_some_and(|e| e.attempt.is_some());
        let trouble = if attempted { unobservable } else { scheduling };
        let parameters = parameters.ok_or_else(parameters_gone).map_err(trouble)?;
        let reached = self.reach(Some(parameters)).await.map_err(trouble)?;
        if !attempted && mode(parameters) == CommandMode::Execd {
            let found = execd::survey(accepted, parameters, &reached, self.options.hold()).await;
            return found.map_err(trouble);
        }
        if attempted {
            // What the request made may show at any time: the next list that has it tells the Job. What is away is
            // said by the look that follows.
            let object = ObjectRef::from_obj(job);
            let _ = reached.server.sightings.follow(&uid(job), object, "");
        }
        let sandboxes = reached.all_of(&uid(job)).await.map_err(trouble)?;
        Ok(prospect(job, &sandboxes, server::identity(parameters)))
    }

    fn reserve(&self, job: Accepted<'_>, parameters: &Self::Parameters) -> Result<Slot, Why> {
        self.servers
            .of(parameters)
            .slots
            .take(ObjectRef::from_obj(job.job()))
    }

    async fn prepare(&self, job: Accepted<'_>, parameters: &Self::Parameters) -> Answer {
        match self.reach(Some(parameters)).await {
            Ok(reached) => {
                execd::prepare(job, parameters, &reached, &self.references, self.options.hold()).await
            }
            Err(why) => unreached(why),
        }
    }

    async fn submit(&self, job: Attempted<'_>, parameters: &Self::Parameters) -> Submission {
        let reached = match self.reach(Some(parameters)).await {
            Ok(reached) => reached,
            Err(why) => return Submission::Refused(scheduling(why)),
        };
        let lead = self
            .options
            .send_window()
            .saturating_add(self.options.clock_skew());
        entrypoint::submit(job, parameters, &reached, &self.references, lead)
            .await
            .map_or_else(|submission| submission, Submission::Created)
    }

    async fn discard(
        &self,
        _: Attempted<'_>,
        name: &ExecutionName,
        parameters: Option<&Self::Parameters>,
    ) -> Answer {
        match self.reach(parameters).await {
            Ok(reached) => reached
                .delete(&name.id)
                .await
                .map_or_else(unavailable, |()| Answer::Done),
            Err(why) => unreached(why),
        }
    }

    async fn start(&self, job: Recorded<'_>, parameters: Option<&Self::Parameters>) -> Answer {
        let Some(parameters) = parameters else {
            return Answer::Unavailable(parameters_gone());
        };
        match self.reach(Some(parameters)).await {
            Ok(reached) => execd::start(job, parameters, &reached, &self.references).await,
            Err(why) => unreached(why),
        }
    }

    async fn observe(&self, job: Recorded<'_>, parameters: Option<&Self::Parameters>) -> State {
        let state = async {
            let reached = self.reach(parameters).await?;
            let state = match mode_of(job) {
                CommandMode::Entrypoint => entrypoint::observe(job, &reached).await,
                CommandMode::Execd => execd::observe(job, &reached).await,
            };
            if state.is_err() {
                reached.server.is_not_gone(job.id());
            }
            state
        };
        state
            .await
            .unwrap_or_else(|why| State::Unobservable(unobservable(why)))
    }

    async fn renew(&self, job: Recorded<'_>, parameters: Option<&Self::Parameters>) -> Answer {
        match self.reach(parameters).await {
            Ok(reached) => reached.renew(job).await.unwrap_or_else(unavailable),
            Err(why) => unreached(why),
        }
    }

    async fn stop(&self, job: Recorded<'_>, parameters: Option<&Self::Parameters>) -> Answer {
        let stopped = async {
            let reached = self.reach(parameters).await?;
            let stopped = match mode_of(job) {
                CommandMode::Entrypoint => entrypoint::stop(job, &reached).await,
                CommandMode::Execd => execd::stop(job, &reached).await,
            };
            Ok(stopped.unwrap_or_else(unavailable))
        };
        stopped.await.unwrap_or_else(unreached)
    }

    async fn release(&self, job: Closed<'_>, parameters: Option<&Self::Parameters>) -> Answer {
        let Some(execution) = job.execution().filter(|e| e.id.is_some() || e.attempt.is_some()) else {
            return match self.unrecorded(job.job(), parameters).await {
                Some((reached, left)) if !left.is_empty() => {
                    reached.clear(job.job(), None).await.unwrap_or_else(unreached)
                }
                Some(_) | None => Answer::Done,
            };
        };
        let window = SignedDuration::from_secs(self.options.log_window_seconds.into());
        let left = window.saturating_sub(Timestamp::now().duration_since(job.finished_at()));
        if left.is_positive() {
            return Answer::Later(left);
        }
        let released = async {
            let reached = self.reach(parameters).await?;
            reached.clear(job.job(), execution.id.as_deref()).await
        };
        released.await.unwrap_or_else(unreached)
    }

    async fn remains(
        &self,
        job: Departing<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> Result<Remains, Why> {
        let (reached, left) = if may_hold_something(job) {
            let reached = self.reach(parameters).await?;
            let left = reached.left(job.job(), recorded_id(job)).await?;
            (reached, left)
        } else {
            match self.unrecorded(job.job(), parameters).await {
                Some(found) => found,
                None => return Ok(Remains::Nothing),
            }
        };
        Ok(if left.is_empty() {
            reached.forget(job.job());
            Remains::Nothing
        } else {
            Remains::Something(format!("sandbox {} still exists", left.join(", ")))
        })
    }

    async fn remove(&self, job: Departing<'_>, parameters: Option<&Self::Parameters>) -> Answer {
        let removed = async {
            let reached = self.reach(parameters).await?;
            reached.clear(job.job(), recorded_id(job)).await
        };
        removed.await.unwrap_or_else(unreached)
    }

    fn executions(&self, show: &mut dyn FnMut(&str)) {
        self.servers.executions(show);
    }

    fn changes(&self) -> impl Stream<Item = ObjectRef<Job>> + Send + 'static {
        once(&self.changes)
    }

    fn class_changes(&self) -> impl Stream<Item = Option<String>> + Send + 'static {
        once(&self.class_changes).map(|()| None)
    }
}

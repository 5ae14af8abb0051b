//! The [`Backend`] of OpenSandbox servers: finds the server, and asks and tells it what [`crate::entrypoint`] says, or
//! what is the same however commands are started.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ayatori_controller::backend::Backend;
use ayatori_controller::references::{References, SecretScope};
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
use crate::failure::Failure;
use crate::keys::Keys;
use crate::prospect::prospect;
use crate::reached::{Reached, recorded_id, scheduling, uid, unavailable};
use crate::request;
use crate::server::{self, Manners, Servers, unobservable};
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

    fn manners(&self) -> Manners {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Manners {
            client: client::Options {
                call: seconds(self.call_timeout_seconds),
                create: seconds(self.create_timeout_seconds),
                ..client::Options::default()
            },
            poll: Duration::from_millis(self.poll_milliseconds.into()),
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
        let server = self.servers.of(parameters);
        let client = server.client().await?;
        Ok(Reached { server, client })
    }

    async fn can_execute(
        &self,
        job: &Job,
        admissible: &Admissible,
        parameters: &OpenSandboxExecutionParameters,
    ) -> Result<Result<(), Why>, Why> {
        if let Err(why) = request::check(job, &admissible.resources, &parameters.spec) {
            return Ok(Err(why));
        }
        if let Err(why) = self.references.check(job).await? {
            return Ok(Err(why));
        }
        // Values are looked at now, so that what is wrong with them is said before the Job is accepted, and again
        // when they are sent.
        let words = request::Words::of(job, &parameters.spec, &self.references).await?;
        Ok(words.map(drop))
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

fn hold_only() -> Why {
    Why::new("UnsupportedFeature", "commandMode Execd is not supported yet")
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
        match parameters.spec.command_mode {
            Some(CommandMode::Execd) => Protocol::Hold,
            Some(CommandMode::Entrypoint) | None => Protocol::SingleShot(Windows {
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
        if spec.command_mode == Some(CommandMode::Execd) {
            return Err(hold_only());
        }
        if spec.pool_ref.is_some() {
            return Err(Why::new(
                "PoolNotSupported",
                "spec.poolRef needs commandMode Execd: with a pool the lifecycle API cannot show the end of a command",
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
        match client.has_pools().await {
            Ok(true) => Err(Why::new(
                "RuntimeCannotShowEnd",
                "the server runs sandboxes in Kubernetes, where its API cannot show how a command ended; use \
                 commandMode Execd",
            )),
            Ok(false) => Ok(reachable),
            Err(failure) => Err(Why::new("BackendUnreachable", failure.to_string())),
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
        job: Accepted<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> Result<Prospect, Why> {
        let job = job.job();
        let attempted = job
            .status
            .as_ref()
            .and_then(|s| s.execution.as_ref())
            .is_some_and(|e| e.attempt.is_some());
        let trouble = if attempted { unobservable } else { scheduling };
        let parameters = parameters.ok_or_else(parameters_gone).map_err(trouble)?;
        let reached = self.reach(Some(parameters)).await.map_err(trouble)?;
        let sandboxes = reached.all_of(&uid(job)).await.map_err(trouble)?;
        Ok(prospect(job, &sandboxes, server::identity(parameters)))
    }

    fn reserve(&self, job: Accepted<'_>, parameters: &Self::Parameters) -> Result<Slot, Why> {
        self.servers
            .of(parameters)
            .slots
            .take(ObjectRef::from_obj(job.job()))
    }

    async fn prepare(&self, _: Accepted<'_>, _: &Self::Parameters) -> Answer {
        Answer::Rejected(hold_only())
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
            Err(why) => Answer::Unavailable(why),
        }
    }

    async fn start(&self, _: Recorded<'_>, _: Option<&Self::Parameters>) -> Answer {
        Answer::Rejected(hold_only())
    }

    async fn observe(&self, job: Recorded<'_>, parameters: Option<&Self::Parameters>) -> State {
        let state = async {
            let reached = self.reach(parameters).await?;
            let state = entrypoint::observe(job, &reached).await;
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
            Err(why) => Answer::Unavailable(why),
        }
    }

    async fn stop(&self, job: Recorded<'_>, parameters: Option<&Self::Parameters>) -> Answer {
        match self.reach(parameters).await {
            Ok(reached) => entrypoint::stop(job, &reached).await.unwrap_or_else(unavailable),
            Err(why) => Answer::Unavailable(why),
        }
    }

    async fn release(&self, job: Closed<'_>, parameters: Option<&Self::Parameters>) -> Answer {
        let Some(execution) = job.execution().filter(|e| e.id.is_some() || e.attempt.is_some()) else {
            // No create request was ever stored, so none was sent.
            return Answer::Done;
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
        released.await.unwrap_or_else(Answer::Unavailable)
    }

    async fn remains(
        &self,
        job: Departing<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> Result<Remains, Why> {
        if !may_hold_something(job) {
            return Ok(Remains::Nothing);
        }
        let reached = self.reach(parameters).await?;
        let left = reached.left(job).await?;
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
        removed.await.unwrap_or_else(Answer::Unavailable)
    }

    fn changes(&self) -> impl Stream<Item = ObjectRef<Job>> + Send + 'static {
        once(&self.changes)
    }

    fn class_changes(&self) -> impl Stream<Item = Option<String>> + Send + 'static {
        once(&self.class_changes).map(|()| None)
    }
}

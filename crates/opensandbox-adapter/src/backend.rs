//! The [`Backend`] of OpenSandbox servers: asks a server or what it has shown, lets [`crate::mapping`] and
//! [`crate::prospect`] say what that means, and sends the requests that follow.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ayatori_controller::backend::Backend;
use ayatori_controller::references::{References, SecretScope};
use ayatori_core::admission::Admissible;
use ayatori_core::execution::{
    Answer, ExecutionName, Gone, Prospect, Protocol, Remains, State, Submission, Why, Windows,
};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::job_class::JobClass;
use ayatori_core::lifecycle::{Settings, active_deadline};
use ayatori_core::names::OPENSANDBOX_CONTROLLER;
use ayatori_core::parameters::{CommandMode, OpenSandboxExecutionParameters, RequestMapping};
use ayatori_core::stage::{Accepted, Attempted, Closed, Departing, Recorded};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use jiff::{SignedDuration, Timestamp};
use kube::runtime::reflector::ObjectRef;
use kube::{Client as ApiClient, ResourceExt};
use tokio::sync::mpsc;

use crate::client::{self, Client};
use crate::expiry;
use crate::failure::Failure;
use crate::keys::Keys;
use crate::mapping::{self, Look, Phase};
use crate::metadata;
use crate::prospect::{self, prospect};
use crate::request;
use crate::server::{self, Manners, Server, Servers, unobservable};
use crate::slots::Slot;
use crate::wire::Sandbox;
use crate::wrapper;

/// How long a server is left alone that has no room and does not say for how long.
const NO_ROOM: Duration = Duration::from_secs(5);

/// When a stop that the server has not carried out is looked at again.
const AGAIN: SignedDuration = SignedDuration::from_secs(1);

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

    // -------------------------------------------------------------------------------------------- questions

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

    /// Everything that is known of the recorded sandbox.
    async fn state(&self, job: Recorded<'_>, reached: &Reached) -> Result<State, Why> {
        let Reached { server, client } = reached;
        let (uid, id) = (uid(job.job()), job.id());
        let object = ObjectRef::from_obj(job.job());
        let shown = match server.sightings.follow(&uid, object, id)? {
            Some(sandbox) => Some(sandbox),
            None => reached.look(id).await.map_err(why)?,
        };
        let Some(sandbox) = shown else {
            return self.missing(job, reached).await;
        };
        server.is_not_gone(id);
        if !metadata::is_of(&sandbox.metadata, job.job()) {
            return Ok(State::Unobservable(prospect::foreign(id)));
        }
        let mut look = Look {
            sandbox: &sandbox,
            evidence: None,
            out_of_memory: false,
            at: Timestamp::now(),
            started: job.started(),
            stop_requested: job.stop().is_some(),
            deadline: active_deadline(job.job(), job.accepted().at()),
            renew_at: sandbox
                .expires_at
                .and_then(|at| expiry::renewal(job.job(), job.accepted().at(), at)),
        };
        let needs_evidence = match mapping::phase(&sandbox) {
            Phase::Over(_) | Phase::Expired | Phase::SaidToBeOver => true,
            Phase::Pending | Phase::Up | Phase::Frozen | Phase::Unknown => false,
        };
        if needs_evidence {
            let (log, events) = futures::join!(client.log(id), client.events(id));
            let (Some(log), Some(events)) = (log.map_err(why)?, events.map_err(why)?) else {
                server.sightings.note_gone(id);
                return self.missing(job, reached).await;
            };
            let attempt = metadata::attempt(&sandbox.metadata).unwrap_or_default();
            look.evidence = wrapper::evidence(&log, attempt);
            look.out_of_memory = mapping::says_out_of_memory(&events);
        }
        Ok(mapping::state(&look))
    }

    /// The recorded sandbox is not there. That is proof of its end where we have deleted it, or where the server has
    /// said so for a while and shows nothing else of the Job.
    async fn missing(&self, job: Recorded<'_>, reached: &Reached) -> Result<State, Why> {
        let (server, id) = (&reached.server, job.id());
        let stopped = job.stop().is_some_and(|stop| stop.delivered_time.is_some());
        let for_good = server.is_gone_for_good(id);
        let proven = stopped || (for_good && reached.all_of(&uid(job.job())).await?.is_empty());
        let message = if proven {
            format!("sandbox {id} does not exist any more")
        } else {
            format!(
                "sandbox {id} is not to be found; if it stays so, the Job ends with ExecutionLost within a minute or two"
            )
        };
        Ok(State::Gone(Gone {
            proven,
            why: Why::new("ExecutionNotFound", message),
        }))
    }

    // ---------------------------------------------------------------------------------------------- effects

    async fn create(
        &self,
        job: Attempted<'_>,
        parameters: &OpenSandboxExecutionParameters,
    ) -> Result<ExecutionName, Submission> {
        let refused = |why: Why| Submission::Refused(scheduling(why));
        let Reached { server, client } = self.reach(Some(parameters)).await.map_err(refused)?;
        let words = request::Words::of(job.accepted().job(), &parameters.spec, &self.references).await;
        let words = words.and_then(|words| words).map_err(refused)?;
        let attempt = job.attempt();
        let lead = self
            .options
            .send_window()
            .saturating_add(self.options.clock_skew());
        let fence = wrapper::Fence {
            earliest: earlier(attempt.send_before.0, lead),
            latest: attempt.start_before.0,
        };
        let now = Timestamp::now();
        let request = words.into_request(job, fence, &parameters.spec, server.longest_life(), now);
        let request = request.map_err(refused)?;
        if Timestamp::now() > attempt.send_before.0 {
            return Err(refused(Why::new(
                "BackendUnavailable",
                "what the Job refers to was not read in time to send the create request; trying again",
            )));
        }
        let at = Instant::now();
        match client.create(&request).await {
            Ok(sandbox) => {
                let name = prospect::name(&sandbox.id);
                server.sightings.note(sandbox, at);
                Ok(name)
            }
            Err(failure) => {
                if let Failure::Busy { retry_after, .. } = &failure {
                    server.slots.close_for(retry_after.unwrap_or(NO_ROOM));
                }
                if let Some(seconds) = longest_life(&failure) {
                    server.note_longest_life(seconds);
                }
                Err(if failure.is_certain() {
                    refused(failure.why())
                } else {
                    Submission::Unanswered(failure.why())
                })
            }
        }
    }

    /// Freezes first: what is frozen shows for ever that it had not ended. Only when that is stored may it go.
    async fn end(&self, job: Recorded<'_>, reached: &Reached) -> Result<Answer, Failure> {
        let id = job.id();
        if job.stop().is_some_and(|stop| stop.delivered_time.is_some()) {
            reached.delete(id).await?;
            return Ok(Answer::Done);
        }
        // Whatever the answer is: only a look afterwards shows what became of it.
        let paused = reached.client.pause(id).await;
        let shown = reached.look(id).await?;
        let goes_on = shown.is_some_and(|s| matches!(mapping::phase(&s), Phase::Up | Phase::Pending));
        match paused {
            Err(failure) if goes_on => Err(failure),
            Ok(()) if goes_on => Ok(Answer::Later(AGAIN)),
            Ok(()) | Err(_) => Ok(Answer::Done),
        }
    }

    async fn put_off(&self, job: Recorded<'_>, reached: &Reached) -> Result<Answer, Failure> {
        let id = job.id();
        let expiry = expiry::expiry(job.job(), job.accepted().at(), Timestamp::now());
        reached.client.renew(id, expiry).await?;
        // What was seen has the old expiry.
        reached.look(id).await?;
        Ok(Answer::Done)
    }

    async fn clear(&self, job: &Job, recorded: Option<&str>, reached: &Reached) -> Result<Answer, Why> {
        if let Some(id) = recorded {
            reached.delete(id).await.map_err(why)?;
        }
        for sandbox in reached.all_of(&uid(job)).await? {
            if metadata::is_of(&sandbox.metadata, job) {
                reached.delete(&sandbox.id).await.map_err(why)?;
            }
        }
        reached.server.sightings.forget(&uid(job));
        Ok(Answer::Done)
    }

    /// What there is of a Job, by the ids of sandboxes.
    async fn left(&self, job: Departing<'_>, reached: &Reached) -> Result<Vec<String>, Why> {
        let mut left: Vec<_> = reached
            .all_of(&uid(job.job()))
            .await?
            .into_iter()
            .filter(|sandbox| metadata::is_of(&sandbox.metadata, job.job()))
            .map(|sandbox| sandbox.id)
            .collect();
        // A list that does not show it is no proof.
        if let Some(id) = recorded_id(job)
            && !left.iter().any(|known| known == id)
            && reached.look(id).await.map_err(why)?.is_some()
        {
            left.push(id.to_owned());
        }
        Ok(left)
    }
}

/// A server, and a client with its key of now.
struct Reached {
    server: Arc<Server>,
    client: Client,
}

impl Reached {
    /// One sandbox, as the server shows it now.
    async fn look(&self, id: &str) -> Result<Option<Arc<Sandbox>>, Failure> {
        let at = Instant::now();
        let shown = self.client.get(id).await?;
        if shown.is_none() {
            self.server.sightings.note_gone(id);
        }
        Ok(shown.map(|sandbox| self.server.sightings.note(sandbox, at)))
    }

    /// All sandboxes that carry the Job's UID.
    async fn all_of(&self, job_uid: &str) -> Result<Vec<Sandbox>, Why> {
        let listing = self.client.list(&metadata::of_job(job_uid)).await.map_err(why)?;
        if listing.one_page {
            return Ok(listing.sandboxes);
        }
        Err(Why::new(
            "BackendUnavailable",
            "the server lists the sandboxes of one Job on more than one page, which proves nothing of what is missing",
        ))
    }

    /// Deletes a sandbox with everything that runs in it, and sees it gone.
    async fn delete(&self, id: &str) -> Result<(), Failure> {
        self.client.delete(id).await?;
        if self.look(id).await?.is_some() {
            return Err(Failure::unanswered(format!(
                "the server said that it deleted sandbox {id}, and still shows it"
            )));
        }
        Ok(())
    }
}

fn uid(job: &Job) -> String {
    job.uid().unwrap_or_default()
}

fn recorded_id(job: Departing<'_>) -> Option<&str> {
    job.execution()?.id.as_deref()
}

/// Whether a sandbox of the Job can exist: one was asked for, and its release is not stored.
fn may_hold_something(job: Departing<'_>) -> bool {
    job.execution()
        .is_some_and(|e| e.release_time.is_none() && (e.id.is_some() || e.attempt.is_some()))
}

fn why(failure: Failure) -> Why {
    failure.why()
}

/// What a Job that is not started says of trouble with its server.
fn scheduling(why: Why) -> Why {
    let reason = match why.reason.as_str() {
        "BackendUnreachable" | "SecretNotFound" | "SecretKeyNotFound" | "InvalidCredentials" => {
            "BackendUnavailable"
        }
        "AuthenticationFailed" => "BackendForbidden",
        other => other,
    };
    Why::new(reason, why.message)
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

/// The longest life that the server gives a sandbox, where it refused a longer one.
fn longest_life(failure: &Failure) -> Option<u64> {
    let Failure::Refused { message, .. } = failure else {
        return None;
    };
    let (_, rest) = message.split_once("exceeds configured maximum of ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|seconds| *seconds >= expiry::SHORTEST)
}

fn earlier(from: Timestamp, by: SignedDuration) -> Timestamp {
    from.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

fn unavailable(failure: Failure) -> Answer {
    Answer::Unavailable(scheduling(failure.why()))
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
        self.create(job, parameters)
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
            let state = self.state(job, &reached).await;
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
            Ok(reached) => self.put_off(job, &reached).await.unwrap_or_else(unavailable),
            Err(why) => Answer::Unavailable(why),
        }
    }

    async fn stop(&self, job: Recorded<'_>, parameters: Option<&Self::Parameters>) -> Answer {
        match self.reach(parameters).await {
            Ok(reached) => self.end(job, &reached).await.unwrap_or_else(unavailable),
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
            self.clear(job.job(), execution.id.as_deref(), &reached).await
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
        let left = self.left(job, &reached).await?;
        Ok(if left.is_empty() {
            reached.server.sightings.forget(&uid(job.job()));
            Remains::Nothing
        } else {
            Remains::Something(format!("sandbox {} still exists", left.join(", ")))
        })
    }

    async fn remove(&self, job: Departing<'_>, parameters: Option<&Self::Parameters>) -> Answer {
        let removed = async {
            let reached = self.reach(parameters).await?;
            self.clear(job.job(), recorded_id(job), &reached).await
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

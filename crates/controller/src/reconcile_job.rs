//! The loop of a Job: decide, do exactly that, decide again, until there is nothing to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ayatori_core::admission;
use ayatori_core::conditions::{self, FINISHED};
use ayatori_core::execution::{Answer, Submission, Why};
use ayatori_core::job::{Job, JobStatus};
use ayatori_core::job_class::JobClass;
use ayatori_core::lifecycle::{self, Asked, Done, Effect, Facts, Live, Question, Settings, Step, Wait};
use ayatori_core::names::EXECUTION_FINALIZER;
use ayatori_core::ownership::{self, Ownership};
use ayatori_core::report;
use ayatori_core::stage::{Accepted, Stage};
use ayatori_core::ttl;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tracing::{Instrument, field};

use crate::backend::Backend;
use crate::backoff::Backoff;
use crate::caches::Caches;
use crate::desks::{Desk, Desks, Purpose};
use crate::events::Storyteller;
use crate::failure::{WriteError, brief};
use crate::kept::{Kept, class_of};
use crate::latest::Latest;
use crate::lease::Leadership;
use crate::status_writer::StatusWriter;
use crate::telemetry::job_trace::JobTrace;
use crate::telemetry::traces::Traces;
use crate::telemetry::{Metrics, stages};

/// More steps than any pass takes. A pass that needs more is broken, and must not spin.
const STEPS: usize = 40;
/// How long one pass may take in all, a create request apart, which has a limit of its own.
const PASS: Duration = Duration::from_secs(120);
/// How often what became of a create request is tried to be stored.
const CHANCES: u8 = 5;
/// How long to wait before deciding again on what turned out to be old, if no watch event comes first.
const STALE: Duration = Duration::from_secs(1);

/// Everything the loop of Jobs needs.
pub struct JobContext<B: Backend> {
    /// The backend.
    pub backend: Arc<B>,
    /// For live reads.
    pub client: Client,
    /// Local copies.
    pub caches: Arc<Caches<B::Parameters>>,
    /// For writes to Jobs this controller owns.
    pub writer: StatusWriter,
    /// For writes to Jobs nobody owns.
    pub deputy: Deputy,
    /// Events.
    pub storyteller: Storyteller,
    /// Configuration.
    pub settings: Settings,
    /// Instruments.
    pub metrics: Metrics,
    /// Where spans go, if anywhere.
    pub(crate) traces: Option<Traces>,
    /// Our own writes that the cache does not show yet.
    pub latest: Latest<Job>,
    /// Failures per Job.
    pub backoff: Backoff<ObjectRef<Job>>,
    /// Who may work at the same time.
    pub desks: Arc<Desks>,
}

/// The right to speak for objects that nobody owns: one process among all adapters has it.
#[derive(Clone)]
pub struct Deputy {
    /// Whether this process has it.
    pub leadership: Leadership,
    /// Its writer.
    pub writer: StatusWriter,
}

/// Looks at one Job until there is nothing to do, and says when to look again if nothing changes until then.
pub(crate) async fn reconcile<B: Backend>(
    job: ObjectRef<Kept>,
    desk: Desk,
    context: Arc<JobContext<B>>,
) -> Option<Duration> {
    let current = context.caches.jobs.get(&job)?;
    // Not unpacked before there is a place: a Job that waits costs next to nothing.
    let current = Arc::new(current.whole());
    Box::pin(told(current, &context, desk)).await
}

/// Works, and sees to it that what is said and sent meanwhile tells of which Job it is.
async fn told<B: Backend>(cached: Arc<Job>, context: &JobContext<B>, desk: Desk) -> Option<Duration> {
    let name = cached.name_any();
    let (namespace, uid) = (cached.namespace(), cached.uid());
    // Of the highest level, so that whatever is written tells of it.
    let span = tracing::error_span!("reconcile", namespace, job = name, uid, trace_id = field::Empty);
    let traces = context.traces.as_ref();
    let traced = traces.and_then(|traces| Some((traces, span.in_scope(|| JobTrace::of(&cached))?)));
    if let Some((_, trace)) = &traced {
        span.record("trace_id", trace.id.to_string());
    }
    let work = work(cached, context, desk);
    match traced {
        Some((traces, trace)) => traces.look(trace, work).instrument(span).await,
        None => work.instrument(span).await,
    }
}

async fn work<B: Backend>(cached: Arc<Job>, context: &JobContext<B>, desk: Desk) -> Option<Duration> {
    let _works = context.metrics.works("job");
    let key = ObjectRef::from_obj(&*cached);
    let result = passes(cached, context, desk).await;
    match result {
        Ok(Wait::Until(at)) => {
            // Woken while it was to be left alone, it has not succeeded in what it failed in.
            if context.backoff.left(&key).is_none() {
                context.backoff.succeeded(&key);
            }
            at.map(until)
        }
        Ok(Wait::Backoff(limit)) => {
            let wait = context.backoff.failed(&key);
            Some(limit.map_or(wait, |at| wait.min(until(at))))
        }
        Err(WriteError::Stale | WriteError::NotLeading) => Some(STALE),
        Err(error @ (WriteError::Api { .. } | WriteError::Timeout)) => {
            context.metrics.failed("job", error.reason());
            tracing::warn!(%error, "a pass failed");
            Some(context.backoff.failed(&key))
        }
    }
}

/// One pass, and another one after each create request. Whoever creates needs no desk meanwhile: a backend may
/// take minutes, and the other Jobs of the class must not wait for that.
async fn passes<B: Backend>(
    cached: Arc<Job>,
    context: &JobContext<B>,
    desk: Desk,
) -> Result<Wait, WriteError> {
    let mut pass = Pass {
        context,
        facts: Facts::default(),
        parameters: None,
        slot: None,
        chances: CHANCES,
        attempting: false,
    };
    let mut job = context.latest.freshest(cached);
    let mut desk = Some(desk);
    loop {
        let began = Instant::now();
        let outcome = tokio::time::timeout(PASS, pass.run(job.clone()))
            .await
            .unwrap_or(Err(WriteError::Timeout));
        context.metrics.reconciled("job", began.elapsed());
        job = match outcome {
            Ok(Outcome::Wait(wait)) => return Ok(wait),
            Ok(Outcome::Submit(attempted)) => {
                drop(desk);
                pass.submit(&attempted).await;
                // Also without one: what was begun is finished.
                let desks = &context.desks;
                let room = desks.room(class_of(&attempted), Purpose::of(&attempted));
                desk = desks.free(&room).await;
                attempted
            }
            Err(error) => pass.again(&job, error).await?,
        };
    }
}

/// What a pass came to.
enum Outcome {
    /// There is nothing to do now.
    Wait(Wait),
    /// The create request of this Job's attempt is to be sent.
    Submit(Arc<Job>),
}

fn until(at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(Timestamp::now()))
        .unwrap_or_default()
        .max(Duration::from_millis(20))
}

impl<B: Backend> JobContext<B> {
    fn wrote(&self, base: &Job, stored: Job) -> Arc<Job> {
        let stored = Arc::new(stored);
        self.latest.wrote(base, stored.clone());
        stored
    }

    fn tell(&self, before: &Job, after: &Job) {
        let Some(status) = &after.status else { return };
        for tale in report::tales(before.status.as_ref(), status) {
            self.storyteller.tell(tale, after.object_ref(&()));
        }
        if let Some(traces) = &self.traces {
            traces.wrote(before.status.as_ref(), after);
        }
        let class = status.resolved_job_class.as_ref().map_or("", |c| c.name.as_str());
        for stage in stages::ended(created(after), before.status.as_ref(), status) {
            let took = stage.ended.duration_since(stage.began);
            self.metrics.reached(class, stage.name, took.unsigned_abs());
        }
        let finished = |s: &JobStatus| conditions::is_true(&s.conditions, FINISHED);
        if let Some(result) = status
            .result
            .as_ref()
            .filter(|_| !before.status.as_ref().is_some_and(finished))
        {
            self.metrics.finished(class, result);
            tracing::info!(
                outcome = ?result.outcome, reason = result.reason, exit_code = result.exit_code, "finished"
            );
        }
    }
}

/// What one pass has learned. Nothing of it outlives the pass, so a crash forgets nothing that matters.
struct Pass<'a, B: Backend> {
    context: &'a JobContext<B>,
    facts: Facts,
    /// The parameters object as read live before the first create.
    parameters: Option<Arc<B::Parameters>>,
    /// The right to create.
    slot: Option<B::Slot>,
    /// How often what was learned may still be stored on a newer copy of the Job.
    chances: u8,
    /// Whether a write of this pass's own attempt was sent.
    attempting: bool,
}

impl<B: Backend> Pass<'_, B> {
    async fn run(&mut self, mut job: Arc<Job>) -> Result<Outcome, WriteError> {
        let context = self.context;
        for _ in 0..STEPS {
            let classes = context.caches.classes.state();
            let Some(namespace) = context
                .caches
                .namespaces
                .get(&ObjectRef::new(&job.namespace().unwrap_or_default()))
            else {
                return Err(WriteError::Stale);
            };
            let selection = ownership::select(&job, namespace.annotations(), classes.iter().map(|c| &**c));
            let now = Timestamp::now();
            let (step, writer) = match ownership::of_job(
                &job,
                context.backend.controller_name(),
                &selection,
                classes.iter().map(|c| &**c),
            ) {
                Ownership::Owned(owned) => {
                    self.read_caches(&job, owned.class(), namespace.labels());
                    (
                        lifecycle::decide(&owned, &self.facts, &context.settings, now),
                        &context.writer,
                    )
                }
                Ownership::Unowned(unowned) if context.deputy.leadership.holds() => {
                    (lifecycle::decide_unowned(&unowned, now), &context.deputy.writer)
                }
                Ownership::Unowned(_) | Ownership::Foreign => return Ok(Outcome::Wait(Wait::Until(None))),
            };
            job = match step {
                Step::Wait(wait) => return Ok(Outcome::Wait(wait)),
                Step::Ask(question) => {
                    self.answer(question).await;
                    continue;
                }
                Step::Act(Effect::Submit(_)) => {
                    writer.may_write()?;
                    return Ok(Outcome::Submit(job));
                }
                Step::Act(effect) => {
                    writer.may_write()?;
                    self.act(effect).await;
                    continue;
                }
                Step::Collect => {
                    writer.collect(&job).await?;
                    if let Some(at) = ttl::expiry(&job) {
                        context
                            .metrics
                            .collected(Timestamp::now().duration_since(at).as_secs_f64());
                    }
                    return Ok(Outcome::Wait(Wait::Until(None)));
                }
                Step::Protect => match writer.protect(&*job, EXECUTION_FINALIZER).await {
                    Ok(stored) => context.wrote(&job, stored),
                    // Of a Job that is not accepted, the status can say so.
                    Err(error) if error.is_forbidden() && matches!(Stage::of(&job), Stage::Fresh) => {
                        let message = format!("the adapter must not put its finalizer on the Job: {error}");
                        self.facts.admission = Some(Err(Why::new("BackendForbidden", message)));
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                Step::Unprotect => {
                    writer.unprotect(&*job, EXECUTION_FINALIZER).await?;
                    context.latest.forget(&job.uid().unwrap_or_default());
                    return Ok(Outcome::Wait(Wait::Until(None)));
                }
                Step::Report(status) => {
                    self.attempting |= self.is_mine(&status);
                    let stored = match writer.report_job(&job, &status).await {
                        Ok(stored) => stored,
                        Err(error) => {
                            self.say_unstorable(&job, writer, &error).await;
                            return Err(error);
                        }
                    };
                    self.claim(&stored);
                    context.tell(&job, &stored);
                    context.wrote(&job, stored)
                }
            };
        }
        context.metrics.failed("job", "TooManySteps");
        tracing::error!("a pass did not come to an end; this is a bug");
        Ok(Outcome::Wait(Wait::Backoff(None)))
    }

    /// What the definitions in the cluster would not keep is not done without, and the Job says in what they do keep
    /// that it waits for newer ones. The pass has failed in any case.
    async fn say_unstorable(&self, job: &Job, writer: &StatusWriter, error: &WriteError) {
        let Some(fields) = error.unknown_fields() else {
            return;
        };
        let message = format!(
            "the definitions in this cluster are older than the adapter and would not keep all of the Job's state \
             ({fields}); upgrade execution-api"
        );
        let Some(status) = lifecycle::unstorable(job, message, Timestamp::now()) else {
            return;
        };
        // Said again with the next try.
        if let Ok(stored) = writer.report_job(job, &status).await {
            self.context.tell(job, &stored);
            self.context.wrote(job, stored);
        }
    }

    fn read_caches(
        &mut self,
        job: &Job,
        class: Option<&JobClass>,
        labels: &std::collections::BTreeMap<String, String>,
    ) {
        self.facts.namespace_labels = labels.clone();
        self.facts.unknown_fields = self.context.caches.unknown.of(&job.metadata);
        let left = self.context.backoff.left(&ObjectRef::from_obj(job));
        self.facts.hold_off = left.and_then(|left| Timestamp::now().checked_add(left).ok());
        self.facts.backend = self
            .recorded_parameters(job)
            .map(|parameters| self.context.backend.identity(&parameters));
        self.facts.parameters_uid = class
            .and_then(|class| self.cached_parameters(class))
            .filter(|p| p.meta().deletion_timestamp.is_none())
            .and_then(|p| p.uid());
        if self.facts.fresh_id.is_empty() {
            self.facts.fresh_id = fresh_id(job);
        }
    }

    /// The parameters that were recorded when the Job was accepted, as they are now, if that object still exists.
    fn recorded_parameters(&self, job: &Job) -> Option<Arc<B::Parameters>> {
        let recorded = &job.status.as_ref()?.resolved_job_class.as_ref()?.parameters_ref;
        let cached = || {
            let parameters = &self.context.caches.parameters;
            parameters.get(&ObjectRef::new(&recorded.name))
        };
        // What was read live in this pass is newer than the cache.
        let known = self.parameters.clone().or_else(cached)?;
        (known.uid().as_ref() == Some(&recorded.uid)).then_some(known)
    }

    fn cached_parameters(&self, class: &JobClass) -> Option<Arc<B::Parameters>> {
        let reference = &class.spec.parameters_ref;
        let ours = reference.group == B::Parameters::group(&()) && reference.kind == B::Parameters::kind(&());
        ours.then(|| {
            self.context
                .caches
                .parameters
                .get(&ObjectRef::new(&reference.name))
        })
        .flatten()
    }

    /// An attempt that this very process stored, just now, is the only one it may send.
    fn claim(&mut self, stored: &Job) {
        if stored.status.as_ref().is_some_and(|status| self.is_mine(status)) {
            self.facts.mine = Some(self.facts.fresh_id.clone());
        }
    }

    fn is_mine(&self, status: &JobStatus) -> bool {
        let attempt = status.execution.as_ref().and_then(|e| e.attempt.as_ref());
        attempt.is_some_and(|a| a.id == self.facts.fresh_id)
    }

    async fn answer(&mut self, question: Question<'_>) {
        let backend = &self.context.backend;
        let recorded = |job: &Job| self.recorded_parameters(job);
        match question {
            Question::Admission(job, admissible) => {
                let class = job_class(job, &self.context.caches);
                let parameters = class.as_deref().and_then(|class| self.cached_parameters(class));
                self.facts.admission = Some(match parameters {
                    Some(parameters) => backend.admit(job, &admissible, &parameters).await,
                    None => Err(Why::new(
                        "JobClassNotAccepted",
                        "the parameters of the class are not to be seen",
                    )),
                });
            }
            Question::Live(accepted) => self.facts.live = Some(self.look_live(accepted).await),
            Question::Prospect(accepted) => {
                let parameters = recorded(accepted.job());
                let asked_at = Timestamp::now();
                let prospect = backend.survey(accepted, parameters.as_deref()).await;
                self.facts.prospect = Some((asked_at, prospect));
            }
            Question::State(job) => {
                let parameters = recorded(job.job());
                self.facts.state = Some(backend.observe(job, parameters.as_deref()).await);
            }
            Question::Remains(job) => {
                let parameters = recorded(job.job());
                self.facts.remains = Some(backend.remains(job, parameters.as_deref()).await);
            }
        }
    }

    async fn look_live(&mut self, accepted: Accepted<'_>) -> Asked<Live> {
        let recorded = accepted.class();
        let class: Option<JobClass> = self.read(&recorded.name).await?;
        let Some(class) = class.filter(|c| c.uid().as_ref() == Some(&recorded.uid)) else {
            return Ok(Live::Replaced(gone(
                "JobClassReplaced",
                "JobClass",
                &recorded.name,
                &recorded.uid,
            )));
        };
        if let Err(why) = admission::readiness(&class) {
            return Ok(Live::NotReady(why));
        }
        let reference = &recorded.parameters_ref;
        let parameters: Option<B::Parameters> = self.read(&reference.name).await?;
        let Some(parameters) = parameters.filter(|p| p.uid().as_ref() == Some(&reference.uid)) else {
            return Ok(Live::Replaced(gone(
                "ParametersReplaced",
                &reference.kind,
                &reference.name,
                &reference.uid,
            )));
        };
        let backend = &self.context.backend;
        // They may have been edited since the class was judged by them.
        if let Err(why) = backend.validate(&parameters) {
            let message = format!("{} {}: {}", reference.kind, reference.name, why.message);
            return Ok(Live::NotReady(Why::new("JobClassNotReady", message)));
        }
        let slot = match backend.reserve(accepted, &parameters) {
            Ok(slot) => slot,
            Err(why) => return Ok(Live::Busy(why)),
        };
        let live = Live::Matches(backend.protocol(&parameters), backend.identity(&parameters));
        self.slot = Some(slot);
        self.parameters = Some(Arc::new(parameters));
        Ok(live)
    }

    async fn read<K>(&self, name: &str) -> Asked<Option<K>>
    where
        K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let api = Api::<K>::all(self.context.client.clone());
        api.get_opt(name).await.map_err(|error| {
            Why::new(
                "BackendUnavailable",
                format!("{} {name} could not be read: {}", K::kind(&()), brief(&error)),
            )
        })
    }

    /// The Job to decide on again after a write failed. What became of a create request is known to nobody else and
    /// never again, and it stays true whatever was changed of the Job meanwhile. An attempt whose write had no answer
    /// may have been stored all the same: who finds his own there is the one who may send it.
    async fn again(&mut self, job: &Job, error: WriteError) -> Result<Arc<Job>, WriteError> {
        let told = matches!(self.facts.done, Some(Done::Submitted(_)));
        self.chances = match self.chances.checked_sub(1) {
            Some(left) if told || self.attempting => left,
            Some(_) | None => return Err(error),
        };
        if !matches!(error, WriteError::Stale) {
            tokio::time::sleep(STALE).await;
        }
        let namespace = job.namespace().unwrap_or_default();
        let jobs = Api::<Job>::namespaced(self.context.client.clone(), &namespace);
        let now = tokio::time::timeout(PASS, jobs.get_opt(&job.name_any())).await;
        let Ok(Ok(Some(now))) = now else {
            return Err(error);
        };
        if now.uid() != job.uid() {
            return Err(error);
        }
        self.claim(&now);
        // Without it there is nothing to keep.
        if self.facts.mine.is_none() {
            return Err(error);
        }
        Ok(Arc::new(now))
    }

    async fn submit(&mut self, job: &Job) {
        if let Stage::Attempted(attempted) = Stage::of(job) {
            self.act(Effect::Submit(attempted)).await;
        }
    }

    async fn act(&mut self, effect: Effect<'_>) {
        let backend = &self.context.backend;
        let recorded = |job: &Job| self.recorded_parameters(job);
        let done = match effect {
            Effect::Prepare(job) => Done::Prepared(match &self.parameters {
                Some(parameters) => backend.prepare(job, parameters).await,
                None => Answer::Stale,
            }),
            Effect::Submit(job) => Done::Submitted(match &self.parameters {
                Some(parameters) => backend.submit(job, parameters).await,
                None => Submission::Refused(Why::new(
                    "BackendUnavailable",
                    "the parameters were not read; nothing was sent",
                )),
            }),
            Effect::Start(job) => Done::Started(backend.start(job, recorded(job.job()).as_deref()).await),
            Effect::Renew(job) => Done::Renewed(backend.renew(job, recorded(job.job()).as_deref()).await),
            Effect::Stop(job) => Done::Stopped(backend.stop(job, recorded(job.job()).as_deref()).await),
            Effect::Discard(job, name) => {
                let parameters = recorded(job.accepted().job());
                Done::Discarded(backend.discard(job, &name, parameters.as_deref()).await)
            }
            Effect::Release(job) => {
                Done::Released(backend.release(job, recorded(job.job()).as_deref()).await)
            }
            Effect::Remove(job) => Done::Removed(backend.remove(job, recorded(job.job()).as_deref()).await),
        };
        if let Some(why) = trouble(&done) {
            if !OF_THE_JOB.contains(&why.reason.as_str()) {
                self.context.metrics.failed("job", &why.reason);
            }
            tracing::warn!(
                reason = why.reason,
                cause = why.message,
                effect = done.name(),
                "the backend did not do what it was told"
            );
        }
        self.slot = None;
        // What was seen of the backend before the change is old now.
        self.facts.prospect = None;
        self.facts.state = None;
        self.facts.remains = None;
        self.facts.done = Some(done);
    }
}

fn job_class<P: Resource<DynamicType = ()> + Clone + 'static>(
    job: &Job,
    caches: &Caches<P>,
) -> Option<Arc<JobClass>> {
    let namespace = caches.namespaces.get(&ObjectRef::new(&job.namespace()?))?;
    let classes = caches.classes.state();
    match ownership::select(job, namespace.annotations(), classes.iter().map(|c| &**c)) {
        ownership::Selection::Chosen(class) => caches.classes.get(&ObjectRef::from_obj(class)),
        ownership::Selection::Nothing(_) => None,
    }
}

fn created(job: &Job) -> Timestamp {
    let created = job.metadata.creation_timestamp.as_ref();
    created.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

/// Refusals of what a Job asks for. They stand on the Job, for its caller; neither the backend nor this process is in
/// trouble, and nobody is to be woken.
const OF_THE_JOB: [&str; 16] = [
    "BackendAtCapacity",
    "BackendRejected",
    "ConfigMapKeyNotFound",
    "ConfigMapNotFound",
    "ImageAuthNotAllowed",
    "ImagePullFailed",
    "InvalidConfigMapValue",
    "InvalidSecretValue",
    "NameConflict",
    "QuotaExceeded",
    "ReservedEnvName",
    "SecretEnvNotAllowed",
    "SecretKeyNotFound",
    "SecretNotFound",
    "ServiceAccountNotFound",
    "UnsupportedFeature",
];

/// Why an effect was not carried out, if the backend would not or could not.
fn trouble(done: &Done) -> Option<&Why> {
    match done {
        Done::Submitted(Submission::Refused(why) | Submission::Unanswered(why)) => Some(why),
        Done::Submitted(Submission::Created(_)) => None,
        Done::Prepared(answer)
        | Done::Started(answer)
        | Done::Renewed(answer)
        | Done::Stopped(answer)
        | Done::Discarded(answer)
        | Done::Released(answer)
        | Done::Removed(answer) => match answer {
            Answer::Rejected(why) | Answer::Unavailable(why) => Some(why),
            Answer::Done | Answer::Later(_) | Answer::Stale => None,
        },
    }
}

fn gone(reason: &str, kind: &str, name: &str, uid: &str) -> Why {
    Why::new(
        reason,
        format!(
            "{kind} {name} with UID {uid}, which accepted this Job, does not exist any more; nothing was started. \
             Create a new Job to use what has that name now"
        ),
    )
}

/// An id for an attempt that no other process and no earlier pass uses.
fn fresh_id(job: &Job) -> String {
    use std::hash::{BuildHasher, RandomState};
    format!(
        "{:016x}",
        RandomState::new().hash_one((job.uid(), Timestamp::now().as_nanosecond()))
    )
}

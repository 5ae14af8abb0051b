//! The loops of classes and of parameters objects.

use std::convert::Infallible;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ayatori_core::admission;
use ayatori_core::class::{self, Facts, Parameters as Known, ParametersStep, Step, carries};
use ayatori_core::conditions::READY;
use ayatori_core::execution::Why;
use ayatori_core::job::Job;
use ayatori_core::job_class::JobClass;
use ayatori_core::names::{CLASS_FINALIZER, PARAMETERS_FINALIZER};
use ayatori_core::report::Tale;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::Semaphore;
use tracing::Instrument;

use crate::backend::{Backend, Parameters};
use crate::backoff::Backoff;
use crate::caches::Caches;
use crate::events::Storyteller;
use crate::failure::WriteError;
use crate::latest::Latest;
use crate::reconcile_job::Deputy;
use crate::status_writer::StatusWriter;
use crate::telemetry::Metrics;

/// How often the backend of a class is probed.
const PROBE: Duration = Duration::from_secs(30);
/// How soon it is probed again when it was lost.
const PROBE_AGAIN: Duration = Duration::from_secs(3);
/// How long one pass may take in all.
const PASS: Duration = Duration::from_secs(60);
/// How long a probe may take.
const PROBE_LIMIT: Duration = Duration::from_secs(15);
/// How often a blocked deletion is looked at again, beside the changes that wake it.
const BLOCKED: Duration = Duration::from_secs(10);
/// How long to wait before deciding again on what turned out to be old.
const STALE: Duration = Duration::from_secs(1);
/// More steps than any pass takes.
const STEPS: usize = 10;
/// How many objects one LIST page holds.
const PAGE: u32 = 500;

/// Everything the loops of classes and parameters need.
pub struct ClassContext<B: Backend> {
    /// The backend.
    pub backend: Arc<B>,
    /// For live reads.
    pub client: Client,
    /// Local copies.
    pub caches: Arc<Caches<B::Parameters>>,
    /// For writes to classes this controller owns.
    pub writer: StatusWriter,
    /// For writes to classes nobody owns.
    pub deputy: Deputy,
    /// Events.
    pub storyteller: Storyteller,
    /// Instruments.
    pub metrics: Metrics,
    /// Our own writes that the cache does not show yet.
    pub latest: Latest<JobClass>,
    /// The same for parameters objects.
    pub latest_parameters: Latest<B::Parameters>,
    /// Who may look at parameters at the same time.
    pub desks: Semaphore,
    /// Failures per class.
    pub backoff: Backoff<ObjectRef<JobClass>>,
    /// Failures per parameters object.
    pub backoff_parameters: Backoff<ObjectRef<B::Parameters>>,
}

/// Looks at one class until there is nothing to do.
pub async fn reconcile<B: Backend>(
    cached: Arc<JobClass>,
    context: Arc<ClassContext<B>>,
) -> Result<Action, Infallible> {
    let (class, uid) = (cached.name_any(), cached.uid());
    let span = tracing::error_span!("reconcile", class, uid);
    let (key, pass) = (ObjectRef::from_obj(&*cached), pass(cached, &context));
    let work = work("jobclass", &key, pass, &context.backoff, &context.metrics);
    Ok(work.instrument(span).await)
}

/// One pass within its time, told of; and when to look again.
async fn work<K: Eq + Hash + Clone>(
    controller: &'static str,
    key: &K,
    pass: impl Future<Output = Result<Option<Duration>, WriteError>>,
    backoff: &Backoff<K>,
    metrics: &Metrics,
) -> Action {
    let began = Instant::now();
    let _works = metrics.works(controller);
    let result = tokio::time::timeout(PASS, pass)
        .await
        .unwrap_or(Err(WriteError::Timeout));
    metrics.reconciled(controller, began.elapsed());
    match result {
        Ok(again) => {
            backoff.succeeded(key);
            again.map_or_else(Action::await_change, Action::requeue)
        }
        Err(WriteError::Stale | WriteError::NotLeading) => Action::requeue(STALE),
        Err(error @ (WriteError::Api { .. } | WriteError::Timeout)) => {
            metrics.failed(controller, error.reason());
            tracing::warn!(%error, "a pass failed");
            Action::requeue(backoff.failed(key))
        }
    }
}

async fn pass<B: Backend>(
    cached: Arc<JobClass>,
    context: &ClassContext<B>,
) -> Result<Option<Duration>, WriteError> {
    let mut class = context.latest.freshest(cached);
    let mut facts = Facts {
        unknown_fields: context.caches.unknown.of(&class.metadata),
        parameters: Known::Missing,
        readiness: None,
        holders: None,
    };
    for _ in 0..STEPS {
        let parameters = context.parameters(&class);
        facts.parameters = context.known(&class, parameters.as_deref());
        let now = Timestamp::now();
        let Some(step) = class::decide(&class, context.backend.controller_name(), &facts, now) else {
            return context.unowned(&class, now).await;
        };
        let deleting = class.metadata.deletion_timestamp.is_some();
        class = match step {
            Step::Wait => {
                let again = probe_again(&class, now);
                return Ok(Some(if deleting { again.min(BLOCKED) } else { again }));
            }
            Step::AskReadiness => {
                facts.readiness = Some(context.probe(&class, parameters.as_deref()).await);
                continue;
            }
            Step::AskHolders => {
                facts.holders = Some(context.holders(&class).await?);
                continue;
            }
            Step::ProtectParameters => {
                let Some(parameters) = parameters else {
                    return Err(WriteError::Stale);
                };
                let stored = context.writer.protect(&*parameters, PARAMETERS_FINALIZER).await?;
                context.latest_parameters.wrote(&parameters, Arc::new(stored));
                continue;
            }
            Step::Protect => context.wrote(&class, context.writer.protect(&*class, CLASS_FINALIZER).await?),
            Step::Unprotect => {
                context.writer.unprotect(&*class, CLASS_FINALIZER).await?;
                context.latest.forget(&class.uid().unwrap_or_default());
                return Ok(None);
            }
            Step::Report(status) => {
                let stored = context
                    .writer
                    .report(&*class, class.status.as_ref(), &*status)
                    .await?;
                let before = class.status.as_ref().map_or(&[][..], |s| &s.conditions);
                context.tell(before, &status.conditions, &stored);
                context.wrote(&class, stored)
            }
        };
    }
    Err(WriteError::Stale)
}

/// When to probe again. What was lost may have been lost for a moment, in which nothing new is executed: so soon at
/// first, and then after as long again as it has been away.
fn probe_again(class: &JobClass, now: Timestamp) -> Duration {
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    let mut lost = conditions
        .filter(|condition| condition.type_ == READY && condition.status == "False")
        .map(|condition| now.duration_since(condition.last_transition_time.0));
    lost.next_back().map_or(PROBE, |away| {
        Duration::try_from(away)
            .unwrap_or_default()
            .clamp(PROBE_AGAIN, PROBE)
    })
}

impl<B: Backend> ClassContext<B> {
    fn wrote(&self, base: &JobClass, stored: JobClass) -> Arc<JobClass> {
        let stored = Arc::new(stored);
        self.latest.wrote(base, stored.clone());
        stored
    }

    fn parameters(&self, class: &JobClass) -> Option<Arc<B::Parameters>> {
        let cached = self
            .caches
            .parameters
            .get(&ObjectRef::new(&class.spec.parameters_ref.name))?;
        Some(self.latest_parameters.freshest(cached))
    }

    fn known(&self, class: &JobClass, parameters: Option<&B::Parameters>) -> Known {
        let reference = &class.spec.parameters_ref;
        let (group, kind) = (B::Parameters::group(&()), B::Parameters::kind(&()));
        if reference.group != group || reference.kind != kind {
            return Known::Unsupported(format!("{kind} of group {group:?}"));
        }
        match parameters {
            None => Known::Missing,
            Some(p) if p.meta().deletion_timestamp.is_some() => Known::Terminating,
            Some(p) => Known::Present {
                protected: carries(p.meta(), PARAMETERS_FINALIZER),
                problem: self.problem(p),
            },
        }
    }

    fn problem(&self, parameters: &B::Parameters) -> Option<Why> {
        let unknown = admission::unsupported(&self.caches.unknown.of(parameters.meta()));
        unknown.or_else(|| self.backend.validate(parameters).err())
    }

    async fn probe(&self, class: &JobClass, parameters: Option<&B::Parameters>) -> Result<Why, Why> {
        let unreachable = |message: String| Err(Why::new("BackendUnreachable", message));
        let Some(parameters) = parameters else {
            return unreachable("the parameters are gone".to_owned());
        };
        match tokio::time::timeout(PROBE_LIMIT, self.backend.probe(class, parameters)).await {
            Ok(readiness) => readiness,
            Err(_) => unreachable(format!(
                "the backend did not answer within {} s",
                PROBE_LIMIT.as_secs()
            )),
        }
    }

    /// The Jobs that hold the class. The cache is asked first, because it costs nothing; that nobody holds it
    /// is believed only from a live LIST. A Job that cannot be decoded may hold anything.
    async fn holders(&self, class: &JobClass) -> Result<Vec<String>, WriteError> {
        let uid = class.uid().unwrap_or_default();
        let named = |j: &dyn Fn() -> (Option<String>, String)| {
            let (namespace, name) = j();
            format!("{}/{name}", namespace.unwrap_or_default())
        };
        let jobs = self.caches.jobs.state();
        let cached: Vec<_> = jobs
            .iter()
            .filter(|job| job.is_accepted_by(Some(&uid)) && class::is_held_by(&uid, &job.whole()))
            .map(|job| named(&|| (job.namespace(), job.name_any())))
            .collect();
        if !cached.is_empty() {
            return Ok(cached);
        }
        let live = list::<Job>(&self.client).await?;
        Ok(live
            .iter()
            .filter(|guard| guard.0.as_ref().map_or(true, |job| class::is_held_by(&uid, job)))
            .map(|guard| named(&|| (guard.namespace(), guard.name_any())))
            .collect())
    }

    fn tell<K: Resource<DynamicType = ()>>(&self, before: &[Condition], after: &[Condition], object: &K) {
        for condition in class::changed(before, after) {
            let blocked = condition.type_ == ayatori_core::conditions::DELETION_BLOCKED;
            let tale = Tale {
                warning: (condition.status == "True") == blocked,
                reason: condition.reason.clone(),
                message: condition.message.clone(),
                action: if blocked { "Delete" } else { "Check" },
            };
            self.storyteller.tell(tale, object.object_ref(&()));
        }
    }

    async fn unowned(&self, class: &JobClass, now: Timestamp) -> Result<Option<Duration>, WriteError> {
        if !self.deputy.leadership.holds() {
            return Ok(None);
        }
        if let Step::Report(status) = class::decide_unowned(class, now) {
            self.deputy
                .writer
                .report(class, class.status.as_ref(), &*status)
                .await?;
        }
        Ok(None)
    }
}

/// Looks at one parameters object until there is nothing to do.
pub async fn reconcile_parameters<B: Backend>(
    cached: Arc<B::Parameters>,
    context: Arc<ClassContext<B>>,
) -> Result<Action, Infallible> {
    let waits = context.metrics.waits("parameters");
    let _desk = context.desks.acquire().await;
    drop(waits);
    let parameters = context.latest_parameters.freshest(cached);
    let (name, uid) = (parameters.name_any(), parameters.uid());
    let span = tracing::error_span!("reconcile", parameters = name, uid);
    let key = ObjectRef::from_obj(&*parameters);
    let (pass, backoff) = (
        parameters_pass(&*parameters, &context),
        &context.backoff_parameters,
    );
    let work = work("parameters", &key, pass, backoff, &context.metrics);
    Ok(work.instrument(span).await)
}

/// When to look again, if a deletion is blocked.
async fn parameters_pass<B: Backend>(
    parameters: &B::Parameters,
    context: &ClassContext<B>,
) -> Result<Option<Duration>, WriteError> {
    let decide = |referrers: Option<&[String]>| {
        class::decide_parameters(
            parameters.meta(),
            parameters.status(),
            referrers,
            Timestamp::now(),
        )
    };
    let step = match decide(None) {
        ParametersStep::AskReferrers => {
            let classes = list::<JobClass>(&context.client).await?;
            let referrers: Vec<_> = classes
                .iter()
                .filter(|guard| guard.0.as_ref().map_or(true, |class| refers(class, parameters)))
                .map(ResourceExt::name_any)
                .collect();
            decide(Some(&referrers))
        }
        other => other,
    };
    match step {
        ParametersStep::Wait => Ok(parameters.meta().deletion_timestamp.is_some().then_some(BLOCKED)),
        ParametersStep::AskReferrers => Ok(Some(BLOCKED)),
        ParametersStep::Unprotect => {
            context.writer.unprotect(parameters, PARAMETERS_FINALIZER).await?;
            Ok(None)
        }
        ParametersStep::Report(status) => {
            context
                .writer
                .report(parameters, parameters.status(), &*status)
                .await?;
            let before = parameters.status().map_or(&[][..], |s| &s.conditions);
            context.tell(before, &status.conditions, parameters);
            Ok(Some(BLOCKED))
        }
    }
}

fn refers<P: Parameters>(class: &JobClass, parameters: &P) -> bool {
    let reference = &class.spec.parameters_ref;
    reference.group == P::group(&())
        && reference.kind == P::kind(&())
        && reference.name == parameters.name_any()
}

/// Every object of a kind, read from the API server page by page.
async fn list<K>(client: &Client) -> Result<Vec<DeserializeGuard<K>>, WriteError>
where
    K: Resource<DynamicType = ()> + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    let api = Api::<DeserializeGuard<K>>::all(client.clone());
    let mut params = ListParams::default().limit(PAGE);
    let mut all = vec![];
    loop {
        let page = match api.list(&params).await {
            // Their definition is gone, and a definition goes after the last of its objects.
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(vec![]),
            page => page.map_err(|e| WriteError::of("list", &e))?,
        };
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use ayatori_core::job_class::{JobClassSpec, JobClassStatus};
    use jiff::SignedDuration;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn what_was_lost_is_probed_again_soon_and_then_less_and_less_often() {
        let began = Timestamp::UNIX_EPOCH;
        let class = |status: &str| JobClass {
            status: Some(JobClassStatus {
                conditions: vec![Condition {
                    type_: READY.to_owned(),
                    status: status.to_owned(),
                    reason: "Reason".to_owned(),
                    message: String::new(),
                    observed_generation: None,
                    last_transition_time: Time(began),
                }],
                ..JobClassStatus::default()
            }),
            ..JobClass::new("class", JobClassSpec::default())
        };
        for (status, away, again) in [
            ("True", 0, 30),
            ("False", -5, 3),
            ("False", 0, 3),
            ("False", 4, 4),
            ("False", 20, 20),
            ("False", 300, 30),
        ] {
            let now = began + SignedDuration::from_secs(away);
            let told = probe_again(&class(status), now);
            assert_eq!(told, Duration::from_secs(again), "{status} for {away} s");
        }
        let unjudged = JobClass::new("class", JobClassSpec::default());
        assert_eq!(probe_again(&unjudged, began), PROBE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_ends_in_time_and_failures_of_one_object_are_repeated_less_and_less_often() {
        let (backoff, metrics) = (Backoff::default(), Metrics::default());
        let began = tokio::time::Instant::now();
        work("parameters", &"hangs", pending(), &backoff, &metrics).await;
        assert_eq!(began.elapsed(), PASS);
        for _ in 0..8 {
            let refused = ready(Err(WriteError::undecodable("list")));
            work("parameters", &"fails", refused, &backoff, &metrics).await;
        }
        assert!(backoff.left(&"fails").is_some_and(|left| left > BLOCKED));
        assert!(backoff.left(&"hangs").is_some_and(|left| left < BLOCKED));
        let well = work(
            "parameters",
            &"fails",
            ready(Ok(Some(BLOCKED))),
            &backoff,
            &metrics,
        );
        assert_eq!(well.await, Action::requeue(BLOCKED));
        assert!(backoff.left(&"fails").is_none());
        let page = metrics.render();
        for line in [
            r#"ayatori_reconcile_errors_total{controller="parameters",reason="Timeout"} 1"#,
            r#"ayatori_reconcile_errors_total{controller="parameters",reason="Undecodable"} 8"#,
            r#"ayatori_reconciles_active{controller="parameters"} 0"#,
        ] {
            assert!(
                page.lines().any(|shown| shown == line),
                "{line} is not in\n{page}"
            );
        }
    }
}

//! Local copies of what decisions are made on, and who is woken when they change.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ayatori_core::conditions::{self, FINISHED, SCHEDULED};
use ayatori_core::job::{Job, JobStatus};
use ayatori_core::job_class::JobClass;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::discovery::ApiResource;
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{Event, watcher};
use kube::runtime::{WatchStreamExt, reflector, watcher as watching};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::backend::Backend;
use crate::backoff::WatchBackoff;
use crate::health::Readiness;
use crate::telemetry::Metrics;
use crate::unknown_fields::{UnknownFields, understand};

/// What one controller has to look at. Closed until this process leads.
#[derive(Debug)]
pub struct Queue<K: Resource<DynamicType = ()> + 'static> {
    sender: mpsc::UnboundedSender<ObjectRef<K>>,
    open: Arc<AtomicBool>,
}

impl<K: Resource<DynamicType = ()> + 'static> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self {
            sender: self.sender.clone(),
            open: self.open.clone(),
        }
    }
}

impl<K: Resource<DynamicType = ()> + 'static> Queue<K> {
    /// A queue and what comes out of it.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<ObjectRef<K>>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (
            Self {
                sender,
                open: Arc::default(),
            },
            receiver,
        )
    }

    /// Lets objects in from now on.
    pub fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    /// Has this object looked at.
    pub fn push(&self, object: ObjectRef<K>) {
        if self.open.load(Ordering::SeqCst) {
            // Fails only while the process ends.
            let _ = self.sender.send(object);
        }
    }
}

/// Local copies of the project's objects and of namespaces.
pub struct Caches<P: Resource<DynamicType = ()> + 'static> {
    /// Jobs.
    pub jobs: Store<Job>,
    /// Classes.
    pub classes: Store<JobClass>,
    /// Parameters objects of this adapter's kind.
    pub parameters: Store<P>,
    /// Namespaces: labels and annotations.
    pub namespaces: Store<PartialObjectMeta<Namespace>>,
    /// What of all these this version does not understand.
    pub unknown: Arc<UnknownFields>,
}

/// The other ends of the caches.
pub struct Writers<P: Resource<DynamicType = ()> + Clone + 'static> {
    jobs: Writer<Job>,
    classes: Writer<JobClass>,
    parameters: Writer<P>,
    namespaces: Writer<PartialObjectMeta<Namespace>>,
}

/// The queues of the three controllers.
pub struct Queues<P: Resource<DynamicType = ()> + 'static> {
    /// Jobs to look at.
    pub jobs: Queue<Job>,
    /// Classes to look at.
    pub classes: Queue<JobClass>,
    /// Parameters objects to look at.
    pub parameters: Queue<P>,
}

impl<P: Resource<DynamicType = ()> + Clone + 'static> Caches<P> {
    /// Empty caches and what fills them.
    pub fn new() -> (Self, Writers<P>) {
        let (jobs, w1) = reflector::store();
        let (classes, w2) = reflector::store();
        let (parameters, w3) = reflector::store();
        let (namespaces, w4) = reflector::store();
        (
            Self {
                jobs,
                classes,
                parameters,
                namespaces,
                unknown: Arc::default(),
            },
            Writers {
                jobs: w1,
                classes: w2,
                parameters: w3,
                namespaces: w4,
            },
        )
    }

    /// Returns once every cache has been filled.
    pub async fn filled(&self, readiness: &Readiness) -> anyhow::Result<()> {
        let jobs = self.jobs.wait_until_ready();
        readiness.after("the first list of Jobs", jobs).await?;
        let classes = self.classes.wait_until_ready();
        readiness.after("the first list of JobClasses", classes).await?;
        let parameters = self.parameters.wait_until_ready();
        readiness
            .after("the first list of the parameters of classes", parameters)
            .await?;
        let namespaces = self.namespaces.wait_until_ready();
        readiness
            .after("the first list of namespaces", namespaces)
            .await?;
        Ok(())
    }

    /// Wakes everything there is.
    pub fn wake_all(&self, queues: &Queues<P>) {
        for parameters in self.parameters.state() {
            queues.parameters.push(ObjectRef::from_obj(&*parameters));
        }
        for class in self.classes.state() {
            queues.classes.push(ObjectRef::from_obj(&*class));
        }
        for job in self.jobs.state() {
            queues.jobs.push(ObjectRef::from_obj(&*job));
        }
    }
}

/// Keeps the caches up to date and wakes whoever waits for a change, for as long as the process lives.
pub async fn keep<B: Backend>(
    client: Client,
    writers: Writers<B::Parameters>,
    caches: Arc<Caches<B::Parameters>>,
    queues: Arc<Queues<B::Parameters>>,
    metrics: Metrics,
) {
    let jobs = mirror(
        client.clone(),
        &caches.unknown,
        writers.jobs,
        &metrics,
        |change| match change {
            Change::Of(job) => {
                queues.jobs.push(ObjectRef::from_obj(job));
                wake_class_of(job, &caches, &queues);
            }
            Change::Everything => caches.wake_all(&queues),
        },
    );
    let classes = mirror(
        client.clone(),
        &caches.unknown,
        writers.classes,
        &metrics,
        |change| match change {
            Change::Of(class) => {
                queues.classes.push(ObjectRef::from_obj(class));
                wake_jobs_of(class, &caches, &queues);
                let parameters = &class.spec.parameters_ref.name;
                queues.parameters.push(ObjectRef::new(parameters));
            }
            Change::Everything => caches.wake_all(&queues),
        },
    );
    let parameters = mirror(
        client.clone(),
        &caches.unknown,
        writers.parameters,
        &metrics,
        |change| match change {
            Change::Of(parameters) => {
                queues.parameters.push(ObjectRef::from_obj(parameters));
                let name = parameters.name_any();
                for class in caches
                    .classes
                    .state()
                    .iter()
                    .filter(|c| c.spec.parameters_ref.name == name)
                {
                    queues.classes.push(ObjectRef::from_obj(&**class));
                    // A class may be called accepted by what was known of the parameters before.
                    wake_jobs_of(class, &caches, &queues);
                }
                wake_jobs_on(parameters, &caches, &queues);
            }
            Change::Everything => caches.wake_all(&queues),
        },
    );
    let namespaces = mirror(
        client,
        &caches.unknown,
        writers.namespaces,
        &metrics,
        |change| match change {
            Change::Of(namespace) => {
                let name = namespace.name_any();
                for job in caches
                    .jobs
                    .state()
                    .iter()
                    .filter(|j| j.namespace().as_deref() == Some(&name) && !is_accepted(j))
                {
                    queues.jobs.push(ObjectRef::from_obj(&**job));
                }
            }
            Change::Everything => caches.wake_all(&queues),
        },
    );
    futures::join!(jobs, classes, parameters, namespaces);
}

/// The class of a Job may be free to go, if it is being deleted.
fn wake_class_of<P: Resource<DynamicType = ()> + Clone + 'static>(
    job: &Job,
    caches: &Caches<P>,
    queues: &Queues<P>,
) {
    let Some(resolved) = job.status.as_ref().and_then(|s| s.resolved_job_class.as_ref()) else {
        return;
    };
    let class = ObjectRef::<JobClass>::new(&resolved.name);
    if caches
        .classes
        .get(&class)
        .is_some_and(|c| c.metadata.deletion_timestamp.is_some())
    {
        queues.classes.push(class);
    }
}

/// Jobs that no class has accepted may choose differently now, and those the class accepted may start.
fn wake_jobs_of<P: Resource<DynamicType = ()> + Clone + 'static>(
    class: &JobClass,
    caches: &Caches<P>,
    queues: &Queues<P>,
) {
    for job in caches.jobs.state() {
        let waits = match job
            .status
            .as_ref()
            .and_then(|s| s.resolved_job_class.as_ref().map(|c| (s, c)))
        {
            // One that names its class waits for no other.
            None => job
                .spec
                .job_class_name
                .as_ref()
                .is_none_or(|name| *name == class.name_any()),
            Some((status, resolved)) => {
                Some(&resolved.uid) == class.metadata.uid.as_ref()
                    && !conditions::is_true(&status.conditions, SCHEDULED)
                    && !conditions::is_true(&status.conditions, FINISHED)
            }
        };
        if waits {
            queues.jobs.push(ObjectRef::from_obj(&*job));
        }
    }
}

/// What has an execution may be elsewhere now: where it is, its parameters say.
fn wake_jobs_on<P: Resource<DynamicType = ()> + Clone + 'static>(
    parameters: &P,
    caches: &Caches<P>,
    queues: &Queues<P>,
) {
    for job in caches.jobs.state() {
        if job.status.as_ref().is_some_and(|s| runs_on(s, parameters.meta())) {
            queues.jobs.push(ObjectRef::from_obj(&*job));
        }
    }
}

/// Whether a Job with this status may have something where these parameters say.
fn runs_on(status: &JobStatus, parameters: &ObjectMeta) -> bool {
    let resolved = status.resolved_job_class.as_ref();
    resolved.is_some_and(|class| Some(&class.parameters_ref.uid) == parameters.uid.as_ref())
        && status
            .execution
            .as_ref()
            .is_some_and(|e| e.release_time.is_none())
}

fn is_accepted(job: &Job) -> bool {
    job.status
        .as_ref()
        .is_some_and(|s| s.resolved_job_class.is_some())
}

/// What a watch told.
pub enum Change<'a, K> {
    /// This object appeared, changed or went.
    Of(&'a K),
    /// The whole list was read again.
    Everything,
}

/// Fills one cache from a watch, and tells of every change after the cache shows it. An object that cannot be
/// decoded is left out, with a warning, and stops no other.
async fn mirror<K>(
    client: Client,
    unknown: &UnknownFields,
    mut writer: Writer<K>,
    metrics: &Metrics,
    mut tell: impl FnMut(Change<'_, K>),
) where
    K: Resource<DynamicType = ()> + Default + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let resource = ApiResource::erase::<K>(&());
    let api = Api::<DynamicObject>::all_with(client, &resource);
    let mut events = watcher(api, watching::Config::default())
        .backoff(WatchBackoff::default())
        .boxed();
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                tracing::warn!(kind = %K::kind(&()), error = %watch_error::<K>(&error), "a watch failed and is started again");
                continue;
            }
        };
        let Some(event) = decoded(event, unknown, metrics) else {
            continue;
        };
        writer.apply_watcher_event(&event);
        match &event {
            Event::Apply(object) | Event::Delete(object) => tell(Change::Of(object)),
            Event::InitDone => tell(Change::Everything),
            Event::Init | Event::InitApply(_) => {}
        }
    }
}

fn watch_error<K: Resource<DynamicType = ()>>(error: &watching::Error) -> String {
    use std::error::Error as _;
    match error.source().and_then(|e| e.downcast_ref::<kube::Error>()) {
        // Where the whole group is missing, the answer has no reason word.
        Some(kube::Error::Api(status)) if status.code == 404 => format!(
            "{}.{} is not defined in this cluster; install the chart execution-api",
            K::plural(&()),
            K::group(&())
        ),
        Some(cause) => crate::failure::brief(cause),
        None => ayatori_core::conditions::clean(&error.to_string(), 300),
    }
}

fn decoded<K>(event: Event<DynamicObject>, unknown: &UnknownFields, metrics: &Metrics) -> Option<Event<K>>
where
    K: Resource<DynamicType = ()> + Default + DeserializeOwned,
{
    let fits = |mut object: DynamicObject| {
        trim(&mut object.metadata);
        understand::<K>(object)
            .map(|(object, fields)| {
                unknown.note(object.meta(), fields);
                object
            })
            .map_err(|metadata| {
                let kind = K::kind(&());
                tracing::warn!(
                    %kind,
                    namespace = metadata.namespace.as_deref().unwrap_or_default(),
                    name = metadata.name.as_deref().unwrap_or_default(),
                    "an object cannot be decoded by this version and is ignored until it changes"
                );
                metrics.undecodable(&kind);
                let mut bare = K::default();
                *bare.meta_mut() = *metadata;
                bare
            })
    };
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(fits(object).ok()?),
        Event::Apply(object) => match fits(object) {
            Ok(object) => Event::Apply(object),
            Err(bare) => Event::Delete(bare),
        },
        Event::Delete(object) => match fits(object) {
            Ok(object) | Err(object) => {
                unknown.forget(object.meta());
                Event::Delete(object)
            }
        },
    })
}

/// Drops what no decision reads.
fn trim(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

#[cfg(test)]
mod tests {
    use ayatori_core::job::{Execution, ResolvedJobClass, ResolvedParametersReference};

    use super::*;

    #[test]
    fn an_edit_of_parameters_concerns_what_has_an_execution_there_that_is_not_released() {
        let parameters = ObjectMeta {
            uid: Some("uid".to_owned()),
            ..ObjectMeta::default()
        };
        let now =
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        let status = |uid: &str, execution: bool, released: bool| JobStatus {
            resolved_job_class: Some(ResolvedJobClass {
                parameters_ref: ResolvedParametersReference {
                    uid: uid.to_owned(),
                    ..ResolvedParametersReference::default()
                },
                ..ResolvedJobClass::default()
            }),
            execution: execution.then(|| Execution {
                release_time: released.then_some(now.clone()),
                ..Execution::default()
            }),
            ..JobStatus::default()
        };
        for (uid, execution, released, concerned) in [
            ("uid", true, false, true),
            ("uid", true, true, false),
            ("uid", false, false, false),
            ("another", true, false, false),
        ] {
            let status = status(uid, execution, released);
            assert_eq!(runs_on(&status, &parameters), concerned, "{status:?}");
        }
        assert!(!runs_on(&JobStatus::default(), &parameters));
    }
}

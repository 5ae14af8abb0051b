//! Local copies of what decisions are made on, and who is woken when they change.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ayatori_core::job::Job;
use ayatori_core::job_class::JobClass;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{Event, watcher};
use kube::runtime::{WatchStreamExt, reflector, watcher as watching};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::backend::Backend;
use crate::backoff::WatchBackoff;
use crate::health::Readiness;
use crate::kept::{self, Kept, Packer};
use crate::telemetry::Metrics;
use crate::unknown_fields::{Shown, UnknownFields};

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
    pub jobs: Store<Kept>,
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
    jobs: Writer<Kept>,
    classes: Writer<JobClass>,
    parameters: Writer<P>,
    namespaces: Writer<PartialObjectMeta<Namespace>>,
}

/// The queues of the three controllers.
pub struct Queues<P: Resource<DynamicType = ()> + 'static> {
    /// Jobs to look at.
    pub jobs: Queue<Kept>,
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
    let mut packer = Packer::default();
    let jobs = mirror(
        client.clone(),
        &caches.unknown,
        writers.jobs,
        &metrics,
        |job: &Job| packer.pack(job),
        |change| match change {
            Change::Of(job) => {
                queues.jobs.push(kept::key(&ObjectRef::from_obj(job)));
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
        Clone::clone,
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
        Clone::clone,
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
        Clone::clone,
        |change| match change {
            Change::Of(namespace) => {
                let name = namespace.name_any();
                for job in caches
                    .jobs
                    .state()
                    .iter()
                    .filter(|j| j.namespace().as_deref() == Some(&name) && j.accepted.is_none())
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
    let name = class.name_any();
    for job in caches.jobs.state() {
        let waits = if job.accepted.is_some() {
            job.is_unscheduled && job.is_accepted_by(class.metadata.uid.as_deref())
        } else {
            // One that names its class waits for no other.
            job.class.is_empty() || *job.class == *name
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
        if job.is_executed_by(parameters.meta().uid.as_deref()) {
            queues.jobs.push(ObjectRef::from_obj(&*job));
        }
    }
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
async fn mirror<K, V>(
    client: Client,
    unknown: &UnknownFields,
    mut writer: Writer<V>,
    metrics: &Metrics,
    mut keep: impl FnMut(&K) -> V,
    mut tell: impl FnMut(Change<'_, K>),
) where
    K: Resource<DynamicType = ()> + Default + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Resource<DynamicType = ()> + Clone + 'static,
{
    let mut events = watcher(Api::<Shown<K>>::all(client), watching::Config::default())
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
        writer.apply_watcher_event(&match &event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(object) => Event::InitApply(keep(object)),
            Event::Apply(object) => Event::Apply(keep(object)),
            Event::Delete(object) => Event::Delete(keep(object)),
        });
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

fn decoded<K>(event: Event<Shown<K>>, unknown: &UnknownFields, metrics: &Metrics) -> Option<Event<K>>
where
    K: Resource<DynamicType = ()>,
{
    let kind = K::kind(&());
    let fits = |shown: Shown<K>| {
        let object = shown.object;
        let Some(fields) = shown.unknown else {
            let metadata = object.meta();
            tracing::warn!(
                %kind,
                namespace = metadata.namespace.as_deref().unwrap_or_default(),
                name = metadata.name.as_deref().unwrap_or_default(),
                "an object cannot be decoded by this version and is ignored until it changes"
            );
            metrics.undecodable(&kind);
            return Err(object);
        };
        unknown.note(&kind, object.meta(), fields);
        Ok(object)
    };
    Some(match event {
        Event::Init => {
            unknown.list(&kind);
            Event::Init
        }
        Event::InitDone => {
            unknown.listed(&kind);
            Event::InitDone
        }
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

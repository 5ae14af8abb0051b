//! Sees every Job of the namespace, and whether anything changes at all.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ayatori_core::conditions::{self, FINISHED};
use ayatori_core::job::{Job, JobResult};
use ayatori_core::job_class::JobClass;
use ayatori_core::parameters::{KubernetesExecutionParameters, OpenSandboxExecutionParameters};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The label by which a Job says which planned one it is.
pub(crate) const TOKEN_LABEL: &str = "test.ayatori.ddupan.top/token";

/// How often is looked for the end of a Job.
const LOOK: Duration = Duration::from_millis(500);

/// Watches until it is dropped.
pub(crate) struct Observer {
    seen: Arc<Mutex<Seen>>,
    tasks: Vec<JoinHandle<()>>,
}

/// What was seen so far.
pub(crate) struct Seen {
    /// By UID.
    pub(crate) jobs: BTreeMap<String, SeenJob>,
    /// When anything changed for the last time.
    pub(crate) last_change: Instant,
    /// How often anything changed.
    pub(crate) changes: u64,
    /// The resource versions of all objects, by UID.
    versions: BTreeMap<String, String>,
}

/// One Job.
#[derive(Clone)]
pub(crate) struct SeenJob {
    pub(crate) name: String,
    pub(crate) token: String,
    /// As it was seen first.
    pub(crate) result: Option<JobResult>,
    /// Results that were seen later and are another one: there must be none.
    pub(crate) revised: Vec<JobResult>,
    /// When it was created, by the API server, and when it was first seen finished or found gone.
    pub(crate) created: Option<Timestamp>,
    pub(crate) ended: Option<Timestamp>,
    pub(crate) finished: bool,
    pub(crate) deleting: bool,
    pub(crate) gone: bool,
    /// Its conditions, for people.
    pub(crate) story: String,
}

impl Observer {
    /// Begins to watch.
    pub(crate) fn of(client: &Client, namespace: &str) -> Observer {
        let seen = Arc::new(Mutex::new(Seen {
            jobs: BTreeMap::new(),
            last_change: Instant::now(),
            changes: 0,
            versions: BTreeMap::new(),
        }));
        let in_namespace = client.clone();
        let tasks = vec![
            watch(
                Api::<Job>::namespaced(in_namespace, namespace),
                &seen,
                Seen::note_jobs,
            ),
            watch(bare::<BatchJob>(client, namespace), &seen, |_, _| {}),
            watch(bare::<Pod>(client, namespace), &seen, |_, _| {}),
            watch(Api::<JobClass>::all(client.clone()), &seen, |_, _| {}),
            watch(
                Api::<KubernetesExecutionParameters>::all(client.clone()),
                &seen,
                |_, _| {},
            ),
            watch(
                Api::<OpenSandboxExecutionParameters>::all(client.clone()),
                &seen,
                |_, _| {},
            ),
        ];
        Observer { seen, tasks }
    }

    /// Returns once a Job of this name was seen, and each has ended or gone.
    pub(crate) async fn when_over(&self, name: &str) {
        let mut interval = tokio::time::interval(LOOK);
        loop {
            interval.tick().await;
            let seen = self.seen();
            let mut of_name = seen.jobs.values().filter(|job| job.name == name).peekable();
            if of_name.peek().is_some() && of_name.all(|job| job.ended.is_some()) {
                return;
            }
        }
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bare<K>(client: &Client, namespace: &str) -> Api<PartialObjectMeta<K>>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), namespace)
}

/// What a watch tells.
enum Told<'a, K> {
    Is(&'a K),
    Went(&'a K),
    /// The UIDs of all there are, after an outage.
    Listed(&'a [String]),
}

/// Watches one kind, through every outage of the API server.
fn watch<K>(
    api: Api<K>,
    seen: &Arc<Mutex<Seen>>,
    note: impl Fn(&mut Seen, Told<'_, K>) + Send + 'static,
) -> JoinHandle<()>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let seen = seen.clone();
    tokio::spawn(async move {
        let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
        let mut listed = Vec::new();
        while let Some(event) = events.next().await {
            // An outage, which the watcher gets over by itself.
            let Ok(event) = event else { continue };
            let mut seen = lock(&seen);
            match event {
                Event::Init => listed.clear(),
                Event::InitDone => note(&mut seen, Told::Listed(&listed)),
                Event::InitApply(object) => {
                    listed.extend(object.meta().uid.clone());
                    seen.note_version(&object, false);
                    note(&mut seen, Told::Is(&object));
                }
                Event::Apply(object) => {
                    seen.note_version(&object, false);
                    note(&mut seen, Told::Is(&object));
                }
                Event::Delete(object) => {
                    seen.note_version(&object, true);
                    note(&mut seen, Told::Went(&object));
                }
            }
        }
    })
}

impl Seen {
    fn changed(&mut self) {
        self.changes += 1;
        self.last_change = Instant::now();
    }

    /// What is only listed again has not changed.
    fn note_version<K: Resource>(&mut self, object: &K, gone: bool) {
        let (Some(uid), Some(version)) = (object.meta().uid.clone(), object.meta().resource_version.clone())
        else {
            return;
        };
        let before = self.versions.insert(uid, version.clone());
        if gone || before.as_ref() != Some(&version) {
            self.changed();
        }
    }

    fn note_jobs(&mut self, told: Told<'_, Job>) {
        match told {
            Told::Is(job) => self.note_job(job, false),
            Told::Went(job) => self.note_job(job, true),
            Told::Listed(uids) => {
                let went = self.jobs.iter_mut().filter(|(uid, _)| !uids.contains(uid));
                went.for_each(|(_, job)| job.note_end(job.finished, true));
            }
        }
    }

    fn note_job(&mut self, job: &Job, gone: bool) {
        let Some(uid) = job.uid() else { return };
        let status = job.status.clone().unwrap_or_default();
        let known = self.jobs.entry(uid).or_insert_with(|| SeenJob {
            name: job.name_any(),
            token: job.labels().get(TOKEN_LABEL).cloned().unwrap_or_default(),
            result: None,
            revised: Vec::new(),
            created: job.creation_timestamp().map(|time| time.0),
            ended: None,
            finished: false,
            deleting: false,
            gone: false,
            story: String::new(),
        });
        known.deleting |= job.metadata.deletion_timestamp.is_some();
        let finished = conditions::is_true(&status.conditions, FINISHED);
        let result = status.result.filter(|_| finished);
        match (&known.result, result) {
            (None, result) if !known.finished => known.result = result,
            (first, now) if *first != now => known.revised.extend(now),
            _ => {}
        }
        known.note_end(finished, gone);
        let conditions = status.conditions.iter();
        known.story = conditions
            .map(|c| format!("{}={} {}: {}", c.type_, c.status, c.reason, c.message))
            .collect::<Vec<_>>()
            .join("; ");
    }
}

impl SeenJob {
    fn note_end(&mut self, finished: bool, gone: bool) {
        self.finished |= finished;
        self.gone |= gone;
        if self.ended.is_none() && (finished || gone) {
            self.ended = Some(Timestamp::now());
        }
    }

    /// Whether it was there, and had not ended, at any moment of this time.
    pub(crate) fn lived_in(&self, time: &RangeInclusive<Timestamp>) -> bool {
        self.created.is_none_or(|created| created <= *time.end())
            && self.ended.is_none_or(|ended| ended >= *time.start())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_lived_in_a_time_if_it_was_created_before_its_end_and_ended_after_its_beginning() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let away = at(10)..=at(20);
        for (created, ended, lived) in [
            (5, Some(9), false),
            (5, Some(15), true),
            (5, None, true),
            (15, Some(30), true),
            (21, None, false),
        ] {
            let job = SeenJob {
                name: String::new(),
                token: String::new(),
                result: None,
                revised: Vec::new(),
                created: Some(at(created)),
                ended: ended.map(at),
                finished: false,
                deleting: false,
                gone: false,
                story: String::new(),
            };
            assert_eq!(job.lived_in(&away), lived, "{created} to {ended:?}");
        }
    }
}

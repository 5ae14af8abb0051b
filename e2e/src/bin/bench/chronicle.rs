//! When what happened to each Job, as a caller who watches sees it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use ayatori_core::job::Job;
use futures::{Stream, StreamExt};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::peer::{self, Peer};

/// How long nothing may happen while something is waited for.
const PATIENCE: Duration = Duration::from_secs(180);

/// What happens to a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Moment {
    /// Its caller sends the request that creates it.
    Asked,
    /// A pod of it is shown as Running.
    PodRuns,
    /// Our Job says Started.
    Started,
    /// The node says that the command has ended.
    Ends,
    /// The batch Job says Complete or Failed.
    BatchJobEnds,
    /// Our Job says Finished.
    Finished,
    /// The Job is being deleted.
    Leaves,
    /// The Job is gone.
    Gone,
}

/// The moments of one Job.
pub(crate) type Life = HashMap<Moment, Instant>;

/// What happened so far. A clone is the same chronicle.
#[derive(Clone, Default)]
pub(crate) struct Chronicle(Arc<Shared>);

struct Shared {
    lives: Mutex<HashMap<(Peer, String), Life>>,
    changed: watch::Sender<()>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            lives: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }
}

/// Tasks, most of them watches, that go on until this is dropped.
pub(crate) struct Watching(pub(crate) Vec<JoinHandle<()>>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Chronicle {
    /// The first time counts.
    pub(crate) fn note(&self, peer: Peer, name: &str, moment: Moment) {
        let now = Instant::now();
        self.lives()
            .entry((peer, name.to_owned()))
            .or_default()
            .entry(moment)
            .or_insert(now);
        self.0.changed.send_replace(());
    }

    /// The lives of the Jobs whose names begin like this.
    pub(crate) fn lives_of(&self, peer: Peer, prefix: &str) -> Vec<Life> {
        let lives = self.lives();
        let ours = lives
            .iter()
            .filter(|((of, name), _)| *of == peer && name.starts_with(prefix));
        ours.map(|(_, life)| life.clone()).collect()
    }

    /// When that moment came, if it did.
    pub(crate) fn moment(&self, peer: Peer, name: &str, moment: Moment) -> Option<Instant> {
        let lives = self.lives();
        lives.get(&(peer, name.to_owned()))?.get(&moment).copied()
    }

    /// Returns once that moment has come for so many Jobs whose names begin like this.
    pub(crate) async fn when(
        &self,
        peer: Peer,
        prefix: &str,
        count: usize,
        moment: Moment,
    ) -> anyhow::Result<()> {
        let mut changed = self.0.changed.subscribe();
        let mut last = (0, Instant::now());
        loop {
            let seen = self.count(peer, prefix, moment);
            if seen >= count {
                return Ok(());
            }
            if seen > last.0 {
                last = (seen, Instant::now());
            }
            let left = PATIENCE.saturating_sub(last.1.elapsed());
            tokio::time::timeout(left, changed.changed())
                .await
                .with_context(|| format!("{moment:?} of {prefix}…: {seen} of {count}, and no more come"))??;
            // Many changes are counted once: to count takes time from what is measured.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// For how many Jobs that moment has come.
    pub(crate) fn count(&self, peer: Peer, prefix: &str, moment: Moment) -> usize {
        let lives = self.lives();
        let of = lives
            .iter()
            .filter(|((of, name), _)| *of == peer && name.starts_with(prefix));
        of.filter(|(_, life)| life.contains_key(&moment)).count()
    }

    /// Begins to watch the Jobs of a namespace, and what is made for them.
    pub(crate) fn watch(&self, client: &Client, namespace: &str) -> Watching {
        let jobs = Api::<Job>::namespaced(client.clone(), namespace);
        let batch_jobs = Api::<BatchJob>::namespaced(client.clone(), namespace);
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        let (ours, native, runs) = (self.clone(), self.clone(), self.clone());
        Watching(vec![
            follow(jobs, move |job, gone| {
                let name = job.name_any();
                peer::moments(job).for_each(|moment| ours.note(Peer::Ours, &name, moment));
                if gone {
                    ours.note(Peer::Ours, &name, Moment::Gone);
                }
            }),
            follow(batch_jobs, move |job, gone| {
                let subject = peer::subject(job).unwrap_or_else(|| (Peer::Native, job.name_any()));
                native.note_batch_job(subject, job, gone);
            }),
            follow(pods, move |pod, _| {
                let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
                if let (Some((peer, name)), Some("Running")) = (peer::subject(pod), phase) {
                    runs.note(peer, &name, Moment::PodRuns);
                }
            }),
        ])
    }

    fn note_batch_job(&self, (peer, name): (Peer, String), job: &BatchJob, gone: bool) {
        let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
        let ended = conditions.is_some_and(|all| {
            let ends = |c: &&str| ["Complete", "Failed"].contains(c);
            all.iter().any(|c| ends(&c.type_.as_str()) && c.status == "True")
        });
        if ended {
            self.note(peer, &name, Moment::BatchJobEnds);
        }
        // Of ours, the Job itself says when it goes.
        if peer == Peer::Native {
            if job.metadata.deletion_timestamp.is_some() || gone {
                self.note(peer, &name, Moment::Leaves);
            }
            if gone {
                self.note(peer, &name, Moment::Gone);
            }
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.lives().clear();
    }

    fn lives(&self) -> std::sync::MutexGuard<'_, HashMap<(Peer, String), Life>> {
        self.0.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells of every version of every object, and whether it is gone.
fn follow<K>(api: Api<K>, tell: impl Fn(&K, bool) + Send + 'static) -> JoinHandle<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let events = watcher(api, watcher::Config::default()).default_backoff();
    tokio::spawn(listen(events, tell))
}

async fn listen<K>(events: impl Stream<Item = watcher::Result<Event<K>>>, tell: impl Fn(&K, bool)) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => tell(&object, false),
            Ok(Event::Delete(object)) => tell(&object, true),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) => eprintln!("a watch of the bench: {error}"),
        }
    }
}

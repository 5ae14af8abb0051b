//! What one server has shown of our sandboxes, kept fresh by paged lists for as long as somebody is interested.
//!
//! That a list does not show a sandbox proves nothing: one that was deleted between two pages hides another. What is
//! not here is asked for by its id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ayatori_core::execution::Why;
use ayatori_core::job::Job;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{Notify, mpsc};

use crate::metadata;
use crate::wire::Sandbox;

/// For how long a Job whose sandbox no list shows is waited for, before it is asked whether it still cares.
const UNSEEN: Duration = Duration::from_secs(60);
/// The same for a Job that has not asked for its sandbox.
const UNASKED: Duration = Duration::from_secs(3600);
/// How long a server may fail to answer before what it has shown is no longer believed.
const AWAY: Duration = Duration::from_secs(10);

/// The sightings at one server.
pub(crate) struct Sightings {
    state: Mutex<State>,
    /// Told when there is somebody to look after again.
    wanted: Notify,
    changes: mpsc::UnboundedSender<ObjectRef<Job>>,
}

struct State {
    /// By the id of the sandbox.
    seen: HashMap<String, Sighting>,
    /// Who waits for news, by the Job's UID.
    interested: HashMap<String, Interest>,
    /// When the last list that came was asked for.
    heard: Instant,
    /// Why there are no news, if there have been none for long.
    away: Option<Why>,
}

#[derive(Clone)]
struct Sighting {
    sandbox: Arc<Sandbox>,
    /// When it was asked for.
    at: Instant,
}

struct Interest {
    job: ObjectRef<Job>,
    /// When it last asked.
    asked: Instant,
    /// When its sandbox was last listed, or it last asked.
    seen: Instant,
}

impl Sightings {
    pub(crate) fn new(changes: mpsc::UnboundedSender<ObjectRef<Job>>) -> Self {
        Self {
            state: Mutex::new(State {
                seen: HashMap::new(),
                interested: HashMap::new(),
                heard: Instant::now(),
                away: None,
            }),
            wanted: Notify::new(),
            changes,
        }
    }

    /// The sandbox, as it was last shown; the error says that the server shows nothing at present. From now on its
    /// Job is told of changes.
    pub(crate) fn follow(
        &self,
        uid: &str,
        job: ObjectRef<Job>,
        id: &str,
    ) -> Result<Option<Arc<Sandbox>>, Why> {
        let mut state = self.state();
        let now = Instant::now();
        if state.interested.is_empty() {
            // Nobody has listened until now.
            state.heard = now;
            self.wanted.notify_one();
        }
        let interest = Interest {
            job,
            asked: now,
            seen: now,
        };
        state.interested.insert(uid.to_owned(), interest);
        match &state.away {
            Some(why) => Err(why.clone()),
            None => Ok(state.seen.get(id).map(|sighting| sighting.sandbox.clone())),
        }
    }

    /// Nobody needs news of this Job any more.
    pub(crate) fn forget(&self, uid: &str) {
        let mut state = self.state();
        state.interested.remove(uid);
        state
            .seen
            .retain(|_, s| metadata::job_uid(&s.sandbox.metadata) != Some(uid));
    }

    /// Remembers what an answer that was asked for at that time has shown.
    pub(crate) fn note(&self, sandbox: Sandbox, at: Instant) -> Arc<Sandbox> {
        let sandbox = Arc::new(sandbox);
        let sighting = Sighting {
            sandbox: sandbox.clone(),
            at,
        };
        let mut state = self.state();
        if state.seen.get(&sandbox.id).is_none_or(|known| known.at <= at) {
            state.seen.insert(sandbox.id.clone(), sighting);
        }
        sandbox
    }

    /// Remembers that the server has no such sandbox.
    pub(crate) fn note_gone(&self, id: &str) {
        self.state().seen.remove(id);
    }

    /// Takes over a list that was asked for at that time, and tells the Jobs of what is new.
    pub(crate) fn listed(&self, list: Vec<Sandbox>, at: Instant) {
        let mut state = self.state();
        let back = state.away.take().is_some();
        state.heard = at;
        let mut news = Vec::new();
        let mut old = std::mem::take(&mut state.seen);
        for sandbox in list {
            let known = old.remove(&sandbox.id);
            let uid = metadata::job_uid(&sandbox.metadata).unwrap_or_default();
            if let Some(interest) = state.interested.get_mut(uid) {
                interest.seen = at;
            }
            let sighting = match known {
                // What was asked for later is newer.
                Some(known) if known.at > at => known,
                Some(known) if *known.sandbox == sandbox => Sighting { at, ..known },
                Some(_) | None => {
                    news.push(uid.to_owned());
                    Sighting {
                        sandbox: Arc::new(sandbox),
                        at,
                    }
                }
            };
            state.seen.insert(sighting.sandbox.id.clone(), sighting);
        }
        for (id, sighting) in old {
            if sighting.at > at {
                state.seen.insert(id, sighting);
            } else {
                news.extend(metadata::job_uid(&sighting.sandbox.metadata).map(str::to_owned));
            }
        }
        let left = |interest: &Interest| {
            at.duration_since(interest.seen) >= UNSEEN || at.duration_since(interest.asked) >= UNASKED
        };
        // Whoever still cares asks again.
        let forgotten = state.interested.extract_if(|_, interest| left(interest));
        let forgotten: Vec<_> = forgotten.map(|(_, interest)| interest.job).collect();
        let told: Vec<_> = if back {
            state.interested.values().map(|i| i.job.clone()).collect()
        } else {
            let concerned = news.iter().filter_map(|uid| state.interested.get(uid));
            concerned.map(|interest| interest.job.clone()).collect()
        };
        for job in forgotten.into_iter().chain(told) {
            self.tell(job);
        }
    }

    /// Takes over that a list failed. Everybody is told once if that has lasted, or that the reason is another.
    pub(crate) fn failed(&self, why: &Why) {
        let mut state = self.state();
        if state.heard.elapsed() < AWAY || state.away.as_ref() == Some(why) {
            return;
        }
        tracing::warn!(
            reason = why.reason,
            message = why.message,
            "sandboxes cannot be listed"
        );
        // What was seen is not true any more.
        state.seen.clear();
        state.away = Some(why.clone());
        for interest in state.interested.values() {
            self.tell(interest.job.clone());
        }
    }

    /// Whether anybody is interested.
    pub(crate) fn are_wanted(&self) -> bool {
        !self.state().interested.is_empty()
    }

    /// Returns once somebody is interested.
    pub(crate) async fn wanted(&self) {
        while !self.are_wanted() {
            self.wanted.notified().await;
        }
    }

    fn tell(&self, job: ObjectRef<Job>) {
        // Fails only while the process ends.
        let _ = self.changes.send(job);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

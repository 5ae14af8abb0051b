//! What one server has shown of our sandboxes, kept fresh by paged lists for as long as somebody is interested.
//!
//! That a list does not show a sandbox proves nothing: one that was deleted between two pages hides another. What is
//! not here is asked for by its id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ayatori_core::execution::Why;
use ayatori_core::job::Job;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{Notify, mpsc, watch};

use crate::metadata;
use crate::wire::Sandbox;

/// For how long a Job whose sandbox no list shows is waited for, before it is asked whether it still cares.
const UNSEEN: Duration = Duration::from_secs(60);
/// The same for a Job that has not asked for its sandbox.
const UNASKED: Duration = Duration::from_secs(3600);
/// How long a server may fail to answer before what it has shown is no longer believed: longer than two lists take
/// that come too late, for one alone is none of the Jobs' business.
const AWAY: Duration = Duration::from_secs(25);
/// For how long a sandbox that was found by its id is believed to be there although no list shows it.
const UNLISTED: Duration = Duration::from_secs(30);
/// How long a look waits for the first list, which spares it a request of its own.
const FIRST_LIST: Duration = Duration::from_secs(3);

/// The sightings at one server.
pub(crate) struct Sightings {
    state: Mutex<State>,
    /// Told when there is somebody to look after again.
    wanted: Notify,
    /// Whether any list has come, or failed.
    began: watch::Sender<bool>,
    changes: mpsc::UnboundedSender<ObjectRef<Job>>,
}

struct State {
    /// By the id of the sandbox.
    seen: HashMap<String, Sighting>,
    /// Who waits for news, by the Job's UID.
    interested: HashMap<String, Interest>,
    /// When the last list came.
    heard: Instant,
    /// Why there are no news, if there have been none for long.
    away: Option<Why>,
}

#[derive(Clone)]
struct Sighting {
    sandbox: Arc<Sandbox>,
    /// When it was asked for.
    at: Instant,
    /// Whether a list has shown it.
    listed: bool,
}

struct Interest {
    job: ObjectRef<Job>,
    /// When it last asked.
    asked: Instant,
    /// When its sandbox was last listed, or it last asked.
    seen: Instant,
}

impl State {
    /// Takes out those of whom nothing was heard for long. Whoever still cares asks again.
    fn forgotten(&mut self, at: Instant) -> Vec<ObjectRef<Job>> {
        let long = |since: Instant, limit: Duration| at.saturating_duration_since(since) >= limit;
        // While nothing is listed, nothing can be seen.
        let listed = self.away.is_none();
        let left = |i: &Interest| (listed && long(i.seen, UNSEEN)) || long(i.asked, UNASKED);
        self.interested
            .extract_if(|_, interest| left(interest))
            .map(|(_, interest)| interest.job)
            .collect()
    }
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
            began: watch::Sender::new(false),
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

    /// Returns once a list has come or failed, or that takes too long.
    pub(crate) async fn begun(&self) {
        let mut began = self.began.subscribe();
        let _ = tokio::time::timeout(FIRST_LIST, began.wait_for(|began| *began)).await;
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
            listed: false,
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
        state.heard = Instant::now();
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
                Some(known) if *known.sandbox == sandbox => Sighting {
                    at,
                    listed: true,
                    ..known
                },
                Some(_) | None => {
                    news.push(uid.to_owned());
                    Sighting {
                        sandbox: Arc::new(sandbox),
                        at,
                        listed: true,
                    }
                }
            };
            state.seen.insert(sighting.sandbox.id.clone(), sighting);
        }
        for (id, sighting) in old {
            let hidden = !sighting.listed && at.saturating_duration_since(sighting.at) < UNLISTED;
            if sighting.at > at || hidden {
                state.seen.insert(id, sighting);
            } else {
                news.extend(metadata::job_uid(&sighting.sandbox.metadata).map(str::to_owned));
            }
        }
        let forgotten = state.forgotten(at);
        let told: Vec<_> = if back {
            state.interested.values().map(|i| i.job.clone()).collect()
        } else {
            let concerned = news.iter().filter_map(|uid| state.interested.get(uid));
            concerned.map(|interest| interest.job.clone()).collect()
        };
        for job in forgotten.into_iter().chain(told) {
            self.tell(job);
        }
        self.began.send_replace(true);
    }

    /// Takes over that a list failed. Everybody is told once if that has lasted, or that the reason is another.
    pub(crate) fn failed(&self, why: &Why) {
        self.began.send_replace(true);
        let mut state = self.state();
        for job in state.forgotten(Instant::now()) {
            self.tell(job);
        }
        // Other words for the same trouble are not worth a write.
        let known = state.away.as_ref().is_some_and(|away| away.reason == why.reason);
        if state.heard.elapsed() < AWAY || known {
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

    /// Shows the UID of the Job that each sandbox says it is of, if it has not expired since it was shown.
    pub(crate) fn executions(&self, show: &mut dyn FnMut(&str)) {
        let now = Timestamp::now();
        for Sighting { sandbox, .. } in self.state().seen.values() {
            let expired = sandbox.expires_at.is_some_and(|at| at < now);
            if let Some(uid) = metadata::job_uid(&sandbox.metadata).filter(|_| !expired) {
                show(uid);
            }
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

    /// Has a Job look again after this time.
    pub(crate) fn tell_after(&self, time: Duration, job: ObjectRef<Job>) {
        let changes = self.changes.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let _ = changes.send(job);
        });
    }

    fn tell(&self, job: ObjectRef<Job>) {
        // Fails only while the process ends.
        let _ = self.changes.send(job);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        sightings: Sightings,
        told: mpsc::UnboundedReceiver<ObjectRef<Job>>,
        began: Instant,
    }

    fn job(name: &str) -> ObjectRef<Job> {
        ObjectRef::<Job>::new(name).within("team")
    }

    /// A sandbox of the Job whose UID is its name.
    fn sandbox(job: &str, state: &str) -> Sandbox {
        let label = (ayatori_core::names::JOB_UID_LABEL.to_owned(), job.to_owned());
        Sandbox {
            id: format!("sandbox-of-{job}"),
            state: state.to_owned(),
            reason: None,
            message: None,
            last_transition_at: None,
            created_at: None,
            expires_at: None,
            metadata: [label].into(),
        }
    }

    impl World {
        fn new() -> Self {
            let (changes, told) = mpsc::unbounded_channel();
            Self {
                sightings: Sightings::new(changes),
                told,
                began: Instant::now(),
            }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.began + Duration::from_secs(seconds)
        }

        /// What a Job that asks is shown.
        fn asks(&self, name: &str) -> String {
            let id = format!("sandbox-of-{name}");
            match self.sightings.follow(name, job(name), &id) {
                Ok(Some(sandbox)) => sandbox.state.clone(),
                Ok(None) => "nothing".to_owned(),
                Err(why) => why.reason,
            }
        }

        fn told(&mut self) -> Vec<String> {
            let mut names = Vec::new();
            while let Ok(object) = self.told.try_recv() {
                names.push(object.name);
            }
            names.sort();
            names
        }
    }

    #[test]
    fn a_job_is_told_when_what_its_sandbox_shows_is_new_and_only_then() {
        let mut world = World::new();
        assert_eq!(world.asks("a"), "nothing");
        for (second, list, told, shown) in [
            (
                1,
                vec![sandbox("a", "Running"), sandbox("b", "Running")],
                vec!["a"],
                "Running",
            ),
            (
                2,
                vec![sandbox("b", "Failed"), sandbox("a", "Running")],
                vec![],
                "Running",
            ),
            (3, vec![sandbox("a", "Terminated")], vec!["a"], "Terminated"),
            (4, vec![], vec!["a"], "nothing"),
            (5, vec![], vec![], "nothing"),
        ] {
            world.sightings.listed(list, world.at(second));
            assert_eq!(world.told(), told, "second {second}");
            assert_eq!(world.asks("a"), shown, "second {second}");
        }
        world.sightings.forget("a");
        world.sightings.listed(vec![sandbox("a", "Running")], world.at(6));
        assert_eq!(world.told(), Vec::<String>::new());
    }

    #[test]
    fn a_list_that_was_asked_for_earlier_does_not_outdo_a_look() {
        let world = World::new();
        world.sightings.note(sandbox("a", "Paused"), world.at(2));
        world.sightings.listed(vec![sandbox("a", "Running")], world.at(1));
        assert_eq!(world.asks("a"), "Paused");
        world.sightings.listed(vec![], world.at(1));
        assert_eq!(
            world.asks("a"),
            "Paused",
            "what is missing in it may have come since"
        );
        world.sightings.note(sandbox("a", "Running"), world.at(1));
        assert_eq!(world.asks("a"), "Paused", "nor does an answer that came late");
        world.sightings.listed(vec![], world.at(31));
        assert_eq!(world.asks("a"), "Paused", "lists may be blind to it");
        world.sightings.listed(vec![], world.at(32));
        assert_eq!(world.asks("a"), "nothing", "then it is asked for again");
        world
            .sightings
            .listed(vec![sandbox("a", "Terminated")], world.at(33));
        assert_eq!(world.asks("a"), "Terminated");
    }

    #[test]
    fn a_server_that_stays_away_is_said_to_be_once_and_again_when_it_is_back() {
        let mut world = World::new();
        world.asks("a");
        let away = || Why::new("BackendUnreachable", "no answer");
        world.sightings.note(sandbox("a", "Running"), world.at(0));
        world.sightings.failed(&away());
        assert_eq!(
            (world.asks("a"), world.told()),
            ("Running".to_owned(), vec![]),
            "not at once"
        );
        let Some(long_ago) = Instant::now().checked_sub(AWAY) else {
            unreachable!("the machine has run for longer")
        };
        world.sightings.state().heard = long_ago;
        world.sightings.failed(&away());
        assert_eq!(world.told(), ["a"]);
        assert_eq!(world.asks("a"), "BackendUnreachable");
        world.sightings.failed(&away());
        assert_eq!(world.told(), Vec::<String>::new(), "once");
        world.sightings.listed(vec![sandbox("a", "Running")], world.at(1));
        assert_eq!(
            (world.asks("a"), world.told()),
            ("Running".to_owned(), vec!["a".to_owned()])
        );
    }

    #[test]
    fn who_is_not_shown_or_does_not_ask_for_long_is_asked_whether_it_still_cares() {
        let mut world = World::new();
        world.asks("unseen");
        world.asks("unasked");
        world.sightings.note(sandbox("unasked", "Running"), world.at(0));
        let list = || vec![sandbox("unasked", "Running")];
        world.sightings.listed(list(), world.at(59));
        assert_eq!(world.told(), Vec::<String>::new());
        world.sightings.listed(list(), world.at(70));
        assert_eq!(world.told(), ["unseen"]);
        world.sightings.listed(list(), world.at(3700));
        assert_eq!(world.told(), ["unasked"]);
        assert!(!world.sightings.are_wanted());
    }
}

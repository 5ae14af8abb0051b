//! What has been read in sandboxes of what their commands came to, kept fresh for as long as somebody is interested.
//!
//! Lists of sandboxes do not show it: a sandbox stays up when its command has ended. So each one in which a command
//! runs is asked by itself, no more often than every few seconds, and far fewer are asked at a time than there are.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ayatori_core::conditions::PENDING;
use ayatori_core::execution::Why;
use ayatori_core::job::Job;
use futures::{StreamExt, stream};
use jiff::SignedDuration;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{Notify, mpsc};

use crate::client::Client;
use crate::execd::{self, HoldId, Inside};

/// How many are asked at a time by one server's poll.
const AT_ONCE: usize = 32;
/// For how many times a sandbox that does not answer is believed to be what it was.
const PATIENCE: u32 = 3;
/// For how long it is nothing unusual that the daemon in a sandbox that has come up does not answer.
const COMING_UP: Duration = Duration::from_secs(10);
/// After this time a Job is asked whether it still cares.
const UNASKED: Duration = Duration::from_secs(3600);

/// What is read in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// Who it is.
    Name {
        /// Its id.
        sandbox: String,
        /// The attempt in its metadata.
        attempt: String,
    },
    /// What became of the command.
    Command {
        /// Its id.
        sandbox: String,
        /// Who it is.
        hold: HoldId,
    },
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Who it is; nothing, before it is up.
    Name(Option<HoldId>),
    /// What became of the command.
    Command(Inside),
}

/// What was read in the sandboxes of one server.
pub(crate) struct Insides {
    state: Mutex<State>,
    /// Told when there is somebody to look after again.
    wanted: Notify,
    /// How long what was read of a running command is fresh.
    fresh: Duration,
    changes: mpsc::UnboundedSender<ObjectRef<Job>>,
}

#[derive(Default)]
struct State {
    /// By the Job's UID.
    watched: HashMap<String, Watched>,
    /// The ids of sandboxes that were just created, which lists may not show yet; by the Job's UID.
    prepared: HashMap<String, String>,
}

struct Watched {
    job: ObjectRef<Job>,
    spot: Spot,
    /// When the Job last asked.
    asked: Instant,
    /// When it was last read, with or without success.
    read: Option<Instant>,
    good: Option<Reading>,
    /// Why it could not be read lately, and since when.
    trouble: Option<(Why, Instant)>,
    /// What the Job knows of it.
    told: Option<Result<Reading, Why>>,
}

impl Watched {
    /// What is believed of it.
    fn believed(&self, patience: Duration) -> Option<Result<Reading, Why>> {
        match (&self.good, &self.trouble) {
            (Some(good), None) => Some(Ok(good.clone())),
            (Some(good), Some((_, since))) if since.elapsed() < patience => Some(Ok(good.clone())),
            (_, Some((why, since))) if self.may_be_coming_up(*since) => {
                Some(Err(Why::new(PENDING, why.message.clone())))
            }
            (_, Some((why, _))) => Some(Err(why.clone())),
            (None, None) => None,
        }
    }

    fn may_be_coming_up(&self, since: Instant) -> bool {
        matches!(self.spot, Spot::Name { .. }) && since.elapsed() < COMING_UP
    }

    fn is_final(&self) -> bool {
        match &self.good {
            Some(Reading::Command(inside)) => inside.is_final(),
            Some(Reading::Name(name)) => name.is_some(),
            None => false,
        }
    }

    /// Whether it is to be read again.
    fn is_due(&self, fresh: Duration) -> bool {
        let fresh = match self.spot {
            Spot::Name { .. } => Duration::ZERO,
            Spot::Command { .. } => fresh,
        };
        !self.is_final() && self.read.is_none_or(|read| read.elapsed() >= fresh)
    }
}

impl Insides {
    pub(crate) fn new(fresh: Duration, changes: mpsc::UnboundedSender<ObjectRef<Job>>) -> Self {
        Self {
            state: Mutex::default(),
            wanted: Notify::new(),
            fresh,
            changes,
        }
    }

    /// What was read there, if that is fresh or final, else what is read now. From now on the Job is told of changes.
    pub(crate) async fn follow(
        &self,
        client: &Client,
        uid: &str,
        job: ObjectRef<Job>,
        spot: &Spot,
    ) -> Result<Reading, Why> {
        if let Some(known) = self.known(uid, job, spot) {
            return known;
        }
        let read = self.look(client, uid, spot).await;
        // One failure is not news of what was seen just before.
        let state = self.state();
        let told = state.watched.get(uid).and_then(|watched| watched.told.clone());
        told.unwrap_or(read)
    }

    /// What is read there now.
    pub(crate) async fn look(&self, client: &Client, uid: &str, spot: &Spot) -> Result<Reading, Why> {
        let at = Instant::now();
        let read = execd::read(client, spot).await;
        self.note(uid, spot, &read, at);
        read
    }

    fn known(&self, uid: &str, job: ObjectRef<Job>, spot: &Spot) -> Option<Result<Reading, Why>> {
        let mut state = self.state();
        let now = Instant::now();
        if state.watched.is_empty() {
            self.wanted.notify_one();
        }
        match state.watched.get_mut(uid).filter(|watched| watched.spot == *spot) {
            Some(watched) => {
                watched.asked = now;
                if watched.is_due(self.fresh) {
                    return None;
                }
                watched.told = watched.believed(self.patience());
                watched.told.clone()
            }
            None => {
                let watched = Watched {
                    job,
                    spot: spot.clone(),
                    asked: now,
                    read: None,
                    good: None,
                    trouble: None,
                    told: None,
                };
                state.watched.insert(uid.to_owned(), watched);
                None
            }
        }
    }

    /// What is known for good of it, also when the sandbox does not answer any more.
    pub(crate) fn settled(&self, uid: &str, spot: &Spot) -> Option<Reading> {
        let state = self.state();
        let watched = state.watched.get(uid).filter(|watched| watched.spot == *spot)?;
        watched.good.clone().filter(|_| watched.is_final())
    }

    /// Whether nothing could be read for that long in the sandbox of a Job.
    pub(crate) fn are_silent_for(&self, uid: &str, time: SignedDuration) -> bool {
        let since = self
            .state()
            .watched
            .get(uid)
            .and_then(|watched| Some(watched.trouble.as_ref()?.1));
        let silent = since.and_then(|since| SignedDuration::try_from(since.elapsed()).ok());
        silent.is_some_and(|silent| silent >= time)
    }

    /// Remembers what was read; the Job, if it does not know yet what is believed now.
    fn note(
        &self,
        uid: &str,
        spot: &Spot,
        read: &Result<Reading, Why>,
        at: Instant,
    ) -> Option<ObjectRef<Job>> {
        let patience = self.patience();
        let mut state = self.state();
        let watched = state
            .watched
            .get_mut(uid)
            .filter(|watched| watched.spot == *spot)?;
        // What was asked for later is newer, and nothing follows what is final.
        if watched.is_final() || watched.read.is_some_and(|read| read > at) {
            return None;
        }
        watched.read = Some(at);
        match read {
            Ok(reading) => {
                watched.good = Some(reading.clone());
                watched.trouble = None;
            }
            Err(why) => {
                let since = watched.trouble.as_ref().map_or(at, |(_, since)| *since);
                watched.trouble = Some((why.clone(), since));
            }
        }
        let believed = watched.believed(patience);
        let news = believed != watched.told;
        watched.told = believed;
        news.then(|| watched.job.clone())
    }

    /// Reads everything that is due, and tells the Jobs of what is new.
    pub(crate) async fn refresh(&self, client: &Client) {
        stream::iter(self.due())
            .for_each_concurrent(AT_ONCE, async |(uid, spot)| {
                let at = Instant::now();
                let read = execd::read(client, &spot).await;
                if let Some(job) = self.note(&uid, &spot, &read, at) {
                    self.tell(job);
                }
            })
            .await;
    }

    fn due(&self) -> Vec<(String, Spot)> {
        let mut state = self.state();
        // Whoever still cares asks again.
        let left = state.watched.extract_if(|_, w| w.asked.elapsed() >= UNASKED);
        let left: Vec<_> = left.map(|(_, watched)| watched.job).collect();
        for job in left {
            self.tell(job);
        }
        let due = state
            .watched
            .iter()
            .filter(|(_, watched)| watched.is_due(self.fresh));
        due.map(|(uid, watched)| (uid.clone(), watched.spot.clone()))
            .collect()
    }

    /// Remembers a sandbox that was just created for a Job.
    pub(crate) fn note_prepared(&self, uid: &str, sandbox: &str) {
        self.state().prepared.insert(uid.to_owned(), sandbox.to_owned());
    }

    /// The sandbox that was last created for a Job.
    pub(crate) fn prepared(&self, uid: &str) -> Option<String> {
        self.state().prepared.get(uid).cloned()
    }

    /// Nobody needs news of this Job any more.
    pub(crate) fn forget(&self, uid: &str) {
        let mut state = self.state();
        state.watched.remove(uid);
        state.prepared.remove(uid);
    }

    /// The sandbox that was created for a Job does not exist any more.
    pub(crate) fn forget_prepared(&self, uid: &str) {
        self.state().prepared.remove(uid);
    }

    /// Whether anybody is interested.
    pub(crate) fn are_wanted(&self) -> bool {
        !self.state().watched.is_empty()
    }

    /// Returns once somebody is interested.
    pub(crate) async fn wanted(&self) {
        while !self.are_wanted() {
            self.wanted.notified().await;
        }
    }

    fn patience(&self) -> Duration {
        self.fresh.saturating_mul(PATIENCE)
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

    const ID: &str = "0f8e1c52-7d1b-4c0e-9d5a-3a5d2d8f6b11";

    fn spot() -> Spot {
        Spot::Command {
            sandbox: "sandbox".to_owned(),
            hold: HoldId::parse(ID).unwrap(),
        }
    }

    fn job() -> ObjectRef<Job> {
        ObjectRef::new("build").within("team")
    }

    fn away() -> Result<Reading, Why> {
        Err(Why::new(PENDING, "away"))
    }

    fn reading(inside: Inside) -> Result<Reading, Why> {
        Ok(Reading::Command(inside))
    }

    /// What was read for how long is fresh.
    fn insides(fresh: Duration) -> Insides {
        let insides = Insides::new(fresh, mpsc::unbounded_channel().0);
        assert_eq!(insides.known("uid", job(), &spot()), None);
        insides
    }

    #[test]
    fn a_job_is_told_of_what_it_does_not_know_and_of_nothing_else() {
        let insides = insides(Duration::from_secs(60));
        let started = reading(Inside::Started(None));
        let tell = |read: &_| insides.note("uid", &spot(), read, Instant::now());
        assert_eq!(tell(&reading(Inside::Held)), Some(job()));
        assert_eq!(tell(&reading(Inside::Held)), None);
        assert_eq!(tell(&started), Some(job()));
        // One failure is none yet.
        assert_eq!(tell(&away()), None);
        assert_eq!(insides.known("uid", job(), &spot()), Some(started.clone()));
        assert_eq!(tell(&started), None);
        assert_eq!(insides.note("another", &spot(), &started, Instant::now()), None);
    }

    #[test]
    fn a_sandbox_that_does_not_answer_for_long_is_not_believed_any_more_and_its_job_is_told_once() {
        let insides = insides(Duration::ZERO);
        let tell = |read: &_| insides.note("uid", &spot(), read, Instant::now());
        assert_eq!(tell(&reading(Inside::Started(None))), Some(job()));
        assert_eq!(tell(&away()), Some(job()));
        assert_eq!(tell(&away()), None);
        assert_eq!(tell(&reading(Inside::Started(None))), Some(job()));
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_waited_for_at_first_and_then_called_what_it_is() {
        let insides = insides(Duration::from_secs(60));
        let spot = Spot::Name {
            sandbox: "sandbox".to_owned(),
            attempt: "attempt".to_owned(),
        };
        assert_eq!(insides.known("new", job(), &spot), None);
        let refused = Err(Why::new("BackendUnavailable", "no address"));
        let told = |at: Instant| insides.note("new", &spot, &refused, at).is_some();
        let believed = || insides.known("new", job(), &spot);
        assert!(told(Instant::now()));
        let waited_for = insides.state().watched["new"].told.clone();
        assert_eq!(waited_for, Some(Err(Why::new(PENDING, "no address"))));
        assert!(!told(Instant::now()), "nothing is new");
        // What is due is read, and so not told from memory.
        assert_eq!(believed(), None);

        let long_ago = Instant::now().checked_sub(COMING_UP).unwrap();
        insides.state().watched.get_mut("new").unwrap().trouble = None;
        insides.state().watched.get_mut("new").unwrap().read = None;
        assert!(told(long_ago));
        assert_eq!(insides.state().watched["new"].told, Some(refused));
    }

    #[test]
    fn an_older_answer_does_not_replace_a_newer_one_and_nothing_replaces_an_end() {
        let insides = insides(Duration::from_secs(60));
        let early = Instant::now();
        let stopped = || reading(Inside::Stopped(None));
        insides.note("uid", &spot(), &reading(Inside::Started(None)), Instant::now());
        assert_eq!(insides.note("uid", &spot(), &reading(Inside::Held), early), None);
        assert_eq!(insides.settled("uid", &spot()), None);
        insides.note("uid", &spot(), &stopped(), Instant::now());
        assert_eq!(
            insides.note("uid", &spot(), &reading(Inside::Nothing), Instant::now()),
            None
        );
        assert_eq!(insides.note("uid", &spot(), &away(), Instant::now()), None);
        assert_eq!(insides.settled("uid", &spot()), stopped().ok());
        assert!(insides.due().is_empty());
        insides.forget("uid");
        assert!(!insides.are_wanted());
    }
}

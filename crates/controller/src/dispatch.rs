//! Which Job is looked at next, and by whom.
//!
//! kube's own controller polls everything that it has begun with whenever anything happens to any of it, which is fine
//! where few objects are looked at at a time. Of Jobs thousands may wait for their turn, as they do after a restart. So
//! those that wait are names in a line, one line for each room of [`Desks`], and only with a desk is work on one begun,
//! each in a task of its own. In a line namespaces take turns: thousands of Jobs in one hold up none in another.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::time::{DelayQueue, delay_queue};

use crate::desks::{Desk, Desks, Room};
use crate::kept::Kept;
use crate::telemetry::{Held, Metrics};

/// Whoever is to be looked at later than this is looked at then already: a queue of times has an end.
const AT_LATEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// A Job, by name.
type Name = ObjectRef<Kept>;

/// Gives Jobs that are to be looked at to whoever looks at them.
pub(crate) struct Dispatcher<F> {
    jobs: Store<Kept>,
    desks: Arc<Desks>,
    metrics: Metrics,
    /// Looks at a Job, and says after which time it is to be looked at again; if not at all, a change will tell.
    look: F,
    /// Those that wait, room by room. A line ends with its last Job.
    lines: HashMap<Room, Line>,
    /// In which line each waits. It may have left its name in another, where it does not wait any more.
    waiting: HashMap<Name, Waits>,
    /// The next desk of each room with a line.
    doors: FuturesUnordered<BoxFuture<'static, (Room, Option<Desk>)>>,
    /// Those that are looked at, and whether something happened to them meanwhile.
    working: HashMap<Name, bool>,
    tasks: JoinSet<(Name, Option<Duration>)>,
    /// Those that are to be looked at later, unless something happens to them before, and where they stand there.
    later: DelayQueue<Name>,
    alarms: HashMap<Name, delay_queue::Key>,
}

struct Waits {
    room: Room,
    _counted: Held,
}

/// Those who wait in one room.
#[derive(Default)]
struct Line {
    /// The namespaces of which any wait, in the order of their turns.
    turns: VecDeque<Option<String>>,
    of: HashMap<Option<String>, VecDeque<Name>>,
}

impl Line {
    fn push(&mut self, job: Name) {
        let namespace = &job.namespace;
        if !self.of.contains_key(namespace) {
            self.turns.push_back(namespace.clone());
        }
        self.of.entry(namespace.clone()).or_default().push_back(job);
    }

    fn pop(&mut self) -> Option<Name> {
        let namespace = self.turns.pop_front()?;
        let jobs = self.of.get_mut(&namespace)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.of.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        job
    }

    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

impl<F, L> Dispatcher<F>
where
    F: Fn(Name, Desk) -> L,
    L: Future<Output = Option<Duration>> + Send + 'static,
{
    pub(crate) fn new(jobs: Store<Kept>, desks: Arc<Desks>, metrics: Metrics, look: F) -> Self {
        Self {
            jobs,
            desks,
            metrics,
            look,
            lines: HashMap::new(),
            waiting: HashMap::new(),
            doors: FuturesUnordered::new(),
            working: HashMap::new(),
            tasks: JoinSet::new(),
            later: DelayQueue::new(),
            alarms: HashMap::new(),
        }
    }

    /// Has every Job of this queue looked at. Once it is to stop, nothing new is begun, and this returns when what is
    /// under way has ended; once all is `over`, that goes no step further either.
    pub(crate) async fn run(
        mut self,
        mut queue: UnboundedReceiver<Name>,
        stop: CancellationToken,
        over: CancellationToken,
    ) -> &'static str {
        loop {
            let stops = stop.is_cancelled();
            if stops {
                self.waiting.clear();
            }
            // There are only so many desks, so that those before the last two always come to an end.
            tokio::select! {
                biased;
                () = stop.cancelled(), if !stops => {}
                Some(looked) = self.tasks.join_next() => self.looked(looked),
                Some((room, desk)) = self.doors.next(), if !stops => self.enter(&room, desk, &over),
                Some(due) = self.later.next(), if !stops => self.line_up(due.into_inner()),
                Some(job) = queue.recv(), if !stops => self.line_up(job),
                else => return "the controller of Jobs",
            }
        }
    }

    /// This Job is to be looked at.
    fn line_up(&mut self, job: Name) {
        if let Some(alarm) = self.alarms.remove(&job) {
            self.later.try_remove(&alarm);
        }
        if let Some(again) = self.working.get_mut(&job) {
            *again = true;
            return;
        }
        // What is gone needs nobody.
        let Some(kept) = self.jobs.get(&job) else { return };
        let room = self.desks.room(&kept.class, kept.purpose);
        match self.waiting.entry(job.clone()) {
            Entry::Occupied(waits) if waits.get().room == room => return,
            Entry::Occupied(mut waits) => waits.get_mut().room = room.clone(),
            Entry::Vacant(place) => {
                place.insert(Waits {
                    room: room.clone(),
                    _counted: self.metrics.waits("job"),
                });
            }
        }
        let line = match self.lines.entry(room) {
            Entry::Occupied(line) => line.into_mut(),
            Entry::Vacant(place) => {
                self.doors.push(door(self.desks.clone(), place.key().clone()));
                place.insert(Line::default())
            }
        };
        line.push(job);
    }

    /// There is a desk in this room.
    fn enter(&mut self, room: &Room, desk: Option<Desk>, over: &CancellationToken) {
        let Some(desk) = desk else { return };
        let Some(line) = self.lines.get_mut(room) else {
            return;
        };
        let next = std::iter::from_fn(|| line.pop()).find(|job| {
            let waits_here = self.waiting.get(job).is_some_and(|waits| waits.room == *room);
            waits_here && self.waiting.remove(job).is_some() && self.jobs.get(job).is_some()
        });
        if line.is_empty() {
            self.lines.remove(room);
        } else {
            self.doors.push(door(self.desks.clone(), room.clone()));
        }
        if let Some(job) = next {
            let look = (self.look)(job.clone(), desk);
            self.working.insert(job.clone(), false);
            let over = over.clone().cancelled_owned();
            self.tasks.spawn(async move {
                let after = tokio::select! {
                    biased;
                    () = over => None,
                    after = look => after,
                };
                (job, after)
            });
        }
    }

    /// A Job was looked at.
    fn looked(&mut self, looked: Result<(Name, Option<Duration>), JoinError>) {
        let (job, after) = match looked {
            Ok(looked) => looked,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Tasks are ended with this alone.
                Err(_) => return,
            },
        };
        if self.working.remove(&job) == Some(true) {
            self.line_up(job);
        } else if let Some(after) = after {
            let alarm = self.later.insert(job.clone(), after.min(AT_LATEST));
            self.alarms.insert(job, alarm);
        }
    }
}

fn door(desks: Arc<Desks>, room: Room) -> BoxFuture<'static, (Room, Option<Desk>)> {
    async move {
        let desk = desks.free(&room).await;
        (room, desk)
    }
    .boxed()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ayatori_core::job::Job;
    use ayatori_core::job_class::JobClass;
    use kube::runtime::reflector::store::{Writer, store};
    use kube::runtime::watcher::Event;
    use tokio::sync::Semaphore;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::kept::Packer;

    /// Jobs, a dispatcher with one desk for each class, and what it had looked at.
    struct Office {
        jobs: Writer<Kept>,
        queue: UnboundedSender<Name>,
        looked: Arc<Mutex<Vec<String>>>,
        /// A look ends when it gets one.
        ends: Arc<Semaphore>,
        desks: Arc<Desks>,
        stop: CancellationToken,
        over: CancellationToken,
        runs: JoinHandle<&'static str>,
        _classes: Writer<JobClass>,
    }

    /// With Jobs of these names and classes; each look takes until `ends`, and comes back after `after`. Those whose names
    /// begin with a capital letter are in a namespace of their own.
    fn office(jobs: &[(&str, &str)], after: Option<Duration>) -> Office {
        let (classes, mut writer) = store();
        for class in jobs.iter().map(|(_, class)| class) {
            writer.apply_watcher_event(&Event::Apply(JobClass::new(class, Default::default())));
        }
        let (store, mut kept) = store();
        for (name, class) in jobs {
            kept.apply_watcher_event(&Event::Apply(packed(name, class)));
        }
        let (queue, receiver) = unbounded_channel();
        let (looked, ends) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(Semaphore::new(0)));
        let desks = Arc::new(Desks::new(1, classes));
        let (stop, over) = (CancellationToken::new(), CancellationToken::new());
        let look = {
            let (looked, ends) = (looked.clone(), ends.clone());
            move |job: Name, desk: Desk| {
                let (looked, ends) = (looked.clone(), ends.clone());
                async move {
                    looked.lock().expect("nobody panics").push(job.name.clone());
                    assert_ne!(job.name, "bomb");
                    ends.acquire().await.expect("it is open").forget();
                    drop(desk);
                    after
                }
            }
        };
        let dispatcher = Dispatcher::new(store, desks.clone(), Metrics::default(), look);
        Office {
            jobs: kept,
            queue,
            looked,
            ends,
            desks,
            runs: tokio::spawn(dispatcher.run(receiver, stop.clone(), over.clone())),
            over,
            stop,
            _classes: writer,
        }
    }

    fn namespace(name: &str) -> &'static str {
        if name.starts_with(char::is_uppercase) {
            "NS"
        } else {
            "ns"
        }
    }

    fn packed(name: &str, class: &str) -> Kept {
        let mut job = Job::new(name, Default::default());
        job.metadata.namespace = Some(namespace(name).to_owned());
        job.spec.job_class_name = Some(class.to_owned());
        Packer::default().pack(&job)
    }

    impl Office {
        fn wake(&self, name: &str) {
            let name = Name::new(name).within(namespace(name));
            self.queue.send(name).expect("the dispatcher listens");
        }

        /// What had been looked at, as soon as these were, and nothing else within the time that everything takes.
        async fn sees(&self, expected: &[&str]) {
            let seen = async {
                while self.looked.lock().expect("nobody panics").len() < expected.len() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(Duration::from_secs(60), seen)
                .await
                .expect("it is looked at");
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(*self.looked.lock().expect("nobody panics"), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_a_desk_waits_in_line_and_holds_up_no_other_class() {
        let office = office(
            &[("a", "slow"), ("b", "slow"), ("c", "slow"), ("d", "other")],
            None,
        );
        for name in ["a", "b", "c", "b", "d"] {
            office.wake(name);
        }
        office.sees(&["a", "d"]).await;
        office.ends.add_permits(2);
        office.sees(&["a", "d", "b"]).await;
        office.ends.add_permits(2);
        office.sees(&["a", "d", "b", "c"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_full_of_jobs_holds_up_no_other() {
        let all = ["a", "b", "c", "d", "E", "F"];
        let office = office(&all.map(|name| (name, "class")), None);
        for name in all {
            office.wake(name);
        }
        office.ends.add_permits(all.len());
        office.sees(&["a", "b", "E", "c", "F", "d"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_happens_during_a_look_is_looked_at_afterwards_and_never_beside_it() {
        let office = office(&[("a", "class")], None);
        office.wake("a");
        office.sees(&["a"]).await;
        office.wake("a");
        office.wake("a");
        office.sees(&["a"]).await;
        office.ends.add_permits(1);
        office.sees(&["a", "a"]).await;
        office.ends.add_permits(1);
        office.sees(&["a", "a"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_comes_back_when_it_says_so_or_earlier_if_something_happens() {
        let office = office(&[("a", "class")], Some(Duration::from_secs(100)));
        office.ends.add_permits(9);
        office.wake("a");
        office.sees(&["a"]).await;
        tokio::time::sleep(Duration::from_secs(99)).await;
        office.sees(&["a"]).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        office.sees(&["a", "a"]).await;
        tokio::time::sleep(Duration::from_secs(50)).await;
        office.wake("a");
        office.sees(&["a", "a", "a"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_in_the_next_century_waits_without_harm() {
        let office = office(&[("a", "class")], Some(Duration::MAX));
        office.ends.add_permits(9);
        office.wake("a");
        office.sees(&["a"]).await;
        office.wake("a");
        office.sees(&["a", "a"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_changes_rooms_while_waiting_waits_in_the_new_one_alone() {
        let mut office = office(
            &[("a", "slow"), ("b", "slow"), ("c", "slow"), ("d", "other")],
            None,
        );
        for name in ["a", "b", "c"] {
            office.wake(name);
        }
        office.sees(&["a"]).await;
        let moved = packed("b", "other");
        office.jobs.apply_watcher_event(&Event::Apply(moved));
        office.wake("b");
        office.sees(&["a", "b"]).await;
        office.ends.add_permits(2);
        office.sees(&["a", "b", "c"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_gone_takes_no_turn() {
        let mut office = office(&[("a", "slow"), ("b", "slow"), ("c", "slow")], None);
        for name in ["a", "b", "c", "never-was"] {
            office.wake(name);
        }
        office.sees(&["a"]).await;
        let gone = packed("b", "slow");
        office.jobs.apply_watcher_event(&Event::Delete(gone));
        office.ends.add_permits(9);
        office.sees(&["a", "c"]).await;
    }

    #[tokio::test(start_paused = true)]
    async fn once_it_is_to_stop_nothing_is_begun_and_what_was_is_finished() {
        let office = office(&[("a", "slow"), ("b", "slow")], Some(Duration::ZERO));
        office.wake("a");
        office.wake("b");
        office.sees(&["a"]).await;
        office.wake("a");
        office.stop.cancel();
        office.desks.close();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!office.runs.is_finished(), "a is under way");
        office.ends.add_permits(9);
        office.sees(&["a"]).await;
        timeout(Duration::from_secs(1), office.runs)
            .await
            .expect("it stops")
            .expect("in order");
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_is_over_what_is_under_way_goes_no_step_further() {
        let office = office(&[("a", "class")], None);
        office.wake("a");
        office.sees(&["a"]).await;
        office.over.cancel();
        office.ends.add_permits(1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(office.ends.available_permits(), 1, "nobody went on to take it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_of_a_look_is_one_of_everything() {
        let office = office(&[("bomb", "class")], None);
        office.wake("bomb");
        let ended = timeout(Duration::from_secs(1), office.runs).await;
        assert!(ended.expect("it ends").is_err_and(|error| error.is_panic()));
    }
}

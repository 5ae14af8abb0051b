//! How many sandboxes one server is asked to create at a time, and when.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ayatori_core::conditions::PENDING;
use ayatori_core::execution::Why;
use ayatori_core::job::Job;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;

/// How long a Job that was told of a free slot may take to come for it, before the next one is told.
const COMES_WITHIN: Duration = Duration::from_secs(2);

/// The slots of one server. Whoever finds none is told when one is free, in the order of asking, and holds up
/// nothing meanwhile.
#[derive(Clone)]
pub(crate) struct Slots(Arc<Inside>);

struct Inside {
    state: Mutex<State>,
    changes: mpsc::UnboundedSender<ObjectRef<Job>>,
}

struct State {
    free: usize,
    /// The server has asked to be left alone until then.
    closed_until: Option<Instant>,
    queue: VecDeque<ObjectRef<Job>>,
    queued: HashSet<ObjectRef<Job>>,
}

/// The right to send one create request.
pub struct Slot(Arc<Inside>);

impl Slots {
    pub(crate) fn new(count: usize, changes: mpsc::UnboundedSender<ObjectRef<Job>>) -> Self {
        Self(Arc::new(Inside {
            state: Mutex::new(State {
                free: count,
                closed_until: None,
                queue: VecDeque::new(),
                queued: HashSet::new(),
            }),
            changes,
        }))
    }

    /// A slot, if there is one now. Otherwise the Job is told of the next.
    pub(crate) fn take(&self, job: ObjectRef<Job>) -> Result<Slot, Why> {
        let mut state = self.0.state();
        let why = match state.closed_for() {
            Some(left) => Why::new(
                "BackendAtCapacity",
                // Not how long exactly: every other number would be another message to store.
                format!(
                    "the server has no room and asked to be left alone; it is asked again within {} min",
                    left.as_secs().div_ceil(60)
                ),
            ),
            None => match state.free.checked_sub(1) {
                Some(free) => {
                    state.free = free;
                    return Ok(Slot(self.0.clone()));
                }
                None => Why::new(
                    PENDING,
                    "the server is asked to create as many sandboxes as it may be at a time; this one has its turn",
                ),
            },
        };
        if state.queued.insert(job.clone()) {
            state.queue.push_back(job);
        }
        Err(why)
    }

    /// Gives out none for this long.
    pub(crate) fn close_for(&self, time: Duration) {
        let Some(until) = Instant::now().checked_add(time) else {
            return;
        };
        let mut state = self.0.state();
        if state.closed_until.is_none_or(|known| known < until) {
            state.closed_until = Some(until);
            drop(state);
            self.0.tell_after(time);
        }
    }
}

impl State {
    fn closed_for(&self) -> Option<Duration> {
        let left = self.closed_until?.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }
}

impl Inside {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells as many of those who wait as there are free slots.
    fn tell(self: &Arc<Self>) {
        let mut state = self.state();
        if state.closed_for().is_some() {
            return;
        }
        for _ in 0..state.free {
            let Some(next) = state.queue.pop_front() else {
                return;
            };
            state.queued.remove(&next);
            // Fails only while the process ends.
            let _ = self.changes.send(next);
        }
        if state.free > 0 && !state.queue.is_empty() {
            // One of them may not come: it was stopped, or is gone.
            self.tell_after(COMES_WITHIN);
        }
    }

    fn tell_after(self: &Arc<Self>, time: Duration) {
        let inside = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(time).await;
                inside.tell();
            });
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut state = self.0.state();
            state.free = state.free.saturating_add(1);
        }
        self.0.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> ObjectRef<Job> {
        ObjectRef::<Job>::new(name).within("team")
    }

    #[test]
    fn who_found_no_slot_is_told_of_the_next_once_and_in_order() {
        let (changes, mut told) = mpsc::unbounded_channel();
        let slots = Slots::new(1, changes);
        let taken = slots.take(job("a")).ok();
        assert!(taken.is_some());
        for waits in ["b", "c", "b"] {
            assert_eq!(slots.take(job(waits)).err().unwrap().reason, PENDING);
        }
        assert!(told.try_recv().is_err());
        drop(taken);
        assert_eq!(told.try_recv().unwrap(), job("b"));
        let taken = slots.take(job("b")).ok();
        assert!(told.try_recv().is_err(), "one at a time");
        drop(taken);
        assert_eq!(told.try_recv().unwrap(), job("c"));
        assert!(told.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_does_not_come_keeps_nobody_waiting() {
        let (changes, mut told) = mpsc::unbounded_channel();
        let slots = Slots::new(1, changes);
        let taken = slots.take(job("a")).ok();
        assert!(slots.take(job("gone")).is_err() && slots.take(job("b")).is_err());
        drop(taken);
        assert_eq!(told.recv().await.unwrap(), job("gone"));
        assert_eq!(told.recv().await.unwrap(), job("b"));
    }

    #[tokio::test]
    async fn a_server_that_asked_to_be_left_alone_is_and_then_all_are_told() {
        let (changes, mut told) = mpsc::unbounded_channel();
        let slots = Slots::new(2, changes);
        slots.close_for(Duration::from_millis(50));
        for waits in ["a", "b"] {
            assert_eq!(slots.take(job(waits)).err().unwrap().reason, "BackendAtCapacity");
        }
        assert_eq!(told.recv().await.unwrap(), job("a"));
        assert_eq!(told.recv().await.unwrap(), job("b"));
        assert!(slots.take(job("a")).is_ok());
    }
}

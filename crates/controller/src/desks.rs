//! Who may work at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ayatori_core::job::Job;
use ayatori_core::stage::is_deleting;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places to work at: so many for each class, so that a class whose backend does not answer leaves those of others
/// free; and as many again for its Jobs that are being deleted, which may have nothing there to wait for.
pub struct Desks {
    of_each: usize,
    rooms: Mutex<Rooms>,
}

/// A taken place.
pub type Desk = OwnedSemaphorePermit;

#[derive(Default)]
struct Rooms {
    open: HashMap<(String, bool), Arc<Semaphore>>,
    closed: bool,
}

impl Desks {
    /// So many places for each class.
    pub fn new(of_each: u16) -> Self {
        Self {
            of_each: of_each.into(),
            rooms: Mutex::default(),
        }
    }

    /// A place for this Job, as soon as there is one; `None` once no new work is begun.
    pub async fn free(&self, job: &Job) -> Option<Desk> {
        self.room(job)?.acquire_owned().await.ok()
    }

    /// Begins no new work. Whoever has a place keeps it.
    pub fn close(&self) {
        let mut rooms = self.rooms();
        rooms.closed = true;
        rooms.open.values().for_each(|room| room.close());
    }

    fn room(&self, job: &Job) -> Option<Arc<Semaphore>> {
        let resolved = job.status.as_ref().and_then(|s| s.resolved_job_class.as_ref());
        let class = resolved.map_or_else(
            || job.spec.job_class_name.clone().unwrap_or_default(),
            |class| class.name.clone(),
        );
        let mut rooms = self.rooms();
        if rooms.closed {
            return None;
        }
        // Nobody works or waits where this is the only one who knows of the room.
        rooms.open.retain(|_, room| Arc::strong_count(room) > 1);
        let room = rooms.open.entry((class, is_deleting(job)));
        Some(
            room.or_insert_with(|| Arc::new(Semaphore::new(self.of_each)))
                .clone(),
        )
    }

    fn rooms(&self) -> std::sync::MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn job(class: &str) -> Job {
        let mut job = Job::default();
        job.spec.job_class_name = Some(class.to_owned());
        job
    }

    #[test]
    fn a_class_that_takes_all_its_places_leaves_those_of_others_and_of_what_goes() {
        let desks = Desks::new(1);
        let take = |job: &Job| desks.free(job).now_or_never().map(|desk| desk.is_some());
        let (slow, other) = (job("slow"), job("other"));
        let mut going = job("slow");
        going.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));

        let taken = desks.free(&slow).now_or_never().expect("it is free");
        assert_eq!(take(&slow), None, "one place only");
        assert_eq!(take(&other), Some(true));
        assert_eq!(take(&going), Some(true));
        drop(taken);
        assert_eq!(take(&slow), Some(true));
    }

    #[test]
    fn once_closed_nobody_begins_not_even_who_waits() {
        let desks = Desks::new(1);
        let job = job("slow");
        let taken = desks.free(&job).now_or_never().expect("it is free");
        let mut waits = Box::pin(desks.free(&job));
        assert!(waits.as_mut().now_or_never().is_none());
        desks.close();
        assert!(taken.is_some());
        assert!(waits.now_or_never().expect("it waits no more").is_none());
        assert!(
            desks
                .free(&job)
                .now_or_never()
                .expect("nor does anybody")
                .is_none()
        );
    }
}

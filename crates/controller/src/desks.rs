//! Who may work at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ayatori_core::job::Job;
use ayatori_core::job_class::JobClass;
use ayatori_core::stage::is_deleting;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places to work at: so many for each class, so that a class whose backend does not answer leaves those of others
/// free; as many again for its Jobs that are being deleted, which may have nothing there to wait for; and fewer for
/// what only has to be cleaned up. Jobs of no class that exists share one room: whoever creates Jobs can make names up,
/// and must not get places by that.
pub struct Desks {
    of_each: usize,
    classes: Store<JobClass>,
    rooms: Mutex<Rooms>,
}

/// A taken place.
pub type Desk = OwnedSemaphorePermit;

/// Places of others for one of what is to be cleaned up. Thousands of TTLs may end at once, and cleaning up after the
/// Jobs that are deleted by then must not keep the API server from deleting the rest.
const FOR_ONE_CLEAN_UP: usize = 4;

/// What a Job takes a place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// It is there to run, or has run and is kept.
    Life,
    /// It is being deleted, and is stopped first if anything of it may run.
    End,
    /// It is being deleted and was released: nobody waits for what is left of it.
    CleanUp,
}

impl Purpose {
    /// That of a Job.
    pub fn of(job: &Job) -> Self {
        let execution = job.status.as_ref().and_then(|status| status.execution.as_ref());
        if !is_deleting(job) {
            Self::Life
        } else if execution.is_some_and(|execution| execution.release_time.is_some()) {
            Self::CleanUp
        } else {
            Self::End
        }
    }
}

/// Those who share places.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// Empty for no class that exists.
    class: String,
    purpose: Purpose,
}

#[derive(Default)]
struct Rooms {
    open: HashMap<Room, Arc<Semaphore>>,
    closed: bool,
}

impl Desks {
    /// So many places for each of these classes.
    pub fn new(of_each: u16, classes: Store<JobClass>) -> Self {
        Self {
            of_each: of_each.into(),
            classes,
            rooms: Mutex::default(),
        }
    }

    /// The room of the Jobs of this class that take a place for the same.
    pub fn room(&self, class: &str, purpose: Purpose) -> Room {
        let exists = self.classes.get(&ObjectRef::new(class)).is_some();
        let class = if exists { class } else { "" }.to_owned();
        Room { class, purpose }
    }

    /// A place in this room, as soon as there is one; `None` once no new work is begun.
    pub async fn free(&self, room: &Room) -> Option<Desk> {
        self.places(room)?.acquire_owned().await.ok()
    }

    /// Begins no new work. Whoever has a place keeps it.
    pub fn close(&self) {
        let mut rooms = self.rooms();
        rooms.closed = true;
        rooms.open.values().for_each(|room| room.close());
    }

    fn places(&self, room: &Room) -> Option<Arc<Semaphore>> {
        let mut rooms = self.rooms();
        if rooms.closed {
            return None;
        }
        // Nobody works or waits where this is the only one who knows of the room.
        rooms.open.retain(|_, room| Arc::strong_count(room) > 1);
        let many = match room.purpose {
            Purpose::Life | Purpose::End => self.of_each,
            Purpose::CleanUp => self.of_each.div_ceil(FOR_ONE_CLEAN_UP),
        };
        let places = rooms.open.entry(room.clone());
        Some(places.or_insert_with(|| Arc::new(Semaphore::new(many))).clone())
    }

    fn rooms(&self) -> std::sync::MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use ayatori_core::job::{Execution, JobStatus};
    use futures::FutureExt;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::runtime::reflector::store;
    use kube::runtime::watcher::Event;

    use super::*;

    /// One place for each class, where these exist.
    fn desks(classes: &[&str]) -> Desks {
        offering(1, classes)
    }

    fn offering(of_each: u16, classes: &[&str]) -> Desks {
        let (known, mut writer) = store();
        for class in classes {
            let class = JobClass::new(class, Default::default());
            writer.apply_watcher_event(&Event::Apply(class));
        }
        Desks::new(of_each, known)
    }

    #[test]
    fn a_class_that_takes_all_its_places_leaves_those_of_others_and_of_what_goes() {
        let desks = desks(&["slow", "other"]);
        let take = |class, purpose| {
            let desk = desks.free(&desks.room(class, purpose)).now_or_never();
            desk.map(|desk| desk.is_some())
        };
        let taken = [Purpose::Life, Purpose::CleanUp].map(|purpose| {
            let room = desks.room("slow", purpose);
            desks.free(&room).now_or_never().expect("it is free")
        });
        assert_eq!(take("slow", Purpose::Life), None, "one place only");
        assert_eq!(take("other", Purpose::Life), Some(true));
        assert_eq!(take("slow", Purpose::End), Some(true));
        drop(taken);
        assert_eq!(take("slow", Purpose::Life), Some(true));
    }

    #[test]
    fn what_is_cleaned_up_takes_few_places_and_never_none() {
        let places = |of_each: u16, purpose| {
            let desks = offering(of_each, &["class"]);
            let room = desks.room("class", purpose);
            let all: Vec<_> = std::iter::from_fn(|| desks.free(&room).now_or_never().flatten()).collect();
            all.len()
        };
        let of_each = [Purpose::Life, Purpose::End, Purpose::CleanUp];
        assert_eq!(of_each.map(|purpose| places(32, purpose)), [32, 32, 8]);
        assert_eq!(of_each.map(|purpose| places(5, purpose)), [5, 5, 2]);
        assert_eq!(of_each.map(|purpose| places(1, purpose)), [1, 1, 1]);
    }

    #[test]
    fn what_may_still_run_is_never_taken_for_what_is_cleaned_up() {
        let job = |deleted: bool, execution: Option<Execution>| {
            let mut job = Job::new("job", Default::default());
            job.metadata.deletion_timestamp = deleted.then_some(Time(Timestamp::UNIX_EPOCH));
            job.status = execution.map(|execution| JobStatus {
                execution: Some(execution),
                ..JobStatus::default()
            });
            Purpose::of(&job)
        };
        let released = Execution {
            release_time: Some(Time(Timestamp::UNIX_EPOCH)),
            ..Execution::default()
        };
        assert_eq!(job(false, Some(released.clone())), Purpose::Life);
        assert_eq!(job(true, None), Purpose::End);
        assert_eq!(job(true, Some(Execution::default())), Purpose::End);
        assert_eq!(job(true, Some(released)), Purpose::CleanUp);
    }

    #[test]
    fn names_that_are_made_up_get_no_places_of_their_own() {
        let desks = desks(&["real"]);
        let room = |class: &str| {
            desks
                .free(&desks.room(class, Purpose::Life))
                .now_or_never()
                .flatten()
        };
        let taken: Vec<_> = (0..100).filter_map(|n| room(&format!("made-up-{n}"))).collect();
        assert_eq!(taken.len(), 1, "one place for all of them");
        assert!(room("").is_none(), "and for those that name none");
        assert!(room("real").is_some());
    }

    #[test]
    fn once_closed_nobody_begins_not_even_who_waits() {
        let desks = desks(&["slow"]);
        let room = desks.room("slow", Purpose::Life);
        let taken = desks.free(&room).now_or_never().expect("it is free");
        let mut waits = Box::pin(desks.free(&room));
        assert!(waits.as_mut().now_or_never().is_none());
        desks.close();
        assert!(taken.is_some());
        assert!(waits.now_or_never().expect("it waits no more").is_none());
        assert!(
            desks
                .free(&room)
                .now_or_never()
                .expect("nor does anybody")
                .is_none()
        );
    }
}

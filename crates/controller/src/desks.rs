//! Who may work at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ayatori_core::job_class::JobClass;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places to work at: so many for each class, so that a class whose backend does not answer leaves those of others
/// free. Its Jobs that are being deleted have places of their own, since they may have nothing there to wait for, and
/// fewer: thousands may go at once, and must not take the API server from those that are to start or whose TTL ends.
/// Jobs of no class that exists share one room: whoever creates Jobs can make names up, and must not get places by that.
pub struct Desks {
    of_each: usize,
    classes: Store<JobClass>,
    rooms: Mutex<Rooms>,
}

/// A taken place.
pub type Desk = OwnedSemaphorePermit;

/// One place of what is being deleted for so many others.
const OTHERS: usize = 4;

/// Those who share places.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// Empty for no class that exists.
    class: String,
    is_deleting: bool,
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

    /// The room of a Job of this class.
    pub fn room(&self, class: &str, is_deleting: bool) -> Room {
        let exists = self.classes.get(&ObjectRef::new(class)).is_some();
        let class = if exists { class } else { "" }.to_owned();
        Room { class, is_deleting }
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
        let many = if room.is_deleting {
            self.of_each.div_ceil(OTHERS)
        } else {
            self.of_each
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
    use futures::FutureExt;
    use kube::runtime::reflector::store;
    use kube::runtime::watcher::Event;

    use super::*;

    /// One place for each class, where these exist.
    fn desks(classes: &[&str]) -> Desks {
        let (known, mut writer) = store();
        for class in classes {
            let class = JobClass::new(class, Default::default());
            writer.apply_watcher_event(&Event::Apply(class));
        }
        Desks::new(1, known)
    }

    #[test]
    fn a_class_that_takes_all_its_places_leaves_those_of_others_and_of_what_goes() {
        let desks = desks(&["slow", "other"]);
        let take = |class, is_deleting| {
            let desk = desks.free(&desks.room(class, is_deleting)).now_or_never();
            desk.map(|desk| desk.is_some())
        };
        let taken = desks
            .free(&desks.room("slow", false))
            .now_or_never()
            .expect("it is free");
        assert_eq!(take("slow", false), None, "one place only");
        assert_eq!(take("other", false), Some(true));
        assert_eq!(take("slow", true), Some(true));
        drop(taken);
        assert_eq!(take("slow", false), Some(true));
    }

    #[test]
    fn what_goes_takes_few_places_and_never_none() {
        let free = |of_each: u16, is_deleting| {
            let (known, mut writer) = store();
            writer.apply_watcher_event(&Event::Apply(JobClass::new("class", Default::default())));
            let desks = Desks::new(of_each, known);
            let room = desks.room("class", is_deleting);
            let all: Vec<_> = std::iter::from_fn(|| desks.free(&room).now_or_never().flatten()).collect();
            all.len()
        };
        assert_eq!((free(32, false), free(32, true)), (32, 8));
        assert_eq!((free(1, false), free(1, true)), (1, 1));
    }

    #[test]
    fn names_that_are_made_up_get_no_places_of_their_own() {
        let desks = desks(&["real"]);
        let room = |class: &str| desks.free(&desks.room(class, false)).now_or_never().flatten();
        let taken: Vec<_> = (0..100).filter_map(|n| room(&format!("made-up-{n}"))).collect();
        assert_eq!(taken.len(), 1, "one place for all of them");
        assert!(room("").is_none(), "and for those that name none");
        assert!(room("real").is_some());
    }

    #[test]
    fn once_closed_nobody_begins_not_even_who_waits() {
        let desks = desks(&["slow"]);
        let room = desks.room("slow", false);
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

//! Local copies of what a watch shows, found by name and by whom they belong to.
//!
//! The store of `kube::runtime::reflector` finds objects by name only; a pod has to be found by the UID of its
//! Job, among tens of thousands.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock};

use hashbrown::HashTable;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use crate::view::{BatchJob, Node, Pod, Refusal, View};

/// Something a [`Cache`] can hold.
pub(crate) trait Cached {
    /// Namespace and name.
    fn key(&self) -> Key<'_>;
    /// UID of what it belongs to; empty where it belongs to nothing.
    fn owner(&self) -> &str;
}

/// Namespace and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key<'a>(pub(crate) &'a str, pub(crate) &'a str);

/// A local copy. Until it is filled it shows nothing.
#[derive(Debug)]
pub(crate) struct Cache<V> {
    content: RwLock<Content<V>>,
    filled: watch::Sender<bool>,
}

/// Values alone: there are tens of thousands of them, and their keys are in them.
#[derive(Debug)]
struct Content<V> {
    by_name: HashTable<Arc<V>>,
    /// Without those that belong to nothing.
    by_owner: HashTable<Arc<V>>,
    hasher: RandomState,
}

/// The other end of a [`Cache`], fed by one watch.
#[derive(Debug)]
pub(crate) struct Filler<V> {
    cache: Arc<Cache<V>>,
    relisted: Content<V>,
}

/// An empty cache and what fills it.
pub(crate) fn new<V: Cached>() -> (Arc<Cache<V>>, Filler<V>) {
    let cache = Arc::new(Cache {
        content: RwLock::default(),
        filled: watch::Sender::new(false),
    });
    (
        cache.clone(),
        Filler {
            cache,
            relisted: Content::default(),
        },
    )
}

impl<V: Cached> Cache<V> {
    /// Returns once it has been filled.
    pub(crate) async fn filled(&self) {
        // The sender lives as long as `self`.
        let _ = self.filled.subscribe().wait_for(|filled| *filled).await;
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<V>> {
        self.read().get(Key(namespace, name)).cloned()
    }

    pub(crate) fn of(&self, owner: &str) -> Vec<Arc<V>> {
        self.read().of(owner)
    }

    pub(crate) fn filter(&self, wanted: impl Fn(&V) -> bool) -> Vec<Arc<V>> {
        self.read()
            .by_name
            .iter()
            .filter(|v| wanted(v))
            .cloned()
            .collect()
    }

    pub(crate) fn each(&self, show: impl FnMut(&V)) {
        self.read().by_name.iter().map(|value| &**value).for_each(show);
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Content<V>> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V: Cached + PartialEq> Filler<V> {
    /// Takes in what the watch showed, and tells what is different now: after a new list, everything that is
    /// there and everything that was.
    pub(crate) fn apply(&mut self, event: &Event<Arc<V>>) -> Vec<Arc<V>> {
        match event {
            Event::Init => self.relisted = Content::default(),
            Event::InitApply(value) => drop(self.relisted.put(value.clone())),
            Event::InitDone => {
                let new = std::mem::take(&mut self.relisted);
                let mut changed: Vec<_> = new.by_name.iter().cloned().collect();
                let old = std::mem::replace(&mut *self.write(), new);
                self.cache.filled.send_replace(true);
                let now = self.cache.read();
                changed.extend(old.by_name.into_iter().filter(|v| now.get(v.key()).is_none()));
                return changed;
            }
            Event::Apply(value) => {
                let old = self.write().put(value.clone());
                if old.as_ref() != Some(value) {
                    return vec![value.clone()];
                }
            }
            Event::Delete(value) => {
                self.write().remove(value.key());
                return vec![value.clone()];
            }
        }
        Vec::new()
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Content<V>> {
        self.cache.content.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Default for Content<V> {
    fn default() -> Self {
        Self {
            by_name: HashTable::new(),
            by_owner: HashTable::new(),
            hasher: RandomState::new(),
        }
    }
}

impl<V: Cached> Content<V> {
    fn get(&self, key: Key<'_>) -> Option<&Arc<V>> {
        self.by_name.find(self.hasher.hash_one(key), |v| v.key() == key)
    }

    fn of(&self, owner: &str) -> Vec<Arc<V>> {
        let same_hash = self.by_owner.iter_hash(self.hasher.hash_one(owner));
        same_hash.filter(|v| v.owner() == owner).cloned().collect()
    }

    fn put(&mut self, value: Arc<V>) -> Option<Arc<V>> {
        let old = self.remove(value.key());
        let Self {
            by_name,
            by_owner,
            hasher,
        } = self;
        let by_key = |v: &Arc<V>| hasher.hash_one(v.key());
        let by_its_owner = |v: &Arc<V>| hasher.hash_one(v.owner());
        if !value.owner().is_empty() {
            by_owner.insert_unique(by_its_owner(&value), value.clone(), by_its_owner);
        }
        by_name.insert_unique(by_key(&value), value, by_key);
        old
    }

    fn remove(&mut self, key: Key<'_>) -> Option<Arc<V>> {
        let found = self
            .by_name
            .find_entry(self.hasher.hash_one(key), |v| v.key() == key);
        let (old, _) = found.ok()?.remove();
        let of_owner = self.hasher.hash_one(old.owner());
        if let Ok(found) = self.by_owner.find_entry(of_owner, |v| Arc::ptr_eq(v, &old)) {
            found.remove();
        }
        Some(old)
    }
}

impl Cached for BatchJob {
    fn key(&self) -> Key<'_> {
        Key(&self.id.namespace, &self.id.name)
    }

    fn owner(&self) -> &str {
        &self.id.job_uid
    }
}

impl Cached for Pod {
    fn key(&self) -> Key<'_> {
        Key(&self.id.namespace, &self.id.name)
    }

    fn owner(&self) -> &str {
        &self.id.job_uid
    }
}

impl Cached for Node {
    fn key(&self) -> Key<'_> {
        Key("", &self.name)
    }

    fn owner(&self) -> &str {
        ""
    }
}

impl Cached for Refusal {
    fn key(&self) -> Key<'_> {
        Key(&self.namespace, &self.name)
    }

    fn owner(&self) -> &str {
        &self.batch_uid
    }
}

/// The name of a RuntimeClass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RuntimeClassName(pub(crate) String);

impl View for RuntimeClassName {
    type Object = RuntimeClass;

    fn of(class: RuntimeClass) -> Self {
        Self(class.metadata.name.unwrap_or_default())
    }
}

impl Cached for RuntimeClassName {
    fn key(&self) -> Key<'_> {
        Key("", &self.0)
    }

    fn owner(&self) -> &str {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Identity;

    fn pod(name: &str, job_uid: &str) -> Arc<Pod> {
        let id = Identity {
            name: name.to_owned(),
            job_uid: job_uid.to_owned(),
            ..Identity::default()
        };
        Arc::new(Pod { id, ..Pod::default() })
    }

    fn names(cache: &Cache<Pod>, owner: &str) -> Vec<String> {
        let mut names: Vec<_> = cache.of(owner).iter().map(|p| p.id.name.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn pods_are_found_by_the_job_their_latest_label_names() {
        let (cache, mut filler) = new::<Pod>();
        for event in [
            Event::Apply(pod("a", "1")),
            Event::Apply(pod("b", "1")),
            Event::Apply(pod("b", "2")),
            Event::Apply(pod("c", "1")),
            Event::Delete(pod("c", "1")),
        ] {
            filler.apply(&event);
        }
        assert_eq!(
            (names(&cache, "1"), names(&cache, "2")),
            (vec!["a".to_owned()], vec!["b".to_owned()])
        );
    }

    #[test]
    fn a_new_list_replaces_everything_at_once_and_fills_the_cache() {
        let (cache, mut filler) = new::<Pod>();
        filler.apply(&Event::Apply(pod("old", "1")));
        filler.apply(&Event::Init);
        filler.apply(&Event::InitApply(pod("new", "1")));
        assert_eq!(names(&cache, "1"), ["old"]);
        assert!(!*cache.filled.borrow());
        filler.apply(&Event::InitDone);
        assert_eq!(names(&cache, "1"), ["new"]);
        assert!(*cache.filled.borrow());
    }
}

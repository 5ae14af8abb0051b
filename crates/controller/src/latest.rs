//! What this process wrote and its cache does not show yet.
//!
//! A watch lags behind the writes of the process that runs it. Deciding on the older copy would only lead to
//! a conflict; so after a write the returned object is remembered, and used for as long as the cache still
//! shows one of the versions that it replaced.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::Resource;

/// How long a watch may lag. What is older than that is forgotten, also of objects that are gone.
const LAG: Duration = Duration::from_secs(60);

/// The newest copies of objects that this process wrote.
#[derive(Debug)]
pub struct Latest<K> {
    objects: Mutex<HashMap<String, Written<K>>>,
}

#[derive(Debug)]
struct Written<K> {
    replaced: Vec<String>,
    object: Arc<K>,
    at: Instant,
}

impl<K> Default for Latest<K> {
    fn default() -> Self {
        Self {
            objects: Mutex::default(),
        }
    }
}

impl<K: Resource> Latest<K> {
    /// Remembers what a write returned for what was decided on `base`.
    pub fn wrote(&self, base: &K, object: Arc<K>) {
        let (Some(uid), Some(replaced)) = (base.meta().uid.clone(), base.meta().resource_version.clone())
        else {
            return;
        };
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let at = Instant::now();
        objects.retain(|_, written| at.duration_since(written.at) < LAG);
        let written = objects.entry(uid).or_insert_with(|| Written {
            replaced: vec![],
            object: object.clone(),
            at,
        });
        written.replaced.push(replaced);
        written.at = at;
        written.object = object;
    }

    /// The newer of the cached copy and what was written.
    pub fn freshest(&self, cached: Arc<K>) -> Arc<K> {
        let (Some(uid), Some(version)) = (&cached.meta().uid, &cached.meta().resource_version) else {
            return cached;
        };
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        match objects.get(uid) {
            Some(written) if written.replaced.contains(version) => written.object.clone(),
            Some(_) => {
                objects.remove(uid);
                cached
            }
            None => cached,
        }
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, uid: &str) {
        self.objects
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn at(version: &str) -> Arc<ConfigMap> {
        let mut object = ConfigMap::default();
        object.metadata.uid = Some("u".to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        Arc::new(object)
    }

    fn version(object: &ConfigMap) -> &str {
        object.metadata.resource_version.as_deref().unwrap()
    }

    #[test]
    fn a_cache_that_lags_behind_our_writes_is_not_believed_and_one_that_caught_up_is() {
        let latest = Latest::<ConfigMap>::default();
        latest.wrote(&at("1"), at("2"));
        latest.wrote(&at("2"), at("5"));
        assert_eq!(version(&latest.freshest(at("1"))), "5");
        assert_eq!(version(&latest.freshest(at("2"))), "5");
        assert_eq!(version(&latest.freshest(at("7"))), "7");
        assert_eq!(
            version(&latest.freshest(at("1"))),
            "1",
            "forgotten once the cache has moved on"
        );
    }
}

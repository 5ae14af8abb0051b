//! Leader election by a `Lease`, the way client-go does it.
//!
//! Every write replaces the Lease at the resourceVersion that was read, so of several writers one wins. When
//! another holder's Lease counts as expired is judged by this process's own monotonic clock: it must have been
//! seen unchanged for the whole duration. No promise of the adapters depends on the Lease; it saves work and
//! keeps two voices from speaking.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};

/// For how long a holder that does not renew keeps the Lease.
const DURATION: Duration = Duration::from_secs(10);
/// For how long after its last renewal began a holder believes in it: less than the duration, so that it has
/// fallen silent before anybody else may speak.
const BELIEF: Duration = Duration::from_secs(7);
/// How often it is renewed, or looked at.
const PERIOD: Duration = Duration::from_secs(2);
/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(3);

/// Whether this process may act now. Cheap; asked before every write.
#[derive(Clone, Debug, Default)]
pub struct Leadership {
    until: Arc<Mutex<Option<Instant>>>,
}

impl Leadership {
    /// Whether the Lease was renewed recently enough.
    pub fn holds(&self) -> bool {
        self.until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some_and(|until| Instant::now() < until)
    }

    fn set(&self, until: Option<Instant>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// One candidate for one Lease.
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    leadership: Leadership,
    /// The Lease as last seen, and since when it has looked like that.
    seen: Option<(Option<String>, Instant)>,
}

impl Candidate {
    /// A candidate called `identity` for the Lease `name`.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            leadership: Leadership::default(),
            seen: None,
        }
    }

    /// Whether this candidate leads, at any later time.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Returns once the Lease is held.
    pub async fn acquire(&mut self) {
        while !self.attempt().await {
            tokio::time::sleep(PERIOD).await;
        }
        tracing::info!(lease = self.name, identity = self.identity, "acquired the lease");
    }

    /// Renews the Lease until that has failed for too long; returns when it is lost.
    pub async fn keep(&mut self) {
        loop {
            tokio::time::sleep(PERIOD).await;
            if !self.attempt().await && !self.leadership.holds() {
                self.leadership.set(None);
                tracing::warn!(lease = self.name, identity = self.identity, "lost the lease");
                return;
            }
        }
    }

    /// Gives the Lease up, so that another candidate need not wait for its expiry.
    pub async fn release(&mut self) {
        self.leadership.set(None);
        let released = async {
            let mut lease = self.api.get(&self.name).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(self.identity.as_str()) {
                spec.holder_identity = None;
                spec.lease_duration_seconds = Some(1);
                self.api
                    .replace(&self.name, &PostParams::default(), &lease)
                    .await?;
            }
            Ok::<_, kube::Error>(())
        };
        match tokio::time::timeout(REQUEST, released).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "could not release the lease; it expires by itself"),
            Err(_) => tracing::debug!("could not release the lease in time; it expires by itself"),
        }
    }

    /// One look at the Lease, and one write if it is ours or free. True if it is held afterwards.
    async fn attempt(&mut self) -> bool {
        let began = Instant::now();
        match tokio::time::timeout(REQUEST, self.acquire_or_renew()).await {
            Ok(Ok(true)) => {
                self.leadership.set(began.checked_add(BELIEF));
                true
            }
            Ok(Ok(false)) => {
                self.leadership.set(None);
                false
            }
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_already_exists() => false,
            Ok(Err(error)) => {
                tracing::warn!(lease = self.name, error = %crate::failure::brief(&error), "cannot read or write the lease");
                false
            }
            Err(_) => {
                tracing::warn!(lease = self.name, "no answer about the lease in time");
                false
            }
        }
    }

    async fn acquire_or_renew(&mut self) -> kube::Result<bool> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(None)),
            };
            self.api.create(&PostParams::default(), &lease).await?;
            return Ok(true);
        };
        let spec = lease.spec.take().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if !holder.is_empty() && holder != self.identity && !self.expired(lease.resource_version(), &spec) {
            return Ok(false);
        }
        lease.spec = Some(self.spec(Some(spec)));
        self.api
            .replace(&self.name, &PostParams::default(), &lease)
            .await?;
        Ok(true)
    }

    /// Whether another's Lease has stayed the same for its whole duration, by our own clock.
    fn expired(&mut self, version: Option<String>, spec: &LeaseSpec) -> bool {
        let now = Instant::now();
        let duration = spec
            .lease_duration_seconds
            .and_then(|s| u64::try_from(s).ok())
            .map_or(DURATION, Duration::from_secs);
        match &self.seen {
            Some((seen, since)) if *seen == version => now.duration_since(*since) >= duration,
            _ => {
                self.seen = Some((version, now));
                false
            }
        }
    }

    fn spec(&self, previous: Option<LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let previous = previous.unwrap_or_default();
        let ours = previous.holder_identity.as_deref() == Some(self.identity.as_str());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: if ours {
                previous.acquire_time
            } else {
                Some(now.clone())
            },
            renew_time: Some(now),
            lease_transitions: Some(previous.lease_transitions.unwrap_or(0) + i32::from(!ours)),
            ..LeaseSpec::default()
        }
    }
}

//! One OpenSandbox server, as the parameters of classes name it: its client, what it has shown, and how much it is
//! asked at a time.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ayatori_controller::telemetry::Telemetry;
use ayatori_core::execution::Why;
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::parameters::{OpenSandboxExecutionParameters, SecretKeyReference};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::{self, Client};
use crate::insides::Insides;
use crate::keys::{Keys, Watched};
use crate::metadata;
use crate::sightings::Sightings;
use crate::slots::Slots;

/// How many times, and over how long, a sandbox must be missing before that proves its end.
const ABSENCES: u32 = 3;
const ABSENCE: Duration = Duration::from_secs(30);
/// How long lists are put off at most when a server asks to be left alone.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// After this, absences that were noted are of no use to anybody.
const STALE_ABSENCE: Duration = Duration::from_secs(24 * 3600);
/// A server that was not asked for in so long is forgotten, with its key. That of a class is asked for whenever the
/// class is probed.
const IDLE: Duration = Duration::from_secs(600);

/// How a server is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    pub(crate) client: client::Options,
    /// How often sandboxes are listed.
    pub(crate) poll: Duration,
    /// How long is believed what a running command's sandbox has shown of it.
    pub(crate) inside: Duration,
    /// How many sandboxes may be under creation at a time.
    pub(crate) creates: usize,
}

/// What makes it that server. Parameters that agree in this share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Address {
    endpoint: String,
    ca_bundle: Option<String>,
    key: SecretKeyReference,
}

/// All servers that are asked for.
pub(crate) struct Servers {
    keys: Keys,
    manners: Manners,
    known: Mutex<HashMap<Address, Known>>,
    telemetry: Telemetry,
    changes: mpsc::UnboundedSender<ObjectRef<Job>>,
}

/// A server, and when it was asked for last.
struct Known {
    server: Arc<Server>,
    asked: Instant,
}

/// One server.
pub(crate) struct Server {
    connection: Arc<Connection>,
    pub(crate) sightings: Arc<Sightings>,
    pub(crate) insides: Arc<Insides>,
    pub(crate) slots: Slots,
    absences: Mutex<HashMap<String, Absence>>,
    /// The longest life it gives a sandbox at its creation; `u64::MAX` as long as none was refused.
    longest_life: AtomicU64,
    polling: [JoinHandle<()>; 2],
}

/// The client of a server with the key of now.
struct Connection {
    address: Address,
    key: Arc<Watched>,
    telemetry: Telemetry,
    options: client::Options,
    current: Mutex<Option<(u64, Client)>>,
}

/// Since when and how often a sandbox was missing.
struct Absence {
    since: Instant,
    last: Instant,
    times: u32,
}

/// Which server the parameters name.
pub(crate) fn identity(parameters: &OpenSandboxExecutionParameters) -> BackendIdentity {
    let endpoint = parameters.spec.endpoint.trim_end_matches('/');
    let mut endpoint_hash = String::new();
    for byte in Sha256::digest(endpoint).iter().take(16) {
        write!(endpoint_hash, "{byte:02x}").expect("a String takes everything");
    }
    BackendIdentity {
        parameters_uid: parameters.uid().unwrap_or_default(),
        endpoint_hash,
    }
}

impl Servers {
    pub(crate) fn new(keys: Keys, manners: Manners, changes: mpsc::UnboundedSender<ObjectRef<Job>>) -> Self {
        Self {
            keys,
            manners,
            known: Mutex::default(),
            telemetry: Telemetry::default(),
            changes,
        }
    }

    /// The same, with all requests told of there.
    pub(crate) fn telling(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    /// Shows the UIDs of the Jobs that sandboxes are of, as servers have shown them last.
    pub(crate) fn executions(&self, show: &mut dyn FnMut(&str)) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        forget_idle(&mut known, Instant::now());
        for Known { server, .. } in known.values() {
            server.sightings.executions(show);
        }
    }

    /// The server that the parameters name.
    pub(crate) fn of(&self, parameters: &OpenSandboxExecutionParameters) -> Arc<Server> {
        self.of_at(parameters, Instant::now())
    }

    fn of_at(&self, parameters: &OpenSandboxExecutionParameters, now: Instant) -> Arc<Server> {
        let spec = &parameters.spec;
        let address = Address {
            endpoint: spec.endpoint.trim_end_matches('/').to_owned(),
            ca_bundle: spec.ca_bundle.clone(),
            key: spec.api_key_secret_ref.clone(),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let its = known.entry(address).or_insert_with_key(|address| Known {
            server: Arc::new(Server::new(
                address.clone(),
                self.keys.of(&address.key),
                self.manners,
                self.telemetry.clone(),
                self.changes.clone(),
            )),
            asked: now,
        });
        its.asked = now;
        let server = its.server.clone();
        forget_idle(&mut known, now);
        server
    }
}

/// Lets go of servers that no parameters name any more: after an edit there is another in their place.
fn forget_idle(known: &mut HashMap<Address, Known>, now: Instant) {
    known.retain(|_, Known { server, asked }| {
        now.saturating_duration_since(*asked) < IDLE || server.is_wanted() || Arc::strong_count(server) > 1
    });
}

impl Server {
    fn new(
        address: Address,
        key: Arc<Watched>,
        manners: Manners,
        telemetry: Telemetry,
        changes: mpsc::UnboundedSender<ObjectRef<Job>>,
    ) -> Self {
        let connection = Arc::new(Connection {
            address,
            key,
            telemetry,
            options: manners.client,
            current: Mutex::default(),
        });
        let sightings = Arc::new(Sightings::new(changes.clone()));
        let insides = Arc::new(Insides::new(manners.inside, changes.clone()));
        let polling = [
            tokio::spawn(poll(connection.clone(), sightings.clone(), manners.poll)),
            tokio::spawn(refresh(connection.clone(), insides.clone(), manners.poll)),
        ];
        Self {
            connection,
            sightings,
            insides,
            slots: Slots::new(manners.creates, changes),
            absences: Mutex::default(),
            longest_life: AtomicU64::new(u64::MAX),
            polling,
        }
    }

    /// The client, with the key as its Secret has it now.
    pub(crate) async fn client(&self) -> Result<Client, Why> {
        self.connection.client().await
    }

    /// Whether any Job waits for news of it.
    fn is_wanted(&self) -> bool {
        self.sightings.are_wanted() || self.insides.are_wanted()
    }

    /// Notes that the server itself says it has no such sandbox; whether it has said so often and long enough to be
    /// believed.
    pub(crate) fn is_gone_for_good(&self, id: &str) -> bool {
        let now = Instant::now();
        let mut absences = self.absences();
        absences.retain(|_, absence| now.duration_since(absence.last) < STALE_ABSENCE);
        let absence = absences.entry(id.to_owned()).or_insert(Absence {
            since: now,
            last: now,
            times: 0,
        });
        absence.times = absence.times.saturating_add(1);
        absence.last = now;
        absence.times >= ABSENCES && now.duration_since(absence.since) >= ABSENCE
    }

    /// It is there, or the server could not say.
    pub(crate) fn is_not_gone(&self, id: &str) {
        self.absences().remove(id);
    }

    /// The longest life it gives a sandbox at its creation, if it has refused a longer one.
    pub(crate) fn longest_life(&self) -> Option<u64> {
        Some(self.longest_life.load(Ordering::Relaxed)).filter(|limit| *limit != u64::MAX)
    }

    /// Notes that it gives no longer life.
    pub(crate) fn note_longest_life(&self, seconds: u64) {
        self.longest_life.store(seconds, Ordering::Relaxed);
    }

    fn absences(&self) -> MutexGuard<'_, HashMap<String, Absence>> {
        self.absences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.polling.iter().for_each(JoinHandle::abort);
    }
}

impl Connection {
    async fn client(&self) -> Result<Client, Why> {
        let key = self.key.get().await?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some((version, client)) if *version == key.version => Ok(client.clone()),
            Some(_) | None => {
                let Address {
                    endpoint, ca_bundle, ..
                } = &self.address;
                let client = Client::new(
                    endpoint,
                    ca_bundle.as_deref(),
                    (*key.secret).clone(),
                    &self.options,
                )?
                .telling(self.telemetry.clone());
                *current = Some((key.version, client.clone()));
                Ok(client)
            }
        }
    }
}

/// Lists our sandboxes again and again for as long as anybody is interested.
async fn poll(connection: Arc<Connection>, sightings: Arc<Sightings>, every: Duration) {
    loop {
        sightings.wanted().await;
        let at = Instant::now();
        match connection.client().await {
            Ok(client) => match client.list(&metadata::of_all()).await {
                Ok(listing) => sightings.listed(listing.sandboxes, at),
                Err(failure) => {
                    sightings.failed(&failure.why());
                    // Not for longer: for how long nothing was heard is judged by those who ask.
                    tokio::time::sleep(failure.retry_after().unwrap_or_default().min(LONGEST_PAUSE)).await;
                }
            },
            Err(why) => sightings.failed(&why),
        }
        tokio::time::sleep(every).await;
    }
}

/// Reads again and again what is due in sandboxes.
async fn refresh(connection: Arc<Connection>, insides: Arc<Insides>, every: Duration) {
    loop {
        insides.wanted().await;
        tokio::time::sleep(every).await;
        // That there is no client, lists say.
        if let Ok(client) = connection.client().await {
            insides.refresh(&client).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(endpoint: &str, secret: &str) -> OpenSandboxExecutionParameters {
        let mut parameters = OpenSandboxExecutionParameters::default();
        parameters.spec.endpoint = endpoint.to_owned();
        parameters.spec.api_key_secret_ref = SecretKeyReference {
            namespace: "ayatori-system".to_owned(),
            name: secret.to_owned(),
            key: "api-key".to_owned(),
        };
        parameters
    }

    fn servers() -> Servers {
        type Answer = std::io::Result<http::Response<kube::client::Body>>;
        let silent = |_: http::Request<kube::client::Body>| std::future::pending::<Answer>();
        let cluster = kube::Client::new(tower::service_fn(silent), "default");
        let manners = Manners {
            client: client::Options::default(),
            poll: Duration::from_secs(1),
            inside: Duration::from_secs(1),
            creates: 1,
        };
        Servers::new(
            Keys::new(cluster, mpsc::unbounded_channel().0),
            manners,
            mpsc::unbounded_channel().0,
        )
    }

    #[tokio::test]
    async fn a_server_that_nobody_names_any_more_is_forgotten_with_its_key() {
        let servers = servers();
        let began = Instant::now();
        let (before, edited) = (
            parameters("https://a.example", "old"),
            parameters("https://a.example", "new"),
        );
        let watch = |server: &Arc<Server>| Arc::downgrade(&server.connection.key);
        let server = servers.of_at(&before, began);
        let (old, key) = (watch(&server), server.connection.key.clone());
        let other = servers.of_at(&parameters("https://b.example", "old"), began);
        assert!(
            Arc::ptr_eq(&key, &other.connection.key),
            "one watch for both servers"
        );
        drop((key, other));

        let new = watch(&servers.of_at(&edited, began));
        assert!(servers.of_at(&edited, began + IDLE).connection.address.key.name == "new");
        assert!(old.upgrade().is_some(), "somebody still works with that server");
        drop(server);
        drop(servers.of_at(&edited, began + IDLE));
        // What polls the old server ends when it is its turn.
        let forgotten = async {
            while old.upgrade().is_some() {
                tokio::task::yield_now().await;
            }
        };
        let forgotten = tokio::time::timeout(Duration::from_secs(10), forgotten).await;
        forgotten.expect("the old key is still watched");
        assert!(new.upgrade().is_some(), "the new key is not watched any more");
    }

    #[test]
    fn the_identity_of_a_server_is_its_endpoint_however_it_ends() {
        let of = |endpoint: &str| {
            let mut parameters = OpenSandboxExecutionParameters::default();
            parameters.spec.endpoint = endpoint.to_owned();
            identity(&parameters).endpoint_hash
        };
        assert_eq!(of("https://a.example/base"), of("https://a.example/base/"));
        assert_ne!(of("https://a.example"), of("https://b.example"));
        assert_eq!(of("https://a.example").len(), 32);
    }
}

//! A hostile OpenSandbox server, in this process.
//!
//! Left alone it behaves like the real one with its Docker runtime, but for the commands: none is executed. What
//! a sandbox does is told by a [`Script`], which by default is read from the words of its command, with the wrapper's
//! fence and evidence where the command is wrapped. How the server misbehaves is told by [`Faults`], which can be changed while it serves. What a test wants to know is counted
//! where it happens: a start where a command starts, a request where it arrives.
//!
//! With [`Stub::start_with_machines`] everything is executed: the entrypoint of a sandbox, and what its daemon is asked
//! to run. Then a start is what the command itself leaves behind.
//!
//! Its clock can be put forward, so that nobody has to wait for an expiry or a list that lags behind.

mod certificates;
mod faults;
mod http;
mod machine;
mod world;
mod wrapped;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

pub use certificates::Certificate;
pub use faults::{Call, Edit, Fault, Faults};
use machine::Machine;
pub use world::{Director, Script};
use world::{Sandbox, after};

/// The API key every stub accepts at first.
pub const API_KEY: &str = "stub-api-key-canary";

/// A running server. It ends, with every connection, when this is dropped.
pub struct Stub {
    shared: Arc<Shared>,
    address: SocketAddr,
    ca_bundle: Option<String>,
    server: JoinHandle<()>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A request that arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Which call it is.
    pub call: Call,
    /// Path and query.
    pub target: String,
    /// Whether it carried any API key.
    pub carried_a_key: bool,
    /// Its JSON; null, if it had none.
    pub body: Value,
}

impl Stub {
    /// A server on plain HTTP.
    pub async fn start() -> io::Result<Self> {
        Self::serve(None, Arc::new(wrapped::direct)).await
    }

    /// A server on HTTPS, with that certificate.
    pub async fn start_with_tls(certificate: Certificate) -> io::Result<Self> {
        Self::serve(Some(certificate), Arc::new(wrapped::direct)).await
    }

    /// A server on plain HTTP, whose sandboxes do what the director says.
    pub async fn start_with(director: Director) -> io::Result<Self> {
        Self::serve(None, director).await
    }

    /// A server on plain HTTP, whose sandboxes really run what they are told to, as processes of this machine, each
    /// with a directory of its own in the place of /tmp.
    pub async fn start_with_machines() -> io::Result<Self> {
        let stub = Self::serve(None, Arc::new(|_, _| Script::up())).await?;
        stub.shared.with(|inside| inside.machines = Some(HashMap::new()));
        Ok(stub)
    }

    async fn serve(certificate: Option<Certificate>, director: Director) -> io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (tls, ca_bundle) = match certificate.map(certificates::serve_with) {
            Some((config, bundle)) => (Some(TlsAcceptor::from(Arc::new(config))), Some(bundle)),
            None => (None, None),
        };
        let shared = Arc::new(Shared {
            inside: Mutex::new(Inside::new(director)),
            changed: watch::Sender::new(()),
        });
        Ok(Self {
            server: tokio::spawn(http::serve(listener, tls, shared.clone())),
            shared,
            address,
            ca_bundle,
        })
    }

    /// What stands before `/v1`.
    pub fn endpoint(&self) -> String {
        let scheme = if self.ca_bundle.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The authority that is to be trusted, if it serves HTTPS.
    pub fn ca_bundle(&self) -> Option<&str> {
        self.ca_bundle.as_deref()
    }

    /// The key that is accepted at first.
    pub fn key(&self) -> SecretString {
        API_KEY.into()
    }

    /// Accepts this key from now on, and no other.
    pub fn accept_key(&self, key: &str) {
        self.shared.with(|inside| key.clone_into(&mut inside.key));
    }

    /// Changes how it misbehaves, from the next request on.
    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        self.shared.with(|inside| change(&mut inside.faults));
    }

    /// Puts its clock forward.
    pub fn advance(&self, by: SignedDuration) {
        self.shared
            .with(|inside| inside.ahead = inside.ahead.saturating_add(by));
    }

    /// Everything that has arrived, in this order.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.with(|inside| inside.recorded.clone())
    }

    /// How many requests of this kind have arrived.
    pub fn calls(&self, call: Call) -> usize {
        self.shared.with(|inside| {
            inside
                .recorded
                .iter()
                .filter(|request| request.call == call)
                .count()
        })
    }

    /// How many create requests with this label have arrived.
    pub fn posts(&self, key: &str, value: &str) -> usize {
        let posted = |request: &&Recorded| {
            let label = request.body.get("metadata").and_then(|labels| labels.get(key));
            request.call == Call::Create && label.and_then(Value::as_str) == Some(value)
        };
        self.shared
            .with(|inside| inside.recorded.iter().filter(posted).count())
    }

    /// How many create requests were being carried out at a time, at most.
    pub fn most_creates_at_once(&self) -> usize {
        self.shared.with(|inside| inside.most_creating)
    }

    /// How many commands have been started in sandboxes with this label, also in those that are gone.
    pub fn starts(&self, key: &str, value: &str) -> usize {
        self.count(key, value, Sandbox::was_started)
    }

    /// How many commands have a process now, if only a frozen one, in sandboxes with this label.
    pub fn running(&self, key: &str, value: &str) -> usize {
        self.count(key, value, Sandbox::is_running)
    }

    fn count(&self, key: &str, value: &str, counts: impl Fn(&Sandbox, Timestamp) -> bool) -> usize {
        self.shared.with(|inside| {
            let now = inside.now();
            let labelled = |sandbox: &&Sandbox| sandbox.metadata.get(key).is_some_and(|label| label == value);
            let sandboxes = inside.sandboxes.iter().filter(labelled);
            sandboxes.filter(|sandbox| counts(sandbox, now)).count()
        })
    }

    /// Puts a sandbox there that nobody has asked for, as this create request would; gives its id.
    pub fn put(&self, request: &Value) -> String {
        self.shared.with(|inside| inside.create(request, Duration::ZERO))
    }

    /// The ids of the sandboxes that exist, in the order of their creation.
    pub fn sandboxes(&self) -> Vec<String> {
        self.shared
            .with(|inside| inside.existing().map(|sandbox| sandbox.id.clone()).collect())
    }

    /// Ends a sandbox's container behind the server's back: with code 0 as by `docker stop`, with 137 as by
    /// `docker kill`, with 255 as when dockerd was killed.
    pub fn end(&self, id: &str, code: i32) {
        self.shared.with(|inside| {
            inside.kill(id);
            inside.change(id, |sandbox, now| sandbox.end(code, now));
        });
    }

    /// Removes a sandbox's container behind the server's back.
    pub fn vanish(&self, id: &str) {
        self.shared.with(|inside| {
            inside.kill(id);
            inside.change(id, Sandbox::remove);
        });
    }

    /// What a file of a machine holds, also when its sandbox is gone; relative to where its processes run.
    pub fn file(&self, id: &str, name: &str) -> Option<String> {
        let machine = self.shared.with(|inside| inside.machine(id).cloned())?;
        let bytes = machine.read(&format!("/tmp/{name}")).ok()?;
        String::from_utf8(bytes).ok()
    }

    /// Replaces what a file of a machine holds, or removes it, or the directory, behind everybody's back.
    pub fn put_file(&self, id: &str, name: &str, text: Option<&str>) -> io::Result<()> {
        let machine = self.shared.with(|inside| inside.machine(id).cloned());
        machine
            .ok_or(io::ErrorKind::NotFound)?
            .write(&format!("/tmp/{name}"), text)
    }

    /// Waits until something is so; looked at whenever a request arrives or the stub is changed.
    pub async fn until(&self, mut so: impl FnMut(&Self) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        while !so(self) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

/// What the stub and its connections share.
struct Shared {
    inside: Mutex<Inside>,
    changed: watch::Sender<()>,
}

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut Inside) -> T) -> T {
        let result = act(&mut self.inside.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_replace(());
        result
    }
}

/// The server's mind.
struct Inside {
    key: String,
    faults: Faults,
    recorded: Vec<Recorded>,
    sandboxes: Vec<Sandbox>,
    director: Director,
    ahead: SignedDuration,
    /// What runs in the sandboxes, by their ids, where anything does.
    machines: Option<HashMap<String, Arc<Machine>>>,
    /// How many create requests are being carried out, and how many ever were at a time.
    creating: usize,
    most_creating: usize,
}

impl Inside {
    fn new(director: Director) -> Self {
        Self {
            key: API_KEY.to_owned(),
            faults: Faults::default(),
            recorded: Vec::new(),
            sandboxes: Vec::new(),
            director,
            ahead: SignedDuration::ZERO,
            machines: None,
            creating: 0,
            most_creating: 0,
        }
    }

    fn now(&self) -> Timestamp {
        after(Timestamp::now(), self.ahead)
    }

    /// Creates a sandbox that comes into being after a time.
    fn create(&mut self, request: &Value, takes: Duration) -> String {
        let id = format!("sandbox-{}", self.sandboxes.len());
        let takes = SignedDuration::try_from(takes).unwrap_or(SignedDuration::MAX);
        let time = after(self.now(), takes);
        let mut sandbox = Sandbox::create(id.clone(), request, &self.director, time);
        if let Some(machines) = &mut self.machines {
            match Machine::boot(&world::texts(request.get("entrypoint"))) {
                Ok(machine) => drop(machines.insert(id.clone(), Arc::new(machine))),
                // As of an image without a shell.
                Err(_) => sandbox.end(127, time),
            }
        }
        self.sandboxes.push(sandbox);
        id
    }

    fn machine(&self, id: &str) -> Option<&Arc<Machine>> {
        self.machines.as_ref()?.get(id)
    }

    /// Ends everything that runs in a sandbox.
    fn kill(&self, id: &str) {
        if let Some(machine) = self.machine(id) {
            machine.kill();
        }
    }

    /// Notices which entrypoints have ended.
    fn notice_ends(&mut self) {
        let now = self.now();
        for sandbox in &mut self.sandboxes {
            let machine = self
                .machines
                .as_ref()
                .and_then(|machines| machines.get(&sandbox.id));
            if let Some(code) = machine.and_then(|machine| machine.exit_code()) {
                sandbox.end(code, now);
            }
        }
    }

    fn existing(&self) -> impl Iterator<Item = &Sandbox> {
        let (now, expiring) = (self.now(), !self.faults.never_expires);
        self.sandboxes
            .iter()
            .filter(move |sandbox| sandbox.exists(now, expiring))
    }

    fn find(&self, id: &str) -> Option<&Sandbox> {
        self.existing()
            .find(|sandbox| sandbox.id == id)
            .filter(|_| !self.faults.finds_nothing)
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut Sandbox, Timestamp)) {
        let now = self.now();
        if let Some(sandbox) = self.sandboxes.iter_mut().find(|sandbox| sandbox.id == id) {
            change(sandbox, now);
        }
    }

    fn show(&self, id: &str) -> Option<Value> {
        self.find(id).map(|sandbox| self.shown(sandbox))
    }

    /// As it is shown to the one who creates it.
    fn show_new(&self, id: &str) -> Value {
        let mut sandboxes = self.sandboxes.iter();
        let new = sandboxes.find(|sandbox| sandbox.id == id);
        new.map(|sandbox| self.shown(sandbox)).unwrap_or_default()
    }

    fn shown(&self, sandbox: &Sandbox) -> Value {
        let mut shown = sandbox.show(self.now());
        if let Some(edit) = &self.faults.shows {
            edit(&mut shown);
        }
        shown
    }

    /// Newest first, as the real one.
    fn list(&self, filter: &[(String, String)]) -> Vec<Value> {
        if self.faults.lists_nothing {
            return Vec::new();
        }
        let now = self.now();
        let matches = |sandbox: &&Sandbox| {
            let has = |(key, value): &(String, String)| sandbox.metadata.get(key) == Some(value);
            self.faults.ignores_filter || filter.iter().all(has)
        };
        let foreign = if filter.is_empty() || self.faults.ignores_filter {
            self.faults.foreign
        } else {
            0
        };
        let own: Vec<Value> = self
            .existing()
            .filter(|sandbox| sandbox.is_older_than(self.faults.list_lag, now))
            .filter(matches)
            .map(|sandbox| self.shown(sandbox))
            .collect();
        own.into_iter().rev().chain((0..foreign).map(stranger)).collect()
    }

    fn delete(&mut self, id: &str) {
        if !self.faults.deletes_nothing {
            self.kill(id);
            self.change(id, Sandbox::remove);
        }
    }

    fn pause(&mut self, id: &str) -> bool {
        let mut paused = self.faults.pauses_nothing;
        if !paused {
            self.change(id, |sandbox, now| paused = sandbox.pause(now));
        }
        paused
    }

    fn renew(&mut self, id: &str, expires: Timestamp) {
        if !self.faults.renews_nothing {
            self.change(id, |sandbox, _| sandbox.renew(expires));
        }
    }

    fn log(&self, id: &str) -> Option<String> {
        let sandbox = self.find(id)?;
        let log = self.machine(id).map(|machine| machine.log());
        Some(log.unwrap_or_else(|| sandbox.log(self.now())))
    }

    fn events(&self, id: &str) -> Option<String> {
        self.find(id).map(|sandbox| sandbox.events(self.now()))
    }
}

/// A sandbox of somebody else.
fn stranger(number: usize) -> Value {
    json!({
        "id": format!("foreign-{number}"),
        "status": {"state": "Running", "reason": "CONTAINER_RUNNING"},
        "metadata": {"somebody": "else"},
        "createdAt": "2026-01-01T00:00:00Z",
    })
}

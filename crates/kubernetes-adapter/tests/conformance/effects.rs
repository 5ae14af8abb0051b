//! What commands do, by their own doing: each says over the network that it starts, and holds a connection for as
//! long as it runs.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use ayatori_controller::testing::conformance::{Effects, Script};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What is said by a connection that lasts as long as its process.
const HOLDS: &str = "holds ";

/// A listener that commands talk to.
pub(crate) struct Listener {
    address: SocketAddr,
    seen: Seen,
    task: JoinHandle<()>,
}

/// By the name a command gives itself.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<HashMap<String, Count>>>);

#[derive(Clone, Copy, Default)]
struct Count {
    starts: usize,
    held: usize,
}

impl Listener {
    /// Listens on the node's own address, which pods can reach.
    pub(crate) async fn start(client: &Client) -> anyhow::Result<Self> {
        let nodes = Api::<Node>::all(client.clone())
            .list(&ListParams::default())
            .await
            .context("listing nodes")?;
        let addresses = nodes
            .items
            .first()
            .and_then(|n| n.status.as_ref()?.addresses.as_ref());
        let address = addresses
            .and_then(|all| all.iter().find(|a| a.type_ == "InternalIP"))
            .context("the cluster has no node with an address: start the whole cluster, not its control plane alone")?;
        let listener = TcpListener::bind((address.address.as_str(), 0)).await;
        let listener = listener.context("listening on the node: the tests must run on it")?;
        let address = listener.local_addr()?;
        let seen = Seen::default();
        let task = tokio::spawn(accept(listener, seen.clone()));
        Ok(Self { address, seen, task })
    }

    /// A command that says its name and does what the script says.
    pub(crate) fn command(&self, name: &str, script: Script) -> Vec<String> {
        const FOR_EVER: &str = "while :; do sleep 0.1; done";
        let (ip, port) = (self.address.ip(), self.address.port());
        let start = format!("echo {name} | nc -w 5 {ip} {port} || exit 99");
        let hold = format!("{{ echo {HOLDS}{name}; sleep 3600; }} | nc {ip} {port} &");
        let line = match script {
            Script::Exits(code) => format!("{start}; exit {code}"),
            Script::RunsAndExits(code) => format!("{start}; {hold} sleep 3; exit {code}"),
            Script::RunsUntilStopped => format!("{start}; {hold} trap 'exit 143' TERM; {FOR_EVER}"),
            Script::TrapsTheStop => format!("{start}; {hold} trap 'exit 0' TERM; {FOR_EVER}"),
            Script::IgnoresTheStop => format!("{start}; {hold} trap '' TERM; {FOR_EVER}"),
            Script::IsMissing => return vec!["/no-such-command".to_owned()],
        };
        vec!["sh".to_owned(), "-c".to_owned(), line]
    }

    /// What the command of that name did so far.
    pub(crate) fn effects(&self, name: &str) -> Effects {
        let count = self.seen.with(name, |count| *count);
        Effects {
            starts: count.starts,
            running: count.held > 0,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seen {
    fn with<T>(&self, name: &str, change: impl FnOnce(&mut Count) -> T) -> T {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(seen.entry(name.to_owned()).or_default())
    }
}

async fn accept(listener: TcpListener, seen: Seen) {
    while let Ok((stream, _)) = listener.accept().await {
        let lines = BufReader::new(stream).lines();
        tokio::spawn(listen(lines, seen.clone()));
    }
}

async fn listen(mut lines: Lines<BufReader<TcpStream>>, seen: Seen) {
    let Ok(Some(line)) = lines.next_line().await else {
        return;
    };
    let Some(name) = line.strip_prefix(HOLDS) else {
        seen.with(&line, |count| count.starts += 1);
        return;
    };
    seen.with(name, |count| count.held += 1);
    // It says nothing more: this returns when its process is gone.
    let _ = lines.next_line().await;
    seen.with(name, |count| count.held -= 1);
}

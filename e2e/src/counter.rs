//! Counts how often commands really start, by their own side effect: every command says its name to a listener
//! on the node, over the network, before it does anything else.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A listener that counts the lines it is sent.
pub struct Counter {
    address: SocketAddr,
    seen: Arc<Mutex<HashMap<String, u32>>>,
    task: JoinHandle<()>,
}

impl Counter {
    /// Listens on the node's own address, which pods can reach.
    pub async fn listen(client: &Client) -> anyhow::Result<Self> {
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
        let listener = TcpListener::bind((address.address.as_str(), 0))
            .await
            .context("listening on the node")?;
        let address = listener.local_addr()?;
        let seen = Arc::<Mutex<HashMap<String, u32>>>::default();
        let task = tokio::spawn(accept(listener, seen.clone()));
        Ok(Self { address, seen, task })
    }

    /// A shell line that counts one start of `name`, and then does `then`.
    pub fn command(&self, name: &str, then: &str) -> Vec<String> {
        let (ip, port) = (self.address.ip(), self.address.port());
        vec![
            "sh".into(),
            "-c".into(),
            format!("echo {name} | nc -w 5 {ip} {port} || exit 99; {then}"),
        ]
    }

    /// How often `name` has started so far.
    pub fn starts(&self, name: &str) -> u32 {
        self.seen
            .lock()
            .expect("no holder panics")
            .get(name)
            .copied()
            .unwrap_or(0)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, seen: Arc<Mutex<HashMap<String, u32>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let seen = seen.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stream).lines();
            if let Ok(Some(name)) = lines.next_line().await {
                *seen.lock().expect("no holder panics").entry(name).or_default() += 1;
            }
        });
    }
}

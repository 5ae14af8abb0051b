//! The ports of the cluster: the usual ones, or free ones where those are taken.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::net::{Ipv4Addr, TcpListener};

/// Chosen once per cluster and remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ports {
    pub(crate) etcd: u16,
    pub(crate) etcd_peer: u16,
    pub(crate) apiserver: u16,
    pub(crate) controller_manager: u16,
    pub(crate) scheduler: u16,
    pub(crate) kubelet: u16,
    pub(crate) kubelet_health: u16,
    pub(crate) proxy_health: u16,
    pub(crate) proxy_metrics: u16,
    // A cluster described by an earlier version of this program has none of these.
    #[serde(default)]
    pub(crate) opensandbox: u16,
    #[serde(default)]
    pub(crate) registry: u16,
    #[serde(default)]
    pub(crate) registry_health: u16,
}

impl Ports {
    /// The ports that are free on this machine now.
    pub(crate) fn free() -> Result<Ports> {
        Ports::choose(
            |port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok(),
            any_free,
        )
    }

    /// Ports that nobody uses and nobody would expect: of a cluster beside another.
    pub(crate) fn apart() -> Result<Ports> {
        // Each is held until all are chosen, so that none is given twice.
        let held = RefCell::new(Vec::new());
        Ports::choose(
            |_| false,
            || {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
                let port = listener.local_addr()?.port();
                held.borrow_mut().push(listener);
                Ok(port)
            },
        )
    }

    fn choose(is_free: impl Fn(u16) -> bool, any: impl Fn() -> Result<u16>) -> Result<Ports> {
        let choose = |usual: u16| if is_free(usual) { Ok(usual) } else { any() };
        Ok(Ports {
            etcd: choose(2379)?,
            etcd_peer: choose(2380)?,
            apiserver: choose(6443)?,
            controller_manager: choose(10257)?,
            scheduler: choose(10259)?,
            kubelet: choose(10250)?,
            kubelet_health: choose(10248)?,
            proxy_health: choose(10256)?,
            proxy_metrics: choose(10249)?,
            opensandbox: choose(8443)?,
            registry: choose(5000)?,
            registry_health: choose(5001)?,
        })
    }
}

fn any_free() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_replaced_and_the_others_stay() {
        let ports = Ports::choose(|port| port != 6443, || Ok(40123)).unwrap();
        assert_eq!((ports.apiserver, ports.etcd, ports.kubelet), (40123, 2379, 10250));
    }

    #[test]
    fn the_ports_of_a_cluster_beside_another_are_all_different() {
        let ports = serde_json::to_value(Ports::apart().unwrap()).unwrap();
        let ports = ports.as_object().unwrap();
        let different: std::collections::BTreeSet<_> = ports.values().map(|port| port.as_u64()).collect();
        assert_eq!(different.len(), ports.len());
    }

    #[test]
    fn the_ports_of_a_cluster_without_an_opensandbox_can_be_read() {
        let ports = Ports::choose(|_| true, || Ok(0)).unwrap();
        let mut described = serde_json::to_value(&ports).unwrap();
        let fields = described.as_object_mut().unwrap();
        fields.retain(|field, _| field != "opensandbox" && !field.starts_with("registry"));
        let read: Ports = serde_json::from_value(described).unwrap();
        assert_eq!((read.apiserver, read.opensandbox), (6443, 0));
    }
}

//! A control plane that somebody else starts: its certificates, its configuration, and the command line of each part.

use super::{
    Cluster, Mode, config,
    description::Description,
    parts::{self, Part},
    pki,
    ports::Ports,
    start,
};
use crate::{programs, programs::Program};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;

/// Everything of a control plane but its processes.
pub(crate) struct LaidOut(Cluster);

impl LaidOut {
    /// Lays one out in a folder of its own, with ports of its own, in the place of any that was there.
    /// `audit` is what its API server writes down of requests.
    pub(crate) fn within(state: &Path, audit: &Value) -> Result<LaidOut> {
        programs::ensure(&Program::CONTROL_PLANE)?;
        let cluster = Cluster {
            description: Description {
                state: state.to_path_buf(),
                mode: Mode::ControlPlaneOnly,
                ports: Ports::apart()?,
                apiserver: programs::path(Program::KubeApiserver)?,
                opensandbox: None,
            },
            run: state.join("run"),
        };
        cluster.wipe_state()?;
        start::create_folders(&cluster)?;
        pki::write(&cluster.pki(""))?;
        parts::configure(&cluster)?;
        config::text(&cluster.conf("audit.yaml"), &audit.to_string())?;
        Ok(LaidOut(cluster))
    }

    /// What starts it and what speaks to it.
    pub(crate) fn described(&self) -> Result<Value> {
        let LaidOut(cluster) = self;
        let part = |part: Part| -> Result<Value> {
            let program = part.executable()?;
            Ok(json!({"program": program, "arguments": part.arguments(cluster)}))
        };
        Ok(json!({
            "state": cluster.state(""),
            "kubeconfig": cluster.kubeconfig(),
            "etcd": part(Part::Etcd)?,
            "apiserver": part(Part::Apiserver)?,
            "scheduler": part(Part::Scheduler)?,
            "controllerManager": {
                "program": Part::ControllerManager.executable()?,
                "arguments": parts::controller_manager(cluster),
            },
            "withoutLimits": parts::WITHOUT_LIMITS,
            "store": {
                "endpoint": format!("https://127.0.0.1:{}", cluster.description.ports.etcd),
                "authority": cluster.pki("ca.crt"),
                "certificate": cluster.pki("apiserver-client.crt"),
                "key": cluster.pki("apiserver-client.key"),
            },
        }))
    }
}

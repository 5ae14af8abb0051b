//! Breaking things, and mending them again.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Context;
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::replica::{Adapter, xtask};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::crew::{Crew, Order, identity};
use crate::persist::{gone_already, persist, there_already};
use crate::plan::{Fault, Whom};
use crate::wire::{Mode, Wire};

/// Between the end of one fault and the next.
const PAUSE: Duration = Duration::from_secs(2);
/// The label by which the classes admit the namespace.
pub(crate) const ADMITTED_LABEL: &str = "test.ayatori.ddupan.top/admitted";

/// What was broken.
#[derive(Default)]
pub(crate) struct Damage {
    /// How often what came.
    pub(crate) faults: BTreeMap<String, u32>,
    /// Which part of the cluster was away, and when.
    pub(crate) away: Vec<(&'static str, RangeInclusive<Timestamp>)>,
}

impl Damage {
    /// When what runs the commands of this adapter's Jobs was away.
    pub(crate) fn without_runner(
        &self,
        adapter: Adapter,
    ) -> impl Iterator<Item = &RangeInclusive<Timestamp>> {
        let runner = match adapter {
            Adapter::Kubernetes => "kubelet",
            Adapter::OpenSandbox => "dockerd",
        };
        let away = self.away.iter().filter(move |(part, _)| *part == runner);
        away.map(|(_, time)| time)
    }
}

/// What can be broken.
pub(crate) struct Target<'a> {
    pub(crate) client: &'a Client,
    pub(crate) namespace: &'a str,
    pub(crate) crew: &'a Crew,
    pub(crate) wire: &'a Wire,
}

impl Target<'_> {
    /// Breaks one thing after another until it is over, and mends each.
    pub(crate) async fn attack(&self, faults: &[Fault], over: impl Fn() -> bool) -> anyhow::Result<Damage> {
        let mut damage = Damage::default();
        for fault in faults {
            tokio::time::sleep(PAUSE).await;
            if over() {
                break;
            }
            let begin = Timestamp::now();
            self.strike(fault).await.with_context(|| fault.kind())?;
            *damage.faults.entry(fault.kind()).or_default() += 1;
            if let Fault::Restart { part, .. } = *fault {
                damage.away.push((part, begin..=Timestamp::now()));
            }
        }
        Ok(damage)
    }

    async fn strike(&self, fault: &Fault) -> anyhow::Result<()> {
        match *fault {
            Fault::Kill(adapter, whom) => self.order(adapter, whom, Order::Die).await?,
            Fault::Freeze(adapter, whom, time) => self.order(adapter, whom, Order::Sleep(time)).await?,
            Fault::Restart { part, kill, away } => restart(part, kill, away).await?,
            Fault::Wire(mode, time) => {
                self.wire.set(mode);
                tokio::time::sleep(time).await;
                self.wire.set(Mode::Whole);
            }
            Fault::Unlabel(time) => {
                self.label(Value::Null).await?;
                tokio::time::sleep(time).await;
                self.label("true".into()).await?;
            }
            Fault::Revoke(adapter, time) => self.revoke(adapter, time).await?,
        }
        Ok(())
    }

    async fn order(&self, adapter: Adapter, whom: Whom, order: Order) -> anyhow::Result<()> {
        match whom {
            Whom::Replica(replica) => self.crew.order(&identity(adapter, replica), order),
            Whom::Everyone => self.crew.order_all(adapter, order),
            Whom::Leader => {
                let leases = Api::<Lease>::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
                let lease =
                    persist("asking who leads", async || leases.get_opt(adapter.name()).await).await?;
                // While nobody has led yet there is nobody to meet.
                if let Some(leader) = lease.and_then(|lease| lease.spec?.holder_identity) {
                    self.crew.order(&leader, order);
                }
            }
        }
        Ok(())
    }

    /// Sets the label of the namespace, or takes it off.
    pub(crate) async fn label(&self, value: Value) -> anyhow::Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"labels": {ADMITTED_LABEL: value}}}));
        persist("labelling the namespace", async || {
            let params = PatchParams::default();
            namespaces.patch(self.namespace, &params, &patch).await.map(drop)
        })
        .await
    }

    async fn revoke(&self, adapter: Adapter, time: Duration) -> anyhow::Result<()> {
        let bindings = Api::<ClusterRoleBinding>::all(self.client.clone());
        let all = persist("listing role bindings", async || {
            bindings.list(&ListParams::default()).await
        })
        .await?;
        let names_it = |binding: &ClusterRoleBinding| {
            binding.subjects.iter().flatten().any(|subject| {
                subject.name == adapter.name() && subject.namespace.as_deref() == Some(SYSTEM_NAMESPACE)
            })
        };
        let ours: Vec<_> = all.items.into_iter().filter(names_it).collect();
        for binding in &ours {
            persist("taking rights", async || {
                gone_already(
                    bindings
                        .delete(&binding.name_any(), &DeleteParams::default())
                        .await
                        .map(drop),
                )
            })
            .await?;
        }
        tokio::time::sleep(time).await;
        for mut binding in ours {
            binding.metadata.resource_version = None;
            binding.metadata.uid = None;
            persist("giving rights back", async || {
                there_already(bindings.create(&PostParams::default(), &binding).await.map(drop))
            })
            .await?;
        }
        Ok(())
    }
}

async fn restart(part: &'static str, kill: bool, away: Duration) -> anyhow::Result<()> {
    let how = if kill { &["--kill"][..] } else { &[] };
    xtask(&[&["cluster", "stop", part], how].concat()).await?;
    tokio::time::sleep(away).await;
    xtask(&["cluster", "start", part]).await.map(drop)
}

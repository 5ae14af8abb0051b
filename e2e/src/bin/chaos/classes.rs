//! The classes, of which some are recreated under their names again and again.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use ayatori_core::job_class::{JobClass, JobClassSpec};
use ayatori_core::parameters::{
    KubernetesExecutionParameters, KubernetesExecutionParametersSpec, OpenSandboxExecutionParameters,
    OpenSandboxExecutionParametersSpec,
};
use ayatori_e2e::replica::Adapter;
use ayatori_e2e::sandboxes::Sandboxes;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::faults::ADMITTED_LABEL;
use crate::ground::Ground;
use crate::persist::{OUTAGE, RETRY, gone_already, persist};
use crate::plan::Class;

/// Between two recreations of a class.
const RECREATION: Duration = Duration::from_secs(8);

/// How long a class may be held by its Jobs, which have to start and end first, amid faults.
const GOING: Duration = Duration::from_secs(600);

/// The four classes, and their parameters of the same names.
pub(crate) struct Classes<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) sandboxes: &'a Sandboxes,
    /// What the adapter has to take for the server.
    pub(crate) endpoint: String,
}

impl Classes<'_> {
    pub(crate) async fn create_all(&self) -> anyhow::Result<()> {
        for adapter in [Adapter::Kubernetes, Adapter::OpenSandbox] {
            for recreated in [false, true] {
                self.create(Class { adapter, recreated }).await?;
            }
        }
        Ok(())
    }

    async fn create(&self, class: Class) -> anyhow::Result<()> {
        let admitted = |spec: &mut JobClassSpec| {
            let selector = json!({"matchLabels": {ADMITTED_LABEL: "true"}});
            spec.allowed_namespaces = serde_json::from_value(selector).ok();
        };
        let name = self.ground.class(class);
        match class.adapter {
            Adapter::Kubernetes => {
                let plain = KubernetesExecutionParametersSpec::default();
                self.sandboxes.world.create_class(&name, plain, admitted).await
            }
            Adapter::OpenSandbox => {
                let parameters = OpenSandboxExecutionParametersSpec {
                    endpoint: self.endpoint.clone(),
                    ca_bundle: None,
                    allow_insecure_http: Some(true),
                    ..self.sandboxes.parameters()
                };
                self.sandboxes.create_class(&name, parameters, admitted).await
            }
        }
    }

    /// Deletes and creates again the classes that are meant to be; how often which way came about.
    pub(crate) async fn recreate_until(
        &self,
        over: impl Fn() -> bool,
    ) -> anyhow::Result<BTreeMap<String, u32>> {
        let mut came = BTreeMap::<String, u32>::new();
        // A sandbox whose parameters went by force is never known to have ended, which is as it should be.
        let ways = [
            (Adapter::Kubernetes, Way::Patient),
            (Adapter::OpenSandbox, Way::Patient),
            (Adapter::Kubernetes, Way::Forced),
        ];
        for (adapter, way) in ways.into_iter().cycle() {
            sleep(RECREATION).await;
            if over() {
                break;
            }
            self.recreate(adapter, way).await?;
            *came.entry(way.kind().to_owned()).or_default() += 1;
        }
        Ok(came)
    }

    async fn recreate(&self, adapter: Adapter, way: Way) -> anyhow::Result<()> {
        let class = Class {
            adapter,
            recreated: true,
        };
        let name = self.ground.class(class);
        let end = Instant::now() + OUTAGE;
        loop {
            let client = || self.ground.client.clone();
            remove(&Api::<JobClass>::all(client()), &name, way).await?;
            match adapter {
                Adapter::Kubernetes => {
                    remove(&Api::<KubernetesExecutionParameters>::all(client()), &name, way).await?;
                }
                Adapter::OpenSandbox => {
                    remove(&Api::<OpenSandboxExecutionParameters>::all(client()), &name, way).await?;
                }
            }
            // Where the API server goes meanwhile, who knows what was created: from the beginning then.
            match self.create(class).await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => sleep(RETRY).await,
            }
        }
    }
}

/// How an object is deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By waiting for its finalizers.
    Patient,
    /// By taking them off: what holds it is not asked.
    Forced,
}

impl Way {
    /// In a word, for counting.
    fn kind(self) -> &'static str {
        match self {
            Way::Patient => "a class recreated under its name",
            Way::Forced => "a class recreated under its name while its Jobs run",
        }
    }
}

/// Deletes an object and returns once it is gone.
async fn remove<K>(api: &Api<K>, name: &str, way: Way) -> anyhow::Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    persist("deleting a class", async || {
        gone_already(api.delete(name, &DeleteParams::default()).await.map(drop))
    })
    .await?;
    if way == Way::Forced {
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        persist("taking the finalizers off a class", async || {
            let patched = api.patch(name, &PatchParams::default(), &free).await;
            gone_already(patched.map(drop))
        })
        .await?;
    }
    let end = Instant::now() + GOING;
    loop {
        if persist("looking for a class", async || api.get_opt(name).await)
            .await?
            .is_none()
        {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{name} does not go");
        sleep(RETRY).await;
    }
}

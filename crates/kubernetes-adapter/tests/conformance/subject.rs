//! Batch Jobs of a real cluster, as a subject of the suite.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use ayatori_controller::testing::conformance::{Effects, Fault, Order, Place, Script, Subject, Trouble};
use ayatori_core::job::{Job, JobSpec};
use ayatori_core::names::{JOB_NAME_LABEL, JOB_UID_LABEL};
use ayatori_core::parameters::{KubernetesExecutionParameters, KubernetesExecutionParametersSpec};
use ayatori_e2e::api::Run;
use ayatori_kubernetes_adapter::backend::{KubernetesBackend, Options};
use ayatori_kubernetes_adapter::name;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::ClientBuilder;
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde_json::json;
use tower::BoxError;
use tower::filter::FilterLayer;

use crate::effects::Listener;

const IMAGE: &str = "localhost/busybox:1";
/// Adapters that are installed leave such Jobs alone.
const MANAGER: &str = "example.com/conformance";
const QUOTA: &str = "no-more-jobs";

/// Two namespaces of a cluster.
pub(crate) struct KubernetesSubject {
    /// Whatever happens to the adapters' own, this one works.
    client: Client,
    /// What every replica talks through.
    adapters: Client,
    unreachable: Arc<AtomicBool>,
    here: String,
    elsewhere: String,
    listener: Listener,
}

impl KubernetesSubject {
    pub(crate) async fn new(run: &Run) -> anyhow::Result<Self> {
        let unreachable = Arc::<AtomicBool>::default();
        let down = unreachable.clone();
        let connect = FilterLayer::new(move |request| match down.load(Ordering::SeqCst) {
            true => Err(BoxError::from("connection refused")),
            false => Ok(request),
        });
        let config = Config::infer()
            .await
            .context("reading the file that KUBECONFIG names")?;
        let elsewhere = run.create_namespace("elsewhere", Default::default(), Default::default());
        Ok(Self {
            adapters: ClientBuilder::try_from(config)?.with_layer(&connect).build(),
            unreachable,
            here: run.namespace.clone(),
            elsewhere: elsewhere.await?,
            listener: Listener::start(&run.client).await?,
            client: run.client.clone(),
        })
    }

    /// Takes the finalizer off every pod that still has it, as only an adapter would.
    pub(crate) async fn let_go(&self) -> anyhow::Result<()> {
        let unprotected = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        for namespace in [&self.here, &self.elsewhere] {
            let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
            for pod in pods.list_metadata(&ListParams::default()).await? {
                let patched = pods
                    .patch_metadata(&pod.name_any(), &PatchParams::default(), &unprotected)
                    .await;
                unless_gone(patched).context("letting a pod go")?;
            }
        }
        Ok(())
    }

    fn api<K>(&self, job: &Job) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &job.namespace().unwrap_or_default())
    }

    async fn refuse_creates(&self) -> anyhow::Result<()> {
        let quota = object(json!({
            "metadata": { "name": QUOTA },
            "spec": { "hard": { "count/jobs.batch": "0" } },
        }))?;
        let quotas = Api::<ResourceQuota>::namespaced(self.client.clone(), &self.here);
        quotas
            .create(&PostParams::default(), &quota)
            .await
            .context("creating a quota")?;
        let job = object(json!({
            "metadata": { "name": "probe" },
            "spec": { "suspend": true, "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "job", "image": IMAGE }],
            } } },
        }))?;
        let jobs = Api::<BatchJob>::namespaced(self.client.clone(), &self.here);
        let trying = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        // The API server learns of a quota a moment after it was created.
        let refused = async || Ok(jobs.create(&trying, &job).await.is_err());
        ayatori_e2e::api::eventually("the quota counts", refused).await
    }

    async fn put_stranger(&self, job: &Job) -> anyhow::Result<()> {
        let create = PostParams::default();
        let owner = object(json!({ "metadata": { "name": format!("{}-s-stranger", job.name_any()) } }))?;
        let owner = self.api::<ConfigMap>(job).create(&create, &owner).await?;
        let uid = job.uid().unwrap_or_default();
        let labels = json!({ JOB_UID_LABEL: uid, JOB_NAME_LABEL: job.name_any() });
        let stranger = object(json!({
            "metadata": {
                "name": name::batch_job(&job.name_any(), &uid),
                "labels": labels,
                "ownerReferences": [owner.controller_owner_ref(&())],
            },
            "spec": { "suspend": true, "template": { "metadata": { "labels": labels }, "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "job", "image": IMAGE }],
            } } },
        }))?;
        self.api::<BatchJob>(job)
            .create(&create, &stranger)
            .await
            .context("creating a stranger")?;
        Ok(())
    }

    /// The common way, `kubectl delete job`: the pod is told to end, and the batch Job is gone at once.
    async fn delete(&self, job: &Job) -> anyhow::Result<()> {
        let child = name::batch_job(&job.name_any(), &job.uid().unwrap_or_default());
        let deleted = self
            .api::<BatchJob>(job)
            .delete(&child, &DeleteParams::background())
            .await;
        deleted.map(drop).context("deleting a batch Job")
    }
}

impl Subject for KubernetesSubject {
    type Backend = KubernetesBackend;

    fn patience(&self) -> Duration {
        ayatori_e2e::api::PATIENCE
    }

    fn replica(&self) -> KubernetesBackend {
        let options = Options {
            job_guard_seconds: 120,
            controller_slow_seconds: 5,
            node_silence_seconds: 60,
            allow_secret_checks: false,
            secret_namespaces: vec![],
        };
        KubernetesBackend::new(&self.adapters, &options)
    }

    fn parameters(&self) -> KubernetesExecutionParameters {
        let spec = KubernetesExecutionParametersSpec::default();
        let mut parameters = KubernetesExecutionParameters::new("conformance", spec);
        // Nobody looks them up: they are handed over.
        parameters.metadata.uid = Some("70617261-6d65-4000-8000-746572730000".to_owned());
        parameters
    }

    async fn create(&self, order: Order) -> anyhow::Result<Job> {
        let namespace = match order.place {
            Place::Here => &self.here,
            Place::Elsewhere => &self.elsewhere,
        };
        let spec = JobSpec {
            image: IMAGE.to_owned(),
            command: self
                .listener
                .command(&format!("{namespace}/{}", order.name), order.script),
            env: order.env,
            termination_grace_period_seconds: (order.script == Script::IgnoresTheStop).then_some(2),
            managed_by: Some(MANAGER.to_owned()),
            ..JobSpec::default()
        };
        let jobs = Api::<Job>::namespaced(self.client.clone(), namespace);
        let created = jobs
            .create(&PostParams::default(), &Job::new(&order.name, spec))
            .await;
        created.context("creating a Job")
    }

    async fn store(&self, job: Job) -> anyhow::Result<Job> {
        let status = Patch::Merge(json!({ "status": job.status }));
        let jobs = self.api::<Job>(&job);
        let stored = jobs
            .patch_status(&job.name_any(), &PatchParams::default(), &status)
            .await;
        stored.context("storing a Job's status")
    }

    async fn effects(&self, job: &Job) -> anyhow::Result<Effects> {
        let namespace = job.namespace().unwrap_or_default();
        Ok(self.listener.effects(&format!("{namespace}/{}", job.name_any())))
    }

    async fn cause(&self, fault: Fault<'_>) -> Result<(), Trouble> {
        match fault {
            Fault::Unreachable => self.unreachable.store(true, Ordering::SeqCst),
            Fault::AnswersAreLost => {
                return Err(Trouble::Impossible("what was created is found by its name"));
            }
            Fault::CreatesAreRefused => self.refuse_creates().await?,
            Fault::Deleted(job) => self.delete(job).await?,
            Fault::Stranger(job) => self.put_stranger(job).await?,
        }
        Ok(())
    }

    async fn cure(&self) -> anyhow::Result<()> {
        self.unreachable.store(false, Ordering::SeqCst);
        let quotas = Api::<ResourceQuota>::namespaced(self.client.clone(), &self.here);
        unless_gone(quotas.delete(QUOTA, &DeleteParams::default()).await).context("deleting the quota")
    }

    async fn stranger_is_unharmed(&self, job: &Job) -> anyhow::Result<bool> {
        let child = name::batch_job(&job.name_any(), &job.uid().unwrap_or_default());
        let found = self.api::<BatchJob>(job).get_opt(&child).await?;
        Ok(found.is_some_and(|stranger| {
            let spec = stranger.spec.unwrap_or_default();
            stranger.metadata.deletion_timestamp.is_none() && spec.active_deadline_seconds.is_none()
        }))
    }
}

fn object<K: serde::de::DeserializeOwned>(value: serde_json::Value) -> anyhow::Result<K> {
    serde_json::from_value(value).context("an object of this test cannot be read")
}

fn unless_gone<T>(answer: kube::Result<T>) -> anyhow::Result<()> {
    match answer {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

//! Sandboxes of a real server, as a subject of the suite.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use ayatori_controller::testing::conformance::{Effects, Fault, Order, Place, Subject, Trouble};
use ayatori_core::conditions::whole_seconds;
use ayatori_core::job::{Job, JobSpec};
use ayatori_core::names::{JOB_NAME_LABEL, JOB_NAMESPACE_LABEL, JOB_UID_LABEL};
use ayatori_core::parameters::{
    OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec, SecretKeyReference,
};
use ayatori_e2e::api::{PATIENCE, Run};
use ayatori_e2e::gate::{Gate, Opening};
use ayatori_e2e::opensandbox::OpenSandbox;
use ayatori_e2e::world::IMAGE;
use ayatori_opensandbox_adapter::backend::{OpenSandboxBackend, Options};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::effects::Containers;
use crate::passage::Passage;

const API_KEY: &str = "api-key";

/// A server, and a way to it.
pub(crate) struct SandboxSubject {
    client: Client,
    server: OpenSandbox,
    /// Goes before the gate, and all replicas through both.
    passage: Passage,
    gate: Gate,
    /// The namespace of the API key, and of nearly all Jobs. None of them is a real one: the backend needs none.
    namespace: String,
    containers: Containers,
    /// The sandboxes of strangers, by the UIDs of the Jobs in whose names they were made.
    strangers: Mutex<HashMap<String, String>>,
}

impl SandboxSubject {
    pub(crate) async fn new(run: &Run) -> anyhow::Result<Self> {
        let server = OpenSandbox::of_the_cluster().await?;
        let gate = Gate::before(&server).await?;
        let address = gate.endpoint.strip_prefix("http://");
        let address = address.context("the gate has no plain endpoint")?.parse()?;
        let key = Secret {
            metadata: ObjectMeta {
                name: Some(API_KEY.to_owned()),
                ..ObjectMeta::default()
            },
            string_data: Some([(API_KEY.to_owned(), server.api_key.clone())].into()),
            ..Secret::default()
        };
        Api::namespaced(run.client.clone(), &run.namespace)
            .create(&PostParams::default(), &key)
            .await
            .context("storing the API key")?;
        Ok(Self {
            client: run.client.clone(),
            passage: Passage::to(address).await?,
            gate,
            namespace: run.namespace.clone(),
            containers: Containers::watch(&server)?,
            server,
            strangers: Mutex::default(),
        })
    }

    /// Deletes every sandbox there is of this run.
    pub(crate) async fn clear(&self) -> anyhow::Result<()> {
        for place in [Place::Here, Place::Elsewhere] {
            let namespace = self.namespace(place);
            self.server
                .delete_all(&[(JOB_NAMESPACE_LABEL, &namespace)])
                .await
                .context("deleting what the test left behind")?;
        }
        Ok(())
    }

    fn namespace(&self, place: Place) -> String {
        match place {
            Place::Here => self.namespace.clone(),
            Place::Elsewhere => format!("{}-elsewhere", self.namespace),
        }
    }

    async fn put_stranger(&self, job: &Job) -> anyhow::Result<()> {
        let uid = job.uid().unwrap_or_default();
        let request = json!({
            "image": { "uri": IMAGE },
            "entrypoint": ["sleep", "600"],
            "resourceLimits": { "cpu": "500m", "memory": "33554432" },
            "timeout": 600,
            "metadata": {
                "execution.ayatori.ddupan.top/managed-by": "opensandbox-adapter",
                JOB_UID_LABEL: uid,
                JOB_NAMESPACE_LABEL: job.namespace(),
                JOB_NAME_LABEL: "another",
            },
        });
        let stranger = self.server.create(&request).await?;
        self.strangers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(uid, stranger.id);
        Ok(())
    }
}

impl Subject for SandboxSubject {
    type Backend = OpenSandboxBackend;

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn replica(&self) -> OpenSandboxBackend {
        let options = Options {
            allow_insecure_http: true,
            log_window_seconds: 0,
            inside_poll_milliseconds: 1000,
            poll_milliseconds: 500,
            call_timeout_seconds: 30,
            create_timeout_seconds: 30,
            ..Options::default()
        };
        OpenSandboxBackend::new(&self.client, &options)
    }

    fn parameters(&self) -> OpenSandboxExecutionParameters {
        let spec = OpenSandboxExecutionParametersSpec {
            endpoint: format!("http://{}", self.passage.address),
            allow_insecure_http: Some(true),
            api_key_secret_ref: SecretKeyReference {
                namespace: self.namespace.clone(),
                name: API_KEY.to_owned(),
                key: API_KEY.to_owned(),
            },
            ..OpenSandboxExecutionParametersSpec::default()
        };
        let mut parameters = OpenSandboxExecutionParameters::new("conformance", spec);
        // Nobody looks them up: they are handed over.
        parameters.metadata.uid = Some("70617261-6d65-4000-8000-746572730000".to_owned());
        parameters
    }

    async fn create(&self, order: Order) -> anyhow::Result<Job> {
        let namespace = self.namespace(order.place);
        let spec = JobSpec {
            image: IMAGE.to_owned(),
            command: Containers::command(order.script),
            env: order.env,
            ..JobSpec::default()
        };
        let mut job = Job::new(&order.name, spec);
        job.metadata.uid = Some(format!("{namespace}-{}", order.name));
        job.metadata.namespace = Some(namespace);
        job.metadata.creation_timestamp = Some(whole_seconds(Timestamp::now()));
        Ok(job)
    }

    async fn effects(&self, job: &Job) -> anyhow::Result<Effects> {
        self.containers.effects(&self.server, job).await
    }

    async fn cause(&self, fault: Fault<'_>) -> Result<(), Trouble> {
        match fault {
            Fault::Unreachable => self.passage.open(false),
            Fault::AnswersAreLost => self.gate.open(Opening::OneWay),
            Fault::CreatesAreRefused => {
                return Err(Trouble::Impossible(
                    "the server refuses nothing that the adapter sends",
                ));
            }
            Fault::Deleted(job) => {
                let execution = job.status.as_ref().and_then(|s| s.execution.as_ref());
                let id = execution.and_then(|e| e.id.as_deref());
                self.server.delete(id.context("a Job without a sandbox")?).await?;
            }
            Fault::Stranger(job) => self.put_stranger(job).await?,
        }
        Ok(())
    }

    async fn cure(&self) -> anyhow::Result<()> {
        self.passage.open(true);
        self.gate.open(Opening::Wide);
        Ok(())
    }

    async fn stranger_is_unharmed(&self, job: &Job) -> anyhow::Result<bool> {
        let id = {
            let strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
            strangers.get(&job.uid().unwrap_or_default()).cloned()
        };
        let id = id.context("no stranger was made in the name of this Job")?;
        let found = self.server.sandbox(&id).await?;
        Ok(found.is_some_and(|stranger| stranger.status.state == "Running"))
    }
}

//! Sandboxes of a server in this process, as a subject of the suite.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use ayatori_controller::testing::conformance::{Effects, Fault, Order, Place, Subject, Trouble};
use ayatori_core::conditions::whole_seconds;
use ayatori_core::job::{Job, JobSpec};
use ayatori_core::names::{JOB_NAME_LABEL, JOB_NAMESPACE_LABEL, JOB_UID_LABEL};
use ayatori_core::parameters::{
    CommandMode, OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec,
};
use ayatori_opensandbox_adapter::backend::{OpenSandboxBackend, Options};
use ayatori_opensandbox_adapter::stub::{Call, Fault as StubFault, Faults, Recorded, Stub};
use jiff::Timestamp;
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::api;
use crate::effects::Traces;

/// What somebody does who makes an end of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// Its container is removed.
    Removed,
    /// Its container is stopped, and stays.
    Stopped,
}

/// A server and an API server.
pub(crate) struct StubSubject {
    server: Stub,
    api: Client,
    mode: CommandMode,
    deletion: Deletion,
    traces: Traces,
    /// The sandboxes of strangers, by the UIDs of the Jobs in whose names they were made.
    strangers: Mutex<HashMap<String, String>>,
}

impl StubSubject {
    pub(crate) async fn new(mode: CommandMode, deletion: Deletion) -> anyhow::Result<Self> {
        Ok(Self {
            server: Stub::start_with_machines().await?,
            api: api::client(),
            mode,
            deletion,
            traces: Traces::new()?,
            strangers: Mutex::default(),
        })
    }

    fn put_stranger(&self, job: &Job) {
        let uid = job.uid().unwrap_or_default();
        let id = self.server.put(&json!({
            "image": { "uri": "app" },
            "entrypoint": ["sleep", "600"],
            "metadata": {
                "execution.ayatori.ddupan.top/managed-by": "opensandbox-adapter",
                JOB_UID_LABEL: uid,
                JOB_NAMESPACE_LABEL: job.namespace(),
                JOB_NAME_LABEL: "another",
            },
        }));
        self.strangers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(uid, id);
    }
}

impl Subject for StubSubject {
    type Backend = OpenSandboxBackend;

    fn patience(&self) -> Duration {
        Duration::from_secs(120)
    }

    fn replica(&self) -> OpenSandboxBackend {
        let options = Options {
            allow_insecure_http: true,
            log_window_seconds: 0,
            inside_poll_milliseconds: 100,
            poll_milliseconds: 100,
            create_timeout_seconds: 10,
            ..Options::default()
        };
        OpenSandboxBackend::new(&self.api, &options)
    }

    fn parameters(&self) -> OpenSandboxExecutionParameters {
        let spec = OpenSandboxExecutionParametersSpec {
            endpoint: self.server.endpoint(),
            allow_insecure_http: Some(true),
            command_mode: Some(self.mode),
            api_key_secret_ref: api::api_key(),
            ..OpenSandboxExecutionParametersSpec::default()
        };
        let mut parameters = OpenSandboxExecutionParameters::new("conformance", spec);
        parameters.metadata.uid = Some("70617261-6d65-4000-8000-746572730000".to_owned());
        parameters
    }

    async fn create(&self, order: Order) -> anyhow::Result<Job> {
        let namespace = match order.place {
            Place::Here => "here",
            Place::Elsewhere => "elsewhere",
        };
        let uid = format!("uid-of-{}-{namespace}", order.name);
        let spec = JobSpec {
            image: "app".to_owned(),
            command: self.traces.command(&uid, order.script),
            env: order.env,
            ..JobSpec::default()
        };
        let mut job = Job::new(&order.name, spec);
        job.metadata.namespace = Some(namespace.to_owned());
        job.metadata.uid = Some(uid);
        job.metadata.creation_timestamp = Some(whole_seconds(Timestamp::now()));
        Ok(job)
    }

    async fn effects(&self, job: &Job) -> anyhow::Result<Effects> {
        self.traces.effects(&job.uid().unwrap_or_default())
    }

    async fn cause(&self, fault: Fault<'_>) -> Result<(), Trouble> {
        match fault {
            Fault::Unreachable => self.server.set(|faults| faults.on_all(&StubFault::LosesRequest)),
            Fault::AnswersAreLost => self
                .server
                .set(|faults| faults.on(Call::Create, StubFault::LosesAnswer)),
            Fault::CreatesAreRefused => self
                .server
                .set(|faults| faults.on(Call::Create, StubFault::EchoesRequest)),
            Fault::Deleted(job) => {
                let execution = job.status.as_ref().and_then(|s| s.execution.as_ref());
                let id = execution.and_then(|e| e.id.as_deref());
                let id = id.context("a Job without a sandbox")?;
                match self.deletion {
                    Deletion::Removed => self.server.vanish(id),
                    Deletion::Stopped => self.server.end(id, 0),
                }
            }
            Fault::Stranger(job) => self.put_stranger(job),
        }
        Ok(())
    }

    async fn cure(&self) -> anyhow::Result<()> {
        self.server.set(|faults| *faults = Faults::default());
        Ok(())
    }

    async fn stranger_is_unharmed(&self, job: &Job) -> anyhow::Result<bool> {
        let strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let id = strangers.get(&job.uid().unwrap_or_default());
        let id = id.context("no stranger was made in the name of this Job")?;
        let touched = |request: &Recorded| {
            let changes = match request.call {
                Call::Delete | Call::Pause | Call::Renew | Call::Run => true,
                Call::Create | Call::List | Call::Get | Call::Log | Call::Events => false,
                Call::File | Call::Pool | Call::Other => false,
            };
            changes && request.target.split('/').any(|segment| segment == id)
        };
        Ok(self.server.sandboxes().contains(id) && !self.server.requests().iter().any(touched))
    }
}

//! A class, a hostile server and the adapter of one test.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, resume_unwind};

use anyhow::{Context, ensure};
use ayatori_controller::telemetry::{self, LogFormat};
use ayatori_controller::testing::death::Death;
use ayatori_controller::testing::replica::{Replica, impatient};
use ayatori_core::job::{Job, JobSpec};
use ayatori_core::names::JOB_UID_LABEL;
use ayatori_core::parameters::{
    OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec as ParametersSpec, SecretKeyReference,
};
use ayatori_e2e::api::{self, PATIENCE, Run};
use ayatori_e2e::ground::{Ground, within};
use ayatori_opensandbox_adapter::backend::{OpenSandboxBackend, Options};
use ayatori_opensandbox_adapter::stub::{API_KEY, Call, Faults, Recorded, Stub};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// The identity of a test's replica.
const ONE: &str = "one";
/// The name of the Secret with the API key, and the key in it.
const KEY: &str = "key";

/// One test's part of the world.
pub(crate) struct Trial {
    ground: Ground,
    pub(crate) server: Stub,
    pub(crate) options: Options,
}

impl Deref for Trial {
    type Target = Ground;

    fn deref(&self) -> &Ground {
        &self.ground
    }
}

/// Options of an adapter that a test can wait for.
pub(crate) fn options() -> Options {
    Options {
        allow_insecure_http: true,
        send_window_seconds: 4,
        fence_seconds: 8,
        clock_skew_seconds: 1,
        list_lag_seconds: 1,
        log_window_seconds: 0,
        poll_milliseconds: 200,
        call_timeout_seconds: 2,
        create_timeout_seconds: 5,
        ..Options::default()
    }
}

/// Runs a test and cleans up however it ends. It fails if anything is left behind.
pub(crate) async fn with(test: impl AsyncFn(&Trial) -> anyhow::Result<()>) -> anyhow::Result<()> {
    with_server(Stub::start().await?, options(), test).await
}

/// The same, with this server and an adapter with these options.
pub(crate) async fn with_server(
    server: Stub,
    options: Options,
    test: impl AsyncFn(&Trial) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    api::in_namespace(async |run: Run| {
        if let Some(level) = std::env::var_os("ADAPTER_LOG") {
            let _ = telemetry::init_logs(LogFormat::Text, &level.to_string_lossy());
        }
        let trial = Trial {
            ground: Ground::of(run, "opensandbox"),
            server,
            options,
        };
        let outcome = AssertUnwindSafe(trial.run(&test)).catch_unwind().await;
        let cleared = trial.clear().await;
        if cleared.is_err() {
            trial.force().await?;
        }
        match outcome {
            Ok(outcome) => outcome.and(cleared),
            Err(panic) => resume_unwind(panic),
        }
    })
    .await
}

impl Trial {
    async fn run(&self, test: &impl AsyncFn(&Trial) -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.store_key(API_KEY).await?;
        self.create_class(&self.class, self.parameters(&self.server))
            .await?;
        let outcome = test(self).await;
        if outcome.is_err() {
            self.show().await;
            eprintln!("sandboxes: {:?}", self.server.sandboxes());
        }
        outcome
    }

    /// Parameters that name this server, with the trial's API key.
    pub(crate) fn parameters(&self, server: &Stub) -> ParametersSpec {
        ParametersSpec {
            endpoint: server.endpoint(),
            ca_bundle: server.ca_bundle().map(str::to_owned),
            allow_insecure_http: server.ca_bundle().is_none().then_some(true),
            api_key_secret_ref: SecretKeyReference {
                namespace: self.namespace.clone(),
                name: KEY.to_owned(),
                key: KEY.to_owned(),
            },
            ..ParametersSpec::default()
        }
    }

    /// Changes the parameters of the test's class.
    pub(crate) async fn edit_parameters(&self, spec: Value) -> anyhow::Result<()> {
        let parameters: Api<OpenSandboxExecutionParameters> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({ "spec": spec }));
        let edited = parameters
            .patch(&self.class, &PatchParams::default(), &patch)
            .await;
        edited.map(drop).context("editing the parameters")
    }

    /// Stores this API key in the Secret that the parameters name.
    pub(crate) async fn store_key(&self, key: &str) -> anyhow::Result<()> {
        self.store_secret(KEY, KEY, key).await
    }

    /// Stores a Secret with one key.
    pub(crate) async fn store_secret(&self, name: &str, key: &str, value: &str) -> anyhow::Result<()> {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            string_data: Some([(key.to_owned(), value.to_owned())].into()),
            ..Secret::default()
        };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let patch = PatchParams::apply("ayatori-tests").force();
        let stored = secrets.patch(name, &patch, &Patch::Apply(&secret)).await;
        stored.map(drop).with_context(|| format!("storing Secret {name}"))
    }

    /// Starts the adapter, and returns when its class is ready.
    pub(crate) async fn start(&self) -> anyhow::Result<Replica> {
        let replica = self.start_unready().await?;
        self.when_ready().await?;
        Ok(replica)
    }

    /// Starts the adapter.
    pub(crate) async fn start_unready(&self) -> anyhow::Result<Replica> {
        let make =
            |client: &Client| OpenSandboxBackend::new(client, &self.options).called(self.controller.as_str());
        let settings = self.options.settings(impatient());
        Replica::start_with(make, settings, &self.namespace, ONE, Death::never()).await
    }

    /// Creates a Job of this name, of the test's class.
    pub(crate) async fn create_named(
        &self,
        name: &str,
        script: &str,
        adjust: impl FnOnce(&mut JobSpec),
    ) -> anyhow::Result<Job> {
        let mut job = self.job(name, script);
        adjust(&mut job.spec);
        let created = self.jobs.create(&PostParams::default(), &job).await;
        created.with_context(|| format!("creating Job {name}"))
    }

    /// How many create requests the server got for this Job.
    pub(crate) fn posts(&self, job: &Job) -> usize {
        self.server.posts(JOB_UID_LABEL, &job.uid().unwrap_or_default())
    }

    /// How often the Job's command was started.
    pub(crate) fn starts(&self, job: &Job) -> usize {
        self.server.starts(JOB_UID_LABEL, &job.uid().unwrap_or_default())
    }

    /// Fails unless the server got one create request for this Job, and started its command as often as told.
    pub(crate) fn expect_one_post(&self, job: &Job, starts: usize) -> anyhow::Result<()> {
        let seen = (self.posts(job), self.starts(job));
        ensure!(
            seen == (1, starts),
            "Job {}: {} create requests, {} starts",
            job.name_any(),
            seen.0,
            seen.1
        );
        Ok(())
    }

    /// The create requests for this Job.
    pub(crate) fn requests_for(&self, job: &Job) -> Vec<Value> {
        let uid = job.uid().unwrap_or_default();
        let created = |request: &Recorded| {
            let labels = request.body.get("metadata");
            request.call == Call::Create
                && labels.and_then(|l| l.get(JOB_UID_LABEL)).and_then(Value::as_str) == Some(&uid)
        };
        let requests = self.server.requests().into_iter();
        requests.filter(created).map(|request| request.body).collect()
    }

    /// The Job's sandbox, which is there.
    pub(crate) fn sandbox(&self, job: &Job) -> anyhow::Result<String> {
        let execution = job.status.as_ref().and_then(|s| s.execution.as_ref());
        execution
            .and_then(|e| e.id.clone())
            .context("no sandbox is recorded for the Job")
    }

    /// Returns once something is so on the server.
    pub(crate) async fn until(&self, what: &str, so: impl FnMut(&Stub) -> bool) -> anyhow::Result<()> {
        let waiting = within(PATIENCE, self.server.until(so)).await;
        waiting.with_context(|| format!("on the server: {what}"))
    }

    /// Returns once the server has got a create request for the Job.
    pub(crate) async fn when_posted(&self, job: &Job) -> anyhow::Result<()> {
        self.until("a create request", |_| self.posts(job) > 0).await
    }

    /// Returns once the server has got so many more requests of this kind.
    pub(crate) async fn after_more(&self, calls: usize, call: Call) -> anyhow::Result<()> {
        let wanted = self.server.calls(call).saturating_add(calls);
        self.until(&format!("{calls} more of {call:?}"), |server| {
            server.calls(call) >= wanted
        })
        .await
    }

    /// Deletes everything through a healthy adapter and a healthy server; fails if anything does not go.
    async fn clear(&self) -> anyhow::Result<()> {
        self.server.set(|faults| *faults = Faults::default());
        let _replica = self.start_unready().await?;
        self.ground.clear().await?;
        let left = self.server.sandboxes();
        ensure!(
            left.is_empty(),
            "the Jobs are gone, and their sandboxes are not: {left:?}"
        );
        Ok(())
    }
}

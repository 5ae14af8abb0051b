//! Everything there is an alert for, caused at once.

use std::sync::Mutex;

use anyhow::Context;
use ayatori_core::conditions::RESULT_UNKNOWN;
use ayatori_core::job::Job;
use ayatori_core::job_class::JobClass;
use ayatori_core::names::{IS_DEFAULT_CLASS, JOB_UID_LABEL};
use ayatori_core::parameters::{
    OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec, SecretKeyReference,
};
use ayatori_e2e::api::{self, RUN_LABEL, Run};
use ayatori_e2e::ground::{Ground, holds, status};
use ayatori_e2e::prometheus::Prometheus;
use ayatori_e2e::world::World;
use ayatori_opensandbox_adapter::stub::{API_KEY, Call, Fault, Stub};
use futures::{FutureExt, future};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::{ClusterResourceScope, DynamicObject};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::adapters::{AWAY, Addresses, BUSY, LIMITED, Running};
use crate::watch::{SILENT, Watch};

/// The name of the Secret with the servers' API key, and the key in it.
const KEY: &str = "key";
/// The account of the adapter that may read and not write.
const ACCOUNT: &str = "limited";
/// How many Jobs are to be stopped on a server that says nothing.
const STOPPED: usize = 8;
/// A time that the API server takes for one and nobody else does.
const UNREADABLE: &str = "2026-01-01T00:00:00+99:99";

/// A class, its server, and the Jobs of both.
struct Place {
    ground: Ground,
    server: Stub,
}

/// What is needed to cause them.
pub(crate) struct Troubles<'a> {
    addresses: &'a Addresses,
    client: Client,
    namespace: String,
    /// Whose server falls silent.
    silent: Place,
    /// Whose server has a sandbox too many.
    haunted: Place,
    /// Whose adapter is away for a while.
    left: Place,
    /// Whose adapter has too few rights.
    limited: Place,
    running: Mutex<Vec<Running>>,
}

impl<'a> Troubles<'a> {
    /// Creates classes, servers and accounts.
    pub(crate) async fn prepare(world: &World, addresses: &'a Addresses) -> anyhow::Result<Self> {
        let (client, namespace) = (world.client.clone(), world.namespace.clone());
        let secret = json!({"metadata": {"name": KEY}, "stringData": {KEY: API_KEY}});
        let secret: Secret = serde_json::from_value(secret)?;
        Api::namespaced(client.clone(), &namespace)
            .create(&PostParams::default(), &secret)
            .await
            .context("storing the API key")?;
        let place = async |name: &str, controller: &str| {
            let server = Stub::start().await?;
            let run = Run {
                client: client.clone(),
                namespace: namespace.clone(),
            };
            let mut ground = Ground::of(run, controller);
            ground.class = format!("{namespace}-{name}");
            ground
                .create_class(&ground.class, parameters(&namespace, &server))
                .await?;
            anyhow::Ok(Place { ground, server })
        };
        let troubles = Self {
            addresses,
            silent: place(SILENT, BUSY).await?,
            haunted: place("haunted", BUSY).await?,
            left: place("left", AWAY).await?,
            limited: place("limited", LIMITED).await?,
            running: Mutex::default(),
            client,
            namespace,
        };
        troubles.grant().await?;
        Ok(troubles)
    }

    /// Causes everything, and returns once every alert has fired.
    pub(crate) async fn cause(&self, prometheus: &Prometheus) -> anyhow::Result<()> {
        let watch = Watch::over(prometheus, &self.silent.ground.class);
        self.start(BUSY, &self.silent, None).await?;
        let account = format!("system:serviceaccount:{}:{ACCOUNT}", self.namespace);
        self.start(LIMITED, &self.limited, Some(&account)).await?;
        // Each on the heap: together they are more than the stack of a test holds.
        let all = [
            self.haunt().boxed_local(),
            self.fall_silent().boxed_local(),
            self.leave_for_a_while(&watch).boxed_local(),
            self.store_what_cannot_be_read(&watch).boxed_local(),
            self.name_two_defaults(&watch).boxed_local(),
            watch.keep().boxed_local(),
        ];
        future::try_join_all(all).await.map(drop)
    }

    /// A sandbox is there whose Job never was. Sandboxes are only listed while there is one to look after.
    async fn haunt(&self) -> anyhow::Result<()> {
        let Place { ground, server } = &self.haunted;
        let job = ground.create("runs=forever").await?;
        ground.when_started(&job).await?;
        let created = server
            .requests()
            .into_iter()
            .find(|request| request.call == Call::Create);
        let nobodys = json!({"metadata": {JOB_UID_LABEL: "00000000-0000-4000-8000-000000000000"}});
        server.put(&api::merged(
            created.context("nothing was created")?.body,
            &nobodys,
        ));
        Ok(())
    }

    /// A server falls silent, on which one Job is to go on, one to be deleted and many to be stopped. The class has one
    /// place, and each Job takes it for as long as the server says nothing.
    async fn fall_silent(&self) -> anyhow::Result<()> {
        let Place { ground, server } = &self.silent;
        ground.when_ready().await?;
        let mut jobs = Vec::new();
        for _ in 0..STOPPED + 2 {
            jobs.push(ground.create("runs=forever").await?);
        }
        for job in &jobs {
            ground.when_started(job).await?;
        }
        server.set(|faults| faults.on_all(&Fault::Silent));
        let (goes_on, others) = jobs.split_first().context("no Jobs")?;
        let (deleted, stopped) = others.split_first().context("no Jobs")?;
        ground
            .when(goes_on, "not known", |job: &Job| holds(job, RESULT_UNKNOWN))
            .await?;
        ground.delete(deleted).await?;
        for job in stopped {
            ground.cancel(job).await?;
        }
        Ok(())
    }

    /// An adapter is away when a TTL is over, and comes back once that was noticed. A rate begins with the second
    /// deletion, so there is another, which is late because its TTL was set late.
    async fn leave_for_a_while(&self, watch: &Watch<'_>) -> anyhow::Result<()> {
        let ground = &self.left.ground;
        let adapter = self.run(AWAY, self.addresses.away, ground, None).await?;
        ground.when_ready().await?;
        // Nobody misses whom nobody has seen. Before there are Jobs: it is not to see a TTL end.
        watch.until_seen("ayatori_leading", AWAY).await?;
        let (first, second) = (ground.create("").await?, ground.create("").await?);
        ground.when_finished(&first).await?;
        let ended = ground.when_finished(&second).await?;
        let ended = status(&ended).finish_time.context("no finish time")?.0;
        adapter.kill().await;
        let ttl = json!({"spec": {"ttlSecondsAfterFinished": 2}});
        ground.patch(&first, ttl.clone()).await?;
        watch.until_fired("AyatoriNoLeader").await?;
        // Later than the alert's threshold, 2 s, after the end of the TTL.
        let late = ended + SignedDuration::from_secs(2 + 5);
        api::eventually("both Jobs are late", async || Ok(Timestamp::now() > late)).await?;
        self.start(AWAY, &self.left, None).await?;
        ground.when_gone(&first).await?;
        watch
            .until_seen("ayatori_ttl_lateness_seconds_count", AWAY)
            .await?;
        ground.patch(&second, ttl).await?;
        ground.when_gone(&second).await
    }

    /// Somebody writes a condition that the definitions allow, and nobody can read. It goes as soon as it was noticed.
    async fn store_what_cannot_be_read(&self, watch: &Watch<'_>) -> anyhow::Result<()> {
        let name = format!("{}-unreadable", self.namespace);
        let spec = parameters(&self.namespace, &self.haunted.server);
        let object = OpenSandboxExecutionParameters::new(&name, spec);
        self.haunted.ground.create_global(object).await?;
        let condition = json!({
            "type": "Strange", "status": "True", "reason": "Strange", "message": "",
            "lastTransitionTime": UNREADABLE,
        });
        let status = json!({"status": {"conditions": [condition]}});
        // The answer cannot be read either.
        let crds = ayatori_core::crd::all();
        let is_it = |crd: &&_| api::resource(crd).kind == OpenSandboxExecutionParameters::kind(&());
        let resource = api::resource(crds.iter().find(is_it).context("no definition")?);
        let objects = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
        let stored = objects
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
            .await;
        stored.context("storing what cannot be read")?;
        let fired = watch.until_fired("AyatoriUndecodableObjects").await;
        objects.delete(&name, &DeleteParams::default()).await?;
        fired
    }

    /// Two classes are the global default, for no longer than it takes to be told of.
    async fn name_two_defaults(&self, watch: &Watch<'_>) -> anyhow::Result<()> {
        let classes = Api::<JobClass>::all(self.client.clone());
        let name_default = async |value: Value| {
            let patch = json!({"metadata": {"annotations": {IS_DEFAULT_CLASS: value}}});
            for place in [&self.silent, &self.haunted] {
                classes
                    .patch(
                        &place.ground.class,
                        &PatchParams::default(),
                        &Patch::Merge(&patch),
                    )
                    .await
                    .context("annotating a class")?;
            }
            anyhow::Ok(())
        };
        self.haunted.ground.when_ready().await?;
        name_default("true".into()).await?;
        let fired = watch.until_fired("AyatoriDefaultJobClassAmbiguous").await;
        // However it ended, nobody else's Job may come to these by default.
        name_default(Value::Null).await?;
        fired
    }

    async fn run(
        &self,
        name: &'static str,
        listen: std::net::SocketAddr,
        ground: &Ground,
        account: Option<&str>,
    ) -> anyhow::Result<Running> {
        Running::start(name, listen, &self.namespace, &ground.controller, account).await
    }

    /// Starts the adapter of a place, which runs until everything is cleared.
    async fn start(&self, name: &'static str, place: &Place, account: Option<&str>) -> anyhow::Result<()> {
        let listen = self.addresses.targets().into_iter().find(|(job, _)| *job == name);
        let (_, listen) = listen.context("no address for this adapter")?;
        let running = self.run(name, listen, &place.ground, account).await?;
        self.running.lock().expect("nobody panics with it").push(running);
        Ok(())
    }

    /// Lets the limited account read everything that an adapter reads, and hold its Lease.
    async fn grant(&self) -> anyhow::Result<()> {
        let metadata = json!({"name": self.namespace, "labels": {RUN_LABEL: self.namespace}});
        let role: ClusterRole = serde_json::from_value(json!({
            "metadata": metadata,
            "rules": [
                {"apiGroups": [ayatori_core::names::GROUP, ""], "resources": ["*"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update", "patch"]},
            ],
        }))?;
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self.namespace},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": self.namespace}],
        }))?;
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(ACCOUNT.to_owned()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        Api::namespaced(self.client.clone(), &self.namespace)
            .create(&PostParams::default(), &account)
            .await?;
        create(&self.client, &role).await?;
        create(&self.client, &binding).await
    }

    /// Removes what does not go with the namespace. What is on a silent server would take its time to go by itself.
    pub(crate) async fn clear(self) -> anyhow::Result<()> {
        let running = std::mem::take(&mut *self.running.lock().expect("nobody panics with it"));
        for adapter in running {
            adapter.kill().await;
        }
        let classes = Api::<JobClass>::all(self.client.clone());
        let ours = ListParams::default().labels(&format!("{RUN_LABEL}={}", self.namespace));
        // The last request of an adapter may come after its end.
        api::eventually("its classes are gone", async || {
            self.haunted.ground.force().await?;
            Ok(classes.list_metadata(&ours).await?.items.is_empty())
        })
        .await?;
        let (client, delete) = (self.client.clone(), DeleteParams::default());
        Api::<ClusterRoleBinding>::all(client.clone())
            .delete(&self.namespace, &delete)
            .await?;
        Api::<ClusterRole>::all(client)
            .delete(&self.namespace, &delete)
            .await?;
        Ok(())
    }
}

async fn create<K>(client: &Client, object: &K) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Serialize + DeserializeOwned,
    K: std::fmt::Debug,
{
    let created = Api::all(client.clone())
        .create(&PostParams::default(), object)
        .await;
    created
        .map(drop)
        .with_context(|| format!("creating a {}", K::kind(&())))
}

fn parameters(namespace: &str, server: &Stub) -> OpenSandboxExecutionParametersSpec {
    OpenSandboxExecutionParametersSpec {
        endpoint: server.endpoint(),
        allow_insecure_http: Some(true),
        api_key_secret_ref: SecretKeyReference {
            namespace: namespace.to_owned(),
            name: KEY.to_owned(),
            key: KEY.to_owned(),
        },
        ..OpenSandboxExecutionParametersSpec::default()
    }
}

//! A [`World`] with a class that runs its Jobs in sandboxes of the local cluster's OpenSandbox server.

use std::future::Future;

use anyhow::Context;
use ayatori_core::job::{Job, JobSpec};
use ayatori_core::job_class::{JobClass, JobClassSpec, ParametersReference};
use ayatori_core::names::{GROUP, JOB_NAMESPACE_LABEL, JOB_UID_LABEL, OPENSANDBOX_CONTROLLER};
use ayatori_core::parameters::{
    OpenSandboxExecutionParameters, OpenSandboxExecutionParametersSpec, SecretKeyReference,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::accounts::SYSTEM_NAMESPACE;
use crate::api;
use crate::opensandbox::{OpenSandbox, Sandbox};
use crate::replica::Adapter;
use crate::witness::Witness;
use crate::world::{IMAGE, World, with_world};

/// The Secret with the API key, for all tests: they leave it behind, for what they made is cleaned up with it.
const API_KEY: &str = "opensandbox-of-tests";
/// Its key.
const KEY: &str = "api-key";

/// One test's part of the cluster and of the OpenSandbox server.
pub struct Sandboxes {
    /// The same with a class of the Kubernetes adapter.
    pub world: World,
    /// The server.
    pub server: OpenSandbox,
    /// The class of the OpenSandbox adapter.
    pub class: String,
    /// Sees what runs.
    pub witness: Witness,
}

/// Runs a test in a world with sandboxes; the adapter may read the Secrets of its namespace.
pub async fn with_sandboxes<F: Future<Output = anyhow::Result<()>>>(
    test: impl FnOnce(Sandboxes) -> F,
) -> anyhow::Result<()> {
    let server = OpenSandbox::of_the_cluster().await?;
    let witness = Witness::call(&server)?;
    with_world(async move |world: World| {
        let sandboxes = Sandboxes {
            class: format!("{}-sandboxed", world.namespace),
            world,
            server,
            witness,
        };
        sandboxes
            .store_api_key(API_KEY, &sandboxes.server.api_key)
            .await?;
        sandboxes.allow_secrets().await?;
        let class = sandboxes.class.clone();
        sandboxes
            .create_class(&class, sandboxes.parameters(), |_| {})
            .await?;
        test(sandboxes).await
    })
    .await
}

impl Sandboxes {
    /// Parameters of the local server that allow everything.
    pub fn parameters(&self) -> OpenSandboxExecutionParametersSpec {
        OpenSandboxExecutionParametersSpec {
            endpoint: self.server.endpoint.clone(),
            ca_bundle: Some(self.server.authority.clone()),
            api_key_secret_ref: api_key(API_KEY),
            allow_secret_env: Some(true),
            allow_image_auth: Some(true),
            ..OpenSandboxExecutionParametersSpec::default()
        }
    }

    /// Stores an API key where the adapter may read it.
    pub async fn store_api_key(&self, secret: &str, key: &str) -> anyhow::Result<SecretKeyReference> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": secret},
            "stringData": {KEY: key},
        });
        let secrets = Api::<Secret>::namespaced(self.world.client.clone(), SYSTEM_NAMESPACE);
        let apply = PatchParams::apply("ayatori-tests").force();
        secrets
            .patch(secret, &apply, &Patch::Apply(object))
            .await
            .context("storing the API key")?;
        Ok(api_key(secret))
    }

    /// Deletes an API key that [`Sandboxes::store_api_key`] has stored, when nothing needs it any more.
    pub async fn forget_api_key(&self, secret: &str) -> anyhow::Result<()> {
        let secrets = Api::<Secret>::namespaced(self.world.client.clone(), SYSTEM_NAMESPACE);
        let deleted = secrets.delete(secret, &DeleteParams::default()).await;
        deleted.map(drop).context("deleting an API key")
    }

    async fn allow_secrets(&self) -> anyhow::Result<()> {
        let name = "secrets-of-jobs";
        let role: Role = serde_json::from_value(json!({
            "metadata": {"name": name},
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
        }))?;
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{
                "kind": "ServiceAccount",
                "name": Adapter::OpenSandbox.name(),
                "namespace": SYSTEM_NAMESPACE,
            }],
        }))?;
        let (client, namespace) = (self.world.client.clone(), &self.world.namespace);
        let create = PostParams::default();
        Api::namespaced(client.clone(), namespace)
            .create(&create, &role)
            .await?;
        Api::namespaced(client, namespace)
            .create(&create, &binding)
            .await?;
        Ok(())
    }

    /// A class with parameters of the same name, both cleaned up with the test.
    pub async fn create_class(
        &self,
        name: &str,
        parameters: OpenSandboxExecutionParametersSpec,
        adjust: impl FnOnce(&mut JobClassSpec),
    ) -> anyhow::Result<()> {
        let mut object = OpenSandboxExecutionParameters::new(name, parameters);
        let run = (api::RUN_LABEL.to_owned(), self.world.namespace.clone());
        object.labels_mut().extend([run.clone()]);
        let create = PostParams::default();
        Api::all(self.world.client.clone())
            .create(&create, &object)
            .await
            .context("creating parameters")?;
        let mut spec = JobClassSpec {
            controller_name: OPENSANDBOX_CONTROLLER.to_owned(),
            parameters_ref: ParametersReference {
                group: GROUP.to_owned(),
                kind: "OpenSandboxExecutionParameters".to_owned(),
                name: name.to_owned(),
            },
            ..JobClassSpec::default()
        };
        adjust(&mut spec);
        let mut class = JobClass::new(name, spec);
        class.labels_mut().extend([run]);
        Api::all(self.world.client.clone())
            .create(&create, &class)
            .await
            .context("creating the class")?;
        Ok(())
    }

    /// Changes the parameters of a class by a merge patch of their spec.
    pub async fn change_parameters(&self, class: &str, spec: serde_json::Value) -> anyhow::Result<()> {
        Api::<OpenSandboxExecutionParameters>::all(self.world.client.clone())
            .patch(
                class,
                &PatchParams::default(),
                &Patch::Merge(json!({"spec": spec})),
            )
            .await
            .with_context(|| format!("changing the parameters of {class}"))?;
        Ok(())
    }

    /// A Job of the sandboxed class that counts its start and then runs a shell line.
    pub fn job(&self, name: &str, then: &str) -> Job {
        Job::new(
            name,
            JobSpec {
                job_class_name: Some(self.class.clone()),
                image: IMAGE.to_owned(),
                command: Witness::command(then),
                ..JobSpec::default()
            },
        )
    }

    /// The sandboxes of this Job that the server shows.
    pub async fn of(&self, job: &Job) -> anyhow::Result<Vec<Sandbox>> {
        let uid = job.uid().unwrap_or_default();
        self.server.sandboxes(&[(JOB_UID_LABEL, &uid)]).await
    }

    /// The sandboxes of all Jobs of the test's namespace that the server shows.
    pub async fn of_namespace(&self) -> anyhow::Result<Vec<Sandbox>> {
        let metadata = [(JOB_NAMESPACE_LABEL, self.world.namespace.as_str())];
        self.server.sandboxes(&metadata).await
    }

    /// Returns once the server shows no sandbox of this Job.
    pub async fn when_none_of(&self, job: &Job) -> anyhow::Result<()> {
        let what = format!("no sandbox of Job {} is left", job.name_any());
        self.world
            .eventually(&what, async || Ok(self.of(job).await?.is_empty()))
            .await
    }
}

fn api_key(secret: &str) -> SecretKeyReference {
    SecretKeyReference {
        namespace: SYSTEM_NAMESPACE.to_owned(),
        name: secret.to_owned(),
        key: KEY.to_owned(),
    }
}

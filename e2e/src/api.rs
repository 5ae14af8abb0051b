//! A real API server, as the tests of the API alone use it.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Api, Client, Config, Resource};
use serde_json::Value;

/// Label on what a test creates outside its namespace: the namespace's name.
pub const RUN_LABEL: &str = "test.ayatori.ddupan.top/run";

/// A client for the cluster that `KUBECONFIG` names. Without a cluster a test fails: skipped tests prove nothing.
pub async fn client() -> anyhow::Result<Client> {
    ensure!(
        std::env::var_os("KUBECONFIG").is_some(),
        "KUBECONFIG is not set: start a cluster with `cargo xtask cluster up --control-plane-only`"
    );
    // Fails only where another test of this process has done it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = Config::infer()
        .await
        .context("reading the file that KUBECONFIG names")?;
    Client::try_from(config).context("building a client from KUBECONFIG")
}

/// A namespace of one test, on a cluster that has our CRDs.
pub struct Run {
    /// Client with every right.
    pub client: Client,
    /// Name of the namespace, unique to the test.
    pub namespace: String,
}

/// Runs a test in a namespace of its own and cleans up, however the test ends.
pub async fn in_namespace<F: Future<Output = anyhow::Result<()>>>(
    test: impl FnOnce(Run) -> F,
) -> anyhow::Result<()> {
    let client = client().await?;
    install(&client, &ayatori_core::crd::all()).await?;
    let namespace = create_namespace(&client).await?;
    let run = Run {
        client: client.clone(),
        namespace: namespace.clone(),
    };
    let outcome = AssertUnwindSafe(test(run)).catch_unwind().await;
    let cleaned = clean_up(&client, &namespace).await;
    match outcome {
        Ok(outcome) => outcome.and(cleaned),
        Err(panic) => resume_unwind(panic),
    }
}

async fn create_namespace(client: &Client) -> anyhow::Result<String> {
    let metadata = ObjectMeta {
        generate_name: Some("crd-rules-".into()),
        ..ObjectMeta::default()
    };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let created = namespaces
        .create(
            &PostParams::default(),
            &Namespace {
                metadata,
                ..Namespace::default()
            },
        )
        .await
        .context("creating a namespace for the test")?;
    created.metadata.name.context("the API server named no namespace")
}

async fn clean_up(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let ours = ListParams::default().labels(&format!("{RUN_LABEL}={namespace}"));
    for crd in ayatori_core::crd::all()
        .iter()
        .filter(|crd| crd.spec.scope == "Cluster")
    {
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource(crd));
        objects
            .delete_collection(&DeleteParams::default(), &ours)
            .await
            .context("deleting what the test created")?;
    }
    let namespaces = Api::<Namespace>::all(client.clone());
    let others = namespaces.list_metadata(&ours).await?;
    let others = others.iter().filter_map(|other| other.metadata.name.as_deref());
    for namespace in others.chain([namespace]) {
        namespaces
            .delete(namespace, &DeleteParams::default())
            .await
            .context("deleting the test's namespace")?;
    }
    Ok(())
}

impl Run {
    /// By which what is of the whole cluster goes with the test's namespace.
    pub async fn owner(&self) -> anyhow::Result<OwnerReference> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let namespace = namespaces.get(&self.namespace).await?;
        namespace
            .owner_ref(&())
            .context("the test's namespace has no UID")
    }

    /// Another namespace of the test, with these labels and annotations; it goes with the first.
    pub async fn create_namespace(
        &self,
        name: &str,
        mut labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
    ) -> anyhow::Result<String> {
        labels.insert(RUN_LABEL.to_owned(), self.namespace.clone());
        let name = format!("{}-{name}", self.namespace);
        let metadata = ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        };
        let namespace = Namespace {
            metadata,
            ..Namespace::default()
        };
        Api::all(self.client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .context("creating another namespace for the test")?;
        Ok(name)
    }

    /// The objects of a definition: those in the test's namespace, or all where they have none.
    pub fn objects(&self, crd: &CustomResourceDefinition) -> Api<DynamicObject> {
        let resource = resource(crd);
        match crd.spec.scope.as_str() {
            "Namespaced" => Api::namespaced_with(self.client.clone(), &self.namespace, &resource),
            _ => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// An object of that definition under a name that no other test uses, marked for clean-up.
    pub fn object(&self, crd: &CustomResourceDefinition, name: &str, spec: Value) -> DynamicObject {
        let name = match crd.spec.scope.as_str() {
            "Namespaced" => name.to_owned(),
            _ => format!("{}-{name}", self.namespace),
        };
        let mut object = DynamicObject::new(&name, &resource(crd)).data(serde_json::json!({ "spec": spec }));
        object.metadata.labels = Some([(RUN_LABEL.to_owned(), self.namespace.clone())].into());
        object
    }
}

/// How the API server is asked for objects of a definition.
pub fn resource(crd: &CustomResourceDefinition) -> ApiResource {
    let version = crd
        .spec
        .versions
        .first()
        .map(|version| version.name.clone())
        .unwrap_or_default();
    ApiResource {
        api_version: format!("{}/{version}", crd.spec.group),
        group: crd.spec.group.clone(),
        version,
        kind: crd.spec.names.kind.clone(),
        plural: crd.spec.names.plural.clone(),
    }
}

/// Makes sure that the API server serves these definitions. What is already so is not written: a chart that
/// installed them stays their only owner.
pub async fn install(client: &Client, crds: &[CustomResourceDefinition]) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crds {
        let name = crd
            .metadata
            .name
            .as_deref()
            .context("a definition without a name")?;
        let apply = async |params: PatchParams| {
            let applied = definitions.patch(name, &params, &Patch::Apply(crd)).await;
            applied.with_context(|| format!("applying the CRD {name}"))
        };
        let params = PatchParams::apply("ayatori-tests").force();
        let wanted = apply(params.clone().dry_run()).await?;
        if definitions.get_opt(name).await?.map(|found| found.spec) != Some(wanted.spec) {
            apply(params).await?;
        }
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource(crd));
        eventually(&format!("the API server serves {name}"), async || {
            Ok(objects.list(&ListParams::default().limit(1)).await.is_ok())
        })
        .await?;
    }
    Ok(())
}

/// How long anything that has to happen may take before a test gives up. No measure of speed: a busy machine
/// must not fail a test.
pub const PATIENCE: Duration = Duration::from_secs(150);

/// Seconds that a test gives a command that is to run into its deadline: on a busy machine too it has started by then,
/// and no OpenSandbox server gives a sandbox so short a life.
pub const DEADLINE: i32 = 15;

/// Checks that a deadline was kept after these seconds: not early, and by a clock of ours, not when something else gave
/// way.
pub fn expect_kept(deadline: i32, seconds: i64) -> anyhow::Result<()> {
    /// How much later on a busy machine. Below the shortest life that an OpenSandbox server gives.
    const LATE: i64 = 40;
    let deadline = i64::from(deadline);
    anyhow::ensure!(
        (deadline..deadline + LATE).contains(&seconds),
        "a deadline of {deadline} s was kept after {seconds} s"
    );
    Ok(())
}

/// Asks again until the answer is yes; an error, or too long without a yes, ends the test.
pub async fn eventually(what: &str, ask: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let asking = async {
        let mut interval = tokio::time::interval(Duration::from_millis(50));
        loop {
            interval.tick().await;
            if ask().await? {
                return anyhow::Ok(());
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .with_context(|| format!("not within {} s: {what}", PATIENCE.as_secs()))?
}

/// Returns once no namespace is being deleted. Who restarts the API server waits for that: one that has just come up may
/// not serve our definitions yet, and a namespace that goes in that moment leaves its Jobs behind, which nobody can
/// write any more.
pub async fn when_no_namespace_goes(client: &Client) -> anyhow::Result<()> {
    let namespaces = Api::<Namespace>::all(client.clone());
    eventually("no namespace is being deleted", async || {
        let all = namespaces.list_metadata(&ListParams::default()).await?;
        Ok(all.iter().all(|one| one.metadata.deletion_timestamp.is_none()))
    })
    .await
}

/// What the API server did with a request.
#[derive(Clone, Copy, Debug)]
pub enum Verdict {
    /// It took it.
    Accepted,
    /// It refused it, with a message that holds these words.
    Refused(&'static str),
}

impl Verdict {
    /// What is wrong with the answer, if anything.
    pub fn problem<T>(self, answer: &Result<T, kube::Error>) -> Option<String> {
        match (self, answer) {
            (Verdict::Accepted, Ok(_)) => None,
            (Verdict::Accepted, Err(error)) => Some(format!("refused: {error}")),
            (Verdict::Refused(words), Ok(_)) => {
                Some(format!("accepted, although it should be refused with `{words}`"))
            }
            (Verdict::Refused(words), Err(kube::Error::Api(status))) => {
                let message = &status.message;
                let jargon = ["oldSelf", "self.", "failed rule", "no such key"]
                    .into_iter()
                    .find(|j| message.contains(j));
                match jargon {
                    _ if !message.contains(words) => {
                        Some(format!("refused without the words `{words}`: {message}"))
                    }
                    Some(jargon) => Some(format!("refused in jargon, `{jargon}`: {message}")),
                    None => None,
                }
            }
            (Verdict::Refused(_), Err(error)) => Some(format!("not the API server's answer: {error}")),
        }
    }
}

/// Changes a document as a JSON merge patch (RFC 7386) does.
pub fn merged(mut document: Value, patch: &Value) -> Value {
    match (&mut document, patch) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (key, change) in changes {
                match change {
                    Value::Null => drop(fields.remove(key)),
                    _ => {
                        let value = fields.remove(key).unwrap_or_default();
                        fields.insert(key.clone(), merged(value, change));
                    }
                }
            }
            document
        }
        (_, Value::Object(_)) => merged(Value::Object(serde_json::Map::new()), patch),
        _ => patch.clone(),
    }
}

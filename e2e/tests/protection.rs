//! What adapters make is theirs alone, and they touch nothing else: the admission policies of both charts.
//!
//! Needs the charts installed with their default values. The pods here wait at a gate of their own: nothing runs.

use anyhow::{Context, ensure};
use ayatori_core::names::JOB_UID_LABEL;
use ayatori_e2e::accounts::{KUBERNETES_ADAPTER, bind, client_as};
use ayatori_e2e::api::{self, Run};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

const OURS: &str = "ours";
const OTHER: &str = "other";

/// Somebody who may edit everything in the namespace, by the built-in role.
fn editor(run: &Run) -> String {
    format!("editor-of-{}", run.namespace)
}

/// A pod and a batch Job with the label of a Job, and the like without it.
async fn objects(run: &Run) -> anyhow::Result<()> {
    let (pods, jobs) = apis(run, run.client.clone());
    for name in [OURS, OTHER] {
        pods.create(&PostParams::default(), &pod(name, label_of(name))?)
            .await
            .context("creating a pod")?;
        jobs.create(&PostParams::default(), &batch_job(name, label_of(name))?)
            .await
            .context("creating a batch Job")?;
    }
    Ok(())
}

fn label_of(name: &str) -> Value {
    if name == OURS {
        json!({ JOB_UID_LABEL: "11111111-1111-1111-1111-111111111111" })
    } else {
        json!({})
    }
}

fn pod_spec() -> Value {
    json!({
        "schedulingGates": [{"name": "test.ayatori.ddupan.top/never"}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "job", "image": "localhost/busybox:1"}],
    })
}

fn pod(name: &str, labels: Value) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(
        json!({"metadata": {"name": name, "labels": labels}, "spec": pod_spec()}),
    )?)
}

fn batch_job(name: &str, labels: Value) -> anyhow::Result<BatchJob> {
    let template = json!({"metadata": {"labels": labels}, "spec": pod_spec()});
    let spec = json!({"backoffLimit": 0, "suspend": true, "template": template});
    Ok(serde_json::from_value(
        json!({"metadata": {"name": name, "labels": labels}, "spec": spec}),
    )?)
}

fn apis(run: &Run, client: Client) -> (Api<Pod>, Api<BatchJob>) {
    (
        Api::namespaced(client.clone(), &run.namespace),
        Api::namespaced(client, &run.namespace),
    )
}

/// Whether a request was refused by one of our policies; any other answer but the expected one is an error.
fn refused_by_policy<T>(what: &str, answer: Result<T, kube::Error>) -> anyhow::Result<bool> {
    match answer {
        Ok(_) => Ok(false),
        Err(kube::Error::Api(status)) if status.message.contains("ValidatingAdmissionPolicy 'ayatori-") => {
            Ok(true)
        }
        // What exec says of a pod that has no node: it was let through as far as that.
        Err(kube::Error::Api(status)) if status.message.contains("does not have a host assigned") => {
            Ok(false)
        }
        Err(error) => Err(error).with_context(|| format!("{what}: neither done nor refused by a policy")),
    }
}

fn annotated() -> Value {
    json!({"metadata": {"annotations": {"test": "yes"}}})
}

/// Every way to reach an object, tried as that client; the names of those that a policy refused.
async fn refusals(run: &Run, client: &Client, name: &str) -> anyhow::Result<Vec<&'static str>> {
    let (pods, jobs) = apis(run, client.clone());
    let (dry, merge) = (
        PatchParams {
            dry_run: true,
            ..PatchParams::default()
        },
        |change| Patch::Merge(change),
    );
    let delete = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    let mut refused = Vec::new();
    let mut note = |what, was_refused: anyhow::Result<bool>| -> anyhow::Result<()> {
        refused.extend(was_refused?.then_some(what));
        Ok(())
    };
    note(
        "patch pod",
        refused_by_policy("patch pod", pods.patch(name, &dry, &merge(annotated())).await),
    )?;
    note(
        "delete pod",
        refused_by_policy("delete pod", pods.delete(name, &delete).await),
    )?;
    note(
        "patch job",
        refused_by_policy("patch job", jobs.patch(name, &dry, &merge(annotated())).await),
    )?;
    note(
        "delete job",
        refused_by_policy("delete job", jobs.delete(name, &delete).await),
    )?;
    Ok(refused)
}

const ALL: [&str; 4] = ["patch pod", "delete pod", "patch job", "delete job"];

#[tokio::test]
async fn an_editor_of_the_namespace_cannot_change_or_delete_what_an_adapter_made() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let client = ready_editor(&run).await?;
        let (ours, other) = (
            refusals(&run, &client, OURS).await?,
            refusals(&run, &client, OTHER).await?,
        );
        ensure!(ours == ALL, "only these were refused: {ours:?}");
        ensure!(other.is_empty(), "refused although it is nobody's: {other:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn nobody_else_can_pass_an_object_off_as_an_adapters() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let client = ready_editor(&run).await?;
        let (pods, jobs) = apis(&run, client);
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let forged = pods.create(&dry, &pod("forged", label_of(OURS))?).await;
        ensure!(
            refused_by_policy("create a labelled pod", forged)?,
            "a pod was created with the label"
        );
        let forged = jobs.create(&dry, &batch_job("forged", label_of(OURS))?).await;
        ensure!(
            refused_by_policy("create a labelled batch Job", forged)?,
            "a batch Job was created with the label"
        );
        let label = Patch::Merge(json!({"metadata": {"labels": label_of(OURS)}}));
        let forged = pods.patch(OTHER, &PatchParams::default(), &label).await;
        ensure!(
            refused_by_policy("label a pod", forged)?,
            "a pod was given the label"
        );
        let unlabel = Patch::Merge(json!({"metadata": {"labels": {JOB_UID_LABEL: null}}}));
        let freed = pods.patch(OURS, &PatchParams::default(), &unlabel).await;
        ensure!(
            refused_by_policy("unlabel a pod", freed)?,
            "the label was taken off a pod"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_editor_of_the_namespace_cannot_get_into_a_pod_that_an_adapter_made() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let client = ready_editor(&run).await?;
        for way in [
            "exec?command=true&stdout=true",
            "attach?stdout=true",
            "portforward?ports=80",
        ] {
            // The policy looks the pod up in a cache, which shows a new pod a moment later.
            let what = format!("{way} into a pod of a Job is refused");
            api::eventually(&what, async || connect(&run, &client, OURS, way).await).await?;
            ensure!(
                !connect(&run, &client, OTHER, way).await?,
                "{way} into an ordinary pod was refused"
            );
        }
        Ok(())
    })
    .await
}

/// Whether a policy refused to connect to a pod.
async fn connect(run: &Run, client: &Client, pod: &str, way: &str) -> anyhow::Result<bool> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/{way}", run.namespace);
    let request = http::Request::post(path).body(Vec::new())?;
    refused_by_policy(way, client.request_text(request).await)
}

#[tokio::test]
async fn administrators_and_those_who_may_intervene_are_not_locked_out() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let client = ready_editor(&run).await?;
        let by_admin = refusals(&run, &run.client, OURS).await?;
        ensure!(by_admin.is_empty(), "refused to an administrator: {by_admin:?}");

        let roles: Api<Role> = Api::namespaced(run.client.clone(), &run.namespace);
        let rule =
            json!({"apiGroups": [ayatori_core::names::GROUP], "resources": ["jobs"], "verbs": ["intervene"]});
        let role = serde_json::from_value(json!({"metadata": {"name": "intervener"}, "rules": [rule]}))?;
        roles.create(&PostParams::default(), &role).await?;
        bind(&run, &editor(&run), "Role", "intervener").await?;
        api::eventually("nothing is refused to an editor who may intervene", async || {
            Ok(refusals(&run, &client, OURS).await?.is_empty())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn the_adapter_touches_only_what_carries_the_label_of_a_job() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        objects(&run).await?;
        let adapter = client_as(KUBERNETES_ADAPTER).await?;
        let (ours, other) = (
            refusals(&run, &adapter, OURS).await?,
            refusals(&run, &adapter, OTHER).await?,
        );
        ensure!(ours.is_empty(), "refused although the adapter made it: {ours:?}");
        ensure!(other == ALL, "only these were refused: {other:?}");

        let (pods, jobs) = apis(&run, adapter);
        let unlabelled = jobs
            .create(&PostParams::default(), &batch_job("new", json!({}))?)
            .await;
        ensure!(
            refused_by_policy("create a batch Job", unlabelled)?,
            "a batch Job without label was created"
        );
        for label in [json!(null), json!("another")] {
            let relabel = Patch::Merge(json!({"metadata": {"labels": {JOB_UID_LABEL: label}}}));
            let relabelled = pods.patch(OURS, &PatchParams::default(), &relabel).await;
            ensure!(
                refused_by_policy("relabel a pod", relabelled)?,
                "the label of a pod was changed"
            );
        }
        Ok(())
    })
    .await
}

/// The objects of the test, and a client of somebody who may edit the namespace and already can.
async fn ready_editor(run: &Run) -> anyhow::Result<Client> {
    objects(run).await?;
    let user = editor(run);
    bind(run, &user, "ClusterRole", "edit").await?;
    let client = client_as(&user).await?;
    let (pods, _) = apis(run, client.clone());
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    api::eventually("the editor's binding takes effect", async || {
        Ok(pods.patch(OTHER, &dry, &Patch::Merge(annotated())).await.is_ok())
    })
    .await?;
    Ok(client)
}

//! The roles for people, the built-in ones and the adapters' accounts: verb by verb what each may do, as the API
//! server says when it is asked by impersonation, held against `docs/reference/roles.md`.
//!
//! Needs the charts installed with their default values. For a moment the built-in roles gain what the chart would
//! give them with `userRoles.aggregate`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, ensure};
use ayatori_core::names::GROUP;
use ayatori_e2e::accounts::{
    KUBERNETES_ADAPTER, OPENSANDBOX_ADAPTER, bind, bind_everywhere, client_as, rights,
};
use ayatori_e2e::api::{self, Run};
use ayatori_e2e::documented;
use ayatori_e2e::replica::helm;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use serde_json::{Value, json};

/// Verbs by resource.
type Rights = BTreeMap<String, BTreeSet<String>>;

const PAGE: &str = "reference/roles.md";

/// What this API consists of, in our own group.
const OURS: [&str; 10] = [
    "jobs",
    "jobs/status",
    "jobs/finalizers",
    "jobclasses",
    "jobclasses/status",
    "jobclasses/finalizers",
    "kubernetesexecutionparameters",
    "kubernetesexecutionparameters/status",
    "opensandboxexecutionparameters",
    "opensandboxexecutionparameters/status",
];

/// What Jobs are run with and made of.
const OTHERS: [&str; 21] = [
    "jobs.batch",
    "jobs.batch/status",
    "pods",
    "pods/log",
    "pods/status",
    "pods/exec",
    "pods/attach",
    "pods/portforward",
    "pods/proxy",
    "pods/ephemeralcontainers",
    "pods/resize",
    "pods/eviction",
    "pods/binding",
    "configmaps",
    "secrets",
    "serviceaccounts/token",
    "events",
    "namespaces",
    "nodes",
    "clusterroles.rbac.authorization.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
];

/// The resource in the words of [`rights`].
fn qualified(ours: &str) -> String {
    match ours.split_once('/') {
        Some((resource, subresource)) => format!("{resource}.{GROUP}/{subresource}"),
        None => format!("{ours}.{GROUP}"),
    }
}

fn every_row() -> Vec<(String, String)> {
    let ours = OURS.map(|resource| (format!("`{resource}`"), qualified(resource)));
    let others = OTHERS.map(|resource| (format!("`{resource}`"), resource.to_owned()));
    ours.into_iter().chain(others).collect()
}

/// Ours, and what is generated; of all else that built-in roles give, nothing is said here.
fn rows_of_jobs() -> Vec<(String, String)> {
    let mut rows = every_row();
    rows.retain(|(_, resource)| {
        resource.contains(GROUP) || resource.starts_with("pods") || resource.starts_with("jobs")
    });
    rows
}

/// The verbs in as few words as it takes.
fn words(verbs: Option<&BTreeSet<String>>) -> String {
    const ALL: &str = "read, create, change, delete, delete all";
    let mut left: BTreeSet<&str> = verbs.into_iter().flatten().map(String::as_str).collect();
    let mut words = Vec::new();
    for (word, verbs) in [
        ("read", &["get", "list", "watch"][..]),
        ("create", &["create"]),
        ("change", &["patch", "update"]),
        ("delete", &["delete"]),
        ("delete all", &["deletecollection"]),
    ] {
        if verbs.iter().all(|verb| left.contains(verb)) {
            words.push(word);
            left.retain(|verb| !verbs.contains(verb));
        }
    }
    words.extend(left);
    match words.join(", ").as_str() {
        "" => "–".to_owned(),
        ALL => "all".to_owned(),
        words => words.to_owned(),
    }
}

/// A table with a row per resource and a column per holder of rights.
fn table(rows: &[(String, String)], columns: &[&Rights]) -> Vec<Vec<String>> {
    let row = |(name, resource): &(String, String)| {
        let cells = columns.iter().map(|rights| words(rights.get(resource)));
        std::iter::once(name.clone()).chain(cells).collect()
    };
    rows.iter().map(row).collect()
}

/// The rights of a new user to whom this ClusterRole is bound in the test's namespace, once that has taken effect.
async fn rights_by(run: &Run, role: &str, beyond: &Rights) -> anyhow::Result<Rights> {
    let user = format!("{}-{role}", run.namespace);
    bind(run, &user, "ClusterRole", role).await?;
    let client = client_as(&user).await?;
    api::eventually(&format!("{role} gives rights"), async || {
        Ok(rights(&client, &run.namespace).await? != *beyond)
    })
    .await?;
    rights(&client, &run.namespace).await
}

#[tokio::test]
async fn each_role_may_do_what_the_reference_says_and_nothing_else() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let nobody = client_as(&format!("{}-nobody", run.namespace)).await?;
        let everyone = rights(&nobody, &run.namespace).await?;
        let mut columns = vec![everyone.clone()];
        for role in ["ayatori-job-viewer", "ayatori-job-user", "ayatori-class-admin"] {
            let rights = rights_by(&run, role, &everyone).await?;
            let rows: BTreeSet<_> = every_row().into_iter().map(|(_, resource)| resource).collect();
            let beyond: Vec<_> = rights
                .iter()
                .filter(|(resource, verbs)| {
                    everyone.get(*resource) != Some(verbs) && !rows.contains(*resource)
                })
                .collect();
            ensure!(beyond.is_empty(), "{role} may also: {beyond:?}");
            columns.push(rights);
        }
        let heading = ["", "everyone", "`job-viewer`", "`job-user`", "`class-admin`"];
        let seen = table(&every_row(), &columns.iter().collect::<Vec<_>>());
        documented::expect(PAGE, "Our roles", &heading, seen)
    })
    .await
}

#[tokio::test]
async fn the_accounts_of_adapters_may_do_what_the_reference_says() -> anyhow::Result<()> {
    let (kubernetes, opensandbox) = (
        client_as(KUBERNETES_ADAPTER).await?,
        client_as(OPENSANDBOX_ADAPTER).await?,
    );
    let (kubernetes, opensandbox) = (
        rights(&kubernetes, "default").await?,
        rights(&opensandbox, "default").await?,
    );
    let heading = ["", "`kubernetes-adapter`", "`opensandbox-adapter`"];
    let seen = table(&every_row(), &[&kubernetes, &opensandbox]);
    documented::expect(PAGE, "The adapters", &heading, seen)
}

#[tokio::test]
async fn the_built_in_roles_gain_nothing_by_default_and_with_aggregation_what_the_reference_says()
-> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let nobody = client_as(&format!("{}-nobody", run.namespace)).await?;
        let everyone = rights(&nobody, &run.namespace).await?;
        let mut columns = Vec::new();
        for role in BUILT_IN {
            columns.push(rights_by(&run, role, &everyone).await?);
        }
        let aggregated = aggregated_roles(&run).await?;
        let roles: Api<ClusterRole> = Api::all(run.client.clone());
        for role in &aggregated {
            roles.create(&PostParams::default(), role).await?;
        }
        let gained = with_aggregation(&run, &columns).await;
        for role in &aggregated {
            roles.delete(&role.name_any(), &DeleteParams::default()).await?;
        }
        columns.extend(gained?);

        let heading = [
            "",
            "`view`",
            "`edit`",
            "`admin`",
            "`view`, aggregated",
            "`edit`, aggregated",
            "`admin`, aggregated",
        ];
        let seen = table(&rows_of_jobs(), &columns.iter().collect::<Vec<_>>());
        documented::expect(PAGE, "The built-in roles", &heading, seen)
    })
    .await
}

const BUILT_IN: [&str; 3] = ["view", "edit", "admin"];

/// What the holders of the built-in roles have as soon as each has gained something.
async fn with_aggregation(run: &Run, before: &[Rights]) -> anyhow::Result<Vec<Rights>> {
    let mut gained = Vec::new();
    for (role, before) in BUILT_IN.iter().zip(before) {
        let client = client_as(&format!("{}-{role}", run.namespace)).await?;
        let jobs = qualified("jobs");
        // `admin` gains by way of `edit`, and that by way of `view`: the controller adds one after the other.
        let wanted = if *role == "view" { "watch" } else { "update" };
        api::eventually(&format!("{role} gains {wanted} on Jobs"), async || {
            let now = rights(&client, &run.namespace).await?;
            Ok(now != *before && now.get(&jobs).is_some_and(|verbs| verbs.contains(wanted)))
        })
        .await?;
        gained.push(rights(&client, &run.namespace).await?);
    }
    Ok(gained)
}

/// The chart's roles as they are with aggregation, under names of the test, which go with its namespace at the latest.
async fn aggregated_roles(run: &Run) -> anyhow::Result<Vec<ClusterRole>> {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/execution-api");
    let chart = chart.display().to_string();
    let template = [
        "template",
        "execution-api",
        &chart,
        "--show-only=templates/user-roles.yaml",
    ];
    let rendered = helm(&[&template[..], &["--set=userRoles.aggregate=true"]].concat()).await?;
    let owner = run.owner().await?;
    let mut roles = Vec::new();
    for document in serde_yaml::Deserializer::from_str(&rendered) {
        let object = Value::deserialize(document)?;
        if object.get("kind").and_then(Value::as_str) != Some("ClusterRole") {
            continue;
        }
        let mut role: ClusterRole = serde_json::from_value(object)?;
        role.metadata.name = Some(
            role.name_any()
                .replace("ayatori-", &format!("{}-", run.namespace)),
        );
        role.metadata.owner_references = Some(vec![owner.clone()]);
        roles.push(role);
    }
    Ok(roles)
}

/// What the authorizer says is one thing; these are real requests, of which nothing is stored.
#[tokio::test]
async fn real_requests_of_each_role_are_answered_accordingly() -> anyhow::Result<()> {
    const ANSWERS: [(&str, [bool; 5]); 3] = [
        // create a Job, change it, write its result, create a class, delete all Jobs
        ("ayatori-job-viewer", [false, false, false, false, false]),
        ("ayatori-job-user", [true, true, false, false, false]),
        ("ayatori-class-admin", [false, false, false, true, false]),
    ];
    api::in_namespace(async |run| {
        let root = format!("/apis/{GROUP}/v1alpha1");
        let jobs = format!("{root}/namespaces/{}/jobs", run.namespace);
        let job = |name: &str| {
            let spec = json!({"image": "none", "suspend": true, "managedBy": "test.ayatori.ddupan.top/nobody"});
            json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": "Job", "metadata": {"name": name}, "spec": spec})
        };
        send(&run.client, "POST", &jobs, &job("one")).await?;
        let parameters = json!({"group": GROUP, "kind": "KubernetesExecutionParameters", "name": "none"});
        let class = json!({
            "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "JobClass", "metadata": {"name": run.namespace},
            "spec": {"controllerName": "test.ayatori.ddupan.top/nobody", "parametersRef": parameters},
        });
        let requests = [
            ("POST", format!("{jobs}?dryRun=All"), job("two")),
            ("PATCH", format!("{jobs}/one?dryRun=All"), json!({"spec": {"ttlSecondsAfterFinished": 1}})),
            ("PATCH", format!("{jobs}/one/status?dryRun=All"), json!({"status": {"observedGeneration": 1}})),
            ("POST", format!("{root}/jobclasses?dryRun=All"), class),
            ("DELETE", format!("{jobs}?dryRun=All"), Value::Null),
        ];
        for (role, expected) in ANSWERS {
            let user = format!("{}-{role}", run.namespace);
            bind_everywhere(&run, &user, role).await?;
            let client = client_as(&user).await?;
            let granted = requests.iter().zip(expected).find(|(_, expected)| *expected);
            let look = ("GET", jobs.clone(), Value::Null);
            let (method, path, body) = granted.map_or(&look, |(request, _)| request);
            api::eventually(&format!("{role} takes effect"), async || {
                send(&client, method, path, body).await
            })
            .await?;
            for ((method, path, body), expected) in requests.iter().zip(expected) {
                let answer = send(&client, method, path, body).await?;
                ensure!(answer == expected, "{role}: {method} {path}: {answer}");
            }
        }
        Ok(())
    })
    .await
}

/// Whether a request was answered; otherwise no role grants it.
async fn send(client: &Client, method: &str, path: &str, body: &Value) -> anyhow::Result<bool> {
    let content = if method == "PATCH" {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let body = if body.is_null() {
        Vec::new()
    } else {
        serde_json::to_vec(body)?
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content)
        .body(body)?;
    match client.request_text(request).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains(" cannot ") => {
            Ok(false)
        }
        Err(error) => Err(error).with_context(|| format!("{method} {path}")),
    }
}

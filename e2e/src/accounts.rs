//! Acting as somebody else, and asking what they may do.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, ensure};
use k8s_openapi::api::authorization::v1::{SelfSubjectRulesReview, SelfSubjectRulesReviewSpec};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::PostParams;
use kube::{Api, Client, Config};
use serde_json::json;

use crate::api::{self, Run};

/// Where the charts are installed.
pub const SYSTEM_NAMESPACE: &str = "ayatori-system";
/// The Kubernetes adapter, as the API server knows it.
pub const KUBERNETES_ADAPTER: &str = "system:serviceaccount:ayatori-system:kubernetes-adapter";
/// Likewise the OpenSandbox adapter.
pub const OPENSANDBOX_ADAPTER: &str = "system:serviceaccount:ayatori-system:opensandbox-adapter";

/// A client that acts as that user. The API server adds the groups that every such account is in.
pub async fn client_as(user: &str) -> anyhow::Result<Client> {
    api::client().await?; // makes sure that there is a cluster to talk to
    let mut config = Config::infer()
        .await
        .context("reading the file that KUBECONFIG names")?;
    config.auth_info.impersonate = Some(user.to_owned());
    Client::try_from(config).with_context(|| format!("building a client that acts as {user}"))
}

/// Binds a `Role` or `ClusterRole` to a user, in the test's namespace.
pub async fn bind(run: &Run, user: &str, kind: &str, role: &str) -> anyhow::Result<()> {
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"generateName": "test-"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }))?;
    let bindings: Api<RoleBinding> = Api::namespaced(run.client.clone(), &run.namespace);
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .with_context(|| format!("binding {role} to {user}"))?;
    Ok(())
}

/// Binds a `ClusterRole` to a user in the whole cluster, for as long as the test's namespace lives.
pub async fn bind_everywhere(run: &Run, user: &str, role: &str) -> anyhow::Result<()> {
    let owner = run.owner().await?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"generateName": format!("{}-", run.namespace), "ownerReferences": [owner]},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }))?;
    Api::<ClusterRoleBinding>::all(run.client.clone())
        .create(&PostParams::default(), &binding)
        .await
        .with_context(|| format!("binding {role} to {user} everywhere"))?;
    Ok(())
}

/// What the client's account may do in a namespace: verbs by resource or path, in the words of
/// `kubectl auth can-i --list`.
pub async fn rights(client: &Client, namespace: &str) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let spec = SelfSubjectRulesReviewSpec {
        namespace: Some(namespace.to_owned()),
    };
    let review = SelfSubjectRulesReview {
        spec,
        ..SelfSubjectRulesReview::default()
    };
    let answer = Api::all(client.clone())
        .create(&PostParams::default(), &review)
        .await
        .context("asking for the rights")?;
    let rules = answer.status.context("the API server listed no rights")?;
    ensure!(
        !rules.incomplete,
        "the API server cannot list all rights: {}",
        rules.evaluation_error.unwrap_or_default()
    );

    let mut rights: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut grant =
        |what: String, verbs: &[String]| rights.entry(what).or_default().extend(verbs.iter().cloned());
    for rule in rules.resource_rules {
        let names = rule.resource_names.filter(|names| !names.is_empty());
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                let what = qualified(resource, group);
                match &names {
                    None => grant(what, &rule.verbs),
                    Some(names) => names
                        .iter()
                        .for_each(|name| grant(format!("{what}[{name}]"), &rule.verbs)),
                }
            }
        }
    }
    for rule in rules.non_resource_rules {
        rule.non_resource_urls
            .into_iter()
            .flatten()
            .for_each(|path| grant(path, &rule.verbs));
    }
    Ok(rights)
}

/// `jobs/status` of group `batch` is `jobs.batch/status`.
fn qualified(resource: &str, group: &str) -> String {
    let (resource, subresource) = resource
        .split_once('/')
        .map_or((resource, None), |(r, s)| (r, Some(s)));
    let group = if group.is_empty() {
        String::new()
    } else {
        format!(".{group}")
    };
    let subresource = subresource.map(|s| format!("/{s}")).unwrap_or_default();
    format!("{resource}{group}{subresource}")
}

//! The sample policy that keeps Jobs out which a GitOps tool manages.

use ayatori_e2e::api;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use crate::rendered::with_policy;
use crate::scene::{Answer, job, try_create_job};

#[tokio::test]
async fn a_job_that_a_gitops_tool_would_create_again_is_refused_when_asked_for() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let judge = async |metadata: &Value| {
            let mut metadata: ObjectMeta = serde_json::from_value(metadata.clone())?;
            metadata.name = Some("job".to_owned());
            try_create_job(&run, &run.namespace, &job(metadata, &json!({}))?).await
        };
        let flux = json!({ "labels": { "kustomize.toolkit.fluxcd.io/name": "apps" } });
        let argo = json!({ "annotations": { "argocd.argoproj.io/tracking-id": "apps:/Job:default/job" } });
        let owner = |controller: bool| {
            json!([{
                "apiVersion": "example.com/v1",
                "kind": "Pipeline",
                "name": "p",
                "uid": "11111111-1111-1111-1111-111111111111",
                "controller": controller,
            }])
        };
        with_policy(&run, "ayatori-no-gitops", &["admission.gitOps.refuse=true"], async || {
            api::eventually("the policy is in force", async || {
                Ok(matches!(judge(&flux).await?, Answer::Refused(_)))
            })
            .await?;
            for (metadata, mark) in [
                (flux.clone(), "metadata.labels kustomize.toolkit.fluxcd.io/name"),
                (argo.clone(), "metadata.annotations argocd.argoproj.io/tracking-id"),
                (
                    json!({ "labels": { "argocd.argoproj.io/instance": "apps" } }),
                    "metadata.labels argocd.argoproj.io/instance",
                ),
                (
                    json!({ "labels": { "helm.toolkit.fluxcd.io/name": "apps" } }),
                    "metadata.labels helm.toolkit.fluxcd.io/name",
                ),
                (
                    json!({ "annotations": { "meta.helm.sh/release-name": "apps" } }),
                    "metadata.annotations meta.helm.sh/release-name",
                ),
                (
                    api::merged(flux.clone(), &argo),
                    "metadata.labels kustomize.toolkit.fluxcd.io/name, metadata.annotations argocd.argoproj.io/tracking-id",
                ),
                (
                    api::merged(flux.clone(), &json!({ "ownerReferences": owner(false) })),
                    "kustomize.toolkit.fluxcd.io/name",
                ),
            ] {
                let answer = judge(&metadata).await?;
                let refused = matches!(&answer, Answer::Refused(message)
                    if message.contains("ManagedByGitOps: ") && message.contains(mark) && message.contains("run it again"));
                anyhow::ensure!(refused, "{metadata}: {answer:?}");
            }
            for metadata in [
                json!({}),
                json!({ "labels": { "app.kubernetes.io/managed-by": "Helm" } }),
                json!({ "labels": { "example.com/argocd.argoproj.io": "a" } }),
                // A controller copied the labels of what it works for.
                api::merged(flux.clone(), &json!({ "ownerReferences": owner(true) })),
                // Hooks run once per deployment.
                api::merged(argo.clone(), &json!({ "annotations": { "argocd.argoproj.io/hook": "PreSync" } })),
                api::merged(argo.clone(), &json!({ "annotations": { "helm.sh/hook": "pre-upgrade" } })),
            ] {
                let answer = judge(&metadata).await?;
                anyhow::ensure!(matches!(answer, Answer::Created), "{metadata}: {answer:?}");
            }
            Ok(())
        })
        .await
    })
    .await
}

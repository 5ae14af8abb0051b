//! What is in the cluster of ours, before everything is removed and after.

use anyhow::ensure;
use ayatori_core::job::Job;
use ayatori_core::job_class::JobClass;
use ayatori_core::names::{JOB_UID_LABEL, KUBERNETES_CONTROLLER, OPENSANDBOX_CONTROLLER};
use ayatori_e2e::api::eventually;
use ayatori_e2e::replica::kubectl;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

/// In the names of everything that the charts and the adapters create, but for what belongs to a Job.
const OURS: [&str; 5] = [
    "ayatori",
    "kubernetes-adapter",
    "opensandbox-adapter",
    "execution-api",
    "unowned",
];

/// What the documents leave to their reader, by kubectl's names.
const HIS: [&str; 1] = ["namespace/ayatori-system"];

/// Fails, with their names, if there are objects that wait for an adapter that is not installed here, such as one that
/// a test has left behind: they would not go, and the commands of the documents would wait for them.
pub(crate) async fn no_object_of_another_adapter(client: &Client) -> anyhow::Result<()> {
    let installed = [KUBERNETES_CONTROLLER, OPENSANDBOX_CONTROLLER];
    let all = ListParams::default();
    let mut foreign = Vec::new();
    for job in Api::<Job>::all(client.clone()).list(&all).await? {
        let class = job.status.as_ref().and_then(|s| s.resolved_job_class.as_ref());
        let controller = class.map_or("", |class| class.controller_name.as_str());
        if !controller.is_empty() && !installed.contains(&controller) && !job.finalizers().is_empty() {
            let namespace = job.namespace().unwrap_or_default();
            foreign.push(format!("ajob/{} in {namespace}, of {controller}", job.name_any()));
        }
    }
    for class in Api::<JobClass>::all(client.clone()).list(&all).await? {
        let controller = class.spec.controller_name.as_str();
        if !installed.contains(&controller) && !class.finalizers().is_empty() {
            foreign.push(format!("jobclass/{} of {controller}", class.name_any()));
        }
    }
    ensure!(
        foreign.is_empty(),
        "nobody here takes the finalizers off these, so not everything can be removed: {}",
        foreign.join(", ")
    );
    Ok(())
}

/// Returns once nothing of any kind is left in any namespace, but for what is the reader's own.
pub(crate) async fn nothing() -> anyhow::Result<()> {
    let kinds = kubectl(&["api-resources", "--verbs=list", "--output=name"]).await?;
    let kinds: Vec<_> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let kinds = kinds.join(",");
    let get = ["get", &kinds, "--all-namespaces", "--output=name"];
    let of_jobs = format!("--selector={JOB_UID_LABEL}");
    let left = async || {
        let of_jobs = kubectl(&[&get[..], &[&of_jobs]].concat()).await?;
        let named = kubectl(&get).await?;
        let named = named.lines().filter(|object| {
            let ours = OURS.iter().any(|name| object.contains(name));
            ours && !HIS.contains(object)
        });
        let left: Vec<_> = of_jobs.lines().chain(named).map(str::to_owned).collect();
        anyhow::Ok(left)
    };
    // What kube-controller-manager collects goes a little later.
    let gone = eventually("nothing is left", async || Ok(left().await?.is_empty())).await;
    match gone {
        Ok(()) => Ok(()),
        Err(error) => Err(error.context(format!("still there: {:?}", left().await?))),
    }
}

//! The backend of batch Jobs keeps every promise, on the cluster of `KUBECONFIG`.

mod effects;
mod subject;

use ayatori_controller::testing::conformance;
use ayatori_e2e::api;
use subject::KubernetesSubject;

#[tokio::test]
async fn batch_jobs_keep_every_promise_of_a_backend() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let subject = KubernetesSubject::new(&run).await?;
        let report = conformance::run(&subject).await;
        // Whatever it came to: the namespaces must be able to go.
        subject.let_go().await?;
        report?.verdict()
    })
    .await
}

//! The backend of OpenSandbox sandboxes keeps every promise, on the server of the cluster that `AYATORI_CLUSTER` and
//! `KUBECONFIG` name.

mod effects;
mod passage;
mod subject;

use ayatori_controller::testing::conformance;
use ayatori_e2e::api;
use subject::SandboxSubject;

#[tokio::test]
async fn sandboxes_of_a_real_server_keep_every_promise_of_a_backend() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let subject = SandboxSubject::new(&run).await?;
        let report = conformance::run(&subject).await;
        // Whatever it came to.
        subject.clear().await?;
        report?.verdict()
    })
    .await
}

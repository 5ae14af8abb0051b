//! The OpenSandbox server that the tests stand on, without any adapter.

use anyhow::{Context, ensure};
use ayatori_e2e::api::{self, Run, eventually};
use ayatori_e2e::opensandbox::{OpenSandbox, Sandbox};
use ayatori_e2e::world::{IMAGE, PATIENCE};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};

/// The key of the metadata by which a test finds its own sandboxes.
const TEST: &str = "test";

fn sandbox(test: &str, image: Value, command: &str) -> Value {
    json!({
        "image": image,
        "entrypoint": ["sh", "-c", command],
        "resourceLimits": {"cpu": "500m", "memory": "33554432"},
        "timeout": 600,
        "metadata": {TEST: test},
    })
}

/// The sandbox once its command has ended, deleted.
async fn ended(server: &OpenSandbox, id: &str) -> anyhow::Result<Sandbox> {
    eventually(&format!("sandbox {id} has ended"), async || {
        let sandbox = server.sandbox(id).await?.context("it is gone")?;
        Ok(sandbox.status.state != "Running")
    })
    .await?;
    let sandbox = server.sandbox(id).await?.context("it is gone")?;
    server.delete(id).await?;
    Ok(sandbox)
}

#[tokio::test]
async fn the_server_reports_the_exit_code_of_a_command_over_https() -> anyhow::Result<()> {
    let server = OpenSandbox::of_the_cluster().await?;
    let metadata = [(TEST, "exit-code")];
    server.delete_all(&metadata).await?;
    let created = server
        .create(&sandbox("exit-code", json!({"uri": IMAGE}), "exit 3"))
        .await?;
    let listed = server.sandboxes(&metadata).await?;
    ensure!(
        listed.iter().map(|sandbox| &sandbox.id).eq([&created.id]),
        "not listed alone: {listed:?}"
    );
    let status = ended(&server, &created.id).await?.status;
    let seen = (status.state.as_str(), status.message.as_str());
    ensure!(
        seen == ("Failed", "Sandbox container exited with code 3."),
        "{status:?}"
    );
    ensure!(server.sandbox(&created.id).await?.is_none(), "still there");
    Ok(())
}

#[tokio::test]
async fn the_registry_opens_to_its_password_alone() -> anyhow::Result<()> {
    let server = OpenSandbox::of_the_cluster().await?;
    let registry = &server.registry;
    let image = |uri: String, password: &str| {
        let auth = json!({"username": registry.user, "password": password});
        json!({"uri": uri, "auth": auth})
    };
    let sealed = image(registry.sealed_image(), "wrong");
    let refused = server.create(&sandbox("registry", sealed, "true")).await;
    let refusal = refused.err().context("pulled with a wrong password")?;
    ensure!(
        format!("{refusal:#}").contains("unauthorized"),
        "refused for another reason: {refusal:#}"
    );
    let private = image(registry.private_image(), &registry.password);
    let created = server
        .create(&sandbox("registry", private, "test $FROM_REGISTRY = yes"))
        .await?;
    let status = ended(&server, &created.id).await?.status;
    ensure!(status.state == "Terminated", "{status:?}");
    Ok(())
}

#[tokio::test]
async fn a_pod_reaches_the_server_by_the_same_address() -> anyhow::Result<()> {
    let server = OpenSandbox::of_the_cluster().await?;
    let (host, port) = server
        .endpoint
        .trim_start_matches("https://")
        .split_once(':')
        .context("an endpoint without a port")?;
    api::in_namespace(async |run: Run| {
        let pods = Api::<Pod>::namespaced(run.client.clone(), &run.namespace);
        let pod = json!({
            "metadata": {"name": "caller"},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": "caller",
                    "image": IMAGE,
                    "command": ["nc", "-w", "10", host, port],
                }],
            },
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        let phase = |pod: Option<&Pod>| pod?.status.as_ref()?.phase.clone();
        let over =
            |pod: Option<&Pod>| phase(pod).is_some_and(|p| ["Succeeded", "Failed"].contains(&p.as_str()));
        let pod = tokio::time::timeout(PATIENCE, await_condition(pods, "caller", over))
            .await
            .context("the pod does not end")??;
        ensure!(
            phase(pod.as_ref()).as_deref() == Some("Succeeded"),
            "{host}:{port} does not answer"
        );
        Ok(())
    })
    .await
}

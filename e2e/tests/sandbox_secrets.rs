//! What an adapter that says everything it can say never says: API keys, values of Secrets, image credentials: not
//! in its log, nor in objects, metrics or traces.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, ensure};
use ayatori_core::conditions::SCHEDULED;
use ayatori_core::job::Outcome;
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::api::eventually;
use ayatori_e2e::collector::Collector;
use ayatori_e2e::replica::{Adapter, Stage, kubectl};
use ayatori_e2e::sandboxes::{Sandboxes, with_sandboxes};
use ayatori_e2e::world::expect;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::json;

/// A value, and how the API writes it in a Secret.
const ENV: [&str; 2] = ["canary-in-env-5b1f", "Y2FuYXJ5LWluLWVudi01YjFm"];
/// A password that no registry knows: the failure is told, and quotes much.
const PASSWORD: &str = "canary-as-password-77aa";

#[tokio::test(flavor = "multi_thread")]
async fn no_key_no_password_and_no_value_of_a_secret_is_told_by_an_adapter_that_tells_everything()
-> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let stage = Stage::take_from(&sandboxes.world.client, Adapter::OpenSandbox).await?;
        let outcome = tells_no_secret(&sandboxes, &stage).await;
        stage.clear().await?;
        outcome
    })
    .await
}

async fn tells_no_secret(sandboxes: &Sandboxes, stage: &Stage) -> anyhow::Result<()> {
    let (world, registry) = (&sandboxes.world, &sandboxes.server.registry);
    let login = |password: &str| {
        let auth = json!({"username": registry.user, "password": password});
        json!({"auths": {&registry.address: auth}}).to_string()
    };
    for secret in [
        json!({"metadata": {"name": "canary"}, "stringData": {"token": ENV[0]}}),
        json!({
            "metadata": {"name": "right"},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": login(&registry.password)},
        }),
        json!({
            "metadata": {"name": "wrong"},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": login(PASSWORD)},
        }),
    ] {
        Api::<Secret>::namespaced(world.client.clone(), &world.namespace)
            .create(&PostParams::default(), &serde_json::from_value(secret)?)
            .await?;
    }
    let log = tempfile::NamedTempFile::new()?;
    let listen = free_address()?;
    stage.forget_leaders().await?;
    let collector = Collector::start().await?;
    let flags = ["--otlp-endpoint", &collector.endpoint];
    let replica = stage.start_talkative("talkative", &log.reopen()?, listen, &flags)?;

    let mut uses = sandboxes.job(
        "uses",
        "[ ${#TOKEN} = 18 ] && [ \"$token\" = \"$TOKEN\" ] && exit 3",
    );
    uses.spec.image = registry.private_image();
    uses.spec.image_pull_secrets = serde_json::from_value(json!([{"name": "right"}]))?;
    uses.spec.env = serde_json::from_value(
        json!([{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "canary", "key": "token"}}}]),
    )?;
    uses.spec.env_from = serde_json::from_value(json!([{"secretRef": {"name": "canary"}}]))?;
    let mut refused = uses.clone();
    refused.metadata.name = Some("refused".to_owned());
    refused.spec.image = registry.sealed_image();
    refused.spec.image_pull_secrets = serde_json::from_value(json!([{"name": "wrong"}]))?;
    world.create(&uses).await?;
    world.create(&refused).await?;
    world.when_says("refused", SCHEDULED, "ImagePullFailed").await?;
    let job = world.when_finished("uses").await?;
    expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;

    let objects = dump(&world.namespace, &sandboxes.class).await?;
    let metrics = reqwest::get(format!("http://{listen}/metrics"))
        .await?
        .text()
        .await?;
    let own = job.uid().context("no UID")?.replace('-', "");
    eventually("the end of the Job has arrived as a span", async || {
        Ok(collector.spans(&own).iter().any(|sent| sent.span.name == "Job"))
    })
    .await?;
    let traces = collector.transcript();
    replica.kill().await?;
    let mut said = String::new();
    log.reopen()?.read_to_string(&mut said)?;
    for (what, text, sign) in [
        ("the objects", &objects, "name: refused"),
        ("the log", &said, "TRACE"),
        ("the metrics", &metrics, "# TYPE"),
        ("the traces", &traces, "backend request"),
    ] {
        ensure!(
            text.contains(sign),
            "{what} do not show {sign}: looked in the wrong place"
        );
        for canary in [
            ENV[0],
            ENV[1],
            PASSWORD,
            &registry.password,
            &sandboxes.server.api_key,
        ] {
            let at = text.lines().position(|line| line.contains(canary));
            ensure!(at.is_none(), "{what} repeat a secret value in line {at:?}");
        }
    }
    println!(
        "searched {} lines of log, {} of objects, {} of metrics and {} of traces",
        said.lines().count(),
        objects.lines().count(),
        metrics.lines().count(),
        traces.lines().count()
    );
    Ok(())
}

/// Everything in the namespace and about its class, but Secrets; and what the adapter keeps in its own namespace.
async fn dump(namespace: &str, class: &str) -> anyhow::Result<String> {
    let kinds = kubectl(&["api-resources", "--verbs=list", "--namespaced", "--output=name"]).await?;
    let kinds: Vec<_> = kinds.lines().filter(|kind| *kind != "secrets").collect();
    let kinds = kinds.join(",");
    let shown = ["--output=yaml", "--show-managed-fields"];
    let mut text = kubectl(&[&["get", &kinds, "--namespace", namespace][..], &shown].concat()).await?;
    for kind in ["jobclasses", "opensandboxexecutionparameters"] {
        text += &kubectl(&[&["get", kind, class][..], &shown].concat()).await?;
    }
    let own = "leases,configmaps,events,events.events.k8s.io";
    text += &kubectl(&[&["get", own, "--namespace", SYSTEM_NAMESPACE][..], &shown].concat()).await?;
    Ok(text)
}

fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("finding a free port")?;
    Ok(listener.local_addr()?)
}

//! What the charts say without being installed, which values they take, and whether what they render is valid; and how
//! an adapter is drained.
//!
//! The judge is the API server of the pinned Kubernetes, asked to apply everything strictly and keep nothing. That is
//! more than schemas of its kinds could tell: it also knows which names, quantities and label values are valid,
//! compiles the expressions of policies and definitions, and measures pods by Pod Security.

use anyhow::{Context, ensure};
use ayatori_core::conditions::ACCEPTED;
use ayatori_core::job::Outcome;
use ayatori_core::job_class::JobClass;
use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::api::{RUN_LABEL, Run, in_namespace};
use ayatori_e2e::charts::{CHARTS, applies, everything, folder, is_monitoring, render, text};
use ayatori_e2e::ground::when;
use ayatori_e2e::manual;
use ayatori_e2e::replica::helm;
use ayatori_e2e::shell::Shell;
use ayatori_e2e::world::{World, expect, is_finished, with_world};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// On every object.
const LABELS: [&str; 6] = [
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "helm.sh/chart",
];
/// How many programs run at a time.
const AT_ONCE: usize = 4;

/// A chart, a wrong value, and what the refusal has to name.
#[rustfmt::skip]
const WRONG: &[(&str, &str, &str)] = &[
    // What no chart knows.
    ("execution-api", "protections.enabled=false", "'protections' not allowed"),
    ("execution-api", "protection.enable=false", "'enable' not allowed"),
    ("execution-api", "admission.rules.ttlSeconds.maximum=1", "'ttlSeconds' not allowed"),
    ("execution-api", "monitoring.prometheusRule.alerts.AyatoriSomething.for=5m", "'AyatoriSomething' not allowed"),
    ("execution-api", "monitoring.prometheusRule.alerts.AyatoriNoLeader.threshold=1", "'threshold' not allowed"),
    ("kubernetes-adapter", "replicas=1", "'replicas' not allowed"),
    ("kubernetes-adapter", "image.name=a", "'name' not allowed"),
    ("kubernetes-adapter", "resources.request.cpu=1", "'request' not allowed"),
    ("kubernetes-adapter", "telemetry.otlp.url=http://a", "'url' not allowed"),
    ("kubernetes-adapter", "networkPolicy.egress.openSandboxServers={}", "'openSandboxServers' not allowed"),
    ("opensandbox-adapter", "secretChecks.enabled=true", "'secretChecks' not allowed"),
    ("opensandbox-adapter", "secrets.mod=All", "'mod' not allowed"),
    ("opensandbox-adapter", "networkPolicy.apiServers={}", "'apiServers' not allowed"),
    // Of the wrong type, or out of range.
    ("execution-api", "userRoles.aggregate=yes", "/userRoles/aggregate"),
    ("execution-api", "protection.exemptGroups=system:nodes", "/protection/exemptGroups"),
    ("execution-api", "admission.rules.activeDeadlineSeconds.maximum=0", "/activeDeadlineSeconds/maximum"),
    ("execution-api", "admission.namespaceSelector.matchLabel.a=b", "'matchLabel' not allowed"),
    ("execution-api", "monitoring.prometheusRule.alerts.AyatoriNoLeader.for=5", "/AyatoriNoLeader/for"),
    ("execution-api", "monitoring.prometheusRule.alertLabels.severity=page", "/prometheusRule/alertLabels"),
    ("kubernetes-adapter", "replicaCount=two", "/replicaCount"),
    ("kubernetes-adapter", "replicaCount=-1", "/replicaCount"),
    ("kubernetes-adapter", "logFormat=xml", "/logFormat"),
    ("kubernetes-adapter", "image.tag=latest", "/image/tag"),
    ("kubernetes-adapter", "image.digest=1234", "/image/digest"),
    ("kubernetes-adapter", "image.pullPolicy=Sometimes", "/image/pullPolicy"),
    ("kubernetes-adapter", "jobGuardSeconds=0", "/jobGuardSeconds"),
    ("kubernetes-adapter", "extraArgs=--workers=1", "/extraArgs"),
    ("kubernetes-adapter", "extraEnv[0].value=a", "missing property 'name'"),
    ("kubernetes-adapter", "imagePullSecrets={registry}", "/imagePullSecrets/0"),
    ("kubernetes-adapter", "tolerations[0].effect=Never", "/tolerations/0/effect"),
    ("kubernetes-adapter", "secretChecks.namespaces={Team_A}", "/secretChecks/namespaces/0"),
    ("kubernetes-adapter", r"podLabels.app\.kubernetes\.io/name=other", "app.kubernetes.io/name"),
    ("kubernetes-adapter", "telemetry.otlp.endpoint=collector:4317", "/telemetry/otlp/endpoint"),
    ("kubernetes-adapter", "networkPolicy.egress.enabled=true", "/networkPolicy/egress/apiServers"),
    ("opensandbox-adapter", "secrets.mode=Some", "/secrets/mode"),
    ("opensandbox-adapter", "secrets.mode=Namespaces", "/secrets/namespaces"),
    ("opensandbox-adapter", "secrets.namespaces={a}", "/secrets/namespaces"),
    ("opensandbox-adapter", "fenceSeconds=100000", "/fenceSeconds"),
    ("opensandbox-adapter", "createConcurrency=0", "/createConcurrency"),
    ("opensandbox-adapter", "nativeRequestEndpoints={opensandbox.example}", "/nativeRequestEndpoints/0"),
    ("opensandbox-adapter", "allowInsecureHTTP=perhaps", "/allowInsecureHTTP"),
    // Taken away where the chart needs them.
    ("execution-api", "admission.rules=null", "missing property 'rules'"),
    ("execution-api", "monitoring.prometheusRule.alerts.AyatoriNoLeader=null", "missing property 'AyatoriNoLeader'"),
    ("kubernetes-adapter", "serviceMonitor.enabled=null", "missing property 'enabled'"),
    ("kubernetes-adapter", "replicaCount=null", "missing property 'replicaCount'"),
    ("kubernetes-adapter", "image.repository=null", "missing property 'repository'"),
    ("opensandbox-adapter", "fenceSeconds=null", "missing property 'fenceSeconds'"),
];

#[tokio::test]
async fn a_value_that_is_wrong_or_unknown_is_refused_and_named() -> anyhow::Result<()> {
    let problems = stream::iter(WRONG).map(async |(chart, value, named)| {
        match render(chart, SYSTEM_NAMESPACE, &["--set", value]).await {
            Ok(_) => Some(format!("{chart} takes {value}")),
            Err(error) => {
                let said = format!("{error:#}");
                (!said.contains(named)).then(|| format!("{chart}, {value}: not a word of {named}: {said}"))
            }
        }
    });
    let problems: Vec<_> = problems
        .buffer_unordered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await;
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

#[tokio::test]
async fn helms_linter_has_nothing_to_say_of_the_charts() -> anyhow::Result<()> {
    for name in CHARTS {
        let (folder, everything) = (folder(name), everything(name));
        let lint = ["lint", "--strict", "--quiet", text(&folder)?];
        helm(&lint).await?;
        helm(&[&lint[..], &["--values", text(&everything)?]].concat()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_the_charts_render_is_valid_by_default_and_with_everything_on() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let restricted = [(
            "pod-security.kubernetes.io/warn".to_owned(),
            "restricted".to_owned(),
        )];
        let namespace = run
            .create_namespace("charts", restricted.into(), [].into())
            .await?;
        for name in CHARTS {
            let everything = everything(name);
            for values in [&[][..], &["--values", text(&everything)?]] {
                let what = || format!("chart {name} {}", values.join(" "));
                let rendered = render(name, &namespace, values).await?;
                for object in &rendered {
                    keeps_conventions(object, &namespace).with_context(what)?;
                }
                // Another test gives the cluster the definitions of the others.
                let known: Vec<_> = rendered.iter().filter(|object| !is_monitoring(object)).collect();
                applies(&known).await.with_context(what)?;
            }
        }
        Ok(())
    })
    .await
}

/// Every object says what it belongs to, by the usual labels, no image is whatever is newest, and numbers are written
/// out.
fn keeps_conventions(object: &Value, namespace: &str) -> anyhow::Result<()> {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (kind, name) = (text("/kind"), text("/metadata/name"));
    let flags = object.pointer("/spec/template/spec/containers/0/args");
    for flag in flags.and_then(Value::as_array).into_iter().flatten() {
        let flag = flag.as_str().unwrap_or_default();
        ensure!(
            !flag.contains("e+"),
            "{flag}: Helm reads numbers of a file as floating point"
        );
    }
    // The definitions are generated, and stay when the chart goes.
    if kind != "CustomResourceDefinition" {
        for label in LABELS {
            let pointer = format!("/metadata/labels/{}", label.replace('/', "~1"));
            ensure!(!text(&pointer).is_empty(), "{kind} {name} has no label {label}");
        }
    }
    // Rights on what is elsewhere have to be there.
    let there = text("/metadata/namespace");
    ensure!(
        there.is_empty() || there == namespace || ["Role", "RoleBinding"].contains(&kind),
        "{kind} {name} is in {there}, not in the release's namespace"
    );
    let containers = object.pointer("/spec/template/spec/containers");
    for container in containers.and_then(Value::as_array).into_iter().flatten() {
        let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
        let tagged = image.rsplit('/').next().unwrap_or_default().contains([':', '@']);
        ensure!(
            tagged && !image.ends_with(":latest"),
            "{kind} {name} runs {image}, which may be anything"
        );
    }
    Ok(())
}

#[tokio::test]
async fn where_the_adapters_run_the_restricted_level_is_enforced_and_they_keep_to_it() -> anyhow::Result<()> {
    let client = ayatori_e2e::api::client().await?;
    let namespace = Api::<Namespace>::all(client.clone())
        .get(SYSTEM_NAMESPACE)
        .await?;
    let level = namespace.labels().get("pod-security.kubernetes.io/enforce");
    ensure!(
        level.map(String::as_str) == Some("restricted"),
        "{SYSTEM_NAMESPACE} enforces {level:?}"
    );

    let pods = Api::<Pod>::namespaced(client, SYSTEM_NAMESPACE);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let security = json!({"privileged": true});
    let privileged: Pod = serde_json::from_value(json!({
        "metadata": {"name": "privileged"},
        "spec": {"containers": [{"name": "a", "image": "localhost/busybox:1", "securityContext": security}]},
    }))?;
    let answer = pods.create(&dry, &privileged).await;
    let refusal = answer.err().context("a privileged pod is let in")?.to_string();
    ensure!(
        refusal.contains("violates PodSecurity \"restricted:latest\""),
        "refused for another reason: {refusal}"
    );

    let adapters = ListParams::default().labels("app.kubernetes.io/component=adapter");
    let adapters = pods.list(&adapters).await?;
    ensure!(
        adapters.items.len() >= 2,
        "the adapters are not there: {:?}",
        adapters.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    );
    for pod in adapters {
        // As if it came anew: what was there before the label would not have been looked at.
        let mut again = Pod {
            spec: pod.spec.clone(),
            ..Pod::default()
        };
        again.metadata.name = Some(format!("{}-again", pod.name_any()));
        let admitted = pods.create(&dry, &again).await;
        admitted.with_context(|| format!("{} is not restricted", pod.name_any()))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_command_drains_an_adapter_and_returns_when_nothing_runs_any_more() -> anyhow::Result<()> {
    with_world(async |world: World| {
        world.create(&world.job("runs", "sleep 6; exit 3")).await?;
        world.when_started("runs").await?;
        let shell = Shell::of(&world.namespace).await?;
        let commands = drains(&world)?;
        let [drain, parameters, list] = &commands;
        let run = async |command: &str| {
            let ran = shell.command("bash").args(["-c", command]).output().await?;
            let said = String::from_utf8_lossy(&ran.stderr);
            ensure!(ran.status.success(), "{command}: {said}");
            Ok(String::from_utf8(ran.stdout)?)
        };
        let refused = async {
            let classes = Api::<JobClass>::all(world.client.clone());
            when(classes, &world.class, "being deleted", |class| {
                class.metadata.deletion_timestamp.is_some()
            })
            .await?;
            world.create(&world.job("late", "true")).await?;
            world.when_says("late", ACCEPTED, "JobClassTerminating").await
        };
        futures::try_join!(run(drain), refused)?;
        let job = world.jobs.get("runs").await?;
        ensure!(is_finished(Some(&job)), "drained, although it runs");
        expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
        ensure!(world.starts("late") == 0);

        run(parameters).await?;
        let line = format!("{} runs\n", world.namespace);
        ensure!(
            run(list).await?.contains(&line),
            "the Job is still there, and not listed"
        );
        world.delete("runs").await?;
        world.when_gone("runs").await?;
        ensure!(
            !run(list).await?.contains(&line),
            "the Job is gone, and still listed"
        );
        Ok(())
    })
    .await
}

/// The runbook's commands up to the uninstall, for the test's class and parameters alone: others are not its to drain.
fn drains(world: &World) -> anyhow::Result<[String; 3]> {
    let commands = manual::commands("runbooks/drain-an-adapter.md", "## Drain an adapter")?;
    let [classes, parameters, list, _uninstall] = commands.lines().collect::<Vec<_>>()[..] else {
        anyhow::bail!("the runbook has other commands than these: {commands}");
    };
    let ours = format!("--selector {RUN_LABEL}={}", world.namespace);
    Ok([
        format!("{classes} {ours}"),
        parameters.replace("--all", &ours),
        list.to_owned(),
    ])
}

//! Nodes that run nothing: they say so of every pod that is bound to them, at once, whoever's it is.

use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::chronicle::{Chronicle, Moment, Watching};
use crate::peer;

/// Where pods are scheduled to.
pub(crate) const SCHEDULED: &str = "bench-node-1";
/// Where the herd is: the scheduler need not count it for every pod that it schedules.
pub(crate) const CORDONED: &str = "bench-node-2";
/// How often a node says that it is there.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// The nodes; they live as long as what this returns.
pub(crate) async fn all(client: &Client, chronicle: &Chronicle) -> anyhow::Result<Watching> {
    let mut tasks = Vec::new();
    for (name, cordoned) in [(SCHEDULED, false), (CORDONED, true)] {
        create(client, name, cordoned).await?;
        tasks.push(tokio::spawn(keep_ready(client.clone(), name)));
    }
    tasks.push(tokio::spawn(run_pods(client.clone(), chronicle.clone())));
    Ok(Watching(tasks))
}

async fn create(client: &Client, name: &str, cordoned: bool) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    let node = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"unschedulable": cordoned},
    }))?;
    let created = nodes.create(&PostParams::default(), &node).await;
    created.with_context(|| format!("creating node {name}"))?;
    let room = json!({"cpu": "100000", "memory": "100000Gi", "pods": "1000000"});
    let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": [ready()]}});
    let patch = PatchParams::default();
    nodes
        .patch_status(name, &patch, &Patch::Strategic(&status))
        .await?;
    Ok(())
}

fn ready() -> Value {
    json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated",
        "lastHeartbeatTime": second(), "lastTransitionTime": second(),
    })
}

/// Now, in whole seconds.
fn second() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

async fn keep_ready(client: Client, name: &'static str) {
    let leases = Api::<k8s_openapi::api::coordination::v1::Lease>::namespaced(client, "kube-node-lease");
    let mut interval = tokio::time::interval(HEARTBEAT);
    loop {
        interval.tick().await;
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now},
        });
        let apply = PatchParams::apply("bench-node").force();
        if let Err(error) = leases.patch(name, &apply, &Patch::Apply(&lease)).await {
            eprintln!("node {name} could not say that it is there: {error}");
        }
    }
}

/// Runs every pod that comes, each for as long as its command says.
async fn run_pods(client: Client, chronicle: Chronicle) {
    let ours = watcher::Config::default().fields(&format!("spec.nodeName={SCHEDULED}"));
    let mut begun = std::collections::HashSet::new();
    let events = watcher(Api::<Pod>::all(client.clone()), ours)
        .default_backoff()
        .touched_objects();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let pod = match event {
            Ok(pod) => pod,
            Err(error) => {
                eprintln!("the watch of the simulated node: {error}");
                continue;
            }
        };
        if pod.metadata.deletion_timestamp.is_some() {
            if !has_ended(&pod) {
                tokio::spawn(remove(client.clone(), pod));
            }
        } else if !has_ended(&pod) && begun.insert(pod.uid()) {
            tokio::spawn(run(client.clone(), chronicle.clone(), pod));
        }
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

async fn run(client: Client, chronicle: Chronicle, pod: Pod) {
    if let Err(error) = live(client, chronicle, &pod).await {
        eprintln!("the simulated node and pod {}: {error}", pod.name_any());
    }
}

async fn live(client: Client, chronicle: Chronicle, pod: &Pod) -> kube::Result<()> {
    let pods = Api::<Pod>::namespaced(client, &pod.namespace().unwrap_or_default());
    let began = second();
    let show = async |status: Value| {
        let patch = Patch::Strategic(json!({"status": status}));
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch)
            .await
    };
    if !words(pod).any(|word| word == peer::UNSEEN) {
        let running = json!({"running": {"startedAt": began}});
        show(status(pod, "Running", &began, running, true)).await?;
        let Some(time) = running_time(pod) else {
            return Ok(());
        };
        tokio::time::sleep(time).await;
    }
    if let Some((peer, name)) = peer::subject(pod) {
        chronicle.note(peer, &name, Moment::Ends);
    }
    let ended = json!({"terminated": {
        "exitCode": 0, "reason": "Completed", "startedAt": began, "finishedAt": second(),
    }});
    show(status(pod, "Succeeded", &began, ended, false))
        .await
        .map(drop)
}

fn status(pod: &Pod, phase: &str, began: &str, state: Value, ready: bool) -> Value {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let says = if ready { "True" } else { "False" };
    let condition = |type_: &str| json!({"type": type_, "status": says, "lastTransitionTime": second()});
    json!({
        "phase": phase,
        "startTime": began,
        "hostIP": "192.0.2.1", "podIP": "192.0.2.2", "podIPs": [{"ip": "192.0.2.2"}],
        "conditions": [condition("Ready"), condition("ContainersReady")],
        "containerStatuses": [{
            "name": container.map(|c| c.name.clone()),
            "image": container.and_then(|c| c.image.clone()),
            "imageID": "", "ready": ready, "started": ready, "restartCount": 0,
            "state": state,
        }],
    })
}

/// How long the command of a pod runs, if not for ever.
fn running_time(pod: &Pod) -> Option<Duration> {
    let time = words(pod).find_map(|word| word.strip_prefix("runs="))?;
    Some(Duration::from_millis(time.parse().ok()?))
}

/// The commands of a pod.
fn words(pod: &Pod) -> impl Iterator<Item = &String> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.flat_map(|c| c.command.iter().flatten())
}

/// What a kubelet does last with a pod that is being deleted.
async fn remove(client: Client, pod: Pod) {
    let pods = Api::<Pod>::namespaced(client, &pod.namespace().unwrap_or_default());
    let failed = json!({"status": {"phase": "Failed"}});
    let name = pod.name_any();
    // That it is gone meanwhile is what is wanted.
    let _ = pods
        .patch_status(&name, &PatchParams::default(), &Patch::Strategic(&failed))
        .await;
    let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
}

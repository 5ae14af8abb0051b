//! The configuration files of the parts.

use super::{Cluster, node, pki};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;

/// The identities that get a kubeconfig; the administrator's is the one for people.
const CLIENTS: [&str; 4] = ["controller-manager", "scheduler", "kubelet", "proxy"];

pub(crate) fn write(cluster: &Cluster) -> Result<()> {
    let save = |name: &str, value: &Value| yaml(&cluster.conf(name), value);
    for client in CLIENTS {
        save(&format!("{client}.kubeconfig"), &kubeconfig(cluster, client))?;
    }
    yaml(&cluster.kubeconfig(), &kubeconfig(cluster, "admin"))?;
    save("audit.yaml", &audit())?;
    if cluster.description.mode.has_node() {
        save("kubelet.yaml", &kubelet(cluster))?;
        save("proxy.yaml", &proxy(cluster))?;
        save("cni/10-pods.conflist", &network(cluster))?;
        text(&cluster.conf("containerd.toml"), &containerd(cluster)?)?;
    }
    Ok(())
}

fn yaml(path: &Path, value: &Value) -> Result<()> {
    // CNI reads JSON alone, everything else YAML.
    let json = path.extension().is_some_and(|extension| extension == "conflist");
    text(
        path,
        &if json {
            serde_json::to_string_pretty(value)?
        } else {
            serde_yaml::to_string(value)?
        },
    )
}

pub(crate) fn text(path: &Path, content: &str) -> Result<()> {
    pki::private_file(path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn kubeconfig(cluster: &Cluster, client: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "ayatori-local", "cluster": {
            "server": cluster.server(),
            "certificate-authority": cluster.pki("ca.crt"),
        }}],
        "users": [{"name": client, "user": {
            "client-certificate": cluster.pki(&format!("{client}.crt")),
            "client-key": cluster.pki(&format!("{client}.key")),
        }}],
        "contexts": [{"name": "ayatori-local", "context": {"cluster": "ayatori-local", "user": client}}],
        "current-context": "ayatori-local",
    })
}

/// Who asked for what, without bodies: tests count the adapters' requests.
fn audit() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    })
}

fn kubelet(cluster: &Cluster) -> Value {
    let ports = &cluster.description.ports;
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": cluster.pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "address": node::ADDRESS,
        "port": ports.kubelet,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": ports.kubelet_health,
        "tlsCertFile": cluster.pki("kubelet.crt"),
        "tlsPrivateKeyFile": cluster.pki("kubelet.key"),
        "containerRuntimeEndpoint": format!("unix://{}", cluster.containerd_socket().display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", node::CGROUP),
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "localStorageCapacityIsolation": false,
        "maxPods": 250,
        "nodeStatusUpdateFrequency": "5s",
        "nodeLeaseDurationSeconds": 20,
        "resolvConf": "",
        // A developer's disk is often nearly full; that is no reason to evict.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        // Inside the state folder, so that everything goes with it.
        "podLogsDir": cluster.log("pods"),
        "volumePluginDir": cluster.state("volume-plugins"),
    })
}

fn proxy(cluster: &Cluster) -> Value {
    let ports = &cluster.description.ports;
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": cluster.conf("proxy.kubeconfig")},
        "clusterCIDR": node::POD_NETWORK,
        "hostnameOverride": node::NAME,
        "bindAddress": node::ADDRESS,
        "healthzBindAddress": format!("127.0.0.1:{}", ports.proxy_health),
        "metricsBindAddress": format!("127.0.0.1:{}", ports.proxy_metrics),
        "nodePortAddresses": ["primary"],
        // Pods of one bridge would answer each other directly, past the address translation.
        "iptables": {"masqueradeAll": true},
        // Leave the machine's connection tracking limits alone.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    })
}

fn network(cluster: &Cluster) -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "ayatori-pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": node::POD_DEVICE,
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": cluster.state("leases"),
                    "ranges": [[{"subnet": node::POD_NETWORK}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn containerd(cluster: &Cluster) -> Result<String> {
    let quoted = |path: &Path| format!("{:?}", path.display().to_string()); // a legal TOML string
    Ok(format!(
        r#"version = 2
root = {root}
state = {state}

[grpc]
  address = {socket}

[plugins."io.containerd.internal.v1.opt"]
  path = {opt}

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  # Without it every sandbox fails where root has no CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {plugins}
    conf_dir = {networks}
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"#,
        root = quoted(&cluster.state("containerd/root")),
        state = quoted(&cluster.state("containerd/state")),
        socket = quoted(&cluster.containerd_socket()),
        opt = quoted(&cluster.state("containerd/opt")),
        plugins = quoted(&node::cni_plugins()?),
        networks = quoted(&cluster.conf("cni")),
    ))
}

//! What is not simply run: every block that is treated in another way, by its document and how its first line begins, and why.

/// How a block is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// It runs; YAML is applied, as a trial.
    Run,
    /// Its `kubectl` commands run as a trial: the API server says what it would do, and does not.
    Trial(&'static str),
    /// It runs and finds nothing, for nothing is wrong.
    FindsNothing,
    /// It runs and is refused, with the words that are shown.
    Refused,
    /// It is a file of values of this chart, and the chart renders with it.
    Values(&'static str),
    /// It is not run here.
    Elsewhere(&'static str),
}
use Treatment::{Elsewhere, FindsNothing, Refused, Trial, Values};

/// Where there are tests of that.
const DEMO: Treatment = Elsewhere("demo.rs runs it, on the cluster of this test");
const INSTALL: Treatment =
    Elsewhere("zz_charts follows it, with the images of this checkout, after it has removed everything");
const REMOVE: Treatment = Elsewhere(
    "this takes everything from the whole cluster: zz_charts follows it, and the rest of this page after it",
);
const VALUES: Treatment =
    Elsewhere("charts.rs renders the charts with these values, zz_charts upgrades them");
const DRAIN: Treatment = Elsewhere("charts.rs drains an adapter with the commands of this section");
const FORCED: Treatment = Elsewhere("unwatched.rs follows this runbook, without an adapter");
const CARGO: Treatment = Elsewhere("`cargo xtask test` runs the tests of this example");
const RELEASE: Treatment = Elsewhere("publishes, or takes what only a published release has");
const PART: Treatment = Elsewhere("a part of a manifest");
const TERMINAL: Treatment = Elsewhere("sets up the terminal of a person; a test has its own");

/// Document, how the first line begins, treatment.
#[rustfmt::skip]
pub(crate) const EXCEPTIONS: &[(&str, &str, Treatment)] = &[
    ("README.md", "cargo xtask demo ", DEMO),
    ("docs/tutorial.md", "cargo xtask demo", DEMO),
    ("docs/tutorial.md", "cargo xtask cluster down", Elsewhere("ends the cluster that this test runs on")),
    ("docs/tutorial.md", "export KUBECONFIG=$PWD/target/cluster/kubeconfig", TERMINAL),
    ("docs/tutorial.md", "kubectl create -f examples/too-greedy.yaml", Refused),

    ("docs/how-to/install.md", "skopeo copy", Elsewhere("needs a registry that takes pushes")),
    ("docs/how-to/install.md", "helm upgrade --install execution-api", INSTALL),
    ("docs/how-to/install.md", "kubectl delete ajobs --all --all-namespaces", REMOVE),
    ("docs/how-to/opensandbox.md", "helm upgrade --install opensandbox-adapter", INSTALL),
    ("docs/how-to/opensandbox.md", "kubectl create secret generic opensandbox", Trial("the class has a key already")),
    ("docs/how-to/admission-policies.md", "helm upgrade execution-api", VALUES),
    ("docs/how-to/admission-policies.md", "# values.yaml of the chart execution-api", Values("execution-api")),
    ("docs/how-to/admission-policies.md", "# more values of the chart", Values("execution-api")),
    ("docs/how-to/admission-policies.md", "# instead of the default", Values("execution-api")),
    ("docs/how-to/monitor.md", "helm upgrade kubernetes-adapter", VALUES),
    ("docs/how-to/monitor.md", "helm upgrade execution-api", VALUES),
    ("docs/how-to/monitor.md", "scrape_configs:", Elsewhere("settings of a Prometheus inside the cluster")),
    ("docs/how-to/monitor.md", "monitoring:", Values("execution-api")),
    ("docs/how-to/gitops.md", "kubectl kustomize", Elsewhere("gitops.rs applies the tree, under names of its own")),
    ("docs/how-to/use-from-ci.md", "#!/bin/sh", Elsewhere("callers.rs runs this file; here it is only put in its place")),
    ("docs/how-to/write-an-adapter.md", "cargo run -p ayatori-controller --example processes", CARGO),
    ("docs/how-to/write-an-adapter.md", "cargo test -p ayatori-controller --test processes", CARGO),
    ("docs/how-to/release.md", "cargo xtask release --dry-run", Elsewhere("builds for minutes; the workflow of releases runs it")),
    ("docs/how-to/release.md", "git tag", RELEASE),
    ("docs/how-to/release.md", "gh release download", RELEASE),
    ("docs/reference/roles.md", "kubectl create rolebinding job-users", Trial("one of the two is for the whole cluster")),
    ("docs/reference/traces.md", "metadata:", PART),

    ("docs/runbooks/drain-an-adapter.md", "kubectl delete jobclasses --field-selector", DRAIN),
    ("docs/runbooks/drain-an-adapter.md", "kubectl delete kubernetesexecutionparameters --all", DRAIN),
    ("docs/runbooks/drain-an-adapter.md", "helm uninstall kubernetes-adapter", DRAIN),
    ("docs/runbooks/forced-removal.md", "export NAMESPACE=team-a NAME=build-7", FORCED),
    ("docs/runbooks/forced-removal.md", "OURS=", FORCED),
    ("docs/runbooks/forced-removal.md", "kubectl create --field-manager=forced-removal --filename - <<EVENT", FORCED),
    ("docs/runbooks/forced-removal.md", "LEFT=", FORCED),
    ("docs/runbooks/restore-etcd.md", "kubectl scale deployment --all --replicas=0 --namespace ayatori-system", Trial("other tests need the adapters")),
    ("docs/runbooks/restore-etcd.md", "kubectl scale deployment --all --replicas=2 --namespace ayatori-system", Trial("likewise")),
    ("docs/runbooks/undecodable-objects.md", "kubectl logs --namespace ayatori-system", FindsNothing),
];

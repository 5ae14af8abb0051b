//! What adapters make is theirs alone, and they touch nothing else: the admission policies of both charts.
//!
//! Needs the charts installed with their default values. The pods here wait at a gate of their own: nothing runs.

use anyhow::{Context, ensure};
use ayatori_core::job::{Job, JobSpec};
use ayatori_core::job_class::{JobClass, JobClassSpec, ParametersReference};
use ayatori_core::names::{CLASS_FINALIZER, EXECUTION_FINALIZER, GROUP, JOB_NAME_LABEL, JOB_UID_LABEL};
use ayatori_e2e::accounts::{KUBERNETES_ADAPTER, OPENSANDBOX_ADAPTER, bind, bind_everywhere, client_as};
use ayatori_e2e::api::{self, Run, merged};
use ayatori_e2e::documented;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

const OURS: &str = "ours";
const OTHER: &str = "other";

/// Somebody who may edit everything in the namespace, by the built-in role and what it leaves out.
fn editor(run: &Run) -> String {
    format!("editor-of-{}", run.namespace)
}

/// A pod and a batch Job with the label of a Job, and the like without it.
async fn objects(run: &Run) -> anyhow::Result<()> {
    let (pods, jobs) = apis(run, run.client.clone());
    for name in [OURS, OTHER] {
        pods.create(&PostParams::default(), &pod(name)?)
            .await
            .context("creating a pod")?;
        jobs.create(&PostParams::default(), &batch_job(name)?)
            .await
            .context("creating a batch Job")?;
    }
    Ok(())
}

fn label_of(name: &str) -> Value {
    if name == OURS {
        json!({ JOB_UID_LABEL: "11111111-1111-1111-1111-111111111111", JOB_NAME_LABEL: "build" })
    } else {
        json!({})
    }
}

fn pod_spec() -> Value {
    json!({
        "schedulingGates": [{"name": "test.ayatori.ddupan.top/never"}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "job", "image": "localhost/busybox:1", "resources": {"limits": {"cpu": "10m"}}}],
    })
}

fn pod(name: &str) -> anyhow::Result<Pod> {
    Ok(serde_json::from_value(
        json!({"metadata": metadata(name), "spec": pod_spec()}),
    )?)
}

fn batch_job(name: &str) -> anyhow::Result<BatchJob> {
    let template = json!({"metadata": {"labels": label_of(name)}, "spec": pod_spec()});
    let spec = json!({"backoffLimit": 0, "suspend": true, "template": template});
    Ok(serde_json::from_value(
        json!({"metadata": metadata(name), "spec": spec}),
    )?)
}

/// With a label besides, to delete it by.
fn metadata(name: &str) -> Value {
    json!({"name": name, "labels": merged(json!({"test": name}), &label_of(name))})
}

fn apis(run: &Run, client: Client) -> (Api<Pod>, Api<BatchJob>) {
    (
        Api::namespaced(client.clone(), &run.namespace),
        Api::namespaced(client, &run.namespace),
    )
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    /// One of our policies refused it.
    Policy,
    /// No role grants it.
    Role,
}

impl Answer {
    /// The word of the reference.
    fn word(self) -> &'static str {
        match self {
            Answer::Done => "yes",
            Answer::Policy => "no",
            Answer::Role => "no role",
        }
    }

    /// Any other error is the test's own.
    fn of<T>(answer: Result<T, kube::Error>) -> anyhow::Result<Answer> {
        match answer {
            Ok(_) => Ok(Answer::Done),
            Err(kube::Error::Api(status)) => {
                let says = |words: &str| status.message.contains(words);
                if says("ValidatingAdmissionPolicy 'ayatori-") {
                    Ok(Answer::Policy)
                } else if status.code == 403 && says(" cannot ") {
                    Ok(Answer::Role)
                } else if says("does not have a host assigned") || says("address not allowed") {
                    // What is said of a pod that has no node: the request was let through as far as that.
                    Ok(Answer::Done)
                } else {
                    Err(kube::Error::Api(status).into())
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn annotated() -> Value {
    json!({"metadata": {"annotations": {"test": "yes"}}})
}

/// A request that reaches a pod, a batch Job, or something that makes such. Nothing of it is stored.
struct Way {
    what: &'static str,
    /// Method and path, which begins with the folder of its API group.
    request: &'static str,
    body: Value,
}

/// Every way to reach the pod and the batch Job of that name, and to make others that carry the label as they do.
fn ways(name: &str) -> Vec<Way> {
    let way = |what, request, body| Way { what, request, body };
    let nothing = || Value::Null;
    let relabel = || json!({"metadata": {"labels": {JOB_UID_LABEL: "another"}}});
    let container = json!({"name": "job", "resources": {"limits": {"cpu": "20m"}}});
    let debugger = json!({"name": "debugger", "image": "localhost/busybox:1"});
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name},
        "deleteOptions": {"dryRun": ["All"]},
    });
    let named = |spec: Value| json!({"metadata": {"name": "new"}, "spec": spec});
    let labelled = |spec: Value| json!({"metadata": {"name": "new", "labels": label_of(name)}, "spec": spec});
    let labels = merged(json!({"app": "new"}), &label_of(name));
    let template = json!({"metadata": {"labels": labels}, "spec": pod_spec()});
    let once = || json!({"template": template});
    let scheduled = json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": once()}});
    let lasting = merged(
        once(),
        &json!({"template": {"spec": {"restartPolicy": "Always"}}}),
    );
    let of_app = |selector: Value| named(merged(lasting.clone(), &json!({"selector": selector})));
    let selecting = || of_app(json!({"matchLabels": {"app": "new"}}));
    vec![
        way("create a pod", "POST core/pods", labelled(pod_spec())),
        way("change a pod", "PATCH core/pods/NAME", annotated()),
        way("give a pod another `job-uid`", "PATCH core/pods/NAME", relabel()),
        way(
            "resize a pod",
            "PATCH core/pods/NAME/resize",
            json!({"spec": {"containers": [container]}}),
        ),
        way(
            "write a pod's status",
            "PATCH core/pods/NAME/status",
            json!({"status": {"message": "test"}}),
        ),
        way(
            "add a debugger to a pod",
            "PATCH core/pods/NAME/ephemeralcontainers",
            json!({"spec": {"ephemeralContainers": [debugger]}}),
        ),
        way(
            EXEC,
            "POST core/pods/NAME/exec?command=true&stdout=true",
            nothing(),
        ),
        way(
            "attach to a pod",
            "POST core/pods/NAME/attach?stdout=true",
            nothing(),
        ),
        way(
            "forward a pod's port",
            "POST core/pods/NAME/portforward?ports=80",
            nothing(),
        ),
        way("reach a pod by proxy", "GET core/pods/NAME/proxy", nothing()),
        way("read a pod's log", "GET core/pods/NAME/log", nothing()),
        way("evict a pod", "POST core/pods/NAME/eviction", eviction),
        way("delete a pod", "DELETE core/pods/NAME", nothing()),
        way(
            "delete pods by label",
            "DELETE core/pods?labelSelector=test%3DNAME",
            nothing(),
        ),
        way("create a batch Job", "POST batch/jobs", labelled(once())),
        way("change a batch Job", "PATCH batch/jobs/NAME", annotated()),
        way(
            "give a batch Job another `job-uid`",
            "PATCH batch/jobs/NAME",
            relabel(),
        ),
        way(
            "write a batch Job's status",
            "PATCH batch/jobs/NAME/status",
            json!({"status": {"ready": 0}}),
        ),
        way("delete a batch Job", "DELETE batch/jobs/NAME", nothing()),
        way(
            "delete batch Jobs by label",
            "DELETE batch/jobs?labelSelector=test%3DNAME",
            nothing(),
        ),
        // With the label in the template alone: what comes of it is made by controllers that no policy stops.
        way(
            "create a batch Job of such pods",
            "POST batch/jobs",
            named(once()),
        ),
        way(
            "create a CronJob of such pods",
            "POST batch/cronjobs",
            named(scheduled),
        ),
        way(
            "create a Deployment of such pods",
            "POST apps/deployments",
            selecting(),
        ),
        way(
            "create a StatefulSet of such pods",
            "POST apps/statefulsets",
            merged(selecting(), &json!({"spec": {"serviceName": "new"}})),
        ),
        way(
            "create a DaemonSet of such pods",
            "POST apps/daemonsets",
            selecting(),
        ),
        way(
            "create a ReplicaSet of such pods",
            "POST apps/replicasets",
            selecting(),
        ),
        way(
            "create a ReplicationController of such pods",
            "POST core/replicationcontrollers",
            of_app(json!({"app": "new"})),
        ),
    ]
}

const EXEC: &str = "exec into a pod";

impl Way {
    async fn go(&self, run: &Run, client: &Client, name: &str) -> anyhow::Result<Answer> {
        Answer::of(self.send(run, client, name).await?).context(self.what)
    }

    /// What the API server says to it.
    async fn send(
        &self,
        run: &Run,
        client: &Client,
        name: &str,
    ) -> anyhow::Result<Result<String, kube::Error>> {
        let (method, path) = self.request.split_once(' ').context("a request without a path")?;
        let (group, path) = path.split_once('/').context("a path without a group")?;
        let root = match group {
            "core" => "/api/v1".to_owned(),
            group => format!("/apis/{group}/v1"),
        };
        let path = path.replace("NAME", name);
        // What connects has no dry run, and reaches nothing in a pod that has no node.
        let connects = ["/exec", "/attach", "/portforward", "/proxy"]
            .iter()
            .any(|to| path.contains(to));
        let dry = match (connects, path.contains('?')) {
            (true, _) => "",
            (false, true) => "&dryRun=All",
            (false, false) => "?dryRun=All",
        };
        let content = match method {
            "PATCH" => "application/strategic-merge-patch+json",
            _ => "application/json",
        };
        let body = match &self.body {
            Value::Null => Vec::new(),
            body => serde_json::to_vec(body)?,
        };
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{root}/namespaces/{}/{path}{dry}", run.namespace))
            .header(http::header::CONTENT_TYPE, content)
            .body(body)?;
        Ok(client.request_text(request).await)
    }
}

/// What becomes of every way to reach what has that name.
async fn answers(run: &Run, client: &Client, name: &str) -> anyhow::Result<Vec<(&'static str, Answer)>> {
    stream::iter(ways(name))
        .map(async |way| Ok((way.what, way.go(run, client, name).await?)))
        .buffered(8)
        .try_collect()
        .await
}

/// Open to whoever may do so with any pod: logs are to be read, and nodes drained.
const OPEN: [&str; 2] = ["read a pod's log", "evict a pod"];
/// Refused whatever the object is: nobody passes one off as an adapter's.
const FORGED: [&str; 2] = [
    "give a pod another `job-uid`",
    "give a batch Job another `job-uid`",
];

#[tokio::test]
async fn an_editor_of_the_namespace_cannot_change_or_delete_what_an_adapter_made() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let client = ready_editor(&run).await?;
        let done = with(Answer::Done, &answers(&run, &client, OURS).await?);
        ensure!(done == OPEN, "open although an adapter made it: {done:?}");
        let refused = with(Answer::Policy, &answers(&run, &client, OTHER).await?);
        ensure!(refused == FORGED, "refused although it is nobody's: {refused:?}");
        for what in ["change a pod", "delete a pod", "delete a batch Job", EXEC] {
            let way = ways(OURS)
                .into_iter()
                .find(|way| way.what == what)
                .context(what)?;
            match way.send(&run, &client, OURS).await? {
                Err(kube::Error::Api(status)) if status.message.contains(" ajob/build ") => {}
                answer => anyhow::bail!("{what}: the Job is not named: {answer:?}"),
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn nobody_else_can_pass_an_object_off_as_an_adapters() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let client = ready_editor(&run).await?;
        let makes = |what: &&str| what.starts_with("create") || what.starts_with("give");
        let all: Vec<_> = ways(OURS).iter().map(|way| way.what).filter(makes).collect();
        let mut refused = with(Answer::Policy, &answers(&run, &client, OURS).await?);
        refused.retain(makes);
        ensure!(refused == all, "only these were refused: {refused:?}");
        // Neither put on what has no label, nor taken off what has one.
        for (name, label) in [(OTHER, json!("1")), (OURS, json!(null))] {
            let relabel = Patch::Merge(json!({"metadata": {"labels": {JOB_UID_LABEL: label}}}));
            let (pods, jobs) = apis(&run, client.clone());
            let params = PatchParams::default();
            let pod = Answer::of(pods.patch(name, &params, &relabel).await)?;
            let job = Answer::of(jobs.patch(name, &params, &relabel).await)?;
            ensure!(
                (pod, job) == (Answer::Policy, Answer::Policy),
                "{name}: {pod:?}, {job:?}"
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_editor_of_the_namespace_cannot_get_into_a_pod_that_an_adapter_made() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let client = ready_editor(&run).await?;
        for way in [
            EXEC,
            "attach to a pod",
            "forward a pod's port",
            "reach a pod by proxy",
            "add a debugger to a pod",
        ] {
            for (name, expected) in [(OURS, Answer::Policy), (OTHER, Answer::Done)] {
                let found = ways(name).into_iter().find(|candidate| candidate.what == way);
                let answer = found.context(way)?.go(&run, &client, name).await?;
                ensure!(answer == expected, "{way}, {name}: {answer:?}");
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn administrators_and_those_who_may_intervene_are_not_locked_out() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let client = ready_editor(&run).await?;
        let refused = with(Answer::Policy, &answers(&run, &run.client, OURS).await?);
        ensure!(refused.is_empty(), "refused to an administrator: {refused:?}");
        may_intervene(&run, &client, &editor(&run)).await?;
        let refused = with(Answer::Policy, &answers(&run, &client, OURS).await?);
        ensure!(refused.is_empty(), "refused to who may intervene: {refused:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_adapter_touches_only_what_carries_the_label_of_a_job() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        objects(&run).await?;
        let adapter = client_as(KUBERNETES_ADAPTER).await?;
        let (ours, other) = (
            with(Answer::Policy, &answers(&run, &adapter, OURS).await?),
            with(Answer::Done, &answers(&run, &adapter, OTHER).await?),
        );
        ensure!(ours == FORGED, "refused although the adapter made it: {ours:?}");
        ensure!(
            other.is_empty(),
            "done although nothing of it is its own: {other:?}"
        );

        let (pods, _) = apis(&run, adapter);
        let unlabel = Patch::Merge(json!({"metadata": {"labels": {JOB_UID_LABEL: null}}}));
        let freed = Answer::of(pods.patch(OURS, &PatchParams::default(), &unlabel).await)?;
        ensure!(
            freed == Answer::Policy,
            "the label was taken off a pod: {freed:?}"
        );
        Ok(())
    })
    .await
}

/// The reference has a table of this; what it says is what is expected.
#[tokio::test]
async fn each_way_to_a_generated_object_is_open_or_closed_as_the_reference_says() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let editor = ready_editor(&run).await?;
        let user = format!("intervener-of-{}", run.namespace);
        let intervener = edits(&run, &user).await?;
        may_intervene(&run, &intervener, &user).await?;
        let adapter = client_as(KUBERNETES_ADAPTER).await?;
        let columns = [
            answers(&run, &editor, OTHER).await?,
            answers(&run, &editor, OURS).await?,
            answers(&run, &intervener, OURS).await?,
            answers(&run, &adapter, OURS).await?,
            answers(&run, &adapter, OTHER).await?,
        ];
        let heading = [
            "",
            "editor, own",
            "editor, of a Job",
            "who may intervene",
            "adapter, of a Job",
            "adapter, others",
        ];
        let rows = ways(OURS).into_iter().enumerate().map(|(row, way)| {
            let cells = columns.iter().filter_map(|column| column.get(row));
            std::iter::once(way.what.to_owned())
                .chain(cells.map(|(_, answer)| answer.word().to_owned()))
                .collect()
        });
        documented::expect(
            "reference/roles.md",
            "Pods and batch Jobs",
            &heading,
            rows.collect(),
        )
    })
    .await
}

/// The ways that were answered like this.
fn with(answer: Answer, answers: &[(&'static str, Answer)]) -> Vec<&'static str> {
    let like_this = answers.iter().filter(|(_, seen)| *seen == answer);
    like_this.map(|(what, _)| *what).collect()
}

/// Gives that user the right to intervene.
async fn grant_intervention(run: &Run, user: &str) -> anyhow::Result<()> {
    let roles: Api<Role> = Api::namespaced(run.client.clone(), &run.namespace);
    let rule = json!({"apiGroups": [GROUP], "resources": ["jobs"], "verbs": ["intervene"]});
    let role = serde_json::from_value(json!({"metadata": {"name": "intervener"}, "rules": [rule]}))?;
    roles.create(&PostParams::default(), &role).await?;
    bind(run, user, "Role", "intervener").await
}

/// The same for an editor, and returns once it has taken effect.
async fn may_intervene(run: &Run, client: &Client, user: &str) -> anyhow::Result<()> {
    grant_intervention(run, user).await?;
    let (pods, _) = apis(run, client.clone());
    api::eventually(
        "an editor who may intervene changes the pod of a Job",
        async || Ok(pods.patch(OURS, &dry(), &Patch::Merge(annotated())).await.is_ok()),
    )
    .await
}

fn dry() -> PatchParams {
    PatchParams {
        dry_run: true,
        ..PatchParams::default()
    }
}

/// Makes that user an editor, also of subresources that are in no built-in role, and returns once that has taken
/// effect.
async fn edits(run: &Run, user: &str) -> anyhow::Result<Client> {
    let role: Role = serde_json::from_value(json!({
        "metadata": {"generateName": "subresources-"},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["pods/ephemeralcontainers", "pods/resize", "pods/status"],
                "verbs": ["patch"],
            },
            {"apiGroups": ["batch"], "resources": ["jobs/status"], "verbs": ["patch"]},
        ],
    }))?;
    let roles: Api<Role> = Api::namespaced(run.client.clone(), &run.namespace);
    let role = roles.create(&PostParams::default(), &role).await?.name_any();
    bind(run, user, "ClusterRole", "edit").await?;
    bind(run, user, "Role", &role).await?;
    let client = client_as(user).await?;
    let status = Patch::Merge(json!({"status": {"message": "test"}}));
    let (pods, _) = apis(run, client.clone());
    api::eventually("an editor's bindings take effect", async || {
        let patched = pods.patch(OTHER, &dry(), &Patch::Merge(annotated())).await;
        Ok(patched.is_ok() && pods.patch_status(OTHER, &dry(), &status).await.is_ok())
    })
    .await?;
    Ok(client)
}

/// The objects of the test, and a client of somebody who may edit the namespace, whom the policies know.
async fn ready_editor(run: &Run) -> anyhow::Result<Client> {
    objects(run).await?;
    let client = edits(run, &editor(run)).await?;
    // The policy looks the pod up in a cache, which shows a new pod a moment later.
    let exec = ways(OURS)
        .into_iter()
        .find(|way| way.what == EXEC)
        .context(EXEC)?;
    api::eventually("exec into the pod of a Job is refused", async || {
        Ok(exec.go(run, &client, OURS).await? == Answer::Policy)
    })
    .await?;
    Ok(client)
}

/// A Job that no controller here touches, with a finalizer of ours and one of somebody else.
async fn held_job(run: &Run) -> anyhow::Result<Job> {
    let mut job = Job::new("held", JobSpec::default());
    job.spec.image = "localhost/busybox:1".to_owned();
    job.spec.managed_by = Some("test.ayatori.ddupan.top/nobody".to_owned());
    job.metadata.finalizers = Some(vec![
        EXECUTION_FINALIZER.to_owned(),
        "test.ayatori.ddupan.top/other".to_owned(),
    ]);
    let jobs: Api<Job> = Api::namespaced(run.client.clone(), &run.namespace);
    Ok(jobs.create(&PostParams::default(), &job).await?)
}

#[tokio::test]
async fn only_adapters_and_those_who_may_intervene_take_the_finalizer_off_a_job() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let held = held_job(&run).await?;
        let user = format!("user-of-{}", run.namespace);
        bind(&run, &user, "ClusterRole", "ayatori-job-user").await?;
        let client = client_as(&user).await?;
        let jobs: Api<Job> = Api::namespaced(client, &run.namespace);
        let with = |finalizers: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        let others = with(&[EXECUTION_FINALIZER]);
        api::eventually("a user of Jobs may take off what is not ours", async || {
            Ok(jobs.patch("held", &dry(), &others).await.is_ok())
        })
        .await?;

        let none = with(&[]);
        let patched = Answer::of(jobs.patch("held", &dry(), &none).await)?;
        let mut without = held.clone();
        without.metadata.finalizers = None;
        let replace = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let replaced = Answer::of(jobs.replace("held", &replace, &without).await)?;
        ensure!(
            (patched, replaced) == (Answer::Policy, Answer::Policy),
            "{patched:?}, {replaced:?}"
        );

        for account in [KUBERNETES_ADAPTER, OPENSANDBOX_ADAPTER] {
            let jobs: Api<Job> = Api::namespaced(client_as(account).await?, &run.namespace);
            jobs.patch("held", &dry(), &none).await.context(account)?;
        }
        grant_intervention(&run, &user).await?;
        api::eventually("who may intervene takes the finalizer off", async || {
            Ok(jobs.patch("held", &dry(), &none).await.is_ok())
        })
        .await?;
        let jobs: Api<Job> = Api::namespaced(run.client.clone(), &run.namespace);
        jobs.patch("held", &PatchParams::default(), &none).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_administrator_of_classes_cannot_take_the_protection_off_a_class() -> anyhow::Result<()> {
    api::in_namespace(async |run| {
        let name = run.namespace.as_str();
        let mut class = JobClass::new(name, JobClassSpec::default());
        class.spec.controller_name = "test.ayatori.ddupan.top/nobody".to_owned();
        class.spec.parameters_ref = ParametersReference {
            group: "test.ayatori.ddupan.top".to_owned(),
            kind: "Parameters".to_owned(),
            name: "none".to_owned(),
        };
        class.metadata.labels = Some([(api::RUN_LABEL.to_owned(), name.to_owned())].into());
        class.metadata.finalizers = Some(vec![CLASS_FINALIZER.to_owned()]);
        let classes: Api<JobClass> = Api::all(run.client.clone());
        classes.create(&PostParams::default(), &class).await?;

        let none = Patch::Merge(json!({"metadata": {"finalizers": []}}));
        let refused = async {
            let user = format!("class-admin-of-{name}");
            bind_everywhere(&run, &user, "ayatori-class-admin").await?;
            let classes: Api<JobClass> = Api::all(client_as(&user).await?);
            api::eventually("the class-admin's binding takes effect", async || {
                Ok(classes
                    .patch(name, &dry(), &Patch::Merge(annotated()))
                    .await
                    .is_ok())
            })
            .await?;
            let answer = Answer::of(classes.patch(name, &dry(), &none).await)?;
            ensure!(answer == Answer::Policy, "the finalizer came off: {answer:?}");
            Ok(())
        }
        .await;
        // No controller would free it.
        classes.patch(name, &PatchParams::default(), &none).await?;
        refused
    })
    .await
}

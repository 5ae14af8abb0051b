//! The same Job ends alike in a pod and in a sandbox, on a real kubelet and a real OpenSandbox server, and what is
//! particular to sandboxes is told truly.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ayatori_core::conditions::{self, ACCEPTED, SCHEDULED};
use ayatori_core::job::{Job, JobResult, Outcome};
use ayatori_core::names::GROUP;
use ayatori_core::parameters::OpenSandboxExecutionParametersSpec;
use ayatori_core::resources::{ResourceQuantities, ResourceRequirements};
use ayatori_e2e::api::{DEADLINE, Run, expect_kept, merged};
use ayatori_e2e::opensandbox::STATIC_IMAGE;
use ayatori_e2e::sandboxes::{Sandboxes, with_sandboxes};
use ayatori_e2e::world::{IMAGE, PATIENCE, expect, is_finished, result};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{DeleteParams, LogParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// Reason and exit code of a Job's end.
type End = (&'static str, Option<i32>);

/// What a Job is, to be run in a pod and in a sandbox.
type Make = fn(&mut Job);

fn plain(_: &mut Job) {}

fn little_memory(job: &mut Job) {
    let limits = ResourceQuantities {
        memory: Some(Quantity("16Mi".to_owned())),
        ..ResourceQuantities::default()
    };
    job.spec.resources = Some(ResourceRequirements {
        limits: Some(limits),
        ..ResourceRequirements::default()
    });
}

/// The same Job twice: in a pod, whose command has no need of the network here, and in a sandbox.
async fn create_both(sandboxes: &Sandboxes, name: &str, then: &str, make: Make) -> anyhow::Result<()> {
    for (backend, class) in [("pod", &sandboxes.world.class), ("sandbox", &sandboxes.class)] {
        let mut job = sandboxes.job(&format!("{name}-{backend}"), then);
        job.spec.job_class_name = Some(class.clone());
        make(&mut job);
        sandboxes.world.create(&job).await?;
    }
    Ok(())
}

/// Both, once they are finished.
async fn both(sandboxes: &Sandboxes, name: &str) -> anyhow::Result<(Job, Job)> {
    let pod = sandboxes.world.when_finished(&format!("{name}-pod")).await?;
    let sandbox = sandboxes.world.when_finished(&format!("{name}-sandbox")).await?;
    Ok((pod, sandbox))
}

/// The Jobs whose memory runs out.
const OUT_OF_MEMORY: &str = "oom";
/// How often they are run again where the kubelet did not hear of it: containerd tells it beside the end, and on a busy
/// machine sometimes too late. What no kubelet says, no Job can say.
const TRIES: usize = 3;

/// Whether the kubelet says that the pod of this Job ran out of memory.
async fn is_called_so(sandboxes: &Sandboxes, job: &Job) -> anyhow::Result<bool> {
    let pods = sandboxes.world.pods(job).await?;
    let containers = pods
        .iter()
        .filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref())
        .flatten();
    let mut ends = containers.filter_map(|container| container.state.as_ref()?.terminated.as_ref());
    Ok(ends.any(|end| end.reason.as_deref() == Some("OOMKilled")))
}

#[tokio::test]
async fn a_command_that_ends_by_itself_has_the_same_result_in_a_pod_and_in_a_sandbox() -> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let codes = [0, 1, 2, 3, 42, 125, 126, 127, 128, 130, 137, 139, 143, 255];
        let exits = codes.map(|code| (format!("exit-{code}"), format!("exit {code}")));
        let kinds: [(&str, &str, Make); 8] = [
            ("fault", "sh -c 'kill -SEGV $$$$'; exit $?", plain),
            ("killed-child", "sh -c 'kill -9 $$$$'; exit $?", plain),
            (OUT_OF_MEMORY, "exec tail /dev/zero", little_memory),
            ("absent", "", |job| {
                job.spec.command = vec!["/does/not/exist".to_owned()]
            }),
            ("directory", "", |job| job.spec.command = vec!["/tmp".to_owned()]),
            ("option", "", |job| {
                job.spec.command = vec!["-c".to_owned(), "exit 0".to_owned()]
            }),
            ("nowhere", "true", |job| {
                job.spec.working_dir = Some("/bin/busybox".to_owned())
            }),
            ("by-words", "", |job| {
                job.spec.command = vec!["/bin/sh".to_owned(), "-c".to_owned()];
                job.spec.args = vec!["exit $1".to_owned(), "name".to_owned(), "9".to_owned()];
            }),
        ];
        let all = exits
            .iter()
            .map(|(name, then)| (name.as_str(), then.as_str(), plain as Make));
        let all: Vec<_> = all.chain(kinds).collect();
        for (name, then, make) in &all {
            create_both(&sandboxes, name, then, *make).await?;
        }
        for (name, then, make) in &all {
            let mut ended = both(&sandboxes, name).await?;
            for again in 0..TRIES {
                if *name != OUT_OF_MEMORY || is_called_so(&sandboxes, &ended.0).await? {
                    break;
                }
                let name = format!("{name}-{again}");
                create_both(&sandboxes, &name, then, *make).await?;
                ended = both(&sandboxes, &name).await?;
            }
            let (pod, sandbox) = ended;
            let (pod, in_sandbox) = (result(&pod)?, result(&sandbox)?);
            println!(
                "{name}: {:?}/{} {:?}",
                in_sandbox.outcome, in_sandbox.reason, in_sandbox.exit_code
            );
            let said = |r: &JobResult| (r.outcome, r.reason.clone(), r.exit_code, r.signal);
            ensure!(
                said(pod) == said(in_sandbox),
                "{name}: {pod:?} in a pod, and {in_sandbox:?}"
            );
            ensure!(
                sandboxes.witness.sandboxes(&sandbox) == 1,
                "{name}: more than one sandbox"
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_stopped_command_has_the_same_outcome_and_reason_in_a_pod_and_in_a_sandbox() -> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let cases: [(&str, &str, Make); 6] = [
            ("cancel", "sleep 600", plain),
            ("cancel-trap", "trap 'exit 0' TERM; sleep 600 & wait", plain),
            ("cancel-deaf", "trap '' TERM; sleep 600", plain),
            ("deadline", "sleep 600", |job| {
                job.spec.active_deadline_seconds = Some(DEADLINE)
            }),
            ("deadline-deaf", "trap '' TERM; sleep 600", |job| {
                job.spec.active_deadline_seconds = Some(DEADLINE);
            }),
            ("unstarted", "true", |job| {
                job.spec.image = "localhost:5999/none:1".to_owned();
                job.spec.starting_deadline_seconds = Some(8);
            }),
        ];
        for (name, then, make) in cases {
            create_both(&sandboxes, name, then, make).await?;
        }
        for (name, ..) in cases.iter().filter(|(name, ..)| name.starts_with("cancel")) {
            for backend in ["pod", "sandbox"] {
                let name = format!("{name}-{backend}");
                sandboxes.world.when_started(&name).await?;
                sandboxes.world.cancel(&name).await?;
            }
        }
        for (name, ..) in cases {
            let (pod, sandbox) = both(&sandboxes, name).await?;
            let (pod, in_sandbox) = (result(&pod)?, result(&sandbox)?);
            println!("{name}: {:?}/{}", in_sandbox.outcome, in_sandbox.reason);
            ensure!(
                (pod.outcome, &pod.reason) == (in_sandbox.outcome, &in_sandbox.reason),
                "{name}: {pod:?} in a pod, and {in_sandbox:?}"
            );
            let starts = usize::from(name != "unstarted");
            ensure!(
                sandboxes.witness.starts(&sandbox) == starts,
                "{name}: not {starts} starts"
            );
            sandboxes.when_none_of(&sandbox).await?;
        }
        let late = sandboxes
            .world
            .jobs
            .get("deadline-sandbox")
            .await?
            .status
            .unwrap();
        let accepted = conditions::true_since(&late.conditions, ACCEPTED).context("never accepted")?;
        let took = late
            .finish_time
            .context("no finish time")?
            .0
            .duration_since(accepted);
        expect_kept(DEADLINE, took.as_secs())
    })
    .await
}

#[tokio::test]
async fn a_command_finds_the_same_environment_in_a_pod_and_in_a_sandbox() -> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        let config: ConfigMap = serde_json::from_value(
            json!({"metadata": {"name": "bulk"}, "data": {"GOOD": "1", "1BAD": "2"}}),
        )?;
        Api::namespaced(world.client.clone(), &world.namespace)
            .create(&PostParams::default(), &config)
            .await?;
        create_secret(&sandboxes, "token", json!({"key": "hush"})).await?;
        let make: Make = |job| {
            let script = r#"pwd; printf '%s\n' "$1" "$EARLY" "${X+set}" "${Y+set}" "$P_GOOD$P_1BAD" "$TOKEN""#;
            job.spec.command = ["sh", "-c", script].map(str::to_owned).to_vec();
            job.spec.args = ["name", "$(B)"].map(str::to_owned).to_vec();
            job.spec.working_dir = Some("/made/for it".to_owned());
            job.spec.env = serde_json::from_value(json!([
                {"name": "A", "value": "x"},
                {"name": "B", "value": "$(A)-$(NOPE)-$$(A)-$$"},
                {"name": "EARLY", "value": "$(LATE)"},
                {"name": "LATE", "value": "y"},
                {"name": "X", "valueFrom": {"secretKeyRef": {"name": "nope", "key": "k", "optional": true}}},
                {"name": "Y", "valueFrom": {"configMapKeyRef": {"name": "bulk", "key": "k", "optional": true}}},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key"}}},
            ]))
            .unwrap();
            job.spec.env_from =
                serde_json::from_value(json!([{"prefix": "P_", "configMapRef": {"name": "bulk"}}])).unwrap();
        };
        create_both(&sandboxes, "environment", "", make).await?;
        let (pod, sandbox) = both(&sandboxes, "environment").await?;
        for job in [&pod, &sandbox] {
            expect(job, Outcome::Succeeded, "Completed", Some(0))?;
        }
        let expected = ["/made/for it", "x-$(NOPE)-$(A)-$", "$(LATE)", "", "", "12", "hush"];
        ensure!(printed_by_pod(&sandboxes, &pod).await? == expected);
        let printed = sandboxes.witness.output(&sandbox);
        let printed: Vec<_> = printed.iter().filter(|line| !line.contains("ayatori ")).collect();
        ensure!(printed.windows(expected.len()).any(|lines| lines == expected), "{printed:?}");
        Ok(())
    })
    .await
}

async fn printed_by_pod(sandboxes: &Sandboxes, job: &Job) -> anyhow::Result<Vec<String>> {
    let world = &sandboxes.world;
    let pod = world
        .pods(job)
        .await?
        .first()
        .context("the pod is gone")?
        .name_any();
    let pods = Api::<Pod>::namespaced(world.client.clone(), &world.namespace);
    let logs = pods.logs(&pod, &LogParams::default()).await?;
    Ok(logs.lines().map(str::to_owned).collect())
}

fn secrets(sandboxes: &Sandboxes) -> Api<Secret> {
    Api::namespaced(sandboxes.world.client.clone(), &sandboxes.world.namespace)
}

async fn create_secret(sandboxes: &Sandboxes, name: &str, data: Value) -> anyhow::Result<()> {
    let secret = serde_json::from_value(json!({"metadata": {"name": name}, "stringData": data}))?;
    secrets(sandboxes).create(&PostParams::default(), &secret).await?;
    Ok(())
}

fn message(job: &Job, type_: &str) -> String {
    let status = job.status.as_ref();
    let condition = status.and_then(|status| conditions::find(&status.conditions, type_));
    condition.map(|c| c.message.clone()).unwrap_or_default()
}

#[tokio::test]
async fn what_a_sandbox_cannot_do_for_a_job_is_refused_and_named_before_anything_is_created()
-> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        let secret = json!({"metadata": {"name": "bytes"}, "data": {"key": "//4AQQ=="}});
        secrets(&sandboxes)
            .create(&PostParams::default(), &serde_json::from_value(secret)?)
            .await?;
        let closed = format!("{}-closed", sandboxes.class);
        let parameters = OpenSandboxExecutionParametersSpec {
            allow_secret_env: None,
            allow_image_auth: None,
            ..sandboxes.parameters()
        };
        sandboxes.create_class(&closed, parameters, |_| {}).await?;
        let name = |name: &str| json!({"env": [{"name": name, "value": "exit 0"}]});
        let bytes = json!({"secretKeyRef": {"name": "bytes", "key": "key"}});
        let cases = [
            ("dotted", name("my.var"), "UnsupportedFeature", "my.var"),
            ("dashed", name("my-var"), "UnsupportedFeature", "my-var"),
            ("digit", name("1X"), "UnsupportedFeature", "1X"),
            ("space", name("a b"), "UnsupportedFeature", "a b"),
            (
                "launcher",
                name("BOOTSTRAP_CMD"),
                "ReservedEnvName",
                "BOOTSTRAP_CMD",
            ),
            ("daemon", name("EXECD"), "ReservedEnvName", "EXECD"),
            (
                "shell",
                name("BOOTSTRAP_SHELL"),
                "ReservedEnvName",
                "BOOTSTRAP_SHELL",
            ),
            (
                "script",
                name("EXECD_BOOTSTRAP_PRE_SCRIPT"),
                "ReservedEnvName",
                "EXECD_BOOTSTRAP_PRE_SCRIPT",
            ),
            (
                "bytes",
                json!({"env": [{"name": "X", "valueFrom": bytes}]}),
                "InvalidSecretValue",
                "bytes",
            ),
            (
                "grace",
                json!({"terminationGracePeriodSeconds": 5}),
                "UnsupportedFeature",
                "terminationGracePeriodSeconds",
            ),
            ("image", json!({"command": []}), "CommandRequired", "spec.command"),
            (
                "closed-env",
                json!({"jobClassName": closed, "env": [{"name": "X", "valueFrom": bytes}]}),
                "SecretEnvNotAllowed",
                "bytes",
            ),
            (
                "closed-image",
                json!({"jobClassName": closed, "imagePullSecrets": [{"name": "bytes"}]}),
                "ImageAuthNotAllowed",
                "imagePullSecrets",
            ),
        ];
        for (name, change, ..) in &cases {
            let job = serde_json::to_value(sandboxes.job(name, "exit 5"))?;
            let job = merged(job, &json!({"spec": change}));
            world.create(&serde_json::from_value(job)?).await?;
        }
        for (name, _, reason, words) in cases {
            let job = world.when_says(name, ACCEPTED, reason).await?;
            let said = message(&job, ACCEPTED);
            ensure!(said.contains(words), "{name}: {words} is not in {said:?}");
            ensure!(
                sandboxes.witness.sandboxes(&job) == 0,
                "{name}: a sandbox was created"
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_sandbox_waits_for_its_secret_then_for_the_key_and_is_given_the_value_of_its_start()
-> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        // A class that is not ready: the server does not know this key.
        let api_key = format!("opensandbox-{}", world.namespace);
        let reference = sandboxes.store_api_key(&api_key, "of-nobody").await?;
        let class = format!("{}-later", sandboxes.class);
        let parameters = OpenSandboxExecutionParametersSpec {
            api_key_secret_ref: reference,
            ..sandboxes.parameters()
        };
        sandboxes.create_class(&class, parameters, |_| {}).await?;
        let env = json!([{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key"}}}]);
        let mut job = sandboxes.job("waits", r#"[ "$TOKEN" = second ]"#);
        job.spec.env = serde_json::from_value(env)?;
        job.spec.job_class_name = Some(class);
        world.create(&job).await?;
        world.when_says("waits", ACCEPTED, "SecretNotFound").await?;
        create_secret(&sandboxes, "token", json!({"other": "x"})).await?;
        world.when_says("waits", ACCEPTED, "SecretKeyNotFound").await?;
        store(&sandboxes, "token", "first").await?;
        let job = world.when_says("waits", SCHEDULED, "JobClassNotReady").await?;
        ensure!(
            sandboxes.witness.sandboxes(&job) == 0,
            "created while its class is not ready"
        );

        // What waits is not touched, and nobody remembers the first value.
        store(&sandboxes, "token", "second").await?;
        sandboxes
            .store_api_key(&api_key, &sandboxes.server.api_key)
            .await?;
        let job = world.when_finished("waits").await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!(sandboxes.witness.starts(&job) == 1);
        world.delete("waits").await?;
        world.when_gone("waits").await?;
        sandboxes.forget_api_key(&api_key).await
    })
    .await
}

async fn store(sandboxes: &Sandboxes, secret: &str, value: &str) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({"stringData": {"key": value}}));
    secrets(sandboxes)
        .patch(secret, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_secret_that_goes_while_its_job_waits_is_missed_and_read_as_it_is_when_it_is_back()
-> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        create_secret(&sandboxes, "token", json!({"key": "first"})).await?;
        let mut job = sandboxes.job("waits", r#"[ "$TOKEN" = second ]"#);
        // Its image is missing, so it waits accepted.
        let image = Later::of(&sandboxes);
        job.spec.image = image.name.clone();
        job.spec.env = serde_json::from_value(
            json!([{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key"}}}]),
        )?;
        world.create(&job).await?;
        world.when_says("waits", SCHEDULED, "ImagePullFailed").await?;
        secrets(&sandboxes)
            .delete("token", &DeleteParams::default())
            .await?;
        image.appear(&sandboxes).await?;
        world.when_says("waits", SCHEDULED, "SecretNotFound").await?;
        create_secret(&sandboxes, "token", json!({"key": "second"})).await?;
        let job = world.when_finished("waits").await?;
        image.vanish(&sandboxes).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!(sandboxes.witness.starts(&job) == 1);
        Ok(())
    })
    .await
}

/// An image that is there only later.
struct Later {
    name: String,
}

impl Later {
    fn of(sandboxes: &Sandboxes) -> Self {
        let name = format!("localhost:5999/{}:1", sandboxes.world.namespace);
        Self { name }
    }

    async fn appear(&self, sandboxes: &Sandboxes) -> anyhow::Result<()> {
        let tag = ["tag", IMAGE, &self.name];
        sandboxes.server.docker(&tag).await.map(drop)
    }

    async fn vanish(&self, sandboxes: &Sandboxes) -> anyhow::Result<()> {
        sandboxes.server.docker(&["rmi", &self.name]).await.map(drop)
    }
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_waited_for_and_pulled_with_the_jobs_credentials()
-> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        let registry = &sandboxes.server.registry;
        for (name, password) in [("right", registry.password.as_str()), ("wrong", "guessed")] {
            let auth =
                json!({"auths": {&registry.address: {"username": registry.user, "password": password}}});
            let secret = json!({
                "metadata": {"name": name},
                "type": "kubernetes.io/dockerconfigjson",
                "stringData": {".dockerconfigjson": auth.to_string()},
            });
            secrets(&sandboxes)
                .create(&PostParams::default(), &serde_json::from_value(secret)?)
                .await?;
        }
        let later = Later::of(&sandboxes);
        for (name, image, secret) in [
            ("right", registry.private_image(), Some("right")),
            ("wrong", registry.sealed_image(), Some("wrong")),
            ("none", registry.sealed_image(), None),
            ("later", later.name.clone(), None),
        ] {
            let mut job = sandboxes.job(name, r#"[ "$FROM_REGISTRY" = "$EXPECTED" ]"#);
            let expected = if name == "right" { "yes" } else { "" };
            job.spec.env = serde_json::from_value(json!([{"name": "EXPECTED", "value": expected}]))?;
            job.spec.image = image;
            let pull: Vec<_> = secret.into_iter().map(|name| json!({"name": name})).collect();
            job.spec.image_pull_secrets = serde_json::from_value(json!(pull))?;
            world.create(&job).await?;
        }
        for name in ["wrong", "none", "later"] {
            let job = world.when_says(name, SCHEDULED, "ImagePullFailed").await?;
            ensure!(sandboxes.witness.sandboxes(&job) == 0);
            ensure!(
                !message(&job, SCHEDULED).contains("guessed"),
                "a password is shown"
            );
        }
        later.appear(&sandboxes).await?;
        for name in ["right", "later"] {
            let job = world.when_finished(name).await?;
            expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
            ensure!(sandboxes.witness.starts(&job) == 1);
        }
        later.vanish(&sandboxes).await
    })
    .await
}

#[tokio::test]
async fn jobs_of_one_name_in_two_namespaces_have_a_sandbox_each() -> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        let run = Run {
            client: world.client.clone(),
            namespace: world.namespace.clone(),
        };
        let elsewhere = run
            .create_namespace("elsewhere", BTreeMap::new(), BTreeMap::new())
            .await?;
        let others = Api::<Job>::namespaced(world.client.clone(), &elsewhere);
        let job = sandboxes.job("build", "sleep 5; exit 3");
        let here = world.create(&job).await?;
        let there = others.create(&PostParams::default(), &job).await?;
        world.when_started("build").await?;
        world.delete("build").await?;
        world.when_gone("build").await?;
        sandboxes.when_none_of(&here).await?;
        let finished = await_condition(others, "build", is_finished);
        let there = tokio::time::timeout(PATIENCE, finished)
            .await
            .context("the other one does not finish")??
            .unwrap_or(there);
        expect(&there, Outcome::Failed, "NonZeroExit", Some(3))?;
        for job in [&here, &there] {
            ensure!(sandboxes.witness.sandboxes(job) == 1);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_image_without_a_shell_runs_in_a_pod_and_says_what_it_lacks_in_a_sandbox() -> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let make: Make = |job| {
            job.spec.image = STATIC_IMAGE.to_owned();
            job.spec.command = vec!["/bin/true".to_owned()];
        };
        create_both(&sandboxes, "static", "", make).await?;
        let (pod, sandbox) = both(&sandboxes, "static").await?;
        expect(&pod, Outcome::Succeeded, "Completed", Some(0))?;
        expect(&sandbox, Outcome::Failed, "StartError", None)?;
        let said = result(&sandbox)?.message.clone().unwrap_or_default();
        ensure!(said.contains("/bin/sh"), "{said}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_sandbox_that_somebody_else_ends_is_never_a_success() -> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let (world, server) = (&sandboxes.world, &sandboxes.server);
        let (stopped, lost): (End, End) = (("SandboxStopped", Some(143)), ("ExecutionLost", None));
        let cases: [(&str, &[&str], &[End]); 5] = [
            ("stop", &["stop"], &[stopped]),
            ("kill", &["kill"], &[("NonZeroExit", Some(137))]),
            ("remove", &["rm", "--force"], &[lost]),
            // Whoever looks between the stop and the start sees the stop.
            ("restart", &["restart", "-t", "1"], &[lost, stopped]),
            ("delete", &[], &[lost]),
        ];
        for (name, ..) in cases {
            world.create(&sandboxes.job(name, "sleep 600")).await?;
        }
        for (name, how, ..) in cases {
            let job = world.when_started(name).await?;
            let all = sandboxes.of(&job).await?;
            let sandbox = &all.first().context("no sandbox")?.id;
            if how.is_empty() {
                server.delete(sandbox).await?;
            } else {
                let container = server.container(sandbox).await?;
                server.docker(&[how, &[&container]].concat()).await?;
            }
        }
        for (name, _, ends) in cases {
            let job = world.when_finished(name).await?;
            let told = result(&job)?;
            ensure!(
                told.outcome == Outcome::Failed && ends.contains(&(told.reason.as_str(), told.exit_code)),
                "{name}: {told:?}, and not one of {ends:?}"
            );
            ensure!(sandboxes.witness.sandboxes(&job) == 1, "{name}: run again");
            ensure!(sandboxes.witness.starts(&job) == 1, "{name}: started again");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_sandbox_job_cancelled_at_once_ends_cancelled_and_leaves_nothing() -> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        let names: Vec<_> = (0..12).map(|i| format!("early-{i}")).collect();
        for name in &names {
            world.create(&sandboxes.job(name, "sleep 600")).await?;
            world.cancel(name).await?;
        }
        for name in &names {
            let job = world.when_finished(name).await?;
            ensure!(
                result(&job)?.outcome == Outcome::Cancelled,
                "{name}: {:?}",
                result(&job)?
            );
            ensure!(sandboxes.witness.starts(&job) <= 1);
            world.delete(name).await?;
        }
        for name in &names {
            world.when_gone(name).await?;
        }
        ensure!(sandboxes.of_namespace().await?.is_empty(), "a sandbox is left");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_sandbox_that_ran_before_its_jobs_record_was_lost_is_adopted_and_not_run_again()
-> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        // The request of a Job like it, as the adapter makes it.
        let model = world.create(&sandboxes.job("model", "sleep 2; exit 3")).await?;
        let model = world.when_started(&model.name_any()).await?;
        let shown = sandboxes.of(&model).await?.pop().context("no sandbox")?;
        // A Job as an old backup has it: nothing of it is stored, and yet it ran.
        let mut job = sandboxes.job("restored", "sleep 2; exit 3");
        job.spec.suspend = Some(true);
        let job = world.create(&job).await?;
        world.when_says("restored", ACCEPTED, "Suspended").await?;
        let mut metadata = shown.metadata.clone();
        for (key, value) in [("job-uid", job.uid()), ("job-name", job.metadata.name.clone())] {
            let key = format!("{}/{key}", GROUP);
            ensure!(
                metadata.contains_key(&key),
                "{key} is not in the metadata of sandboxes"
            );
            metadata.insert(key, value.context("a Job without identity")?);
        }
        let request = json!({
            "image": {"uri": job.spec.image},
            "entrypoint": shown.entrypoint,
            "resourceLimits": {},
            "metadata": metadata,
            "timeout": 600,
        });
        let earlier = sandboxes.server.create(&request).await?;
        world
            .patch("restored", json!({"spec": {"suspend": false}}))
            .await?;
        let job = world.when_finished("restored").await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
        let execution = job.status.as_ref().and_then(|s| s.execution.as_ref());
        ensure!(
            execution.and_then(|e| e.id.as_ref()) == Some(&earlier.id),
            "{execution:?}"
        );
        ensure!(sandboxes.witness.sandboxes(&job) == 1, "run again");
        Ok(())
    })
    .await
}

/// How soon a Job that never had a sandbox is cancelled.
const PROMPT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_job_of_a_class_that_is_not_ready_is_cancelled_without_any_sandbox() -> anyhow::Result<()> {
    with_sandboxes(async |sandboxes: Sandboxes| {
        let world = &sandboxes.world;
        let class = format!("{}-away", sandboxes.class);
        let parameters = OpenSandboxExecutionParametersSpec {
            endpoint: "https://127.0.0.1:9".to_owned(),
            ..sandboxes.parameters()
        };
        sandboxes.create_class(&class, parameters, |_| {}).await?;
        let mut job = sandboxes.job("waits", "sleep 600");
        job.spec.job_class_name = Some(class);
        world.create(&job).await?;
        world.when_says("waits", SCHEDULED, "JobClassNotReady").await?;
        world.cancel("waits").await?;
        let began = Instant::now();
        let job = world.when_finished("waits").await?;
        ensure!(began.elapsed() < PROMPT, "it took {:?}", began.elapsed());
        expect(&job, Outcome::Cancelled, "CancelRequested", None)?;
        ensure!(sandboxes.witness.sandboxes(&job) == 0);
        world.delete("waits").await?;
        world.when_gone("waits").await
    })
    .await
}

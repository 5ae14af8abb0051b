//! Which class takes a Job, what a class that changes, fails, goes or comes back means to its Jobs: on the deployed
//! adapter.
//!
//! One test makes classes global defaults for a moment; every other Job of the end-to-end tests chooses its class by
//! name or through its namespace.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use ayatori_core::conditions::{self, ACCEPTED, DELETION_BLOCKED, READY, SCHEDULED};
use ayatori_core::job::{Job, Outcome};
use ayatori_core::job_class::{JobClass, JobClassSpec};
use ayatori_core::names::{GROUP, IS_DEFAULT_CLASS, NAMESPACE_DEFAULT_CLASS};
use ayatori_core::parameters::{KubernetesExecutionParameters, KubernetesExecutionParametersSpec};
use ayatori_e2e::api::{RUN_LABEL, Run};
use ayatori_e2e::replica::kubectl;
use ayatori_e2e::world::{PATIENCE, World, expect, with_world};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::ClusterResourceScope;
use kube::runtime::wait::await_condition;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn classes(world: &World) -> Api<JobClass> {
    Api::all(world.client.clone())
}

fn parameters(world: &World) -> Api<KubernetesExecutionParameters> {
    Api::all(world.client.clone())
}

fn plain() -> KubernetesExecutionParametersSpec {
    KubernetesExecutionParametersSpec::default()
}

/// Parameters that name a RuntimeClass.
fn isolated(runtime_class: &str) -> KubernetesExecutionParametersSpec {
    KubernetesExecutionParametersSpec {
        runtime_class_name: Some(runtime_class.to_owned()),
        ..plain()
    }
}

/// A namespace of the test in which the controllers alone judge, as where there are no admission policies.
async fn namespace(world: &World, name: &str, default_class: Option<&str>) -> anyhow::Result<Api<Job>> {
    let run = Run {
        client: world.client.clone(),
        namespace: world.namespace.clone(),
    };
    let labels = [(format!("{GROUP}/admission"), "controllers-only".to_owned())].into();
    let annotations = default_class.map(|class| (NAMESPACE_DEFAULT_CLASS.to_owned(), class.to_owned()));
    let name = run
        .create_namespace(name, labels, annotations.into_iter().collect::<BTreeMap<_, _>>())
        .await?;
    Ok(Api::namespaced(world.client.clone(), &name))
}

async fn change_namespace(world: &World, name: &str, metadata: Value) -> anyhow::Result<()> {
    Api::<Namespace>::all(world.client.clone())
        .patch(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({ "metadata": metadata })),
        )
        .await?;
    Ok(())
}

async fn create(jobs: &Api<Job>, mut job: Job, class: Option<&str>) -> anyhow::Result<Job> {
    job.spec.job_class_name = class.map(str::to_owned);
    let created = jobs.create(&PostParams::default(), &job).await;
    created.with_context(|| format!("creating Job {}", job.name_any()))
}

/// Returns an object once `holds` says so of it.
async fn when<K>(api: &Api<K>, name: &str, what: &str, holds: impl Fn(&K) -> bool + Send) -> anyhow::Result<K>
where
    K: Resource + Clone + std::fmt::Debug + Send + DeserializeOwned + 'static,
{
    let waiting = await_condition(api.clone(), name, |object: Option<&K>| object.is_some_and(&holds));
    let object = tokio::time::timeout(PATIENCE, waiting)
        .await
        .with_context(|| format!("{name}: not within {} s: {what}", PATIENCE.as_secs()))??;
    object.with_context(|| format!("{name} is gone: {what}"))
}

fn of_job<'a>(job: &'a Job, type_: &str) -> Option<&'a Condition> {
    conditions::find(&job.status.as_ref()?.conditions, type_)
}

fn of_class<'a>(class: &'a JobClass, type_: &str) -> Option<&'a Condition> {
    conditions::find(&class.status.as_ref()?.conditions, type_)
}

/// The message of a Job's condition once it has that reason.
async fn says(jobs: &Api<Job>, name: &str, type_: &str, reason: &str) -> anyhow::Result<String> {
    let holds = |job: &Job| of_job(job, type_).is_some_and(|c| c.reason == reason);
    let job = when(jobs, name, &format!("{type_} says {reason}"), holds).await?;
    Ok(of_job(&job, type_).map(|c| c.message.clone()).unwrap_or_default())
}

/// Returns the class once its condition has that reason.
async fn class_says(world: &World, class: &str, type_: &str, reason: &str) -> anyhow::Result<JobClass> {
    let holds = |class: &JobClass| of_class(class, type_).is_some_and(|c| c.reason == reason);
    when(&classes(world), class, &format!("{type_} says {reason}"), holds).await
}

/// The name of the class that took the Job, once it has succeeded.
async fn taken_by(jobs: &Api<Job>, name: &str) -> anyhow::Result<String> {
    let finished = |job: &Job| of_job(job, conditions::FINISHED).is_some_and(|c| c.status == "True");
    let job = when(jobs, name, "it is finished", finished).await?;
    expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
    Ok(job
        .status
        .and_then(|s| s.resolved_job_class)
        .map(|c| c.name)
        .unwrap_or_default())
}

async fn change_class(world: &World, class: &str, patch: Value) -> anyhow::Result<()> {
    classes(world)
        .patch(class, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .with_context(|| format!("changing class {class}"))?;
    Ok(())
}

fn default_annotation(value: Value) -> Value {
    json!({ "metadata": { "annotations": { IS_DEFAULT_CLASS: value } } })
}

#[tokio::test]
async fn a_job_takes_the_class_it_names_then_its_namespaces_then_the_only_global_default()
-> anyhow::Result<()> {
    with_world(async |world: World| {
        let [old, new, vip] = ["old", "new", "vip"].map(|name| format!("{}-{name}", world.namespace));
        for class in [&old, &new] {
            world.create_class(class, plain(), |_| {}).await?;
        }
        world.create_class(&vip, plain(), for_nobody).await?;
        let outcome = choices(&world, &old, &new, &vip).await;
        // However it ended, nobody else's Job may come to these by default.
        for class in [&old, &new] {
            change_class(&world, class, default_annotation(Value::Null)).await?;
        }
        outcome
    })
    .await
}

fn for_nobody(class: &mut JobClassSpec) {
    class.allowed_namespaces = serde_json::from_value(json!({ "matchLabels": { "team": "nobody" } })).ok();
}

async fn choices(world: &World, old: &str, new: &str, vip: &str) -> anyhow::Result<()> {
    let own = world.class.as_str();
    let annotated = namespace(world, "annotated", Some(own)).await?;
    let broken = namespace(world, "broken", Some("there-is-no-such-class")).await?;
    let closed = namespace(world, "closed", Some(vip)).await?;
    let job = |name: &str| world.job(name, "true");

    create(&world.jobs, job("none"), None).await?;
    says(&world.jobs, "none", ACCEPTED, "NoDefaultJobClass").await?;
    world.cancel("none").await?;
    expect(
        &world.when_finished("none").await?,
        Outcome::Cancelled,
        "CancelRequested",
        None,
    )?;

    for class in [old, new] {
        change_class(world, class, default_annotation(json!("true"))).await?;
    }
    create(&world.jobs, job("two"), None).await?;
    let said = says(&world.jobs, "two", ACCEPTED, "AmbiguousDefaultJobClass").await?;
    ensure!(
        said.contains(old) && said.contains(new),
        "it does not name both: {said}"
    );
    create(&annotated, job("by-namespace"), None).await?;
    create(&annotated, job("by-name"), Some(new)).await?;
    ensure!(taken_by(&annotated, "by-namespace").await? == own);
    ensure!(taken_by(&annotated, "by-name").await? == new);

    change_class(world, old, default_annotation(Value::Null)).await?;
    ensure!(
        taken_by(&world.jobs, "two").await? == new,
        "not what is the only default now"
    );

    create(&broken, job("broken"), None).await?;
    create(&closed, job("closed"), None).await?;
    says(&broken, "broken", ACCEPTED, "JobClassNotFound").await?;
    says(&closed, "closed", ACCEPTED, "NamespaceNotAllowed").await?;
    let name = format!("{}-broken", world.namespace);
    change_namespace(
        world,
        &name,
        json!({ "annotations": { NAMESPACE_DEFAULT_CLASS: own } }),
    )
    .await?;
    ensure!(taken_by(&broken, "broken").await? == own);
    let closed = closed.get("closed").await?;
    ensure!(of_job(&closed, ACCEPTED).is_some_and(|c| c.status == "False"));
    Ok(())
}

#[tokio::test]
async fn what_a_job_waits_for_may_come_in_any_way_and_is_noticed() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let [team, later, bare] = ["team", "later", "bare"].map(|name| format!("{}-{name}", world.namespace));
        let allowed = json!({ "matchLabels": { "team": "a" } });
        world
            .create_class(&team, plain(), |class| {
                class.allowed_namespaces = serde_json::from_value(allowed).ok();
            })
            .await?;
        world.create_class(&bare, plain(), |_| {}).await?;
        force_away(&parameters(&world), &bare).await?;

        let jobs = namespace(&world, "home", None).await?;
        create(&jobs, world.job("team", "true"), Some(&team)).await?;
        create(&jobs, world.job("later", "true"), Some(&later)).await?;
        create(&jobs, world.job("bare", "true"), Some(&bare)).await?;
        says(&jobs, "team", ACCEPTED, "NamespaceNotAllowed").await?;
        says(&jobs, "later", ACCEPTED, "JobClassNotFound").await?;
        let said = says(&jobs, "bare", ACCEPTED, "JobClassNotAccepted").await?;
        ensure!(said.contains("ParametersNotFound"), "{said}");

        let home = format!("{}-home", world.namespace);
        change_namespace(&world, &home, json!({ "labels": { "team": "a" } })).await?;
        world.create_class(&later, plain(), |_| {}).await?;
        create_again(
            &world,
            &parameters(&world),
            KubernetesExecutionParameters::new(&bare, plain()),
        )
        .await?;
        for (name, class) in [("team", &team), ("later", &later), ("bare", &bare)] {
            ensure!(taken_by(&jobs, name).await? == *class);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_class_says_what_is_wrong_with_it_and_its_jobs_repeat_that() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let rows = [
            ("kind", "InvalidParametersReference"),
            ("controller", "UnsupportedController"),
        ];
        for (what, reason) in rows {
            let name = format!("{}-{what}", world.namespace);
            world
                .create_class(&name, plain(), |class| match what {
                    "kind" => class.parameters_ref.kind = "OpenSandboxExecutionParameters".to_owned(),
                    _ => class.controller_name = format!("{GROUP}/no-such-controller"),
                })
                .await?;
            let class = class_says(&world, &name, ACCEPTED, reason).await?;
            ensure!(of_class(&class, READY).is_some_and(|c| c.reason == "NotAccepted"));
            create(&world.jobs, world.job(what, "true"), Some(&name)).await?;
        }
        let said = says(&world.jobs, "kind", ACCEPTED, "JobClassNotAccepted").await?;
        ensure!(said.contains("InvalidParametersReference"), "{said}");
        says(&world.jobs, "controller", ACCEPTED, "UnsupportedController").await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn changes_of_a_class_or_a_namespace_touch_no_job_that_was_accepted() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let class = format!("{}-policy", world.namespace);
        let policy = |cpu: &str| json!({ "defaults": { "requests": { "cpu": "10m" }, "limits": { "cpu": cpu, "memory": "64Mi" } } });
        world
            .create_class(&class, plain(), |spec| {
                spec.resources = serde_json::from_value(policy("0.5")).ok();
                spec.allowed_namespaces = serde_json::from_value(json!({ "matchLabels": { "team": "a" } })).ok();
            })
            .await?;
        let jobs = namespace(&world, "home", None).await?;
        let home = format!("{}-home", world.namespace);
        change_namespace(&world, &home, json!({ "labels": { "team": "a" } })).await?;
        let mut job = world.job("before", "sleep 5");
        job.spec.resources = serde_json::from_value(json!({ "limits": { "memory": "0.0625Gi" } }))?;
        create(&jobs, job, Some(&class)).await?;
        let running = |job: &Job| of_job(job, conditions::STARTED).is_some_and(|c| c.status == "True");
        let before = when(&jobs, "before", "it runs", running).await?;
        let effective = json!({ "requests": { "cpu": "10m" }, "limits": { "cpu": "0.5", "memory": "0.0625Gi" } });
        let recorded = |job: &Job| serde_json::to_value(job.status.as_ref().and_then(|s| s.resources.as_ref()));
        ensure!(recorded(&before)? == effective, "{}", recorded(&before)?);

        change_namespace(&world, &home, json!({ "labels": { "team": null } })).await?;
        let stricter = json!({ "maximum": { "limits": { "cpu": "0.1", "memory": "32Mi" } }, "defaults": { "limits": { "cpu": "0.1", "memory": "32Mi" } } });
        change_class(&world, &class, json!({ "spec": { "resources": stricter } })).await?;
        create(&jobs, world.job("after", "true"), Some(&class)).await?;
        says(&jobs, "after", ACCEPTED, "NamespaceNotAllowed").await?;
        change_namespace(&world, &home, json!({ "labels": { "team": "a" } })).await?;
        ensure!(taken_by(&jobs, "after").await? == class);
        let after = recorded(&jobs.get("after").await?)?;
        ensure!(after["limits"] == json!({ "cpu": "0.1", "memory": "32Mi" }), "{after}");

        ensure!(taken_by(&jobs, "before").await? == class);
        let before = jobs.get("before").await?;
        ensure!(recorded(&before)? == effective, "{}", recorded(&before)?);
        let selector = before.status.and_then(|s| s.correlation).and_then(|c| c.selector).context("a selector")?;
        let used = kubectl(&["get", "pods", "--namespace", &home, "--selector", &selector,
            "--output=jsonpath={.items[*].spec.containers[0].resources}"]).await?;
        let used: Value = serde_json::from_str(&used).with_context(|| used.clone())?;
        // The API server writes 0.0625Gi in its own form.
        let asked = json!({ "requests": { "cpu": "10m", "memory": "64Mi" }, "limits": { "cpu": "500m", "memory": "64Mi" } });
        ensure!(used == asked, "{used}");
        Ok(())
    })
    .await
}

fn runtime_class(name: &str) -> anyhow::Result<RuntimeClass> {
    Ok(serde_json::from_value(
        json!({ "metadata": { "name": name }, "handler": "runc" }),
    )?)
}

#[tokio::test]
async fn a_class_that_is_not_ready_holds_back_new_executions_and_nothing_else() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let runtimes = Api::<RuntimeClass>::all(world.client.clone());
        let runtime = world.namespace.as_str();
        runtimes
            .create(&PostParams::default(), &runtime_class(runtime)?)
            .await?;
        let outcome = unready(&world, &runtimes, runtime).await;
        let _ = runtimes.delete(runtime, &DeleteParams::default()).await;
        outcome
    })
    .await
}

async fn unready(world: &World, runtimes: &Api<RuntimeClass>, runtime: &str) -> anyhow::Result<()> {
    let class = format!("{}-isolated", world.namespace);
    world.create_class(&class, isolated(runtime), |_| {}).await?;
    for (name, then) in [
        ("runs", "sleep 8; exit 3"),
        ("cancelled", "sleep 600"),
        ("deleted", "sleep 600"),
    ] {
        let mut job = world.job(name, then);
        job.spec.termination_grace_period_seconds = Some(1);
        create(&world.jobs, job, Some(&class)).await?;
    }
    for name in ["runs", "cancelled", "deleted"] {
        world.when_started(name).await?;
    }
    runtimes.delete(runtime, &DeleteParams::default()).await?;
    let unready = class_says(world, &class, READY, "RuntimeClassNotFound").await?;
    ensure!(of_class(&unready, ACCEPTED).is_some_and(|c| c.status == "True"));

    create(&world.jobs, world.job("waits", "true"), Some(&class)).await?;
    let said = says(&world.jobs, "waits", SCHEDULED, "JobClassNotReady").await?;
    ensure!(said.contains(runtime), "it does not name what is missing: {said}");
    world.cancel("cancelled").await?;
    world.delete("deleted").await?;
    world.when_gone("deleted").await?;
    let cancelled = world.when_finished("cancelled").await?;
    ensure!(
        cancelled
            .status
            .is_some_and(|s| s.result.is_some_and(|r| r.outcome == Outcome::Cancelled))
    );
    expect(
        &world.when_finished("runs").await?,
        Outcome::Failed,
        "NonZeroExit",
        Some(3),
    )?;
    let waits = world.jobs.get("waits").await?;
    ensure!(world.batch_jobs(&waits).await?.is_empty() && world.starts("waits") == 0);

    runtimes
        .create(&PostParams::default(), &runtime_class(runtime)?)
        .await?;
    ensure!(taken_by(&world.jobs, "waits").await? == class);
    ensure!(world.starts("waits") == 1);
    Ok(())
}

#[tokio::test]
async fn a_class_that_is_being_deleted_finishes_its_jobs_takes_no_new_one_and_then_goes() -> anyhow::Result<()>
{
    with_world(async |world: World| {
        world.create(&world.job("held", "sleep 5; exit 3")).await?;
        world.when_started("held").await?;
        classes(&world)
            .delete(&world.class, &DeleteParams::default())
            .await?;
        let blocked = class_says(&world, &world.class, DELETION_BLOCKED, "JobsRemain").await?;
        let said = of_class(&blocked, DELETION_BLOCKED)
            .map(|c| c.message.clone())
            .unwrap_or_default();
        ensure!(said.contains("held"), "it does not name the Job: {said}");
        parameters(&world)
            .delete(&world.class, &DeleteParams::default())
            .await?;
        world.create(&world.job("late", "true")).await?;
        says(&world.jobs, "late", ACCEPTED, "JobClassTerminating").await?;

        expect(
            &world.when_finished("held").await?,
            Outcome::Failed,
            "NonZeroExit",
            Some(3),
        )?;
        // Neither the Job that is over nor the one that was refused keeps them.
        for gone in [
            tokio::time::timeout(
                PATIENCE,
                await_condition(classes(&world), &world.class, |c: Option<&JobClass>| c.is_none()),
            )
            .await
            .map(|r| r.map(drop)),
            tokio::time::timeout(
                PATIENCE,
                await_condition(
                    parameters(&world),
                    &world.class,
                    |p: Option<&KubernetesExecutionParameters>| p.is_none(),
                ),
            )
            .await
            .map(|r| r.map(drop)),
        ] {
            gone.context("the class or its parameters do not go")??;
        }
        says(&world.jobs, "late", ACCEPTED, "JobClassNotFound").await?;
        ensure!(world.starts("late") == 0);
        Ok(())
    })
    .await
}

/// What a person does who takes off our finalizers.
async fn force_away<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    // Deleted first: no finalizer can be added to what is being deleted, so the adapter cannot put its own back.
    api.delete(name, &DeleteParams::default()).await?;
    let force = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    match api.patch(name, &PatchParams::default(), &force).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => {}
        answer => drop(answer?),
    }
    let gone = await_condition(api.clone(), name, |object: Option<&K>| object.is_none());
    tokio::time::timeout(PATIENCE, gone)
        .await
        .with_context(|| format!("{name} does not go"))??;
    Ok(())
}

async fn create_again<K>(world: &World, api: &Api<K>, mut object: K) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    object
        .labels_mut()
        .insert(RUN_LABEL.to_owned(), world.namespace.clone());
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

#[tokio::test]
async fn what_is_recreated_under_a_name_takes_over_no_job_of_its_predecessor() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let [class, params] = ["class", "params"].map(|name| format!("{}-{name}", world.namespace));
        for name in [&class, &params] {
            world
                .create_class(name, isolated("there-is-no-such-runtime"), |_| {})
                .await?;
            class_says(&world, name, READY, "RuntimeClassNotFound").await?;
        }
        create(&world.jobs, world.job("of-class", "true"), Some(&class)).await?;
        create(&world.jobs, world.job("of-params", "true"), Some(&params)).await?;
        world.create(&world.job("runs", "sleep 6; exit 3")).await?;
        world.when_started("runs").await?;
        for name in ["of-class", "of-params"] {
            says(&world.jobs, name, SCHEDULED, "JobClassNotReady").await?;
        }

        let spec = classes(&world).get(&class).await?.spec;
        force_away(&classes(&world), &class).await?;
        create_again(&world, &classes(&world), JobClass::new(&class, spec)).await?;
        let ready = Patch::Merge(json!({ "spec": { "runtimeClassName": null } }));
        parameters(&world)
            .patch(&class, &PatchParams::default(), &ready)
            .await?;

        force_away(&parameters(&world), &params).await?;
        create_again(
            &world,
            &parameters(&world),
            KubernetesExecutionParameters::new(&params, plain()),
        )
        .await?;

        let spec = classes(&world).get(&world.class).await?.spec;
        force_away(&classes(&world), &world.class).await?;
        force_away(&parameters(&world), &world.class).await?;
        let other = KubernetesExecutionParametersSpec {
            service_account_name: Some("nobody".to_owned()),
            ..plain()
        };
        create_again(
            &world,
            &parameters(&world),
            KubernetesExecutionParameters::new(&world.class, other),
        )
        .await?;
        create_again(&world, &classes(&world), JobClass::new(&world.class, spec)).await?;

        for (name, reason) in [
            ("of-class", "JobClassReplaced"),
            ("of-params", "ParametersReplaced"),
        ] {
            expect(&world.when_finished(name).await?, Outcome::Failed, reason, None)?;
            ensure!(world.starts(name) == 0, "{name} was started");
        }
        let runs = world.when_finished("runs").await?;
        expect(&runs, Outcome::Failed, "NonZeroExit", Some(3))?;
        ensure!(world.starts("runs") == 1);
        // And it is cleaned up by what was recorded.
        world.delete("runs").await?;
        world.when_gone("runs").await?;
        ensure!(world.pods(&runs).await?.is_empty() && world.batch_jobs(&runs).await?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_running_job_may_be_labelled_annotated_applied_again_given_a_time_to_live_and_cancelled()
-> anyhow::Result<()> {
    with_world(async |world: World| {
        let mut job = world.job("busy", "sleep 600");
        let rest = json!({
            "args": ["name", "x"], "workingDir": "/tmp",
            "env": [{ "name": "A", "value": "a" }, { "name": "B", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k", "optional": true } } }],
            "envFrom": [{ "prefix": "P_", "configMapRef": { "name": "c", "optional": true } }],
            "imagePullSecrets": [{ "name": "p" }],
            "resources": { "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "cpu": 1, "memory": "64Mi" } },
            "activeDeadlineSeconds": 600, "startingDeadlineSeconds": 60, "terminationGracePeriodSeconds": 1,
            "ttlSecondsAfterFinished": 600, "suspend": false, "cancelRequested": false,
            "managedBy": "execution.ayatori.ddupan.top/job-controller",
        });
        let whole = ayatori_e2e::api::merged(serde_json::to_value(&job.spec)?, &rest);
        job.spec = serde_json::from_value(whole)?;
        let file = tempfile::NamedTempFile::new()?;
        serde_json::to_writer(file.as_file(), &job)?;
        let path = file.path().display().to_string();
        let manifest = ["--namespace", world.namespace.as_str(), "--filename", path.as_str()];
        let apply = [&["apply"], &manifest[..]].concat();
        kubectl(&apply).await?;
        world.when_started("busy").await?;

        for change in [
            &["annotate", "ajob", "busy", "example.com/note=x"][..],
            &["label", "ajob", "busy", "example.com/label=x"],
            &["patch", "ajob", "busy", "--type=merge", "--patch", r#"{"spec":{"ttlSecondsAfterFinished":900}}"#],
            &["patch", "ajob", "busy", "--type=json", "--patch", r#"[{"op":"add","path":"/metadata/finalizers/-","value":"example.com/hold"}]"#],
        ] {
            kubectl(&[change, &["--namespace", &world.namespace]].concat()).await?;
        }
        let again = kubectl(&apply).await?;
        ensure!(again.contains("configured") || again.contains("unchanged"), "{again}");
        ensure!(world.starts("busy") == 1);
        world.cancel("busy").await?;
        let job = world.when_finished("busy").await?;
        ensure!(job.status.is_some_and(|s| s.result.is_some_and(|r| r.outcome == Outcome::Cancelled)));
        // Somebody else's finalizer is theirs to take off.
        world.delete("busy").await?;
        let alone = |job: &Job| job.finalizers() == ["example.com/hold"];
        when(&world.jobs, "busy", "only the other finalizer is left", alone).await?;
        world.patch("busy", json!({ "metadata": { "finalizers": null } })).await?;
        world.when_gone("busy").await
    })
    .await
}

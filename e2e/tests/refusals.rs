//! When the cluster refuses the adapter something, the Job says so, nothing is lost, and it goes on by itself
//! as soon as it may.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ayatori_core::conditions::{self, ACCEPTED, SCHEDULED, STARTED};
use ayatori_core::job::{Job, Outcome};
use ayatori_core::names::GROUP;
use ayatori_e2e::api;
use ayatori_e2e::world::{World, expect, with_world};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Event, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// What grants the adapter its rights.
const ROLE: &str = "ayatori-kubernetes-adapter";
/// Who writes the adapter's Events.
const REPORTER: &str = "kubernetes-adapter";

#[tokio::test]
async fn what_ended_is_kept_for_as_long_as_its_result_cannot_be_stored() -> anyhow::Result<()> {
    with_world(async |world: World| {
        world.create(&world.job("unheard", "sleep 6; exit 3")).await?;
        let job = world.when_started("unheard").await?;
        deny_status_writes(&world).await?;
        let outcome = async {
            world
                .eventually("its process has ended", async || {
                    let pods = world.pods(&job).await?;
                    Ok(pods
                        .iter()
                        .any(|p| p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Failed")))
                })
                .await?;
            let missing = world.eventually("its pod or batch Job is gone", async || {
                Ok(world.pods(&job).await?.is_empty() || world.batch_jobs(&job).await?.is_empty())
            });
            let kept = tokio::time::timeout(Duration::from_secs(6), missing)
                .await
                .is_err();
            ensure!(kept, "the evidence went before the result was stored");
            Ok(())
        }
        .await;
        allow_status_writes(&world).await?;
        outcome?;
        expect(
            &world.when_finished("unheard").await?,
            Outcome::Failed,
            "NonZeroExit",
            Some(3),
        )?;
        ensure!(
            world.starts("unheard") == 1,
            "it started {} times",
            world.starts("unheard")
        );
        Ok(())
    })
    .await
}

/// Has the API server refuse every write to the status of a Job in the test's namespace.
async fn deny_status_writes(world: &World) -> anyhow::Result<()> {
    let name = &world.namespace;
    let labels = json!({ api::RUN_LABEL: name });
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["jobs/status"],
            }] },
            "validations": [{ "expression": "false", "message": "not now" }],
        },
    }))?;
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": labels },
        "spec": {
            "policyName": name, "validationActions": ["Deny"],
            "matchResources": { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } } },
        },
    }))?;
    let create = PostParams::default();
    Api::all(world.client.clone()).create(&create, &policy).await?;
    Api::all(world.client.clone()).create(&create, &binding).await?;
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let touch = Patch::Merge(json!({ "status": { "observedGeneration": 99 } }));
    world
        .eventually("the policy is in force", async || {
            Ok(world.jobs.patch_status("unheard", &dry, &touch).await.is_err())
        })
        .await
}

async fn allow_status_writes(world: &World) -> anyhow::Result<()> {
    let (name, delete) = (&world.namespace, DeleteParams::default());
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(world.client.clone());
    bindings.delete(name, &delete).await?;
    Api::<ValidatingAdmissionPolicy>::all(world.client.clone())
        .delete(name, &delete)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_and_everything_goes_on_once_it_is_back() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let secrets = Api::<Secret>::namespaced(world.client.clone(), &world.namespace);
        let secret =
            serde_json::from_value(json!({ "metadata": { "name": "s" }, "stringData": { "k": "v" } }))?;
        secrets.create(&PostParams::default(), &secret).await?;
        world
            .create(&world.job("earlier", "trap '' TERM; sleep 600"))
            .await?;
        world.when_started("earlier").await?;

        let taken = Rights::take(
            &world.client,
            &[("batch", "jobs", "create"), ("", "secrets", "get")],
        )
        .await?;
        let outcome = while_rights_are_missing(&world).await;
        taken.give_back().await?;
        outcome?;
        let given_back = Instant::now();
        for name in ["plain", "secret"] {
            expect(
                &world.when_finished(name).await?,
                Outcome::Succeeded,
                "Completed",
                Some(0),
            )?;
        }
        println!(
            "all went on {:.1} s after the rights were back",
            given_back.elapsed().as_secs_f64()
        );
        Ok(())
    })
    .await
}

async fn while_rights_are_missing(world: &World) -> anyhow::Result<()> {
    world.create(&world.job("plain", "true")).await?;
    let mut secret = world.job("secret", "[ \"$K\" = v ]");
    secret.spec.env = serde_json::from_value(
        json!([{ "name": "K", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }]),
    )?;
    world.create(&secret).await?;
    let plain = world.when_says("plain", SCHEDULED, "BackendForbidden").await?;
    let told = message(&plain, SCHEDULED)?;
    ensure!(told.contains("create jobs.batch"), "it says: {told}");
    let secret = world.when_says("secret", ACCEPTED, "ReferenceForbidden").await?;
    let told = message(&secret, ACCEPTED)?;
    ensure!(told.contains("get secrets"), "it says: {told}");
    // What needs neither right is not held up.
    world
        .patch("earlier", json!({ "spec": { "cancelRequested": true } }))
        .await?;
    world.delete("earlier").await?;
    world.when_gone("earlier").await
}

fn message(job: &Job, type_: &str) -> anyhow::Result<String> {
    let conditions = job
        .status
        .as_ref()
        .map(|s| s.conditions.as_slice())
        .unwrap_or_default();
    Ok(conditions::find(conditions, type_)
        .context("no such condition")?
        .message
        .clone())
}

/// Rights that the adapter is without for a while.
struct Rights {
    roles: Api<ClusterRole>,
    before: Vec<PolicyRule>,
}

impl Rights {
    async fn take(client: &Client, rights: &[(&str, &str, &str)]) -> anyhow::Result<Self> {
        let roles = Api::<ClusterRole>::all(client.clone());
        let before = roles.get(ROLE).await?.rules.context("the role has no rules")?;
        let mut rules = before.clone();
        for (group, resource, verb) in rights {
            let grants = |rule: &&mut PolicyRule| {
                let holds =
                    |all: &Option<Vec<String>>, one: &str| all.iter().flatten().any(|each| each == one);
                holds(&rule.api_groups, group) && holds(&rule.resources, resource)
            };
            for rule in rules.iter_mut().filter(grants) {
                rule.verbs.retain(|granted| granted != verb);
            }
        }
        rules.retain(|rule| !rule.verbs.is_empty());
        ensure!(
            rules != before,
            "the adapter has none of these rights: {rights:?}"
        );
        let taken = Self { roles, before };
        taken.set(&rules).await?;
        Ok(taken)
    }

    async fn give_back(&self) -> anyhow::Result<()> {
        self.set(&self.before).await
    }

    async fn set(&self, rules: &[PolicyRule]) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({ "rules": rules }));
        self.roles.patch(ROLE, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

/// How long Jobs that cannot start are watched: long enough for the kubelet to change its words a few times.
const FLOOD: Duration = Duration::from_secs(25);

#[tokio::test]
async fn of_jobs_that_cannot_start_a_few_events_are_told_and_not_a_flood() -> anyhow::Result<()> {
    with_world(async |world: World| {
        let names: Vec<_> = (0..10).map(|i| format!("nowhere-{i}")).collect();
        for name in &names {
            let mut job = world.job(name, "true");
            job.spec.image = "localhost:5999/none:1".to_owned();
            world.create(&job).await?;
        }
        for name in &names {
            world.when_says(name, STARTED, "ImagePullFailed").await?;
        }
        let events = Api::<Event>::namespaced(world.client.clone(), &world.namespace);
        let too_many = world.eventually("a Job has more than 10 Events of ours", async || {
            let all = events.list(&ListParams::default()).await?;
            let of = |name: &String| {
                all.items
                    .iter()
                    .filter(|e| is_ours(e) && e.involved_object.name.as_ref() == Some(name))
                    .count()
            };
            Ok(names.iter().any(|name| of(name) > 10))
        });
        ensure!(
            tokio::time::timeout(FLOOD, too_many).await.is_err(),
            "they are told of too often"
        );
        let told = events.list(&ListParams::default()).await?;
        let told: Vec<_> = told.items.iter().filter(|e| is_ours(e)).collect();
        println!(
            "{} Events about {} Jobs in {} s",
            told.len(),
            names.len(),
            FLOOD.as_secs()
        );
        ensure!(told.len() >= names.len(), "too little is told: {told:?}");
        Ok(())
    })
    .await
}

fn is_ours(event: &Event) -> bool {
    let group = event.involved_object.api_version.as_deref().unwrap_or_default();
    event.reporting_component.as_deref() == Some(REPORTER) && group.starts_with(GROUP)
}

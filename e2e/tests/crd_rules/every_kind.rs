//! What all kinds have in common: names, strictness, first status, documentation and columns.

use anyhow::{Context, ensure};
use ayatori_core::crd;
use ayatori_core::job::{Job, JobState};
use ayatori_core::job_class::JobClass;
use ayatori_core::names::IS_DEFAULT_CLASS;
use ayatori_e2e::api::{
    Run, Verdict::Accepted, Verdict::Refused, eventually, in_namespace, merged, resource,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::dry_run;
use crate::samples::{STRANGER, finished, job_spec, opensandbox_spec, parameters_ref};

#[tokio::test]
async fn names_are_bounded_where_they_become_label_values() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let class = json!({ "controllerName": STRANGER, "parametersRef": parameters_ref() });
        for (crd, spec) in [(crd::job(), job_spec()), (crd::job_class(), class)] {
            for (length, verdict) in [
                (63, Accepted),
                (64, Refused("has at most 63 characters")),
                (253, Refused("has at most 63 characters")),
            ] {
                let mut object = run.object(&crd, "x", spec.clone());
                object.metadata.name = Some("a".repeat(length));
                let answer = run.objects(&crd).create(&dry_run(), &object).await;
                let problem = verdict.problem(&answer);
                ensure!(
                    problem.is_none(),
                    "{} with a name of {length}: {problem:?}",
                    crd.spec.names.kind
                );
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn unknown_fields_are_refused_under_strict_validation() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let class = json!({ "controllerName": STRANGER, "parametersRef": parameters_ref() });
        let rows = [
            (crd::job(), job_spec(), json!({ "imagePolicy": "x" }), "spec.imagePolicy"),
            (crd::job(), job_spec(), json!({ "env": [{ "name": "A", "values": "x" }] }), "spec.env[0].values"),
            (crd::job_class(), class, json!({ "allowedNamespace": {} }), "spec.allowedNamespace"),
            (crd::kubernetes_parameters(), json!({}), json!({ "podSecurityContext": { "runAsRoot": true } }), "spec.podSecurityContext.runAsRoot"),
            (crd::opensandbox_parameters(), opensandbox_spec(), json!({ "extensions": {} }), "spec.extensions"),
        ];
        for (crd, spec, unknown, field) in rows {
            let object = run.object(&crd, "strict", merged(spec, &unknown));
            let request = http::Request::post(collection(&crd, &run.namespace) + "?dryRun=All&fieldValidation=Strict")
                .header("content-type", "application/json")
                .body(serde_json::to_vec(&object)?)?;
            let answer = run.client.request::<DynamicObject>(request).await;
            let refused = matches!(&answer, Err(kube::Error::Api(status)) if status.message.contains(&format!("unknown field \"{field}\"")));
            ensure!(refused, "{field}: {answer:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn a_new_object_says_that_it_waits_for_its_controller() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let jobs: Api<Job> = Api::namespaced(run.client.clone(), &run.namespace);
        run.objects(&crd::job()).create(&PostParams::default(), &run.object(&crd::job(), "new", job_spec())).await?;
        let job = jobs.get("new").await?;
        let status = job.status.context("a new Job has no status")?;
        ensure!(status.state == Some(JobState::Waiting), "{status:?}");
        ensure!(matches!(&status.conditions[..], [accepted] if accepted.type_ == "Accepted" && accepted.status == "Unknown"
            && accepted.reason == "Pending" && accepted.message.starts_with("waiting for controller")), "{status:?}");

        let spec = json!({ "controllerName": STRANGER, "parametersRef": parameters_ref() });
        let class = run.objects(&crd::job_class()).create(&PostParams::default(), &run.object(&crd::job_class(), "new", spec)).await?;
        let class = Api::<JobClass>::all(run.client.clone()).get(&class.name_any()).await?;
        let conditions = class.status.context("a new JobClass has no status")?.conditions;
        let words: Vec<_> = conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str())).collect();
        ensure!(words == [("Accepted", "Unknown", "Pending"), ("Ready", "Unknown", "Pending")], "{words:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn kubectl_explain_has_words_for_every_field() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        eventually("the OpenAPI document describes every field", async || {
            Ok(undocumented(&run).await?.is_empty())
        })
        .await
        .with_context(|| "see `kubectl explain`")?;
        Ok(())
    })
    .await
}

/// Paths of fields in the served OpenAPI document that no words describe.
async fn undocumented(run: &Run) -> anyhow::Result<Vec<String>> {
    fn walk(path: &str, schema: &Value, missing: &mut Vec<String>) {
        if let Some(items) = schema.get("items") {
            walk(&format!("{path}[]"), items, missing);
        }
        for (name, property) in schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let path = format!("{path}.{name}");
            if property
                .get("description")
                .and_then(Value::as_str)
                .is_none_or(str::is_empty)
            {
                missing.push(path.clone());
            }
            walk(&path, property, missing);
        }
    }
    let request =
        http::Request::get("/openapi/v3/apis/execution.ayatori.ddupan.top/v1alpha1").body(Vec::new())?;
    let document: Value = run.client.request(request).await?;
    let mut missing = Vec::new();
    for crd in crd::all() {
        let kind = &crd.spec.names.kind;
        let path = format!("/components/schemas/top.ddupan.ayatori.execution.v1alpha1.{kind}");
        match document.pointer(&path) {
            Some(schema) => walk(kind, schema, &mut missing),
            None => missing.push(kind.clone()),
        }
    }
    Ok(missing)
}

#[tokio::test]
async fn kubectl_get_shows_the_columns_people_look_for() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let jobs = run.objects(&crd::job());
        for name in ["ended", "waiting"] {
            jobs.create(&PostParams::default(), &run.object(&crd::job(), name, job_spec()))
                .await?;
        }
        let ended = Patch::Merge(json!({ "status": finished() }));
        jobs.patch_status("ended", &PatchParams::default(), &ended)
            .await?;
        let request = http::Request::get(collection(&crd::job(), &run.namespace))
            .header("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
            .body(Vec::new())?;
        let table: Value = run.client.request(request).await?;
        let columns: Vec<_> = table["columnDefinitions"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|column| {
                (
                    column["name"].as_str().unwrap_or_default(),
                    column["priority"].as_i64().unwrap_or_default(),
                )
            })
            .collect();
        let expected = [
            ("Name", 0),
            ("Class", 0),
            ("State", 0),
            ("Exit", 0),
            ("Age", 0),
            ("Waiting", 1),
            ("Reason", 1),
            ("Controller", 1),
            ("Execution", 1),
        ];
        ensure!(columns == expected, "{columns:?}");
        let cells = |row: usize| {
            table["rows"][row]["cells"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        };
        let (ended, waiting) = (cells(0), cells(1));
        let all_but_age = [&ended[..4], &ended[5..]].concat();
        ensure!(
            json!(all_but_age)
                == json!([
                    "ended",
                    "c",
                    "Cancelled",
                    0,
                    null,
                    "CancelRequested",
                    STRANGER,
                    "e1"
                ]),
            "{ended:?}"
        );
        ensure!(waiting.get(5) == Some(&json!("Pending")), "{waiting:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn kubectl_get_shows_which_class_is_the_global_default() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let crd = crd::job_class();
        let spec = json!({ "controllerName": STRANGER, "parametersRef": parameters_ref() });
        let mut class = run.object(&crd, "default", spec);
        // Any other value makes no default, and is not hidden either.
        class
            .annotations_mut()
            .insert(IS_DEFAULT_CLASS.to_owned(), "not now".to_owned());
        let class = run.objects(&crd).create(&PostParams::default(), &class).await?;
        let request = http::Request::get(format!("{}/{}", collection(&crd, ""), class.name_any()))
            .header("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
            .body(Vec::new())?;
        let table: Value = run.client.request(request).await?;
        let columns = table["columnDefinitions"].as_array().context("no columns")?;
        let place = columns
            .iter()
            .position(|column| column["name"] == "Default" && column["priority"] == 0);
        let cell = &table["rows"][0]["cells"][place.context("no column Default")?];
        ensure!(cell == "not now", "{table}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn jobs_can_be_selected_by_class_and_state() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let jobs = run.objects(&crd::job());
        let of_class = |name: &str, class: &str| {
            run.object(
                &crd::job(),
                name,
                merged(job_spec(), &json!({ "jobClassName": class })),
            )
        };
        jobs.create(&PostParams::default(), &of_class("one", "a")).await?;
        jobs.create(&PostParams::default(), &of_class("two", "b")).await?;
        let selected = async |fields: &str| -> anyhow::Result<Vec<String>> {
            let list = jobs
                .list(&kube::api::ListParams::default().fields(fields))
                .await?;
            Ok(list.iter().map(ResourceExt::name_any).collect())
        };
        ensure!(selected("spec.jobClassName=b").await? == ["two"]);
        ensure!(selected("status.state=Waiting,spec.jobClassName=a").await? == ["one"]);
        ensure!(selected("status.state=Running").await?.is_empty());
        // By the class that took it, whether or not it named one.
        ensure!(selected("status.resolvedJobClass.name=c").await?.is_empty());
        let ended = Patch::Merge(json!({ "status": finished() }));
        jobs.patch_status("two", &PatchParams::default(), &ended).await?;
        ensure!(selected("status.resolvedJobClass.name=c").await? == ["two"]);
        Ok(())
    })
    .await
}

/// Path of the objects of a definition.
fn collection(crd: &CustomResourceDefinition, namespace: &str) -> String {
    let resource = resource(crd);
    let place = if crd.spec.scope == "Namespaced" {
        format!("namespaces/{namespace}/")
    } else {
        String::new()
    };
    format!("/apis/{}/{place}{}", resource.api_version, resource.plural)
}

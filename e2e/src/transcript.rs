//! What a person can read afterwards of a test: `target/e2e/<test>.md` holds the objects as they were created
//! and as they were at the end. Secrets are never asked for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use ayatori_core::job::Job;
use ayatori_core::job_class::JobClass;
use ayatori_core::parameters::{KubernetesExecutionParameters, OpenSandboxExecutionParameters};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::RUN_LABEL;

/// How many objects of a kind are shown: whoever reads this wants to see how it went, not count.
const SHOWN: usize = 8;

/// What one test has done to Jobs so far.
#[derive(Debug, Default)]
pub struct Transcript {
    jobs: Mutex<BTreeMap<String, Story>>,
}

#[derive(Debug)]
struct Story {
    created: Job,
    /// As last seen by the test, should it be gone at the end.
    seen: Job,
}

impl Transcript {
    /// Notes a Job as it was created. Of one that is created again under its name, the last one counts.
    pub fn created(&self, job: &Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.len() < SHOWN || jobs.contains_key(&job.name_any()) {
            let story = Story {
                created: job.clone(),
                seen: job.clone(),
            };
            jobs.insert(job.name_any(), story);
        }
    }

    /// Notes a Job as it was seen.
    pub fn seen(&self, job: &Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(story) = jobs.get_mut(&job.name_any()) {
            story.seen = job.clone();
        }
    }

    /// Notes a Job that was waited for in vain, however many are noted already.
    pub fn missed(&self, job: &Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let story = jobs.entry(job.name_any()).or_insert_with(|| Story {
            created: job.clone(),
            seen: job.clone(),
        });
        story.seen = job.clone();
    }

    /// Everything there is to read about the test, as Markdown.
    pub async fn render(&self, client: &Client, namespace: &str, outcome: &anyhow::Result<()>) -> String {
        let mut text = format!("# {}\n\n", sentence(&test_name()));
        let _ = match outcome {
            Ok(()) => writeln!(text, "Passed. Namespace `{namespace}`.\n"),
            Err(error) => writeln!(text, "**Failed**: {error:#}. Namespace `{namespace}`.\n"),
        };
        let jobs = list(Api::<Job>::namespaced(client.clone(), namespace), "").await;
        for (name, story) in self.jobs.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            section(
                &mut text,
                &format!("Job {name}, as it was created"),
                &story.created,
            );
            match jobs.iter().find(|job| job.name_any() == *name) {
                Some(job) => section(&mut text, &format!("Job {name} at the end"), job),
                None => section(
                    &mut text,
                    &format!("Job {name} is gone at the end; as it was last seen"),
                    &story.seen,
                ),
            }
        }
        let ours = format!("{RUN_LABEL}={namespace}");
        sections(
            &mut text,
            &list(Api::<JobClass>::all(client.clone()), &ours).await,
        );
        let parameters = Api::<KubernetesExecutionParameters>::all(client.clone());
        sections(&mut text, &list(parameters, &ours).await);
        let parameters = Api::<OpenSandboxExecutionParameters>::all(client.clone());
        sections(&mut text, &list(parameters, &ours).await);
        sections(
            &mut text,
            &list(Api::<BatchJob>::namespaced(client.clone(), namespace), "").await,
        );
        sections(
            &mut text,
            &list(Api::<Pod>::namespaced(client.clone(), namespace), "").await,
        );
        text
    }
}

/// Keeps a transcript where a person finds it.
pub fn keep(text: &str) -> anyhow::Result<()> {
    let folder = folder();
    std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let file = folder.join(format!("{}.md", test_name()));
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/e2e")
}

/// The test harness names the thread of a test after it.
fn test_name() -> String {
    let name = std::thread::current().name().unwrap_or("unnamed").to_owned();
    name.replace("::", "-")
}

fn sentence(name: &str) -> String {
    name.replace('_', " ")
}

/// What cannot be listed is left out: a transcript fails no test.
async fn list<K>(api: Api<K>, labels: &str) -> Vec<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = ListParams::default().labels(labels);
    api.list(&params).await.map(|list| list.items).unwrap_or_default()
}

fn sections<K: Resource<DynamicType = ()> + Clone + Serialize>(text: &mut String, objects: &[K]) {
    for object in objects.iter().take(SHOWN) {
        let title = format!("{} {} at the end", K::kind(&()), object.name_any());
        section(text, &title, object);
    }
    let more = objects.len().saturating_sub(SHOWN);
    if more > 0 {
        let _ = writeln!(text, "… and {more} more of kind {}.\n", K::kind(&()));
    }
}

fn section<K: Resource<DynamicType = ()> + Clone + Serialize>(text: &mut String, title: &str, object: &K) {
    let mut object = object.clone();
    object.meta_mut().managed_fields = None;
    let yaml = serde_yaml::to_string(&object).unwrap_or_default();
    let _ = writeln!(text, "## {title}\n\n```yaml\n{yaml}```\n");
}

//! Jobs in numbers, written where the API server keeps them. One of them lived a real life up to there; the others are
//! copies under names and UIDs of their own, with their batch Jobs and pods.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_core::job::Job;
use ayatori_core::names::GROUP;
use ayatori_kubernetes_adapter::name::batch_job;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::Client;
use kube::api::ListParams;
use serde_json::Value;

use crate::arena::Arena;
use crate::chronicle::Moment;
use crate::node;
use crate::peer::{HERD, Peer, Work};
use crate::store::{Entry, Store};

/// How long everybody may take to write the last things about the one that is copied.
const REST: Duration = Duration::from_secs(4);
/// How long after its end a Job of the herd stays, if nothing else is said.
pub(crate) const LONG: i32 = 86_400;

/// What a Job of the herd is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Its command runs, for ever.
    Live,
    /// It has ended, and stays for a long time.
    Finished,
}

/// The one that is copied.
pub(crate) struct Prototype {
    /// Our Job, where it is one; its batch Job, its pod: each as the API server shows it.
    objects: Vec<Original>,
    name: String,
    /// When it finished.
    pub(crate) finished: Option<Timestamp>,
}

struct Original {
    /// Where objects of its kind are kept.
    place: &'static str,
    name: String,
    uid: String,
    text: String,
}

impl Prototype {
    /// Lets a Job live until it is like this, and takes it for a prototype. The adapter must run, if it is ours.
    pub(crate) async fn of(arena: &Arena<'_>, peer: Peer, condition: Condition) -> anyhow::Result<Self> {
        let work = match condition {
            Condition::Live => Work::FOREVER,
            Condition::Finished => Work {
                ttl_seconds: Some(LONG),
                ..Work::NOTHING
            },
        };
        let name = format!("proto-{}-{condition:?}", peer.name()).to_lowercase();
        let watching = arena.chronicle.watch(&arena.client, HERD);
        peer.create(&arena.client, HERD, &name, &work).await?;
        let moment = match condition {
            Condition::Live => peer.start(),
            Condition::Finished => Moment::BatchJobEnds,
        };
        arena.chronicle.when(peer, &name, 1, moment).await?;
        tokio::time::sleep(REST).await;
        drop(watching);
        let prototype = Self::read(&arena.client, peer, &name).await?;
        for original in &prototype.objects {
            let key = format!("{}/{HERD}/{}", original.place, original.name);
            arena.store.remove(&key).await?;
        }
        Ok(prototype)
    }

    async fn read(client: &Client, peer: Peer, name: &str) -> anyhow::Result<Self> {
        let label = match peer {
            Peer::Native => format!("batch.kubernetes.io/job-name={name}"),
            Peer::Ours => format!("{}={name}", ayatori_core::names::JOB_NAME_LABEL),
        };
        let of_it = ListParams::default().labels(&label);
        let mut objects = Vec::new();
        let mut finished = None;
        if peer == Peer::Ours {
            let job = Api::<Job>::namespaced(client.clone(), HERD).get(name).await?;
            let status = job.status.clone().unwrap_or_default();
            finished = status.finish_time.map(|time| time.0);
            let released = status.execution.and_then(|e| e.release_time);
            ensure!(
                finished.is_none() || released.is_some(),
                "the Job to copy has not been released"
            );
            objects.push(Original::of(&format!("{GROUP}/v1alpha1"), "Job", OURS, &job)?);
        }
        let batch = Api::<BatchJob>::namespaced(client.clone(), HERD)
            .list(&of_it)
            .await?;
        let batch = batch.items.first().context("the Job to copy has no batch Job")?;
        if peer == Peer::Native {
            let conditions = batch.status.iter().flat_map(|s| s.conditions.iter().flatten());
            let complete = conditions.into_iter().find(|c| c.type_ == "Complete");
            finished = complete.and_then(|c| Some(c.last_transition_time.as_ref()?.0));
        }
        objects.push(Original::of("batch/v1", "Job", "jobs", batch)?);
        let pods = Api::<Pod>::namespaced(client.clone(), HERD).list(&of_it).await?;
        let pod = pods.items.first().context("the Job to copy has no pod")?;
        objects.push(Original::of("v1", "Pod", "pods", pod)?);
        Ok(Self {
            objects,
            name: name.to_owned(),
            finished,
        })
    }

    /// The copies of these numbers. `ttl` says how many seconds after its end each stays.
    pub(crate) fn copies(
        &self,
        prefix: &str,
        numbers: Range<u32>,
        ttl: impl Fn(u32) -> i32,
    ) -> impl Iterator<Item = Entry> {
        numbers.flat_map(move |number| self.copy(&format!("{prefix}-{number:06}"), ttl(number)))
    }

    fn copy(&self, name: &str, ttl: i32) -> Vec<Entry> {
        let uids: Vec<String> = self.objects.iter().map(|_| uid()).collect();
        let mut renamed = vec![(node::SCHEDULED.to_owned(), node::CORDONED.to_owned())];
        // The name of our batch Job is not only the Job's.
        if let (Some(job), Some(uid)) = (self.objects.first().filter(|o| o.place == OURS), uids.first()) {
            renamed.push((batch_job(&self.name, &job.uid), batch_job(name, uid)));
        }
        renamed.push((self.name.clone(), name.to_owned()));
        let time = |seconds: i32| format!(r#""ttlSecondsAfterFinished":{seconds}"#);
        renamed.push((time(LONG), time(ttl)));
        renamed.extend(self.objects.iter().map(|o| o.uid.clone()).zip(uids));
        let rename = |text: &str| {
            renamed
                .iter()
                .fold(text.to_owned(), |text, (old, new)| text.replace(old, new))
        };
        let entry = |original: &Original| Entry {
            key: format!("{}/{HERD}/{}", original.place, rename(&original.name)),
            object: rename(&original.text),
        };
        // Whoever sees a Job finds what it is about.
        self.objects.iter().rev().map(entry).collect()
    }
}

/// Where our Jobs are kept.
const OURS: &str = "execution.ayatori.ddupan.top/jobs";

impl Original {
    fn of(
        api_version: &str,
        kind: &str,
        place: &'static str,
        object: &(impl kube::ResourceExt + serde::Serialize),
    ) -> anyhow::Result<Self> {
        let mut value = serde_json::to_value(object)?;
        let fields = value.as_object_mut().context("an object that is none")?;
        fields.insert("apiVersion".to_owned(), api_version.into());
        fields.insert("kind".to_owned(), kind.into());
        if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        Ok(Self {
            place,
            name: object.name_any(),
            uid: object.uid().context("an object without UID")?,
            text: value.to_string(),
        })
    }
}

fn uid() -> String {
    let (high, low) = (fastrand::u64(..), fastrand::u64(..));
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    )
}

/// Removes every Job of a namespace with all that was made for it, as if none had ever been there.
pub(crate) async fn forget(store: &Store, namespace: &str) -> anyhow::Result<()> {
    for place in [OURS, "jobs", "pods", "events"] {
        store.remove(&format!("{place}/{namespace}/")).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_another_job_with_its_own_batch_job_and_pod() {
        let batch = batch_job("proto", "uid-of-job");
        let original = |place, name: String, uid: &str, text: String| Original {
            place,
            name,
            uid: uid.to_owned(),
            text,
        };
        let prototype = Prototype {
            objects: vec![
                original(
                    OURS,
                    "proto".into(),
                    "uid-of-job",
                    r#"{"ttlSecondsAfterFinished":86400}"#.into(),
                ),
                original(
                    "jobs",
                    batch.clone(),
                    "uid-of-batch",
                    r#""proto" "uid-of-job""#.into(),
                ),
                original(
                    "pods",
                    format!("{batch}-x7k"),
                    "uid-of-pod",
                    r#""bench-node-1""#.into(),
                ),
            ],
            name: "proto".to_owned(),
            finished: None,
        };
        let copies: Vec<_> = prototype.copies("live", 7..8, |_| 5).collect();
        let [pod, batch, job] = copies.as_slice() else {
            panic!("{} objects", copies.len());
        };
        assert_eq!(job.key, "execution.ayatori.ddupan.top/jobs/herd/live-000007");
        assert_eq!(job.object, r#"{"ttlSecondsAfterFinished":5}"#);
        assert!(batch.key.starts_with("jobs/herd/live-000007-"), "{}", batch.key);
        assert!(batch.object.starts_with(r#""live-000007""#), "{}", batch.object);
        assert!(!batch.object.contains("uid-of"), "{}", batch.object);
        assert_eq!(
            pod.key,
            format!("pods/herd/{}-x7k", batch.key.trim_start_matches("jobs/herd/"))
        );
        assert_eq!(pod.object, r#""bench-node-2""#);
    }
}

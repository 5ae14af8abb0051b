//! Who is measured: the native Job controller, and ours. Both are given the same work.

use std::collections::BTreeMap;

use ayatori_core::conditions::{self, FINISHED, STARTED};
use ayatori_core::job::{Job, JobSpec};
use ayatori_core::names::JOB_NAME_LABEL;
use k8s_openapi::api::batch::v1::{Job as BatchJob, JobSpec as BatchJobSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};

use crate::chronicle::Moment;

/// The class of all our Jobs on pods.
pub(crate) const CLASS: &str = "bench";
/// The image that no node pulls.
const IMAGE: &str = "bench.example/work:1";
/// The command that no node shows while it runs.
pub(crate) const UNSEEN: &str = "unseen";
/// What the Job controller says in a label of its pods.
const BATCH_JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// One of the two that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Peer {
    /// Jobs of `batch/v1`, and kube-controller-manager alone.
    Native,
    /// Our Jobs, through the Kubernetes adapter.
    Ours,
}

/// What a command does, as simulated nodes and sandboxes understand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// It ends after so many milliseconds.
    For(u32),
    /// It never ends.
    Forever,
    /// It ends so soon that a node never shows it while it runs.
    Unseen,
}

/// What a Job does.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// What its command does.
    pub(crate) runs: Runs,
    /// How long it stays after its end.
    pub(crate) ttl_seconds: Option<i32>,
    /// Its class; of native Jobs, nothing.
    pub(crate) class: &'static str,
}

impl Work {
    /// It ends as soon as it has begun.
    pub(crate) const NOTHING: Work = Work {
        runs: Runs::For(0),
        ttl_seconds: None,
        class: CLASS,
    };
    /// It never ends.
    pub(crate) const FOREVER: Work = Work {
        runs: Runs::Forever,
        ..Work::NOTHING
    };

    /// It ends after so many milliseconds.
    pub(crate) fn of_milliseconds(time: u32) -> Work {
        Work {
            runs: Runs::For(time),
            ..Work::NOTHING
        }
    }

    fn command(&self) -> Vec<String> {
        vec![match self.runs {
            Runs::For(time) => format!("runs={time}"),
            Runs::Forever => "runs=forever".to_owned(),
            Runs::Unseen => UNSEEN.to_owned(),
        }]
    }
}

impl Peer {
    pub(crate) const BOTH: [Peer; 2] = [Peer::Native, Peer::Ours];

    /// Where the Jobs of each are, and those of the herd.
    pub(crate) const NAMESPACES: [&str; 4] = ["native", "ours", HERD, "elsewhere"];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Native => "native",
            Peer::Ours => "ours",
        }
    }

    /// Where its Jobs are created.
    pub(crate) fn namespace(self) -> &'static str {
        self.name()
    }

    /// What its callers take for the start of a command.
    pub(crate) fn start(self) -> Moment {
        match self {
            Peer::Native => Moment::PodRuns,
            Peer::Ours => Moment::Started,
        }
    }

    /// What they take for its end.
    pub(crate) fn end(self) -> Moment {
        match self {
            Peer::Native => Moment::BatchJobEnds,
            Peer::Ours => Moment::Finished,
        }
    }

    /// Asks for one execution.
    pub(crate) async fn create(
        self,
        client: &Client,
        namespace: &str,
        name: &str,
        work: &Work,
    ) -> kube::Result<()> {
        let post = PostParams::default();
        match self {
            Peer::Native => {
                let jobs = Api::<BatchJob>::namespaced(client.clone(), namespace);
                jobs.create(&post, &native(name, work)).await.map(drop)
            }
            Peer::Ours => {
                let jobs = Api::<Job>::namespaced(client.clone(), namespace);
                jobs.create(&post, &ours(name, work)).await.map(drop)
            }
        }
    }
}

/// The namespace of what is not created one by one.
pub(crate) const HERD: &str = "herd";

/// Our Job of this work.
pub(crate) fn ours(name: &str, work: &Work) -> Job {
    Job::new(
        name,
        JobSpec {
            job_class_name: Some(work.class.to_owned()),
            image: IMAGE.to_owned(),
            command: work.command(),
            ttl_seconds_after_finished: work.ttl_seconds,
            ..JobSpec::default()
        },
    )
}

/// The native Job of this work.
fn native(name: &str, work: &Work) -> BatchJob {
    let container = Container {
        name: "job".to_owned(),
        image: Some(IMAGE.to_owned()),
        command: Some(work.command()),
        ..Container::default()
    };
    BatchJob {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(BatchJobSpec {
            backoff_limit: Some(0),
            ttl_seconds_after_finished: work.ttl_seconds,
            template: PodTemplateSpec {
                metadata: None,
                spec: Some(PodSpec {
                    containers: vec![container],
                    restart_policy: Some("Never".to_owned()),
                    enable_service_links: Some(false),
                    ..PodSpec::default()
                }),
            },
            ..BatchJobSpec::default()
        }),
        status: None,
    }
}

/// Whose a batch Job or a pod is, and what its caller called it.
pub(crate) fn subject(object: &impl ResourceExt) -> Option<(Peer, String)> {
    let labels: &BTreeMap<String, String> = object.labels();
    match (labels.get(JOB_NAME_LABEL), labels.get(BATCH_JOB_NAME)) {
        (Some(name), _) => Some((Peer::Ours, name.clone())),
        (None, Some(name)) => Some((Peer::Native, name.clone())),
        (None, None) => None,
    }
}

/// What our Job shows.
pub(crate) fn moments(job: &Job) -> impl Iterator<Item = Moment> {
    let status = job.status.as_ref();
    let says = move |type_| status.is_some_and(|s| conditions::is_true(&s.conditions, type_));
    let shown = [
        (says(STARTED), Moment::Started),
        (says(FINISHED), Moment::Finished),
        (job.metadata.deletion_timestamp.is_some(), Moment::Leaves),
    ];
    shown
        .into_iter()
        .filter_map(|(shows, moment)| shows.then_some(moment))
}

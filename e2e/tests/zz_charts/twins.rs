//! The same Job in a pod and in a sandbox.

use anyhow::{Context, ensure};
use ayatori_core::job::{Job, Outcome};
use ayatori_e2e::api::eventually;
use ayatori_e2e::sandboxes::Sandboxes;
use ayatori_e2e::world::{World, expect, result};
use futures::future::try_join_all;
use kube::ResourceExt;

/// Where a Job of the test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backend {
    Pod,
    Sandbox,
}

const BACKENDS: [Backend; 2] = [Backend::Pod, Backend::Sandbox];

/// The same Job on both backends.
pub(crate) struct Twins<'a> {
    pub(crate) sandboxes: &'a Sandboxes,
    pub(crate) name: &'static str,
}

impl Twins<'_> {
    fn name(&self, backend: Backend) -> String {
        match backend {
            Backend::Pod => format!("{}-pod", self.name),
            Backend::Sandbox => format!("{}-sandbox", self.name),
        }
    }

    pub(crate) fn world(&self) -> &World {
        &self.sandboxes.world
    }

    /// Creates both, which do this and then say that they have.
    pub(crate) async fn create(&self, then: &str, code: i32) -> anyhow::Result<()> {
        for backend in BACKENDS {
            let name = self.name(backend);
            let job = match backend {
                Backend::Pod => {
                    let said = self.world().job(&over(&name), "true").spec.command;
                    let say = said.last().context("no command")?;
                    self.world().job(&name, &format!("{then}; {say}; exit {code}"))
                }
                Backend::Sandbox => self
                    .sandboxes
                    .job(&name, &format!("{then}; echo {}; exit {code}", over(&name))),
            };
            self.world().create(&job).await?;
        }
        Ok(())
    }

    pub(crate) async fn when_started(&self) -> anyhow::Result<()> {
        for backend in BACKENDS {
            self.world().when_started(&self.name(backend)).await?;
        }
        Ok(())
    }

    /// Returns once both commands are over, whoever has noticed.
    pub(crate) async fn when_over(&self) -> anyhow::Result<()> {
        for backend in BACKENDS {
            let name = self.name(backend);
            let job = self.world().jobs.get(&name).await?;
            eventually(&format!("the command of {name} is over"), async || {
                Ok(match backend {
                    Backend::Pod => self.world().starts(&over(&name)) == 1,
                    Backend::Sandbox => self.sandboxes.witness.output(&job).contains(&over(&name)),
                })
            })
            .await?;
        }
        Ok(())
    }

    /// Both have this result, of one execution.
    pub(crate) async fn ended(
        &self,
        outcome: Outcome,
        reason: &str,
        code: Option<i32>,
    ) -> anyhow::Result<()> {
        for backend in BACKENDS {
            let name = self.name(backend);
            let job = self.world().when_finished(&name).await?;
            expect(&job, outcome, reason, code)?;
            let starts = self.starts(&job, backend);
            ensure!(starts == 1, "{name} started {starts} times");
        }
        Ok(())
    }

    /// What has lived through everything stops when it is asked to.
    pub(crate) async fn obey(&self) -> anyhow::Result<()> {
        for backend in BACKENDS {
            let name = self.name(backend);
            self.world().cancel(&name).await?;
            let job = self.world().when_finished(&name).await?;
            let result = result(&job)?;
            ensure!(result.outcome == Outcome::Cancelled, "{name}: {result:?}");
            let starts = self.starts(&job, backend);
            ensure!(starts == 1, "{name} started {starts} times");
        }
        Ok(())
    }

    /// Of these, their executions, which went with them.
    pub(crate) async fn ran_once_and_left_no_sandbox(&self, gone: &[Job]) -> anyhow::Result<()> {
        for (job, backend) in gone.iter().zip(BACKENDS) {
            let (name, starts) = (job.name_any(), self.starts(job, backend));
            ensure!(starts == 1, "{name} started {starts} times");
            let sandboxes = self.sandboxes.of(job).await?;
            ensure!(sandboxes.is_empty(), "{name} left sandboxes: {}", sandboxes.len());
        }
        Ok(())
    }

    fn starts(&self, job: &Job, backend: Backend) -> usize {
        match backend {
            Backend::Pod => self
                .world()
                .starts(&job.name_any())
                .try_into()
                .unwrap_or(usize::MAX),
            Backend::Sandbox => self.sandboxes.witness.starts(job),
        }
    }

    /// Both are still there.
    pub(crate) async fn jobs(&self) -> anyhow::Result<Vec<Job>> {
        let jobs = BACKENDS.map(|backend| self.name(backend));
        let get = jobs.iter().map(|name| self.world().jobs.get(name));
        Ok(try_join_all(get).await?)
    }
}

fn over(name: &str) -> String {
    format!("{name}-is-over")
}

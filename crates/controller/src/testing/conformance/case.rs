//! A Job of the suite, in whose status is stored what the loop would store.

use anyhow::{Context, bail};
use ayatori_core::conditions::{self, ACCEPTED, FINISHED, SCHEDULED, STARTED, Statement, whole_seconds};
use ayatori_core::execution::{End, ExecutionName, Why};
use ayatori_core::job::{
    Attempt, BackendIdentity, Job, JobResult, JobState, JobStatus, Outcome, ResolvedJobClass, Stop,
    StopReason,
};
use ayatori_core::lifecycle::{self, Facts, Question, Settings, Step};
use ayatori_core::ownership::{self, Orphanhood, Ownership, Selection};
use ayatori_core::resources::{ResourceQuantities, ResourceRequirements};
use ayatori_core::stage::{Accepted, Attempted, Closed, Departing, Recorded, Stage};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A Job, at some stage.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) job: Job,
}

/// The same Job as its deletion finds it.
pub(super) struct Leaving {
    job: Job,
    identity: BackendIdentity,
    selection: Selection<'static>,
}

impl Case {
    pub(super) fn accepted(&self) -> anyhow::Result<Accepted<'_>> {
        Ok(match Stage::of(&self.job) {
            Stage::Accepted(accepted) => accepted,
            Stage::Attempted(attempted) => attempted.accepted(),
            Stage::Recorded(recorded) => recorded.accepted(),
            Stage::Finished(Some(closed)) => closed.accepted(),
            Stage::Fresh | Stage::Finished(None) => bail!("the suite's Job was not accepted"),
        })
    }

    pub(super) fn attempted(&self) -> anyhow::Result<Attempted<'_>> {
        match Stage::of(&self.job) {
            Stage::Attempted(attempted) => Ok(attempted),
            stage => bail!("the suite's Job should have an attempt: {stage:?}"),
        }
    }

    pub(super) fn recorded(&self) -> anyhow::Result<Recorded<'_>> {
        match Stage::of(&self.job) {
            Stage::Recorded(recorded) => Ok(recorded),
            stage => bail!("the suite's Job should be recorded: {stage:?}"),
        }
    }

    pub(super) fn closed(&self) -> anyhow::Result<Closed<'_>> {
        match Stage::of(&self.job) {
            Stage::Finished(Some(closed)) => Ok(closed),
            stage => bail!("the suite's Job should be finished: {stage:?}"),
        }
    }

    /// The Job as it is once somebody has deleted it.
    pub(super) fn leaving(&self, identity: BackendIdentity) -> Leaving {
        let mut job = self.job.clone();
        job.metadata.deletion_timestamp = Some(whole_seconds(Timestamp::now()));
        // To its own controller no Job is another's.
        job.spec.managed_by = None;
        let gone = Orphanhood::NoClass(Why::new("JobClassNotFound", "the suite needs no class"));
        Leaving {
            job,
            identity,
            selection: Selection::Nothing(gone),
        }
    }

    // --------------------------------------------------------------------------------- what the loop stores

    pub(super) fn accept(&mut self, class: ResolvedJobClass) {
        let amounts = |cpu: &str, memory: &str| ResourceQuantities {
            cpu: Some(Quantity(cpu.to_owned())),
            memory: Some(Quantity(memory.to_owned())),
        };
        let status = self.status();
        status.resolved_job_class = Some(class);
        status.resources = Some(ResourceRequirements {
            requests: Some(amounts("10m", "16Mi")),
            limits: Some(amounts("500m", "64Mi")),
        });
        self.say(Statement::holds(ACCEPTED, "Accepted", "accepted by the suite"));
    }

    pub(super) fn attempt(&mut self, attempt: Attempt, backend: BackendIdentity) {
        let execution = self.status().execution.get_or_insert_default();
        execution.attempt = Some(attempt);
        execution.backend = Some(backend);
    }

    pub(super) fn record(&mut self, name: ExecutionName, backend: BackendIdentity) {
        let execution = self.status().execution.get_or_insert_default();
        execution.id = Some(name.id);
        execution.uid = name.uid;
        execution.backend = Some(backend);
        execution.start_requested_time = Some(now());
        self.say(Statement::holds(SCHEDULED, "Scheduled", "recorded by the suite"));
    }

    pub(super) fn request_stop(&mut self) {
        let execution = self.status().execution.get_or_insert_default();
        execution.stop.get_or_insert(Stop {
            reason: StopReason::CancelRequested,
            requested_time: now(),
            delivered_time: None,
        });
    }

    pub(super) fn deliver_stop(&mut self, at: Timestamp) {
        if let Some(stop) = self.status().execution.as_mut().and_then(|e| e.stop.as_mut()) {
            stop.delivered_time.get_or_insert(whole_seconds(at));
        }
    }

    pub(super) fn start(&mut self, end: &End) {
        if end.started() {
            let at = end.started_at.unwrap_or_else(Timestamp::now);
            self.status().start_time.get_or_insert(whole_seconds(at));
            self.say(Statement::holds(STARTED, "Started", "the command was started"));
        }
    }

    pub(super) fn finish(&mut self, result: JobResult) {
        let reason = format!("{:?}", result.outcome);
        let state = match result.outcome {
            Outcome::Succeeded => JobState::Succeeded,
            Outcome::Failed => JobState::Failed,
            Outcome::Cancelled => JobState::Cancelled,
        };
        let status = self.status();
        status.state = Some(state);
        status.result = Some(result);
        status.finish_time = Some(now());
        self.say(Statement::holds(FINISHED, reason, "finished by the suite"));
    }

    pub(super) fn release(&mut self) {
        let execution = self.status().execution.get_or_insert_default();
        execution.release_time = Some(now());
    }

    fn status(&mut self) -> &mut JobStatus {
        self.job.status.get_or_insert_default()
    }

    fn say(&mut self, statement: Statement) {
        let generation = self.job.metadata.generation;
        let conditions = &mut self.status().conditions;
        conditions::state(conditions, statement, generation, Timestamp::now());
    }
}

impl Leaving {
    /// The proof that nothing of the Job may start any more. Only the lifecycle gives it.
    pub(super) fn departing(&self) -> anyhow::Result<Departing<'_>> {
        let class = self
            .job
            .status
            .as_ref()
            .and_then(|s| s.resolved_job_class.as_ref());
        let controller = class.map(|c| c.controller_name.as_str());
        let controller = controller.context("the suite's Job was not accepted")?;
        let Ownership::Owned(owned) = ownership::of_job(&self.job, controller, &self.selection, []) else {
            bail!("the suite does not own its Job");
        };
        let facts = Facts {
            backend: Some(self.identity.clone()),
            ..Facts::default()
        };
        match lifecycle::decide(&owned, &facts, &Settings::default(), Timestamp::now()) {
            Step::Ask(Question::Remains(departing)) => Ok(departing),
            step => bail!("a deleted Job of which nothing runs should depart, not {step:?}"),
        }
    }
}

fn now() -> Time {
    whole_seconds(Timestamp::now())
}

//! The adapter: for each question one look at the machine, for each effect one request to it.

use ayatori_controller::backend::{Backend, Parameters};
use ayatori_core::admission::Admissible;
use ayatori_core::conditions::PENDING;
use ayatori_core::execution::{
    Answer, End, ExecutionName, Exit, Gone, Prospect, Protocol, Remains, Running, State, Stopper, Submission,
    Waiting, Why,
};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::job_class::JobClass;
use ayatori_core::parameters::ParametersStatus;
use ayatori_core::stage::{Accepted, Attempted, Closed, Departing, Recorded};
use futures::Stream;
use kube::runtime::reflector::ObjectRef;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::{Execution, Life, Machine};

/// How processes are run: the kind that this adapter's classes refer to. It has nothing to say yet.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, Serialize, Deserialize)]
#[kube(
    group = "example.com",
    version = "v1alpha1",
    kind = "ProcessParameters",
    plural = "processparameters",
    status = "ParametersStatus",
    derive = "Default"
)]
pub(crate) struct ProcessParametersSpec {}

impl Parameters for ProcessParameters {
    fn status(&self) -> Option<&ParametersStatus> {
        self.status.as_ref()
    }
}

/// The backend of processes.
pub(crate) struct ProcessBackend {
    machine: Machine,
}

impl ProcessBackend {
    /// The backend of this machine's processes.
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine }
    }
}

impl Backend for ProcessBackend {
    type Parameters = ProcessParameters;
    type Slot = ();

    fn controller_name(&self) -> &str {
        "example.com/processes"
    }

    fn protocol(&self, _: &ProcessParameters) -> Protocol {
        Protocol::Hold
    }

    fn identity(&self, parameters: &ProcessParameters) -> BackendIdentity {
        BackendIdentity {
            parameters_uid: parameters.uid().unwrap_or_default(),
            endpoint_hash: "this-machine".to_owned(),
        }
    }

    fn validate(&self, _: &ProcessParameters) -> Result<(), Why> {
        Ok(())
    }

    async fn probe(&self, _: &JobClass, _: &ProcessParameters) -> Result<Why, Why> {
        self.machine.ping()?;
        Ok(Why::new("BackendReachable", "processes can be started"))
    }

    async fn admit(&self, job: &Job, _: &Admissible, _: &ProcessParameters) -> Result<Result<(), Why>, Why> {
        Ok(if job.spec.command.is_empty() {
            let message = "there is no image to take a command from; set spec.command";
            Err(Why::new("CommandRequired", message))
        } else {
            Ok(())
        })
    }

    async fn survey(&self, job: Accepted<'_>, _: Option<&ProcessParameters>) -> Result<Prospect, Why> {
        let found = self.machine.of_job(job.job())?;
        Ok(match found.first() {
            Some(execution) => Prospect::Found(name_of(execution), identity_of(job)),
            None => Prospect::Absent,
        })
    }

    fn reserve(&self, _: Accepted<'_>, _: &ProcessParameters) -> Result<(), Why> {
        Ok(())
    }

    async fn prepare(&self, job: Accepted<'_>, _: &ProcessParameters) -> Answer {
        answer(self.machine.hold(job.job()))
    }

    async fn start(&self, job: Recorded<'_>, _: Option<&ProcessParameters>) -> Answer {
        match self.machine.start(job.id()) {
            Ok(true) => Answer::Done,
            // The recorded one is gone. It is lost then, and never replaced.
            Ok(false) => Answer::Stale,
            Err(why) => Answer::Unavailable(why),
        }
    }

    async fn observe(&self, job: Recorded<'_>, _: Option<&ProcessParameters>) -> State {
        match self.machine.get(job.id()) {
            Ok(Some(execution)) => state_of(&execution),
            Ok(None) => State::Gone(Gone {
                // That it is not in the table does not prove that its process is gone.
                proven: false,
                why: Why::new(
                    "ExecutionNotFound",
                    "the machine does not know the process any more",
                ),
            }),
            Err(why) => State::Unobservable(Why::new("BackendUnreachable", why.message)),
        }
    }

    async fn renew(&self, _: Recorded<'_>, _: Option<&ProcessParameters>) -> Answer {
        Answer::Done
    }

    async fn stop(&self, job: Recorded<'_>, _: Option<&ProcessParameters>) -> Answer {
        answer(self.machine.stop(job.id()))
    }

    async fn release(&self, job: Closed<'_>, _: Option<&ProcessParameters>) -> Answer {
        answer(self.machine.forget(job.job()))
    }

    async fn remains(&self, job: Departing<'_>, _: Option<&ProcessParameters>) -> Result<Remains, Why> {
        let left = self.machine.of_job(job.job())?;
        let ids: Vec<_> = left.into_iter().map(|execution| execution.id).collect();
        Ok(if ids.is_empty() {
            Remains::Nothing
        } else {
            Remains::Something(format!("processes {}", ids.join(", ")))
        })
    }

    async fn remove(&self, job: Departing<'_>, _: Option<&ProcessParameters>) -> Answer {
        answer(self.machine.forget(job.job()))
    }

    fn changes(&self) -> impl Stream<Item = ObjectRef<Job>> + Send + 'static {
        self.machine.changes()
    }

    // Only where creating is starting are these two ever called.

    async fn submit(&self, _: Attempted<'_>, _: &ProcessParameters) -> Submission {
        Submission::Refused(holds())
    }

    async fn discard(&self, _: Attempted<'_>, _: &ExecutionName, _: Option<&ProcessParameters>) -> Answer {
        Answer::Rejected(holds())
    }
}

fn state_of(execution: &Execution) -> State {
    let stopping_since = execution.stopping_since;
    let ended = |exit, started_at, finished_at| {
        State::Ended(End {
            exit,
            started_at,
            finished_at,
            stopped_at: stopping_since,
            stopped_by: stopping_since.map_or(Stopper::Nobody, |_| Stopper::Deadline),
            node: None,
            note: None,
        })
    };
    match &execution.life {
        Life::Held => State::Held,
        Life::Starting => State::Waiting(Waiting {
            why: Why::new(PENDING, "the process is being started"),
            node: None,
            stopping_since,
        }),
        Life::Running { since } => State::Running(Running {
            started_at: Some(*since),
            node: None,
            stopping_since,
            renew_at: None,
        }),
        Life::Ended { since, at, code } => {
            let (code, out_of_memory) = (*code, false);
            ended(Exit::Code { code, out_of_memory }, Some(*since), Some(*at))
        }
        Life::Unstartable { message } => {
            let why = Why::new("StartError", message.clone());
            ended(Exit::Unstartable(why), None, None)
        }
        Life::NeverStarted => ended(Exit::NeverStarted, None, None),
    }
}

fn answer(result: Result<(), Why>) -> Answer {
    result.map_or_else(Answer::Unavailable, |()| Answer::Done)
}

fn name_of(execution: &Execution) -> ExecutionName {
    ExecutionName {
        id: execution.id.clone(),
        uid: None,
    }
}

fn identity_of(job: Accepted<'_>) -> BackendIdentity {
    BackendIdentity {
        parameters_uid: job.class().parameters_ref.uid.clone(),
        endpoint_hash: "this-machine".to_owned(),
    }
}

fn holds() -> Why {
    Why::new("UnsupportedFeature", "processes are held before they are started")
}

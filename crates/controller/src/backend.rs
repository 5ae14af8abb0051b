//! The trait that makes an adapter: how one kind of backend holds, starts, shows and ends executions.
//!
//! A backend does what it is told and says what it sees; it never decides. What it is handed proves the order:
//! [`Recorded`] exists only after the record was stored, [`Closed`] only after the result was.
//!
//! Expectations of an implementation:
//! - Every call returns in bounded time: no call without a timeout, no sleeping. One hung endpoint must not
//!   slow another class.
//! - Every call may come twice, from two processes, decided on old copies of the Job.
//! - [`Backend::observe`] and [`Backend::survey`] may answer from a cache, but absence must be proven: where a
//!   cache shows nothing, an answer that depends on it needs a live read.
//! - Text from the backend is data from outside: cut, cleaned, free of secrets before it goes into a [`Why`].
//!
//! Parameters are handed over as they are now, of the object whose UID was recorded when the Job was accepted;
//! `None` if that object is gone. A question or effect on a recorded execution comes only while
//! [`Backend::identity`] of them is what was recorded with it, or where the backend is this cluster.

use std::future::Future;

use ayatori_core::admission::Admissible;
use ayatori_core::execution::{Answer, ExecutionName, Prospect, Protocol, Remains, State, Submission, Why};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::job_class::JobClass;
use ayatori_core::stage::{Accepted, Attempted, Closed, Departing, Recorded};
use futures::Stream;
use kube::Resource;
use kube::core::ClusterResourceScope;
use kube::runtime::reflector::ObjectRef;

use crate::status_writer::Writable;

/// A backend of Job executions, with the parameters kind its classes refer to.
pub trait Backend: Send + Sync + 'static {
    /// The parameters kind this adapter owns.
    type Parameters: Parameters;
    /// The right to send one create request. It is given back when dropped.
    type Slot: Send + Sync;

    /// The controller name of this adapter's classes.
    fn controller_name(&self) -> &str;

    /// How executions of a class with these parameters are started. A backend with [`Protocol::SingleShot`] also sets
    /// [`Settings::margin`]: how far clocks may differ, and how long its lists may miss what was created, together.
    ///
    /// [`Settings::margin`]: ayatori_core::lifecycle::Settings::margin
    fn protocol(&self, parameters: &Self::Parameters) -> Protocol;

    /// Which server executions of a class with these parameters live on. An empty `endpoint_hash` says that it is this
    /// cluster: there is no other, so nothing is ever compared.
    fn identity(&self, parameters: &Self::Parameters) -> BackendIdentity;

    /// What is wrong with the parameters themselves, if anything: the class is then not Accepted.
    fn validate(&self, parameters: &Self::Parameters) -> Result<(), Why>;

    /// Whether new executions of the class can be created now: the reason for Ready, or why not.
    fn probe(
        &self,
        class: &JobClass,
        parameters: &Self::Parameters,
    ) -> impl Future<Output = Result<Why, Why>> + Send;

    /// Whether the backend can honour everything the Job asks for when executed like this, and everything the Job
    /// refers to exists. The outer error says that this could not be found out at present.
    fn admit(
        &self,
        job: &Job,
        admissible: &Admissible,
        parameters: &Self::Parameters,
    ) -> impl Future<Output = Result<Result<(), Why>, Why>> + Send;

    /// What exists for a Job of which nothing is recorded. With [`Protocol::SingleShot`] also for one whose create
    /// request was never answered, or whose recorded execution has not come up by its fence: what it says must then
    /// be what the server shows after the call began, and what comes up later must be among the
    /// [`Backend::changes`].
    fn survey(
        &self,
        job: Accepted<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> impl Future<Output = Result<Prospect, Why>> + Send;

    /// The right to create an execution now, or what there is to wait for: as many are being created as may be, or
    /// the backend has asked to be left alone. The Job is among the [`Backend::changes`] when it is its turn. Ordinary
    /// waiting has the reason [`PENDING`](ayatori_core::conditions::PENDING), and is said only when it lasts.
    fn reserve(&self, job: Accepted<'_>, parameters: &Self::Parameters) -> Result<Self::Slot, Why>;

    /// Creates an execution that is held before its command ([`Protocol::Hold`] only).
    fn prepare(
        &self,
        job: Accepted<'_>,
        parameters: &Self::Parameters,
    ) -> impl Future<Output = Answer> + Send;

    /// Sends the one create request of the attempt, without any retry at any layer ([`Protocol::SingleShot`] only).
    ///
    /// Nothing may be sent after `send_before`, looked at right before sending; what is created must refuse to start
    /// the command after `start_before`. [`Submission::Refused`] is for what certainly came to nothing.
    fn submit(
        &self,
        job: Attempted<'_>,
        parameters: &Self::Parameters,
    ) -> impl Future<Output = Submission> + Send;

    /// Deletes an execution that came up after its fence ([`Protocol::SingleShot`] only).
    fn discard(
        &self,
        job: Attempted<'_>,
        name: &ExecutionName,
        parameters: Option<&Self::Parameters>,
    ) -> impl Future<Output = Answer> + Send;

    /// Lets the recorded execution start its command, and no other.
    fn start(
        &self,
        job: Recorded<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> impl Future<Output = Answer> + Send;

    /// What became of the recorded execution. While it waits or runs it is not asked again by a timer: what changes has
    /// to be among the [`Backend::changes`].
    fn observe(
        &self,
        job: Recorded<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> impl Future<Output = State> + Send;

    /// Puts off the expiry of the recorded execution, where [`Running::renew_at`] asks for it.
    ///
    /// [`Running::renew_at`]: ayatori_core::execution::Running::renew_at
    fn renew(
        &self,
        job: Recorded<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> impl Future<Output = Answer> + Send;

    /// Ends the recorded execution's process; the reason is stored in the Job already.
    fn stop(
        &self,
        job: Recorded<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> impl Future<Output = Answer> + Send;

    /// Gives back what the ended execution holds. Nothing of it may be able to start afterwards.
    fn release(
        &self,
        job: Closed<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> impl Future<Output = Answer> + Send;

    /// What is left of a Job that is being deleted.
    fn remains(
        &self,
        job: Departing<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> impl Future<Output = Result<Remains, Why>> + Send;

    /// Deletes everything that is left.
    fn remove(
        &self,
        job: Departing<'_>,
        parameters: Option<&Self::Parameters>,
    ) -> impl Future<Output = Answer> + Send;

    /// Shows the UID of the Job that each object in the backend says it is of, as far as it is known without asking:
    /// what is left there of Jobs that are gone is counted by it.
    fn executions(&self, show: &mut dyn FnMut(&str)) {
        let _ = show;
    }

    /// Returns once questions can be answered from what the backend shows. A process leads only after that.
    fn ready(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The Jobs of which something changed in the backend. The stream drives whatever watches or polls the
    /// backend needs, for as long as the adapter runs.
    fn changes(&self) -> impl Stream<Item = ObjectRef<Job>> + Send + 'static;

    /// Names of the classes whose readiness may have changed, or of all when `None`.
    fn class_changes(&self) -> impl Stream<Item = Option<String>> + Send + 'static {
        futures::stream::pending()
    }
}

/// A cluster-scoped parameters kind.
pub trait Parameters:
    Writable + Resource<Scope = ClusterResourceScope> + Default + Send + Sync + 'static
{
    /// Its status, if anything was written there.
    fn status(&self) -> Option<&ayatori_core::parameters::ParametersStatus>;
}

impl Parameters for ayatori_core::parameters::KubernetesExecutionParameters {
    fn status(&self) -> Option<&ayatori_core::parameters::ParametersStatus> {
        self.status.as_ref()
    }
}

impl Parameters for ayatori_core::parameters::OpenSandboxExecutionParameters {
    fn status(&self) -> Option<&ayatori_core::parameters::ParametersStatus> {
        self.status.as_ref()
    }
}

//! What the backend says of a Job if this is what a server and its sandboxes show. Pure, and with no server: for tests
//! that bring their own.

use std::collections::BTreeMap;

use ayatori_core::execution::{Prospect, State};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::stage::Recorded;
use jiff::Timestamp;

use crate::wire::Sandbox;
use crate::{entrypoint, execd, metadata};

/// What the sandbox carries that an attempt creates for a Job.
pub fn metadata(job: &Job, attempt: &str) -> BTreeMap<String, String> {
    metadata::of_sandbox(job, attempt)
}

/// Entrypoint mode: what exists for a Job of which nothing is recorded, if these are all sandboxes that carry its UID.
pub fn prospect(job: &Job, sandboxes: &[Sandbox], backend: BackendIdentity) -> Prospect {
    crate::prospect::prospect(job, sandboxes, backend)
}

/// Entrypoint mode: what became of the recorded sandbox, shown with this log when it was asked for `at` that time.
pub fn state(job: Recorded<'_>, sandbox: &Sandbox, log: &str, at: Timestamp) -> State {
    entrypoint::state(job, sandbox, log, "", at)
}

/// Execd mode: what became of the recorded command, if its sandbox is up and these are the files there: `end`, `start`,
/// and whether there is a `hold`.
pub fn state_inside(
    job: Recorded<'_>,
    end: Option<&str>,
    start: Option<&str>,
    hold: bool,
    at: Timestamp,
) -> State {
    execd::told(job, end, start, hold, at).unwrap_or_else(State::Unobservable)
}

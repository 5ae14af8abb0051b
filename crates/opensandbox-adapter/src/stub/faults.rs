//! The list of what can go wrong.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::SignedDuration;
use serde_json::Value;

/// The kinds of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `POST /v1/sandboxes`.
    Create,
    /// `GET /v1/sandboxes`.
    List,
    /// `GET /v1/sandboxes/{id}`.
    Get,
    /// `DELETE /v1/sandboxes/{id}`.
    Delete,
    /// `POST /v1/sandboxes/{id}/pause`.
    Pause,
    /// `POST /v1/sandboxes/{id}/renew-expiration`.
    Renew,
    /// `GET /v1/sandboxes/{id}/diagnostics/logs`.
    Log,
    /// `GET /v1/sandboxes/{id}/diagnostics/events`.
    Events,
    /// `POST /v1/sandboxes/{id}/proxy/44772/command`.
    Run,
    /// `GET /v1/sandboxes/{id}/proxy/44772/files/download`.
    File,
    /// `GET /v1/pools/{name}`.
    Pool,
    /// Anything else.
    Other,
}

impl Call {
    /// All there are.
    pub const ALL: [Self; 12] = [
        Call::Create,
        Call::List,
        Call::Get,
        Call::Delete,
        Call::Pause,
        Call::Renew,
        Call::Log,
        Call::Events,
        Call::Run,
        Call::File,
        Call::Pool,
        Call::Other,
    ];
}

/// What becomes of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    // Carried out (a sandbox that takes its time comes into being later than the answer), and then …
    /// … the connection is closed without an answer.
    LosesAnswer,
    /// … the answer breaks off in the middle.
    TruncatesAnswer,
    /// … half of the answer comes, and then nothing, over a connection that stays open.
    StopsHalfway,
    /// … 200, and JSON that ends too soon.
    AnswersHalfJson,
    /// … 200, and the page of some portal.
    AnswersPage,
    /// … 204, and nothing.
    AnswersNothing,
    /// … 504 KUBERNETES::POD_READY_TIMEOUT, as when a sandbox takes too long or ends too soon.
    AnswersPodReadyTimeout,
    /// … 500 KUBERNETES::POD_FAILED, as when a sandbox ends too soon.
    AnswersPodFailed,
    /// … 502, and the page of a gateway that did not wait for the answer.
    AnswersBadGateway,

    // Not carried out: …
    /// … the connection is closed without an answer.
    LosesRequest,
    /// … nothing is ever answered.
    Silent,
    /// … 429, with this Retry-After.
    Busy(Option<String>),
    /// … 503 in plain text, as over the concurrency limit.
    Overloaded,
    /// … 500 in plain text, as while dockerd is down.
    InternalError,
    /// … 401 INVALID_API_KEY.
    Unauthorized,
    /// … 401, and the page of a proxy that wants a key of its own.
    ProxyUnauthorized,
    /// … 307 to the same path of this other origin.
    Redirects(String),
    /// … 404, and the page of a proxy.
    NoRoute,
    /// … 422, which quotes the whole request.
    EchoesRequest,
    /// … this status with an error of this code, in the server's own form.
    Refuses(u16, &'static str),
    /// … this status with this body, called JSON.
    Answers(u16, Bytes),
    /// … an answer with a body that never ends.
    Floods,
}

/// How the server misbehaves. The default is not at all.
#[derive(Clone, Default)]
pub struct Faults {
    calls: HashMap<Call, (Fault, Option<usize>)>,
    /// A create request takes this long; until then its sandbox exists for nobody. A fault does not wait for it.
    pub creation_takes: Duration,
    /// A new sandbox is missing from lists for this long.
    pub list_lag: SignedDuration,
    /// Lists are empty.
    pub lists_nothing: bool,
    /// Lists hold all sandboxes, whatever the filter.
    pub ignores_filter: bool,
    /// So many sandboxes of somebody else exist too.
    pub foreign: usize,
    /// No sandbox is found by its id, in the server's own words.
    pub finds_nothing: bool,
    /// The pools there are; a server without any has a runtime without pools.
    pub pools: Vec<String>,
    /// No sandbox expires.
    pub never_expires: bool,
    /// A pause is accepted, and nothing happens.
    pub pauses_nothing: bool,
    /// A renewal is confirmed, and nothing happens.
    pub renews_nothing: bool,
    /// A delete is accepted, and nothing happens.
    pub deletes_nothing: bool,
    /// What is shown of a sandbox after this has edited the truth.
    pub shows: Option<Edit>,
}

/// Edits what is shown of a sandbox.
pub type Edit = Arc<dyn Fn(&mut Value) + Send + Sync>;

impl Faults {
    /// Every call of this kind meets this fault from now on.
    pub fn on(&mut self, call: Call, fault: Fault) {
        self.calls.insert(call, (fault, None));
    }

    /// The next calls of this kind meet this fault.
    pub fn on_next(&mut self, calls: usize, call: Call, fault: Fault) {
        self.calls.insert(call, (fault, Some(calls)));
    }

    /// No call of any kind is served from now on: each meets this fault.
    pub fn on_all(&mut self, fault: &Fault) {
        for call in Call::ALL {
            self.on(call, fault.clone());
        }
    }

    /// Calls of this kind are served again.
    pub fn off(&mut self, call: Call) {
        self.calls.remove(&call);
    }

    /// All sandboxes are shown with this status: unknown states, other reasons, missing fields, nulls.
    pub fn show_status(&mut self, status: Value) {
        self.shows = Some(Arc::new(move |sandbox| {
            if let Some(shown) = sandbox.get_mut("status") {
                *shown = status.clone();
            }
        }));
    }

    /// The fault of this call.
    pub(super) fn take(&mut self, call: Call) -> Option<Fault> {
        let (fault, left) = self.calls.get_mut(&call)?;
        if let Some(left) = left {
            *left = left.checked_sub(1)?;
        }
        Some(fault.clone())
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}

//! Whatever an OpenSandbox server, or something that stands before it, answers.
//!
//! An input is what was answered, what the sandbox's log shows, and the circumstances, apart by NUL characters. Two of
//! these are bytes: which status came, and what else was so; the rest of them is the header `Retry-After`.

use std::time::SystemTime;

use ayatori_core::conditions::MESSAGE_LIMIT;
use ayatori_core::ending;
use ayatori_core::execution::{End, Exit, Gone, State, Why};
use ayatori_core::job::{Outcome, Stop, StopReason};
use ayatori_opensandbox_adapter::failure::{Failure, Unsuccessful};
use ayatori_opensandbox_adapter::mapping::{self, Look};
use ayatori_opensandbox_adapter::wire::{RunCommand, Sandbox};
use ayatori_opensandbox_adapter::wrapper::{self, Evidence};
use http::{HeaderValue, StatusCode};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

const ATTEMPT: &str = "a1";

/// What a server must never be made to repeat. Inputs hold it, for it is what `corpus/responses` was made with.
const SECRET: &str = "canary-of-a-secret";

/// Nothing that a Job says of an answer is longer than this, whatever the answer is.
const LONGEST: usize = 800;

const STATUSES: [u16; 17] = [
    200, 201, 204, 302, 307, 400, 401, 403, 404, 408, 409, 422, 429, 499, 500, 503, 504,
];

pub(crate) fn check(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut next = || parts.next().unwrap_or_default();
    let (body, log, circumstances) = (next(), next(), next());
    let (status, flags, retry_after) = match circumstances {
        [status, flags, retry_after @ ..] => (*status, *flags, retry_after),
        _ => (0, 0, circumstances),
    };
    failed(body, status, retry_after);
    let log = String::from_utf8_lossy(log);
    for sandbox in sandboxes(body) {
        looked_at(&sandbox, &log, flags);
    }
}

/// The answer, taken for one that is no success.
fn failed(body: &[u8], status: u8, retry_after: &[u8]) {
    let status = STATUSES[usize::from(status) % STATUSES.len()];
    let request = request();
    let failure = Unsuccessful {
        status: StatusCode::from_u16(status).expect("a status"),
        retry_after: HeaderValue::from_bytes(retry_after).ok().as_ref(),
        body,
        now: SystemTime::UNIX_EPOCH,
    }
    .failure(|text| request.hide_secrets(text));
    discreet(&failure.why());
    let shown = format!("{failure:?}");
    assert!(!shown.contains(SECRET), "{shown}");
    assert!(failure.retry_after().is_none_or(|time| time.as_secs() <= 300));
    if failure.is_certain() {
        assert!((400..500).contains(&status) || says(body, "code"), "{failure:?}");
        assert!(![408, 499, 503, 504].contains(&status), "{failure:?}");
    }
    if matches!(failure, Failure::NotFound { .. }) {
        assert!(status == 404 && says(body, "SANDBOX_NOT_FOUND"));
    }
}

/// What a Job says, and what is said of it in logs.
fn discreet(why: &Why) {
    assert!(!why.message.contains(SECRET), "{}", why.message);
    assert!(!why.message.chars().any(char::is_control), "{:?}", why.message);
    assert!(why.message.len() <= LONGEST, "{} bytes", why.message.len());
    assert!(why.reason.chars().all(|c| c.is_ascii_alphanumeric()));
}

/// Whether the word stands in it, or might in other letters.
fn says(body: &[u8], word: &str) -> bool {
    let has = |word: &str| body.windows(word.len()).any(|window| window == word.as_bytes());
    has(word) || has("\\u")
}

fn request() -> RunCommand {
    RunCommand {
        command: "true".to_owned(),
        background: true,
        envs: [("TOKEN".to_owned(), SECRET.into())].into(),
    }
}

/// The answer, taken for a sandbox or for a page of them.
fn sandboxes(body: &[u8]) -> Vec<Sandbox> {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return vec![];
    };
    let items = value
        .get("items")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    [value]
        .into_iter()
        .chain(items.into_iter().take(16))
        .filter_map(|one| serde_json::from_value(one).ok())
        .inspect(|one: &Sandbox| assert!(!matches!(one.id.as_str(), "" | "." | "..")))
        .collect()
}

fn looked_at(sandbox: &Sandbox, log: &str, flags: u8) {
    let flag = |bit: u8| flags >> bit & 1 == 1;
    let at = Timestamp::from_second(1_800_000_000).expect("a time");
    let evidence = wrapper::evidence(log, ATTEMPT).filter(|_| !flag(0));
    let look = Look {
        sandbox,
        evidence,
        out_of_memory: flag(1),
        at,
        started: flag(2),
        stop_requested: flag(3),
        deadline: flag(4).then_some(at),
        renew_at: flag(5).then_some(at),
    };
    let stop = flag(3).then(|| Stop {
        reason: StopReason::CancelRequested,
        requested_time: Time(at - SignedDuration::from_secs(5)),
        delivered_time: flag(6).then_some(Time(at)),
    });
    match mapping::state(&look) {
        State::Ended(end) => ended(&end, stop.as_ref(), &look, log),
        State::Gone(Gone { proven, why }) => {
            assert!(!proven, "an answer that shows it is no proof that it is gone");
            discreet_of(&why, sandbox);
        }
        State::Waiting(waiting) => {
            let ran = matches!(evidence, Some(Evidence::Starting | Evidence::Ended { .. }));
            assert!(!ran && !look.started, "{look:?}");
            discreet_of(&waiting.why, sandbox);
        }
        State::Running(running) => assert!(running.stopping_since.is_none() || flag(3)),
        State::Held | State::Unobservable(_) => panic!("{sandbox:?}"),
    }
}

/// What a server says of a sandbox may be told, but not at any length.
fn discreet_of(why: &Why, sandbox: &Sandbox) {
    assert!(!why.message.chars().any(char::is_control), "{:?}", why.message);
    assert!(why.message.len() <= LONGEST, "{sandbox:?}");
}

fn ended(end: &End, stop: Option<&Stop>, look: &Look<'_>, log: &str) {
    let result = ending::attribute(end, stop, look.deadline);
    let message = result.message.clone().unwrap_or_default();
    assert!(
        message.len() <= MESSAGE_LIMIT && !message.chars().any(char::is_control),
        "{message:?}"
    );
    let written = |code: i32| {
        ["", " after a signal"]
            .iter()
            .any(|how| log.contains(&format!("ayatori {ATTEMPT}: ended {code}{how}.")))
    };
    if result.outcome == Outcome::Succeeded {
        assert!(
            written(0) && look.evidence.is_some(),
            "a success without evidence: {look:?}"
        );
        assert!(
            !log.contains(&format!("ayatori {ATTEMPT}: ended 0 after a signal.")),
            "{look:?}"
        );
        assert!(stop.is_none_or(|stop| stop.delivered_time.is_none()) || end.finished_at.is_some());
    }
    if let Some(code) = result.exit_code {
        assert!(
            written(code) || code == 137 && says_killed(look),
            "code {code} of {look:?}"
        );
    }
    if let Exit::Unmeasured | Exit::NeverStarted = end.exit {
        assert_ne!(result.outcome, Outcome::Succeeded);
    }
}

fn says_killed(look: &Look<'_>) -> bool {
    let message = look.sandbox.message.as_deref().unwrap_or_default();
    message.contains("137")
}

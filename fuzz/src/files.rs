//! Whatever the files in a sandbox say in which a command was started: whoever runs there can write them too.
//!
//! An input is the files `end` and `start`, apart by NUL characters, and behind them whether those and `hold` are there.

use std::sync::OnceLock;

use ayatori_core::ending;
use ayatori_core::execution::State;
use ayatori_core::job::{Job, Outcome};
use ayatori_core::stage::Stage;
use ayatori_opensandbox_adapter::meaning;
use jiff::Timestamp;
use serde_json::json;

const HOLD: &str = "0f8e1c52-7d1b-4c0e-9d5a-3a5d2d8f6b11";
const AT: &str = "2027-01-15T08:00:00Z";

pub(crate) fn check(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut next = || parts.next().unwrap_or_default();
    let (end, start, flags) = (next(), next(), next().first().copied().unwrap_or(7));
    let flag = |bit: u8| flags >> bit & 1 == 1;
    let (end, start) = (String::from_utf8_lossy(end), String::from_utf8_lossy(start));
    let end = flag(0).then_some(&*end);
    let start = flag(1).then_some(&*start);

    static JOB: OnceLock<Job> = OnceLock::new();
    let Stage::Recorded(recorded) = Stage::of(JOB.get_or_init(job)) else {
        panic!("an execution is recorded");
    };
    let now: Timestamp = AT.parse().expect("a time");
    let state = meaning::state_inside(recorded, end, start, flag(2), now);
    let said = |text: Option<&str>, what: &str| {
        text.is_some_and(|text| text.contains(&format!("ayatori {HOLD}: {what}")))
    };
    match state {
        State::Ended(ended) => {
            assert!(start.is_some_and(|start| start.contains(HOLD)), "{ended:?}");
            let result = ending::attribute(&ended, None, None);
            if let Some(code) = result.exit_code {
                assert!(said(start, "starting"), "{ended:?}");
                assert!(
                    said(end, &format!("ended {code}."))
                        || said(end, &format!("ended {code} after a signal."))
                );
            }
            if result.outcome == Outcome::Succeeded {
                assert!(said(end, "ended 0.") && result.exit_code == Some(0), "{ended:?}");
            }
        }
        State::Running(running) => {
            assert!(said(start, "starting"));
            assert!(running.stopping_since.is_none() || said(end, "stopped."));
        }
        State::Held => assert!(end.is_none() && start.is_none() && flag(2)),
        State::Gone(gone) => assert!(!gone.proven),
        State::Waiting(_) => {}
        State::Unobservable(why) => {
            assert!(why.message.len() < 800 && !why.message.chars().any(char::is_control))
        }
    }
}

fn job() -> Job {
    let job = json!({
        "apiVersion": "execution.ayatori.ddupan.top/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "job", "namespace": "team", "uid": "5f0c0b1e-8a0e-4f0e-9a61-0d2b5b7f3a10"},
        "spec": {"image": "image", "command": ["true"]},
        "status": {
            "resolvedJobClass": {
                "name": "class", "uid": "class-uid", "controllerName": "execution.ayatori.ddupan.top/opensandbox",
                "parametersRef": {"group": "g", "kind": "K", "name": "p", "uid": "p-uid"},
            },
            "resources": {},
            "execution": {"id": "sandbox", "uid": HOLD, "startRequestedTime": AT},
            "conditions": [
                {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": AT},
            ],
        },
    });
    serde_json::from_value(job).expect("a Job")
}

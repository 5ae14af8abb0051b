//! What the status of a Job may say after what it said before.

use anyhow::ensure;
use ayatori_core::crd;
use ayatori_core::job::{Job, JobState};
use ayatori_e2e::api::{Run, Verdict, Verdict::Accepted, Verdict::Refused, in_namespace, merged};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::samples::{LATER, NOON, accepted, attempted, condition, finished, job_spec, recorded, stopping};
use crate::{Transition, Write, status_change, status_without, transitions};

#[tokio::test]
async fn a_status_cannot_be_written_at_creation() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let mut object = run.object(&crd::job(), "forged", job_spec());
        object.data = merged(object.data, &json!({ "status": finished() }));
        run.objects(&crd::job())
            .create(&PostParams::default(), &object)
            .await?;
        let job = Api::<Job>::namespaced(run.client.clone(), &run.namespace)
            .get("forged")
            .await?;
        ensure!(
            job.status
                .as_ref()
                .is_some_and(|s| s.result.is_none() && s.state == Some(JobState::Waiting)),
            "{:?}",
            job.status
        );
        Ok(())
    })
    .await
}

/// Listed field by field, owners would be most of what is stored of a Job.
#[tokio::test]
async fn a_status_is_owned_as_a_whole() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let jobs = run.objects(&crd::job());
        let object = run.object(&crd::job(), "owned", job_spec());
        jobs.create(&PostParams::default(), &object).await?;
        let params = PatchParams::apply("adapter");
        let mut job = object;
        for status in [accepted(), finished()] {
            let patch = Patch::Merge(json!({ "status": status }));
            job = jobs.patch_status("owned", &params, &patch).await?;
        }
        let owned: Vec<_> = job
            .metadata
            .managed_fields
            .iter()
            .flatten()
            .filter(|entry| entry.manager.as_deref() == Some("adapter"))
            .map(|entry| json!(entry.fields_v1))
            .collect();
        ensure!(owned == [json!({ "f:status": {} })], "{owned:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn what_a_job_status_says_once_it_says_for_ever() -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let fields: [(&str, Value); 13] = [
        ("resolvedJobClass", json!({ "uid": "other" })),
        ("resources", json!({ "limits": { "cpu": "2" } })),
        ("startTime", json!(LATER)),
        ("finishTime", json!(NOON)),
        ("result", json!({ "exitCode": 3 })),
        ("execution.id", json!("other")),
        ("execution.uid", json!("other")),
        ("execution.nodeName", json!("other")),
        ("execution.startRequestedTime", json!(LATER)),
        ("execution.stop.reason", json!("DeadlineExceeded")),
        ("execution.stop.requestedTime", json!(LATER)),
        ("execution.stop.deliveredTime", json!(NOON)),
        ("execution.releaseTime", json!(NOON)),
    ];
    for (field, change) in fields {
        const WORDS: Verdict = Refused("is set once: it cannot be changed or removed");
        let at = |value: Value| {
            field
                .rsplit('.')
                .fold(value, |inner, step| json!({ step: inner }))
        };
        rows.push(status_change(
            "a field set once cannot be changed",
            finished(),
            at(change),
            WORDS,
        ));
        // A required field inside a parent is missing then, which the schema says first.
        let parent_needs_it = ["execution.stop.reason", "execution.stop.requestedTime"].contains(&field);
        let words = if parent_needs_it {
            Refused("Required value")
        } else {
            WORDS
        };
        rows.push(status_change(
            "a field set once cannot be removed",
            finished(),
            at(Value::Null),
            words,
        ));
    }
    rows.extend([
        status_change("nothing is lost with the whole status", finished(), Value::Null, Refused("status.result is set once")),
        status_change("an accepted Job cannot lose its status", accepted(), Value::Null, Refused("status.resolvedJobClass is set once")),
        status_change("nothing is lost with the execution", recorded(), json!({ "execution": null }), Refused("status.execution.id is set once")),
        status_change("nothing is lost with the stop", stopping(), json!({ "execution": { "stop": null } }), Refused("status.execution.stop.reason is set once")),
        status_change("an unaccepted Job may lose its status", json!({ "state": "Rejected" }), Value::Null, Accepted),
        status_change("the state is free", recorded(), json!({ "state": "Unknown" }), Accepted),
        status_change("the same status again changes nothing", finished(), finished(), Accepted),
        status_change("acceptance is recorded", json!({}), accepted(), Accepted),
        status_change("an execution is recorded", accepted(), recorded(), Accepted),
        status_change("a node is recorded later", merged(recorded(), &json!({ "execution": { "nodeName": null } })), recorded(), Accepted),
        status_change("a stop is recorded", recorded(), stopping(), Accepted),
        status_change("an end is recorded", stopping(), finished(), Accepted),
    ]);
    transitions(crd::job(), job_spec(), rows).await
}

#[tokio::test]
#[rustfmt::skip]
async fn what_is_set_once_is_not_lost_with_what_holds_it() -> anyhow::Result<()> {
    let alone = |part: Value| json!({ "execution": part });
    let stop = || json!({ "reason": "CancelRequested", "requestedTime": NOON });
    let backend = || json!({ "parametersUID": "u2", "endpointHash": "h" });
    let attempt = || json!({ "id": "a1", "sendBefore": NOON, "startBefore": LATER });
    // Each in an execution that holds nothing else.
    let parts = [
        (json!({ "id": "e1" }), "status.execution.id is set once"),
        (json!({ "uid": "p1" }), "status.execution.uid is set once"),
        (json!({ "nodeName": "n1" }), "status.execution.nodeName is set once"),
        (json!({ "startRequestedTime": NOON }), "status.execution.startRequestedTime is set once"),
        (json!({ "stop": stop() }), "status.execution.stop.reason is set once"),
        (json!({ "releaseTime": NOON }), "status.execution.releaseTime is set once"),
        (json!({ "backend": backend() }), "status.execution.backend never changes"),
        (json!({ "backend": backend(), "attempt": attempt(), "id": "s1" }), "status.execution.id is set once"),
    ];
    let mut rows = Vec::new();
    for (part, words) in parts {
        let before = || merged(json!({ "finishTime": NOON }), &alone(part.clone()));
        rows.extend(status_without("an execution is not removed with its last part", before(), "execution", Refused(words)));
        rows.push(Transition {
            write: Write::Whole("status", json!({ "finishTime": NOON, "execution": {} })),
            ..status_change("an execution does not become empty", before(), Value::Null, Refused(words))
        });
        rows.extend(status_without("a status is not removed with an execution", before(), "", Refused("status.finishTime is set once")));
        rows.push(Transition {
            write: Write::Whole("status", json!({ "finishTime": NOON })),
            ..status_change("an execution is not left out", before(), Value::Null, Refused(words))
        });
    }
    let delivered = || json!({ "execution": { "stop": merged(stop(), &json!({ "deliveredTime": LATER })) } });
    let both = || alone(json!({ "backend": backend(), "attempt": attempt() }));
    rows.extend([
        status_without("nothing is lost with the whole status", finished(), "", Refused("status.result is set once")),
        status_without("an accepted Job cannot lose its status", accepted(), "", Refused("status.resolvedJobClass is set once")),
        status_without("a stopped Job cannot lose its status", alone(json!({ "stop": stop() })), "", Refused("status.execution.stop.reason is set once")),
        status_without("nothing is lost with the execution", recorded(), "execution", Refused("status.execution.id is set once")),
        status_without("nothing is lost with the stop", stopping(), "execution.stop", Refused("status.execution.stop.reason is set once")),
        status_without("a delivery is not lost with the stop", delivered(), "execution.stop", Refused("status.execution.stop.reason is set once")),
        status_without("a delivery is not lost", delivered(), "execution.stop.deliveredTime", Refused("status.execution.stop.deliveredTime is set once")),
        status_without("a result is not lost", finished(), "result", Refused("status.result is set once")),
        status_without("nothing is lost with the conditions", finished(), "conditions", Refused("status.conditions: Accepted is True and stays so")),
        status_without("an attempt without its backend may go", alone(json!({ "attempt": attempt() })), "execution", Accepted),
        status_without("an attempt and its backend may go", both(), "execution", Accepted),
        status_without("and with the status", both(), "", Accepted),
        status_without("an empty execution may go", alone(json!({})), "execution", Accepted),
    ].into_iter().flatten());
    // Where there was nothing before, nothing is kept, and the rest holds.
    let nothing = || json!({ "state": null, "conditions": null });
    let finish = |change: Value| merged(json!({
        "state": "Failed", "finishTime": NOON, "result": { "outcome": "Failed", "reason": "X" },
        "conditions": [condition("Finished", "True", NOON)],
    }), &change);
    let unknown = json!([condition("Finished", "True", NOON), condition("ResultUnknown", "True", NOON)]);
    rows.extend([
        status_change("a first execution is not released at once", nothing(), alone(json!({ "releaseTime": NOON })), Refused("status.execution.releaseTime cannot be set yet")),
        status_change("a first execution may be stopped and never start", nothing(), alone(json!({ "stop": stop() })), Accepted),
        status_change("a status without conditions is finished", nothing(), finish(json!({})), Accepted),
        status_change("but not without a result", nothing(), finish(json!({ "result": null })), Refused("status.result must be set")),
        status_change("nor without a time", nothing(), finish(json!({ "finishTime": null })), Refused("status.finishTime must be set")),
        status_change("nor under another word", nothing(), finish(json!({ "state": "Running" })), Refused("status.state of a finished Job")),
        status_change("nor when nothing is known", nothing(), finish(json!({ "conditions": unknown })), Refused("Finished and ResultUnknown exclude each other")),
    ]);
    transitions(crd::job(), job_spec(), rows).await
}

#[tokio::test]
#[rustfmt::skip]
async fn an_attempt_is_forgotten_only_with_its_backend_and_before_an_id_is_known() -> anyhow::Result<()> {
    const ATTEMPT: Verdict = Refused("status.execution.attempt never changes");
    const BACKEND: Verdict = Refused("status.execution.backend never changes");
    let execution = |change: Value| json!({ "execution": change });
    let adopted = || {
        merged(
            attempted(),
            &execution(json!({ "id": "s1", "startRequestedTime": NOON })),
        )
    };
    let both = || json!({ "attempt": null, "backend": null });
    transitions(
        crd::job(),
        job_spec(),
        vec![
            status_change("an attempt is stored", accepted(), attempted(), Accepted),
            status_change("an attempt and its backend are cleared together", attempted(), execution(both()), Accepted),
            status_change("an execution with nothing but an attempt is removed as a whole", attempted(), json!({ "execution": null }), Accepted),
            status_change("an attempt is adopted", attempted(), adopted(), Accepted),
            status_change("an attempt is not cleared alone", attempted(), execution(json!({ "attempt": null })), ATTEMPT),
            status_change("a backend is not cleared alone", attempted(), execution(json!({ "backend": null })), BACKEND),
            status_change("another attempt does not follow in the same write", attempted(), execution(json!({ "attempt": { "id": "a2" } })), ATTEMPT),
            status_change("an attempt gets no more time", attempted(), execution(json!({ "attempt": { "startBefore": "2026-01-01T14:00:00Z" } })), ATTEMPT),
            status_change("another server does not take over", attempted(), execution(json!({ "backend": { "endpointHash": "other" } })), BACKEND),
            status_change("an adopted attempt stays", adopted(), execution(both()), ATTEMPT),
            status_change("an attempt is not cleared while an id is stored", attempted(), execution(merged(both(), &json!({ "id": "s1" }))), ATTEMPT),
            status_change("a backend without an attempt stays", recorded(), execution(json!({ "backend": null })), BACKEND),
        ],
    )
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn a_stopped_job_is_not_started() -> anyhow::Result<()> {
    let stop = |change: Value| json!({ "execution": { "stop": change } });
    let requested = || stop(json!({ "reason": "CancelRequested", "requestedTime": NOON }));
    let unstarted = || merged(accepted(), &requested());
    transitions(
        crd::job(),
        job_spec(),
        vec![
            status_change(
                "a start after a stop is refused",
                unstarted(),
                json!({ "execution": { "startRequestedTime": LATER } }),
                Refused("status.execution.startRequestedTime cannot be set any more"),
            ),
            status_change("a record after a stop holds no start", unstarted(), json!({ "execution": { "id": "e1", "uid": "p1" } }), Accepted),
            status_change("a stop after a start is stored", recorded(), requested(), Accepted),
            status_change("a started Job that is stopped keeps its start", stopping(), json!({ "state": "Unknown" }), Accepted),
            status_change("a stop is delivered later", merged(recorded(), &requested()), stop(json!({ "deliveredTime": LATER })), Accepted),
            status_change(
                "a stop for a reason nobody knows",
                recorded(),
                stop(json!({ "reason": "Boredom", "requestedTime": NOON })),
                Refused("Unsupported value: \"Boredom\""),
            ),
        ],
    )
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn a_condition_that_became_true_stays_true() -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for type_ in ["Accepted", "Scheduled", "Started", "Finished"] {
        const WORDS: Verdict = Refused("is True and stays so, with its lastTransitionTime");
        let now = || {
            if type_ == "Finished" {
                finished()
            } else {
                json!({ "conditions": [condition(type_, "True", NOON)] })
            }
        };
        let since = if type_ == "Finished" { LATER } else { NOON };
        let becomes = |conditions: Value| json!({ "conditions": conditions });
        rows.extend([
            status_change("a condition does not become False", now(), becomes(json!([condition(type_, "False", since)])), WORDS),
            status_change("a condition does not become Unknown", now(), becomes(json!([condition(type_, "Unknown", since)])), WORDS),
            status_change("its time does not move", now(), becomes(json!([condition(type_, "True", "2026-02-01T00:00:00Z")])), WORDS),
            status_change("it is not removed", now(), becomes(json!([condition("Other", "True", since)])), WORDS),
            status_change("the list is not emptied", now(), becomes(json!([])), WORDS),
            status_change("the list is not removed", now(), becomes(Value::Null), WORDS),
        ]);
    }
    let with = |conditions: &[(&str, &str, &str)]| json!({ "conditions": conditions.iter().map(|(type_, status, since)| condition(type_, status, since)).collect::<Vec<_>>() });
    rows.extend([
        status_change("a condition that is False may become True", with(&[("Accepted", "False", NOON)]), with(&[("Accepted", "True", LATER)]), Accepted),
        status_change("ResultUnknown comes", with(&[("ResultUnknown", "False", NOON)]), with(&[("ResultUnknown", "True", LATER)]), Accepted),
        status_change("ResultUnknown goes", with(&[("ResultUnknown", "True", NOON)]), with(&[("ResultUnknown", "False", LATER)]), Accepted),
        status_change("the reason of a condition that is True may change", with(&[("Accepted", "True", NOON)]), json!({ "conditions": [merged(condition("Accepted", "True", NOON), &json!({ "reason": "Other" }))] }), Accepted),
        status_change("the order is free", with(&[("Accepted", "True", NOON), ("Started", "False", NOON)]), with(&[("Started", "False", NOON), ("Accepted", "True", NOON)]), Accepted),
        status_change("a condition is there once", json!({}), with(&[("Accepted", "True", NOON), ("Accepted", "False", NOON)]), Refused("Duplicate value")),
        status_change("a condition has one of three statuses", json!({}), with(&[("Accepted", "Maybe", NOON)]), Refused("Unsupported value: \"Maybe\"")),
    ]);
    transitions(crd::job(), job_spec(), rows).await
}

#[tokio::test]
#[rustfmt::skip]
async fn a_job_is_finished_only_with_a_result_that_is_known() -> anyhow::Result<()> {
    const EXCLUDE: Verdict = Refused("Finished and ResultUnknown exclude each other");
    const WORD: Verdict = Refused("status.state of a finished Job is the outcome of its result");
    let without = |field: &str| merged(finished(), &json!({ field: null }));
    let unknown = |status: &str| {
        let mut conditions = finished()["conditions"].as_array().cloned().unwrap_or_default();
        conditions.push(condition("ResultUnknown", status, NOON));
        merged(finished(), &json!({ "conditions": conditions }))
    };
    transitions(
        crd::job(),
        job_spec(),
        vec![
            status_change(
                "a finish has a result",
                stopping(),
                without("result"),
                Refused("status.result must be set in the write that sets the condition Finished to True"),
            ),
            status_change(
                "a finish has a time",
                stopping(),
                without("finishTime"),
                Refused(
                    "status.finishTime must be set in the write that sets the condition Finished to True",
                ),
            ),
            status_change("a finish is not unknown", stopping(), unknown("True"), EXCLUDE),
            status_change("a finish may say that the result is known again", stopping(), unknown("False"), Accepted),
            status_change("a finished Job does not become unknown", finished(), json!({ "conditions": unknown("True")["conditions"] }), EXCLUDE),
            status_change(
                "a Job finishes without ever having been accepted",
                json!({}),
                json!({
                    "state": "Cancelled", "finishTime": NOON,
                    "result": { "outcome": "Cancelled", "reason": "CancelRequested" },
                    "conditions": [condition("Accepted", "False", NOON), condition("Finished", "True", NOON)],
                }),
                Accepted,
            ),
            status_change("the word for a finished Job is its outcome", stopping(), merged(finished(), &json!({ "state": "Succeeded" })), WORD),
            status_change("and stays so", finished(), json!({ "state": "Failed" }), WORD),
            status_change("and is not left out", finished(), json!({ "state": null }), WORD),
            status_change(
                "what has not ended is not released",
                stopping(),
                json!({ "execution": { "releaseTime": LATER } }),
                Refused("status.execution.releaseTime cannot be set yet"),
            ),
            status_change("a finished Job may be released", merged(finished(), &json!({ "execution": { "releaseTime": null } })), finished(), Accepted),
            status_change(
                "a long message is refused",
                json!({}),
                json!({ "result": { "outcome": "Failed", "reason": "X", "message": "m".repeat(1025) } }),
                Refused("status.result.message: Too long"),
            ),
            status_change(
                "an outcome nobody knows is refused",
                json!({}),
                json!({ "result": { "outcome": "Great", "reason": "X" } }),
                Refused("Unsupported value: \"Great\""),
            ),
            status_change("an unknown status field is refused", json!({}), json!({ "phase": "Done" }), Refused("unknown field \"status.phase\"")),
        ],
    )
    .await
}

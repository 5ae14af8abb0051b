use ayatori_core::ending;
use ayatori_core::job::{JobResult, Stop, StopReason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::fixture::{self, BATCH_UID, JOB_UID, NODE, POD_UID, at, batch_job, held_pod, pod};

const RECORD: Record<'_> = Record {
    id: BATCH_UID,
    pod: POD_UID,
    node: Some(NODE),
    started: false,
    stop_requested: None,
};

const EXIT_0: &str = "status: { phase: Succeeded, containerStatuses: [{ name: job, restartCount: 0, image: a, imageID: b, ready: false, state: { terminated: { exitCode: 0, reason: Completed, startedAt: @05, finishedAt: @15 } } }] }";

fn ended(code: i32, reason: &str, finished: &str) -> String {
    format!(
        "status: {{ phase: Failed, containerStatuses: [{{ name: job, restartCount: 0, image: a, imageID: b, ready: false, \
         state: {{ terminated: {{ exitCode: {code}, reason: {reason}, startedAt: @05, finishedAt: {finished} }} }} }}] }}"
    )
}

fn container(state: &str) -> String {
    format!(
        "status: {{ phase: Pending, containerStatuses: [{{ name: job, restartCount: 0, image: a, imageID: b, ready: false, \
         state: {{ {state} }} }}] }}"
    )
}

/// The pod's deletion was asked for at second 10, with a grace of 5.
const DELETED: &str = "metadata: { deletionTimestamp: @15, deletionGracePeriodSeconds: 5 }\n";
const DEADLINE: &str = "status: { conditions: [{ type: FailureTarget, status: 'True', reason: DeadlineExceeded, lastTransitionTime: @10 }] }";

fn disrupted(reason: &str) -> String {
    format!("{{ type: DisruptionTarget, status: 'True', reason: {reason}, lastTransitionTime: @10 }}")
}

fn stop(reason: StopReason, requested: i64, delivered: Option<i64>) -> Stop {
    Stop {
        reason,
        requested_time: Time(at(requested)),
        delivered_time: delivered.map(|second| Time(at(second))),
    }
}

/// A state in a few words; an end as the result it gives.
fn story(state: &State, stop: Option<&Stop>, deadline: Option<Timestamp>) -> String {
    match state {
        State::Held => "held".to_owned(),
        State::Waiting(w) => format!("waits: {}", w.why.reason),
        State::Running(r) if r.stopping_since.is_some() => "runs, is being ended".to_owned(),
        State::Running(_) => "runs".to_owned(),
        State::Ended(end) => {
            let started = if end.started() { "" } else { ", never started" };
            format!("{}{started}", words(&ending::attribute(end, stop, deadline)))
        }
        State::Gone(gone) if gone.proven => words(&ending::vanished(&gone.why, stop)),
        State::Gone(gone) => format!("unknown: {}", gone.why.reason),
        State::Unobservable(why) => format!("unknown: {}", why.reason),
    }
}

fn words(result: &JobResult) -> String {
    let code = result
        .exit_code
        .map(|code| format!(" {code}"))
        .unwrap_or_default();
    format!("{:?}/{}{code}", result.outcome, result.reason)
}

fn ready(batch: &BatchJob, pod: &Pod) -> State {
    state(RECORD, Some(batch), pod, NodeHealth::Ready)
}

#[test]
fn a_process_that_ends_by_itself_keeps_its_own_code() {
    for (what, status, expected) in [
        ("exit 0", EXIT_0.to_owned(), "Succeeded/Completed 0"),
        ("exit 3", ended(3, "Error", "@15"), "Failed/NonZeroExit 3"),
        (
            "137 of a killed child",
            ended(137, "Error", "@15"),
            "Failed/NonZeroExit 137",
        ),
        (
            "out of memory",
            ended(137, "OOMKilled", "@15"),
            "Failed/OOMKilled 137",
        ),
        (
            "a child out of memory, main exits 0",
            ended(0, "OOMKilled", "@15"),
            "Succeeded/Completed 0",
        ),
        (
            "a child out of memory, main exits 5",
            ended(5, "OOMKilled", "@15"),
            "Failed/NonZeroExit 5",
        ),
        (
            "not found inside sh",
            ended(127, "Error", "@15"),
            "Failed/NonZeroExit 127",
        ),
        (
            "no such command",
            ended(128, "StartError", "@15"),
            "Failed/StartError, never started",
        ),
    ] {
        assert_eq!(
            story(&ready(&batch_job(""), &pod(&status)), None, None),
            expected,
            "{what}"
        );
    }
}

#[test]
fn a_child_killed_for_memory_is_a_remark_and_output_of_the_command_is_none() {
    let result = |status: &str| match ready(&batch_job(""), &pod(status)) {
        State::Ended(end) => ending::attribute(&end, None, None).message,
        other => panic!("{other:?}"),
    };
    assert!(result(&ended(0, "OOMKilled", "@15")).unwrap().contains("memory"));
    let with_message = EXIT_0.replace("exitCode: 0,", "exitCode: 0, message: secret,");
    assert_eq!(result(&with_message), None);
}

#[test]
fn why_a_command_could_not_be_started_is_said_before_the_runtimes_chain_of_words() {
    const CHAIN: &str = "failed to create shim task: OCI runtime create failed: runc create failed: ";
    for (cause, meaning) in [
        (
            r#"exec: "nosuch": executable file not found in $PATH: unknown"#,
            "there is no such command",
        ),
        (
            r#"exec: "/no/such": stat /no/such: no such file or directory: unknown"#,
            "there is no such command",
        ),
        (
            r#"exec: "/tmp": permission denied: unknown"#,
            "the command cannot be executed",
        ),
        (
            r#"chdir to cwd ("/x") set in config.json failed: no such file or directory"#,
            "spec.workingDir could not be made or entered",
        ),
        (
            "error during container init: mkdir /bin/busybox: not a directory: unknown",
            "spec.workingDir could not be made or entered",
        ),
        ("error mounting \"/y\": no such file or directory", CHAIN),
        ("something else", CHAIN),
    ] {
        let said = unstartable(&format!("{CHAIN}{cause}"));
        assert!(said.starts_with(meaning), "{cause}: {said}");
        assert!(said.contains(cause), "{cause}: {said}");
    }
    assert_eq!(unstartable(""), "the command could not be started");
}

/// The kubelet puts values of variables into the words of the command, and runc quotes the first.
#[test]
fn the_value_of_a_secret_that_the_command_names_is_quoted_nowhere() {
    const SECRET: &str = "env: [{ name: S, valueFrom: { secretKeyRef: { name: s, key: k } } }]";
    const SECRETS: &str = "envFrom: [{ secretRef: { name: s } }]";
    const PLAIN: &str = "env: [{ name: S, value: canary }]";
    let message = |container: &str, cause: &str| {
        let spec = format!("spec: {{ containers: [{{ name: job, image: a, {container} }}] }}\n");
        let said = format!(r#"'failed to create shim task: exec: "canary": {cause}: unknown'"#);
        let status = ended(128, "StartError", "@15").replace("reason:", &format!("message: {said}, reason:"));
        match ready(&batch_job(""), &pod(&(spec + &status))) {
            State::Ended(End {
                exit: Exit::Unstartable(why),
                ..
            }) => why.message,
            other => panic!("{other:?}"),
        }
    };
    for variables in [SECRET, SECRETS] {
        for words in ["command: ['$(S)']", "command: [/bin/a], args: ['-$(S)']"] {
            for (cause, meaning) in [
                ("executable file not found in $PATH", "there is no such command"),
                ("permission denied", "the command cannot be executed"),
                ("something canary", "the rest of the node's words is left out"),
            ] {
                let said = message(&format!("{words}, {variables}"), cause);
                assert!(said.starts_with(meaning) && !said.contains("canary"), "{said}");
            }
        }
        let said = message(&format!("command: [canary], {variables}"), "permission denied");
        assert!(said.contains("canary"), "it stands in the Job itself: {said}");
    }
    let said = message(&format!("command: ['$(S)'], {PLAIN}"), "permission denied");
    assert!(said.contains("canary"), "it stands in the Job itself: {said}");
}

#[test]
fn the_main_container_is_found_by_name_and_counts_at_once() {
    let two = |first: &str, phase: &str, code: i32| {
        format!(
            "status: {{ phase: {phase}, containerStatuses: [\
             {{ name: aaa-proxy, restartCount: 0, image: a, imageID: b, ready: false, state: {{ {first} }} }}, \
             {{ name: job, restartCount: 0, image: a, imageID: b, ready: false, \
             state: {{ terminated: {{ exitCode: {code}, reason: Error, startedAt: @05, finishedAt: @15 }} }} }}] }}"
        )
    };
    for (what, status, expected) in [
        (
            "proxy ended with 0",
            two("terminated: { exitCode: 0 }", "Failed", 3),
            "Failed/NonZeroExit 3",
        ),
        (
            "proxy goes on",
            two("running: {}", "Running", 0),
            "Succeeded/Completed 0",
        ),
        (
            "an instant command",
            two("waiting: {}", "Pending", 0),
            "Succeeded/Completed 0",
        ),
    ] {
        assert_eq!(
            story(&ready(&batch_job(""), &pod(&status)), None, None),
            expected,
            "{what}"
        );
    }
}

#[test]
fn an_end_after_somebody_asked_for_it_is_theirs_whatever_its_code() {
    let by_hand = "".to_owned();
    for (what, condition, code, expected) in [
        ("deleted by hand", by_hand.clone(), 9, "Failed/PodDeleted 9"),
        ("deleted by hand, TERM caught", by_hand, 0, "Failed/PodDeleted 0"),
        (
            "evicted",
            disrupted("EvictionByEvictionAPI"),
            9,
            "Failed/Evicted 9",
        ),
        (
            "evicted, TERM caught",
            disrupted("EvictionByEvictionAPI"),
            0,
            "Failed/Evicted 0",
        ),
        (
            "tainted",
            disrupted("DeletionByTaintManager"),
            0,
            "Failed/Evicted 0",
        ),
        (
            "preempted",
            disrupted("PreemptionByScheduler"),
            0,
            "Failed/Preempted 0",
        ),
        (
            "by a reason of a newer version",
            disrupted("Foo"),
            0,
            "Failed/Evicted 0",
        ),
    ] {
        let status = ended(code, "Error", "@12")
            .replace("status: {", &format!("status: {{ conditions: [{condition}], "));
        // In the very second of the request nobody can tell, and the request has it.
        for second in ["@12", "@10"] {
            let late = pod(&format!("{DELETED}{}", status.replace("@12", second)));
            assert_eq!(
                story(&ready(&batch_job(""), &late), None, None),
                expected,
                "{what}, ended: {second}"
            );
        }
        let early = pod(&format!("{DELETED}{}", status.replace("@12", "@09")));
        let own = if code == 0 {
            "Succeeded/Completed 0"
        } else {
            "Failed/NonZeroExit 9"
        };
        assert_eq!(
            story(&ready(&batch_job(""), &early), None, None),
            own,
            "{what}, ended before"
        );
    }
}

#[test]
fn a_pod_that_the_kubelet_ends_needs_no_deletion() {
    let evicted = |finished: &str| {
        let status = ended(0, "Completed", finished);
        let condition = disrupted("TerminationByKubelet");
        pod(&status.replace(
            "status: {",
            &format!("status: {{ reason: Evicted, conditions: [{condition}], "),
        ))
    };
    for (finished, expected) in [
        ("@12", "Failed/Evicted 0"),
        ("@10", "Failed/Evicted 0"),
        ("@09", "Succeeded/Completed 0"),
    ] {
        assert_eq!(
            story(&ready(&batch_job(""), &evicted(finished)), None, None),
            expected,
            "{finished}"
        );
    }
}

#[test]
fn a_stop_of_ours_is_told_from_those_of_others_by_the_times() {
    use StopReason::{CancelRequested, DeadlineExceeded};
    let deadline = Some(at(9));
    for (what, batch, code, finished, stop, expected) in [
        (
            "guard, TERM ignored",
            DEADLINE,
            137,
            "@15",
            None,
            "Failed/DeadlineExceeded 137",
        ),
        (
            "guard, TERM caught",
            DEADLINE,
            0,
            "@12",
            None,
            "Failed/DeadlineExceeded 0",
        ),
        (
            "our deadline",
            DEADLINE,
            0,
            "@12",
            Some(stop(DeadlineExceeded, 9, Some(10))),
            "Failed/DeadlineExceeded 0",
        ),
        (
            "our cancel",
            DEADLINE,
            143,
            "@12",
            Some(stop(CancelRequested, 9, None)),
            "Cancelled/CancelRequested 143",
        ),
        (
            "ended before it was stopped",
            DEADLINE,
            0,
            "@09",
            Some(stop(CancelRequested, 8, None)),
            "Succeeded/Completed 0",
        ),
        (
            "ended in the same second",
            DEADLINE,
            3,
            "@10",
            Some(stop(CancelRequested, 8, None)),
            "Cancelled/CancelRequested 3",
        ),
        (
            "controller slow, pod deleted by us",
            "",
            0,
            "@12",
            Some(stop(CancelRequested, 9, None)),
            "Cancelled/CancelRequested 0",
        ),
        (
            "deleted by hand before our cancel",
            "",
            0,
            "@12",
            Some(stop(CancelRequested, 12, None)),
            "Failed/PodDeleted 0",
        ),
    ] {
        let pod = pod(&format!("{DELETED}{}", ended(code, "Error", finished)));
        assert_eq!(
            story(&ready(&batch_job(batch), &pod), stop.as_ref(), deadline),
            expected,
            "{what}"
        );
    }
}

#[test]
#[rustfmt::skip] // one row, one line
fn the_kubelets_last_delete_does_not_hide_that_an_end_was_asked_for() {
    // The kubelet deletes what has ended, and with our finalizer on the pod that moves the deletion to second 18.
    let gone = |finished: &str, generation: &str| {
        let status = ended(0, "Completed", finished).replace("status: {", &format!("status: {{ {generation} "));
        let deleted = "metadata: { generation: 3, deletionTimestamp: @18, deletionGracePeriodSeconds: 0 }";
        pod(&format!("{deleted}\n{status}"))
    };
    let (unseen, seen) = ("observedGeneration: 2,", "observedGeneration: 3,");
    let cancel = stop(StopReason::CancelRequested, 11, None);
    let late = DEADLINE.replace("@10", "@17");
    for (what, batch, pod, stop, expected) in [
        ("deleted while it ran", "", gone("@15", seen), None, "Failed/PodDeleted 0"),
        ("the same, where nobody counts generations", "", gone("@15", ""), None, "Failed/PodDeleted 0"),
        ("deleted after its end", "", gone("@15", unseen), None, "Succeeded/Completed 0"),
        ("forced away", "", gone("@19", seen), None, "Failed/PodDeleted 0"),
        ("our cancel", DEADLINE, gone("@12", seen), Some(&cancel), "Cancelled/CancelRequested 0"),
        ("our cancel, by deleting the pod", "", gone("@12", seen), Some(&cancel), "Cancelled/CancelRequested 0"),
        ("ended before our cancel", "", gone("@10", seen), Some(&cancel), "Succeeded/Completed 0"),
        ("the guard", DEADLINE, gone("@12", seen), None, "Failed/DeadlineExceeded 0"),
        ("ended long before the guard", &late, gone("@09", seen), None, "Succeeded/Completed 0"),
    ] {
        let record = Record { stop_requested: stop.map(|s| s.requested_time.0), ..RECORD };
        let state = state(record, Some(&batch_job(batch)), &pod, NodeHealth::Ready);
        assert_eq!(story(&state, stop, Some(at(10))), expected, "{what}");
    }
}

#[test]
fn an_eviction_that_came_after_our_stop_did_not_cause_the_end() {
    let late = disrupted("EvictionByEvictionAPI").replace("@10", "@13");
    let status = ended(0, "Error", "@14").replace("status: {", &format!("status: {{ conditions: [{late}], "));
    let pod = pod(&format!("{DELETED}{status}"));
    let stop = stop(StopReason::CancelRequested, 9, None);
    assert_eq!(
        story(&ready(&batch_job(DEADLINE), &pod), Some(&stop), None),
        "Cancelled/CancelRequested 0"
    );
}

#[test]
fn a_suspended_batch_job_has_ended_its_pod_only_when_the_process_ended() {
    let suspended = batch_job("spec: { suspend: true }");
    let going = pod(&format!("{DELETED}{}", container("running: { startedAt: @05 }")));
    assert_eq!(
        story(&ready(&suspended, &going), None, None),
        "runs, is being ended"
    );
    let ended_by_it = pod(&format!("{DELETED}{}", ended(0, "Error", "@14")));
    assert_eq!(
        story(&ready(&suspended, &ended_by_it), None, None),
        "Failed/PodDeleted 0"
    );
    let held = held_pod("metadata: { deletionTimestamp: @10, deletionGracePeriodSeconds: 0 }");
    assert_eq!(
        story(&ready(&suspended, &held), None, None),
        "Failed/PodDeleted, never started"
    );
}

#[test]
fn a_batch_job_that_is_gone_does_not_end_a_process() {
    let orphan = "metadata: { ownerReferences: null }\n";
    let running = container("running: { startedAt: @05 }");
    for (what, pod, expected) in [
        ("orphaned", pod(&format!("{orphan}{running}")), "runs"),
        (
            "deleted in the background",
            pod(&format!("{DELETED}{running}")),
            "runs, is being ended",
        ),
        (
            "its end",
            pod(&format!("{DELETED}{}", ended(0, "Error", "@12"))),
            "Failed/PodDeleted 0",
        ),
    ] {
        assert_eq!(
            story(&state(RECORD, None, &pod, NodeHealth::Ready), None, None),
            expected,
            "{what}"
        );
    }
}

#[test]
fn what_a_silent_node_last_said_proves_only_ends() {
    let running = container("running: { startedAt: @05 }");
    for (what, pod, node, expected) in [
        (
            "runs",
            pod(&running),
            NodeHealth::Silent,
            "unknown: BackendUnreachable",
        ),
        (
            "waits",
            pod(&container("waiting: { reason: ContainerCreating }")),
            NodeHealth::Silent,
            "unknown: BackendUnreachable",
        ),
        (
            "node object gone, pod not given up",
            pod(&running),
            NodeHealth::Gone,
            "unknown: BackendUnreachable",
        ),
        ("ended", pod(EXIT_0), NodeHealth::Silent, "Succeeded/Completed 0"),
        (
            "given up, node object gone",
            pod(&running.replace("Pending", "Failed")),
            NodeHealth::Gone,
            "Failed/ExecutionLost",
        ),
        (
            "given up, node out of service",
            pod(&running.replace("Pending", "Failed")),
            NodeHealth::Silent,
            "unknown: BackendUnreachable",
        ),
        (
            "given up, node back",
            pod(&running.replace("Pending", "Failed")),
            NodeHealth::Ready,
            "Failed/ExecutionLost",
        ),
    ] {
        assert_eq!(
            story(&state(RECORD, Some(&batch_job("")), &pod, node), None, None),
            expected,
            "{what}"
        );
    }
}

#[test]
fn a_pod_given_up_with_its_node_was_ended_by_nobody() {
    let lost = disrupted("DeletionByPodGC");
    let status =
        container("running: { startedAt: @05 }").replace("Pending", &format!("Failed, conditions: [{lost}]"));
    let pod = pod(&format!("{DELETED}{status}"));
    let story = story(
        &state(RECORD, Some(&batch_job("")), &pod, NodeHealth::Gone),
        None,
        None,
    );
    assert_eq!(story, "Failed/ExecutionLost");
}

#[test]
fn a_code_that_nobody_measured_is_none() {
    let unknown = ended(137, "ContainerStatusUnknown", "@15");
    let restarted = EXIT_0.replace("restartCount: 0", "restartCount: 1");
    let cancel = stop(StopReason::CancelRequested, 9, None);
    for (what, pod, node, stop, expected) in [
        (
            "container lost",
            pod(&unknown),
            NodeHealth::Ready,
            None,
            "Failed/ExecutionLost",
        ),
        (
            "container lost, node silent",
            pod(&unknown),
            NodeHealth::Silent,
            None,
            "unknown: BackendUnreachable",
        ),
        (
            "cancelled before it started",
            pod(&format!("{DELETED}{unknown}")),
            NodeHealth::Ready,
            Some(&cancel),
            "Cancelled/CancelRequested",
        ),
        (
            "deleted before it started",
            pod(&format!("{DELETED}{unknown}")),
            NodeHealth::Ready,
            None,
            "Failed/PodDeleted",
        ),
        (
            "started again by the node",
            pod(&restarted),
            NodeHealth::Ready,
            None,
            "Failed/ExecutionLost",
        ),
        (
            "starts again",
            pod(&restarted.replace("Succeeded", "Running")),
            NodeHealth::Ready,
            None,
            "runs",
        ),
        (
            "refused by the kubelet",
            pod("status: { phase: Failed, reason: OutOfcpu }"),
            NodeHealth::Ready,
            None,
            "Failed/ExecutionLost",
        ),
    ] {
        let state = state(RECORD, Some(&batch_job("")), &pod, node);
        let story = story(&state, stop, None);
        assert!(story.starts_with(expected), "{what}: {story}");
        assert!(!story.contains("137"), "{what}: {story}");
    }
}

#[test]
fn a_pod_that_is_gone_proves_an_end_only_with_its_node() {
    let delivered = stop(StopReason::CancelRequested, 9, Some(10));
    for (node, settled, stop, expected) in [
        (NodeHealth::Silent, true, None, "unknown: BackendUnreachable"),
        (NodeHealth::Ready, false, None, "unknown: ExecutionNotFound"),
        (NodeHealth::Ready, true, None, "Failed/ExecutionLost"),
        (NodeHealth::Gone, false, None, "Failed/ExecutionLost"),
        (
            NodeHealth::Ready,
            true,
            Some(&delivered),
            "Cancelled/CancelRequested",
        ),
    ] {
        for record in [RECORD, Record { node: None, ..RECORD }] {
            assert_eq!(
                story(&State::Gone(missing(record, node, settled)), stop, None),
                expected
            );
        }
    }
}

#[test]
fn a_pod_that_was_never_let_go_never_started() {
    let cancel = stop(StopReason::CancelRequested, 9, None);
    let deleted = held_pod("metadata: { deletionTimestamp: @10, deletionGracePeriodSeconds: 0 }");
    let ungated = held_pod("metadata: { deletionTimestamp: @10 }\nspec: { schedulingGates: [] }");
    for (what, batch, pod, stop, expected) in [
        ("held", "", held_pod(""), None, "held"),
        (
            "deleted by hand",
            "",
            deleted.clone(),
            None,
            "Failed/PodDeleted, never started",
        ),
        (
            "cancelled",
            DEADLINE,
            deleted,
            Some(&cancel),
            "Cancelled/CancelRequested, never started",
        ),
        (
            "let go, deleted before it got a node",
            "",
            ungated,
            None,
            "Failed/PodDeleted, never started",
        ),
    ] {
        assert_eq!(
            story(&ready(&batch_job(batch), &pod), stop, None),
            expected,
            "{what}"
        );
    }
}

#[test]
fn what_a_pod_waits_for_is_said_in_words_that_stay_the_same() {
    let waiting = |reason: &str, message: &str| {
        pod(&container(&format!(
            "waiting: {{ reason: {reason}, message: '{message}' }}"
        )))
    };
    let why = |pod: &Pod| match ready(&batch_job(""), pod) {
        State::Waiting(waiting) => waiting.why,
        other => panic!("{other:?}"),
    };
    for (reason, message, expected) in [
        ("ErrImageNeverPull", "", "ImagePullFailed"),
        ("InvalidImageName", "", "InvalidImageName"),
        (
            "CreateContainerConfigError",
            "secret \"s\" not found",
            "ContainerConfigError",
        ),
        ("CreateContainerError", "id 1234", "ContainerConfigError"),
        ("ContainerCreating", "", "Pending"),
        ("PodInitializing", "", "Pending"),
        ("SomethingNew", "", "Pending"),
    ] {
        assert_eq!(why(&waiting(reason, message)).reason, expected);
    }
    let missing = "rpc error: code = NotFound desc = failed to pull and unpack image: not found";
    let pulling = why(&waiting("ErrImagePull", missing));
    let backing_off = why(&waiting(
        "ImagePullBackOff",
        &format!("Back-off pulling image \"a\": ErrImagePull: {missing}"),
    ));
    assert_eq!(
        (pulling.reason.as_str(), &pulling),
        ("ImagePullFailed", &backing_off)
    );

    let unscheduled = |message: &str| {
        let condition =
            format!("{{ type: PodScheduled, status: 'False', reason: Unschedulable, message: '{message}' }}");
        why(&held_pod(&format!(
            "spec: {{ schedulingGates: [] }}\nstatus: {{ phase: Pending, conditions: [{condition}] }}"
        )))
    };
    let three = unscheduled(
        "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) had untolerated taint(s). preemption: 0/3 nodes are available: 3 Preemption is not helpful.",
    );
    let four = unscheduled(
        "0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 Insufficient cpu. no new claims to deallocate",
    );
    assert_eq!((three.reason.as_str(), &three), ("Unschedulable", &four));
    assert_eq!(
        three.message,
        "no node fits: Insufficient cpu, node(s) had untolerated taint(s); it starts when a node does"
    );

    let gated = why(&held_pod(
        "spec: { schedulingGates: [{ name: example.com/quota }] }",
    ));
    assert_eq!(gated.reason, "SchedulingGated");
    assert!(gated.message.contains("example.com/quota"));
}

#[test]
fn a_command_that_has_started_is_never_said_to_wait() {
    let started = Record {
        started: true,
        ..RECORD
    };
    let pod = pod(&container("waiting: { reason: ContainerCreating }"));
    assert_eq!(
        story(
            &state(started, Some(&batch_job("")), &pod, NodeHealth::Ready),
            None,
            None
        ),
        "runs"
    );
}

#[test]
fn words_of_a_newer_cluster_are_not_terminal() {
    let strange = pod(
        "status: { phase: Foo, conditions: [{ type: Bar, status: Perhaps }] }\nspec: { restartPolicy: Sometimes }",
    );
    let batch = batch_job("status: { conditions: [{ type: Bar, status: 'True' }] }");
    assert_eq!(story(&ready(&batch, &strange), None, None), "waits: Pending");
    assert!(!batch.terminal);
}

#[test]
fn a_recorded_pod_of_another_controller_is_nobodys() {
    let foreign = pod(
        "metadata: { ownerReferences: [{ apiVersion: v1, kind: Job, name: b, controller: true, uid: other }] }",
    );
    assert_eq!(
        story(&ready(&batch_job(""), &foreign), None, None),
        "unknown: ForeignExecution"
    );
}

// ------------------------------------------------------------------------------------ nothing is recorded yet

fn found(batch: &str, pods: &[Arc<Pod>], refusals: &[Arc<Refusal>]) -> String {
    let backend = BackendIdentity {
        parameters_uid: "p".to_owned(),
        endpoint_hash: String::new(),
    };
    match prospect(JOB_UID, backend, Some(&batch_job(batch)), pods, refusals) {
        Prospect::Absent => "absent".to_owned(),
        Prospect::Preparing(why) => format!("preparing: {}", why.reason),
        Prospect::Found(name, _) => {
            assert_eq!(name.id, BATCH_UID);
            format!("found: {}", name.uid.unwrap_or_default())
        }
        Prospect::Pending(..) => "pending".to_owned(),
        Prospect::Spoilt(why) => format!("spoilt: {}", why.reason),
        Prospect::Conflict(why) => format!("conflict: {}", why.reason),
    }
}

#[test]
fn only_a_held_pod_of_our_batch_job_or_one_that_somebody_let_go_can_be_recorded() {
    let other_owner = "metadata: { ownerReferences: [{ apiVersion: x/v1, kind: Job, name: b, controller: true, uid: other }] }";
    let terminal = "status: { conditions: [{ type: Failed, status: 'True', reason: DeadlineExceeded }] }";
    let deleting = "metadata: { deletionTimestamp: @10 }";
    let named = |uid: &str, created: &str| {
        held_pod(&format!(
            "metadata: {{ uid: {uid}, creationTimestamp: {created} }}"
        ))
    };
    let (a, b) = (named("a", "@02"), named("b", "@01"));
    let ungated = pod("metadata: { uid: c, creationTimestamp: @09 }");
    let spoof = held_pod("metadata: { uid: spoof, creationTimestamp: @00, ownerReferences: null }");
    let going = held_pod("metadata: { deletionTimestamp: @10 }");
    for (what, batch, pods, expected) in [
        ("a stranger's", other_owner, vec![], "conflict: NameConflict"),
        (
            "without owner",
            "metadata: { ownerReferences: null }",
            vec![],
            "conflict: NameConflict",
        ),
        ("no pod yet", "", vec![], "preparing: Pending"),
        (
            "the oldest held pod",
            "",
            vec![a.clone(), b.clone(), spoof.clone()],
            "found: b",
        ),
        (
            "one that somebody let go",
            "",
            vec![a.clone(), b.clone(), ungated.clone()],
            "found: c",
        ),
        ("only a copy of our labels", "", vec![spoof], "preparing: Pending"),
        ("a held pod that is going", "", vec![going], "preparing: Pending"),
        (
            "suspended",
            "spec: { suspend: true }",
            vec![b.clone()],
            "preparing: BackendSuspended",
        ),
        (
            "told to run no pod",
            "spec: { parallelism: 0 }",
            vec![],
            "preparing: BackendSuspended",
        ),
        ("ended", terminal, vec![b.clone()], "spoilt: PodDeleted"),
        ("being deleted", deleting, vec![b], "spoilt: PodDeleted"),
        (
            "ended, but somebody let a pod go",
            terminal,
            vec![a, ungated],
            "found: c",
        ),
    ] {
        assert_eq!(found(batch, &pods, &[]), expected, "{what}");
    }
    let backend = BackendIdentity::default();
    assert_eq!(prospect(JOB_UID, backend, None, &[], &[]), Prospect::Absent);
}

#[test]
fn why_a_batch_job_has_no_pod_is_read_from_its_events() {
    for (message, reason, kept) in [
        (
            "Error creating: pods \"build-x-\" is forbidden: error looking up service account team/runner: serviceaccount \"runner\" not found",
            "ServiceAccountNotFound",
            "team/runner",
        ),
        (
            "Error creating: pods \"build-x-8xkqz\" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=3, limited: pods=3",
            "QuotaExceeded",
            "exceeded quota pods, requested: pods=1, limited: pods=3",
        ),
        (
            "Error creating: pods \"build-x-8xkqz\" is forbidden: failed quota: cpu: must specify limits.cpu for: job",
            "QuotaExceeded",
            "must specify limits.cpu",
        ),
        (
            "Error creating: pods \"build-x-8xkqz\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false",
            "BackendRejected",
            "violates PodSecurity",
        ),
        (
            "Error creating: Pod \"build-x-8xkqz\" is invalid: spec.x: Invalid value",
            "BackendRejected",
            "spec.x",
        ),
        (
            "Error creating: Internal error occurred: no endpoints",
            "BackendRejected",
            "Internal error",
        ),
    ] {
        assert_eq!(
            found("", &[], &[fixture::refusal(message)]),
            format!("preparing: {reason}"),
            "{message}"
        );
        let why = refusal(message);
        assert!(why.message.contains(kept), "{}", why.message);
        assert!(!why.message.contains("8xkqz"), "{}", why.message);
    }
}

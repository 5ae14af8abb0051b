use std::sync::LazyLock;

use ayatori_core::lifecycle::{self, Facts, Question, Settings, Step};
use ayatori_core::names::{EXECUTION_FINALIZER, JOB_UID_LABEL};
use ayatori_core::ownership::{self, Orphanhood, Ownership, Selection};
use ayatori_core::stage::Stage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::fixture::{
    self, Asked, BATCH_UID, JOB_UID, NODE, POD_UID, api_server, batch_job, batch_job_object, held_pod, pod,
    pod_object,
};
use crate::view::Node;

const OVER: &str = "status: { phase: Succeeded, containerStatuses: [{ name: job, restartCount: 0, image: a, imageID: b, ready: false, state: { terminated: { exitCode: 0, finishedAt: @05 } } }] }";
const RUNS: &str = "status: { phase: Running, containerStatuses: [{ name: job, restartCount: 0, image: a, imageID: b, ready: true, state: { running: { startedAt: @05 } } }] }";
const ENDED_BUT_GOES_ON: &str = "status: { phase: Running, containerStatuses: [{ name: job, restartCount: 0, image: a, imageID: b, ready: false, state: { terminated: { exitCode: 0, finishedAt: @05 } } }] }";

/// A backend whose caches show this, its API server's answers, and what it asked.
struct World {
    backend: KubernetesBackend,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl World {
    fn of(jobs: Vec<Arc<BatchJob>>, pods: Vec<Arc<Pod>>, answer: fn(&str, &str) -> (u16, Value)) -> Self {
        let (client, asked) = api_server(answer);
        let options = Options {
            job_guard_seconds: 120,
            controller_slow_seconds: 5,
            node_silence_seconds: 60,
            allow_secret_checks: false,
            secret_namespaces: Vec::new(),
        };
        let backend = KubernetesBackend::new(&client, &options);
        let node = Arc::new(Node {
            name: NODE.to_owned(),
            ready: true,
        });
        // The caches look for the child by its real name.
        let child = name::batch_job("build", JOB_UID);
        let renamed = |job: &Arc<BatchJob>| {
            let mut job = BatchJob::clone(job);
            job.id.name.clone_from(&child);
            Arc::new(job)
        };
        let jobs = jobs.iter().map(renamed).collect();
        backend
            .watches
            .lock()
            .unwrap()
            .as_mut()
            .unwrap()
            .show(jobs, pods, vec![node]);
        Self { backend, asked }
    }

    /// What was asked: method, kind of object, body.
    fn requests(&self) -> Vec<(String, String, Value)> {
        let words = |asked: &Asked| {
            let path = asked.path.split('?').next().unwrap_or_default();
            let resource = if path.contains("/pods") {
                "pod"
            } else {
                "batch job"
            };
            (asked.method.clone(), resource.to_owned(), asked.body.clone())
        };
        self.asked.lock().unwrap().iter().map(words).collect()
    }

    fn writes(&self) -> Vec<String> {
        let writes = self.requests().into_iter().filter(|(method, ..)| method != "GET");
        writes
            .map(|(method, resource, _)| format!("{method} {resource}"))
            .collect()
    }
}

fn all_well(method: &str, _: &str) -> (u16, Value) {
    match method {
        "GET" => (404, json!("not found")),
        "DELETE" => (
            200,
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }),
        ),
        _ => (
            200,
            json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {} }),
        ),
    }
}

fn recorded_job(more: &str) -> Job {
    fixture::job(&format!(
        "status: {{ execution: {{ id: {BATCH_UID}, uid: {POD_UID}, nodeName: {NODE}, startRequestedTime: @03 {more} }} }}"
    ))
}

fn recorded(job: &Job) -> Recorded<'_> {
    match Stage::of(job) {
        Stage::Recorded(recorded) => recorded,
        other => panic!("{other:?}"),
    }
}

fn finished_job(finished: Timestamp, execution: &str) -> Job {
    fixture::job(&format!(
        "status:
           finishTime: '{finished}'
           conditions:
           - {{ type: Accepted, status: 'True', reason: A, message: '', lastTransitionTime: @02 }}
           - {{ type: Finished, status: 'True', reason: F, message: '', lastTransitionTime: @20 }}
           execution: {execution}"
    ))
}

fn closed(job: &Job) -> Closed<'_> {
    match Stage::of(job) {
        Stage::Finished(Some(closed)) => closed,
        other => panic!("{other:?}"),
    }
}

/// Only a decision about a Job that is being deleted makes one of these.
fn departing(job: &Job) -> Departing<'_> {
    static NO_CLASS: LazyLock<Selection<'static>> =
        LazyLock::new(|| Selection::Nothing(Orphanhood::NoClass(Why::new("JobClassNotFound", ""))));
    let Ownership::Owned(owned) = ownership::of_job(job, KUBERNETES_CONTROLLER, &NO_CLASS, []) else {
        panic!()
    };
    let step = lifecycle::decide(&owned, &Facts::default(), &Settings::default(), fixture::at(30));
    let Step::Ask(Question::Remains(departing)) = step else {
        panic!("{step:?}")
    };
    departing
}

fn deleted_job() -> Job {
    let mut job = finished_job(fixture::at(20), &names());
    job.metadata.deletion_timestamp = Some(Time(fixture::at(25)));
    job.metadata.finalizers = Some(vec![EXECUTION_FINALIZER.to_owned()]);
    job
}

fn names() -> String {
    format!("{{ id: {BATCH_UID}, uid: {POD_UID} }}")
}

#[tokio::test]
async fn a_start_takes_off_our_gate_alone_from_exactly_the_pod_that_was_read() {
    let pod = held_pod(
        "spec: { schedulingGates: [{ name: example.com/other }, { name: execution.ayatori.ddupan.top/start }] }",
    );
    let world = World::of(vec![batch_job("")], vec![pod], all_well);
    assert_eq!(
        world.backend.start(recorded(&recorded_job("")), None).await,
        Answer::Done
    );
    let (_, resource, body) = world.requests().remove(0);
    assert_eq!(resource, "pod");
    assert_eq!(
        body,
        json!([
            { "op": "test", "path": "/metadata/uid", "value": POD_UID },
            { "op": "test", "path": "/metadata/resourceVersion", "value": "9" },
            { "op": "test", "path": "/spec/schedulingGates/1/name", "value": "execution.ayatori.ddupan.top/start" },
            { "op": "remove", "path": "/spec/schedulingGates/1" },
        ])
    );
}

#[tokio::test]
async fn an_answer_to_a_write_is_sorted_by_what_to_do_about_it() {
    fn stale(_: &str, _: &str) -> (u16, Value) {
        (
            422,
            json!("the server rejected our request due to an error in our request"),
        )
    }
    fn conflict(_: &str, _: &str) -> (u16, Value) {
        (409, json!("the object has been modified"))
    }
    fn role(_: &str, _: &str) -> (u16, Value) {
        (
            403,
            json!("pods \"p\" is forbidden: User \"u\" cannot patch resource \"pods\" in API group \"\""),
        )
    }
    fn policy(_: &str, _: &str) -> (u16, Value) {
        (
            422,
            json!("pods \"p\" is forbidden: ValidatingAdmissionPolicy 'x' denied request: no"),
        )
    }
    fn down(_: &str, _: &str) -> (u16, Value) {
        (503, json!("away"))
    }
    for (answer, expected) in [
        (stale as fn(&str, &str) -> (u16, Value), "stale"),
        (conflict, "stale"),
        (role, "rejected: BackendForbidden"),
        (policy, "rejected: BackendRejected"),
        (down, "unavailable: BackendUnavailable"),
    ] {
        let world = World::of(vec![batch_job("")], vec![held_pod("")], answer);
        let answer = match world.backend.start(recorded(&recorded_job("")), None).await {
            Answer::Stale => "stale".to_owned(),
            Answer::Rejected(why) => format!("rejected: {}", why.reason),
            Answer::Unavailable(why) => format!("unavailable: {}", why.reason),
            other => panic!("{other:?}"),
        };
        assert_eq!(answer, expected);
    }
}

#[tokio::test]
async fn a_batch_job_is_created_strictly_and_a_stranger_of_its_name_is_left_alone() {
    fn created(method: &str, path: &str) -> (u16, Value) {
        assert!(
            method == "POST" && path.contains("fieldValidation=Strict") && path.contains("fieldManager=")
        );
        (201, batch_job_object(""))
    }
    fn ours(method: &str, _: &str) -> (u16, Value) {
        match method {
            "POST" => (409, json!("jobs.batch \"x\" already exists")),
            _ => (200, batch_job_object("")),
        }
    }
    fn strangers(method: &str, _: &str) -> (u16, Value) {
        match method {
            "POST" => (409, json!("jobs.batch \"x\" already exists")),
            _ => (200, batch_job_object("metadata: { ownerReferences: null }")),
        }
    }
    fn quota(_: &str, _: &str) -> (u16, Value) {
        (
            403,
            json!(
                "jobs.batch \"x\" is forbidden: exceeded quota: q, requested: count/jobs.batch=1, used: count/jobs.batch=2, limited: count/jobs.batch=2"
            ),
        )
    }
    for (answer, expected) in [
        (created as fn(&str, &str) -> (u16, Value), "done"),
        (ours, "done"),
        (strangers, "NameConflict"),
        (quota, "QuotaExceeded"),
    ] {
        let world = World::of(vec![], vec![], answer);
        let job = fixture::job("");
        let parameters = KubernetesExecutionParameters::default();
        let answer = match world.backend.prepare(fixture::accepted(&job), &parameters).await {
            Answer::Done => "done".to_owned(),
            Answer::Rejected(why) => why.reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(answer, expected);
        assert_eq!(world.writes(), ["POST batch job"]);
    }
}

#[tokio::test]
async fn what_was_just_created_is_known_before_a_watch_shows_it() {
    fn created(_: &str, _: &str) -> (u16, Value) {
        let named = format!("metadata: {{ name: {} }}", name::batch_job("build", JOB_UID));
        (201, batch_job_object(&named))
    }
    let world = World::of(vec![], vec![], created);
    let job = fixture::job("");
    let accepted = fixture::accepted(&job);
    assert_eq!(world.backend.survey(accepted, None).await, Ok(Prospect::Absent));
    world
        .backend
        .prepare(accepted, &KubernetesExecutionParameters::default())
        .await;
    assert!(matches!(
        world.backend.survey(accepted, None).await,
        Ok(Prospect::Preparing(_))
    ));
}

#[tokio::test]
async fn a_stop_goes_through_the_batch_job_and_to_the_pod_when_that_is_slow() {
    let now = Timestamp::now();
    let stopped = |at: Timestamp| {
        recorded_job(&format!(
            ", stop: {{ reason: CancelRequested, requestedTime: '{at}' }}"
        ))
    };
    let (fresh, old) = (stopped(now), stopped(now - SignedDuration::from_secs(6)));
    let expired = "spec: { activeDeadlineSeconds: 1 }";
    let going = format!("metadata: {{ deletionTimestamp: @10 }}\n{RUNS}");
    for (what, jobs, runs, job, expected) in [
        ("first", vec![batch_job("")], RUNS, &old, &["PATCH batch job"][..]),
        ("not slow yet", vec![batch_job(expired)], RUNS, &fresh, &[]),
        ("slow", vec![batch_job(expired)], RUNS, &old, &["DELETE pod"]),
        ("slow, but under way", vec![batch_job(expired)], &going, &old, &[]),
        (
            "suspended",
            vec![batch_job("spec: { suspend: true }")],
            RUNS,
            &fresh,
            &["DELETE batch job"],
        ),
        ("batch Job gone", vec![], RUNS, &fresh, &["DELETE pod"]),
        (
            "batch Job replaced",
            vec![batch_job("metadata: { uid: other }")],
            RUNS,
            &fresh,
            &["DELETE pod"],
        ),
        (
            "batch Job going",
            vec![batch_job("metadata: { deletionTimestamp: @10 }")],
            RUNS,
            &fresh,
            &["DELETE pod"],
        ),
    ] {
        let world = World::of(jobs, vec![pod(runs)], all_well);
        world.backend.stop(recorded(job), None).await;
        assert_eq!(world.writes(), expected, "{what}");
        for (method, resource, body) in world
            .requests()
            .into_iter()
            .filter(|(method, ..)| method == "DELETE")
        {
            let (uid, propagation) = match resource.as_str() {
                "pod" => (POD_UID, "Background"),
                _ => (BATCH_UID, "Foreground"),
            };
            assert_eq!(body["preconditions"]["uid"], uid, "{method} {resource}");
            assert_eq!(body["propagationPolicy"], propagation, "{method} {resource}");
        }
    }
}

#[tokio::test]
async fn a_release_is_one_write_in_the_ordinary_case() {
    let job = finished_job(Timestamp::now(), &names());
    let world = World::of(vec![batch_job("")], vec![pod(OVER)], all_well);
    assert_eq!(world.backend.release(closed(&job), None).await, Answer::Done);
    let requests = world.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        requests[0].2[1],
        json!({ "op": "test", "path": "/metadata/finalizers/1", "value": "execution.ayatori.ddupan.top/result" })
    );
}

#[tokio::test]
async fn after_a_release_nothing_can_start() {
    let (now, past) = (Timestamp::now(), fixture::at(20));
    let extra = held_pod("metadata: { uid: extra, name: extra }");
    let extra_going = held_pod("metadata: { uid: extra, name: extra, deletionTimestamp: @10 }");
    let failed = "status: { conditions: [{ type: Failed, status: 'True' }] }";
    let unstarted = held_pod("metadata: { deletionTimestamp: @10 }");
    for (what, finished, execution, batch, pods, expected) in [
        (
            "still counted",
            now,
            names(),
            "",
            vec![pod(ENDED_BUT_GOES_ON)],
            &[][..],
        ),
        (
            "goes on",
            past,
            names(),
            "",
            vec![pod(ENDED_BUT_GOES_ON)],
            &["PATCH batch job"],
        ),
        (
            "goes on in spite of it",
            past,
            names(),
            "spec: { activeDeadlineSeconds: 1 }",
            vec![pod(ENDED_BUT_GOES_ON)],
            &["DELETE pod"],
        ),
        ("never started", now, names(), "", vec![unstarted], &["PATCH pod"]),
        (
            "suspended",
            now,
            names(),
            "spec: { suspend: true }",
            vec![pod(OVER)],
            &["DELETE batch job", "PATCH pod"],
        ),
        (
            "an extra pod",
            now,
            names(),
            "",
            vec![pod(OVER), extra.clone()],
            &["PATCH batch job", "PATCH pod"],
        ),
        (
            "an extra pod of an ended batch Job",
            now,
            names(),
            failed,
            vec![pod(OVER), extra.clone()],
            &["DELETE pod", "PATCH pod"],
        ),
        (
            "an extra pod that is going",
            now,
            names(),
            failed,
            vec![pod(OVER), extra_going],
            &["PATCH pod", "PATCH pod"],
        ),
        (
            "nothing recorded",
            now,
            "{}".to_owned(),
            "",
            vec![extra],
            &["DELETE batch job", "PATCH pod"],
        ),
    ] {
        let job = finished_job(finished, &execution);
        let world = World::of(vec![batch_job(batch)], pods, all_well);
        world.backend.release(closed(&job), None).await;
        let mut writes = world.writes();
        writes.sort();
        assert_eq!(writes, expected, "{what}");
    }
}

#[tokio::test]
async fn what_remains_of_a_job_is_its_own_and_absence_is_proven_live() {
    fn a_pod(_: &str, path: &str) -> (u16, Value) {
        let items = [pod_object("metadata: { ownerReferences: null }")];
        match path.contains("/pods") {
            true => (
                200,
                json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }),
            ),
            false => (404, json!("not found")),
        }
    }
    let spoof = pod("metadata: { uid: spoof, ownerReferences: null, finalizers: null }");
    for (what, jobs, pods, answer, expected) in [
        (
            "nothing",
            vec![],
            vec![],
            shows_nothing as fn(&str, &str) -> (u16, Value),
            true,
        ),
        ("not in the cache", vec![], vec![], a_pod, false),
        (
            "not in the cache, and its label taken off",
            vec![],
            vec![],
            shows_a_stripped_pod_that_runs,
            false,
        ),
        ("a batch Job", vec![batch_job("")], vec![], shows_nothing, false),
        (
            "an orphaned batch Job",
            vec![batch_job("metadata: { ownerReferences: null }")],
            vec![],
            shows_nothing,
            false,
        ),
        (
            "a stranger's batch Job",
            vec![batch_job(
                "metadata: { uid: x, ownerReferences: null, labels: null }",
            )],
            vec![],
            shows_nothing,
            true,
        ),
        ("a copy of our labels", vec![], vec![spoof], shows_nothing, true),
    ] {
        let world = World::of(jobs, pods, answer);
        let job = deleted_job();
        let remains = world.backend.remains(departing(&job), None).await.unwrap();
        assert_eq!(remains == Remains::Nothing, expected, "{what}: {remains:?}");
    }
}

#[tokio::test]
async fn a_removal_deletes_in_the_foreground_and_lets_go_of_what_is_over() {
    let orphan = |more: &str| pod(&format!("metadata: {{ ownerReferences: null }}\n{more}"));
    for (what, jobs, pods, expected) in [
        (
            "ended",
            vec![batch_job("")],
            vec![pod(OVER)],
            &["DELETE batch job", "PATCH pod"][..],
        ),
        (
            "held",
            vec![batch_job("")],
            vec![held_pod("")],
            &["DELETE batch job", "PATCH pod"],
        ),
        (
            "going",
            vec![batch_job("metadata: { deletionTimestamp: @10 }")],
            vec![pod(RUNS)],
            &[],
        ),
        (
            "orphaned",
            vec![],
            vec![orphan(OVER)],
            &["DELETE pod", "PATCH pod"],
        ),
    ] {
        let world = World::of(jobs, pods, all_well);
        let job = deleted_job();
        world.backend.remove(departing(&job), None).await;
        let mut writes = world.writes();
        writes.sort();
        assert_eq!(writes, expected, "{what}");
    }
}

#[tokio::test]
async fn a_removal_lets_go_of_the_recorded_pod_though_its_label_was_taken_off() {
    let batch = batch_job("metadata: { deletionTimestamp: @10 }");
    let world = World::of(vec![batch], vec![], shows_a_stripped_pod_that_is_over);
    world.backend.remove(departing(&deleted_job()), None).await;
    assert_eq!(world.writes(), ["PATCH pod"]);
}

/// What an API server answers to reads that holds this pod and nothing else.
fn holding(pod: &Value, path: &str) -> (u16, Value) {
    let list = |items: &[&Value], next: &str| {
        let metadata = json!({ "continue": next });
        (
            200,
            json!({ "kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items }),
        )
    };
    let is_labelled = pod["metadata"]["labels"][JOB_UID_LABEL] == JOB_UID;
    match path {
        _ if path.contains("/pods/build-x-abcde") => (200, pod.clone()),
        _ if !path.contains("/pods") => (404, json!("not found")),
        _ if path.contains("labelSelector") && !is_labelled => list(&[], ""),
        _ if path.contains("limit") && !path.contains("continue") => list(&[], "next"),
        _ => list(&[pod], ""),
    }
}

/// The recorded pod without the labels by which ours are found, and what is changed on it.
fn stripped(more: &str) -> Value {
    pod_object(&format!("metadata: {{ labels: null }}\n{more}"))
}

fn shows_a_stripped_pod_that_runs(method: &str, path: &str) -> (u16, Value) {
    match method {
        "GET" => holding(&stripped(RUNS), path),
        _ => all_well(method, path),
    }
}

fn shows_a_stripped_pod_that_is_over(method: &str, path: &str) -> (u16, Value) {
    match method {
        "GET" => holding(&stripped(OVER), path),
        _ => all_well(method, path),
    }
}

fn shows_a_held_pod(method: &str, path: &str) -> (u16, Value) {
    const HELD: &str = "spec: { nodeName: null }";
    match method {
        "GET" => holding(&pod_object(HELD), path),
        _ => all_well(method, path),
    }
}

fn shows_nothing(_: &str, path: &str) -> (u16, Value) {
    match path.contains("/pods") {
        true => (
            200,
            json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [] }),
        ),
        false => (404, json!("not found")),
    }
}

#[tokio::test]
async fn a_pod_that_a_cache_does_not_show_is_looked_for_live_whatever_its_labels() {
    fn live(_: &str, path: &str) -> (u16, Value) {
        holding(&pod_object(RUNS), path)
    }
    fn another(_: &str, path: &str) -> (u16, Value) {
        holding(&pod_object("metadata: { uid: another }"), path)
    }
    fn down(_: &str, _: &str) -> (u16, Value) {
        (503, json!("away"))
    }
    for (answer, expected) in [
        (live as fn(&str, &str) -> (u16, Value), "runs"),
        (shows_a_stripped_pod_that_runs, "runs"),
        (shows_nothing, "gone"),
        (another, "gone"),
        (down, "unobservable"),
    ] {
        let world = World::of(vec![batch_job("")], vec![], answer);
        let state = match world.backend.observe(recorded(&recorded_job("")), None).await {
            State::Running(_) => "runs",
            // Its node may be dead and still shown as Ready.
            State::Gone(gone) if !gone.proven => "gone",
            State::Unobservable(_) => "unobservable",
            other => panic!("{other:?}"),
        };
        assert_eq!(state, expected);
    }
}

#[tokio::test]
async fn a_release_does_not_believe_that_a_cache_shows_everything() {
    for (what, execution, answer, expected) in [
        (
            "recorded, and its label taken off",
            names(),
            shows_a_stripped_pod_that_is_over as fn(&str, &str) -> (u16, Value),
            &["PATCH pod"][..],
        ),
        (
            "nothing recorded, and a pod is held",
            "{}".to_owned(),
            shows_a_held_pod,
            &["DELETE pod", "PATCH pod"],
        ),
        ("recorded, and gone", names(), shows_nothing, &[]),
        (
            "nothing recorded, and nothing there",
            "{}".to_owned(),
            shows_nothing,
            &[],
        ),
    ] {
        let job = finished_job(Timestamp::now(), &execution);
        let world = World::of(vec![], vec![], answer);
        let done = world.backend.release(closed(&job), None).await;
        let mut writes = world.writes();
        writes.sort();
        assert_eq!(writes, expected, "{what}");
        let nothing_left = expected != ["DELETE pod", "PATCH pod"];
        assert_eq!(done == Answer::Done, nothing_left, "{what}: {done:?}");
    }
}

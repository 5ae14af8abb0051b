//! One step of a Job's life, from what was read.

use ayatori_core::conditions::{self, ACCEPTED, FINISHED, SCHEDULED, STARTED};
use ayatori_core::execution::{
    Answer, End, Exit, Prospect, Remains, Running, State, Stopper, Submission, Waiting,
};
use ayatori_core::job::{Job, JobState};
use ayatori_core::lifecycle::{self, Done, Facts, Live, Step};
use ayatori_core::names::KUBERNETES_CONTROLLER;
use ayatori_core::ownership::{self, Ownership};

use crate::shapes::*;

fn answer(reason: &str) -> [Answer; 2] {
    [Answer::Rejected(why(reason)), Answer::Unavailable(why(reason))]
}

/// A Job in every stage, with facts that leave nothing to ask.
fn stages() -> Vec<(&'static str, Job, Facts)> {
    let unobservable = seen(State::Unobservable(why("BackendUnreachable")));
    let remains = left(Ok(Remains::Something("a pod".to_owned())));
    vec![
        ("fresh", job().protected(), admitted()),
        ("fresh, not protected", job(), admitted()),
        ("accepted", accepted(), surveyed(Prospect::Absent).hold()),
        ("prepared", accepted(), surveyed(found())),
        ("attempted", attempted(), surveyed(Prospect::Absent)),
        ("attempted by me", attempted(), surveyed(Prospect::Absent).mine()),
        ("held", recorded(), seen(State::Held)),
        ("waiting", recorded(), seen(waits("ImagePullFailed"))),
        ("running", running(), seen(runs())),
        ("stopping", stopping(), seen(runs())),
        ("unobservable", unknown(), unobservable),
        ("ended", running(), seen(State::Ended(ended(0)))),
        ("finished", succeeded(), remains),
        ("released", released(), left(Ok(Remains::Nothing))),
        (
            "finished, never accepted",
            cancelled_before_accepted().protected(),
            Facts::default(),
        ),
    ]
}

#[test]
#[rustfmt::skip] // one row, one line
fn whatever_stage_a_job_is_in_each_wish_has_its_one_next_step() {
    let cancelled = "Report(Cancelled/CancelRequested, stop CancelRequested)";
    let too_long = "Report(Failed/DeadlineExceeded, stop DeadlineExceeded)";
    let too_late = "Report(Failed/StartingDeadlineExceeded, stop StartingDeadlineExceeded)";
    let unanswered = ["Report(!Scheduled/BackendUnavailable)"; 5];
    let unsent = "Report(attempt cleared)";
    let stop_deleted = "Report(stop JobDeleted)";
    let stop_cancelled = "Report(stop CancelRequested)";
    let stop_long = "Report(stop DeadlineExceeded)";
    let stop_late = "Report(stop StartingDeadlineExceeded)";
    let success = ["Report(Succeeded/Completed 0)"; 5];
    let (never, too_late_for_any) = (
        "Report(!Accepted/CancelRequested, Cancelled/CancelRequested)",
        "Report(!Accepted/StartingDeadlineExceeded, Failed/StartingDeadlineExceeded)",
    );
    // As it is, deleting, cancelled, active deadline passed, starting deadline passed: all at second 100.
    let expected = [
        ["Report(Accepted)", "Unprotect", never, "Report(Accepted)", too_late_for_any],
        ["Protect", "Wait", never, "Protect", too_late_for_any],
        ["Act(Prepare)", "Ask(Remains)", cancelled, too_long, too_late],
        ["Report(Scheduled)", "Ask(Remains)", cancelled, too_long, too_late],
        unanswered,
        ["Report(!Scheduled/BackendUnavailable, attempt cleared)", unsent, unsent, unsent, unsent],
        ["Act(Start)", stop_deleted, stop_cancelled, stop_long, stop_late],
        ["Report(!Started/ImagePullFailed)", stop_deleted, stop_cancelled, stop_long, stop_late],
        ["Wait", stop_deleted, stop_cancelled, stop_long, "Wait"],
        ["Act(Stop)"; 5],
        ["Backoff", stop_deleted, stop_cancelled, stop_long, "Backoff"],
        success,
        ["Act(Release)", "Act(Remove)", "Act(Release)", "Act(Release)", "Act(Release)"],
        ["Wait", "Unprotect", "Wait", "Wait", "Wait"],
        ["Wait", "Unprotect", "Wait", "Wait", "Wait"],
    ];
    type Wish = fn(Job) -> Job;
    let wishes: [(&str, Wish); 5] = [
        ("as it is", |job| job),
        ("deleting", |job| job.deleted_at(99)),
        ("cancelled", Wishes::cancelled),
        ("active deadline passed", |job| job.active_deadline(100)),
        ("starting deadline passed", |job| job.starting_deadline(100)),
    ];
    for ((stage, job, facts), expected) in stages().into_iter().zip(expected) {
        for ((wish, make), expected) in wishes.iter().zip(expected) {
            assert_eq!(step(&make(job.clone()), &facts, 100), expected, "{stage}, {wish}");
        }
    }
}

#[test]
fn a_job_that_another_controller_manages_is_left_alone_in_every_stage_but_for_its_time_to_live() {
    for (stage, job, facts) in stages() {
        let theirs = |job: &Job| job.clone().managed_by("example.com/controller");
        assert_eq!(step(&theirs(&job), &facts, 100), "Wait", "{stage}");
        assert_eq!(
            step(&theirs(&job).cancelled().starting_deadline(1), &facts, 100),
            "Wait",
            "{stage}"
        );
        assert_eq!(
            step(&theirs(&job).deleted_at(50).ttl(0), &facts, 100),
            "Wait",
            "{stage}"
        );
        let ours = job
            .clone()
            .managed_by("execution.ayatori.ddupan.top/job-controller");
        assert_eq!(step(&ours, &facts, 100), step(&job, &facts, 100), "{stage}");
    }
    let finished = succeeded().managed_by("example.com/controller").ttl(60);
    assert_eq!(step(&finished, &Facts::default(), 99), "Wait(100)");
    assert_eq!(step(&finished, &Facts::default(), 100), "Collect");
}

#[test]
fn suspension_holds_back_only_what_is_not_accepted_yet() {
    for (stage, job, facts) in stages() {
        let expected = match stage {
            "fresh" | "fresh, not protected" => "Report(!Accepted/Suspended)".to_owned(),
            _ => step(&job, &facts, 100),
        };
        assert_eq!(step(&job.suspended(), &facts, 100), expected, "{stage}");
    }
    let said = job().suspended().starting_deadline(60);
    let facts = admitted();
    assert_eq!(
        after(&said, &facts, 5),
        "Wait(60)",
        "its starting deadline runs on"
    );
}

#[test]
#[rustfmt::skip] // one row, one line
fn deadlines_count_from_creation_and_from_acceptance_and_the_first_to_pass_is_named() {
    let late = {
        // Created at 0, accepted at 50.
        let mut job = accepted();
        let status = job.status.as_mut().unwrap();
        for condition in &mut status.conditions {
            condition.last_transition_time = time(50);
        }
        job
    };
    let survey = || surveyed(Prospect::Preparing(why("Pending")));
    check(vec![
        ("active: not a second early", late.clone().active_deadline(10), survey(), 59, "Wait(60)"),
        ("active: on time", late.clone().active_deadline(10), survey(), 60, "Report(Failed/DeadlineExceeded, stop DeadlineExceeded)"),
        ("starting: from creation", late.clone().starting_deadline(60), survey(), 60, "Report(Failed/StartingDeadlineExceeded, stop StartingDeadlineExceeded)"),
        ("both: the earlier one", late.clone().starting_deadline(55).active_deadline(10), survey(), 100, "Report(Failed/StartingDeadlineExceeded, stop StartingDeadlineExceeded)"),
        ("both: the earlier one, the other way", late.clone().starting_deadline(90).active_deadline(10), survey(), 100, "Report(Failed/DeadlineExceeded, stop DeadlineExceeded)"),
        ("a cancel comes before both", late.clone().starting_deadline(1).active_deadline(1).cancelled(), survey(), 100, "Report(Cancelled/CancelRequested, stop CancelRequested)"),
        ("a deadline comes before a deletion of what runs", running().active_deadline(50).deleted_at(90), seen(runs()), 100, "Report(stop DeadlineExceeded)"),
        ("the largest deadline is only far away", running().active_deadline(i32::MAX), seen(runs()), 100, "Wait(2147483647)"),
        ("the starting deadline means nothing once the command was started", running().starting_deadline(50), seen(waits("Pending")), 100, "Wait"),
    ]);
}

#[test]
#[rustfmt::skip] // one row, one line
fn a_job_is_accepted_only_when_all_that_it_needs_is_there_and_says_what_is_missing() {
    let asked = |admission| Facts {
        admission: Some(admission),
        ..admitted()
    };
    let unasked = Facts {
        admission: None,
        ..admitted()
    };
    let no_parameters = Facts {
        parameters_uid: None,
        ..admitted()
    };
    let unknown_field = Facts {
        unknown_fields: vec!["spec.gpu".to_owned()],
        ..admitted()
    };
    let fresh = || job().starting_deadline(600);
    check(vec![
        ("the backend is asked first", fresh(), unasked, 5, "Ask(Admission)"),
        ("the finalizer comes before the acceptance", fresh(), admitted(), 5, "Protect"),
        ("class, resources and acceptance in one write", fresh().protected(), admitted(), 5, "Report(Accepted)"),
        ("no parameters: nothing is asked", fresh(), no_parameters, 5, "Report(!Accepted/JobClassNotAccepted)"),
        ("a field that this version does not know", fresh().protected(), unknown_field, 5, "Report(!Accepted/UnsupportedFeature)"),
        ("a Secret is missing", fresh(), asked(Ok(Err(why("SecretNotFound")))), 5, "Report(!Accepted/SecretNotFound)"),
        ("it could not be found out", fresh(), asked(Err(why("BackendForbidden"))), 5, "Report(!Accepted/BackendForbidden)"),
    ]);
    for (name, facts, then) in [
        ("a missing reference is polled", asked(Ok(Err(why("SecretNotFound")))), "Wait(10)"),
        ("an unknown answer backs off", asked(Err(why("BackendForbidden"))), "Backoff(600)"),
    ] {
        assert_eq!(after(&fresh(), &facts, 5), then, "{name}");
    }
    let terminating = {
        let mut class = class("rootless");
        class.metadata.deletion_timestamp = Some(time(1));
        class
    };
    let refused = decide_with(&terminating, &fresh(), &admitted(), 5, |step| {
        told(&fresh(), &step)
    });
    assert_eq!(refused, "Report(!Accepted/JobClassTerminating)");
    let status = accepted().status.unwrap();
    assert_eq!(
        status.resolved_job_class.unwrap().parameters_ref.uid,
        "parameters-uid"
    );
    assert!(status.resources.is_some() && status.execution.is_none());
    let selector = status.correlation.unwrap().selector.unwrap();
    assert_eq!(selector, "execution.ayatori.ddupan.top/job-uid=job-uid");
}

#[test]
fn what_may_run_is_never_left_without_the_finalizer() {
    for (stage, job, facts) in stages() {
        let expected = match stage {
            "accepted" | "prepared" | "attempted" | "attempted by me" | "held" | "waiting" | "running"
            | "stopping" | "unobservable" | "ended" => "Protect",
            _ => continue,
        };
        assert_eq!(step(&job.unprotected(), &facts, 5), expected, "{stage}");
    }
    // Forced off while it is being deleted: it cannot be put back, and nothing new is started.
    let forced = accepted().unprotected().deleted_at(5);
    assert_eq!(
        step(&forced, &surveyed(Prospect::Absent).hold(), 6),
        "Ask(Remains)"
    );
}

#[test]
#[rustfmt::skip] // one row, one line
fn protocol_a_prepares_records_and_starts_exactly_that_one() {
    let absent = || surveyed(Prospect::Absent);
    let prepared = |answer| absent().hold().done(Done::Prepared(answer));
    let held = |answer| seen(State::Held).done(Done::Started(answer));
    let mut rows = vec![
        ("what exists is asked first", accepted(), Facts::default(), 5, "Ask(Prospect)"),
        ("nothing exists: are class and parameters still those?", accepted(), absent(), 5, "Ask(Live)"),
        ("they are: prepare", accepted(), absent().hold(), 5, "Act(Prepare)"),
        ("class or parameters recreated", accepted(), absent().live(Ok(Live::Replaced(why("ParametersReplaced")))), 5, "Report(Failed/ParametersReplaced)"),
        ("not ready, as the API server shows it", accepted(), absent().live(Ok(Live::NotReady(why("JobClassNotReady")))), 5, "Report(!Scheduled/JobClassNotReady)"),
        ("the API server could not be asked", accepted(), absent().live(Err(why("BackendUnavailable"))), 5, "Report(!Scheduled/BackendUnavailable)"),
        ("prepared: wait until it shows", accepted(), prepared(Answer::Done), 5, "Wait"),
        ("prepared in part", accepted(), prepared(Answer::Later(secs(3))), 5, "Wait(8)"),
        ("prepared on an old copy", accepted(), prepared(Answer::Stale), 5, "Backoff"),
        ("coming up is not worth a word at first", accepted(), surveyed(Prospect::Preparing(why("Pending"))), 5, "Wait(60)"),
        ("but is after a while", accepted(), surveyed(Prospect::Preparing(why("Pending"))), 60, "Report(!Scheduled/Pending)"),
        ("trouble is told at once", accepted(), surveyed(Prospect::Preparing(why("QuotaExceeded"))), 5, "Report(!Scheduled/QuotaExceeded)"),
        ("a stranger has our name", accepted(), surveyed(Prospect::Conflict(why("NameConflict"))), 5, "Report(!Scheduled/NameConflict)"),
        ("somebody ended it before it was recorded", accepted(), surveyed(Prospect::Spoilt(why("PodDeleted"))), 5, "Report(Failed/PodDeleted)"),
        ("the backend does not answer", accepted(), surveyed_at(5, Err(why("BackendUnavailable"))), 5, "Report(!Scheduled/BackendUnavailable)"),
        ("held: record it", accepted(), surveyed(found()), 5, "Report(Scheduled)"),
        ("recorded: what became of it?", recorded(), Facts::default(), 11, "Ask(State)"),
        ("start the recorded one", recorded(), seen(State::Held), 11, "Act(Start)"),
        ("started: wait until it shows, and do not start again", recorded(), held(Answer::Done), 11, "Wait"),
        ("started in part", recorded(), held(Answer::Later(secs(2))), 11, "Wait(13)"),
        ("started on an old copy", recorded(), held(Answer::Stale), 11, "Backoff"),
        ("not up yet", recorded(), seen(waits("Pending")), 11, "Wait(70)"),
        ("not up for long", recorded(), seen(waits("Pending")), 70, "Report(!Started/Pending)"),
        ("seen running", recorded(), seen(runs()), 20, "Report(Started)"),
        ("running: nothing to do", running(), seen(runs()), 21, "Wait"),
        ("an old copy shows it waiting again: Started stays", running(), seen(waits("ImagePullFailed")), 21, "Wait"),
        ("ended before anybody saw it run: one write", recorded(), seen(State::Ended(ended(3))), 40, "Report(Started, Failed/NonZeroExit 3)"),
        ("gone for certain: lost, not replaced", recorded(), seen(gone(true)), 40, "Report(Failed/ExecutionLost)"),
    ];
    for answer in answer("BackendForbidden") {
        rows.push((
            "preparing was refused",
            accepted(),
            prepared(answer.clone()),
            5,
            "Report(!Scheduled/BackendForbidden)",
        ));
        rows.push((
            "starting was refused",
            recorded(),
            held(answer),
            11,
            "Report(!Started/BackendForbidden)",
        ));
    }
    check(rows);
    let execution = recorded().status.unwrap().execution.unwrap();
    assert_eq!(
        execution.start_requested_time,
        Some(time(10)),
        "the start is stored with the record"
    );
}

#[test]
#[rustfmt::skip] // one row, one line
fn a_backend_that_takes_no_more_requests_is_waited_for() {
    let busy = || surveyed(Prospect::Absent).live(Ok(Live::Busy(why("Pending"))));
    let full = || surveyed(Prospect::Absent).live(Ok(Live::Busy(why("BackendAtCapacity"))));
    check(vec![
        ("for a while", accepted(), busy(), 20, "Wait(60)"),
        ("then said", accepted(), busy(), 60, "Report(!Scheduled/Pending)"),
        ("one that is full by its own word: said at once", accepted(), full(), 20, "Report(!Scheduled/BackendAtCapacity)"),
    ]);
}

#[test]
#[rustfmt::skip] // one row, one line
fn after_a_refusal_nothing_is_created_for_a_while_whatever_wakes_the_job() {
    let held = |state: Facts| Facts { hold_off: Some(at(30)), ..state };
    let absent = || held(surveyed(Prospect::Absent).hold());
    check(vec![
        ("nothing is created", accepted(), absent(), 20, "Wait(30)"),
        ("then it is", accepted(), absent(), 30, "Act(Prepare)"),
        ("what exists is recorded all the same", accepted(), held(surveyed(found())), 20, "Report(Scheduled)"),
        ("a cancel does not wait", accepted().cancelled(), absent(), 20, "Report(Cancelled/CancelRequested, stop CancelRequested)"),
    ]);
}

#[test]
fn a_class_that_is_not_ready_is_told_without_asking_its_backend_anything() {
    let away = with_condition(
        class("rootless"),
        condition("Ready", "False", "BackendUnreachable"),
    );
    let told_of = |job: &Job| decide_with(&away, job, &Facts::default(), 5, |step| told(job, &step));
    assert_eq!(told_of(&accepted()), "Report(!Scheduled/JobClassNotReady)");
    assert_eq!(
        told_of(&accepted().cancelled()),
        "Report(Cancelled/CancelRequested, stop CancelRequested)"
    );
    assert_eq!(told_of(&running()), "Ask(State)", "what runs is observed on");
}

#[test]
#[rustfmt::skip] // one row, one line
fn protocol_b_sends_one_request_from_the_process_that_stored_it_and_adopts_whatever_shows() {
    let absent = || surveyed(Prospect::Absent);
    let submitted = |submission| absent().mine().done(Done::Submitted(submission));
    let refused = || Submission::Refused(why("BackendRejected"));
    check(vec![
        ("something nobody explains is adopted, not started again", accepted(), surveyed(found()), 5, "Report(Scheduled)"),
        ("and so is what has not come up", accepted(), surveyed(pending()), 5, "Report(Scheduled)"),
        ("nothing listed: store the attempt first", accepted(), absent().single_shot(), 5, "Report(attempt)"),
        ("stored by this very process: send", attempted(), absent().mine(), 5, "Act(Submit)"),
        ("up to its limit", attempted(), absent().mine(), 10, "Act(Submit)"),
        ("not after it: nothing was sent", attempted(), absent().mine(), 11, "Report(!Scheduled/BackendUnavailable, attempt cleared)"),
        ("stored by another process: never send", attempted(), absent(), 5, "Report(!Scheduled/BackendUnavailable)"),
        ("created: record", attempted(), submitted(Submission::Created(name())), 6, "Report(Scheduled)"),
        ("created, though the Job is being deleted: record", attempted().deleted_at(6), submitted(Submission::Created(name())), 6, "Report(Scheduled)"),
        ("certainly not created", attempted(), submitted(refused()), 6, "Report(!Scheduled/BackendRejected, attempt cleared)"),
        ("cleared: later again", accepted(), submitted(refused()).single_shot(), 6, "Backoff"),
        ("nobody knows: said, and never sent again", attempted(), submitted(Submission::Unanswered(why("Timeout"))), 6, "Report(!Scheduled/BackendUnavailable)"),
        ("what exists is asked", attempted(), Facts::default(), 50, "Ask(Prospect)"),
        ("it shows", attempted(), surveyed_at(50, Ok(found())), 50, "Report(Scheduled)"),
        ("it shows but is not up", attempted(), surveyed_at(50, Ok(pending())), 50, "Report(Scheduled)"),
        ("nothing, asked at the fence", attempted(), surveyed_at(690, Ok(Prospect::Absent)), 690, "Report(!Scheduled/BackendUnavailable)"),
        ("nothing, asked after the fence: lost", attempted(), surveyed_at(691, Ok(Prospect::Absent)), 691, "Report(Failed/ExecutionLost)"),
        ("nothing, but asked before the fence: proves nothing", attempted(), surveyed_at(690, Ok(Prospect::Absent)), 800, "Report(!Scheduled/BackendUnavailable)"),
        ("late but there: adopted", attempted(), surveyed_at(691, Ok(found())), 691, "Report(Scheduled)"),
        ("no answer proves nothing", attempted(), surveyed_at(800, Err(why("BackendUnreachable"))), 800, "Report(ResultUnknown/BackendUnreachable)"),
        ("two of them", attempted(), surveyed_at(800, Ok(Prospect::Conflict(why("ForeignExecution")))), 800, "Report(ResultUnknown/ForeignExecution)"),
        ("a refusal to start too late is its own result", recorded_single_shot(), seen(State::Ended(End { exit: Exit::Unstartable(why("StartTooLate")), ..ended(0) })), 620, "Report(Failed/StartTooLate)"),
    ]);
    let message = |job: &Job| {
        let status = job.status.clone().unwrap();
        let scheduled = status.conditions.into_iter().find(|c| c.type_ == "Scheduled");
        status.result.and_then(|r| r.message).or(scheduled.map(|c| c.message)).unwrap()
    };
    let no_answer = ayatori_core::execution::Why::new("BackendUnavailable", "status 500, A::B: no disk");
    let told = written(&attempted(), &submitted(Submission::Unanswered(no_answer)), 6);
    assert!(message(&told).ends_with(": status 500, A::B: no disk"), "the Job says why: {}", message(&told));
    assert_eq!(after(&told, &absent(), 7), "Wait(691)", "which nobody else knows, and nobody takes back");
    let lost = written(&told, &surveyed_at(691, Ok(Prospect::Absent)), 691);
    assert!(message(&lost).ends_with("fence passed: status 500, A::B: no disk"), "{}", message(&lost));
    let waiting = attempted().active_deadline(800);
    assert_eq!(
        after(&waiting, &absent(), 6),
        "Wait(691)",
        "looked at again as soon as the fence is certain"
    );
    let attempt = attempted().status.unwrap().execution.unwrap().attempt.unwrap();
    assert_eq!((attempt.send_before, attempt.start_before), (time(10), time(600)));
    let cleared = {
        let facts = submitted(refused());
        written(&attempted(), &facts, 6).status.unwrap()
    };
    assert_eq!(cleared.execution, None, "attempt and backend go together");
}

#[test]
#[rustfmt::skip] // one row, one line
fn an_execution_that_has_not_come_up_by_its_fence_is_deleted_and_lost() {
    let waiting = || seen(waits("ImagePullFailed"));
    let said = written(&recorded_single_shot(), &waiting(), 20);
    let after_fence = || waiting().surveyed(691, pending());
    let discarded = |answer| after_fence().done(Done::Discarded(answer));
    let cancelled = written(&said.clone().cancelled(), &waiting(), 600);
    check(vec![
        ("before the fence it may still start", said.clone(), waiting(), 100, "Wait(691)"),
        ("after it, the backend is asked", said.clone(), waiting(), 691, "Ask(Prospect)"),
        ("asked too early: again", said.clone(), waiting().surveyed(690, pending()), 691, "Wait(696)"),
        ("still pending: delete", said.clone(), after_fence(), 691, "Act(Discard)"),
        ("another one is pending: not that", said.clone(), waiting().surveyed(691, Prospect::Pending(ayatori_core::execution::ExecutionName { id: "other".to_owned(), uid: None }, identity())), 691, "Wait(696)"),
        ("it came up after all", said.clone(), waiting().surveyed(691, found()), 691, "Wait(696)"),
        ("and is stopped like any other", cancelled.clone(), waiting().surveyed(691, found()), 701, "Act(Stop)"),
        ("also when that is wanted only now", said.clone().cancelled(), waiting().surveyed(691, found()), 701, "Report(stop CancelRequested)"),
        ("deleted: until it is gone", said.clone(), discarded(Answer::Done), 691, "Wait(696)"),
        ("deleting takes time", said.clone(), discarded(Answer::Later(secs(2))), 691, "Wait(693)"),
        ("deleting failed", said.clone(), discarded(Answer::Unavailable(why("BackendUnreachable"))), 691, "Backoff"),
        ("gone", said.clone(), seen(gone(true)), 700, "Report(Failed/ExecutionLost)"),
        ("a stop goes its own way while it may start", cancelled.clone(), waiting(), 600, "Act(Stop)"),
        ("what never comes up may be deaf to a stop", cancelled, after_fence(), 701, "Act(Discard)"),
        ("without a fence nothing is deleted", written(&recorded(), &waiting(), 20), waiting(), 5000, "Wait"),
    ]);
}

#[test]
#[rustfmt::skip] // one row, one line
fn a_stop_is_stored_then_sent_then_recorded_as_delivered_and_pressed_until_the_end_shows() {
    let done = |answer| seen(runs()).done(Done::Stopped(answer));
    let stopped_start = written(&recorded().cancelled(), &seen(State::Held), 15);
    let delivered = written(&stopping(), &seen(runs_until(31)), 32);
    let single_shot_running = written(&recorded_single_shot(), &seen(runs()), 20);
    let single_shot_stopping = written(&single_shot_running.cancelled(), &seen(runs()), 30);
    let outsiders = |state| {
        State::Waiting(Waiting {
            stopping_since: Some(at(15)),
            ..state
        })
    };
    let terminating = outsiders(Waiting {
        why: why("Pending"),
        node: None,
        stopping_since: None,
    });
    let by_us = |end: End| End {
        stopped_at: Some(at(31)),
        stopped_by: Stopper::Deadline,
        ..end
    };
    check(vec![
        ("stored before it is sent", running().cancelled(), seen(runs()), 30, "Report(stop CancelRequested)"),
        ("sent", stopping(), seen(runs()), 30, "Act(Stop)"),
        ("sent: patience", stopping(), done(Answer::Done), 30, "Wait(35)"),
        ("sent in part", stopping(), done(Answer::Later(secs(2))), 30, "Wait(32)"),
        ("sent on an old copy", stopping(), done(Answer::Stale), 30, "Backoff"),
        ("refused", stopping(), done(Answer::Rejected(why("BackendForbidden"))), 30, "Report(!Finished/BackendForbidden)"),
        ("not reached", stopping(), done(Answer::Unavailable(why("BackendUnreachable"))), 30, "Report(!Finished/BackendUnreachable)"),
        ("no effect seen: pressed again", stopping(), seen(runs()), 36, "Act(Stop)"),
        ("the backend has recorded it", stopping(), seen(runs_until(31)), 32, "Report(delivered)"),
        ("somebody else's earlier one is not ours", stopping(), seen(runs_until(25)), 32, "Act(Stop)"),
        ("but for a single shot, which only we end, by a clock that may be behind", single_shot_stopping, seen(runs_until(5)), 32, "Report(delivered)"),
        ("delivered, and pressed on", delivered.clone(), seen(runs_until(31)), 38, "Act(Stop)"),
        ("delivered once", delivered.clone(), seen(runs_until(33)).done(Done::Stopped(Answer::Done)), 38, "Wait(43)"),
        ("a stop before the start: it never starts", stopped_start.clone(), seen(State::Held), 16, "Act(Stop)"),
        ("not even when the stop is under way", stopped_start.clone(), seen(State::Held).done(Done::Stopped(Answer::Done)), 16, "Wait(21)"),
        ("a cancel while its start is not shown yet", recorded().cancelled(), seen(State::Held).done(Done::Started(Answer::Done)), 16, "Report(stop CancelRequested)"),
        ("ended by our stop", delivered.clone(), seen(State::Ended(by_us(ended(0)))), 50, "Report(Cancelled/CancelRequested 0)"),
        ("ended by our stop before its delivery was stored: one write", stopping(), seen(State::Ended(by_us(ended(143)))), 50, "Report(Cancelled/CancelRequested 143, delivered)"),
        ("ended before the stop: its own result, nothing delivered", stopping(), seen(State::Ended(End { finished_at: Some(at(30)), ..by_us(ended(0)) })), 50, "Report(Succeeded/Completed 0)"),
        ("never started because of our stop", stopped_start.clone(), seen(State::Ended(End { exit: Exit::NeverStarted, started_at: None, finished_at: None, ..by_us(ended(0)) })), 50, "Report(Cancelled/CancelRequested, delivered)"),
        ("gone after a delivered stop", delivered.clone(), seen(gone(true)), 50, "Report(Cancelled/CancelRequested)"),
        ("gone with a stop that reached nobody", stopping(), seen(gone(true)), 50, "Report(Failed/ExecutionLost)"),
        ("somebody else is ending it: not made ours", running().cancelled(), seen(runs_until(25)), 30, "Wait"),
        ("nor before it runs", recorded().cancelled(), seen(terminating), 16, "Wait(70)"),
        ("cancelled after the end: too late", running().cancelled(), seen(State::Ended(ended(0))), 50, "Report(Succeeded/Completed 0)"),
        ("the guard timer was faster than we", running().active_deadline(20), seen(State::Ended(by_us(ended(143)))), 50, "Report(Failed/DeadlineExceeded 143)"),
    ]);
    let stop = written(&stopping(), &seen(State::Ended(by_us(ended(143)))), 50);
    let stop = stop.status.unwrap().execution.unwrap().stop.unwrap();
    assert_eq!(
        (stop.requested_time, stop.delivered_time),
        (time(30), Some(time(31)))
    );
}

#[test]
#[rustfmt::skip] // one row, one line
fn what_cannot_be_known_is_said_until_it_is_known_again_and_only_proof_ends_it() {
    let unreachable = || seen(State::Unobservable(why("BackendUnreachable")));
    let unknown_waiting = written(&recorded(), &unreachable(), 30);
    let unknown_stopping = written(&unknown().cancelled(), &unreachable(), 40);
    let missing = written(&running(), &seen(gone(false)), 30);
    let unanswered = |prospect| surveyed_at(50, prospect);
    let unknown_attempt = written(&attempted(), &unanswered(Err(why("BackendUnreachable"))), 50);
    check(vec![
        ("unobservable", running(), unreachable(), 30, "Report(ResultUnknown/BackendUnreachable)"),
        ("and said once", unknown(), unreachable(), 30, "Backoff"),
        ("gone, but nothing proves that it does not run", running(), seen(gone(false)), 30, "Report(ResultUnknown/ExecutionNotFound)"),
        ("and looked for again soon, however often that was in vain", missing, seen(gone(false)), 40, "Backoff(50)"),
        ("the reason may change", unknown(), seen(gone(false)), 40, "Report(ResultUnknown/ExecutionNotFound)"),
        ("proof", unknown(), seen(gone(true)), 40, "Report(!ResultUnknown/Final, Failed/ExecutionLost)"),
        ("back, running", unknown(), seen(runs()), 40, "Report(!ResultUnknown/Observed)"),
        ("back, held", unknown_waiting.clone(), seen(State::Held), 40, "Report(!ResultUnknown/Observed)"),
        ("back, waiting as usual", unknown_waiting.clone(), seen(waits("Pending")), 40, "Report(!ResultUnknown/Observed)"),
        ("back, ended", unknown(), seen(State::Ended(ended(0))), 40, "Report(!ResultUnknown/Final, Succeeded/Completed 0)"),
        ("an attempt that cannot be asked after", attempted(), unanswered(Err(why("BackendUnreachable"))), 50, "Report(ResultUnknown/BackendUnreachable)"),
        ("back, nothing listed", unknown_attempt.clone(), unanswered(Ok(Prospect::Absent)), 50, "Report(!ResultUnknown/Observed, !Scheduled/BackendUnavailable)"),
        ("a stop is stored all the same", unknown().cancelled(), unreachable(), 40, "Report(stop CancelRequested)"),
        ("and sent: it may get through", unknown_stopping.clone(), unreachable(), 40, "Act(Stop)"),
        ("never a second start", unknown_waiting, unreachable(), 5000, "Backoff"),
    ]);
}

#[test]
#[rustfmt::skip] // one row, one line
fn what_another_server_says_is_not_even_asked() {
    let here = |job| on_server(job, "here");
    let facts = || Facts::default().at_server("there");
    let unknown = written(&here(running()), &facts(), 30);
    let cancelled = written(&unknown.clone().cancelled(), &facts(), 40);
    let left = || left(Ok(Remains::Nothing)).at_server("there");
    check(vec![
        ("its own server is asked", here(running()), Facts::default().at_server("here"), 30, "Ask(State)"),
        ("another is not", here(running()), facts(), 30, "Report(ResultUnknown/ParametersReplaced)"),
        ("nor without any parameters", here(running()), Facts::default(), 30, "Report(ResultUnknown/ParametersReplaced)"),
        ("whatever it said", here(running()), seen(gone(true)).at_server("there"), 30, "Report(ResultUnknown/ParametersReplaced)"),
        ("said once", unknown.clone(), facts(), 31, "Backoff"),
        ("a stop is stored", unknown.clone().cancelled(), facts(), 40, "Report(stop CancelRequested)"),
        ("a deadline is one", here(running()).active_deadline(20), facts(), 40, "Report(ResultUnknown/ParametersReplaced, stop DeadlineExceeded)"),
        ("but sent to nobody else", cancelled.clone(), facts(), 41, "Backoff"),
        ("it is back", unknown, Facts::default().at_server("here"), 50, "Ask(State)"),
        ("and told of the stop", cancelled, seen(runs()).at_server("here"), 50, "Report(!ResultUnknown/Observed)"),
        ("an attempt", here(attempted()), surveyed_at(800, Ok(Prospect::Absent)).at_server("there"), 800, "Report(ResultUnknown/ParametersReplaced)"),
        ("what ended there is released there: a moment to come back", here(succeeded()), facts(), 41, "Backoff(100)"),
        ("for long: said", here(succeeded()), facts(), 100, "Report(DeletionBlocked/ParametersReplaced)"),
        ("and keeps its Job", here(succeeded()).deleted_at(50), left(), 80, "Report(DeletionBlocked/ExecutionRemains)"),
        ("unless it was released", here(released()).deleted_at(50), left(), 80, "Unprotect"),
        ("where the backend is this cluster there is no other", running(), facts(), 30, "Ask(State)"),
    ]);
}

#[test]
#[rustfmt::skip] // one row, one line
fn the_expiry_of_what_runs_is_put_off_in_time() {
    let runs = || seen(State::Running(Running { started_at: Some(at(20)), node: None, stopping_since: None, renew_at: Some(at(100)) }));
    let done = |answer| runs().done(Done::Renewed(answer));
    check(vec![
        ("not yet", running(), runs(), 30, "Wait(100)"),
        ("a deadline may come first", running().active_deadline(40), runs(), 30, "Wait(40)"),
        ("now", running(), runs(), 100, "Act(Renew)"),
        ("done, and not seen yet", running(), done(Answer::Done), 100, "Backoff"),
        ("not done: a moment to try again", running(), done(Answer::Unavailable(why("BackendUnreachable"))), 159, "Backoff"),
        ("not done for long: said", running(), done(Answer::Unavailable(why("BackendUnreachable"))), 160, "Report(!Finished/BackendUnreachable)"),
        ("refused for long: said", running(), done(Answer::Rejected(why("BackendRejected"))), 160, "Report(!Finished/BackendRejected)"),
        ("what is to be stopped needs no time", running().cancelled(), runs(), 100, "Report(stop CancelRequested)"),
    ]);
    let threatened = written(&running(), &done(Answer::Rejected(why("BackendRejected"))), 160);
    check(vec![
        ("said once", threatened.clone(), done(Answer::Rejected(why("BackendRejected"))), 170, "Backoff"),
        ("tried again", threatened.clone(), runs(), 170, "Act(Renew)"),
        ("put off", threatened, runs(), 99, "Report(!Finished/Pending)"),
    ]);
}

#[test]
#[rustfmt::skip] // one row, one line
fn what_ended_is_released_once_its_end_is_stored_and_goes_when_its_time_has_come() {
    let released_with = |answer| Facts::default().done(Done::Released(answer));
    check(vec![
        ("release", succeeded(), Facts::default(), 41, "Act(Release)"),
        ("later, after the log window", succeeded().ttl(600), released_with(Answer::Later(secs(30))), 41, "Wait(71)"),
        ("the time to live may be shorter", succeeded().ttl(10), released_with(Answer::Later(secs(30))), 41, "Wait(50)"),
        ("done: said", succeeded(), released_with(Answer::Done), 41, "Report(released)"),
        ("not done: a moment to try again", succeeded().ttl(600), released_with(Answer::Unavailable(why("BackendUnreachable"))), 41, "Backoff(100)"),
        ("not done for long: said", succeeded().ttl(600), released_with(Answer::Unavailable(why("BackendUnreachable"))), 100, "Report(DeletionBlocked/BackendUnreachable)"),
        ("released, no TTL: it stays", released(), Facts::default(), 5000, "Wait"),
        ("released, not due", released().ttl(600), Facts::default(), 639, "Wait(640)"),
        ("due", released().ttl(600), Facts::default(), 640, "Collect"),
        ("due though the release was not confirmed: the finalizer guards it", succeeded().ttl(0), Facts::default(), 41, "Collect"),
        ("never accepted, due", cancelled_before_accepted().ttl(10), Facts::default(), 15, "Collect"),
        ("never accepted, not due", cancelled_before_accepted().ttl(10), Facts::default(), 14, "Wait(15)"),
        ("collected: nothing is decided twice", released().ttl(600).deleted_at(641), Facts::default(), 641, "Ask(Remains)"),
    ]);
}

#[test]
#[rustfmt::skip] // one row, one line
fn a_deleted_job_goes_only_when_nothing_of_it_is_left_and_says_what_it_waits_for() {
    let going = || succeeded().deleted_at(50);
    let pod = || left(Ok(Remains::Something("pod build-x".to_owned())));
    let removed = |answer| pod().done(Done::Removed(answer));
    let stop_done = |state| seen(state).done(Done::Stopped(Answer::Done));
    let stopping = || stopping().deleted_at(50);
    let unreachable =
        || seen(State::Unobservable(why("BackendUnreachable"))).done(Done::Stopped(Answer::Done));
    check(vec![
        ("never accepted: at once", job().protected().deleted_at(5), Facts::default(), 5, "Unprotect"),
        ("never protected: nothing to do", job().deleted_at(5), Facts::default(), 5, "Wait"),
        ("accepted: is anything left?", accepted().deleted_at(5), Facts::default(), 5, "Ask(Remains)"),
        ("accepted: nothing is", accepted().deleted_at(5), left(Ok(Remains::Nothing)), 5, "Unprotect"),
        ("ended: what is left?", going(), Facts::default(), 50, "Ask(Remains)"),
        ("remove it", going(), pod(), 50, "Act(Remove)"),
        ("removed: until it shows, no longer than the silence lasts", going(), removed(Answer::Done), 50, "Wait(80)"),
        ("removing takes time", going(), removed(Answer::Later(secs(3))), 50, "Wait(53)"),
        ("removed on an old copy", going(), removed(Answer::Stale), 50, "Backoff"),
        ("the backend is away", going(), left(Err(why("BackendUnreachable"))), 50, "Backoff(80)"),
        ("for long: said", going(), left(Err(why("BackendUnreachable"))), 80, "Report(DeletionBlocked/ExecutionRemains)"),
        ("removed long ago and still there: said", going(), removed(Answer::Done), 80, "Report(DeletionBlocked/ExecutionRemains)"),
        ("refused for long: said", going(), removed(Answer::Rejected(why("BackendForbidden"))), 80, "Report(DeletionBlocked/ExecutionRemains)"),
        ("nothing left", going(), left(Ok(Remains::Nothing)), 90, "Unprotect"),
        ("our finalizer was forced off, another's holds it: still removed", going().unprotected(), pod(), 50, "Act(Remove)"),
        ("nothing left, and ours is off", going().unprotected(), left(Ok(Remains::Nothing)), 90, "Wait"),
        ("a process that does not end: not a word yet", stopping(), stop_done(runs()), 51, "Wait(56)"),
        ("for long: said", stopping(), stop_done(runs()), 80, "Report(DeletionBlocked/ExecutionRemains)"),
        ("somebody else is ending it: a wait that ends", running().deleted_at(50), seen(runs_until(45)), 50, "Wait(80)"),
        ("for long: said", running().deleted_at(50), seen(runs_until(45)), 80, "Report(DeletionBlocked/ExecutionRemains)"),
        ("unknown for long: said", written(&unknown().cancelled(), &unreachable(), 45).deleted_at(50), unreachable(), 80, "Report(DeletionBlocked/ExecutionRemains)"),
        ("an unanswered attempt", written(&attempted(), &surveyed(Prospect::Absent), 6).deleted_at(50), surveyed(Prospect::Absent), 51, "Wait(80)"),
        ("for long: said", written(&attempted(), &surveyed(Prospect::Absent), 6).deleted_at(50), surveyed(Prospect::Absent), 80, "Report(DeletionBlocked/ExecutionRemains)"),
        ("what ended is told before it goes", running().deleted_at(50), seen(State::Ended(ended(0))), 50, "Report(Succeeded/Completed 0)"),
    ]);
    let blocked = written(&going(), &left(Err(why("BackendUnreachable"))), 80);
    let said = conditions::find(&blocked.status.as_ref().unwrap().conditions, "DeletionBlocked").unwrap();
    assert!(
        said.message.contains("BackendUnreachable, in words"),
        "{}",
        said.message
    );
    assert_eq!(
        step(&blocked, &left(Err(why("BackendUnreachable"))), 85),
        "Backoff",
        "said once"
    );
}

#[test]
#[rustfmt::skip] // one row, one line
fn a_job_that_nobody_owns_is_reported_on_finished_collected_and_freed_but_never_run() {
    let unknown = {
        let mut class = class("rootless");
        class.spec.controller_name = "execution.ayatori.ddupan.top/nomad".to_owned();
        vec![class]
    };
    let none = Vec::new();
    let told_of = |job: &Job, classes: &[_], now: i64| {
        let selection = ownership::select(job, &Default::default(), classes);
        let Ownership::Unowned(unowned) = ownership::of_job(job, KUBERNETES_CONTROLLER, &selection, classes)
        else {
            unreachable!("nobody owns it");
        };
        match lifecycle::decide_unowned(&unowned, at(now)) {
            Step::Report(status) => (
                told(job, &Step::Report(status.clone())),
                Job {
                    status: Some(*status),
                    ..job.clone()
                },
            ),
            other => (told(job, &other), job.clone()),
        }
    };
    let judged = |reason: &str| {
        let mut job = job();
        job.status.as_mut().unwrap().conditions = vec![condition(ACCEPTED, "False", reason)];
        job
    };
    for (name, job, classes, now, expected) in [
        ("no such class", job(), &none, 5, "Report(!Accepted/JobClassNotFound)"),
        ("said once; its starting deadline runs", told_of(&job().starting_deadline(60), &none, 5).1, &none, 6, "Wait(60)"),
        ("suspended", job().suspended(), &none, 5, "Report(!Accepted/Suspended)"),
        ("cancelled", job().cancelled(), &none, 5, "Report(!Accepted/CancelRequested, Cancelled/CancelRequested)"),
        ("too late", job().starting_deadline(60), &none, 60, "Report(!Accepted/StartingDeadlineExceeded, Failed/StartingDeadlineExceeded)"),
        ("cancelled after a refusal, which stays", judged("JobClassNotFound").cancelled(), &none, 5, "Report(Cancelled/CancelRequested)"),
        ("an active deadline has not begun", job().active_deadline(1), &none, 60, "Report(!Accepted/JobClassNotFound)"),
        ("deleted", job().protected().deleted_at(5), &none, 5, "Unprotect"),
        ("deleted, not ours to free", job().deleted_at(5), &none, 5, "Wait"),
        ("finished", cancelled_before_accepted().ttl(60), &none, 10, "Wait(65)"),
        ("finished, due", cancelled_before_accepted().ttl(60), &none, 65, "Collect"),
        ("managed by another", job().managed_by("example.com/x").cancelled(), &none, 5, "Wait"),
        ("an unknown controller, over the default", job(), &unknown, 5, "Report(!Accepted/UnsupportedController)"),
        ("an unknown controller, suspended or not", job().suspended(), &unknown, 5, "Report(!Accepted/UnsupportedController)"),
        ("over what only a Job without a class is told", judged("JobClassNotFound"), &unknown, 5, "Report(!Accepted/UnsupportedController)"),
        ("a newer adapter spoke: not a word", judged("NamespaceNotAllowed"), &unknown, 5, "Wait"),
        ("a newer adapter holds it back: not a word", judged("Suspended").suspended(), &unknown, 5, "Wait"),
        ("suspended no more, and nobody else spoke", judged("Suspended"), &unknown, 5, "Report(!Accepted/UnsupportedController)"),
        ("an unknown controller, cancelled", job().cancelled(), &unknown, 5, "Report(!Accepted/CancelRequested, Cancelled/CancelRequested)"),
        ("an unknown controller, deleted", job().protected().deleted_at(5), &unknown, 5, "Unprotect"),
    ] {
        assert_eq!(told_of(&job, classes, now).0, expected, "{name}");
    }
}

#[test]
#[rustfmt::skip] // one row, one line
fn one_word_for_people_follows_every_write() {
    let state = |job: &Job| job.status.as_ref().unwrap().state.unwrap();
    let refused = {
        let facts = Facts {
            parameters_uid: None,
            ..admitted()
        };
        written(&job(), &facts, 5)
    };
    let failed = written(&running(), &seen(State::Ended(ended(1))), 50);
    let cancelled = written(&accepted().cancelled(), &Facts::default(), 50);
    let blocked = written(
        &succeeded().deleted_at(50),
        &left(Err(why("BackendUnreachable"))),
        80,
    );
    for (name, job, expected) in [
        ("suspended", written(&job().suspended(), &admitted(), 5), JobState::Suspended),
        ("refused", refused, JobState::Rejected),
        ("accepted", accepted(), JobState::Waiting),
        ("attempted", attempted(), JobState::Waiting),
        ("recorded", recorded(), JobState::Starting),
        ("running", running(), JobState::Running),
        ("stopping", stopping(), JobState::Stopping),
        ("unknown", unknown(), JobState::Unknown),
        ("running again", running_again(), JobState::Running),
        ("succeeded", succeeded(), JobState::Succeeded),
        ("released", released(), JobState::Succeeded),
        ("failed", failed, JobState::Failed),
        ("cancelled", cancelled, JobState::Cancelled),
        ("going", blocked, JobState::Succeeded),
    ] {
        assert_eq!(state(&job), expected, "{name}");
    }
}

#[test]
fn every_write_is_said_once_whatever_led_to_it() {
    for (stage, job, facts) in stages() {
        for job in [job.clone(), job.clone().cancelled(), job.deleted_at(50)] {
            for now in [50, 200, 5000] {
                let once = written(&job, &facts, now);
                let twice = written(&once, &facts, now);
                let thrice = written(&twice, &facts, now);
                let again = written(&thrice, &facts, now);
                assert_eq!(thrice, again, "{stage} at {now}: a write that is never done with");
            }
        }
    }
}

/// What follows the write that is decided on.
fn after(job: &Job, facts: &Facts, now: i64) -> String {
    step(&written(job, facts, now), facts, now)
}

#[test]
fn what_the_definitions_cannot_store_is_said_in_conditions_alone_and_once() {
    for (stage, job, _) in stages() {
        let stored = job.status.clone().unwrap_or_default();
        let Some(mut said) = lifecycle::unstorable(&job, "too old", at(100)) else {
            assert!(conditions::is_true(&stored.conditions, FINISHED), "{stage}");
            continue;
        };
        let open = [ACCEPTED, SCHEDULED, STARTED, FINISHED]
            .into_iter()
            .find(|type_| !conditions::is_true(&stored.conditions, type_))
            .unwrap();
        let condition = conditions::find(&said.conditions, open).unwrap();
        let words = (
            condition.status.as_str(),
            condition.reason.as_str(),
            condition.message.as_str(),
        );
        assert_eq!(words, ("False", "DefinitionsTooOld", "too old"), "{stage}");
        let mut again = job.clone();
        again.status = Some(said.clone());
        assert!(
            lifecycle::unstorable(&again, "too old", at(101)).is_none(),
            "{stage}"
        );

        said.conditions.clone_from(&stored.conditions);
        said.state = stored.state;
        said.observed_generation = stored.observed_generation;
        assert_eq!(said, stored, "{stage}");
    }
}

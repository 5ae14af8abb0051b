//! What is searched, and the deliberate faults that must be found.
//!
//! In every scenario two processes run, each with a cache that may be as old as it likes; each may die between
//! any two steps, as often as it likes; every answer of the API server and of the backend may be lost; a request
//! may be on its way for as long as it likes. What else may happen is counted.

use crate::backend::Kind;
use crate::faults::Fault;
use crate::objects::Wishes;
use crate::promises::Promise;
use crate::proof::{self, Table, backend, figure};
use crate::search::{Bound, Findings, search};
use crate::state::{Budget, Scene};
use crate::walk;

/// More states than any scenario of the ordinary run has.
const MOST: usize = 3_000_000;

/// A backend that holds executions and creates them under a name, like batch/v1 Jobs. No time passes: whatever
/// could run out has run out.
const NAMED: Scene = Scene {
    name: "",
    kind: Kind::Named,
    wishes: Wishes::NONE,
    last: 0,
    ahead: 0,
    behind: 0,
    lag: 0,
    window: 1,
    margin: 1,
    ends: true,
    class: 1,
    faults: Budget::NONE,
    processes: 2,
    fault: None,
};

/// A backend that holds executions, and makes another one each time it is asked to.
const UNNAMED: Scene = Scene {
    kind: Kind::Unnamed,
    ..NAMED
};

/// A backend where creating is starting. Its clock is a tick behind; the fence of an attempt is a tick later.
const SINGLE_SHOT: Scene = Scene {
    kind: Kind::SingleShot,
    last: 3,
    behind: 1,
    ..NAMED
};

/// The same with clocks that differ by two ticks, and lists that lag by one while the command can start.
const SKEWED: Scene = Scene {
    last: 6,
    ahead: 1,
    lag: 1,
    margin: 3,
    ..SINGLE_SHOT
};

const NEVER: Budget = Budget::NONE;

const DEADLINE: Wishes = Wishes {
    active_deadline: Some(150),
    ..Wishes::NONE
};

const STARTING_DEADLINE: Wishes = Wishes {
    starting_deadline: Some(150),
    ..Wishes::NONE
};

const TTL: Wishes = Wishes {
    ttl: Some(150),
    ..Wishes::NONE
};

/// Nothing may be broken, and every Job must come to its end.
fn keeps_every_promise(scene: Scene, most: usize) -> Findings {
    let bound = Bound {
        states: most,
        until: None,
    };
    let findings = search(&scene, bound);
    println!("{findings}");
    assert!(findings.broken.is_empty(), "a promise is broken: {findings}");
    assert!(
        findings.stuck.is_none(),
        "a Job never comes to its end: {findings}"
    );
    findings
}

/// What says which search it was, and what it came to.
fn row(scene: &Scene, findings: &Findings) -> Vec<String> {
    let mut row = vec![
        backend(scene.kind).to_owned(),
        format!("`{}`", scene.name),
        scene.processes.to_string(),
    ];
    row.extend(
        [
            findings.states,
            findings.transitions,
            findings.decisions,
            findings.cramped,
        ]
        .map(figure),
    );
    row.push(findings.undecided.map_or_else(|| "not judged".to_owned(), figure));
    row
}

/// With one controller, and with two.
fn is_searched(scene: Scene) {
    for processes in [1, 2] {
        let scene = Scene { processes, ..scene };
        let findings = keeps_every_promise(scene, MOST);
        assert!(
            !findings.cut,
            "there are more states than was thought; make the scenario smaller, or the limit larger: {findings}"
        );
        proof::hold(Table::Scenarios, &row(&scene, &findings));
    }
}

/// A deliberate fault must break the promise that it is about.
fn is_found(scene: Scene, fault: Fault, promise: Promise) {
    let scene = Scene {
        fault: Some(fault),
        ..scene
    };
    let bound = Bound {
        states: MOST,
        until: Some(promise),
    };
    let findings = search(&scene, bound);
    println!("{findings}");
    let broken = findings
        .broken
        .iter()
        .find(|(broken, _)| broken.promise() == promise);
    let stuck = findings.stuck.as_ref().filter(|_| promise == Promise::AnEnd);
    let (steps, story) = broken
        .map(|(_, told)| told)
        .or(stuck.map(|(_, told)| told))
        .unwrap_or_else(|| panic!("{fault:?} was not found: {findings}"));
    proof::tell(scene.name, &format!("Deliberate fault: {fault}.\n\n{story}"));
    proof::hold(
        Table::Faults,
        &[
            backend(scene.kind).to_owned(),
            format!("`{}`", scene.name),
            fault.to_string(),
            promise.to_string(),
            steps.to_string(),
            figure(findings.states),
        ],
    );
}

/// Searches with the `is_searched` of where it stands.
macro_rules! searched {
    ($($name:ident: $scene:expr, $faults:expr;)*) => {$(
        #[test]
        fn $name() {
            is_searched(Scene { name: stringify!($name), faults: Budget { ..$faults }, ..$scene });
        }
    )*};
}

#[cfg(feature = "wide")]
mod widely;

macro_rules! found {
    ($($name:ident: $fault:ident breaks $promise:ident in $scene:expr, $faults:expr;)*) => {$(
        #[test]
        fn $name() {
            let scene = Scene { name: stringify!($name), faults: Budget { ..$faults }, ..$scene };
            is_found(scene, Fault::$fault, Promise::$promise);
        }
    )*};
}

searched! {
    held_and_left_alone: NAMED, Budget { stale: 1, extra: 1, ..NEVER };
    held_and_cancelled: NAMED, Budget { cancel: 1, stale: 1, ..NEVER };
    held_and_deleted: NAMED, Budget { delete: 1, stale: 1, ..NEVER };
    held_deleted_and_created_again: NAMED, Budget { delete: 1, recreate: 1, ..NEVER };
    held_with_a_deadline: Scene { wishes: DEADLINE, ends: false, last: 2, ..NAMED }, NEVER;
    held_with_a_starting_deadline: Scene { wishes: STARTING_DEADLINE, last: 2, ..NAMED }, NEVER;
    held_and_an_outsider_ends_it: NAMED, Budget { outsider: 1, cancel: 1, ..NEVER };
    held_deleted_and_an_outsider_ends_it: NAMED, Budget { outsider: 1, delete: 1, ..NEVER };
    held_cancelled_and_an_outsider_ends_it_twice: NAMED, Budget { outsider: 2, cancel: 1, ..NEVER };
    held_and_its_class_is_recreated: NAMED, Budget { reclass: 1, ..NEVER };
    held_and_cannot_be_seen: NAMED, Budget { hidden: 1, ..NEVER };
    held_with_a_class_that_comes_late: Scene { class: 0, ..NAMED }, Budget { reclass: 1, cancel: 1, ..NEVER };
    held_and_deleted_with_a_class_that_comes_late: Scene { class: 0, ..NAMED }, Budget { reclass: 1, delete: 1, ..NEVER };
    held_until_its_time_to_live_is_over: Scene { wishes: TTL, last: 2, ..NAMED }, NEVER;
    held_and_evicted: NAMED, Budget { evict: 1, cancel: 1, ..NEVER };
    held_and_deleted_by_its_kubelet_at_last: NAMED, Budget { rewrite: 1, outsider: 1, cancel: 1, ..NEVER };
    held_on_a_node_that_is_lost: NAMED, Budget { hidden: 1, outsider: 1, ..NEVER };
    held_without_a_name_and_left_alone: UNNAMED, Budget { stale: 1, ..NEVER };
    held_without_a_name_and_deleted: UNNAMED, Budget { delete: 1, ..NEVER };
    held_without_a_name_and_cannot_be_seen: UNNAMED, Budget { hidden: 1, ..NEVER };
    held_without_a_name_and_its_server_is_changed: UNNAMED, Budget { reserver: 1, ..NEVER };
    held_without_a_name_and_cancelled: UNNAMED, Budget { cancel: 1, ..NEVER };
    held_without_a_name_and_an_outsider_ends_it: UNNAMED, Budget { outsider: 1, ..NEVER };
}

searched! {
    sent_once_and_left_alone: SINGLE_SHOT, NEVER;
    sent_once_and_refused: SINGLE_SHOT, Budget { refuse: 1, ..NEVER };
    sent_once_and_never_comes_up: SINGLE_SHOT, Budget { stuck: 1, ..NEVER };
    sent_once_and_an_outsider_ends_it: SINGLE_SHOT, Budget { outsider: 1, ..NEVER };
    sent_once_never_comes_up_and_is_cancelled: Scene { last: 2, ..SINGLE_SHOT }, Budget { stuck: 1, cancel: 1, ..NEVER };
    sent_once_never_comes_up_and_is_deleted: Scene { last: 2, ..SINGLE_SHOT }, Budget { stuck: 1, delete: 1, ..NEVER };
    sent_once_cancelled_and_an_outsider_ends_it: Scene { last: 1, ..SINGLE_SHOT }, Budget { outsider: 1, cancel: 1, ..NEVER };
    sent_once_with_a_deadline: Scene { wishes: DEADLINE, ends: false, ..SINGLE_SHOT }, NEVER;
    sent_once_and_cannot_be_seen: Scene { last: 2, ..SINGLE_SHOT }, Budget { hidden: 1, ..NEVER };
    sent_once_and_its_server_is_changed: SINGLE_SHOT, Budget { reserver: 1, ..NEVER };
    sent_once_and_its_class_is_recreated: Scene { last: 2, ..SINGLE_SHOT }, Budget { reclass: 1, ..NEVER };
    sent_once_and_cancelled: SINGLE_SHOT, Budget { cancel: 1, ..NEVER };
    sent_once_and_deleted: SINGLE_SHOT, Budget { delete: 1, ..NEVER };
    sent_once_deleted_and_created_again: Scene { last: 1, ..SINGLE_SHOT }, Budget { delete: 1, recreate: 1, ..NEVER };
}

found! {
    an_acceptance_that_is_not_stored_is_found: AcceptanceNotStored breaks NothingBeforeAcceptance in NAMED, NEVER;
    an_attempt_that_is_not_stored_is_found: AttemptNotStored breaks OneStart in SINGLE_SHOT, NEVER;
    a_start_without_record_is_found: StartWithoutRecord breaks OneStart in NAMED, Budget { outsider: 1, ..NEVER };
    an_unguarded_start_is_found: UnguardedStart breaks OneStart in UNNAMED, NEVER;
    a_start_of_what_was_not_recorded_is_found: StartsWhatItListsFirst breaks OneStart in NAMED, Budget { outsider: 1, extra: 1, ..NEVER };
    a_request_that_is_sent_again_is_found: ResendsUnanswered breaks OneStart in SINGLE_SHOT, NEVER;
    a_request_that_is_repeated_below_is_found: RepeatsRequests breaks OneStart in SINGLE_SHOT, NEVER;
    a_lost_execution_that_is_replaced_is_found: RunsTheLostAgain breaks OneStart in NAMED, Budget { outsider: 1, ..NEVER };
    a_result_that_is_overwritten_is_found: TrustsStaleReads breaks FinalResult in NAMED, Budget { cancel: 1, ..NEVER };
    a_write_against_the_rules_is_found: WritesWithoutAVersion breaks LegalWrites in NAMED, NEVER;
    a_job_that_nobody_looks_at_is_found: NeverLooksAgain breaks AnEnd in NAMED, NEVER;
    trust_in_stale_reads_is_found: TrustsStaleReads breaks OneStart in SINGLE_SHOT, NEVER;
    a_command_without_a_fence_is_found: IgnoresTheFence breaks TrueResult in SINGLE_SHOT, NEVER;
    a_clock_read_too_late_is_found: ReadsTheClockAfterwards breaks TrueResult in SINGLE_SHOT, NEVER;
    a_margin_below_the_skew_is_found: NoMargin breaks TrueResult in Scene { margin: 0, ..SINGLE_SHOT }, NEVER;
    uids_that_are_ignored_are_found: IgnoresUids breaks OwnExecutionsOnly in NAMED, Budget { delete: 1, recreate: 1, ..NEVER };
    an_early_release_is_found: ReleasesEarly breaks TrueResult in NAMED, NEVER;
    a_stop_by_deletion_is_found: StopsByDeleting breaks TrueResult in SINGLE_SHOT, Budget { cancel: 1, ..NEVER };
    a_stop_that_was_only_accepted_is_found: BelievesAcceptedStops breaks TrueResult in SINGLE_SHOT, Budget { cancel: 1, ..NEVER };
    an_exit_without_evidence_is_found: BelievesExits breaks TrueResult in SINGLE_SHOT, Budget { outsider: 1, ..NEVER };
    a_stop_of_an_outsider_taken_for_ours_is_found: IgnoresWhoAskedFirst breaks TrueResult in NAMED, Budget { outsider: 1, cancel: 1, ..NEVER };
    trust_in_another_server_is_found: BelievesAnotherServer breaks TrueResult in SINGLE_SHOT, Budget { reserver: 1, ..NEVER };
    trust_in_a_silent_node_is_found: BelievesThatSilenceIsAnEnd breaks TrueResult in NAMED, Budget { outsider: 1, hidden: 1, ..NEVER };
    a_finalizer_dropped_at_once_is_found: DropsFinalizerAtOnce breaks FinalizerKept in NAMED, Budget { delete: 1, ..NEVER };
}

/// Everything may happen, twice; far beyond what can be searched.
#[test]
fn random_histories_beyond_the_bounds_keep_every_promise() {
    let faults = Budget {
        refuse: 2,
        stuck: 1,
        outsider: 2,
        evict: 2,
        rewrite: 2,
        hidden: 2,
        stale: 2,
        extra: 1,
        cancel: 1,
        delete: 2,
        recreate: 1,
        reclass: 1,
        reserver: 1,
    };
    for scene in [
        Scene {
            name: "NAMED",
            wishes: DEADLINE,
            last: 3,
            ..NAMED
        },
        Scene {
            name: "UNNAMED",
            ..UNNAMED
        },
        Scene {
            name: "SKEWED",
            ..SKEWED
        },
        Scene {
            name: "SKEWED with a deadline",
            wishes: DEADLINE,
            ..SKEWED
        },
    ] {
        walk::at_random(&Scene { faults, ..scene });
    }
}

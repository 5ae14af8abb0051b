//! More at once than every run can search: only with the feature `wide`.

use std::env;

use super::{
    Budget, DEADLINE, NAMED, NEVER, SINGLE_SHOT, SKEWED, Scene, Table, UNNAMED, keeps_every_promise, proof,
    row,
};

/// Where the wider scenarios are cut off: some 3 GB each, and 10 minutes for all on two cores.
const WIDE: usize = 40_000_000;

/// As far as `AYATORI_TEST_STATES` says.
fn is_searched(scene: Scene) {
    let most = env::var("AYATORI_TEST_STATES")
        .ok()
        .map_or(WIDE, |states| states.parse().expect("a number of states"));
    let findings = keeps_every_promise(scene, most);
    if most == WIDE || !findings.cut {
        let mut row = row(&scene, &findings);
        row.push(if findings.cut { "no" } else { "yes" }.to_owned());
        row.push(findings.time.as_secs().to_string());
        proof::hold(Table::Widest, &row);
    }
}

searched! {
    held_with_everything_an_outsider_does: NAMED, Budget { outsider: 2, extra: 1, cancel: 1, delete: 1, ..NEVER };
    held_and_its_class_is_recreated: NAMED, Budget { reclass: 1, outsider: 1, cancel: 1, ..NEVER };
    held_and_cannot_be_seen: NAMED, Budget { hidden: 1, cancel: 1, delete: 1, ..NEVER };
    held_deleted_and_created_again: NAMED, Budget { outsider: 1, delete: 2, recreate: 1, ..NEVER };
    held_with_a_deadline: Scene { wishes: DEADLINE, last: 3, ..NAMED }, Budget { outsider: 1, delete: 1, ..NEVER };
    held_without_a_name: UNNAMED, Budget { outsider: 1, cancel: 1, delete: 1, ..NEVER };
    sent_once_under_skewed_clocks: SKEWED, NEVER;
    sent_once_and_deleted_under_skewed_clocks: SKEWED, Budget { delete: 1, ..NEVER };
    sent_once_and_never_comes_up: SINGLE_SHOT, Budget { stuck: 1, cancel: 1, ..NEVER };
    sent_once_never_comes_up_and_is_deleted: SINGLE_SHOT, Budget { stuck: 1, delete: 1, ..NEVER };
    sent_once_refused_and_cancelled: SINGLE_SHOT, Budget { refuse: 1, cancel: 1, ..NEVER };
    sent_once_and_an_outsider_ends_it: SINGLE_SHOT, Budget { outsider: 1, cancel: 1, delete: 1, ..NEVER };
    sent_once_and_its_server_is_changed: SINGLE_SHOT, Budget { reserver: 1, delete: 1, outsider: 1, ..NEVER };
    sent_once_and_its_class_is_recreated: SINGLE_SHOT, Budget { reclass: 1, cancel: 1, ..NEVER };
    sent_once_deleted_and_created_again: SINGLE_SHOT, Budget { stuck: 1, delete: 2, recreate: 1, ..NEVER };
}

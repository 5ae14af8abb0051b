//! Random histories, beyond what can be searched.

use fastrand::Rng;

use crate::events::{after, beginning, has_come_to_its_end, waits_beyond_the_last_tick};
use crate::mind::Mind;
use crate::state::Scene;
use crate::story;

/// How many histories an ordinary run tries.
const HISTORIES: usize = 500;
/// How many events a history has at most, before only those follow that come by themselves.
const EVENTS: usize = 250;
/// In how many events of that kind the Job has to come to its end.
const PATIENCE: usize = 5_000;

/// Tries histories of a scenario at random. `AYATORI_TEST_SEED` repeats what a failure named.
pub(crate) fn at_random(scene: &Scene) {
    let all = std::env::var_os("AYATORI_TEST_ALL").is_some();
    let given = std::env::var("AYATORI_TEST_SEED")
        .ok()
        .map(|seed| seed.parse().expect("a number"));
    let seed: u64 = given.unwrap_or_else(|| fastrand::u64(..));
    println!("{}: AYATORI_TEST_SEED={seed}", scene.name);
    let mut random = Rng::with_seed(seed);
    let mut mind = Mind::new(scene);
    let mut ended = 0;
    let histories = if all { 50 * HISTORIES } else { HISTORIES };
    for _ in 0..histories {
        ended += usize::from(history(scene, &mut mind, &mut random, seed));
    }
    println!(
        "{}: {histories} histories, {ended} of them to the Job's end, {} decisions",
        scene.name,
        mind.decisions()
    );
}

/// One history; whether its Job came to its end, rather than to the edge of the world.
fn history(scene: &Scene, mind: &mut Mind, random: &mut Rng, seed: u64) -> bool {
    let mut path = vec![beginning(scene, mind)];
    let events = random.usize(..EVENTS);
    for number in 0..events + PATIENCE {
        let world = path.last().expect("a beginning");
        let (ways, cramped) = after(world, scene, mind);
        let ends = has_come_to_its_end(world, mind);
        let at_the_edge = cramped || waits_beyond_the_last_tick(world, scene, mind);
        let settling = number >= events;
        if settling && (ends || at_the_edge) {
            return ends;
        }
        let fair: Vec<_> = ways.iter().filter(|way| way.fair).collect();
        let all: Vec<_> = ways.iter().collect();
        // Deaths and lost answers are always possible; if they were as likely as all else, little would happen.
        let often_fair = random.u8(..10) > 0 && !fair.is_empty();
        let choice = if settling || often_fair { &fair } else { &all };
        let Some(way) = random.choice(choice) else {
            assert!(
                ends || at_the_edge,
                "nothing goes on, AYATORI_TEST_SEED={seed}\n{}",
                story::tell(&path, scene, mind)
            );
            return ends;
        };
        path.push(way.world);
        if let Some(broken) = way.world.broken {
            let story = story::tell(&path, scene, mind);
            panic!(
                "{broken} ({:?}), AYATORI_TEST_SEED={seed}\n{story}",
                broken.promise()
            );
        }
    }
    let story = story::tell(&path, scene, mind);
    panic!("the Job never came to its end, AYATORI_TEST_SEED={seed}\n{story}");
}

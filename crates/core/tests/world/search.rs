//! Every state that can be reached, the shortest way to a broken promise, and whether every Job comes to its end.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use indexmap::IndexSet;

use crate::events::{after, beginning, has_come_to_its_end, waits_beyond_the_last_tick};
use crate::mind::Mind;
use crate::promises::{Broken, Promise};
use crate::state::{Scene, World};
use crate::story;

/// What a search came to.
pub(crate) struct Findings {
    pub(crate) name: &'static str,
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    pub(crate) decisions: usize,
    /// States in which a step was missing because the world is small, or its clock at its end.
    pub(crate) cramped: usize,
    pub(crate) time: Duration,
    /// Each broken promise, with the shortest way to it.
    pub(crate) broken: BTreeMap<Broken, String>,
    /// How many states the Job never leaves for its end, and the shortest way to one.
    pub(crate) stuck: Option<(usize, String)>,
    /// Whether the search was cut off.
    pub(crate) cut: bool,
}

/// How far to search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// After so many states the search is cut off.
    pub(crate) states: usize,
    /// It is over when this promise is broken.
    pub(crate) until: Option<Promise>,
}

/// Searches breadth first, so that the first way found to anything is a shortest one.
pub(crate) fn search(scene: &Scene, bound: Bound) -> Findings {
    let began = Instant::now();
    let mut mind = Mind::new(scene);
    let mut worlds = IndexSet::with_hasher(FixedState::default());
    let mut parents = vec![0_u32];
    // From a world to one before it, by events that come by themselves.
    let mut back: Vec<(u32, u32)> = Vec::new();
    let mut at_an_end = Vec::new();
    let mut broken = BTreeMap::new();
    let mut transitions = 0;
    let mut cramped = 0;
    worlds.insert(beginning(scene, &mut mind));
    let mut current = 0;
    let mut found = false;
    while current < worlds.len() && worlds.len() <= bound.states && !found {
        let world: World = *worlds.get_index(current).expect("a number below the length");
        let here = u32::try_from(current).unwrap();
        let (next, mut is_cramped) = after(&world, scene, &mut mind);
        is_cramped |= waits_beyond_the_last_tick(&world, scene, &mind);
        cramped += usize::from(is_cramped);
        if is_cramped || world.broken.is_some() || has_come_to_its_end(&world, &mind) {
            at_an_end.push(here);
        }
        transitions += next.len();
        for way in next {
            let (number, is_new) = worlds.insert_full(way.world);
            let there = u32::try_from(number).unwrap();
            if is_new {
                parents.push(here);
                if let Some(cause) = way.world.broken {
                    broken.entry(cause).or_insert(there);
                    found |= bound.until == Some(cause.promise());
                }
            }
            if way.fair {
                back.push((there, here));
            }
        }
        current += 1;
    }
    let unfinished = current < worlds.len();
    let stuck = if unfinished {
        Vec::new()
    } else {
        never_ending(worlds.len(), at_an_end, back)
    };
    let tell = |mind: &mut Mind, end: u32| {
        let mut path = vec![end];
        let mut number = end;
        while number != 0 {
            number = parents[usize::try_from(number).unwrap()];
            path.push(number);
        }
        let path: Vec<World> = path
            .into_iter()
            .rev()
            .map(|number| worlds[usize::try_from(number).unwrap()])
            .collect();
        story::tell(&path, scene, mind)
    };
    Findings {
        name: scene.name,
        states: worlds.len(),
        transitions,
        decisions: mind.decisions(),
        cramped,
        broken: broken
            .into_iter()
            .map(|(cause, end)| (cause, tell(&mut mind, end)))
            .collect(),
        stuck: stuck.first().map(|first| (stuck.len(), tell(&mut mind, *first))),
        time: began.elapsed(),
        cut: unfinished && !found,
    }
}

/// The states from which no row of fair events leads to an end. If every state has such a row, then every Job
/// ends in every run in which whatever is possible again and again happens at some time.
fn never_ending(states: usize, ends: Vec<u32>, mut back: Vec<(u32, u32)>) -> Vec<u32> {
    back.sort_unstable();
    let mut good = vec![false; states];
    let mut open = ends;
    for end in &open {
        good[usize::try_from(*end).unwrap()] = true;
    }
    while let Some(there) = open.pop() {
        let first = back.partition_point(|(to, _)| *to < there);
        for (_, here) in back[first..].iter().take_while(|(to, _)| *to == there) {
            let known = &mut good[usize::try_from(*here).unwrap()];
            if !*known {
                *known = true;
                open.push(*here);
            }
        }
    }
    (0..)
        .zip(good)
        .filter_map(|(number, good)| (!good).then_some(number))
        .collect()
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} states, {} transitions, {} decisions, {} cramped, {:.1} s{}",
            self.name,
            self.states,
            self.transitions,
            self.decisions,
            self.cramped,
            self.time.as_secs_f64(),
            if self.cut { ", CUT OFF" } else { "" },
        )?;
        for (cause, story) in &self.broken {
            writeln!(f, "BROKEN {:?}: {cause}\n{story}", cause.promise())?;
        }
        if let Some((count, story)) = &self.stuck {
            writeln!(
                f,
                "{count} states from which the Job never comes to its end, such as:\n{story}"
            )?;
        }
        Ok(())
    }
}

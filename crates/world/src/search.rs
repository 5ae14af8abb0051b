//! Every state that can be reached, the shortest way to a broken promise, and whether every Job comes to its end.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::atlas::Atlas;
use crate::events::{after, beginning, has_come_to_its_end, waits_beyond_the_last_tick};
use crate::mind::Mind;
use crate::promises::{Broken, Promise};
use crate::state::{Scene, World};
use crate::story;

/// What a search came to.
pub(crate) struct Findings {
    pub(crate) name: &'static str,
    pub(crate) controllers: u8,
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    pub(crate) decisions: usize,
    /// States in which a step was missing because the world is small, or its clock at its end.
    pub(crate) cramped: usize,
    pub(crate) time: Duration,
    /// Each broken promise, with the shortest way to it, and how many steps that has.
    pub(crate) broken: BTreeMap<Broken, (usize, String)>,
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
    let mut atlas = Atlas::new();
    let mut parents = vec![0_u32];
    let mut roads = Roads::default();
    let mut broken = BTreeMap::new();
    let mut transitions = 0;
    let mut cramped = 0;
    atlas.number(&beginning(scene, &mut mind));
    let mut here = 0_u32;
    let mut found = false;
    while index(here) < atlas.len() && atlas.len() <= bound.states && !found {
        let world = atlas.world(here);
        let (next, mut is_cramped) = after(&world, scene, &mut mind);
        is_cramped |= waits_beyond_the_last_tick(&world, scene, &mind);
        cramped += usize::from(is_cramped);
        transitions += next.len();
        for way in next {
            let (there, is_new) = atlas.number(&way.world);
            if is_new {
                parents.push(here);
                if let Some(cause) = way.world.broken {
                    broken.entry(cause).or_insert(there);
                    found |= bound.until == Some(cause.promise());
                }
            }
            if way.fair {
                roads.lead_to(there);
            }
        }
        roads.end_of(is_cramped || world.broken.is_some() || has_come_to_its_end(&world, &mind));
        here += 1;
    }
    let unfinished = index(here) < atlas.len();
    let stuck = if unfinished {
        Vec::new()
    } else {
        roads.never_ending()
    };
    let tell = |mind: &mut Mind, end: u32| {
        let mut path = vec![end];
        let mut number = end;
        while number != 0 {
            number = parents[index(number)];
            path.push(number);
        }
        let path: Vec<World> = path.into_iter().rev().map(|number| atlas.world(number)).collect();
        (path.len() - 1, story::tell(&path, scene, mind))
    };
    Findings {
        name: scene.name,
        controllers: scene.processes,
        states: atlas.len(),
        transitions,
        decisions: mind.decisions(),
        cramped,
        broken: broken
            .into_iter()
            .map(|(cause, end)| (cause, tell(&mut mind, end)))
            .collect(),
        stuck: stuck
            .first()
            .map(|first| (stuck.len(), tell(&mut mind, *first).1)),
        time: began.elapsed(),
        cut: unfinished && !found,
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap()
}

/// From every state, in their order, where the events lead that come by themselves.
#[derive(Default)]
struct Roads {
    there: Vec<u32>,
    /// Where the roads of each state end in the list of all.
    ends: Vec<u32>,
    /// Whether the Job is at its end in a state, or known to come to it.
    good: Vec<bool>,
}

impl Roads {
    fn lead_to(&mut self, there: u32) {
        self.there.push(there);
    }

    /// These were all roads of the next state, which is an end or not.
    fn end_of(&mut self, is_an_end: bool) {
        self.ends
            .push(u32::try_from(self.there.len()).expect("fewer than four thousand million"));
        self.good.push(is_an_end);
    }

    /// The states from which no row of fair events leads to an end. If every state has such a row, then every Job
    /// ends in every run in which whatever is possible again and again happens at some time.
    ///
    /// Roads lead mostly to states that were found later, so a sweep from the last to the first settles nearly all.
    fn never_ending(mut self) -> Vec<u32> {
        let mut changed = true;
        while changed {
            changed = false;
            for here in (0..self.good.len()).rev() {
                if self.good[here] {
                    continue;
                }
                let first = if here == 0 { 0 } else { index(self.ends[here - 1]) };
                let leads_on = |there: &u32| self.good[index(*there)];
                if self.there[first..index(self.ends[here])].iter().any(leads_on) {
                    self.good[here] = true;
                    changed = true;
                }
            }
        }
        (0..)
            .zip(self.good)
            .filter_map(|(number, good)| (!good).then_some(number))
            .collect()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} with {}: {} states, {} transitions, {} decisions, {} cramped, {:.1} s{}",
            self.name,
            if self.controllers == 1 {
                "one controller"
            } else {
                "two controllers"
            },
            self.states,
            self.transitions,
            self.decisions,
            self.cramped,
            self.time.as_secs_f64(),
            if self.cut { ", CUT OFF" } else { "" },
        )?;
        for (cause, (_, story)) in &self.broken {
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

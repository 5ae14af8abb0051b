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
    /// States from which the Job comes to its end, if at all, only by way of cramped ones. Not known where the search was
    /// cut off.
    pub(crate) undecided: Option<usize>,
    /// How many states the Job never leaves for its end, and the shortest way to one, with its steps.
    pub(crate) stuck: Option<(usize, (usize, String))>,
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
        roads.all_of_a_state(if world.broken.is_some() || has_come_to_its_end(&world, &mind) {
            Prospect::AnEnd
        } else if is_cramped {
            Prospect::Cramped
        } else {
            Prospect::None
        });
        here += 1;
    }
    let unfinished = index(here) < atlas.len();
    let ends = (!unfinished).then(|| roads.ends());
    let undecided = ends.as_ref().map(|ends| ends.undecided);
    let stuck = ends.map(|ends| ends.never).unwrap_or_default();
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
        stuck: stuck.first().map(|first| (stuck.len(), tell(&mut mind, *first))),
        undecided,
        time: began.elapsed(),
        cut: unfinished && !found,
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap()
}

/// What is known of a state's way to the end of the Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prospect {
    /// Nothing, yet.
    None,
    /// Steps are missing.
    Cramped,
    /// The Job is at its end, or known to come to it.
    AnEnd,
}

/// Where the Job does not surely come to its end.
struct Ends {
    /// How many states lead to an end, if at all, only by way of cramped ones.
    undecided: usize,
    /// The states that lead to neither.
    never: Vec<u32>,
}

/// From every state, in their order, where the events lead that come by themselves.
#[derive(Default)]
struct Roads {
    there: Vec<u32>,
    /// Where the roads of each state end in the list of all.
    ends: Vec<u32>,
    prospects: Vec<Prospect>,
}

impl Roads {
    fn lead_to(&mut self, there: u32) {
        self.there.push(there);
    }

    /// These were all roads of the next state.
    fn all_of_a_state(&mut self, prospect: Prospect) {
        self.ends
            .push(u32::try_from(self.there.len()).expect("fewer than four thousand million"));
        self.prospects.push(prospect);
    }

    /// If every state has a row of fair events to an end, then every Job ends in every run in which whatever is possible
    /// again and again happens at some time.
    fn ends(mut self) -> Ends {
        self.spread();
        let known = self.prospects.iter().filter(|p| **p == Prospect::AnEnd).count();
        let all = self.prospects.len();
        for prospect in &mut self.prospects {
            if *prospect == Prospect::Cramped {
                *prospect = Prospect::AnEnd;
            }
        }
        self.spread();
        let never: Vec<_> = (0..)
            .zip(self.prospects)
            .filter_map(|(number, prospect)| (prospect != Prospect::AnEnd).then_some(number))
            .collect();
        Ends {
            undecided: all - known - never.len(),
            never,
        }
    }

    /// What leads to an end has one. Roads lead mostly to states that were found later, so a sweep from the last to the
    /// first settles nearly all.
    fn spread(&mut self) {
        let mut changed = true;
        while changed {
            changed = false;
            for here in (0..self.prospects.len()).rev() {
                if self.prospects[here] == Prospect::AnEnd {
                    continue;
                }
                let first = if here == 0 { 0 } else { index(self.ends[here - 1]) };
                let leads_on = |there: &u32| self.prospects[index(*there)] == Prospect::AnEnd;
                if self.there[first..index(self.ends[here])].iter().any(leads_on) {
                    self.prospects[here] = Prospect::AnEnd;
                    changed = true;
                }
            }
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} with {}: {} states, {} transitions, {} decisions, {} cramped, {:?} undecided, {:.1} s{}",
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
            self.undecided,
            self.time.as_secs_f64(),
            if self.cut { ", CUT OFF" } else { "" },
        )?;
        for (cause, (_, story)) in &self.broken {
            writeln!(f, "BROKEN {:?}: {cause}\n{story}", cause.promise())?;
        }
        if let Some((count, (_, story))) = &self.stuck {
            writeln!(
                f,
                "{count} states from which the Job never comes to its end, such as:\n{story}"
            )?;
        }
        Ok(())
    }
}

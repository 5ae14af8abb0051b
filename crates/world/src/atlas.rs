//! Every state that was reached, each in 16 bytes.
//!
//! A state is made of few parts, and there are few of each: millions of states share some thousand processes, sets of
//! executions and surroundings. Each part is kept once, and a state is the numbers of its parts. Nothing is lost by
//! that, as it would be with a hash in the place of a state: what is equal is equal.

use std::hash::Hash;

use foldhash::fast::FixedState;
use indexmap::IndexSet;

use crate::state::{Executions, Process, Surroundings, World};

/// Things that are kept once each and known by a number.
struct Shelf<T>(IndexSet<T, FixedState>);

impl<T: Copy + Eq + Hash> Shelf<T> {
    const fn new() -> Self {
        Self(IndexSet::with_hasher(FixedState::with_seed(0)))
    }

    fn number(&mut self, thing: T) -> (u32, bool) {
        let (number, is_new) = self.0.insert_full(thing);
        (
            u32::try_from(number).expect("fewer than four thousand million"),
            is_new,
        )
    }

    fn get(&self, number: u32) -> T {
        *self
            .0
            .get_index(usize::try_from(number).unwrap())
            .expect("a number that was given out")
    }
}

/// All states so far, in the order in which they were found.
pub(crate) struct Atlas {
    processes: Shelf<Process>,
    executions: Shelf<Executions>,
    surroundings: Shelf<Surroundings>,
    worlds: Shelf<[u32; 4]>,
}

impl Atlas {
    pub(crate) const fn new() -> Self {
        Self {
            processes: Shelf::new(),
            executions: Shelf::new(),
            surroundings: Shelf::new(),
            worlds: Shelf::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.worlds.0.len()
    }

    /// The number of a world, and whether it is new.
    pub(crate) fn number(&mut self, world: &World) -> (u32, bool) {
        let [first, second] = world.processes;
        let parts = [
            self.processes.number(first).0,
            self.processes.number(second).0,
            self.executions.number(world.executions).0,
            self.surroundings.number(world.surroundings()).0,
        ];
        self.worlds.number(parts)
    }

    pub(crate) fn world(&self, number: u32) -> World {
        let [first, second, executions, surroundings] = self.worlds.get(number);
        World::of(
            [first, second].map(|process| self.processes.get(process)),
            self.executions.get(executions),
            self.surroundings.get(surroundings),
        )
    }
}

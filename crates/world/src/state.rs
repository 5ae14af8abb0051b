//! Everything there is, in one small value; and what a scenario allows to happen.

use std::ops::{Deref, DerefMut};

use crate::backend::{Execution, Kind, Life, Message};
use crate::faults::Fault;
use crate::mind::{Did, Known};
use crate::objects::{FAR, Library, Version, Wishes};
use crate::promises::Broken;

/// How many executions there can be at most.
pub(crate) const SLOTS: usize = 3;

/// A scenario: what there is, and what may happen how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) wishes: Wishes,
    /// The last tick, in which everything has run out.
    pub(crate) last: u8,
    /// By how many ticks the second process's clock is ahead.
    pub(crate) ahead: u8,
    /// By how many ticks the backend's clock is behind.
    pub(crate) behind: u8,
    /// For how many ticks an execution may be missing from lists, while it can already start.
    pub(crate) lag: u8,
    /// For how many ticks a create request may be sent, and its command may start.
    pub(crate) window: u8,
    /// Clock skew and list lag together, as the processes are told.
    pub(crate) margin: u8,
    /// Whether commands end by themselves.
    pub(crate) ends: bool,
    /// Which incarnation of the class there is at first.
    pub(crate) class: u8,
    pub(crate) faults: Budget,
    /// How many processes there are.
    pub(crate) processes: u8,
    pub(crate) fault: Option<Fault>,
}

/// How often something that need not happen may still happen. Not counted, because they may happen at any time
/// and as often as they like: a process dies and starts again with nothing but an old cache; a request has its
/// effect and its answer is lost; a request is on its way for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Budget {
    /// A create request is refused.
    pub(crate) refuse: u8,
    /// A created execution never comes up.
    pub(crate) stuck: u8,
    /// An outsider ends or deletes an execution.
    pub(crate) outsider: u8,
    /// The cluster evicts an execution.
    pub(crate) evict: u8,
    /// A kubelet deletes an ended pod that was being deleted, which puts its own time in the place of the first.
    pub(crate) rewrite: u8,
    /// The execution cannot be seen for a while.
    pub(crate) hidden: u8,
    /// A list of a cache does not show what there is yet.
    pub(crate) stale: u8,
    /// The Job controller makes another pod.
    pub(crate) extra: u8,
    /// Users.
    pub(crate) cancel: u8,
    pub(crate) delete: u8,
    pub(crate) recreate: u8,
    /// The class and its parameters are created anew under the same name.
    pub(crate) reclass: u8,
    /// The parameters name another server.
    pub(crate) reserver: u8,
}

impl Budget {
    /// None of it.
    pub(crate) const NONE: Self = Self {
        refuse: 0,
        stuck: 0,
        outsider: 0,
        evict: 0,
        rewrite: 0,
        hidden: 0,
        stale: 0,
        extra: 0,
        cancel: 0,
        delete: 0,
        recreate: 0,
        reclass: 0,
        reserver: 0,
    };
}

/// One controller process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Process {
    /// The Job as its cache, or its own last write, shows it.
    pub(crate) copy: Version,
    /// The incarnation of the class that its cache shows.
    pub(crate) class: u8,
    pub(crate) known: Known,
    pub(crate) waits: Waits,
}

/// What a process waits for in the middle of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Waits {
    #[default]
    Nothing,
    Creation,
    Start,
}

impl Process {
    /// Its pass is over; what it knew is forgotten.
    pub(crate) fn rests(&mut self) {
        self.known = Known::default();
        self.waits = Waits::Nothing;
    }

    /// What was seen of the backend before a change is old after it.
    pub(crate) fn did(&mut self, did: Did) {
        self.waits = Waits::Nothing;
        self.known = Known {
            prospect: None,
            state: None,
            remains: None,
            done: Some(did),
            ..self.known
        };
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.known == Known::default() && self.waits == Waits::Nothing
    }
}

/// What really happened to a Job, whatever anybody says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Truth {
    pub(crate) accepted: bool,
    pub(crate) starts: u8,
    pub(crate) end: Option<End>,
    /// An outsider took away what showed how it ended.
    pub(crate) destroyed: bool,
    /// Nothing shows any more when somebody first asked for its end.
    pub(crate) blurred: bool,
    /// Its finalizer is off, or it is gone.
    pub(crate) gone: bool,
}

/// Why a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum End {
    ByItself,
    /// By our stop, or by an outsider after our stop was stored.
    Stopped,
    /// By an outsider, while no stop was stored.
    ByOutsider,
}

/// The executions of a world.
pub(crate) type Executions = [Execution; SLOTS];

/// Everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) processes: [Process; 2],
    pub(crate) executions: Executions,
    surroundings: Surroundings,
}

/// Everything but processes and executions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Surroundings {
    pub(crate) now: u8,
    /// The Job as it is stored.
    pub(crate) job: Version,
    /// How many Jobs of the name there have been.
    pub(crate) uids: u8,
    pub(crate) network: [Message; 2],
    /// The incarnation of the class that there is; zero: none.
    pub(crate) class: u8,
    /// The server that the parameters name.
    pub(crate) server: u8,
    /// Whether the backend's nodes cannot be seen.
    pub(crate) hidden: bool,
    /// How many attempts were ever stored.
    pub(crate) attempts: u8,
    pub(crate) truth: [Truth; 2],
    pub(crate) left: Budget,
    pub(crate) broken: Option<Broken>,
}

/// Who is in a world need not know which part of it holds what.
impl Deref for World {
    type Target = Surroundings;

    fn deref(&self) -> &Surroundings {
        &self.surroundings
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Surroundings {
        &mut self.surroundings
    }
}

impl World {
    pub(crate) fn of(processes: [Process; 2], executions: Executions, surroundings: Surroundings) -> Self {
        Self {
            processes,
            executions,
            surroundings,
        }
    }

    pub(crate) fn surroundings(&self) -> Surroundings {
        self.surroundings
    }

    pub(crate) fn truth(&mut self, uid: u8) -> &mut Truth {
        &mut self.truth[usize::from(uid) - 1]
    }

    pub(crate) fn breaks(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    /// Whoever waited for an answer does so no longer.
    pub(crate) fn hangs_up(&mut self, who: usize) {
        let by = u8::try_from(who + 1).unwrap();
        for execution in &mut self.executions {
            if execution.asked_by == by {
                execution.asked_by = 0;
            }
        }
        for message in &mut self.surroundings.network {
            if let Some(caller) = message.by().filter(|caller| **caller == by) {
                *caller = 0;
            }
        }
    }

    /// A start that nobody waits for does nothing to what is not held any more, nor a second time.
    fn forgets_requests_without_effect(&mut self) {
        if self.network[0] == self.network[1] {
            self.network[1] = Message::None;
        }
        for message in &mut self.surroundings.network {
            if let Message::Start { execution, by: 0 } = message
                && self.executions[usize::from(*execution)].life != Life::Held
            {
                *message = Message::None;
            }
        }
    }

    /// Worlds are one that differ only in what things are called: which process is the first, if their clocks agree;
    /// which of the executions is which that nobody has a name for; and whether one that is gone was ever there.
    pub(crate) fn canonical(mut self, scene: &Scene, library: &Library) -> (Self, Moved) {
        self.forgets_requests_without_effect();
        self.network.sort_unstable();
        let swapped = scene.processes == 2 && scene.ahead == 0 && self.processes[0] > self.processes[1];
        if swapped {
            self.processes.swap(0, 1);
            let other = |by: &mut u8| *by = if *by == 0 { 0 } else { 3 - *by };
            self.executions.iter_mut().for_each(|e| other(&mut e.asked_by));
            self.network.iter_mut().filter_map(Message::by).for_each(other);
            self.network.sort_unstable();
        }
        let slots = self.sorts_executions(library);
        (self, Moved { swapped, slots })
    }

    /// Says which execution was where before.
    fn sorts_executions(&mut self, library: &Library) -> [usize; SLOTS] {
        let mut slots = std::array::from_fn(|slot| slot);
        let named = self.named_executions(library);
        for (execution, named) in self.executions.iter_mut().zip(named) {
            if execution.life == Life::Gone && !named {
                *execution = Execution::default();
            }
        }
        for left in 0..SLOTS {
            for right in left + 1..SLOTS {
                if !named[left] && !named[right] && self.executions[left] > self.executions[right] {
                    self.executions.swap(left, right);
                    slots.swap(left, right);
                }
            }
        }
        slots
    }

    /// Which executions somebody knows by name: a Job or a copy of it, a process, or a request.
    fn named_executions(&self, library: &Library) -> [bool; SLOTS] {
        let mut named = [false; SLOTS];
        let mut name = |number: Option<u8>| {
            if let Some(number) = number {
                named[usize::from(number)] = true;
            }
        };
        name(library.card(self.job).execution);
        for process in &self.processes {
            name(library.card(process.copy).execution);
            name(process.known.names());
            name(process.known.created());
        }
        for message in self.network {
            if let Message::Start { execution, .. } = message {
                name(Some(execution));
            }
        }
        named
    }

    /// A number for another batch Job.
    pub(crate) fn fresh_batch(&self) -> u8 {
        let taken = |batch: &u8| {
            self.executions
                .iter()
                .any(|e| e.life != Life::Unborn && e.batch == *batch)
        };
        (0..)
            .find(|batch| !taken(batch))
            .expect("there are few executions")
    }
}

/// What is called otherwise in a world than it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// Whether the processes have changed places.
    pub(crate) swapped: bool,
    /// Where each execution was before.
    pub(crate) slots: [usize; SLOTS],
}

impl Scene {
    /// What a process's clock shows.
    pub(crate) fn clock(&self, who: usize, now: u8) -> u8 {
        match now {
            now if now >= self.last => FAR,
            now if who == 1 => now + self.ahead,
            now => now,
        }
    }

    /// What the backend's clock shows at the latest and at the earliest.
    pub(crate) fn backend_clock(&self, now: u8) -> u8 {
        match now {
            now if now >= self.last => FAR,
            now => now.saturating_sub(self.behind),
        }
    }

    /// The true time, as a clock would show it that is neither ahead nor behind.
    pub(crate) fn true_clock(&self, now: u8) -> u8 {
        if now >= self.last { FAR } else { now }
    }
}

//! What can happen next.

use crate::backend::{Execution, Life, Message};
use crate::faults::Fault;
use crate::mind::{Deed, Known, Mind, Move, Query, Situation};
use crate::objects::{FAR, TICK, Version, job};
use crate::state::{Budget, Moved, Process, SLOTS, Scene, Surroundings, Waits, World};

/// Something that happens. `who` is a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Tick,
    Sees { who: usize },
    SeesClass { who: usize },
    Rests { who: usize },
    Asks { who: usize, query: Query },
    Writes { who: usize, to: Version, fate: Fate },
    Collects { who: usize },
    Acts { who: usize, deed: Deed, lost: bool },
    IsAnswered { who: usize },
    IsRefused { who: usize },
    GivesUp { who: usize },
    Crashes { who: usize },
    Arrives { message: Message },
    ArrivesAndIsRepeated,
    Listed { number: usize },
    ComesUp { number: usize },
    ComesUpTooLate { number: usize },
    NeverComesUp { number: usize },
    Ends { number: usize },
    PodIsDeleted { number: usize },
    KubeletDeletes { number: usize },
    AnotherPod { number: usize },
    OutsiderStops { number: usize },
    OutsiderDeletes { number: usize },
    CodeIsLost { number: usize },
    Evicts { number: usize },
    KubeletEnds { number: usize },
    Hides,
    Shows,
    Cancels,
    Deletes,
    Submits,
    ClassCreated,
    ServerChanged,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Stored,
    Conflict,
    /// Stored, and the answer was lost.
    AnswerLost,
    /// Not stored, but taken for stored.
    OnlyInMemory,
}

/// One way on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) event: Event,
    pub(crate) world: World,
    /// Whether it comes by itself in the end; faults and users' wishes need not.
    pub(crate) fair: bool,
    /// What is called otherwise in the new world.
    pub(crate) moved: Moved,
}

/// Every way on from a world.
pub(crate) struct Events<'a> {
    pub(crate) scene: &'a Scene,
    pub(crate) mind: &'a mut Mind,
    pub(crate) here: World,
    next: Vec<Next>,
    /// A step was impossible only because the world is small.
    pub(crate) cramped: bool,
}

/// The ways on, and whether some are missing because the world is small.
pub(crate) fn after(here: &World, scene: &Scene, mind: &mut Mind) -> (Vec<Next>, bool) {
    if here.broken.is_some() {
        return (Vec::new(), false);
    }
    let mut events = Events {
        scene,
        mind,
        here: *here,
        next: Vec::new(),
        cramped: false,
    };
    events.time();
    for who in 0..usize::from(scene.processes) {
        events.process(who);
    }
    events.network();
    events.backend();
    events.users();
    (events.next, events.cramped)
}

impl Events<'_> {
    pub(crate) fn fair(&mut self, event: Event, world: World) {
        self.push(event, world, true);
    }

    pub(crate) fn perhaps(&mut self, event: Event, budget: fn(&mut Budget) -> &mut u8, mut world: World) {
        let left = budget(&mut world.left);
        if *left > 0 {
            *left -= 1;
            self.push(event, world, false);
        }
    }

    pub(crate) fn push(&mut self, event: Event, mut world: World, fair: bool) {
        world.check(&self.mind.library);
        for who in 0..2 {
            if world.processes[who] != self.here.processes[who] || world.now != self.here.now {
                self.settles(&mut world, who);
            }
        }
        let (world, moved) = world.canonical(self.scene, &self.mind.library);
        if world != self.here {
            self.next.push(Next {
                event,
                world,
                fair,
                moved,
            });
        }
    }

    /// Forgets what no decision looks at any more; and where nothing can change a decision to do nothing, the
    /// pass is over at once.
    pub(crate) fn settles(&mut self, world: &mut World, who: usize) {
        let mut process = world.processes[who];
        let card = self.mind.library.card(process.copy);
        let relevant = process.known.relevant(card, self.scene.kind);
        if relevant != process.known && process.waits == Waits::Nothing && process.copy.exists() {
            let before = self.mind.decide(situation(self.scene, world, who));
            world.processes[who].known = relevant;
            let after = self.mind.decide(situation(self.scene, world, who));
            assert_eq!(before, after, "{process:?} looks at what it was to forget");
            process = world.processes[who];
        }
        let settled = world.now >= self.scene.last && world.left.reclass == 0 && process.class == world.class;
        if settled
            && process.copy.exists()
            && process.waits == Waits::Nothing
            && !process.is_idle()
            && self.mind.decide(situation(self.scene, world, who)) == Move::Rest
        {
            world.processes[who].rests();
        }
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.scene.fault == Some(fault)
    }

    // ---- time ----

    pub(crate) fn time(&mut self) {
        let here = self.here;
        // The last tick is later than any lag.
        let next = self.scene.true_clock(here.now + 1);
        let unlisted_for_too_long = |e: &Execution| e.exists() && !e.listed && next > e.born + self.scene.lag;
        if here.now < self.scene.last
            && self.something_is_timed()
            && !here.executions.iter().any(unlisted_for_too_long)
        {
            let mut world = here;
            world.now += 1;
            self.fair(Event::Tick, world);
        }
    }

    /// Before anything depends on the time, it does not matter when it is.
    pub(crate) fn something_is_timed(&self) -> bool {
        let card = self.mind.library.card(self.here.job);
        let wishes = self.scene.wishes;
        self.here.attempts > 0
            || wishes.starting_deadline.is_some()
            || (wishes.active_deadline.is_some() && card.accepted.is_some())
            || (wishes.ttl.is_some() && card.finished)
    }
}

pub(crate) fn situation(scene: &Scene, world: &World, who: usize) -> Situation {
    let process = world.processes[who];
    Situation {
        copy: process.copy,
        known: process.known,
        clock: scene.clock(who, world.now),
        class: process.class,
        attempts: world.attempts,
        server: world.server,
    }
}

pub(crate) fn free(world: &World) -> Option<usize> {
    (0..SLOTS).find(|k| world.executions[*k].life == Life::Unborn)
}
/// The world in which a scenario begins.
pub(crate) fn beginning(scene: &Scene, mind: &mut Mind) -> World {
    let process = Process {
        copy: Version::NONE,
        class: scene.class,
        known: Known::default(),
        waits: Waits::Nothing,
    };
    let surroundings = Surroundings {
        now: 0,
        job: mind.library.store(job(1, scene.wishes, 0)),
        uids: 1,
        network: [Message::None; 2],
        class: scene.class,
        server: 1,
        hidden: false,
        attempts: 0,
        truth: Default::default(),
        left: scene.faults,
        broken: None,
    };
    World::of([process; 2], [Execution::default(); SLOTS], surroundings)
}

/// Whether a Job has come to its end, or says for good reason why it cannot.
pub(crate) fn has_come_to_its_end(world: &World, mind: &Mind) -> bool {
    let card = mind.library.card(world.job);
    if !world.job.exists() {
        return true;
    }
    if world.class == 0 && card.refused {
        return true;
    }
    let unknowable = card.server.is_some_and(|recorded| recorded != world.server);
    match (card.deleting, card.finished) {
        (true, _) | (false, false) => unknowable && (card.unknown || card.finished),
        (false, true) => card.released || card.accepted.is_none() || unknowable,
    }
}

/// Whether the Job waits for a time that lies beyond the last tick.
pub(crate) fn waits_beyond_the_last_tick(world: &World, scene: &Scene, mind: &Mind) -> bool {
    let card = mind.library.card(world.job);
    let last = i64::from(FAR) * TICK;
    world.now >= scene.last
        && (card.attempt.is_some_and(|(_, fence)| i64::from(fence) >= last)
            || (card.accepted.is_some_and(|at| at >= last) && scene.wishes.active_deadline.is_some()))
}

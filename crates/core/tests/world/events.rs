//! What can happen next.

use crate::backend::{
    Ending, Execution, Kind, Life, Message, Sight, Who, of_foreign_stop, of_our_stop, of_own_end,
    of_stopped_end,
};
use crate::mind::{Deed, Did, Known, Left, Listed, LiveSight, Mind, Move, Place, Query, Reply, Situation};
use crate::objects::{Card, FAR, Version, job};
use crate::promises::Broken;
use crate::state::{Budget, End, Mutation, Process, SLOTS, Scene, Waits, World};

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
    Listed { number: usize },
    ComesUp { number: usize },
    ComesUpTooLate { number: usize },
    NeverComesUp { number: usize },
    Ends { number: usize },
    PodIsDeleted { number: usize },
    AnotherPod { number: usize },
    OutsiderStops { number: usize },
    OutsiderDeletes { number: usize },
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
    /// Whether the processes have changed places in the new world.
    pub(crate) swapped: bool,
}

/// Every way on from a world.
pub(crate) struct Events<'a> {
    scene: &'a Scene,
    mind: &'a mut Mind,
    here: World,
    next: Vec<Next>,
    /// A step was impossible only because the world is small.
    cramped: bool,
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
    for who in 0..2 {
        events.process(who);
    }
    events.network();
    events.backend();
    events.users();
    (events.next, events.cramped)
}

impl Events<'_> {
    fn fair(&mut self, event: Event, world: World) {
        self.push(event, world, true);
    }

    fn perhaps(&mut self, event: Event, budget: fn(&mut Budget) -> &mut u8, mut world: World) {
        let left = budget(&mut world.left);
        if *left > 0 {
            *left -= 1;
            self.push(event, world, false);
        }
    }

    fn push(&mut self, event: Event, mut world: World, fair: bool) {
        world.check(&self.mind.library);
        for who in 0..2 {
            if world.processes[who] != self.here.processes[who] || world.now != self.here.now {
                self.settles(&mut world, who);
            }
        }
        let (world, swapped) = world.canonical(self.scene);
        if world != self.here {
            self.next.push(Next {
                event,
                world,
                fair,
                swapped,
            });
        }
    }

    /// Forgets what no decision looks at any more; and where nothing can change a decision to do nothing, the
    /// pass is over at once.
    fn settles(&mut self, world: &mut World, who: usize) {
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

    fn has(&self, mutation: Mutation) -> bool {
        self.scene.mutation == Some(mutation)
    }

    // ---- time ----

    fn time(&mut self) {
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
    fn something_is_timed(&self) -> bool {
        let card = self.mind.library.card(self.here.job);
        let wishes = self.scene.wishes;
        self.here.attempts > 0
            || wishes.starting_deadline.is_some()
            || (wishes.active_deadline.is_some() && card.accepted.is_some())
            || (wishes.ttl.is_some() && card.finished)
    }

    // ---- a process ----

    fn process(&mut self, who: usize) {
        let here = self.here;
        let process = here.processes[who];
        if !process.is_idle() {
            let mut world = here;
            world.processes[who].rests();
            world.hangs_up(who);
            self.push(Event::Crashes { who }, world, false);
        }
        match process.waits {
            Waits::Nothing => {}
            Waits::Creation | Waits::Start => return self.waiting(who),
        }
        if process.is_idle() && process.copy != here.job {
            let mut world = here;
            world.processes[who].copy = here.job;
            self.fair(Event::Sees { who }, world);
        }
        if process.class != here.class {
            let mut world = here;
            world.processes[who].class = here.class;
            self.fair(Event::SeesClass { who }, world);
        }
        if process.copy.exists() {
            self.step(who);
        }
    }

    /// The next step of its pass, or the first.
    fn step(&mut self, who: usize) {
        let process = self.here.processes[who];
        let clock = self.scene.clock(who, self.here.now);
        let mut known = process.known;
        if let (true, Some((asked, _))) = (self.has(Mutation::ReadsTheClockAfterwards), &mut known.prospect) {
            *asked = clock;
        }
        let card = self.mind.library.card(process.copy);
        let decided = if self.has(Mutation::DropsFinalizerAtOnce) && card.deleting && card.protected {
            let mut job = self.mind.library.job(process.copy).clone();
            job.metadata.finalizers = None;
            Move::Write {
                to: self.mind.library.store(job),
                against: None,
            }
        } else {
            self.mind.decide(Situation {
                known,
                ..situation(self.scene, &self.here, who)
            })
        };
        match decided {
            Move::Rest => {
                let mut world = self.here;
                world.processes[who].rests();
                self.fair(Event::Rests { who }, world);
            }
            Move::Ask(query) => self.asks(who, query, clock),
            Move::Write { to, against } => self.writes(who, to, against.is_some()),
            Move::Collect => self.collects(who),
            Move::Act(deed) => self.acts(who, deed),
        }
    }

    fn copy(&self, who: usize) -> Card {
        self.mind.library.card(self.here.processes[who].copy).clone()
    }

    // ---- writes ----

    fn writes(&mut self, who: usize, to: Version, illegal: bool) {
        let mut world = self.here;
        let copy = world.processes[who].copy;
        let (from_card, to_card) = (
            self.mind.library.card(copy).clone(),
            self.mind.library.card(to).clone(),
        );
        let attempts_anew = to_card.attempt.is_some() && to_card.attempt != from_card.attempt;
        let records = from_card.execution.is_none() && to_card.execution.is_some();
        let goes = to_card.deleting && !to_card.protected;
        if (attempts_anew && self.has(Mutation::AttemptNotStored))
            || (records && self.has(Mutation::StartWithoutRecord))
        {
            let process = &mut world.processes[who];
            process.copy = to;
            process.known.mine = to_card.attempt.map_or(0, |(number, _)| number);
            return self.fair(
                Event::Writes {
                    who,
                    to,
                    fate: Fate::OnlyInMemory,
                },
                world,
            );
        }
        let mut to = to;
        if world.job != copy {
            let stored = self.mind.library.card(world.job).uid;
            if !self.has(Mutation::TrustsStaleReads) || stored != from_card.uid || !world.job.exists() {
                world.processes[who].rests();
                return self.fair(
                    Event::Writes {
                        who,
                        to,
                        fate: Fate::Conflict,
                    },
                    world,
                );
            }
            to = self.mind.library.overwrite(world.job, to);
        } else if illegal {
            world.breaks(Broken::WriteRefused);
        }
        world.stores(to, &self.mind.library);
        if attempts_anew {
            world.attempts += 1;
        }
        let mut lost = world;
        lost.processes[who].rests();
        let process = &mut world.processes[who];
        if goes {
            process.rests();
        } else {
            process.copy = to;
            if attempts_anew {
                process.known.mine = world.attempts;
            }
        }
        let fate = |fate| Event::Writes { who, to, fate };
        self.fair(fate(Fate::Stored), world);
        self.push(fate(Fate::AnswerLost), lost, false);
    }

    /// Deletes the Job if a live read still says so, fenced by UID and version.
    fn collects(&mut self, who: usize) {
        let mut world = self.here;
        if world.job == world.processes[who].copy {
            self.delete(&mut world);
        }
        world.processes[who].rests();
        self.fair(Event::Collects { who }, world);
    }

    fn delete(&mut self, world: &mut World) {
        let to = self.mind.library.delete(world.job);
        world.stores(to, &self.mind.library);
    }

    // ---- questions ----

    fn asks(&mut self, who: usize, query: Query, clock: u8) {
        let card = self.copy(who);
        let mut world = self.here;
        let known = &mut world.processes[who].known;
        match query {
            Query::Admission => known.admitted = true,
            Query::Live => {
                let job = self.mind.library.job(self.here.processes[who].copy);
                let recorded = job.status.as_ref().and_then(|s| s.resolved_job_class.as_ref());
                let same = recorded.is_some_and(|c| c.uid == format!("class{}", self.here.class));
                known.live = Some(if same {
                    LiveSight::Matches(self.here.server)
                } else {
                    LiveSight::Replaced
                });
            }
            Query::Prospect => {
                let listed = self.list(&card);
                known.prospect = Some((clock, listed));
                let mut stale = world;
                if self.scene.kind.holds() && listed != Listed::Nothing {
                    stale.processes[who].known.prospect = Some((clock, Listed::Nothing));
                    self.perhaps(Event::Asks { who, query }, |b| &mut b.stale, stale);
                }
            }
            Query::State => self.observe(&mut world, who, &card),
            Query::Remains => known.remains = Some(self.remains(&card)),
        }
        self.fair(Event::Asks { who, query }, world);
    }

    /// Whether what this copy of the Job has in the backend can be asked for.
    fn reaches(&self, card: &Card) -> bool {
        !self.here.hidden && card.server.is_none_or(|recorded| recorded == self.here.server)
    }

    /// Numbers of what a list of this Job's executions shows.
    fn listed(&self, card: &Card) -> Vec<usize> {
        let everything = self.has(Mutation::IgnoresUids);
        (0..SLOTS)
            .filter(|k| {
                let e = &self.here.executions[*k];
                e.exists()
                    && e.listed
                    && (everything || e.uid == card.uid)
                    && e.server == card.server.unwrap_or(self.here.server)
            })
            .collect()
    }

    fn list(&self, card: &Card) -> Listed {
        if !self.reaches(card) && !self.scene.kind.holds() {
            return Listed::Unknown;
        }
        let listed = self.listed(card);
        let place = |k: usize| Place {
            number: u8::try_from(k).unwrap(),
            batch: self.here.executions[k].batch,
            server: self.here.executions[k].server,
        };
        let life = |k: usize| self.here.executions[k].life;
        let Some(first) = listed.first().copied() else {
            return Listed::Nothing;
        };
        if !self.scene.kind.holds() {
            return match life(first) {
                Life::Pending | Life::Stuck => Listed::Pending(place(first)),
                _ => Listed::Found(place(first)),
            };
        }
        let let_go = |k: usize| !matches!(life(k), Life::Held | Life::Ended(Ending::Unstarted));
        let usable = |k: usize| life(k) == Life::Held && !self.here.executions[k].expiring;
        let choice = listed
            .iter()
            .find(|k| let_go(**k))
            .or_else(|| listed.iter().find(|k| usable(**k)));
        choice.map_or(Listed::Spoilt, |k| Listed::Found(place(*k)))
    }

    fn observe(&mut self, world: &mut World, who: usize, card: &Card) {
        let number = usize::from(card.execution.expect("a recorded execution"));
        let execution = self.here.executions[number];
        let sight = if self.reaches(card) {
            Sight::of(&execution)
        } else {
            Sight::Lost
        };
        world.processes[who].known.state = Some(sight);
        if self.scene.kind.holds() && matches!(execution.life, Life::Pending | Life::Running) {
            let mut stale = *world;
            stale.processes[who].known.state = Some(Sight::Seen {
                life: Life::Held,
                stop: None,
                ended: 0,
            });
            self.perhaps(
                Event::Asks {
                    who,
                    query: Query::State,
                },
                |b| &mut b.stale,
                stale,
            );
        }
        if self.has(Mutation::ReleasesEarly) && execution.life == Life::Ended(Ending::Exited) {
            world.executions[number].vanish();
        }
    }

    fn remains(&self, card: &Card) -> Left {
        if !self.reaches(card) && !self.scene.kind.holds() {
            return Left::Unknown;
        }
        match self.listed(card).is_empty() {
            true => Left::Nothing,
            false => Left::Something,
        }
    }

    // ---- effects ----

    fn acts(&mut self, who: usize, deed: Deed) {
        let card = self.copy(who);
        let mut world = self.here;
        let by = u8::try_from(who + 1).unwrap();
        let (did, done): (fn(Reply) -> Did, Reply) = match deed {
            Deed::Submit => return self.submits(who, &card, by),
            Deed::Start => return self.starts(who, &card, by),
            Deed::Prepare => {
                let exists = self.scene.kind == Kind::Named && !self.listed(&card).is_empty();
                if !exists {
                    let Some(free) = free(&world) else {
                        self.cramped = true;
                        return;
                    };
                    world.executions[free] = Execution {
                        life: Life::Held,
                        uid: card.uid,
                        batch: u8::try_from(free).unwrap(),
                        listed: true,
                        server: world.server,
                        ..Execution::default()
                    };
                    world.creates(card.uid);
                }
                (Did::Prepared, Reply::Done)
            }
            Deed::Stop => (Did::Stopped, self.stops(&mut world, &card)),
            Deed::Discard => (Did::Discarded, self.clears(&mut world, &card, false)),
            Deed::Release => (
                Did::Released,
                self.clears(&mut world, &card, self.scene.kind.holds()),
            ),
            Deed::Remove => (Did::Removed, self.clears(&mut world, &card, false)),
        };
        let mut lost = world;
        world.processes[who].did(did(done));
        lost.processes[who].did(did(Reply::Unavailable));
        self.fair(
            Event::Acts {
                who,
                deed,
                lost: false,
            },
            world,
        );
        self.push(
            Event::Acts {
                who,
                deed,
                lost: true,
            },
            lost,
            false,
        );
    }

    fn submits(&mut self, who: usize, card: &Card, by: u8) {
        let mut world = self.here;
        let (_, fence) = card.attempt.expect("an attempt");
        let server = card.server.expect("an attempt names its server");
        if world.hidden {
            world.processes[who].did(Did::Refused);
            return self.fair(Event::IsRefused { who }, world);
        }
        let Some(free) = world.network.iter_mut().find(|m| **m == Message::None) else {
            self.cramped = true;
            return;
        };
        *free = Message::Create {
            uid: card.uid,
            fence,
            server,
            by,
        };
        world.processes[who].waits = Waits::Creation;
        self.fair(
            Event::Acts {
                who,
                deed: Deed::Submit,
                lost: false,
            },
            world,
        );
    }

    fn starts(&mut self, who: usize, card: &Card, by: u8) {
        let mut world = self.here;
        let execution = card.execution.expect("a recorded execution");
        let Some(free) = world.network.iter_mut().find(|m| **m == Message::None) else {
            self.cramped = true;
            return;
        };
        *free = Message::Start { execution, by };
        world.processes[who].waits = Waits::Start;
        self.fair(
            Event::Acts {
                who,
                deed: Deed::Start,
                lost: false,
            },
            world,
        );
    }

    fn stops(&self, world: &mut World, card: &Card) -> Reply {
        let number = usize::from(card.execution.expect("a recorded execution"));
        let at = of_our_stop(self.scene.true_clock(world.now));
        if !self.reaches(card) {
            return Reply::Unavailable;
        }
        let execution = &mut world.executions[number];
        if !execution.exists() {
            return Reply::Done;
        }
        if execution.uid != card.uid {
            world.breaks(Broken::AnothersExecution);
            return Reply::Done;
        }
        if self.has(Mutation::StopsByDeleting) {
            if execution.runs() {
                world.truth(card.uid).end = Some(End::Stopped);
            }
            world.executions[number].vanish();
            return Reply::Done;
        }
        match (self.scene.kind, execution.life) {
            (Kind::SingleShot, Life::Running) => {
                execution.life = Life::Paused;
                execution.stop = Some((at, Who::Us));
                world.truth(card.uid).end = Some(End::Stopped);
                Reply::Done
            }
            // What is paused shows for ever that it had not ended. Only when that is stored may it go.
            (Kind::SingleShot, Life::Paused) if card.delivered => {
                execution.vanish();
                Reply::Done
            }
            (Kind::SingleShot, _) => Reply::Stale,
            // A batch Job's deadline first; then, if nothing came of it, its pod.
            (Kind::Named, Life::Held | Life::Pending | Life::Running) if !execution.expiring => {
                execution.expiring = true;
                Reply::Later
            }
            (Kind::Named | Kind::Unnamed, Life::Held | Life::Pending | Life::Running) => {
                let by = if self.scene.kind == Kind::Named {
                    Who::Somebody
                } else {
                    Who::Us
                };
                end_asked_for(execution, at, by);
                Reply::Done
            }
            (Kind::Named | Kind::Unnamed, _) => Reply::Done,
        }
    }

    /// Discards, releases or removes; in releasing, an ended execution that was recorded stays for its logs.
    fn clears(&self, world: &mut World, card: &Card, keeps_recorded: bool) -> Reply {
        if !self.reaches(card) {
            return Reply::Unavailable;
        }
        let recorded = card.execution.map(usize::from);
        let known = recorded.filter(|k| world.executions[*k].exists());
        for k in self.listed(card).into_iter().chain(known) {
            if keeps_recorded && recorded == Some(k) {
                continue;
            }
            if world.executions[k].uid != card.uid {
                world.breaks(Broken::AnothersExecution);
            }
            if world.executions[k].runs() {
                world.breaks(Broken::KilledUnasked);
            }
            world.executions[k].vanish();
        }
        Reply::Done
    }

    // ---- answers and the network ----

    fn waiting(&mut self, who: usize) {
        let here = self.here;
        let by = u8::try_from(who + 1).unwrap();
        let on_its_way = here
            .network
            .into_iter()
            .any(|mut m| m.by().is_some_and(|caller| *caller == by));
        let created = (0..SLOTS).find(|k| here.executions[*k].asked_by == by && here.executions[*k].exists());
        if let Some(k) = created {
            let mut world = here;
            world.hangs_up(who);
            world.processes[who].did(Did::Created(u8::try_from(k).unwrap()));
            self.fair(Event::IsAnswered { who }, world);
        }
        let mut world = here;
        world.hangs_up(who);
        let unanswered = match here.processes[who].waits {
            Waits::Start => Did::Started(Reply::Unavailable),
            Waits::Creation | Waits::Nothing if self.has(Mutation::ResendsUnanswered) => Did::Refused,
            Waits::Creation | Waits::Nothing => Did::Unanswered,
        };
        world.processes[who].did(unanswered);
        let must = !on_its_way && created.is_none();
        self.push(Event::GivesUp { who }, world, must);
    }

    fn network(&mut self) {
        for slot in 0..self.here.network.len() {
            let message = self.here.network[slot];
            let mut world = self.here;
            world.network[slot] = Message::None;
            match message {
                Message::None => {}
                Message::Create {
                    uid,
                    fence,
                    server,
                    by,
                } => {
                    if by > 0 {
                        let who = usize::from(by) - 1;
                        let mut refused = world;
                        refused.processes[who].did(Did::Refused);
                        self.perhaps(Event::IsRefused { who }, |b| &mut b.refuse, refused);
                    }
                    let Some(free) = free(&world) else {
                        self.cramped = true;
                        continue;
                    };
                    world.executions[free] = Execution {
                        life: Life::Pending,
                        uid,
                        fence,
                        server,
                        born: world.now,
                        asked_by: by,
                        ..Execution::default()
                    };
                    world.creates(uid);
                    self.fair(Event::Arrives { message }, world);
                }
                Message::Start { execution, by } => {
                    let number = usize::from(execution);
                    let execution = &mut world.executions[number];
                    let guarded = execution.life == Life::Held && execution.stop.is_none();
                    let again = self.has(Mutation::UnguardedStart)
                        && matches!(execution.life, Life::Running | Life::Ended(_));
                    let reply = if guarded || again {
                        execution.life = Life::Pending;
                        Reply::Done
                    } else {
                        Reply::Stale
                    };
                    if by > 0 {
                        world.processes[usize::from(by) - 1].did(Did::Started(reply));
                    }
                    self.fair(Event::Arrives { message }, world);
                }
            }
        }
    }

    // ---- the backend ----

    fn backend(&mut self) {
        let here = self.here;
        for number in 0..SLOTS {
            let execution = here.executions[number];
            if !execution.exists() {
                continue;
            }
            let change = |change: &dyn Fn(&mut Execution)| {
                let mut world = here;
                change(&mut world.executions[number]);
                world
            };
            if !execution.listed {
                self.fair(Event::Listed { number }, change(&|e| e.listed = true));
            }
            match execution.life {
                Life::Pending => self.comes_up(number),
                Life::Running => self.ends(number),
                Life::Unborn | Life::Held | Life::Stuck | Life::Paused | Life::Ended(_) | Life::Gone => {}
            }
            if execution.expiring
                && execution.stop.is_none()
                && matches!(execution.life, Life::Held | Life::Pending | Life::Running)
            {
                let at = of_our_stop(self.scene.true_clock(here.now));
                let world = change(&|e| end_asked_for(e, at, Who::Us));
                self.fair(Event::PodIsDeleted { number }, world);
            }
            if self.scene.kind == Kind::Named {
                self.another_pod(number);
            }
            if execution.listed {
                self.outsider(number);
            }
        }
        if here.hidden {
            let mut world = here;
            world.hidden = false;
            self.fair(Event::Shows, world);
        } else {
            let mut world = here;
            world.hidden = true;
            self.perhaps(Event::Hides, |b| &mut b.hidden, world);
        }
    }

    fn comes_up(&mut self, number: usize) {
        let here = self.here;
        let execution = here.executions[number];
        if self.scene.kind.holds() {
            if execution.stop.is_none() {
                let mut world = here;
                world.starts(number, &self.mind.library);
                self.fair(Event::ComesUp { number }, world);
            }
            return;
        }
        let clock = i64::from(self.scene.backend_clock(here.now)) * crate::objects::TICK;
        if clock > i64::from(execution.fence) {
            let mut world = here;
            world.executions[number].life = Life::Ended(Ending::TooLate);
            self.fair(Event::ComesUpTooLate { number }, world);
        } else if execution.listed || self.scene.lag > 0 {
            let mut world = here;
            world.starts(number, &self.mind.library);
            self.fair(Event::ComesUp { number }, world);
        }
        let mut world = here;
        world.executions[number].life = Life::Stuck;
        self.perhaps(Event::NeverComesUp { number }, |b| &mut b.stuck, world);
    }

    fn ends(&mut self, number: usize) {
        let mut world = self.here;
        let now = self.scene.true_clock(world.now);
        let execution = &mut world.executions[number];
        execution.life = Life::Ended(Ending::Exited);
        let end = match execution.stop {
            Some(_) => {
                execution.ended = of_stopped_end(now);
                who_ended(&self.here, number)
            }
            None if self.scene.ends => {
                execution.ended = of_own_end(now);
                End::ByItself
            }
            None => return,
        };
        let uid = execution.uid;
        world.truth(uid).end.get_or_insert(end);
        self.fair(Event::Ends { number }, world);
    }

    /// The Job controller makes another pod for one that is gone or going.
    fn another_pod(&mut self, number: usize) {
        let mut world = self.here;
        let execution = world.executions[number];
        if world.left.extra == 0 {
            return;
        }
        let Some(free) = free(&world) else { return };
        world.executions[free] = Execution {
            life: Life::Held,
            stop: None,
            ended: 0,
            ..execution
        };
        self.perhaps(Event::AnotherPod { number }, |b| &mut b.extra, world);
    }

    fn outsider(&mut self, number: usize) {
        let here = self.here;
        let execution = here.executions[number];
        let stopped_before = {
            let card = self.mind.library.card(here.job);
            card.uid == execution.uid && card.stop.is_some()
        };
        let end = if stopped_before {
            End::Stopped
        } else {
            End::ByOutsider
        };
        let at = if stopped_before {
            of_our_stop(self.scene.true_clock(here.now))
        } else {
            of_foreign_stop(self.scene.true_clock(here.now))
        };
        let mut world = here;
        match (self.scene.kind, execution.life) {
            (Kind::Named | Kind::Unnamed, Life::Held | Life::Pending | Life::Running)
                if execution.stop.is_none() =>
            {
                end_asked_for(&mut world.executions[number], at, Who::Somebody);
                if execution.life == Life::Running {
                    world.truth(execution.uid).end.get_or_insert(end);
                }
                self.perhaps(Event::OutsiderStops { number }, |b| &mut b.outsider, world);
            }
            (Kind::SingleShot, Life::Running) => {
                world.executions[number].life = Life::Ended(Ending::Unmeasured);
                world.truth(execution.uid).end.get_or_insert(end);
                self.perhaps(Event::OutsiderStops { number }, |b| &mut b.outsider, world);
            }
            _ => {}
        }
        let mut world = here;
        let truth = world.truth(execution.uid);
        match execution.life {
            Life::Running | Life::Paused => {
                truth.end.get_or_insert(end);
                truth.destroyed = true;
            }
            Life::Ended(_) => truth.destroyed = true,
            Life::Unborn | Life::Held | Life::Pending | Life::Stuck | Life::Gone => {}
        }
        world.executions[number].vanish();
        self.perhaps(Event::OutsiderDeletes { number }, |b| &mut b.outsider, world);
    }

    // ---- users and administrators ----

    fn users(&mut self) {
        let here = self.here;
        let card = self.mind.library.card(here.job).clone();
        if here.job.exists() && !card.deleting {
            if !card.finished && !card.cancelled && here.left.cancel > 0 {
                let mut world = here;
                world.job = self
                    .mind
                    .library
                    .edit(here.job, |job| job.spec.cancel_requested = Some(true));
                self.perhaps(Event::Cancels, |b| &mut b.cancel, world);
            }
            if here.left.delete > 0 {
                let mut world = here;
                self.delete(&mut world);
                self.perhaps(Event::Deletes, |b| &mut b.delete, world);
            }
        }
        if !here.job.exists() && here.uids < 2 && here.left.recreate > 0 {
            let mut world = here;
            world.uids += 1;
            let now = self.scene.true_clock(here.now);
            world.job = self.mind.library.store(job(world.uids, self.scene.wishes, now));
            self.perhaps(Event::Submits, |b| &mut b.recreate, world);
        }
        let mut world = here;
        world.class += 1;
        self.perhaps(Event::ClassCreated, |b| &mut b.reclass, world);
        let mut world = here;
        world.server += 1;
        self.perhaps(Event::ServerChanged, |b| &mut b.reserver, world);
    }
}

fn situation(scene: &Scene, world: &World, who: usize) -> Situation {
    let process = world.processes[who];
    Situation {
        copy: process.copy,
        known: process.known,
        clock: scene.clock(who, world.now),
        class: process.class,
        attempts: world.attempts,
    }
}

fn free(world: &World) -> Option<usize> {
    (0..SLOTS).find(|k| world.executions[*k].life == Life::Unborn)
}

/// An end is asked for: what has not started never does.
fn end_asked_for(execution: &mut Execution, at: i16, who: Who) {
    execution.stop.get_or_insert((at, who));
    if matches!(execution.life, Life::Held | Life::Pending) {
        execution.life = Life::Ended(Ending::Unstarted);
    }
}

/// A stop of ours, or of an outsider, whose truth was noted when it asked.
fn who_ended(world: &World, number: usize) -> End {
    world.truth[usize::from(world.executions[number].uid) - 1]
        .end
        .unwrap_or(End::Stopped)
}

/// The world in which a scenario begins.
pub(crate) fn beginning(scene: &Scene, mind: &mut Mind) -> World {
    let process = Process {
        copy: Version::NONE,
        class: scene.class,
        known: Known::default(),
        waits: Waits::Nothing,
    };
    World {
        now: 0,
        job: mind.library.store(job(1, scene.wishes, 0)),
        uids: 1,
        processes: [process; 2],
        executions: [Execution::default(); SLOTS],
        network: [Message::None; 2],
        class: scene.class,
        server: 1,
        hidden: false,
        attempts: 0,
        truth: Default::default(),
        left: scene.faults,
        broken: None,
    }
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
    let last = i64::from(FAR) * crate::objects::TICK;
    world.now >= scene.last
        && (card.attempt.is_some_and(|(_, fence)| i64::from(fence) >= last)
            || (card.accepted.is_some_and(|at| at >= last) && scene.wishes.active_deadline.is_some()))
}

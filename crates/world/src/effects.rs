//! What a process does to a backend, and what it hears of it.

use crate::backend::{Execution, Kind, Life, Message, Who, of_our_stop};
use crate::events::{Event, Events, free};
use crate::faults::Fault;
use crate::mind::{Deed, Did, Reply};
use crate::objects::Card;
use crate::promises::Broken;
use crate::state::{End, SLOTS, Waits, World};
use crate::surroundings::end_asked_for;

impl Events<'_> {
    // ---- effects ----

    pub(crate) fn acts(&mut self, who: usize, deed: Deed) {
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
                        batch: world.fresh_batch(),
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

    pub(crate) fn submits(&mut self, who: usize, card: &Card, by: u8) {
        let mut world = self.here;
        let (attempt, fence) = card.attempt.expect("an attempt");
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
            attempt,
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

    pub(crate) fn starts(&mut self, who: usize, card: &Card, by: u8) {
        let mut world = self.here;
        let recorded = card.execution.expect("a recorded execution");
        let execution = match self.listed(card).first() {
            Some(first) if self.has(Fault::StartsWhatItListsFirst) => u8::try_from(*first).unwrap(),
            _ => recorded,
        };
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

    pub(crate) fn stops(&self, world: &mut World, card: &Card) -> Reply {
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
        if self.has(Fault::StopsByDeleting) {
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
            (Kind::Named, Life::Held | Life::Pending | Life::Running) => {
                end_asked_for(execution, at, Who::Somebody);
                Reply::Done
            }
            (Kind::Named, _) => Reply::Done,
            // Inside, whoever comes first: the start or the stop, the end or the stop.
            (Kind::Unnamed, Life::Held | Life::Pending | Life::Running) if execution.stop.is_none() => {
                let was_running = execution.runs();
                end_asked_for(execution, at, Who::Us);
                if was_running {
                    world.truth(card.uid).end = Some(End::Stopped);
                }
                Reply::Later
            }
            // What was stopped shows that for ever. Only when that is stored may it go.
            (Kind::Unnamed, _) if card.delivered => {
                execution.vanish();
                Reply::Done
            }
            (Kind::Unnamed, _) => Reply::Later,
        }
    }

    /// Discards, releases or removes; in releasing, an ended execution that was recorded stays for its logs.
    pub(crate) fn clears(&self, world: &mut World, card: &Card, keeps_recorded: bool) -> Reply {
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

    pub(crate) fn waiting(&mut self, who: usize) {
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
            Waits::Creation | Waits::Nothing if self.has(Fault::ResendsUnanswered) => Did::Refused,
            Waits::Creation | Waits::Nothing => Did::Unanswered,
        };
        world.processes[who].did(unanswered);
        let must = !on_its_way && created.is_none();
        self.push(Event::GivesUp { who }, world, must);
    }
}

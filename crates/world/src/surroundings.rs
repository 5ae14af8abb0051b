//! What happens without any process: on the network, in the backend, and by people.

use crate::backend::{
    Ending, Execution, Kind, Life, Message, Who, of_foreign_stop, of_kubelets_own_delete, of_our_stop,
    of_own_end, of_stopped_end,
};
use crate::events::{Event, Events, free};
use crate::faults::Fault;
use crate::mind::{Did, Reply};
use crate::objects::{Edit, TICK, job};
use crate::state::{End, SLOTS, World};

impl Events<'_> {
    pub(crate) fn network(&mut self) {
        for slot in 0..self.here.network.len() {
            let message = self.here.network[slot];
            let mut world = self.here;
            world.network[slot] = Message::None;
            match message {
                Message::None => {}
                Message::Create {
                    uid,
                    attempt,
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
                        attempt,
                        fence,
                        server,
                        born: world.now,
                        asked_by: by,
                        ..Execution::default()
                    };
                    world.creates(uid);
                    self.fair(Event::Arrives { message }, world);
                    if self.has(Fault::RepeatsRequests) {
                        let mut again = world;
                        again.network[slot] = message;
                        self.push(Event::ArrivesAndIsRepeated, again, false);
                    }
                }
                Message::Start { execution, by } => {
                    let number = usize::from(execution);
                    let execution = &mut world.executions[number];
                    let guarded = execution.life == Life::Held && execution.stop.is_none();
                    let again = self.has(Fault::UnguardedStart)
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

    pub(crate) fn backend(&mut self) {
        let here = self.here;
        for number in 0..SLOTS {
            let execution = here.executions[number];
            if execution.life == Life::Orphaned && !here.hidden {
                let mut world = here;
                world.executions[number].vanish();
                self.fair(Event::KubeletEnds { number }, world);
            }
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
                Life::Unborn
                | Life::Held
                | Life::Stuck
                | Life::Paused
                | Life::Ended(_)
                | Life::Gone
                | Life::Orphaned => {}
            }
            if execution.expiring
                && execution.stop.is_none()
                && matches!(
                    execution.life,
                    Life::Held | Life::Pending | Life::Running | Life::Ended(Ending::Exited)
                )
            {
                let at = of_our_stop(self.scene.true_clock(here.now));
                let world = change(&|e| end_asked_for(e, at, Who::Us));
                self.fair(Event::PodIsDeleted { number }, world);
            }
            if self.scene.kind == Kind::Named {
                self.another_pod(number);
                if execution.life == Life::Ended(Ending::Exited)
                    && execution.stop.is_some()
                    && execution.rewritten == 0
                {
                    let at = of_kubelets_own_delete(self.scene.true_clock(here.now));
                    let mut world = change(&|e| e.rewritten = at);
                    // Our own request is stored, and that of its batch Job is in its verdict.
                    if execution.stop.is_some_and(|(_, who)| who != Who::Us) {
                        world.truth(execution.uid).blurred = true;
                    }
                    self.perhaps(Event::KubeletDeletes { number }, |b| &mut b.rewrite, world);
                }
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

    pub(crate) fn comes_up(&mut self, number: usize) {
        let here = self.here;
        let execution = here.executions[number];
        if self.scene.kind.holds() {
            // A node that does not report is given nothing.
            if execution.stop.is_none() && !(here.hidden && self.scene.kind == Kind::Named) {
                let mut world = here;
                world.starts(number, &self.mind.library);
                self.fair(Event::ComesUp { number }, world);
            }
            return;
        }
        let clock = i64::from(self.scene.backend_clock(here.now)) * TICK;
        if clock > i64::from(execution.fence) && !self.has(Fault::IgnoresTheFence) {
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

    pub(crate) fn ends(&mut self, number: usize) {
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
    pub(crate) fn another_pod(&mut self, number: usize) {
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

    pub(crate) fn outsider(&mut self, number: usize) {
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
        let stops = Event::OutsiderStops { number };
        let mut world = here;
        let changed = &mut world.executions[number];
        match (self.scene.kind, execution.life) {
            (Kind::Named, Life::Held | Life::Pending | Life::Running | Life::Ended(Ending::Exited))
                if execution.stop.is_none() =>
            {
                end_asked_for(changed, at, Who::Somebody);
                if execution.life == Life::Running {
                    world.truth(execution.uid).end.get_or_insert(end);
                }
                let mut evicted = world;
                evicted.executions[number].stop = Some((at, Who::Evictor));
                self.perhaps(stops, |b| &mut b.outsider, world);
                self.perhaps(Event::Evicts { number }, |b| &mut b.evict, evicted);
            }
            // Its container is started again.
            (Kind::Unnamed, Life::Held | Life::Pending) if execution.stop.is_none() => {
                end_asked_for(changed, at, Who::Somebody);
                self.perhaps(stops, |b| &mut b.outsider, world);
            }
            (Kind::Unnamed, Life::Running) if execution.stop.is_none() => {
                changed.life = Life::Ended(Ending::Unmeasured);
                let truth = world.truth(execution.uid);
                truth.end.get_or_insert(end);
                truth.destroyed = true;
                self.perhaps(stops, |b| &mut b.outsider, world);
            }
            (Kind::SingleShot, Life::Running) => {
                changed.life = Life::Ended(Ending::Signalled);
                world.truth(execution.uid).end.get_or_insert(end);
                let mut lost = world;
                lost.executions[number].life = Life::Ended(Ending::Unmeasured);
                lost.truth(execution.uid).destroyed = true;
                self.perhaps(stops, |b| &mut b.outsider, world);
                self.perhaps(Event::CodeIsLost { number }, |b| &mut b.outsider, lost);
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
            Life::Unborn | Life::Held | Life::Pending | Life::Stuck | Life::Gone | Life::Orphaned => {}
        }
        if here.hidden && self.scene.kind == Kind::Named && execution.life == Life::Running {
            world.executions[number].life = Life::Orphaned;
        } else {
            world.executions[number].vanish();
        }
        self.perhaps(Event::OutsiderDeletes { number }, |b| &mut b.outsider, world);
    }

    // ---- users and administrators ----

    pub(crate) fn users(&mut self) {
        let here = self.here;
        let card = self.mind.library.card(here.job).clone();
        if here.job.exists() && !card.deleting {
            if !card.finished && !card.cancelled && here.left.cancel > 0 {
                let mut world = here;
                world.job = self.mind.library.edit(here.job, Edit::Cancel);
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

/// An end is asked for: what has not started never does.
pub(crate) fn end_asked_for(execution: &mut Execution, at: i16, who: Who) {
    execution.stop.get_or_insert((at, who));
    match execution.life {
        Life::Held => execution.life = Life::Ended(Ending::StillHeld),
        Life::Pending => execution.life = Life::Ended(Ending::Unstarted),
        Life::Unborn
        | Life::Stuck
        | Life::Running
        | Life::Paused
        | Life::Orphaned
        | Life::Ended(_)
        | Life::Gone => {}
    }
}

/// A stop of ours, or of an outsider, whose truth was noted when it asked.
pub(crate) fn who_ended(world: &World, number: usize) -> End {
    world.truth[usize::from(world.executions[number].uid) - 1]
        .end
        .unwrap_or(End::Stopped)
}

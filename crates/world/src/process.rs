//! The next step of a process: what `decide` says, done.

use crate::backend::{Ending, Life, Sight};
use crate::events::{Event, Events, Fate, situation};
use crate::mind::{Left, Listed, LiveSight, Move, Place, Query, Situation};
use crate::objects::{Card, Edit, Version};
use crate::promises::Broken;
use crate::state::{Mutation, SLOTS, Waits, World};

impl Events<'_> {
    // ---- a process ----

    pub(crate) fn process(&mut self, who: usize) {
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
    pub(crate) fn step(&mut self, who: usize) {
        let process = self.here.processes[who];
        let clock = self.scene.clock(who, self.here.now);
        let mut known = process.known;
        if let (true, Some((asked, _))) = (self.has(Mutation::ReadsTheClockAfterwards), &mut known.prospect) {
            *asked = clock;
        }
        let card = self.mind.library.card(process.copy);
        let decided = if self.has(Mutation::DropsFinalizerAtOnce) && card.deleting && card.protected {
            Move::Write {
                to: self.mind.library.edit(process.copy, Edit::Unprotect),
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

    pub(crate) fn copy(&self, who: usize) -> Card {
        self.mind.library.card(self.here.processes[who].copy).clone()
    }

    // ---- writes ----

    pub(crate) fn writes(&mut self, who: usize, to: Version, illegal: bool) {
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
            to = self.mind.library.edit(world.job, Edit::Overwrite(to));
        } else if illegal {
            world.breaks(Broken::WriteRefused);
        }
        world.stores(to, &self.mind.library);
        if attempts_anew {
            world.attempts += 1;
        }
        let mut lost = world;
        lost.processes[who].rests();
        let attempt = world.attempts;
        let process = &mut world.processes[who];
        if goes {
            process.rests();
        } else {
            process.copy = to;
            if attempts_anew {
                process.known.mine = attempt;
            }
        }
        let fate = |fate| Event::Writes { who, to, fate };
        self.fair(fate(Fate::Stored), world);
        self.push(fate(Fate::AnswerLost), lost, false);
    }

    /// Deletes the Job if a live read still says so, fenced by UID and version.
    pub(crate) fn collects(&mut self, who: usize) {
        let mut world = self.here;
        if world.job == world.processes[who].copy {
            self.delete(&mut world);
        }
        world.processes[who].rests();
        self.fair(Event::Collects { who }, world);
    }

    pub(crate) fn delete(&mut self, world: &mut World) {
        let to = self.mind.library.edit(world.job, Edit::Delete);
        world.stores(to, &self.mind.library);
    }

    // ---- questions ----

    pub(crate) fn asks(&mut self, who: usize, query: Query, clock: u8) {
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
    pub(crate) fn reaches(&self, card: &Card) -> bool {
        !self.here.hidden && card.server.is_none_or(|recorded| recorded == self.here.server)
    }

    /// Numbers of what a list of this Job's executions shows.
    pub(crate) fn listed(&self, card: &Card) -> Vec<usize> {
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

    pub(crate) fn list(&self, card: &Card) -> Listed {
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

    pub(crate) fn observe(&mut self, world: &mut World, who: usize, card: &Card) {
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

    pub(crate) fn remains(&self, card: &Card) -> Left {
        if !self.reaches(card) && !self.scene.kind.holds() {
            return Left::Unknown;
        }
        match self.listed(card).is_empty() {
            true => Left::Nothing,
            false => Left::Something,
        }
    }
}

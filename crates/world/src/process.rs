//! The next step of a process: what `decide` says, done.

use crate::backend::{Ending, Execution, Kind, Life, of_our_stop};
use crate::events::{Event, Events, Fate, free, situation};
use crate::eyes::{List, Sight};
use crate::faults::Fault;
use crate::mind::{Did, Left, Listed, LiveSight, Move, Query, Reply, Situation};
use crate::objects::{Card, Edit, Version, broken_rule};
use crate::promises::Broken;
use crate::state::{SLOTS, Waits, World};

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
        let looks = !(self.has(Fault::NeverLooksAgain) && process.copy.exists());
        if process.is_idle() && process.copy != here.job && looks {
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
        if let (true, Some((asked, _))) = (self.has(Fault::ReadsTheClockAfterwards), &mut known.prospect) {
            *asked = clock;
        }
        let card = self.mind.library.card(process.copy);
        let decided = if self.has(Fault::DropsFinalizerAtOnce) && card.deleting && card.protected {
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
        let accepts = from_card.accepted.is_none() && to_card.accepted.is_some();
        if (attempts_anew && self.has(Fault::AttemptNotStored))
            || (accepts && self.has(Fault::AcceptanceNotStored))
            || (records && self.has(Fault::StartWithoutRecord))
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
            let overwrites = self.has(Fault::TrustsStaleReads) || self.has(Fault::WritesWithoutAVersion);
            if !overwrites || stored != from_card.uid || !world.job.exists() {
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
            let (old, new) = (self.mind.library.job(world.job), self.mind.library.job(to));
            if self.has(Fault::WritesWithoutAVersion) && broken_rule(old, new).is_some() {
                world.breaks(Broken::WriteRefused);
            }
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

    /// Deletes the Job if it still is as it was read, fenced by UID and version.
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
                let listed = self.list(who, &card);
                known.prospect = Some((clock, listed));
                let mut stale = world;
                if self.scene.kind.holds() && listed != Listed::Nothing {
                    stale.processes[who].known.prospect = Some((clock, Listed::Nothing));
                    self.perhaps(Event::Asks { who, query }, |b| &mut b.stale, stale);
                }
            }
            Query::State => self.observe(&mut world, who, &card, clock),
            Query::Remains => known.remains = Some(self.remains(&card)),
        }
        self.fair(Event::Asks { who, query }, world);
    }

    /// Whether what this copy of the Job has in the backend can be asked for. The API server of a cluster always can,
    /// whatever its nodes do.
    pub(crate) fn reaches(&self, card: &Card) -> bool {
        match self.scene.kind {
            Kind::Named => true,
            Kind::Unnamed | Kind::SingleShot => {
                !self.here.hidden && card.server.is_none_or(|recorded| recorded == self.here.server)
            }
        }
    }

    /// Numbers of what a list of this Job's executions shows.
    pub(crate) fn listed(&self, card: &Card) -> Vec<usize> {
        let everything = self.has(Fault::IgnoresUids);
        (0..SLOTS)
            .filter(|k| {
                let e = &self.here.executions[*k];
                e.exists()
                    && e.listed
                    && (everything || e.uid == card.uid)
                    && (self.scene.kind == Kind::Named || e.server == card.server.unwrap_or(self.here.server))
            })
            .collect()
    }

    pub(crate) fn list(&mut self, who: usize, card: &Card) -> Listed {
        if !self.reaches(card) {
            return Listed::Unknown;
        }
        let listed = self.listed(card);
        if listed.is_empty() {
            return Listed::Nothing;
        }
        let mut list = List::default();
        for number in listed {
            let mut execution = self.here.executions[number];
            if self.has(Fault::IgnoresUids) {
                execution.uid = card.uid;
            }
            list[number] = Some(execution);
        }
        let version = self.here.processes[who].copy;
        self.mind.eyes.list(&self.mind.library, version, &list)
    }

    pub(crate) fn observe(&mut self, world: &mut World, who: usize, card: &Card, clock: u8) {
        let number = card.execution.expect("a recorded execution");
        let execution = self.here.executions[usize::from(number)];
        let sight = self.misread(who, self.sight(card, number));
        if let (true, Sight::Missing { .. }, Some(free)) =
            (self.has(Fault::RunsTheLostAgain), sight, free(world))
        {
            world.executions[free] = Execution {
                life: Life::Pending,
                uid: card.uid,
                listed: true,
                server: world.server,
                ..Execution::default()
            };
        }
        let version = self.here.processes[who].copy;
        let (eyes, library) = (&mut self.mind.eyes, &self.mind.library);
        world.processes[who].known.state = Some(eyes.look(library, version, sight, clock));
        if self.scene.kind.holds() && matches!(execution.life, Life::Pending | Life::Running) {
            let before = Sight::Shown {
                number,
                execution: Execution {
                    life: Life::Held,
                    stop: None,
                    ..execution
                },
                silent: self.here.hidden,
            };
            let mut stale = *world;
            stale.processes[who].known.state = Some(eyes.look(library, version, before, clock));
            let asks = Event::Asks {
                who,
                query: Query::State,
            };
            self.perhaps(asks, |b| &mut b.stale, stale);
        }
        if self.has(Fault::ReleasesEarly) && execution.life == Life::Ended(Ending::Exited) {
            world.executions[usize::from(number)].vanish();
        }
    }

    /// What there is to be seen of an execution now.
    fn sight(&self, card: &Card, number: u8) -> Sight {
        let execution = self.here.executions[usize::from(number)];
        let silent = self.here.hidden;
        if !self.reaches(card) {
            Sight::Lost
        } else if execution.exists() {
            Sight::Shown {
                number,
                execution,
                silent,
            }
        } else {
            Sight::Missing {
                silent,
                settled: !silent && execution.life != Life::Orphaned,
            }
        }
    }

    /// What a process with a fault takes that for.
    fn misread(&self, who: usize, sight: Sight) -> Sight {
        const GONE: Sight = Sight::Missing {
            silent: false,
            settled: true,
        };
        let was_told_to_end = matches!(
            self.here.processes[who].known.done,
            Some(Did::Stopped(Reply::Done | Reply::Stale))
        );
        match (self.scene.fault, sight) {
            (Some(Fault::BelievesAnotherServer), Sight::Lost) => GONE,
            (Some(Fault::BelievesThatSilenceIsAnEnd), Sight::Missing { .. }) => GONE,
            (
                Some(fault),
                Sight::Shown {
                    number,
                    mut execution,
                    silent,
                },
            ) => {
                match (fault, execution.life, &mut execution.stop) {
                    (Fault::BelievesAcceptedStops, Life::Ended(_), _) if was_told_to_end => {
                        execution.life = Life::Paused;
                    }
                    (Fault::BelievesExits, Life::Ended(Ending::Signalled), _) => {
                        execution.life = Life::Ended(Ending::Exited);
                    }
                    (Fault::IgnoresWhoAskedFirst, _, Some((at, _))) => {
                        *at = of_our_stop(self.scene.true_clock(self.here.now));
                    }
                    _ => {}
                }
                Sight::Shown {
                    number,
                    execution,
                    silent,
                }
            }
            (_, sight) => sight,
        }
    }

    pub(crate) fn remains(&self, card: &Card) -> Left {
        let may_exist = card.execution.is_some() || card.attempt.is_some();
        match (self.reaches(card), self.listed(card).is_empty()) {
            (false, _) if may_exist && !card.released => Left::Unknown,
            // What is held and not recorded ends by itself.
            (false, _) | (true, true) => Left::Nothing,
            (true, false) => Left::Something,
        }
    }
}

//! What a process knows during a pass, as the real `Facts`, and what the real `decide` makes of it.
//!
//! `decide` is pure: for the same copy, facts and time it says the same. So it is asked once for each.

use std::collections::{BTreeMap, HashMap};

use ayatori_core::execution::{Answer, Prospect, Protocol, Remains, Submission, Why, Windows};
use ayatori_core::job::{BackendIdentity, Job};
use ayatori_core::lifecycle::{self, Done, Effect, Facts, Live, Question, Settings, Step, Wait};
use ayatori_core::names::{EXECUTION_FINALIZER, KUBERNETES_CONTROLLER};
use ayatori_core::ownership::{self, Ownership};
use foldhash::fast::FixedState;
use jiff::SignedDuration;

use crate::backend::Kind;
use crate::eyes::{Eyes, Seen, Word, name};
use crate::faults::Fault;
use crate::objects::{Card, Library, TICK, Version, broken_rule, class, tick};
use crate::state::Scene;

/// What a process has learned in this pass. Nothing of it outlives the pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Known {
    pub(crate) admitted: bool,
    pub(crate) live: Option<LiveSight>,
    /// With the tick of the own clock at which it was asked.
    pub(crate) prospect: Option<(u8, Listed)>,
    pub(crate) state: Option<Seen>,
    pub(crate) remains: Option<Left>,
    pub(crate) done: Option<Did>,
    /// Number of the attempt that this process stored; zero if none.
    pub(crate) mine: u8,
}

impl Known {
    /// Without what no decision on such a Job looks at any more, which would only tell apart what is the same.
    pub(crate) fn relevant(self, card: &Card, kind: Kind) -> Self {
        let nothing = Self::default();
        let done = |of: fn(&Did) -> bool| self.done.filter(of);
        if card.accepted.is_none() {
            return Self {
                admitted: self.admitted,
                ..nothing
            };
        }
        if card.finished || (card.deleting && card.execution.is_none() && card.attempt.is_none()) {
            let remains = self.remains.filter(|_| card.deleting);
            return match card.deleting {
                true => Self {
                    remains,
                    done: done(|d| matches!(d, Did::Removed(_))),
                    ..nothing
                },
                false => Self {
                    done: done(|d| matches!(d, Did::Released(_))),
                    ..nothing
                },
            };
        }
        if card.execution.is_some() {
            return Self {
                state: self.state,
                prospect: self.prospect.filter(|_| !kind.holds()),
                done: done(|d| matches!(d, Did::Started(_) | Did::Stopped(_) | Did::Discarded(_))),
                ..nothing
            };
        }
        Self {
            admitted: false,
            state: None,
            remains: None,
            ..self
        }
    }
}

impl Known {
    /// The execution that a list has named.
    pub(crate) fn names(&self) -> Option<u8> {
        match self.prospect?.1 {
            Listed::Found(place) | Listed::Pending(place) => Some(place.number),
            Listed::Nothing | Listed::Otherwise(_) | Listed::Unknown => None,
        }
    }

    /// The execution that an answer has named.
    pub(crate) fn created(&self) -> Option<u8> {
        match self.done? {
            Did::Created(number) => Some(number),
            Did::Prepared(_)
            | Did::Refused
            | Did::Unanswered
            | Did::Started(_)
            | Did::Stopped(_)
            | Did::Discarded(_)
            | Did::Released(_)
            | Did::Removed(_) => None,
        }
    }
}

/// A live read of class and parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LiveSight {
    /// They are the recorded ones and name this server.
    Matches(u8),
    /// They have been recreated.
    Replaced,
}

/// What a list of a Job's executions came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Listed {
    Nothing,
    /// Something that can be recorded.
    Found(Place),
    /// It was created and has not come up.
    Pending(Place),
    /// Something that cannot be recorded.
    Otherwise(Word),
    /// No answer, or that of another server, which proves nothing.
    Unknown,
}

/// Where an execution is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) number: u8,
    pub(crate) batch: u8,
    pub(crate) server: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Left {
    Nothing,
    Something,
    Unknown,
}

/// The last effect and its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Did {
    Prepared(Reply),
    Created(u8),
    Refused,
    Unanswered,
    Started(Reply),
    Stopped(Reply),
    Discarded(Reply),
    Released(Reply),
    Removed(Reply),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Reply {
    Done,
    Later,
    Stale,
    Unavailable,
}

/// Everything a decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Situation {
    pub(crate) copy: Version,
    pub(crate) known: Known,
    /// The process's own clock.
    pub(crate) clock: u8,
    /// Which incarnation of the class its cache shows; zero: none.
    pub(crate) class: u8,
    /// Attempts that were ever stored: the next one has a number of its own.
    pub(crate) attempts: u8,
    /// The server that the parameters name.
    pub(crate) server: u8,
}

/// What to do next, as `decide` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Rest,
    Ask(Query),
    /// Store this version, fenced by the copy.
    Write {
        to: Version,
        /// The rule of the definition that refuses it.
        against: Option<&'static str>,
    },
    Collect,
    Act(Deed),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Query {
    Admission,
    Live,
    Prospect,
    State,
    Remains,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Deed {
    Prepare,
    Submit,
    Start,
    Stop,
    Discard,
    Release,
    Remove,
}

const NEVER: SignedDuration = SignedDuration::from_hours(1000);

/// All decisions so far.
pub(crate) struct Mind {
    kind: Kind,
    window: SignedDuration,
    margin: SignedDuration,
    fault: Option<Fault>,
    pub(crate) library: Library,
    pub(crate) eyes: Eyes,
    moves: HashMap<Situation, Move, FixedState>,
}

impl Mind {
    /// Of processes in this scenario.
    pub(crate) fn new(scene: &Scene) -> Self {
        let ticks = |ticks: u8| SignedDuration::from_secs(i64::from(ticks) * TICK);
        Self {
            kind: scene.kind,
            window: ticks(scene.window),
            margin: ticks(scene.margin),
            fault: scene.fault,
            library: Library::new(),
            eyes: Eyes::new(scene.kind),
            moves: HashMap::default(),
        }
    }

    /// How often `decide` was asked.
    pub(crate) fn decisions(&self) -> usize {
        self.moves.len()
    }

    /// What a process in this situation does.
    pub(crate) fn decide(&mut self, situation: Situation) -> Move {
        if let Some(known) = self.moves.get(&situation) {
            return *known;
        }
        let decided = self.ask_the_real_one(situation);
        self.moves.insert(situation, decided);
        decided
    }

    fn ask_the_real_one(&mut self, situation: Situation) -> Move {
        let job = self.library.job(situation.copy).clone();
        let facts = self.facts(situation, &job);
        // What is said only after a quiet time is for people, and would be one more write at every wait.
        let settings = Settings {
            margin: self.margin,
            quiet_start: NEVER,
            quiet_deletion: NEVER,
            ..Settings::default()
        };
        let classes: Vec<_> = (situation.class > 0)
            .then(|| class(situation.class))
            .into_iter()
            .collect();
        let selection = ownership::select(&job, &BTreeMap::new(), &classes);
        let now = tick(situation.clock);
        let step = match ownership::of_job(&job, KUBERNETES_CONTROLLER, &selection, &classes) {
            Ownership::Owned(owned) => lifecycle::decide(&owned, &facts, &settings, now),
            Ownership::Unowned(unowned) => lifecycle::decide_unowned(&unowned, now),
            Ownership::Foreign => unreachable!("there is one controller name"),
        };
        let finalizers = |change: fn(&mut Vec<String>)| {
            let mut job = job.clone();
            change(job.metadata.finalizers.get_or_insert_default());
            job
        };
        let written = match step {
            Step::Wait(Wait::Until(until) | Wait::Backoff(until)) => {
                assert!(
                    until.is_none_or(|until| until > now),
                    "waits until the past: {situation:?}"
                );
                return Move::Rest;
            }
            Step::Ask(question) => return Move::Ask(query(question)),
            Step::Act(effect) => return Move::Act(deed(&effect)),
            Step::Collect => return Move::Collect,
            Step::Protect => finalizers(|f| f.push(EXECUTION_FINALIZER.to_owned())),
            Step::Unprotect => finalizers(|f| f.retain(|f| f != EXECUTION_FINALIZER)),
            Step::Report(status) => Job {
                status: Some(*status),
                ..job.clone()
            },
        };
        Move::Write {
            against: broken_rule(&job, &written),
            to: self.library.store(written),
        }
    }

    fn facts(&self, situation: Situation, job: &Job) -> Facts {
        let known = situation.known;
        let identity = |server: u8| BackendIdentity {
            parameters_uid: parameters_of(job),
            // Where the backend is the cluster of the Job, there is no other.
            endpoint_hash: match self.kind {
                Kind::Named => String::new(),
                Kind::Unnamed | Kind::SingleShot => format!("server{server}"),
            },
        };
        let found = |at: Place| (name(self.kind, at.number, at.batch), identity(at.server));
        let unknown = || why("BackendUnreachable");
        let attempt = |number: u8| format!("attempt{number}");
        Facts {
            backend: Some(identity(match self.fault {
                Some(Fault::BelievesAnotherServer) => self.library.card(situation.copy).server.unwrap_or(1),
                _ => situation.server,
            })),
            parameters_uid: (situation.class > 0).then(|| format!("parameters{}", situation.class)),
            admission: known.admitted.then_some(Ok(Ok(()))),
            live: known.live.map(|live| {
                Ok(match live {
                    LiveSight::Matches(server) => Live::Matches(self.protocol(), identity(server)),
                    LiveSight::Replaced => Live::Replaced(why("JobClassReplaced")),
                })
            }),
            prospect: known.prospect.map(|(asked, listed)| {
                let prospect = match listed {
                    Listed::Nothing => Ok(Prospect::Absent),
                    Listed::Found(at) => {
                        let (name, server) = found(at);
                        Ok(Prospect::Found(name, server))
                    }
                    Listed::Pending(at) => {
                        let (name, server) = found(at);
                        Ok(Prospect::Pending(name, server))
                    }
                    Listed::Otherwise(word) => Ok(self.eyes.prospect(word).clone()),
                    Listed::Unknown => Err(unknown()),
                };
                (tick(asked), prospect)
            }),
            state: known.state.map(|seen| self.eyes.state(seen).clone()),
            remains: known.remains.map(|left| match left {
                Left::Nothing => Ok(Remains::Nothing),
                Left::Something => Ok(Remains::Something("an execution".to_owned())),
                Left::Unknown => Err(unknown()),
            }),
            done: known.done.map(|did| match did {
                Did::Prepared(reply) => Done::Prepared(answer(reply)),
                Did::Created(number) => Done::Submitted(Submission::Created(name(self.kind, number, 0))),
                Did::Refused => Done::Submitted(Submission::Refused(why("BackendRejected"))),
                Did::Unanswered => Done::Submitted(Submission::Unanswered(why("BackendUnavailable"))),
                Did::Started(reply) => Done::Started(answer(reply)),
                Did::Stopped(reply) => Done::Stopped(answer(reply)),
                Did::Discarded(reply) => Done::Discarded(answer(reply)),
                Did::Released(reply) => Done::Released(answer(reply)),
                Did::Removed(reply) => Done::Removed(answer(reply)),
            }),
            fresh_id: attempt(situation.attempts + 1),
            mine: (known.mine > 0).then(|| attempt(known.mine)),
            ..Facts::default()
        }
    }

    fn protocol(&self) -> Protocol {
        match self.kind {
            Kind::Named | Kind::Unnamed => Protocol::Hold,
            Kind::SingleShot => Protocol::SingleShot(Windows {
                send: self.window,
                fence: self.window,
            }),
        }
    }
}

/// The parameters object that was recorded when the Job was accepted.
fn parameters_of(job: &Job) -> String {
    let resolved = job.status.as_ref().and_then(|s| s.resolved_job_class.as_ref());
    resolved.map(|c| c.parameters_ref.uid.clone()).unwrap_or_default()
}

fn why(reason: &str) -> Why {
    Why::new(reason, "said by the simulated world")
}

fn answer(reply: Reply) -> Answer {
    match reply {
        Reply::Done => Answer::Done,
        Reply::Later => Answer::Later(SignedDuration::from_secs(5)),
        Reply::Stale => Answer::Stale,
        Reply::Unavailable => Answer::Unavailable(why("BackendUnavailable")),
    }
}

fn query(question: Question<'_>) -> Query {
    match question {
        Question::Admission(..) => Query::Admission,
        Question::Live(_) => Query::Live,
        Question::Prospect(_) => Query::Prospect,
        Question::State(_) => Query::State,
        Question::Remains(_) => Query::Remains,
    }
}

fn deed(effect: &Effect<'_>) -> Deed {
    match effect {
        Effect::Prepare(_) => Deed::Prepare,
        Effect::Submit(_) => Deed::Submit,
        Effect::Start(_) => Deed::Start,
        Effect::Stop(_) => Deed::Stop,
        Effect::Renew(_) => unreachable!("nothing here expires"),
        Effect::Discard(..) => Deed::Discard,
        Effect::Release(_) => Deed::Release,
        Effect::Remove(_) => Deed::Remove,
    }
}

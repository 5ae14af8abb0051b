//! What happened, in numbered lines.

use std::fmt::Write as _;

use ayatori_core::execution::Prospect;

use crate::backend::Message;
use crate::events::{Event, Fate, Next, after};
use crate::eyes;
use crate::mind::{Left, Listed, LiveSight, Mind, Query};
use crate::objects::Version;
use crate::state::{Moved, SLOTS, Scene, World};

/// The way through these worlds, one line an event.
pub(crate) fn tell(path: &[World], scene: &Scene, mind: &mut Mind) -> String {
    let mut story = String::new();
    let mut names = Names {
        processes: ["A", "B"],
        executions: std::array::from_fn(|slot| slot),
    };
    for (number, step) in path.windows(2).enumerate() {
        let (here, there) = (&step[0], &step[1]);
        let (ways, _) = after(here, scene, mind);
        let way = ways
            .iter()
            .find(|way| way.world == *there)
            .expect("the way was taken");
        let line = line(way, here, names, mind);
        let _ = writeln!(story, "{:>4}. {line}", number + 1);
        names.follow(way.moved);
    }
    let end = path.last().expect("a world");
    if let Some(broken) = end.broken {
        let _ = writeln!(story, "      {broken}");
    }
    let _ = writeln!(story, "      the Job: {}", about(end.job, names, mind));
    story
}

/// Worlds keep processes and executions in an order of their own; in a story each keeps its name.
#[derive(Clone, Copy)]
struct Names {
    processes: [&'static str; 2],
    executions: [usize; SLOTS],
}

impl Names {
    fn follow(&mut self, moved: Moved) {
        if moved.swapped {
            self.processes.reverse();
        }
        self.executions = moved.slots.map(|before| self.executions[before]);
    }

    fn execution(&self, number: u8) -> usize {
        self.executions[usize::from(number)]
    }
}

fn line(way: &Next, here: &World, names: Names, mind: &Mind) -> String {
    let there = &way.world;
    let name = |who: usize| names.processes[who];
    let execution = |number: usize| names.executions[number];
    match way.event {
        Event::Tick => format!("the clock goes to {}", there.now),
        Event::Sees { who } => format!("{} sees the Job: {}", name(who), about(here.job, names, mind)),
        Event::SeesClass { who } => format!("{} sees incarnation {} of the class", name(who), here.class),
        Event::Rests { who } => format!("{} has nothing to do", name(who)),
        Event::Asks { who, query } => format!("{} {}", name(who), answer(query, who, way, names, mind)),
        Event::Writes { who, to, fate } => {
            let what = difference(here.processes[who].copy, to, names, mind);
            let fate = match fate {
                Fate::Stored => "stores",
                Fate::Conflict => "is refused, its copy being old, to store",
                Fate::AnswerLost => "hears nothing, and has stored",
                Fate::OnlyInMemory => "keeps to itself",
            };
            format!("{} {fate} {what}", name(who))
        }
        Event::Collects { who } => format!("{} deletes the Job, its TTL being over", name(who)),
        Event::Acts { who, deed, lost } => {
            let lost = if lost { ", and hears nothing" } else { "" };
            format!("{} does {deed:?}{lost}", name(who))
        }
        Event::IsAnswered { who } => format!("{} is answered: created", name(who)),
        Event::IsRefused { who } => format!("{} is told that its create request is refused", name(who)),
        Event::GivesUp { who } => format!("{} waits no longer for an answer", name(who)),
        Event::Crashes { who } => format!("{} dies, and starts again", name(who)),
        Event::Arrives { message } => match message {
            Message::None => String::new(),
            Message::Create { uid, .. } => format!("the create request for job{uid} arrives"),
            Message::Start { execution, .. } => {
                format!(
                    "the request to start execution {} arrives",
                    names.execution(execution)
                )
            }
        },
        Event::ArrivesAndIsRepeated => {
            "the create request arrives, and is sent once more on its way".to_owned()
        }
        Event::Listed { number } => format!("execution {} shows in lists", execution(number)),
        Event::ComesUp { number } => format!("THE COMMAND STARTS in execution {}", execution(number)),
        Event::ComesUpTooLate { number } => {
            format!(
                "execution {} comes up after its fence and refuses to start",
                execution(number)
            )
        }
        Event::NeverComesUp { number } => format!("execution {} will never come up", execution(number)),
        Event::Ends { number } => format!("the command in execution {} ends", execution(number)),
        Event::PodIsDeleted { number } => {
            format!(
                "the Job controller deletes pod {}, its deadline being over",
                execution(number)
            )
        }
        Event::KubeletDeletes { number } => {
            format!(
                "the kubelet deletes pod {}, which puts its own time to that",
                execution(number)
            )
        }
        Event::AnotherPod { number } => format!(
            "the Job controller makes another pod beside {}",
            execution(number)
        ),
        Event::OutsiderStops { number } => format!("an outsider stops execution {}", execution(number)),
        Event::OutsiderDeletes { number } => format!("an outsider deletes execution {}", execution(number)),
        Event::CodeIsLost { number } => {
            format!(
                "an outsider ends execution {}, and its exit code is lost",
                execution(number)
            )
        }
        Event::Evicts { number } => format!("the cluster evicts execution {}", execution(number)),
        Event::KubeletEnds { number } => {
            format!(
                "the kubelet is back and ends execution {}, of which nothing is left",
                execution(number)
            )
        }
        Event::Hides => "the backend cannot be seen".to_owned(),
        Event::Shows => "the backend can be seen again".to_owned(),
        Event::Cancels => "the user cancels the Job".to_owned(),
        Event::Deletes => "the user deletes the Job".to_owned(),
        Event::Submits => "the user creates a Job of the same name".to_owned(),
        Event::ClassCreated => format!("class and parameters are created, incarnation {}", there.class),
        Event::ServerChanged => format!("the parameters name server {} now", there.server),
    }
}

/// A Job in one line.
fn about(version: Version, names: Names, mind: &Mind) -> String {
    if !version.exists() {
        return "there is none".to_owned();
    }
    let card = mind.library.card(version);
    let mut words = vec![format!("job{}", card.uid)];
    let mut say = |holds: bool, word: String| {
        if holds {
            words.push(word);
        }
    };
    say(card.deleting, "being deleted".to_owned());
    say(card.protected, "our finalizer".to_owned());
    say(card.cancelled, "to be cancelled".to_owned());
    say(card.accepted.is_some(), "Accepted".to_owned());
    if let Some((number, fence)) = card.attempt {
        say(true, format!("attempt {number} until second {fence}"));
    }
    if let Some(number) = card.execution.map(|number| names.execution(number)) {
        say(true, format!("execution {number} recorded"));
    }
    if let Some(reason) = card.stop {
        say(
            true,
            format!(
                "stop for {reason:?}{}",
                if card.delivered { ", delivered" } else { "" }
            ),
        );
    }
    say(card.unknown, "ResultUnknown".to_owned());
    if let Some(result) = &card.result {
        say(
            true,
            format!("Finished as {:?}/{}", result.outcome, result.reason),
        );
    }
    say(card.released, "released".to_owned());
    words.join(", ")
}

/// What a write changes.
fn difference(from: Version, to: Version, names: Names, mind: &Mind) -> String {
    let (before, after) = (about(from, names, mind), about(to, names, mind));
    let known: Vec<_> = before.split(", ").collect();
    let news: Vec<_> = after.split(", ").filter(|word| !known.contains(word)).collect();
    let lost: Vec<_> = known
        .iter()
        .filter(|word| !after.split(", ").any(|w| w == **word))
        .map(|word| format!("no longer {word}"))
        .collect();
    let all: Vec<String> = news.into_iter().map(str::to_owned).chain(lost).collect();
    if !all.is_empty() {
        return all.join(", ");
    }
    let conditions = |version| {
        let status = mind.library.job(version).status.as_ref();
        status.map(|s| s.conditions.clone()).unwrap_or_default()
    };
    let old = conditions(from);
    let changed: Vec<_> = conditions(to)
        .into_iter()
        .filter(|c| !old.contains(c))
        .map(|c| format!("{}={}/{}", c.type_, c.status, c.reason))
        .collect();
    changed.join(", ")
}

/// The answer that a process was given.
fn answer(query: Query, who: usize, way: &Next, names: Names, mind: &Mind) -> String {
    let known = way.world.processes[if way.moved.swapped { 1 - who } else { who }].known;
    match query {
        Query::Admission => "is told that it may be admitted".to_owned(),
        Query::Live => match known.live {
            Some(LiveSight::Matches(server)) => {
                format!("reads the recorded class and parameters, which name server {server}")
            }
            Some(LiveSight::Replaced) => "reads another class of that name".to_owned(),
            None => "reads the class".to_owned(),
        },
        Query::Prospect => match known.prospect {
            Some((asked, listed)) => {
                format!("lists, at {asked} by its clock: {}", listing(listed, names, mind))
            }
            None => "lists, and does nothing about it".to_owned(),
        },
        Query::State => known
            .state
            .map_or("looks, and does nothing about it".to_owned(), |sight| {
                format!(
                    "looks at the recorded execution: {}",
                    eyes::words(mind.eyes.state(sight))
                )
            }),
        Query::Remains => match known.remains {
            Some(Left::Nothing) => "asks what is left: nothing".to_owned(),
            Some(Left::Something) => "asks what is left: something".to_owned(),
            Some(Left::Unknown) | None => "asks what is left, and gets no answer that counts".to_owned(),
        },
    }
}

fn listing(listed: Listed, names: Names, mind: &Mind) -> String {
    match listed {
        Listed::Nothing => "nothing".to_owned(),
        Listed::Found(place) => format!("execution {}", names.execution(place.number)),
        Listed::Pending(place) => format!(
            "execution {}, which has not come up",
            names.execution(place.number)
        ),
        Listed::Otherwise(word) => match mind.eyes.prospect(word) {
            Prospect::Preparing(why) | Prospect::Spoilt(why) | Prospect::Conflict(why) => {
                format!("nothing that can be recorded ({})", why.reason)
            }
            said => format!("{said:?}"),
        },
        Listed::Unknown => "no answer that counts".to_owned(),
    }
}

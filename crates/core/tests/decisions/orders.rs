//! Random orders of everything that can happen: the promises hold in each.

use ayatori_core::execution::Protocol;
use ayatori_core::job::Job;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::shapes::*;
use crate::world::{NextSubmission, Process, World, is_finished};

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A process looks at a copy that is so many versions old, and dies after so many changes.
    Pass {
        age: usize,
        changes: usize,
    },
    /// One of two processes takes some steps of its pass, which it begins on a copy that is so many versions old.
    Steps {
        process: usize,
        age: usize,
        steps: usize,
    },
    Time(i64),
    ComeUp,
    Exit(i32),
    Arrive,
    Submissions(NextSubmission),
    Reachable(bool),
    Evict,
    Vanish,
    Hide,
    Cancel,
    Delete,
}

fn event() -> impl Strategy<Value = Event> {
    use Event::*;
    prop_oneof![
        5 => Just(Pass { age: 0, changes: usize::MAX }),
        3 => (0..6_usize, 1..6_usize).prop_map(|(age, changes)| Pass { age, changes }),
        2 => (0..6_usize).prop_map(|age| Pass { age, changes: usize::MAX }),
        12 => (0..2_usize, 0..3_usize, 1..9_usize).prop_map(|(process, age, steps)| Steps { process, age, steps }),
        3 => prop_oneof![Just(1), Just(10), Just(60), Just(691)].prop_map(Time),
        4 => Just(ComeUp),
        3 => prop_oneof![Just(0), Just(3), Just(143)].prop_map(Exit),
        1 => Just(Arrive),
        1 => prop_oneof![
            Just(NextSubmission::Answered), Just(NextSubmission::Refused), Just(NextSubmission::Unanswered)
        ].prop_map(Submissions),
        2 => any::<bool>().prop_map(Reachable),
        1 => Just(Evict),
        1 => Just(Vanish),
        1 => Just(Hide),
        1 => Just(Cancel),
        1 => Just(Delete),
    ]
}

fn wishes() -> impl Strategy<Value = Job> {
    let seconds = || proptest::option::of(prop_oneof![Just(1), Just(30), Just(700)]);
    (
        seconds(),
        seconds(),
        proptest::option::of(prop_oneof![Just(0), Just(30)]),
    )
        .prop_map(|(active, starting, ttl)| {
            let mut job = job();
            job.spec.active_deadline_seconds = active;
            job.spec.starting_deadline_seconds = starting;
            job.spec.ttl_seconds_after_finished = ttl;
            job
        })
}

/// A world with every version of the Job that any process may still have in its cache.
struct History {
    world: World,
    versions: Vec<Job>,
    processes: [Option<Process>; 2],
}

impl History {
    fn new(protocol: Protocol, job: Job) -> Self {
        Self {
            world: World::new(protocol, job.clone()),
            versions: vec![job],
            processes: [None, None],
        }
    }

    fn copy(&self, age: usize) -> Job {
        let newest = self.versions.len() - 1;
        self.versions[newest - age.min(newest)].clone()
    }

    fn happens(&mut self, event: Event) {
        let copy = match event {
            Event::Pass { age, .. } | Event::Steps { age, .. } => self.copy(age),
            _ => self.copy(0),
        };
        let world = &mut self.world;
        let now = world.now;
        match event {
            Event::Pass { changes, .. } => drop(world.pass_on(copy, changes)),
            Event::Steps { process, steps, .. } => {
                let mut acting = self.processes[process]
                    .take()
                    .unwrap_or_else(|| world.begin(copy));
                let over = (0..steps).any(|_| world.step(&mut acting).is_some());
                self.processes[process] = (!over).then_some(acting);
            }
            Event::Time(seconds) => world.now += seconds,
            Event::ComeUp => world.backend.come_up(now),
            Event::Exit(code) => world.backend.exit(code, now),
            Event::Arrive => world.backend.arrive(),
            Event::Submissions(next) => world.backend.next_submission = next,
            Event::Reachable(reachable) => world.backend.unreachable = !reachable,
            Event::Evict => world.backend.evict(now),
            Event::Vanish => world.backend.vanish(),
            Event::Hide => world.backend.hide(),
            Event::Cancel => world.cancel(),
            Event::Delete => world.delete(),
        }
        self.check();
        if let Some(job) = &self.world.job
            && self.versions.last() != Some(job)
        {
            self.versions.push(job.clone());
        }
    }

    fn check(&self) {
        assert!(
            self.world.backend.starts <= 1,
            "started twice: {:#?}",
            self.world.log
        );
        let ended = self.versions.iter().find(|job| is_finished(job));
        if let (Some(ended), Some(now)) = (ended, &self.world.job) {
            let end = |job: &Job| {
                let status = job.status.clone().unwrap();
                (status.result, status.finish_time, status.state)
            };
            assert_eq!(end(ended), end(now), "an end that changed");
        }
    }

    /// Everything works again and all processes end: so does the Job.
    fn settles(mut self) {
        self.happens(Event::Reachable(true));
        self.happens(Event::Submissions(NextSubmission::Answered));
        for _ in 0..4 {
            for event in [Event::ComeUp, Event::Exit(0), Event::Time(691)] {
                self.happens(event);
                self.happens(Event::Pass {
                    age: 0,
                    changes: usize::MAX,
                });
            }
        }
        let over = self.world.job.as_ref().is_none_or(is_finished);
        assert!(over, "it never ended: {:#?}", self.world);
        let deleting = |job: &Job| job.metadata.deletion_timestamp.is_some();
        assert!(
            !self.world.job.as_ref().is_some_and(deleting),
            "it never went: {:#?}",
            self.world
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4 * ProptestConfig::default().cases, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_every_order_a_command_starts_at_most_once_and_its_end_is_true_and_final(
        hold in any::<bool>(),
        job in wishes(),
        events in vec(event(), 1..80),
    ) {
        let protocol = if hold { Protocol::Hold } else { Protocol::SingleShot(WINDOWS) };
        let mut history = History::new(protocol, job);
        for event in events {
            history.happens(event);
        }
        history.settles();
    }
}

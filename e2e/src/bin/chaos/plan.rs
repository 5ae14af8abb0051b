//! What will happen, from a seed alone: the Jobs, and the faults they meet.

use std::time::Duration;

use ayatori_e2e::replica::Adapter;
use fastrand::Rng;

use crate::wire::Mode;

/// Jobs that begin in each second.
const RATE: u32 = 3;
/// The shortest run: some faults alone take half a minute.
const SHORTEST: Duration = Duration::from_secs(60);
/// More faults than any run has time for.
const FAULTS: usize = 2_000;

/// All of it.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) jobs: Vec<PlannedJob>,
    pub(crate) faults: Vec<Fault>,
    /// For how long Jobs and faults come.
    pub(crate) length: Duration,
}

/// One Job.
#[derive(Clone, Debug)]
pub(crate) struct PlannedJob {
    pub(crate) name: String,
    /// Since the beginning.
    pub(crate) at: Duration,
    pub(crate) class: Class,
    pub(crate) deed: Deed,
    pub(crate) fate: Fate,
}

/// The class of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) adapter: Adapter,
    /// Whether it is deleted and recreated under its name again and again.
    pub(crate) recreated: bool,
}

/// What a command does, after counting its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Ends by itself.
    Exits { after: Duration, code: u8 },
    /// Does not end by itself.
    Sleeps,
    /// Nor does this, and calls it a success when it is asked to stop.
    Obeys,
}

/// What becomes of a Job from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Left,
    Cancelled {
        after: Duration,
    },
    Deadline {
        seconds: i32,
    },
    StartingDeadline {
        seconds: i32,
    },
    Deleted {
        after: Duration,
    },
    /// Deleted, and created again under its name, with another command.
    Recreated {
        after: Duration,
    },
    /// Goes by itself, soon after its end.
    Expires {
        seconds: i32,
    },
}

/// Something that is broken, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL to one replica.
    Kill(Adapter, usize),
    /// SIGKILL to all replicas of an adapter.
    KillAll(Adapter),
    /// SIGSTOP to one replica, then SIGCONT.
    Freeze(Adapter, usize, Duration),
    /// A part of the cluster is stopped, or killed, and started again.
    Restart {
        part: &'static str,
        kill: bool,
        away: Duration,
    },
    /// The connection between the adapter and the OpenSandbox server.
    Wire(Mode, Duration),
    /// The label by which the classes admit the namespace is taken off.
    Unlabel(Duration),
    /// The adapter loses its rights in the cluster.
    Revoke(Adapter, Duration),
}

impl Fault {
    /// In a word, for counting.
    pub(crate) fn kind(&self) -> String {
        match self {
            Fault::Kill(adapter, _) => format!("kill one {}", adapter.name()),
            Fault::KillAll(adapter) => format!("kill every {}", adapter.name()),
            Fault::Freeze(adapter, ..) => format!("freeze one {}", adapter.name()),
            Fault::Restart { part, kill: true, .. } => format!("kill {part}"),
            Fault::Restart { part, .. } => format!("restart {part}"),
            Fault::Wire(mode, _) => format!("connection {mode}"),
            Fault::Unlabel(_) => "namespace loses its label".to_owned(),
            Fault::Revoke(adapter, _) => format!("{} loses its rights", adapter.name()),
        }
    }
}

impl Plan {
    /// The same seed and number give the same plan.
    pub(crate) fn from_seed(seed: u64, jobs: u32) -> Plan {
        let mut rng = Rng::with_seed(seed);
        let length = SHORTEST.max(Duration::from_secs(u64::from(jobs / RATE)));
        let jobs = (0..jobs).map(|i| {
            let class = Class {
                adapter: adapter(&mut rng),
                recreated: rng.u8(..10) == 0,
            };
            let (deed, fate) = life(&mut rng);
            PlannedJob {
                name: format!("job-{i:04}"),
                at: length * i / jobs,
                class,
                deed,
                fate,
            }
        });
        Plan {
            seed,
            jobs: jobs.collect(),
            faults: (0..FAULTS).map(|_| fault(&mut rng)).collect(),
            length,
        }
    }
}

fn adapter(rng: &mut Rng) -> Adapter {
    if rng.bool() {
        Adapter::Kubernetes
    } else {
        Adapter::OpenSandbox
    }
}

fn between(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..to))
}

fn life(rng: &mut Rng) -> (Deed, Fate) {
    let exits = Deed::Exits {
        after: between(rng, 0, 4_000),
        code: if rng.bool() { 0 } else { rng.u8(1..=97) },
    };
    let endless = if rng.bool() { Deed::Sleeps } else { Deed::Obeys };
    let after = between(rng, 0, 8_000);
    match rng.u8(..20) {
        0..=8 => (exits, Fate::Left),
        9 => (exits, Fate::Expires { seconds: 3 }),
        10..=12 => (endless, Fate::Cancelled { after }),
        13 => (exits, Fate::Cancelled { after }),
        14 | 15 => (
            endless,
            Fate::Deadline {
                seconds: rng.i32(3..10),
            },
        ),
        16 => (
            exits,
            Fate::StartingDeadline {
                seconds: rng.i32(1..5),
            },
        ),
        17 => (endless, Fate::Deleted { after }),
        _ => (endless, Fate::Recreated { after }),
    }
}

fn fault(rng: &mut Rng) -> Fault {
    let adapter = adapter(rng);
    let replica = rng.usize(..2);
    let (kill, away) = (rng.bool(), between(rng, 0, 3_000));
    let part = |part| Fault::Restart { part, kill, away };
    match rng.u8(..24) {
        0..=3 => Fault::Kill(adapter, replica),
        4 | 5 => Fault::KillAll(adapter),
        // A lease lasts 15 s: often long enough for another leader.
        6..=8 => Fault::Freeze(adapter, replica, between(rng, 1_000, 25_000)),
        9 | 10 => part("apiserver"),
        11 => part("etcd"),
        12 | 13 => part("controller-manager"),
        14 => part("scheduler"),
        15 => part("kubelet"),
        16 => part("opensandbox"),
        17 if rng.u8(..3) == 0 => part("dockerd"),
        17 | 18 => Fault::Wire(Mode::Refuses, between(rng, 500, 6_000)),
        19 => Fault::Wire(Mode::Silent, between(rng, 500, 12_000)),
        20 => Fault::Wire(Mode::CutsAnswers, between(rng, 500, 4_000)),
        21 => Fault::Wire(Mode::Slow, between(rng, 2_000, 8_000)),
        22 => Fault::Unlabel(between(rng, 500, 4_000)),
        _ => Fault::Revoke(adapter, between(rng, 500, 4_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_plan_every_time_and_another_one_another() {
        let told = |seed| {
            let plan = Plan::from_seed(seed, 50);
            format!("{:?} {:?}", plan.jobs, plan.faults)
        };
        assert_eq!(told(7), told(7));
        assert_ne!(told(7), told(8));
    }

    #[test]
    fn every_kind_of_fault_and_fate_comes_up() {
        let plan = Plan::from_seed(1, 1_000);
        let kinds: std::collections::BTreeSet<_> = plan.faults.iter().map(Fault::kind).collect();
        for word in [
            "kill one kubernetes-adapter",
            "kill every opensandbox-adapter",
            "freeze one kubernetes-adapter",
            "kill etcd",
            "restart etcd",
            "kill dockerd",
            "namespace loses its label",
            "opensandbox-adapter loses its rights",
        ] {
            assert!(kinds.contains(word), "{word} in {kinds:?}");
        }
        let fates = |of: fn(&Fate) -> bool| plan.jobs.iter().filter(|job| of(&job.fate)).count();
        assert!(fates(|fate| matches!(fate, Fate::Recreated { .. })) > 50);
        assert!(fates(|fate| matches!(fate, Fate::Left)) > 300);
    }
}

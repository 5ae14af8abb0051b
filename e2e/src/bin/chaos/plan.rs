//! What will happen, from a seed alone: the Jobs, and the faults they meet.

use std::time::Duration;

use ayatori_e2e::replica::Adapter;
use fastrand::Rng;

use crate::wire::Mode;

/// Jobs that begin in each second, at most.
const RATE: u32 = 3;
/// The shortest run: some faults alone take half a minute.
const SHORTEST: Duration = Duration::from_secs(60);
/// How often each fault comes up at most: more often than any run has time for.
const ROUNDS: usize = 100;

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

impl Fate {
    /// Whether its Job may be gone before anybody has seen it.
    pub(crate) fn goes(self) -> bool {
        matches!(
            self,
            Fate::Deleted { .. } | Fate::Recreated { .. } | Fate::Expires { .. }
        )
    }
}

/// Whose process is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    Replica(usize),
    /// Whoever leads when it comes to it.
    Leader,
    Everyone,
}

impl std::fmt::Display for Whom {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(match self {
            Whom::Replica(_) => "one",
            Whom::Leader => "the leading",
            Whom::Everyone => "every",
        })
    }
}

/// Something that is broken, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL to replicas.
    Kill(Adapter, Whom),
    /// SIGSTOP to replicas, then SIGCONT.
    Freeze(Adapter, Whom, Duration),
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
            Fault::Kill(adapter, whom) => format!("kill {whom} {}", adapter.name()),
            Fault::Freeze(adapter, whom, _) => format!("freeze {whom} {}", adapter.name()),
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
            faults: (0..ROUNDS).flat_map(|_| round(&mut rng)).collect(),
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

/// Every fault once, in any order: so a run that is long enough meets each, and none much more often than another.
fn round(rng: &mut Rng) -> Vec<Fault> {
    let mut faults = Vec::new();
    for adapter in [Adapter::Kubernetes, Adapter::OpenSandbox] {
        for whom in [Whom::Replica(rng.usize(..2)), Whom::Leader, Whom::Everyone] {
            faults.push(Fault::Kill(adapter, whom));
            // A lease lasts 15 s: often long enough for another leader.
            faults.push(Fault::Freeze(adapter, whom, between(rng, 1_000, 25_000)));
        }
        faults.push(Fault::Revoke(adapter, between(rng, 500, 4_000)));
    }
    for part in [
        "apiserver",
        "apiserver",
        "etcd",
        "controller-manager",
        "controller-manager",
        "scheduler",
        "kubelet",
        "opensandbox",
        "dockerd",
    ] {
        faults.push(Fault::Restart {
            part,
            kill: rng.bool(),
            away: between(rng, 0, 3_000),
        });
    }
    for (mode, longest) in [
        (Mode::Refuses, 6_000),
        (Mode::Silent, 12_000),
        (Mode::CutsAnswers, 4_000),
        (Mode::HangsUp, 4_000),
        (Mode::Slow, 8_000),
    ] {
        faults.push(Fault::Wire(mode, between(rng, 500, longest)));
    }
    faults.push(Fault::Unlabel(between(rng, 500, 4_000)));
    rng.shuffle(&mut faults);
    faults
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
            "kill the leading opensandbox-adapter",
            "kill every opensandbox-adapter",
            "freeze the leading kubernetes-adapter",
            "kill etcd",
            "restart etcd",
            "kill dockerd",
            "connection closed by half after the request",
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

//! What the figures may be. All budgets stand here, and nowhere else.

use crate::figures::Figure;

/// What is asked of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// At least so many times the peer's.
    TimesAtLeast(f64),
    /// At most so many times the peer's.
    TimesAtMost(f64),
    AtLeast(f64),
    AtMost(f64),
}

/// The budget of one figure.
pub(crate) struct Budget {
    /// The figure's name.
    pub(crate) what: &'static str,
    pub(crate) bound: Bound,
    /// Where it comes from.
    pub(crate) source: &'static str,
    /// What stands in the way, where it is not met.
    pub(crate) bounded_by: &'static str,
}

pub(crate) const THROUGHPUT_DEFAULT: &str = "throughput, controller-manager at its defaults";
pub(crate) const THROUGHPUT_LIFTED: &str = "throughput, controller-manager without limits";
pub(crate) const CPU_PER_JOB: &str = "CPU of the controller per Job";
pub(crate) const WRITES_TO_FINISHED: &str = "writes by the adapter per Job, create to Finished";
pub(crate) const WRITES_AT_ONCE: &str = "the same where Started and Finished fall together";
pub(crate) const WRITES_AFTERWARDS: &str = "writes by the adapter per Job, Finished to gone";
pub(crate) const READS: &str = "reads by the adapter per Job, create to Finished";
pub(crate) const ADDED_P50: &str = "added latency of one Job at rest, create to Started, p50";
pub(crate) const ADDED_P99: &str = "added latency of one Job at rest, create to Started, p99";
pub(crate) const AFTER_CONDITION: &str = "Finished after the batch Job's own condition, p50";
pub(crate) const SANDBOX: &str = "Jobs in sandboxes, create to Finished";
pub(crate) const MEMORY: &str = "memory at 10,000 live Jobs";
pub(crate) const MEMORY_PER_JOB: &str = "memory per further live Job";
pub(crate) const MEMORY_CYCLES: &str = "memory after the last TTL cycles by that after the first";
pub(crate) const RESTART: &str = "start of the process until 10,000 Jobs are reconciled";
pub(crate) const RESTART_WRITES: &str = "writes after a restart";
pub(crate) const TTL_EARLIEST: &str = "earliest deletion after the end of the TTL";
pub(crate) const TTL_P99: &str = "lateness of deletions, 10,000 a minute, p99";
pub(crate) const TTL_RATE: &str = "deletions a second, controller-manager at its defaults";
pub(crate) const FAIRNESS: &str = "create to Finished beside 2,000 blocked Jobs, p99";
pub(crate) const IDLE_WRITES: &str = "writes at rest";
pub(crate) const IDLE_REQUESTS: &str = "requests at rest that are neither leases nor watches";

const CPU_OF_THE_API_SERVER: &str = "the API server's CPU on two cores. A Job costs it nine writes more than a native one, \
and one to a custom resource several times what one to a native object does; the same writes, made by a client that \
decides nothing, come to the rate that stands as the bound below";
const CPU_FOR_WRITES: &str = "the API server's CPU on two cores: for each Job it takes seven writes to a custom resource, \
its creation among them; the bound below is what a client that decides nothing comes to with the same writes";
const CPU_FOR_DELETIONS: &str = "the API server's CPU on two cores, which 167 deletions a second and the batch Jobs and pods \
that go with them take whole; kube-controller-manager without limits, beside it, is later and does not delete all";
const WRITES_AND_EVENTS: &str = "the adapter makes seven writes for a Job until it is finished and tells Events besides, \
where kube-controller-manager makes about four, and it reads three objects in all their versions as JSON, where \
kube-controller-manager reads two in a binary encoding";

/// In the order of the table.
pub(crate) const BUDGETS: [Budget; 22] = [
    budget(
        THROUGHPUT_DEFAULT,
        Bound::TimesAtLeast(0.97),
        "an extra layer that nobody notices",
        "",
    ),
    budget(
        THROUGHPUT_LIFTED,
        Bound::TimesAtLeast(0.55),
        "the bound that writes for writes give",
        CPU_OF_THE_API_SERVER,
    ),
    budget(
        CPU_PER_JOB,
        Bound::TimesAtMost(1.0),
        "kube-controller-manager per native Job",
        WRITES_AND_EVENTS,
    ),
    budget(
        WRITES_TO_FINISHED,
        Bound::AtMost(7.0),
        "the protocol of starts, write by write",
        "",
    ),
    budget(
        WRITES_AT_ONCE,
        Bound::AtMost(6.0),
        "the same without a Started of its own",
        "",
    ),
    budget(
        WRITES_AFTERWARDS,
        Bound::AtMost(5.0),
        "pod finalizer, release, TTL, batch Job, finalizer",
        "",
    ),
    budget(
        READS,
        Bound::AtMost(0.0),
        "watches, and one look at class and parameters",
        "",
    ),
    budget(ADDED_P50, Bound::AtMost(50.0), "what people do not notice", ""),
    budget(ADDED_P99, Bound::AtMost(150.0), "what people do not notice", ""),
    budget(
        AFTER_CONDITION,
        Bound::AtMost(50.0),
        "kube-controller-manager's own condition",
        "",
    ),
    budget(
        SANDBOX,
        Bound::AtLeast(100.0),
        "two cores and a server that answers at once",
        CPU_FOR_WRITES,
    ),
    budget(MEMORY, Bound::AtMost(80.0), "a pod that fits anywhere", ""),
    budget(MEMORY_PER_JOB, Bound::AtMost(6.0), "a pod that fits anywhere", ""),
    budget(MEMORY_CYCLES, Bound::AtMost(1.05), "nothing leaks", ""),
    budget(
        RESTART,
        Bound::TimesAtMost(2.0),
        "the bare LIST of the same objects",
        "",
    ),
    budget(
        RESTART_WRITES,
        Bound::AtMost(0.0),
        "a restart changes nothing",
        "",
    ),
    budget(TTL_EARLIEST, Bound::AtLeast(0.0), "never early", ""),
    budget(
        TTL_P99,
        Bound::AtMost(1000.0),
        "the native TTL controller's own precision",
        CPU_FOR_DELETIONS,
    ),
    budget(
        TTL_RATE,
        Bound::TimesAtLeast(3.0),
        "the native TTL controller",
        "",
    ),
    budget(
        FAIRNESS,
        Bound::TimesAtMost(1.1),
        "one namespace does not slow another",
        "",
    ),
    budget(IDLE_WRITES, Bound::AtMost(0.0), "lease renewals only", ""),
    budget(IDLE_REQUESTS, Bound::AtMost(0.0), "lease renewals only", ""),
];

const fn budget(what: &'static str, bound: Bound, source: &'static str, bounded_by: &'static str) -> Budget {
    Budget {
        what,
        bound,
        source,
        bounded_by,
    }
}

impl Bound {
    /// Whether a figure keeps it; a ratio that cannot be told is not kept.
    pub(crate) fn holds(self, figure: &Figure) -> bool {
        let ours = figure.ours.median;
        match self {
            Bound::TimesAtLeast(bound) => figure.ratio().is_some_and(|ratio| ratio >= bound),
            Bound::TimesAtMost(bound) => figure.ratio().is_some_and(|ratio| ratio <= bound),
            Bound::AtLeast(bound) => ours >= bound,
            Bound::AtMost(bound) => ours <= bound,
        }
    }

    pub(crate) fn words(self, unit: &str) -> String {
        match self {
            Bound::TimesAtLeast(bound) => format!("≥ {bound} ×"),
            Bound::TimesAtMost(bound) => format!("≤ {bound} ×"),
            Bound::AtLeast(bound) => format!("≥ {bound} {unit}").trim_end().to_owned(),
            Bound::AtMost(bound) => format!("≤ {bound} {unit}").trim_end().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Spread;

    #[test]
    fn a_bound_on_a_ratio_needs_a_peer() {
        let alone = Figure::new(FAIRNESS, "ms", Spread::one(11.0));
        assert!(!Bound::TimesAtMost(1.1).holds(&alone));
        let beside = alone.beside("alone", Spread::one(10.0));
        assert!(Bound::TimesAtMost(1.1).holds(&beside));
        assert!(!Bound::TimesAtLeast(1.2).holds(&beside));
    }

    #[test]
    fn every_budget_is_of_another_figure() {
        let names: std::collections::BTreeSet<_> = BUDGETS.iter().map(|budget| budget.what).collect();
        assert_eq!(names.len(), BUDGETS.len());
    }
}

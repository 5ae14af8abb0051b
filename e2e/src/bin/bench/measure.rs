//! The measurements: one file each.

mod fairness;
mod growth;
mod idle;
mod latency;
mod memory;
mod restart;
mod sandbox;
mod throughput;
mod ttl;

use std::time::Duration;

use clap::ValueEnum;

use crate::figures::{Curve, Figure};
use crate::stage::Stage;

/// How long everything is left alone between rounds.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Name {
    Throughput,
    Latency,
    Sandbox,
    Idle,
    Memory,
    Restart,
    Ttl,
    Fairness,
    Growth,
}

/// What a measurement comes to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) figures: Vec<Figure>,
    pub(crate) curves: Vec<Curve>,
}

impl From<Vec<Figure>> for Outcome {
    fn from(figures: Vec<Figure>) -> Self {
        Self {
            figures,
            curves: Vec::new(),
        }
    }
}

impl Name {
    /// The measurement of this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }

    /// Measures, with at most so many Jobs.
    pub(crate) async fn measure(self, stage: &Stage, at_most: Option<u32>) -> anyhow::Result<Outcome> {
        let size = Size(at_most);
        match self {
            Name::Throughput => throughput::measure(stage, size).await,
            Name::Latency => latency::measure(stage, size).await,
            Name::Sandbox => sandbox::measure(stage, size).await,
            Name::Idle => idle::measure(stage, size).await,
            Name::Memory => memory::measure(stage, size).await,
            Name::Restart => restart::measure(stage, size).await,
            Name::Ttl => ttl::measure(stage, size).await,
            Name::Fairness => fairness::measure(stage, size).await,
            Name::Growth => growth::measure(stage, size).await,
        }
    }

    /// What it is, for those who read its figures.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Name::Throughput => throughput::ABOUT,
            Name::Latency => latency::ABOUT,
            Name::Sandbox => sandbox::ABOUT,
            Name::Idle => idle::ABOUT,
            Name::Memory => memory::ABOUT,
            Name::Restart => restart::ABOUT,
            Name::Ttl => ttl::ABOUT,
            Name::Fairness => fairness::ABOUT,
            Name::Growth => growth::ABOUT,
        }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        to.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// How large a run may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(Option<u32>);

impl Size {
    /// So many Jobs, unless fewer are allowed.
    pub(crate) fn of(self, jobs: u32) -> u32 {
        self.0.map_or(jobs, |most| most.min(jobs)).max(2)
    }

    /// A time that shrinks with the Jobs, since in a trial nobody wants to wait.
    pub(crate) fn time(self, full: Duration) -> Duration {
        if self.0.is_some() { full / 6 } else { full }
    }
}

//! What was measured: figures, each beside its peer's, and how they are kept.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// Everything that was measured, by measurement; the latest run of each counts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures(pub(crate) BTreeMap<String, Measurement>);

/// What one measurement came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) taken: String,
    pub(crate) seconds: f64,
    pub(crate) setting: Setting,
    pub(crate) figures: Vec<Figure>,
    /// What grows with the number of Jobs that are there.
    #[serde(default)]
    pub(crate) curves: Vec<Curve>,
}

/// Where and of what it was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    pub(crate) kubernetes: String,
    pub(crate) profile: String,
    pub(crate) revision: String,
    /// The bound on the number of Jobs, where there was one.
    pub(crate) at_most: Option<u32>,
}

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// By which its budget knows it.
    pub(crate) what: String,
    pub(crate) unit: String,
    pub(crate) ours: Spread,
    pub(crate) peer: Option<Peer>,
    /// The peer against itself in the same run: what a ratio is worth.
    pub(crate) noise: Option<f64>,
}

/// What it is held against.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) spread: Spread,
}

/// Samples of one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) samples: usize,
}

/// A quantity by the number of Jobs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Curve {
    pub(crate) what: String,
    pub(crate) unit: String,
    /// Lines by name: the number of Jobs, and the quantity.
    pub(crate) lines: BTreeMap<String, Vec<(u32, f64)>>,
}

impl Spread {
    pub(crate) fn of(samples: &[f64]) -> Self {
        Self {
            median: quantile(samples, 0.5),
            low: quantile(samples, 0.0),
            high: quantile(samples, 1.0),
            samples: samples.len(),
        }
    }

    /// A quantile of samples, and no spread.
    pub(crate) fn quantile(samples: &[f64], q: f64) -> Self {
        let value = quantile(samples, q);
        Self {
            median: value,
            low: value,
            high: value,
            samples: samples.len(),
        }
    }

    pub(crate) fn one(value: f64) -> Self {
        Self::of(&[value])
    }
}

/// The sample that this part of them does not exceed; zero, if there is none.
pub(crate) fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    // In bounds: q is at most 1.
    let index = (q * last as f64).round() as usize;
    sorted.get(index).copied().unwrap_or_default()
}

impl Figure {
    pub(crate) fn new(what: &str, unit: &str, ours: Spread) -> Self {
        Self {
            what: what.to_owned(),
            unit: unit.to_owned(),
            ours,
            peer: None,
            noise: None,
        }
    }

    pub(crate) fn beside(mut self, name: &str, spread: Spread) -> Self {
        self.peer = Some(Peer {
            name: name.to_owned(),
            spread,
        });
        self
    }

    pub(crate) fn with_noise(mut self, noise: f64) -> Self {
        self.noise = Some(noise);
        self
    }

    /// Ours by the peer's.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let peer = self.peer.as_ref()?.spread.median;
        (peer != 0.0).then(|| self.ours.median / peer)
    }
}

impl Figures {
    /// Those of a file; none, if there is no such file.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        match std::fs::read(file) {
            Ok(text) => {
                serde_json::from_slice(&text).with_context(|| format!("understanding {}", file.display()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("reading {}", file.display())),
        }
    }

    pub(crate) fn write(&self, file: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
    }
}

/// In milliseconds.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// In MiB.
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_both_ends() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!(
            (spread.median, spread.low, spread.high, spread.samples),
            (2.0, 1.0, 3.0, 3)
        );
        assert_eq!(quantile(&[], 0.99), 0.0);
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.99), 99.0);
    }
}

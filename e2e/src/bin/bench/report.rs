//! The figures in words: lines while they come, a table at the end, and the page that is published.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;

use crate::budgets::{BUDGETS, Budget};
use crate::figures::{Figure, Figures, Measurement, Setting, Spread};
use crate::measure::Name;
use crate::plot;

/// The figures that the page shows.
pub(crate) const FIGURES: &str = "performance.json";
/// The page.
const PAGE: &str = "performance.md";

/// What one measurement came to.
pub(crate) fn lines(measurement: &Measurement) -> String {
    let mut text = String::new();
    for figure in &measurement.figures {
        let peer = figure.peer.as_ref();
        let peer = peer
            .map(|peer| format!(", {} {}", peer.name, spread(&peer.spread)))
            .unwrap_or_default();
        let noise = figure
            .noise
            .map(|noise| format!(", noise {noise:.2}"))
            .unwrap_or_default();
        let ours = spread(&figure.ours);
        let _ = writeln!(text, "  {}: {ours} {}{peer}{noise}", figure.what, figure.unit);
    }
    text
}

/// Every budget with its figure.
pub(crate) fn table(figures: &Figures) -> String {
    let mut text = format!(
        "\n{:62} {:>14} {:>14} {:>7} {:>13}\n",
        "FIGURE", "OURS", "PEER", "RATIO", "BUDGET"
    );
    for (budget, figure) in budgeted(figures) {
        let row = Row::of(budget, figure);
        let _ = writeln!(
            text,
            "{:62} {:>14} {:>14} {:>7} {:>13}  {}",
            budget.what, row.ours, row.peer, row.ratio, row.budget, row.verdict
        );
    }
    text
}

/// Writes figures, page and plots into a folder.
pub(crate) fn publish(figures: &Figures, folder: &Path) -> anyhow::Result<()> {
    figures.write(&folder.join(FIGURES))?;
    for (name, text) in pages(figures) {
        let file = folder.join(&name);
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(())
}

/// Everything that is generated from the figures, by file name.
fn pages(figures: &Figures) -> Vec<(String, String)> {
    let plots = figures.0.values().flat_map(|measurement| &measurement.curves);
    let plots = plots.map(|curve| (plot::file(curve), plot::svg(curve)));
    std::iter::once((PAGE.to_owned(), page(figures)))
        .chain(plots)
        .collect()
}

/// A budget's row.
struct Row {
    ours: String,
    peer: String,
    ratio: String,
    budget: String,
    verdict: &'static str,
}

impl Row {
    fn of(budget: &Budget, figure: Option<&Figure>) -> Self {
        let Some(figure) = figure else {
            return Self {
                ours: String::new(),
                peer: String::new(),
                ratio: String::new(),
                budget: budget.bound.words(""),
                verdict: "not measured",
            };
        };
        Self {
            ours: with_unit(figure.ours.median, &figure.unit),
            peer: figure
                .peer
                .as_ref()
                .map(|peer| with_unit(peer.spread.median, &figure.unit))
                .unwrap_or_default(),
            ratio: figure
                .ratio()
                .map(|ratio| format!("{ratio:.2}"))
                .unwrap_or_default(),
            budget: budget.bound.words(&figure.unit),
            verdict: if budget.bound.holds(figure) {
                "met"
            } else {
                "not met"
            },
        }
    }
}

fn budgeted(figures: &Figures) -> impl Iterator<Item = (&'static Budget, Option<&Figure>)> {
    let of = |budget: &'static Budget| {
        let mut all = figures.0.values().flat_map(|measurement| &measurement.figures);
        (budget, all.find(|figure| figure.what == budget.what))
    };
    BUDGETS.iter().map(of)
}

const INTRODUCTION: &str = "\
# Speed and size

What our layer costs beside the native Job controller, on the same control plane in the same run. This page is written
by `cargo xtask bench --publish` from `performance.json`, which lies beside it.
";

const METHOD: &str = "\
## How it is measured

etcd, kube-apiserver, kube-scheduler and kube-controller-manager run on this machine with the definitions and the
policies that the charts install, new for every measurement; the adapter runs as a process under its own service account
with the flags of its chart. The node is simulated: it is kept Ready, and every pod that is bound to it is shown as
Running and then as Succeeded at once, whoever's it is. So no time is spent on containers, and all that is left is
control. The audit log is written for the requests of adapters and of controllers alone.

Ours and native runs alternate. *Noise* is native against native of the same run: a ratio cannot be known better than
that. Figures are medians, with the least and the greatest sample in brackets. CPU and memory are those of `/proc`,
writes are counted in the audit log. Where ten thousand Jobs are needed, one of them has lived a real life up to there,
and the others are copies of it and of its batch Job and pod, written into etcd under names and UIDs of their own.
";

fn page(figures: &Figures) -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("\n## Budgets\n\n| figure | ours | peer | ratio | budget | |\n| --- | --- | --- | --- | --- | --- |\n");
    for (budget, figure) in budgeted(figures) {
        let row = Row::of(budget, figure);
        let peer = figure.and_then(|figure| figure.peer.as_ref());
        let peer = peer
            .map(|peer| format!("{} ({})", row.peer, peer.name))
            .unwrap_or_default();
        let verdict = if row.verdict == "not met" {
            "**not met**"
        } else {
            row.verdict
        };
        let cells = [budget.what, &row.ours, &peer, &row.ratio, &row.budget, verdict];
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let missed = budgeted(figures).filter(|(budget, figure)| figure.is_some_and(|f| !budget.bound.holds(f)));
    let missed: Vec<_> = missed.map(|(budget, _)| budget).collect();
    if !missed.is_empty() {
        text.push_str("\n### What was not met, and why\n\n");
        for budget in missed {
            let why = match budget.bounded_by {
                "" => "not explained yet",
                why => why,
            };
            let _ = writeln!(text, "- *{}* (from: {}): {why}.", budget.what, budget.source);
        }
    }
    let _ = write!(text, "\n{METHOD}");
    for (name, measurement) in &figures.0 {
        let _ = write!(text, "\n{}", section(name, measurement));
    }
    text
}

fn section(name: &str, measurement: &Measurement) -> String {
    let mut text = format!("## {name}\n\n");
    let about = Name::of(name).map(Name::about).unwrap_or_default();
    let _ = writeln!(text, "{about}\n\n{}\n", setting(measurement));
    if !measurement.figures.is_empty() {
        text.push_str("| figure | unit | ours | peer | noise |\n| --- | --- | --- | --- | --- |\n");
    }
    for figure in &measurement.figures {
        let peer = figure.peer.as_ref();
        let peer = peer
            .map(|peer| format!("{} ({})", spread(&peer.spread), peer.name))
            .unwrap_or_default();
        let noise = figure
            .noise
            .map(|noise| format!("{noise:.2}"))
            .unwrap_or_default();
        let cells = [&figure.what, &figure.unit, &spread(&figure.ours), &peer, &noise];
        let _ = writeln!(text, "| {} |", cells.map(String::as_str).join(" | "));
    }
    for curve in &measurement.curves {
        let _ = writeln!(text, "\n![{}]({})", curve.what, plot::file(curve));
    }
    text
}

fn setting(measurement: &Measurement) -> String {
    let Setting {
        processor,
        cores,
        memory_gib,
        kernel,
        kubernetes,
        profile,
        revision,
        at_most,
    } = &measurement.setting;
    let shrunk = at_most.map(|jobs| format!(" **At most {jobs} Jobs: a trial, not the full size.**"));
    format!(
        "Taken {} in {} s at {revision}, profile `{profile}`, Kubernetes {kubernetes}; {cores} × {processor}, \
         {memory_gib} GiB, Linux {kernel}.{}",
        measurement.taken,
        measurement.seconds,
        shrunk.unwrap_or_default()
    )
}

fn spread(spread: &Spread) -> String {
    if spread.low == spread.high {
        number(spread.median)
    } else {
        format!(
            "{} [{}–{}]",
            number(spread.median),
            number(spread.low),
            number(spread.high)
        )
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    format!("{} {unit}", number(value)).trim_end().to_owned()
}

/// Three figures count.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budgets;
    use crate::figures::Peer;

    fn folder() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference"))
    }

    #[test]
    fn the_page_of_speed_and_size_is_what_its_figures_say() {
        let figures = Figures::read(&folder().join(FIGURES)).unwrap();
        if std::env::var_os("AYATORI_TEST_BLESS").is_some() {
            publish(&figures, folder()).unwrap();
        }
        for (name, text) in pages(&figures) {
            let kept = std::fs::read_to_string(folder().join(&name)).unwrap_or_default();
            assert!(
                kept == text,
                "docs/reference/{name} is not what {FIGURES} says:\n\
                 AYATORI_TEST_BLESS=1 cargo test -p ayatori-e2e --bin bench"
            );
        }
    }

    #[test]
    fn a_budget_that_is_not_met_says_why_on_the_page() {
        let spread = Spread::one(1.0);
        let figure = Figure {
            what: budgets::THROUGHPUT_LIFTED.to_owned(),
            unit: "Jobs/s".to_owned(),
            ours: spread,
            peer: Some(Peer {
                name: "native".to_owned(),
                spread: Spread::one(4.0),
            }),
            noise: None,
        };
        let measurement = Measurement {
            taken: String::new(),
            seconds: 0.0,
            setting: Setting {
                processor: String::new(),
                cores: 2,
                memory_gib: 1,
                kernel: String::new(),
                kubernetes: String::new(),
                profile: String::new(),
                revision: String::new(),
                at_most: Some(5),
            },
            figures: vec![figure],
            curves: Vec::new(),
        };
        let page = page(&Figures([("throughput".to_owned(), measurement)].into()));
        assert!(
            page.contains("| 1 Jobs/s | 4 Jobs/s (native) | 0.25 | ≥ 0.55 × | **not met** |"),
            "{page}"
        );
        assert!(page.contains("the API server's CPU"), "{page}");
        assert!(page.contains("At most 5 Jobs: a trial"), "{page}");
    }

    #[test]
    fn three_figures_of_a_number_are_shown() {
        assert_eq!(
            [123.4, 12.34, 1.234, 0.5, 3.0].map(number),
            ["123", "12.3", "1.23", "0.5", "3"]
        );
    }
}

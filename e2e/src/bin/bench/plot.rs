//! A curve as an SVG that is readable on light and on dark pages.

use std::fmt::Write;

use crate::figures::Curve;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 44.0;
/// How many marks the upright axis has.
const MARKS: u32 = 4;
const COLOURS: [&str; 4] = ["#2563eb", "#d97706", "#059669", "#9333ea"];

/// The file of a curve's plot.
pub(crate) fn file(curve: &Curve) -> String {
    let words: Vec<String> = curve
        .what
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    format!("performance-{}.svg", words.join("-"))
}

/// The plot: both axes begin at zero.
pub(crate) fn svg(curve: &Curve) -> String {
    let points = || curve.lines.values().flatten();
    let widest = points().map(|(jobs, _)| f64::from(*jobs)).fold(1.0, f64::max);
    let highest = rounded_up(points().map(|(_, value)| *value).fold(0.0, f64::max));
    let x = |jobs: f64| LEFT + jobs / widest * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / highest * (HEIGHT - TOP - BOTTOM);

    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"#808080\">\n<title>{what}</title>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{what} ({unit})</text>\n",
        what = curve.what,
        unit = curve.unit
    );
    for mark in 0..=MARKS {
        let value = highest * f64::from(mark) / f64::from(MARKS);
        let at = y(value);
        let (right, before) = (WIDTH - RIGHT, LEFT - 8.0);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#808080\" \
             stroke-opacity=\"0.3\"/>\n<text x=\"{before}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            at + 4.0
        );
    }
    let mut sizes: Vec<u32> = points().map(|(jobs, _)| *jobs).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for jobs in sizes {
        let (at, below) = (x(f64::from(jobs)), HEIGHT - BOTTOM + 18.0);
        let _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{jobs}</text>"
        );
    }
    let (middle, bottom) = (LEFT + (WIDTH - LEFT - RIGHT) / 2.0, HEIGHT - 8.0);
    let _ = writeln!(
        text,
        "<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">Jobs</text>"
    );
    for (index, (name, line)) in curve.lines.iter().enumerate() {
        let colour = COLOURS.get(index % COLOURS.len()).copied().unwrap_or_default();
        let places: Vec<(f64, f64)> = line
            .iter()
            .map(|(jobs, value)| (x(f64::from(*jobs)), y(*value)))
            .collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in &places {
            let _ = writeln!(
                text,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
        let (beside, at) = (WIDTH - RIGHT + 12.0, TOP + 18.0 * (index as f64 + 1.0));
        let _ = writeln!(
            text,
            "<text x=\"{beside}\" y=\"{at}\" fill=\"{colour}\">{name}</text>"
        );
    }
    text.push_str("</svg>\n");
    text
}

/// The next 1, 2, 4 or 8 times a power of ten.
fn rounded_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(f64::MIN_POSITIVE).log10().floor());
    let steps = [1.0, 2.0, 4.0, 8.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= value).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_a_line_and_its_points_for_each_name() {
        let curve = Curve {
            what: "Memory, live".to_owned(),
            unit: "MiB".to_owned(),
            lines: [("adapter".to_owned(), vec![(1000, 30.0), (2000, 35.0)])].into(),
        };
        assert_eq!(file(&curve), "performance-memory-live.svg");
        let svg = svg(&curve);
        assert_eq!(svg.matches("<polyline").count(), 1);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains(">40<"), "the axis ends at 40: {svg}");
    }
}

//! Progress of long work: a bar on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often a plain log hears that the work still goes on.
const PLAIN_INTERVAL: Duration = Duration::from_secs(30);

/// One piece of long work.
pub(crate) struct Progress {
    title: String,
    bar: Option<ProgressBar>,
    started: Instant,
    last_line: Instant,
    position: u64,
    total: u64,
}

impl Progress {
    /// Work of `total` steps; 0 where their number is not known.
    pub(crate) fn start(title: impl Into<String>, total: u64) -> Progress {
        let title = title.into();
        let bar = std::io::stderr().is_terminal().then(|| bar(&title, total));
        if bar.is_none() {
            eprintln!("{title} …");
        }
        let started = Instant::now();
        Progress {
            title,
            bar,
            started,
            last_line: started,
            position: 0,
            total,
        }
    }

    /// One step done; `message` says on what the work is now.
    pub(crate) fn step(&mut self, message: &str) {
        self.position += 1;
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.position.min(self.total.max(1)));
                bar.set_message(message.to_owned());
            }
            None if self.last_line.elapsed() >= PLAIN_INTERVAL => {
                self.last_line = Instant::now();
                let of = if self.total > 0 {
                    format!(" of {}", self.total)
                } else {
                    String::new()
                };
                eprintln!("{}: {}{of}, {message}", self.title, self.position);
            }
            None => {}
        }
    }

    /// The work is done.
    pub(crate) fn finish(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!(
            "{}: done in {:.1} s",
            self.title,
            self.started.elapsed().as_secs_f64()
        );
    }
}

fn bar(title: &str, total: u64) -> ProgressBar {
    let template = if total > 0 {
        "{prefix} [{bar:30}] {percent}% {wide_msg}"
    } else {
        "{spinner} {prefix} {wide_msg}"
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(total)
        .with_style(style)
        .with_prefix(title.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

//! Logs, to standard error.

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// Starts logging to standard error.
pub fn init_logs(format: LogFormat, level: &str) -> anyhow::Result<()> {
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter(level)?)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Json => logs.json().flatten_event(true).with_span_list(false).try_init(),
        LogFormat::Text => logs.try_init(),
    }
    .map_err(|error| anyhow::anyhow!("logging could not be started: {error}"))
}

/// What is never logged: kube's client writes down bodies that tell of an error or that it cannot read, whole, and they
/// may echo an object with everything in it; h2 writes down headers, and keys are among them.
const SILENT: [&str; 2] = ["kube_client=off", "h2=off"];

/// Its span around each reconcile names the object that ours names, and is made for each that waits. Whoever asks for it
/// by name gets it.
const TOLD_ALREADY: &str = "kube_runtime=warn";

/// What the caller wants to see, without what is never logged.
fn filter(level: &str) -> anyhow::Result<EnvFilter> {
    let asked = level.split(',').filter(|directive| {
        !["kube_client", "h2"]
            .iter()
            .any(|c| directive.trim().starts_with(c))
    });
    let directives: Vec<_> = [TOLD_ALREADY].into_iter().chain(asked).chain(SILENT).collect();
    EnvFilter::try_new(directives.join(",")).with_context(|| format!("--log-level {level:?} is not a filter"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_hold_objects_or_keys_is_never_written_whatever_the_level() {
        for level in [
            "info",
            "trace",
            "kube_client=trace",
            "kube_client::client=debug,info",
            "h2::codec=trace,info",
        ] {
            let filter = filter(level).unwrap().to_string();
            let client: Vec<_> = filter
                .split(',')
                .filter(|d| d.starts_with("kube_client") || d.starts_with("h2"))
                .collect();
            assert_eq!(client.len(), SILENT.len(), "{level}: {filter}");
            assert!(SILENT.iter().all(|off| client.contains(off)), "{level}: {filter}");
        }
        assert!(filter("no=such=level").is_err());
    }
}

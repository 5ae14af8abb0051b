//! Starts in sandboxes, by what their containers printed. Read from dockerd's own files, which a restart of it leaves
//! as they are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_core::names::JOB_UID_LABEL;
use ayatori_e2e::witness::MARK;
use serde_json::Value;
use tokio::task::JoinHandle;

/// How often the files are read. A sandbox is left alone for seconds after its end.
const INTERVAL: Duration = Duration::from_millis(100);

/// Reads along.
pub(crate) struct Starts {
    containers: Arc<Mutex<BTreeMap<String, Container>>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Container {
    /// The UID of the Job it was made for.
    job: String,
    /// How far its log was read.
    length: u64,
    starts: u32,
}

impl Starts {
    /// Begins to read what the dockerd of this cluster keeps.
    pub(crate) fn watch(cluster: &Path) -> anyhow::Result<Starts> {
        let folder = cluster.join("docker/containers");
        ensure!(folder.is_dir(), "{} is not there", folder.display());
        let containers = Arc::<Mutex<BTreeMap<String, Container>>>::default();
        let task = tokio::spawn({
            let containers = containers.clone();
            async move {
                let mut interval = tokio::time::interval(INTERVAL);
                loop {
                    interval.tick().await;
                    let mut containers = containers.lock().unwrap_or_else(PoisonError::into_inner);
                    look(&folder, &mut containers);
                }
            }
        });
        Ok(Starts { containers, task })
    }

    /// For the Job of this UID: how many sandboxes there were, and how often the command started in them.
    pub(crate) fn of(&self, uid: &str) -> (usize, u32) {
        let containers = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
        let of_job = containers.values().filter(|container| container.job == uid);
        of_job.fold((0, 0), |(count, starts), container| {
            (count + 1, starts + container.starts)
        })
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whatever cannot be read now is read next time, or was deleted.
fn look(folder: &Path, containers: &mut BTreeMap<String, Container>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let id = entry.file_name().to_string_lossy().into_owned();
        let known = match containers.get_mut(&id) {
            Some(known) => known,
            None => match job_of(&entry.path()) {
                Ok(job) => containers.entry(id.clone()).or_insert(Container {
                    job,
                    ..Container::default()
                }),
                Err(_) => continue,
            },
        };
        let log = entry.path().join(format!("{id}-json.log"));
        let length = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
        if length != known.length
            && let Ok(starts) = marks(&log)
        {
            known.length = length;
            known.starts = starts;
        }
    }
}

fn job_of(container: &Path) -> anyhow::Result<String> {
    let text = std::fs::read(container.join("config.v2.json"))?;
    let config: Value = serde_json::from_slice(&text)?;
    let labels = config.pointer("/Config/Labels").context("no labels yet")?;
    let job = labels.get(JOB_UID_LABEL).and_then(Value::as_str);
    Ok(job.unwrap_or_default().to_owned())
}

fn marks(log: &PathBuf) -> anyhow::Result<u32> {
    let text = std::fs::read_to_string(log)?;
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let marks = lines.filter(|line| {
        line.get("log")
            .and_then(Value::as_str)
            .is_some_and(|text| text.trim_end() == MARK)
    });
    Ok(u32::try_from(marks.count())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_a_line_of_its_own_in_a_log_and_counted_by_job() {
        let folder = tempfile::tempdir().unwrap();
        let mut seen = BTreeMap::new();
        let container = folder.path().join("abc");
        std::fs::create_dir(&container).unwrap();
        look(folder.path(), &mut seen);
        assert!(seen.is_empty(), "it says nothing of itself yet");
        let config = serde_json::json!({"Config": {"Labels": {JOB_UID_LABEL: "uid"}}});
        std::fs::write(container.join("config.v2.json"), config.to_string()).unwrap();
        let line = |text: &str| serde_json::json!({"log": format!("{text}\n"), "stream": "stdout"});
        let log = container.join("abc-json.log");
        std::fs::write(&log, format!("{}\n", line("something else"))).unwrap();
        look(folder.path(), &mut seen);
        assert_eq!((seen["abc"].job.as_str(), seen["abc"].starts), ("uid", 0));
        let both = format!("{}\n{}\n{}\n", line("something else"), line(MARK), line(MARK));
        std::fs::write(&log, both).unwrap();
        look(folder.path(), &mut seen);
        assert_eq!(seen["abc"].starts, 2);
        std::fs::remove_dir_all(&container).unwrap();
        look(folder.path(), &mut seen);
        assert_eq!(seen["abc"].starts, 2, "what was seen is not forgotten");
    }
}

//! What the API server was asked, from its own audit log.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ayatori_core::names::GROUP;
use serde::Deserialize;

/// One request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    request_received_timestamp: String,
    verb: String,
    /// Who asked.
    pub user: User,
    #[serde(default)]
    object_ref: Object,
    response_status: Option<Status>,
}

/// Who asked.
#[derive(Debug, Deserialize)]
pub struct User {
    /// As the API server knows them.
    pub username: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    resource: String,
    namespace: String,
    name: String,
    api_group: String,
    subresource: String,
}

#[derive(Debug, Deserialize)]
struct Status {
    code: Option<u16>,
}

impl Entry {
    fn code(&self) -> u16 {
        self.response_status
            .as_ref()
            .and_then(|s| s.code)
            .unwrap_or_default()
    }

    /// Whether it creates our Job of this name.
    pub fn creates_job(&self, name: &str) -> bool {
        let Object {
            resource, api_group, ..
        } = &self.object_ref;
        self.verb == "create" && resource == "jobs" && api_group == GROUP && self.object_ref.name == name
    }

    /// Whether it reads the Secret of this name, or all.
    pub fn reads_secret(&self, name: &str) -> bool {
        let Object {
            resource, name: of, ..
        } = &self.object_ref;
        let reads = ["get", "list", "watch"].contains(&self.verb.as_str());
        reads && resource == "secrets" && (of.is_empty() || of == name)
    }

    /// In words such as `patch jobs/status execution.ayatori.ddupan.top -> 200`.
    pub fn words(&self) -> String {
        let Object {
            resource,
            api_group,
            subresource,
            ..
        } = &self.object_ref;
        let slash = if subresource.is_empty() { "" } else { "/" };
        let (verb, code) = (&self.verb, self.code());
        format!("{verb} {resource}{slash}{subresource} {api_group} -> {code}")
    }
}

/// What was asked about a test's namespace or class, in order, without Events.
pub fn requests_about(namespace: &str, class: &str) -> anyhow::Result<Vec<Entry>> {
    let folder =
        std::env::var_os("AYATORI_CLUSTER").context("AYATORI_CLUSTER is not set: run `cargo xtask test`")?;
    let lines = lines_about(&PathBuf::from(folder).join("logs"), namespace)?;
    // A last line may be half written.
    let entries = lines
        .iter()
        .filter_map(|line| serde_json::from_str::<Entry>(line).ok());
    let mut requests: Vec<_> = entries
        .filter(|entry| {
            let object = &entry.object_ref;
            (object.namespace == namespace || object.name == class) && object.resource != "events"
        })
        .collect();
    requests.sort_by(|a, b| a.request_received_timestamp.cmp(&b.request_received_timestamp));
    Ok(requests)
}

/// The lines of the log that hold a word. Reads again where the API server has begun a new file meanwhile: it renames
/// the full one and deletes the oldest.
fn lines_about(logs: &Path, word: &str) -> anyhow::Result<Vec<String>> {
    loop {
        let files = files_in(logs)?;
        let lines = files
            .iter()
            .map(|file| {
                let text = std::fs::read_to_string(file)?;
                let lines = text.lines().filter(|line| line.contains(word));
                Ok(lines.map(str::to_owned).collect::<Vec<_>>())
            })
            .collect::<std::io::Result<Vec<_>>>();
        if files_in(logs)? == files {
            let lines = lines.with_context(|| format!("reading the audit log in {}", logs.display()))?;
            return Ok(lines.concat());
        }
    }
}

fn files_in(logs: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let files = std::fs::read_dir(logs).with_context(|| format!("reading {}", logs.display()))?;
    let paths = files.filter_map(|f| f.ok().map(|f| f.path()));
    let is_audit = |f: &PathBuf| {
        f.file_name()
            .is_some_and(|n| n.as_encoded_bytes().starts_with(b"audit"))
    };
    Ok(paths.filter(is_audit).collect())
}

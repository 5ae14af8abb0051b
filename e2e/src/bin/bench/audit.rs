//! Requests by those whose requests are counted, from the API server's own log.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

/// The log.
pub(crate) struct Audit {
    file: PathBuf,
}

/// A place in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

/// One request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    pub(crate) verb: String,
    user: User,
    #[serde(default)]
    pub(crate) object_ref: Object,
    request_received_timestamp: String,
    #[serde(default)]
    response_status: Status,
}

#[derive(Clone, Debug, Deserialize)]
struct User {
    username: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Object {
    pub(crate) resource: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) api_group: String,
    pub(crate) subresource: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

impl Audit {
    pub(crate) fn of(file: &Path) -> Self {
        Self {
            file: file.to_path_buf(),
        }
    }

    /// Where the log ends now.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.file.metadata().map_or(0, |file| file.len()))
    }

    /// What was asked since, in the order in which it arrived.
    pub(crate) fn since(&self, Mark(from): Mark) -> anyhow::Result<Vec<Request>> {
        let read = || -> std::io::Result<String> {
            let mut file = std::fs::File::open(&self.file)?;
            file.seek(SeekFrom::Start(from))?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = read().with_context(|| format!("reading {}", self.file.display()))?;
        // The last line may be half written.
        let mut requests: Vec<Request> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        requests.sort_by(|a, b| a.request_received_timestamp.cmp(&b.request_received_timestamp));
        Ok(requests)
    }
}

impl Request {
    /// Whether one of the adapters asked.
    pub(crate) fn is_adapters(&self) -> bool {
        let account = self
            .user
            .username
            .strip_prefix("system:serviceaccount:ayatori-system:");
        account.is_some()
    }

    /// Whether it was meant to change something, renewed leases apart.
    pub(crate) fn is_write(&self) -> bool {
        let reads = ["get", "list", "watch"].contains(&self.verb.as_str());
        !reads && !self.is_lease()
    }

    /// Whether it asked for something once, leases apart.
    pub(crate) fn is_read(&self) -> bool {
        ["get", "list"].contains(&self.verb.as_str()) && !self.is_lease()
    }

    pub(crate) fn is_event(&self) -> bool {
        self.object_ref.resource == "events"
    }

    /// Whether it renews or takes a lease.
    pub(crate) fn is_lease(&self) -> bool {
        self.object_ref.resource == "leases"
    }

    /// In words such as `patch jobs/status execution.ayatori.ddupan.top 200`.
    pub(crate) fn words(&self) -> String {
        let Object {
            resource,
            api_group,
            subresource,
            ..
        } = &self.object_ref;
        let slash = if subresource.is_empty() { "" } else { "/" };
        let (verb, code) = (&self.verb, self.response_status.code);
        format!("{verb} {resource}{slash}{subresource} {api_group} {code}")
    }
}

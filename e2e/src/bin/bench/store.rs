//! etcd itself, for objects in numbers that nobody wants to wait for.

use anyhow::{Context, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::{Certificate, Client, Identity};
use serde_json::{Value, json};

use crate::stage;

/// How many objects are written at a time. Each by itself: the API server relies on no two having one revision.
const AT_A_TIME: usize = 32;
/// What stands before the API server's keys.
const ROOT: &str = "/registry/";

/// A client of etcd's gateway.
pub(crate) struct Store {
    client: Client,
    endpoint: String,
}

/// An object, and where the API server keeps it.
pub(crate) struct Entry {
    /// Such as `jobs/NAMESPACE/NAME`.
    pub(crate) key: String,
    pub(crate) object: String,
}

impl Store {
    pub(crate) fn of(store: &stage::Store) -> anyhow::Result<Self> {
        let read = |file| std::fs::read(file).with_context(|| format!("reading {file:?}"));
        let identity = [read(&store.key)?, read(&store.certificate)?].concat();
        let client = Client::builder()
            .no_proxy()
            .tls_certs_only([Certificate::from_pem(&read(&store.authority)?)?])
            .identity(Identity::from_pem(&identity)?)
            .build()?;
        Ok(Self {
            client,
            endpoint: store.endpoint.clone(),
        })
    }

    /// Writes all of them, about in this order.
    pub(crate) async fn put(&self, entries: impl IntoIterator<Item = Entry>) -> anyhow::Result<()> {
        stream::iter(entries)
            .map(Ok)
            .try_for_each_concurrent(AT_A_TIME, async |entry| {
                let key = BASE64_STANDARD.encode(format!("{ROOT}{}", entry.key));
                let value = BASE64_STANDARD.encode(entry.object);
                self.ask("put", json!({"key": key, "value": value})).await
            })
            .await
    }

    /// Removes everything whose key begins like this.
    pub(crate) async fn remove(&self, prefix: &str) -> anyhow::Result<()> {
        let begin = format!("{ROOT}{prefix}");
        // All keys from the prefix up to the next text of its length.
        let mut end = begin.clone().into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let range = json!({
            "key": BASE64_STANDARD.encode(begin),
            "rangeEnd": BASE64_STANDARD.encode(end),
        });
        self.ask("deleterange", range).await
    }

    async fn ask(&self, what: &str, body: Value) -> anyhow::Result<()> {
        let request = self
            .client
            .post(format!("{}/v3/kv/{what}", self.endpoint))
            .json(&body);
        let answer = request
            .send()
            .await
            .with_context(|| format!("asking etcd for {what}"))?;
        let (status, text) = (answer.status(), answer.text().await?);
        ensure!(status.is_success(), "etcd answered {what} with {status}: {text}");
        Ok(())
    }
}

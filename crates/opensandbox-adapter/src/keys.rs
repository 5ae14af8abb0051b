//! The API keys of servers, as their Secrets hold them now.
//!
//! A Secret is watched by its name, and only its metadata: what it holds is read when that shows a change, and only
//! the one key is kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ayatori_controller::backoff::WatchBackoff;
use ayatori_controller::references::{References, SecretScope};
use ayatori_core::execution::Why;
use ayatori_core::parameters::SecretKeyReference;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self as watching, Event, watcher};
use kube::{Api, Client};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// How long a question waits for a key that was never read yet.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long after a failure a Secret is read again.
const AGAIN: Duration = Duration::from_secs(5);

/// A key, and which reading of its Secret it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) secret: Arc<SecretString>,
    /// Another one whenever the key is another.
    pub(crate) version: u64,
}

/// What is known of a key: nothing yet, the key, or why there is none.
type Known = Option<Result<Key, Why>>;

/// All keys that anybody needs.
pub(crate) struct Keys {
    client: Client,
    references: Arc<References>,
    watched: Mutex<HashMap<SecretKeyReference, Weak<Watched>>>,
    changes: mpsc::UnboundedSender<()>,
}

/// A key that is watched for as long as anybody holds this.
pub(crate) struct Watched {
    reference: SecretKeyReference,
    known: watch::Receiver<Known>,
    task: JoinHandle<()>,
}

impl Watched {
    /// The key, as it is now. The error is `SecretNotFound`, `SecretKeyNotFound`, `ReferenceForbidden`,
    /// `InvalidCredentials` or `BackendUnavailable`.
    pub(crate) async fn get(&self) -> Result<Key, Why> {
        let mut known = self.known.clone();
        let read = tokio::time::timeout(PATIENCE, known.wait_for(Option::is_some)).await;
        match read {
            Ok(Ok(known)) => match &*known {
                Some(key) => key.clone(),
                None => Err(unread(&self.reference)),
            },
            Ok(Err(_)) | Err(_) => Err(unread(&self.reference)),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Keys {
    /// No keys yet; `changes` is told when one becomes another.
    pub(crate) fn new(client: Client, changes: mpsc::UnboundedSender<()>) -> Self {
        Self {
            references: Arc::new(References::new(client.clone(), SecretScope::Everywhere)),
            client,
            watched: Mutex::default(),
            changes,
        }
    }

    /// The key that this refers to: one watch, however many need it.
    pub(crate) fn of(&self, reference: &SecretKeyReference) -> Arc<Watched> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watched) = watched.get(reference).and_then(Weak::upgrade) {
            return watched;
        }
        watched.retain(|_, watched| watched.strong_count() > 0);
        let (sender, known) = watch::channel(None);
        let task = tokio::spawn(follow(
            self.client.clone(),
            self.references.clone(),
            reference.clone(),
            sender,
            self.changes.clone(),
        ));
        let new = Arc::new(Watched {
            reference: reference.clone(),
            known,
            task,
        });
        watched.insert(reference.clone(), Arc::downgrade(&new));
        new
    }
}

fn unread(reference: &SecretKeyReference) -> Why {
    let SecretKeyReference { namespace, name, .. } = reference;
    Why::new(
        "BackendUnavailable",
        format!("Secret {name:?} in namespace {namespace}, which holds the API key, was not read yet"),
    )
}

/// Reads the key whenever its Secret changes, and again and again while there is none.
async fn follow(
    client: Client,
    references: Arc<References>,
    reference: SecretKeyReference,
    known: watch::Sender<Known>,
    changes: mpsc::UnboundedSender<()>,
) {
    let secrets = Api::<PartialObjectMeta<Secret>>::namespaced(client, &reference.namespace);
    let by_name = watching::Config::default().fields(&format!("metadata.name={}", reference.name));
    let mut events = watcher(secrets, by_name).backoff(WatchBackoff::default()).boxed();
    let mut watched = false;
    loop {
        let found = read(&references, &reference).await;
        let lost = found.is_err();
        // That the Secret cannot be read now does not make the key wrong.
        let changed = known.send_if_modified(|known| accept(known, found));
        if changed {
            // Fails only while the process ends.
            let _ = changes.send(());
        }
        let blind = lost || !watched;
        let something_new = async {
            loop {
                match events.next().await {
                    Some(Ok(Event::Init | Event::InitApply(_))) => {}
                    Some(Ok(Event::Apply(_) | Event::Delete(_) | Event::InitDone)) => {
                        watched = true;
                        break;
                    }
                    Some(Err(error)) => {
                        watched = false;
                        tracing::warn!(
                            namespace = reference.namespace,
                            name = reference.name,
                            error = watch_error(&error),
                            "the watch of an API key failed and is started again"
                        );
                    }
                    None => std::future::pending().await,
                }
            }
        };
        if blind {
            // A Secret that may not be watched is read all the same.
            let _ = tokio::time::timeout(AGAIN, something_new).await;
        } else {
            something_new.await;
        }
    }
}

/// Takes over what was read; whether that is another key, or another reason for having none.
fn accept(known: &mut Known, found: Result<Result<SecretString, Why>, Why>) -> bool {
    let same = match (&*known, &found) {
        (Some(Ok(old)), Ok(Ok(new))) => old.secret.expose_secret() == new.expose_secret(),
        (Some(Ok(_)), Err(_)) => true,
        (Some(Err(old)), Ok(Err(new)) | Err(new)) => old == new,
        (Some(Ok(_)), Ok(Err(_))) | (Some(Err(_)), Ok(Ok(_))) | (None, _) => false,
    };
    if !same {
        let version = next_version();
        *known = Some(found.and_then(|key| key).map(|key| Key {
            secret: Arc::new(key),
            version,
        }));
    }
    !same
}

fn next_version() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The outer error says that the Secret could not be read at present.
async fn read(
    references: &References,
    reference: &SecretKeyReference,
) -> Result<Result<SecretString, Why>, Why> {
    let SecretKeyReference { namespace, name, key } = reference;
    let found = references.secret_key(namespace, name, key).await?;
    Ok(found.and_then(|value| parse(&value, reference)))
}

/// A file often ends in a newline, and so does a key that was made of it.
fn parse(value: &SecretSlice<u8>, reference: &SecretKeyReference) -> Result<SecretString, Why> {
    let SecretKeyReference { namespace, name, key } = reference;
    let invalid = |what: &str| {
        Err(Why::new(
            "InvalidCredentials",
            format!("key {key:?} of Secret {name:?} in namespace {namespace} {what}"),
        ))
    };
    let Ok(text) = std::str::from_utf8(value.expose_secret()) else {
        return invalid("is not UTF-8");
    };
    match text.trim_end() {
        "" => invalid("is empty"),
        text if text.chars().any(|c| !c.is_ascii() || c.is_ascii_control()) => {
            invalid("holds characters that no HTTP header may; store the API key alone, without line breaks")
        }
        text => Ok(SecretString::from(text)),
    }
}

fn watch_error(error: &watching::Error) -> String {
    ayatori_core::conditions::clean(&error.to_string(), 300)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference() -> SecretKeyReference {
        SecretKeyReference {
            namespace: "ayatori-system".to_owned(),
            name: "opensandbox-api".to_owned(),
            key: "api-key".to_owned(),
        }
    }

    #[test]
    fn a_key_may_end_in_whitespace_and_hold_nothing_that_a_header_may_not() {
        for (value, expected) in [
            (&b"s3cret"[..], Ok("s3cret")),
            (b"s3cret\n", Ok("s3cret")),
            (b"s3cret \r\n\n", Ok("s3cret")),
            (b"", Err("is empty")),
            (b" \n", Err("is empty")),
            (b"s3\ncret", Err("line breaks")),
            (b"s3\0cret", Err("line breaks")),
            ("s3crét".as_bytes(), Err("line breaks")),
            (b"s3\xff", Err("is not UTF-8")),
        ] {
            let parsed = parse(&SecretSlice::from(value.to_vec()), &reference());
            match (parsed, expected) {
                (Ok(key), Ok(expected)) => assert_eq!(key.expose_secret(), expected),
                (Err(why), Err(expected)) => {
                    assert_eq!(why.reason, "InvalidCredentials");
                    assert!(why.message.contains(expected), "{}", why.message);
                    assert!(!why.message.contains("s3"), "{}", why.message);
                }
                (parsed, expected) => panic!("{parsed:?} is not {expected:?}"),
            }
        }
    }

    #[test]
    fn a_key_that_cannot_be_read_again_is_kept_and_one_that_is_gone_is_not() {
        let key = |text: &str| Ok(Ok(SecretString::from(text)));
        let gone = || Ok(Err(Why::new("SecretNotFound", "gone")));
        let away = || Err(Why::new("BackendUnavailable", "away"));
        let mut known = None;
        assert!(accept(&mut known, away()));
        assert!(!accept(&mut known, away()));
        assert!(accept(&mut known, key("a")));
        assert!(!accept(&mut known, key("a")));
        assert!(!accept(&mut known, away()));
        assert!(matches!(&known, Some(Ok(_))));
        assert!(accept(&mut known, key("b")));
        assert!(accept(&mut known, gone()));
        assert!(matches!(&known, Some(Err(_))));
    }
}

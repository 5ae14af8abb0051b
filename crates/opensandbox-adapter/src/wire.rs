//! What goes over the wire, and nothing else of the OpenSandbox API.
//!
//! Writing is exact: a create request holds what the server reads. Reading is lenient: the lifecycle of a
//! sandbox is text from outside, words to come are kept as they are, a field that is missing, null or of
//! another type is absent. Only what an answer is for must be there: the id of a sandbox, and whether a list
//! has another page.

use std::collections::BTreeMap;
use std::io::{self, Write};

use jiff::Timestamp;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A request for a sandbox. Values of the environment, the entrypoint (arguments may hold values of the
/// environment) and the credentials of the image are zeroized when it is dropped and never printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateSandbox {
    /// What the sandbox is made of.
    pub image: Image,
    /// What it runs.
    #[serde(serialize_with = "exposed_list")]
    pub entrypoint: Vec<SecretString>,
    /// Hard limits, in the server's own grammar.
    pub resource_limits: BTreeMap<String, String>,
    /// Reservations, for backends that are known to honour them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resource_requests: BTreeMap<String, String>,
    /// Environment of the entrypoint.
    #[serde(serialize_with = "exposed_map")]
    pub env: BTreeMap<String, SecretString>,
    /// Labels that lists can be filtered by.
    pub metadata: BTreeMap<String, String>,
    /// After how many seconds the sandbox is removed, at least 60.
    pub timeout: u64,
    /// What only some runtimes know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extensions: Option<Extensions>,
}

/// An image, with the credentials its registry asks for.
#[derive(Debug, Serialize)]
pub struct Image {
    /// Its reference.
    pub uri: String,
    /// Credentials, where the registry asks for some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<ImageAuth>,
    /// How many other credentials fit the image too: the server takes one, and tries no other.
    #[serde(skip)]
    pub untried: usize,
}

/// Credentials of a registry.
#[derive(Debug, Serialize)]
pub struct ImageAuth {
    /// User.
    #[serde(serialize_with = "exposed")]
    pub username: SecretString,
    /// Password or token.
    #[serde(serialize_with = "exposed")]
    pub password: SecretString,
}

/// Extensions of a create request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Extensions {
    /// The pool to take the sandbox from.
    pub pool_ref: String,
}

/// Shorter pieces of secrets are not looked for in messages: they would be found in any text.
const SHORTEST_HIDDEN: usize = 8;

impl CreateSandbox {
    /// The body of the request, in memory that is zeroized when dropped. It is written once, to a buffer of the
    /// right size: one that grows leaves copies behind.
    pub fn body(&self) -> Zeroizing<Vec<u8>> {
        body(self)
    }

    /// The text without anything in it that is secret here, line by line, should a server quote it.
    pub fn hide_secrets(&self, text: &str) -> String {
        let auth = self.image.auth.iter().flat_map(|a| [&a.username, &a.password]);
        hide_all(text, self.env.values().chain(&self.entrypoint).chain(auth))
    }
}

/// The longest first, or what begins like another one would leave the rest of it.
fn hide_all<'a>(text: &str, secrets: impl Iterator<Item = &'a SecretString>) -> String {
    let mut secrets: Vec<&str> = secrets.map(SecretString::expose_secret).collect();
    secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
        .iter()
        .fold(text.to_owned(), |text, secret| hide(&text, secret))
}

/// A request to the daemon in a sandbox: to run something and not to wait for its end. Values of the environment are
/// zeroized when it is dropped and never printed.
#[derive(Debug, Serialize)]
pub struct RunCommand {
    /// What a shell runs. Daemons log it, and show it to whoever asks.
    pub command: String,
    /// Whether the answer comes at once.
    pub background: bool,
    /// Added to the environment that the sandbox has.
    #[serde(serialize_with = "exposed_map")]
    pub envs: BTreeMap<String, SecretString>,
}

impl RunCommand {
    /// The body of the request, as that of a create request.
    pub fn body(&self) -> Zeroizing<Vec<u8>> {
        body(self)
    }

    /// The text without anything in it that is secret here, line by line, should a server quote it.
    pub fn hide_secrets(&self, text: &str) -> String {
        hide_all(text, self.envs.values())
    }
}

fn body(request: &impl Serialize) -> Zeroizing<Vec<u8>> {
    const REASON: &str = "maps with text as keys, written to memory";
    let mut length = Length(0);
    serde_json::to_writer(&mut length, request).expect(REASON);
    let mut body = Zeroizing::new(Vec::with_capacity(length.0));
    serde_json::to_writer(&mut *body, request).expect(REASON);
    body
}

/// The text without the secret, nor any line of it.
pub(crate) fn hide(text: &str, secret: &str) -> String {
    secret
        .lines()
        .map(str::trim)
        .filter(|line| line.len() >= SHORTEST_HIDDEN)
        .fold(text.to_owned(), |text, line| text.replace(line, "***"))
}

/// Counts what is written.
struct Length(usize);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A secret on its way to the wire: the one place where secrets are exposed to be sent.
struct Exposed<'a>(&'a SecretString);

impl Serialize for Exposed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.expose_secret())
    }
}

fn exposed<S: Serializer>(secret: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    Exposed(secret).serialize(serializer)
}

fn exposed_list<S: Serializer>(secrets: &[SecretString], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(secrets.iter().map(Exposed))
}

fn exposed_map<S: Serializer>(
    secrets: &BTreeMap<String, SecretString>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(secrets.iter().map(|(name, secret)| (name, Exposed(secret))))
}

/// A new expiry.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Renewal {
    pub(crate) expires_at: Timestamp,
}

/// A sandbox, as the server shows it. Text in it is data from outside.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "ShownSandbox")]
pub struct Sandbox {
    /// Name the server gave it.
    pub id: String,
    /// Lifecycle state, in the server's word; empty where it says none.
    pub state: String,
    /// Why it is in that state, as a stable word.
    pub reason: Option<String>,
    /// The same, for people.
    pub message: Option<String>,
    /// Since when it is in that state; for a running one the Docker runtime gives the creation time.
    pub last_transition_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Option<Timestamp>,
    /// When the server removes it; never, if absent.
    pub expires_at: Option<Timestamp>,
    /// Labels given at creation, and labels of the image.
    pub metadata: BTreeMap<String, String>,
}

impl Sandbox {
    /// Whether it carries all these labels.
    pub fn has_labels(&self, labels: &[(&str, &str)]) -> bool {
        labels
            .iter()
            .all(|(key, value)| self.metadata.get(*key).is_some_and(|v| v == value))
    }
}

/// A sandbox as it is written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ShownSandbox {
    id: String,
    #[serde(default)]
    status: Value,
    #[serde(default)]
    created_at: Value,
    #[serde(default)]
    expires_at: Value,
    #[serde(default, deserialize_with = "labels")]
    metadata: BTreeMap<String, String>,
}

impl TryFrom<ShownSandbox> for Sandbox {
    type Error = &'static str;

    fn try_from(shown: ShownSandbox) -> Result<Self, Self::Error> {
        // An id becomes a segment of a path: what would lead elsewhere is none.
        if matches!(shown.id.as_str(), "" | "." | "..") {
            return Err("a sandbox without an id");
        }
        let status = |field| shown.status.get(field).and_then(Value::as_str);
        Ok(Self {
            state: status("state").unwrap_or_default().to_owned(),
            reason: status("reason").map(str::to_owned),
            message: status("message").map(str::to_owned),
            last_transition_at: status("lastTransitionAt").and_then(|time| time.parse().ok()),
            created_at: time(&shown.created_at),
            expires_at: time(&shown.expires_at),
            id: shown.id,
            metadata: shown.metadata,
        })
    }
}

/// The time, if it is one.
fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// The labels that are text; none where there is something else than a map.
fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let Value::Object(labels) = Value::deserialize(deserializer)? else {
        return Ok(BTreeMap::new());
    };
    let text = |(key, value)| match value {
        Value::String(value) => Some((key, value)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
    };
    Ok(labels.into_iter().filter_map(text).collect())
}

/// One page of a list. A page that does not say whether another follows cannot be read.
#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    pub(crate) items: Vec<Sandbox>,
    pub(crate) pagination: Pagination,
}

/// Where a page stands in its list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pagination {
    pub(crate) has_next_page: bool,
}

/// The answer to a renewal.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Renewed {
    pub(crate) expires_at: Timestamp,
}

/// Logs or events of a sandbox. That it names the sandbox tells it from the page of some proxy.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Diagnostics {
    pub(crate) sandbox_id: String,
    pub(crate) content: Option<String>,
}

/// An error in the server's own words: proof that the server, and not something before it, has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerWord {
    /// Its stable code.
    pub(crate) code: String,
    /// Its explanation, uncut and unclean.
    pub(crate) message: String,
}

/// The code under which schema errors go on; the server gives them none.
pub(crate) const INVALID_SCHEMA: &str = "INVALID_SCHEMA";

impl ServerWord {
    /// Reads the body of an error, if it is the server's.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        match (body.get("code"), body.get("detail")) {
            (Some(Value::String(code)), _) if is_code(code) => Some(Self {
                code: code.clone(),
                message: text_of(body.get("message")),
            }),
            (None, Some(Value::Array(errors))) => Self::schema_errors(errors),
            _ => None,
        }
    }

    /// Schema errors echo the request, secrets included, in `input` and `msg`: only the path of the field and
    /// the kind of error are read.
    fn schema_errors(errors: &[Value]) -> Option<Self> {
        let described: Option<Vec<String>> = errors.iter().map(schema_error).collect();
        described.filter(|d| !d.is_empty()).map(|described| Self {
            code: INVALID_SCHEMA.to_owned(),
            message: described.join("; "),
        })
    }
}

/// `body.env.NAME: string_type`.
fn schema_error(error: &Value) -> Option<String> {
    let kind = error.get("type")?.as_str().filter(|kind| is_code(kind))?;
    let segment = |segment: &Value| match segment {
        Value::String(name) => name.clone(),
        Value::Number(index) => index.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => "?".to_owned(),
    };
    let path: Vec<String> = error.get("loc")?.as_array()?.iter().map(segment).collect();
    Some(format!("{}: {kind}", path.join(".")))
}

fn text_of(value: Option<&Value>) -> String {
    value.and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Whether it is a word of an API and not a sentence.
fn is_code(code: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '-');
    (1..=100).contains(&code.len()) && code.chars().all(word)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request() -> CreateSandbox {
        CreateSandbox {
            image: Image {
                uri: "registry.example/app:1".to_owned(),
                auth: Some(ImageAuth {
                    username: "robot-user".into(),
                    password: "canary-password".into(),
                }),
                untried: 1,
            },
            entrypoint: vec!["/bin/sh".into(), "-c".into(), "echo canary-argument".into()],
            resource_limits: BTreeMap::from([("cpu".to_owned(), "500m".to_owned())]),
            resource_requests: BTreeMap::new(),
            env: BTreeMap::from([("TOKEN".to_owned(), "canary-\"env\"\nsecond-line".into())]),
            metadata: BTreeMap::from([("job-uid".to_owned(), "u1".to_owned())]),
            timeout: 3600,
            extensions: None,
        }
    }

    #[test]
    fn a_create_request_is_written_as_the_server_reads_it_into_a_buffer_of_its_size() {
        let mut request = request();
        let body = request.body();
        assert_eq!(body.len(), body.capacity());
        let expected = json!({
            "image": {"uri": "registry.example/app:1",
                      "auth": {"username": "robot-user", "password": "canary-password"}},
            "entrypoint": ["/bin/sh", "-c", "echo canary-argument"],
            "resourceLimits": {"cpu": "500m"},
            "env": {"TOKEN": "canary-\"env\"\nsecond-line"},
            "metadata": {"job-uid": "u1"},
            "timeout": 3600,
        });
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
        request.extensions = Some(Extensions {
            pool_ref: "warm".to_owned(),
        });
        request.image.auth = None;
        let written: Value = serde_json::from_slice(&request.body()).unwrap();
        assert_eq!(written["extensions"], json!({"poolRef": "warm"}));
        assert_eq!(written["image"].get("auth"), None);
    }

    #[test]
    fn a_create_request_does_not_print_its_secrets_and_hides_them_in_text() {
        let printed = format!("{:?} {:#?}", request(), request());
        for secret in ["canary", "robot-user", "second-line"] {
            assert!(!printed.contains(secret), "{printed}");
        }
        let quoted = "漢 bad env: canary-\"env\"\\nsecond-line, password canary-password!";
        assert_eq!(
            request().hide_secrets(quoted),
            "漢 bad env: ***\\n***, password ***!"
        );
    }

    #[test]
    fn whatever_a_server_shows_of_a_sandbox_is_read() {
        let read = |value: Value| serde_json::from_value::<Sandbox>(value);
        let full = read(json!({
            "id": "s1", "image": {"uri": "a"}, "surprise": [1],
            "status": {"state": "Hibernating", "reason": "NEW", "message": "m", "lastTransitionAt": "2026-01-02T03:04:05Z"},
            "createdAt": "2026-01-02T03:04:05.123456+00:00", "expiresAt": "2026-01-02T04:04:05+01:00",
            "metadata": {"a": "b"},
        }))
        .unwrap();
        assert_eq!(
            (full.state.as_str(), full.reason.as_deref()),
            ("Hibernating", Some("NEW"))
        );
        assert_eq!(full.expires_at, "2026-01-02T03:04:05Z".parse().ok());
        assert!(full.has_labels(&[("a", "b")]) && !full.has_labels(&[("a", "b"), ("c", "")]));
        for bare in [
            json!({"id": "s1"}),
            json!({"id": "s1", "status": null, "createdAt": null, "expiresAt": null, "metadata": null}),
            json!({"id": "s1", "status": "Running", "createdAt": 5, "expiresAt": "soon", "metadata": {"a": 1}}),
            json!({"id": "s1", "status": {"state": null, "reason": 7, "lastTransitionAt": "2026"}, "metadata": []}),
        ] {
            let sandbox = read(bare.clone()).unwrap();
            let expected = Sandbox {
                id: "s1".to_owned(),
                state: String::new(),
                reason: None,
                message: None,
                last_transition_at: None,
                created_at: None,
                expires_at: None,
                metadata: BTreeMap::new(),
            };
            assert_eq!(sandbox, expected, "{bare}");
        }
        for nothing in [
            json!({}),
            json!({"id": null}),
            json!({"id": ""}),
            json!({"id": ".."}),
            json!([]),
        ] {
            assert!(read(nothing.clone()).is_err(), "{nothing}");
        }
    }

    #[test]
    fn only_the_servers_own_form_of_an_error_counts_as_its_word() {
        let word = |body: &str| ServerWord::read(body.as_bytes()).map(|w| (w.code, w.message));
        let known = |code: &str, message: &str| Some((code.to_owned(), message.to_owned()));
        for (body, expected) in [
            (r#"{"code":"A::B","message":"why"}"#, known("A::B", "why")),
            (r#"{"code":"A::B","message":null}"#, known("A::B", "")),
            (
                r#"{"detail":[{"type":"string_type","loc":["body","env","漢",0],"msg":"canary","input":"canary"}]}"#,
                known(INVALID_SCHEMA, "body.env.漢.0: string_type"),
            ),
            (r#"{"detail":"Not Found"}"#, None),
            (r#"{"detail":[]}"#, None),
            (r#"{"detail":[{"type":"is canary","loc":[]}]}"#, None),
            (r#"{"code":404,"message":"of a gateway"}"#, None),
            (r#"{"code":"a whole sentence"}"#, None),
            (r#"{"code":""}"#, None),
            (r#"{"message":"no route"}"#, None),
            ("<html>404</html>", None),
            ("Internal Server Error", None),
            (r#"{"code":"A::B","#, None),
            ("", None),
        ] {
            assert_eq!(word(body), expected, "{body}");
        }
    }
}

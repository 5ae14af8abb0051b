//! Why a call to an OpenSandbox server did not do what it was for, sorted by what is known about the request.
//!
//! One question decides everything after a create request: *is it certain that nothing came of it?*
//! [`Failure::is_certain`] says so only where the request was never sent, or the server refused it in its own
//! words. Whatever else goes wrong leaves it open.

use std::error::Error;
use std::io;
use std::time::{Duration, SystemTime};

use ayatori_core::conditions::clean;
use ayatori_core::execution::Why;
use http::{HeaderValue, StatusCode};

use crate::wire::ServerWord;

/// How much of a message of the server goes on: that of a failed pull names the image twice before the cause.
const EXCERPT: usize = 600;

/// A server that asks to be left alone for longer is asked again after this.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Statuses of the 4xx range that say nothing about the request: somebody gave up waiting.
const GAVE_UP: [u16; 2] = [408, 499];

/// What is said of an answer that took too long.
const NOT_IN_TIME: &str = "none came in time";

/// Why a call failed. Text in it is cleaned, cut and free of what was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No connection was made: certainly nothing was sent.
    #[error("cannot connect to {server}: {cause}")]
    NotConnected {
        /// Origin, and the proxy in between.
        server: String,
        /// Root cause.
        cause: String,
    },
    /// The connection was made but could not be trusted: certainly nothing was sent.
    #[error("cannot connect to {server}: TLS: {cause}")]
    Tls {
        /// Origin, and the proxy in between.
        server: String,
        /// Root cause.
        cause: String,
    },
    /// The server refused the request in its own words.
    #[error("the server refused with status {status}, {code}{}", after(": ", .message))]
    Refused {
        /// HTTP status, 4xx, or the 500 in which a refusal of Docker's comes.
        status: u16,
        /// Stable code of the server.
        code: String,
        /// Excerpt of its message.
        message: String,
    },
    /// The key is not accepted, or does not allow this.
    #[error("the API key is not accepted: status {status}{}", after(", ", .code.as_deref().unwrap_or_default()))]
    Unauthorized {
        /// 401 or 403.
        status: u16,
        /// Stable code, where the server itself has answered.
        code: Option<String>,
    },
    /// The server has no room at present (429): it has done nothing.
    #[error("the server has no room at present: status 429{}", after(", ", .code.as_deref().unwrap_or_default()))]
    Busy {
        /// How long it asks to be left alone, at most five minutes.
        retry_after: Option<Duration>,
        /// Stable code, where the server itself has answered.
        code: Option<String>,
    },
    /// A 503 without the server's own words: it, or something before it, takes no more requests. That this
    /// request was not passed on is likely and not certain.
    #[error("the server is overloaded: status 503")]
    Overloaded {
        /// How long it asks to be left alone, at most five minutes.
        retry_after: Option<Duration>,
    },
    /// The image could not be pulled: certainly nothing was created.
    #[error("the image cannot be pulled{}", after(": ", .message))]
    ImagePull {
        /// Excerpt of the server's message.
        message: String,
    },
    /// The server, and nothing before it, says that it has no such sandbox.
    #[error("the server has no such sandbox ({code})")]
    NotFound {
        /// Its stable code.
        code: String,
    },
    /// Whether anything came of the request is not known.
    #[error("no usable answer: {what}")]
    Unanswered {
        /// HTTP status, if there was one.
        status: Option<u16>,
        /// Stable code, where the server itself has answered.
        code: Option<String>,
        /// What was seen.
        what: String,
    },
}

impl Failure {
    /// Why there was no answer that could be read, in one word for metrics.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Failure::NotConnected { .. } => "connect",
            Failure::Tls { .. } => "tls",
            Failure::Unanswered { what, .. } if what == NOT_IN_TIME => "timeout",
            Failure::Unanswered { .. } => "body",
            // With an answer, its status is the word.
            Failure::Refused { .. }
            | Failure::Unauthorized { .. }
            | Failure::Busy { .. }
            | Failure::Overloaded { .. }
            | Failure::ImagePull { .. }
            | Failure::NotFound { .. } => "refused",
        }
    }

    /// No answer that can be used.
    pub(crate) fn unanswered(what: impl Into<String>) -> Self {
        Failure::Unanswered {
            status: None,
            code: None,
            what: what.into(),
        }
    }

    /// An answer that does not hold what it should.
    pub(crate) fn unusable(status: StatusCode, what: &str) -> Self {
        Failure::Unanswered {
            status: Some(status.as_u16()),
            code: None,
            what: format!("status {} with {what}", status.as_u16()),
        }
    }

    /// Whether it is certain that the request has changed nothing and never will.
    pub fn is_certain(&self) -> bool {
        match self {
            Failure::NotConnected { .. } | Failure::Tls { .. } => true,
            Failure::Refused { .. } | Failure::Busy { .. } | Failure::ImagePull { .. } => true,
            // What stands before a server may demand keys of its own.
            Failure::Unauthorized { code, .. } => code.is_some(),
            // Of a request that is about one sandbox. To a create request it is no refusal: something was
            // created, and is gone.
            Failure::NotFound { .. } | Failure::Overloaded { .. } | Failure::Unanswered { .. } => false,
        }
    }

    /// How long the server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Failure::Busy { retry_after, .. } | Failure::Overloaded { retry_after } => *retry_after,
            Failure::NotConnected { .. }
            | Failure::Tls { .. }
            | Failure::Refused { .. }
            | Failure::Unauthorized { .. }
            | Failure::ImagePull { .. }
            | Failure::NotFound { .. }
            | Failure::Unanswered { .. } => None,
        }
    }

    /// Stable reason, for conditions and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Failure::NotConnected { .. } | Failure::Tls { .. } => "BackendUnreachable",
            Failure::Refused { code, .. } if is_quota(code) => "QuotaExceeded",
            Failure::Refused { .. } => "BackendRejected",
            Failure::Unauthorized { status: 401, .. } => "AuthenticationFailed",
            Failure::Unauthorized { .. } => "BackendForbidden",
            Failure::Busy { .. } | Failure::Overloaded { .. } => "BackendAtCapacity",
            Failure::ImagePull { .. } => "ImagePullFailed",
            Failure::NotFound { .. } => "ExecutionNotFound",
            Failure::Unanswered { .. } => "BackendUnavailable",
        }
    }

    /// Reason and message, as they go into a condition.
    pub fn why(&self) -> Why {
        Why::new(self.reason(), self.to_string())
    }
}

/// The text after a separator, or nothing.
fn after(separator: &str, text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!("{separator}{text}")
}

/// An answer that is no success.
pub struct Unsuccessful<'a> {
    /// Its status.
    pub status: StatusCode,
    /// Its `Retry-After`.
    pub retry_after: Option<&'a HeaderValue>,
    /// What it says, by the server or by something in between.
    pub body: &'a [u8],
    /// When it came.
    pub now: SystemTime,
}

impl Unsuccessful<'_> {
    /// Sorts it. `hide` takes out of a message what must not be repeated.
    pub fn failure(&self, hide: impl Fn(&str) -> String) -> Failure {
        let status = self.status.as_u16();
        let word = ServerWord::read(self.body).map(|word| ServerWord {
            // Whatever a server says may be an echo.
            code: hide(&word.code),
            ..word
        });
        let code = word.as_ref().map(|word| word.code.clone());
        let excerpt = |word: ServerWord| clean(&hide(&word.message), EXCERPT);
        match (status, word) {
            (401, _) => Failure::Unauthorized { status, code },
            (403, word) if !word.as_ref().is_some_and(|w| is_quota(&w.code)) => {
                Failure::Unauthorized { status, code }
            }
            (429, _) => Failure::Busy {
                retry_after: self.retry_after(),
                code,
            },
            (404, Some(word)) if word.code.ends_with("::SANDBOX_NOT_FOUND") => {
                Failure::NotFound { code: word.code }
            }
            (500, Some(word)) if word.code.ends_with("::SANDBOX_IMAGE_PULL_FAILED") => Failure::ImagePull {
                message: excerpt(word),
            },
            (500, Some(word)) if docker_refusal(&word).is_some() => Failure::Refused {
                status,
                code: word.code.clone(),
                message: clean(&hide(docker_refusal(&word).unwrap_or_default()), EXCERPT),
            },
            (503, None) => Failure::Overloaded {
                retry_after: self.retry_after(),
            },
            (400..=499, Some(word)) if !GAVE_UP.contains(&status) => Failure::Refused {
                status,
                code: word.code.clone(),
                message: excerpt(word),
            },
            (_, Some(word)) => Failure::Unanswered {
                status: Some(status),
                what: format!(
                    "status {status}, {}{}",
                    word.code,
                    after(": ", &excerpt(word.clone()))
                ),
                code,
            },
            (300..=399, None) => Failure::unusable(self.status, "a redirect, which is not followed"),
            (404, None) => Failure::unusable(
                self.status,
                "a body that is not the server's (the endpoint is what stands before /v1)",
            ),
            (_, None) => Failure::unusable(self.status, "a body that is not the server's"),
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        retry_after(self.retry_after?.to_str().ok()?, self.now)
    }
}

/// What Docker said where it would not make the container, for want of the CPUs that were asked for, for example: then
/// there is none. Where it made one and could not start it, there may have been one that ran.
fn docker_refusal(word: &ServerWord) -> Option<&str> {
    if !word.code.ends_with("::SANDBOX_START_FAILED") {
        return None;
    }
    let rest = word
        .message
        .strip_prefix("Failed to create or start container: ")?;
    let (status, rest) = rest.split_once(" Client Error for ")?;
    let (url, said) = rest.split_once(": ")?;
    let refused = status.len() == 3 && status.starts_with('4') && url.contains("/containers/create");
    refused.then_some(said)
}

/// A namespace's quota is about the request, not about the key.
fn is_quota(code: &str) -> bool {
    code.ends_with("::QUOTA_EXCEEDED")
}

/// Seconds or an HTTP date; nothing of what is neither.
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let asked = if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        text.parse().map_or(Duration::MAX, Duration::from_secs)
    } else {
        let date = httpdate::parse_http_date(text).ok()?;
        date.duration_since(now).unwrap_or_default()
    };
    Some(asked.min(LONGEST_RETRY_AFTER))
}

/// Sorts an error of the HTTP client. `server` names the origin and the proxy in between.
pub(crate) fn of_transport(error: &reqwest::Error, server: &str) -> Failure {
    let server = server.to_owned();
    // What fails while connecting, or before, was not sent.
    let unsent = error.is_connect() || error.is_builder();
    match root_cause(error) {
        Cause::Tls(cause) if unsent => Failure::Tls { server, cause },
        _ if unsent && error.is_timeout() => Failure::NotConnected {
            server,
            cause: "no connection in time".to_owned(),
        },
        Cause::Other(cause) if unsent => Failure::NotConnected { server, cause },
        _ if error.is_timeout() => Failure::unanswered(NOT_IN_TIME),
        Cause::Tls(cause) | Cause::Other(cause) => {
            Failure::unanswered(format!("the connection was lost: {cause}"))
        }
    }
}

/// What lies under an error of the HTTP client, in words.
enum Cause {
    Tls(String),
    Other(String),
}

/// Looks through what lies under it. Only what is known to hold nothing of the request is put into words; errors
/// of the client itself print the URL.
fn root_cause(error: &reqwest::Error) -> Cause {
    let mut words = "the connection failed".to_owned();
    let mut next = error.source();
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref() {
            return Cause::Tls(tls_words(tls));
        }
        if error.to_string() == "dns error" {
            return Cause::Other("dns: the host name cannot be resolved".to_owned());
        }
        next = beneath(error);
        if let Some(io) = error.downcast_ref::<io::Error>() {
            words = io.kind().to_string();
        } else if next.is_none() {
            words = clean(&error.to_string(), EXCERPT);
        }
    }
    Cause::Other(words)
}

/// What caused an error. As its source, an io::Error gives that of what it wraps, and not what it wraps.
fn beneath<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// The root cause of a failed handshake, in the words of the one who has to mend it.
fn tls_words(error: &rustls::Error) -> String {
    use rustls::CertificateError as Certificate;
    use rustls::Error as Tls;
    let words = match error {
        Tls::InvalidCertificate(certificate) => match certificate {
            Certificate::Expired | Certificate::ExpiredContext { .. } => "certificate expired",
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => "certificate not valid yet",
            Certificate::UnknownIssuer => {
                "unknown issuer: no authority of the system or of caBundle signed it"
            }
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
                "certificate not valid for name: it does not name the endpoint's host"
            }
            Certificate::Revoked => "certificate revoked",
            Certificate::BadSignature => "bad signature of the certificate",
            other => return clean(&format!("invalid certificate: {other:?}"), EXCERPT),
        },
        Tls::InvalidMessage(_) => "the server does not speak TLS there",
        other => return clean(&other.to_string(), EXCERPT),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sorts an answer, and says whether it is certain that nothing came of the request.
    fn sorted(status: u16, body: &str) -> (&'static str, bool, String) {
        let failure = Unsuccessful {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: None,
            body: body.as_bytes(),
            now: SystemTime::UNIX_EPOCH,
        }
        .failure(|text| text.replace("canary", "***"));
        (failure.reason(), failure.is_certain(), failure.to_string())
    }

    #[test]
    fn only_the_servers_own_refusal_makes_it_certain_that_nothing_was_done() {
        const HTML: &str = "<html><body>canary</body></html>";
        let own = |code: &str| format!(r#"{{"code":"{code}","message":"of canary\n"}}"#);
        for (status, body, reason, certain) in [
            (400, own("SANDBOX::INVALID_PARAMETER"), "BackendRejected", true),
            (400, HTML.to_owned(), "BackendUnavailable", false),
            (404, own("KUBERNETES::POOL_NOT_FOUND"), "BackendRejected", true),
            (404, own("DOCKER::SANDBOX_NOT_FOUND"), "ExecutionNotFound", false),
            (404, HTML.to_owned(), "BackendUnavailable", false),
            (
                404,
                r#"{"detail":"Not Found"}"#.to_owned(),
                "BackendUnavailable",
                false,
            ),
            (408, own("A::B"), "BackendUnavailable", false),
            (409, own("A::B"), "BackendRejected", true),
            (499, own("A::B"), "BackendUnavailable", false),
            (400, own("SANDBOX::canary"), "BackendRejected", true),
            (401, own("canary"), "AuthenticationFailed", true),
            (
                422,
                r#"{"detail":[{"type":"missing","loc":["body","image"],"msg":"canary"}]}"#.to_owned(),
                "BackendRejected",
                true,
            ),
            (401, own("INVALID_API_KEY"), "AuthenticationFailed", true),
            (401, HTML.to_owned(), "AuthenticationFailed", false),
            (403, own("FORBIDDEN"), "BackendForbidden", true),
            (403, HTML.to_owned(), "BackendForbidden", false),
            (403, own("KUBERNETES::QUOTA_EXCEEDED"), "QuotaExceeded", true),
            (
                429,
                own("KUBERNETES::POOL_CAPACITY_EXHAUSTED"),
                "BackendAtCapacity",
                true,
            ),
            (429, HTML.to_owned(), "BackendAtCapacity", true),
            (
                500,
                own("DOCKER::SANDBOX_IMAGE_PULL_FAILED"),
                "ImagePullFailed",
                true,
            ),
            (500, own("KUBERNETES::POD_FAILED"), "BackendUnavailable", false),
            (
                500,
                own("DOCKER::SANDBOX_DELETE_FAILED"),
                "BackendUnavailable",
                false,
            ),
            (
                500,
                "Internal Server Error".to_owned(),
                "BackendUnavailable",
                false,
            ),
            (502, HTML.to_owned(), "BackendUnavailable", false),
            (503, "Service Unavailable".to_owned(), "BackendAtCapacity", false),
            (
                503,
                own("TENANT_PROVIDER_UNAVAILABLE"),
                "BackendUnavailable",
                false,
            ),
            (
                504,
                own("KUBERNETES::POD_READY_TIMEOUT"),
                "BackendUnavailable",
                false,
            ),
            (307, String::new(), "BackendUnavailable", false),
        ] {
            let (r, c, message) = sorted(status, &body);
            assert_eq!((r, c), (reason, certain), "{status} {body}: {message}");
            assert!(!message.contains("canary") && !message.contains('<'), "{message}");
            assert!(!message.contains('\n') && message.len() < 700, "{message}");
        }
    }

    #[test]
    fn a_container_that_docker_would_not_make_is_a_refusal_and_one_that_it_could_not_start_is_none() {
        let answer = |cause: &str| {
            let message = format!("Failed to create or start container: {cause}");
            serde_json::json!({"code": "DOCKER::SANDBOX_START_FAILED", "message": message}).to_string()
        };
        let create = "http+docker://localhost/v1.41/containers/create?name=sandbox-1";
        let start = "http+docker://localhost/v1.41/containers/1/start";
        for (cause, refused) in [
            (
                format!(
                    r#"400 Client Error for {create}: Bad Request ("Range of CPUs is from 0.01 to 2.00")"#
                ),
                Some(r#"Bad Request ("Range of CPUs is from 0.01 to 2.00")"#),
            ),
            (
                format!("500 Server Error for {create}: Internal Server Error"),
                None,
            ),
            (format!("400 Client Error for {start}: Bad Request"), None),
            (
                format!("400 Client Error for {start}: 400 Client Error for {create}: Bad Request"),
                None,
            ),
            (
                format!("500 Server Error for {start}: 400 Client Error for {create}: Bad Request"),
                None,
            ),
            (
                format!("it said 400 Client Error for {create}: Bad Request"),
                None,
            ),
            ("UnixHTTPConnectionPool: Read timed out.".to_owned(), None),
        ] {
            let (reason, certain, message) = sorted(500, &answer(&cause));
            assert_eq!(certain, refused.is_some(), "{message}");
            match refused {
                Some(said) => {
                    assert_eq!(reason, "BackendRejected");
                    assert!(message.ends_with(said), "{message}");
                    assert!(
                        !message.contains("sandbox-1"),
                        "every other try would have other words: {message}"
                    );
                }
                None => assert_eq!(reason, "BackendUnavailable"),
            }
        }
    }

    #[test]
    fn messages_say_what_was_seen_and_are_cut_at_a_character() {
        for (status, body, expected) in [
            (
                400,
                r#"{"code":"SANDBOX::INVALID_PARAMETER","message":"Sandbox timeout 5s exceeds\nit"}"#,
                "the server refused with status 400, SANDBOX::INVALID_PARAMETER: Sandbox timeout 5s exceeds it",
            ),
            (
                401,
                r#"{"code":"INVALID_API_KEY","message":"x"}"#,
                "the API key is not accepted: status 401, INVALID_API_KEY",
            ),
            (401, "", "the API key is not accepted: status 401"),
            (
                302,
                "",
                "no usable answer: status 302 with a redirect, which is not followed",
            ),
            (500, r#"{"code":"A::B"}"#, "no usable answer: status 500, A::B"),
        ] {
            assert_eq!(sorted(status, body).2, expected);
        }
        let long = format!(r#"{{"code":"A::B","message":"{}"}}"#, "漢".repeat(1000));
        assert!(sorted(400, &long).2.ends_with("漢…"));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_at_most_five_minutes_and_never_nonsense() {
        let now = httpdate::parse_http_date("Sun, 29 Nov 2026 12:00:00 GMT").unwrap();
        let seconds = |s| Some(Duration::from_secs(s));
        for (text, expected) in [
            ("7", seconds(7)),
            (" 7 ", seconds(7)),
            ("0", seconds(0)),
            ("3600", seconds(300)),
            ("99999999999999999999999", seconds(300)),
            ("Sun, 29 Nov 2026 12:00:30 GMT", seconds(30)),
            ("Sun, 29 Nov 2026 11:00:00 GMT", seconds(0)),
            ("Sun, 29 Nov 2099 12:00:00 GMT", seconds(300)),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(retry_after(text, now), expected, "{text:?}");
        }
    }
}

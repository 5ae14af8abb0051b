//! Errors of the API server, sorted by what to do about them. Their bodies may echo the object, so only the
//! code, the reason word and a cut message go on.

use ayatori_core::conditions::clean;
use kube::Error;

/// How much of an API server's message is kept.
const EXCERPT: usize = 300;

/// The reason word of a missing right.
const FORBIDDEN: &str = "Forbidden";

/// The reason word of a field that the definitions do not know, and the words of the API server before it.
const UNKNOWN_FIELD: &str = "UnknownField";
const STRICT: &str = "strict decoding error: ";

/// The reason word of an answer that cannot be read.
const UNDECODABLE: &str = "Undecodable";

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The object has changed or is gone: what was decided on is old. Decide again.
    #[error("the object has changed since it was read")]
    Stale,
    /// This process may not write any more.
    #[error("the lease is not held any more")]
    NotLeading,
    /// The whole pass took too long and was given up.
    #[error("gave up a pass that took too long")]
    Timeout,
    /// The API server refused it or could not be reached.
    #[error("{operation}: {excerpt}")]
    Api {
        /// What was attempted.
        operation: &'static str,
        /// Code, reason and a cut message.
        excerpt: String,
        /// Stable word for metrics.
        reason: &'static str,
    },
}

impl WriteError {
    /// Sorts an error of the client.
    pub fn of(operation: &'static str, error: &Error) -> Self {
        match error {
            Error::Api(status) if status.is_conflict() || status.is_not_found() => WriteError::Stale,
            other => WriteError::Api {
                operation,
                excerpt: brief(other),
                reason: reason(other),
            },
        }
    }

    /// The answer to a write that happened cannot be read by this version.
    pub fn undecodable(operation: &'static str) -> Self {
        WriteError::Api {
            operation,
            excerpt: "the answer cannot be read by this version".to_owned(),
            reason: UNDECODABLE,
        }
    }

    /// Whether this process has not the right to write that.
    pub fn is_forbidden(&self) -> bool {
        matches!(
            self,
            WriteError::Api {
                reason: FORBIDDEN,
                ..
            }
        )
    }

    /// If a write was refused for fields that the definitions in the cluster do not know, what is said of them.
    pub fn unknown_fields(&self) -> Option<&str> {
        match self {
            WriteError::Api {
                reason: UNKNOWN_FIELD,
                excerpt,
                ..
            } => excerpt.split_once(STRICT).map(|(_, fields)| fields),
            _ => None,
        }
    }

    /// Stable word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            WriteError::Stale => "Stale",
            WriteError::NotLeading => "NotLeading",
            WriteError::Timeout => "Timeout",
            WriteError::Api { reason, .. } => reason,
        }
    }
}

/// The error in a few words, without the body it came with.
pub fn brief(error: &Error) -> String {
    match error {
        Error::Api(status) => {
            format!(
                "{} {}: {}",
                status.code,
                status.reason,
                clean(&without_echo(&status.message), EXCERPT)
            )
        }
        other => clean(&root_cause(other), EXCERPT),
    }
}

/// An answer without the objects in it, each quoted as Go does: they may be long, hold what nobody should read, and stand
/// before the words that say what is wrong.
fn without_echo(message: &str) -> String {
    let mut rest = message;
    let mut kept = String::new();
    while let Some((before, object)) = rest.split_once("\"{") {
        kept.push_str(before);
        kept.push('…');
        rest = after_quoted(object);
    }
    kept + rest
}

/// What comes after the end of a quoted string.
fn after_quoted(text: &str) -> &str {
    let mut escaped = false;
    let end = text.char_indices().find(|(_, character)| {
        let ends = *character == '"' && !escaped;
        escaped = *character == '\\' && !escaped;
        ends
    });
    end.and_then(|(at, _)| text.get(at + 1..)).unwrap_or_default()
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
        source = cause.source();
    }
    words
}

fn reason(error: &Error) -> &'static str {
    match error {
        Error::Api(status) => match status.code {
            401 => "Unauthorized",
            403 => FORBIDDEN,
            _ if status.message.contains(&format!("{STRICT}unknown field")) => UNKNOWN_FIELD,
            422 => "Invalid",
            429 => "TooManyRequests",
            500..=599 => "ServerError",
            _ => "ApiError",
        },
        _ => "Unreachable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::FAILURES;

    #[test]
    fn every_answer_that_is_no_success_has_a_reason_that_is_counted() {
        let answers = (400..600).map(|code| {
            let status = kube::core::Status {
                code,
                ..kube::core::Status::default()
            };
            WriteError::of("report", &Error::Api(status.boxed()))
        });
        for error in answers.chain([WriteError::Timeout, WriteError::undecodable("report")]) {
            let is_counted = FAILURES.contains(&error.reason());
            assert_eq!(is_counted, !matches!(error, WriteError::Stale), "{error}");
        }
        for reason in [UNKNOWN_FIELD, reason(&Error::LinesCodecMaxLineLengthExceeded)] {
            assert!(FAILURES.contains(&reason), "{reason}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_object_that_the_answer_echoes() {
        for (message, kept) in [
            (
                r#""" is invalid: patch: Invalid value: "{\"spec\":{\"env\":[{\"value\":\"a \\\"secret\\\"\"}]}}": strict decoding error: unknown field "status.x""#,
                r#""" is invalid: patch: Invalid value: …: strict decoding error: unknown field "status.x""#,
            ),
            (r#"cut off in "{\"spec\":{"#, "cut off in …"),
            (r#"jobs "a" is forbidden: no"#, r#"jobs "a" is forbidden: no"#),
            (
                r#"first "{}", then "{\"a\":1}" and no more"#,
                "first …, then … and no more",
            ),
        ] {
            assert_eq!(without_echo(message), kept);
        }
    }
}

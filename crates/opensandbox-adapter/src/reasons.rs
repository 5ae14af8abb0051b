//! What a Job says of trouble with its server: the same trouble has one word while the Job waits for its start, and
//! another while it runs.

use ayatori_core::execution::{Answer, Why};

use crate::failure::Failure;

/// What a Job that is not started says of trouble with its server.
pub(crate) fn scheduling(why: Why) -> Why {
    let reason = match why.reason.as_str() {
        "BackendUnreachable" | "SecretNotFound" | "SecretKeyNotFound" | "InvalidCredentials" => {
            "BackendUnavailable"
        }
        "AuthenticationFailed" => "BackendForbidden",
        other => other,
    };
    Why::new(reason, why.message)
}

/// What a Job says while nothing can be known of its execution.
pub(crate) fn unobservable(why: Why) -> Why {
    let reason = match why.reason.as_str() {
        "AuthenticationFailed"
        | "BackendForbidden"
        | "SecretNotFound"
        | "SecretKeyNotFound"
        | "InvalidCredentials"
        | "ReferenceForbidden" => "CredentialsInvalid",
        _ => "BackendUnreachable",
    };
    Why::new(reason, why.message)
}

/// What an effect answers whose server could not be reached.
pub(crate) fn unreached(why: Why) -> Answer {
    Answer::Unavailable(scheduling(why))
}

/// What an effect answers that came to nothing.
pub(crate) fn unavailable(failure: Failure) -> Answer {
    unreached(failure.why())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_with_the_key_is_told_from_trouble_with_the_server() {
        for (reason, expected) in [
            ("AuthenticationFailed", "CredentialsInvalid"),
            ("SecretNotFound", "CredentialsInvalid"),
            ("BackendUnavailable", "BackendUnreachable"),
            ("BackendAtCapacity", "BackendUnreachable"),
        ] {
            assert_eq!(unobservable(Why::new(reason, "")).reason, expected);
        }
    }
}

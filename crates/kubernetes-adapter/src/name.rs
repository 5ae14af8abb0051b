//! Names of batch Jobs.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// The longest part of a Job's name that goes into its batch Job's: with the hash it makes 63 characters, the
/// longest that Kubernetes takes as the value of the labels it puts on pods.
const READABLE: usize = 52;

/// Characters of the hash.
const HASH: usize = 10;

/// The name of the batch Job of a Job: readable, legal for every legal name, and different for every UID.
pub fn batch_job(name: &str, uid: &str) -> String {
    let cut: String = name.chars().take(READABLE).collect();
    // A cut may leave a dot or a dash at the end, where none may stand.
    let mut child = cut
        .trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned();
    child.push('-');
    for byte in Sha256::digest(uid).iter().take(HASH / 2) {
        write!(child, "{byte:02x}").expect("a String takes everything");
    }
    child
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_label_value(text: &str) -> bool {
        let alphanumeric = |c: char| c.is_ascii_alphanumeric();
        text.len() <= 63
            && text.starts_with(alphanumeric)
            && text.ends_with(alphanumeric)
            && text
                .chars()
                .all(|c| alphanumeric(c) || matches!(c, '-' | '_' | '.'))
    }

    fn is_dns_subdomain(text: &str) -> bool {
        let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        text.len() <= 253
            && text.split('.').all(|part| {
                part.starts_with(alphanumeric)
                    && part.ends_with(alphanumeric)
                    && part.chars().all(|c| alphanumeric(c) || c == '-')
            })
    }

    proptest! {
        #[test]
        fn every_legal_name_gives_a_legal_child_name(
            name in "[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?){0,4}",
            uid in "[0-9a-f]{8}-[0-9a-f]{4}",
        ) {
            prop_assume!(is_dns_subdomain(&name));
            let child = batch_job(&name, &uid);
            prop_assert!(is_dns_subdomain(&child), "{child}");
            prop_assert!(is_label_value(&child), "{child}");
        }

        #[test]
        fn different_uids_give_different_child_names(name in "[a-z0-9]{1,63}", uids in proptest::collection::hash_set("[0-9a-f-]{36}", 2)) {
            let children: std::collections::HashSet<_> = uids.iter().map(|uid| batch_job(&name, uid)).collect();
            prop_assert_eq!(children.len(), 2);
        }
    }

    #[test]
    fn a_cut_name_ends_where_a_name_may_end() {
        let name = format!("{}.{}", "a".repeat(51), "b".repeat(60));
        assert_eq!(
            batch_job(&name, "u").strip_prefix(&"a".repeat(51)),
            Some("-0bfe935e70")
        );
        assert_eq!(batch_job("build-1", "u"), "build-1-0bfe935e70");
    }
}

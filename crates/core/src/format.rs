//! How the strings of the API look: one CEL rule per format, with its message in words.
//!
//! A rule sits on the field itself, so that the API server names the full path in front of the message and
//! leaves alone what was stored before the rule existed. Lengths are stated beside each field, since they also
//! bound what the rules may cost.

use kube::core::{Reason, Rule};

/// DNS-1123 label: a Namespace's name.
const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
/// Segment of a DNS-1123 subdomain, repeated.
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

/// Text without the character at which a process's arguments and environment end. In the schema, since a rule
/// would cost too much on so many and so long strings.
pub(crate) const NO_NUL: &str = r"^[^\x00]*$";

fn matches(pattern: &str, message: impl Into<String>) -> Rule {
    // A raw string keeps the pattern's backslashes readable; no pattern here holds a quote.
    Rule::new(format!("self.matches(r'^{pattern}$')")).message(message.into().as_str())
}

/// Name of an object, as Kubernetes names most objects.
pub(crate) fn object_name() -> Rule {
    matches(
        SUBDOMAIN,
        "must be the name of an object: lower-case letters, digits, `-` and `.`, beginning and ending with a letter or digit",
    )
}

/// Name of a namespace.
pub(crate) fn namespace() -> Rule {
    matches(
        LABEL,
        "must be the name of a namespace: lower-case letters, digits and `-`, beginning and ending with a letter or digit",
    )
}

/// API group that is not the core group.
pub(crate) fn api_group() -> Rule {
    matches(
        SUBDOMAIN,
        "must be an API group such as execution.ayatori.ddupan.top; objects of the core group hold no parameters",
    )
}

/// Kind of an object.
pub(crate) fn kind() -> Rule {
    matches(
        "[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?",
        "must be a kind such as KubernetesExecutionParameters: letters and digits, beginning with a letter",
    )
}

/// Key in the data of a Secret or ConfigMap.
pub(crate) fn data_key() -> Rule {
    Rule::new("self.matches(r'^[-._A-Za-z0-9]+$') && self != '.' && !self.startsWith('..')")
        .message("must be a key of a Secret or ConfigMap: letters, digits, `-`, `_` and `.`, neither `.` nor beginning with `..`")
}

/// Domain-prefixed path, the way Kubernetes names controllers in `managedBy`.
pub(crate) fn controller_name() -> Rule {
    matches(
        &format!(r"{SUBDOMAIN}/[A-Za-z0-9/\-._~%!$&\x27()*+,;=:]+"),
        "must be a domain-prefixed path such as example.com/controller: a lower-case DNS name, `/`, and a path of URL characters",
    )
}

/// Reference to a container image, with tag, digest, both or neither.
pub(crate) fn image() -> Rule {
    const HOST: &str = r"([A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*|\[[0-9A-Fa-f:]+\])(:[0-9]+)?";
    const COMPONENT: &str = "[a-z0-9]+((\\.|_|__|-+)[a-z0-9]+)*";
    const TAG: &str = "[0-9A-Za-z_][-.0-9A-Za-z_]{0,127}";
    const DIGEST: &str = "[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,}";
    matches(
        &format!("({HOST}/)?{COMPONENT}(/{COMPONENT})*(:{TAG})?(@{DIGEST})?"),
        "must be an image reference such as app, registry.example:5000/team/app:1.2 or app@sha256:<64 digits>: the path in lower case, without white space or empty parts",
    )
}

/// Name of an environment variable, by the rule Kubernetes 1.35 has for it.
pub(crate) fn env_name() -> Rule {
    matches(
        "[ -<>-~]+",
        "must be the name of an environment variable: one or more printable ASCII characters other than `=`",
    )
}

/// Prefix of the names that a whole Secret or ConfigMap brings; may be empty.
pub(crate) fn env_prefix() -> Rule {
    matches(
        "[ -<>-~]*",
        "must be a prefix of names of environment variables: printable ASCII characters other than `=`",
    )
}

/// Absolute path in the container.
pub(crate) fn absolute_path() -> Rule {
    Rule::new("self.startsWith('/')").message("must be an absolute path: begin it with `/`")
}

/// PEM certificates.
pub(crate) fn pem_certificates() -> Rule {
    Rule::new("self.contains('-----BEGIN CERTIFICATE-----') && !self.contains('PRIVATE KEY-----')")
        .message("must hold PEM certificates (`-----BEGIN CERTIFICATE-----`), and no private key")
        .reason(Reason::FieldValueForbidden)
}

/// Base URL of an HTTP API. Forbidden rather than invalid, because the API server repeats an invalid value in
/// its answer, and what a refused URL holds may be a password.
pub(crate) fn base_url() -> Rule {
    matches(
        r"https?://([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[^?#\\\s]*)?",
        "must be a base URL such as https://opensandbox.example or https://opensandbox.example:8443/base: `https://`, a host, at most a port and a path; no user or password, query or fragment",
    )
    .reason(Reason::FieldValueForbidden)
}

/// Selector that selects something in particular: an empty one would select everything.
pub(crate) fn selector_says_something() -> Rule {
    Rule::new("(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)")
        .message("must not be empty: name at least one label under matchLabels or matchExpressions, or leave allowedNamespaces out to allow every namespace")
}

/// Selector whose operators Kubernetes knows, each with the values it needs.
pub(crate) fn selector_operators() -> Rule {
    Rule::new(
        "!has(self.matchExpressions) || self.matchExpressions.all(e, \
         e.operator in ['In', 'NotIn'] ? has(e.values) && size(e.values) > 0 : \
         e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || size(e.values) == 0))",
    )
    .message("has an operator that is none of In, NotIn (each with at least one value), Exists and DoesNotExist (each without values)")
}

/// Name of a label, with an optional prefix.
const LABEL_KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$";
/// Value of a label; may be empty.
const LABEL_VALUE: &str = r"^([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?$";

/// What is said of anything else.
const NO_LABEL: &str = "has a key or value that no label can have: keys are names of at most 63 characters with an optional DNS prefix and `/`, values at most 63 letters, digits, `-`, `_` and `.`";

/// Selector whose keys and values can be labels at all.
pub(crate) fn selector_labels() -> Rule {
    Rule::new(format!(
        "(!has(self.matchLabels) || self.matchLabels.all(k, k.matches(r'{LABEL_KEY}') && self.matchLabels[k].matches(r'{LABEL_VALUE}'))) && \
         (!has(self.matchExpressions) || self.matchExpressions.all(e, e.key.matches(r'{LABEL_KEY}') && \
         (!has(e.values) || e.values.all(v, v.matches(r'{LABEL_VALUE}')))))"
    ))
    .message(NO_LABEL)
}

/// Labels by name.
pub(crate) fn labels() -> Rule {
    Rule::new(format!(
        "self.all(k, k.matches(r'{LABEL_KEY}') && self[k].matches(r'{LABEL_VALUE}'))"
    ))
    .message(NO_LABEL)
}

/// Tolerations that Kubernetes takes.
pub(crate) fn tolerations() -> Rule {
    Rule::new(
        "self.all(t, (!has(t.effect) || t.effect in ['', 'NoSchedule', 'PreferNoSchedule', 'NoExecute']) && \
         (!has(t.operator) || t.operator in ['', 'Equal', 'Exists', 'Lt', 'Gt']) && \
         (has(t.key) && t.key != '' || has(t.operator) && t.operator == 'Exists') && \
         !(has(t.operator) && t.operator == 'Exists' && has(t.value) && t.value != '') && \
         !(has(t.tolerationSeconds) && (!has(t.effect) || t.effect != 'NoExecute')))",
    )
    .message("has a toleration that Kubernetes refuses: operator is Equal, Exists (without a value), Lt or Gt, and Exists where key is empty; effect is NoSchedule, PreferNoSchedule or NoExecute, and NoExecute with tolerationSeconds")
}

//! What a Job's command sees: its environment, and its words after `$(NAME)` was expanded in them, exactly as the
//! kubelet makes them.
//!
//! `envFrom` comes first, in its order, then `env`; the later one of a name wins. A `value` is expanded with what was
//! defined before it, `envFrom` included; a `valueFrom` is taken as it is. `command` and `args` are expanded with the
//! finished environment. One thing is missing: the variables of Services, `KUBERNETES_SERVICE_HOST` among them, since
//! a sandbox is not in the cluster's network.
//!
//! Every value may hold a Secret, also a word of the command that was expanded: all are wiped when dropped, print as
//! nothing, and are built without leaving a copy behind.

use std::collections::BTreeMap;

use ayatori_controller::references::{Data, Kind};
use ayatori_core::execution::Why;
use ayatori_core::job::{EnvFromSource, EnvVar, EnvVarSource, Job, KeySelector};
use kube::ResourceExt;
use secrecy::{ExposeSecret, SecretString};

/// The longest string that Linux lets a process have, in bytes, with the NUL at its end (`MAX_ARG_STRLEN`).
const LONGEST: usize = 128 * 1024;

/// The most that Linux ever lets a process have of them together: three quarters of a stack of 8 MiB.
const MOST: usize = 6 * 1024 * 1024;

/// Beginnings of names that OpenSandbox's launcher, its daemon in the sandbox and its server read.
const RESERVED_PREFIXES: [&str; 5] = [
    "EXECD",
    "OPENSANDBOX_",
    "OPEN_SANDBOX_",
    "LIFECYCLE_STATUS_",
    "LIFECYCLE_WATCHDOG_",
];

/// Other names that the launcher reads (it would run `BOOTSTRAP_CMD` instead of the command) or overwrites (the
/// command would see its value, or none). Not all that begin with `BOOTSTRAP_`: Kafka has its `BOOTSTRAP_SERVERS`.
const RESERVED: [&str; 7] = [
    "BOOTSTRAP_CMD",
    "BOOTSTRAP_SHELL",
    "CMD",
    "CMD_PID",
    "MITM_CA",
    "SHELL_BIN",
    "_SEEN_JDKS",
];

/// What a Job's command sees.
#[derive(Debug)]
pub struct Environment {
    /// Its environment, in the order of the names.
    pub variables: Vec<(String, SecretString)>,
    /// `command`, then `args`.
    pub command: Vec<SecretString>,
    /// Names that `envFrom` brings and that no variable can have: they were left out.
    ///
    /// Nothing is expected here. The kubelet used to skip keys that are no identifiers; since names were relaxed (by
    /// default in Kubernetes 1.32, for good in 1.34) it takes every key, because the API server lets neither a key nor
    /// a prefix hold anything but printable ASCII other than `=`. What comes in by any other way is not passed on:
    /// `A=B` would set `A`.
    pub skipped: Vec<String>,
}

/// An environment that is being built.
struct Builder<'a> {
    namespace: &'a str,
    data: &'a Data,
    /// A value that cannot be used is no error before something uses it: a later one of its name may win.
    variables: BTreeMap<String, Result<SecretString, Why>>,
    skipped: Vec<String>,
    /// What all expanded strings take together, in bytes.
    expanded: usize,
}

impl Environment {
    /// Builds it from the Job and everything the Job refers to.
    pub fn of(job: &Job, data: &Data) -> Result<Self, Why> {
        let namespace = job.namespace().unwrap_or_default();
        let mut builder = Builder {
            namespace: &namespace,
            data,
            variables: BTreeMap::new(),
            skipped: Vec::new(),
            expanded: 0,
        };
        for source in &job.spec.env_from {
            builder.import(source)?;
        }
        for variable in &job.spec.env {
            builder.define(variable)?;
        }
        let words = job.spec.command.iter().chain(&job.spec.args).enumerate();
        let command = words
            .map(|(index, word)| {
                builder.expand(word, || {
                    format!("word {} of command and args", index.saturating_add(1))
                })
            })
            .collect::<Result<_, _>>()?;
        builder.finish(command)
    }
}

/// Whether a shell hands a variable of that name on to what it starts: dash and busybox drop names that they could not
/// assign to themselves.
pub fn passes_shells(name: &str) -> bool {
    let mut characters = name.chars();
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    characters.next().is_some_and(letter) && characters.all(|c| letter(c) || c.is_ascii_digit())
}

impl Builder<'_> {
    /// All keys of a Secret or ConfigMap.
    fn import(&mut self, source: &EnvFromSource) -> Result<(), Why> {
        let data = self.data;
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.secret_ref {
            match data.secrets.get(&reference.name) {
                Some(secret) => {
                    for (key, value) in secret {
                        let value = text(Kind::Secret, &reference.name, key, value.expose_secret());
                        self.insert(format!("{prefix}{key}"), value);
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(Kind::Secret.missing(self.namespace, &reference.name)),
            }
        }
        if let Some(reference) = &source.config_map_ref {
            match data.config_maps.get(&reference.name) {
                Some(config_map) => {
                    for (key, value) in config_map {
                        let value = text(Kind::ConfigMap, &reference.name, key, value.as_bytes());
                        self.insert(format!("{prefix}{key}"), value);
                    }
                }
                None if reference.optional == Some(true) => {}
                None => return Err(Kind::ConfigMap.missing(self.namespace, &reference.name)),
            }
        }
        Ok(())
    }

    fn insert(&mut self, name: String, value: Result<SecretString, Why>) {
        if is_name(&name) {
            self.variables.insert(name, value);
        } else {
            self.skipped.push(name);
        }
    }

    fn define(&mut self, variable: &EnvVar) -> Result<(), Why> {
        let name = &variable.name;
        let value = match (variable.value.as_deref(), &variable.value_from) {
            (Some(value), _) if !value.is_empty() => Some(self.expand(value, || variable_word(name))),
            (_, Some(source)) => self.taken_from(source)?,
            (_, None) => Some(Ok(SecretString::default())),
        };
        if let Some(value) = value {
            self.variables.insert(name.clone(), value);
        }
        Ok(())
    }

    /// The value of one key, unless it is optional and not there.
    fn taken_from(&self, source: &EnvVarSource) -> Result<Option<Result<SecretString, Why>>, Why> {
        if let Some(reference) = &source.secret_key_ref {
            let object = self.data.secrets.get(&reference.name);
            let value = self.one_of(Kind::Secret, reference, object)?;
            return Ok(value.map(|v| text(Kind::Secret, &reference.name, &reference.key, v.expose_secret())));
        }
        if let Some(reference) = &source.config_map_key_ref {
            let object = self.data.config_maps.get(&reference.name);
            let value = self.one_of(Kind::ConfigMap, reference, object)?;
            return Ok(value.map(|v| text(Kind::ConfigMap, &reference.name, &reference.key, v.as_bytes())));
        }
        Ok(Some(Ok(SecretString::default())))
    }

    fn one_of<'d, T>(
        &self,
        kind: Kind,
        reference: &KeySelector,
        object: Option<&'d BTreeMap<String, T>>,
    ) -> Result<Option<&'d T>, Why> {
        let KeySelector { name, key, optional } = reference;
        match object.map(|object| object.get(key)) {
            Some(Some(value)) => Ok(Some(value)),
            Some(None) | None if *optional == Some(true) => Ok(None),
            Some(None) => Err(kind.key_missing(self.namespace, name, key)),
            None => Err(kind.missing(self.namespace, name)),
        }
    }

    /// The text with its `$(NAME)` replaced by what is defined so far. Bounded before it is built: twenty variables
    /// that each hold the one before twice hold a million times the first.
    fn expand(&mut self, text: &str, what: impl Fn() -> String) -> Result<SecretString, Why> {
        let mut length: usize = 0;
        let pieces = pieces(text, |name| match self.variables.get(name) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value.expose_secret())),
            Some(Err(why)) => Err(why.clone()),
        })?;
        for piece in &pieces {
            length = length.saturating_add(piece.len());
        }
        if length >= LONGEST {
            return Err(too_long(&what()));
        }
        // Allocated once, at its full length.
        let whole = SecretString::from(pieces.concat());
        self.expanded = self.expanded.saturating_add(length);
        if self.expanded > MOST {
            return Err(too_much());
        }
        Ok(whole)
    }

    fn finish(self, command: Vec<SecretString>) -> Result<Environment, Why> {
        let mut total: usize = command
            .iter()
            .map(|word| word.expose_secret().len().saturating_add(1))
            .sum();
        let mut variables = Vec::with_capacity(self.variables.len());
        for (name, value) in self.variables {
            if is_reserved(&name) {
                return Err(reserved(&name));
            }
            let value = value?;
            // With `=` and NUL.
            let length = name
                .len()
                .saturating_add(value.expose_secret().len())
                .saturating_add(2);
            if length > LONGEST {
                return Err(too_long(&variable_word(&name)));
            }
            total = total.saturating_add(length);
            variables.push((name, value));
        }
        if total > MOST {
            return Err(too_much());
        }
        Ok(Environment {
            variables,
            command,
            skipped: self.skipped,
        })
    }
}

/// What the text is made of once its references are replaced. `$$` is one `$`; what is not defined, not closed or no
/// reference at all stays as it is.
fn pieces<'a>(
    text: &'a str,
    value_of: impl Fn(&str) -> Result<Option<&'a str>, Why>,
) -> Result<Vec<&'a str>, Why> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        pieces.push(before);
        if let Some(after) = after.strip_prefix('$') {
            pieces.push("$");
            rest = after;
        } else if let Some((name, after)) = after.strip_prefix('(').and_then(|a| a.split_once(')')) {
            match value_of(name)? {
                Some(value) => pieces.push(value),
                None => pieces.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            pieces.push("$");
            rest = after;
        }
    }
    pieces.push(rest);
    Ok(pieces)
}

/// A value as text that an environment can hold.
fn text(kind: Kind, object: &str, key: &str, bytes: &[u8]) -> Result<SecretString, Why> {
    let invalid = |what: &str| {
        let word = kind.word();
        Why::new(
            format!("Invalid{word}Value"),
            format!(
                "key {key:?} of {word} {object:?} {what}, which no environment variable can hold; encode the value, or do \
                 not make a variable of it"
            ),
        )
    };
    match std::str::from_utf8(bytes) {
        Err(_) => Err(invalid("is not UTF-8")),
        Ok(text) if text.contains('\0') => Err(invalid("contains a NUL character")),
        Ok(text) => Ok(SecretString::from(text)),
    }
}

/// The API server's rule, the relaxed one.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| (' '..='~').contains(&c) && c != '=')
}

fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn reserved(name: &str) -> Why {
    Why::new(
        "ReservedEnvName",
        format!(
            "environment variable {name:?} belongs to OpenSandbox itself, which would run something else or show the \
             command another value; give it another name"
        ),
    )
}

fn variable_word(name: &str) -> String {
    format!("environment variable {name:?}")
}

fn too_long(what: &str) -> Why {
    Why::new(
        "UnsupportedFeature",
        format!(
            "{what} is longer than the {LONGEST} bytes that Linux lets a process be given in one string; put the \
             content into a file of the image, or fetch it from the command"
        ),
    )
}

fn too_much() -> Why {
    Why::new(
        "UnsupportedFeature",
        format!(
            "command, args and environment together are longer than the {MOST} bytes that Linux lets a process be \
             given; put content into files of the image, or fetch it from the command"
        ),
    )
}

#[cfg(test)]
mod tests;

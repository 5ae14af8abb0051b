//! Which of a Job's `imagePullSecrets` fit its image, by the kubelet's rules.
//!
//! A Secret lists registries: `registry.example`, `registry.example:5000/team`, `*.registry.example`, with or without
//! `https://`. One fits if its host, part by part, and its port are the image's, and its path is how the image's path
//! begins. The more specific ones come first. A Secret of another type, or an empty one, says nothing.

use std::collections::BTreeMap;
use std::iter;

use crate::wire::ImageAuth;
use ayatori_controller::references::PullSecret;
use ayatori_core::execution::Why;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// Where images without a registry come from.
const DOCKER_HUB: &str = "docker.io";

/// The names by which configurations know it, of which an image may have the second, too.
const DOCKER_HUB_INDEX: &str = "index.docker.io";

/// Base64 with or without padding: Docker's own tools write both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A `kubernetes.io/dockerconfigjson`.
#[derive(Deserialize)]
struct Configuration {
    auths: Option<Registries>,
}

type Registries = BTreeMap<String, Entry>;

/// What a configuration has for one registry.
#[derive(Deserialize)]
struct Entry {
    username: Option<SecretString>,
    password: Option<SecretString>,
    /// `username:password` in base64; wins over both.
    auth: Option<SecretString>,
}

/// A registry, or a part of one: `host[:port][/path]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place<'a> {
    host: &'a str,
    port: &'a str,
    path: &'a str,
}

/// The users that may pull the image, in the order in which to try them. Where none fits, it is pulled without.
pub fn credentials(image: &str, secrets: &[PullSecret]) -> Result<Vec<ImageAuth>, Why> {
    let mut by_place: BTreeMap<String, Vec<ImageAuth>> = BTreeMap::new();
    for secret in secrets {
        for (registry, entry) in registries(secret)? {
            if let Some(auth) = entry.auth().map_err(|what| malformed(secret, what))? {
                by_place.entry(place_of(&registry)).or_default().push(auth);
            }
        }
    }
    let repository = repository(image);
    let repository = Place::parse(&repository);
    let of_docker_hub = ((repository.host, repository.port) == (DOCKER_HUB, ""))
        .then(|| by_place.remove(DOCKER_HUB_INDEX))
        .flatten();
    // The longer of two names that begin alike is the later one.
    let fitting: Vec<_> = by_place
        .into_iter()
        .rev()
        .filter(|(place, _)| Place::parse(place).fits(repository))
        .flat_map(|(_, auths)| auths)
        .collect();
    if fitting.is_empty() {
        return Ok(of_docker_hub.unwrap_or_default());
    }
    Ok(fitting)
}

fn registries(secret: &PullSecret) -> Result<Registries, Why> {
    let content = |key| secret.data.get(key).filter(|v| !v.expose_secret().is_empty());
    let not_json = |_| malformed(secret, "is not the JSON of a Docker configuration");
    match secret.type_.as_str() {
        "kubernetes.io/dockerconfigjson" => match content(".dockerconfigjson") {
            Some(json) => serde_json::from_slice::<Configuration>(json.expose_secret())
                .map(|configuration| configuration.auths.unwrap_or_default())
                .map_err(not_json),
            None => Ok(Registries::new()),
        },
        "kubernetes.io/dockercfg" => match content(".dockercfg") {
            Some(json) => serde_json::from_slice(json.expose_secret()).map_err(not_json),
            None => Ok(Registries::new()),
        },
        _ => Ok(Registries::new()),
    }
}

fn malformed(secret: &PullSecret, what: &str) -> Why {
    Why::new(
        "InvalidSecretValue",
        format!(
            "Secret {:?} of imagePullSecrets {what}; make it with `kubectl create secret docker-registry`",
            secret.name
        ),
    )
}

impl Entry {
    /// Its user, if it names one.
    fn auth(self) -> Result<Option<ImageAuth>, &'static str> {
        let auth = match self.auth.filter(|auth| !auth.expose_secret().is_empty()) {
            Some(auth) => decoded(&auth)?,
            None => ImageAuth {
                username: self.username.unwrap_or_default(),
                password: self.password.unwrap_or_default(),
            },
        };
        let names_one =
            !auth.username.expose_secret().is_empty() || !auth.password.expose_secret().is_empty();
        Ok(names_one.then_some(auth))
    }
}

fn decoded(auth: &SecretString) -> Result<ImageAuth, &'static str> {
    // Go's decoder passes over line ends.
    let mut lines = Zeroizing::new(Vec::with_capacity(auth.expose_secret().len()));
    lines.extend(auth.expose_secret().bytes().filter(|b| !b"\r\n".contains(b)));
    let mut buffer = Zeroizing::new(vec![0; base64::decoded_len_estimate(lines.len())]);
    let length = BASE64
        .decode_slice(lines.as_slice(), &mut buffer)
        .map_err(|_| "has an auth that is not base64")?;
    let text = buffer
        .get(..length)
        .and_then(|bytes| std::str::from_utf8(bytes).ok());
    let (username, password) = text
        .and_then(|text| text.split_once(':'))
        .ok_or("has an auth that is not `username:password` in base64")?;
    Ok(ImageAuth {
        username: SecretString::from(username),
        password: SecretString::from(password),
    })
}

/// A registry as a configuration names it, without scheme and the version of its API.
fn place_of(registry: &str) -> String {
    let url = registry
        .strip_prefix("https://")
        .or_else(|| registry.strip_prefix("http://"))
        .unwrap_or(registry);
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = url.split_once('/').unwrap_or((url, ""));
    let host = authority.rsplit('@').next().unwrap_or_default();
    let path = path
        .strip_prefix("v1/")
        .or_else(|| path.strip_prefix("v2/"))
        .unwrap_or(path);
    if path.is_empty() {
        host.to_owned()
    } else {
        format!("{host}/{path}")
    }
}

/// An image's name in full, without tag and digest.
fn repository(image: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let name = match name.rsplit_once(':') {
        // A colon before a slash begins a port.
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    match name.split_once('/') {
        Some((DOCKER_HUB | DOCKER_HUB_INDEX, path)) => on_docker_hub(path),
        Some((host, _)) if is_host(host) => name.to_owned(),
        _ => on_docker_hub(name),
    }
}

/// Whether the first part of an image's name is a host and no folder.
fn is_host(part: &str) -> bool {
    part == "localhost" || part.contains(['.', ':']) || part.contains(|c: char| c.is_ascii_uppercase())
}

fn on_docker_hub(path: &str) -> String {
    let folder = if path.contains('/') { "" } else { "library/" };
    format!("{DOCKER_HUB}/{folder}{path}")
}

impl<'a> Place<'a> {
    fn parse(place: &'a str) -> Self {
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let (host, port) = match authority.rsplit_once(':') {
            // Inside the brackets of an IPv6 address.
            Some((_, port)) if port.ends_with(']') => (authority, ""),
            Some(parts) => parts,
            None => (authority, ""),
        };
        Self { host, port, path }
    }

    /// Whether that repository is of this place. As with the kubelet, `team` is also how `team-b/app` begins.
    fn fits(self, repository: Place<'_>) -> bool {
        let (patterns, parts) = (self.host.split('.'), repository.host.split('.'));
        self.port == repository.port
            && repository.path.starts_with(self.path)
            && patterns.clone().count() == parts.clone().count()
            && patterns.zip(parts).all(|(pattern, part)| matches(pattern, part))
    }
}

/// Whether a part of a host is as the pattern says: `*` is any characters, `?` is one.
fn matches(pattern: &str, part: &str) -> bool {
    let part: Vec<char> = part.chars().collect();
    // Whether the pattern so far matches that many characters.
    let mut reached: Vec<bool> = (0..=part.len()).map(|length| length == 0).collect();
    for wanted in pattern.chars() {
        reached = if wanted == '*' {
            let or = |before: &mut bool, reached: &bool| {
                *before |= reached;
                Some(*before)
            };
            reached.iter().scan(false, or).collect()
        } else {
            let step = |(reached, c): (&bool, &char)| *reached && (wanted == '?' || wanted == *c);
            iter::once(false)
                .chain(reached.iter().zip(&part).map(step))
                .collect()
        };
    }
    reached.last() == Some(&true)
}

#[cfg(test)]
mod tests;

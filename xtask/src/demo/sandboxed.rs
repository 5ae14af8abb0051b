//! The class of `examples/sandboxed-class.yaml`, on a server that the example cannot know.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// An OpenSandbox server, by the files that `cargo xtask cluster up` describes its own with.
pub(super) struct OpenSandbox {
    folder: PathBuf,
}

/// Where the API key belongs.
pub(super) struct KeySecret {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) key: String,
}

impl OpenSandbox {
    pub(super) fn described_in(folder: PathBuf) -> OpenSandbox {
        OpenSandbox { folder }
    }

    /// The file with its API key.
    pub(super) fn api_key(&self) -> PathBuf {
        self.folder.join("api-key")
    }

    /// The objects of the example as YAML, with this server in them, and the Secret they refer to.
    pub(super) fn put_into(&self, example: &Path) -> Result<(String, KeySecret)> {
        put_into(&read(example)?, &self.told("endpoint")?, &self.told("ca.pem")?)
            .with_context(|| format!("cannot use {}", example.display()))
    }

    fn told(&self, file: &str) -> Result<String> {
        Ok(read(&self.folder.join(file))?.trim_end().to_owned())
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn put_into(example: &str, endpoint: &str, authority: &str) -> Result<(String, KeySecret)> {
    let mut objects = String::new();
    let mut secret = None;
    for document in serde_yaml::Deserializer::from_str(example) {
        let mut object = Value::deserialize(document)?;
        if let Some(reference) = object.pointer("/spec/apiKeySecretRef") {
            secret = Some(KeySecret::of(reference)?);
            let spec = object.get_mut("spec").and_then(Value::as_object_mut);
            spec.context("a spec")?.extend([
                ("endpoint".to_owned(), json!(endpoint)),
                ("caBundle".to_owned(), json!(authority)),
            ]);
        }
        objects.push_str("---\n");
        objects.push_str(&serde_yaml::to_string(&object)?);
    }
    Ok((objects, secret.context("it has no apiKeySecretRef")?))
}

impl KeySecret {
    fn of(reference: &Value) -> Result<KeySecret> {
        let field = |name: &str| {
            let value = reference.get(name).and_then(Value::as_str);
            value
                .map(str::to_owned)
                .with_context(|| format!("apiKeySecretRef has no {name}"))
        };
        Ok(KeySecret {
            namespace: field("namespace")?,
            name: field("name")?,
            key: field("key")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout;

    #[test]
    fn the_example_takes_a_server_and_keeps_everything_else() {
        let example = checkout::root().join("examples/sandboxed-class.yaml");
        let example = std::fs::read_to_string(example).unwrap();
        let (objects, secret) = put_into(&example, "https://10.0.0.1:8443", "CERTIFICATE").unwrap();
        assert_eq!(
            (secret.namespace.as_str(), secret.key.as_str()),
            ("ayatori-system", "api-key")
        );
        let objects: Vec<Value> = serde_yaml::Deserializer::from_str(&objects)
            .map(|document| Value::deserialize(document).unwrap())
            .collect();
        let kinds: Vec<_> = objects.iter().map(|object| &object["kind"]).collect();
        assert_eq!(kinds, ["OpenSandboxExecutionParameters", "JobClass"]);
        assert_eq!(objects[0]["spec"]["endpoint"], "https://10.0.0.1:8443");
        assert_eq!(objects[0]["spec"]["caBundle"], "CERTIFICATE");
        assert_eq!(
            objects[0]["spec"]["apiKeySecretRef"]["name"],
            secret.name.as_str()
        );
        assert!(objects[1]["spec"].get("endpoint").is_none());
    }
}

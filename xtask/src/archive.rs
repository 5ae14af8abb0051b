//! OCI image archives, written without a container engine and the same, byte for byte, every time.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// A layer of an image. Entries are written sorted, without times, owned by root.
#[derive(Default)]
pub(crate) struct Layer {
    entries: BTreeMap<String, Entry>,
}

enum Entry {
    Folder(u32),
    File(u32, Vec<u8>),
    Link(String),
}

impl Layer {
    pub(crate) fn folder(&mut self, path: &str, mode: u32) {
        self.entries.insert(path.to_owned(), Entry::Folder(mode));
    }

    /// A file, and the folders above it.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) {
        let above = path.match_indices('/').filter_map(|(end, _)| path.get(..end));
        for folder in above {
            self.entries
                .entry(folder.to_owned())
                .or_insert(Entry::Folder(0o755));
        }
        self.entries
            .insert(path.to_owned(), Entry::File(mode, content.into()));
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.entries
            .insert(path.to_owned(), Entry::Link(target.to_owned()));
    }

    fn tar(&self) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = tar::Header::new_gnu();
            header.set_mtime(0);
            header.set_uid(0);
            header.set_gid(0);
            match entry {
                Entry::Folder(mode) => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_size(0);
                    tar.append_data(&mut header, format!("{path}/"), std::io::empty())?;
                }
                Entry::File(mode, content) => {
                    header.set_mode(*mode);
                    header.set_size(content.len() as u64);
                    tar.append_data(&mut header, path, content.as_slice())?;
                }
                Entry::Link(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, path, target)?;
                }
            }
        }
        Ok(tar.into_inner()?)
    }
}

/// How the image is run by default.
#[derive(Default)]
pub(crate) struct Defaults<'a> {
    pub(crate) user: &'a str,
    pub(crate) entrypoint: &'a [&'a str],
    pub(crate) command: &'a [&'a str],
    pub(crate) environment: &'a [&'a str],
    /// By the names of <https://specs.opencontainers.org/image-spec/annotations/>.
    pub(crate) labels: &'a [(&'a str, &'a str)],
}

/// An image, its lowest layer first.
pub(crate) struct Image {
    manifest: Blob,
    config: Blob,
    layers: Vec<Blob>,
}

struct Blob {
    media_type: &'static str,
    digest: String,
    content: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, content: Vec<u8>) -> Blob {
        let digest = Sha256::digest(&content)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Blob {
            media_type,
            digest,
            content,
        }
    }

    fn json(media_type: &'static str, content: &Value) -> Result<Blob> {
        Ok(Blob::new(media_type, serde_json::to_vec(content)?))
    }

    /// Its place in an archive.
    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }

    fn descriptor(&self) -> Value {
        json!({
            "mediaType": self.media_type,
            "digest": format!("sha256:{}", self.digest),
            "size": self.content.len(),
        })
    }
}

impl Image {
    pub(crate) fn new(layers: &[&Layer], defaults: &Defaults<'_>) -> Result<Image> {
        let layers = layers
            .iter()
            .map(|layer| Ok(Blob::new("application/vnd.oci.image.layer.v1.tar", layer.tar()?)))
            .collect::<Result<Vec<_>>>()?;
        let digests: Vec<String> = layers
            .iter()
            .map(|layer| format!("sha256:{}", layer.digest))
            .collect();
        let labels: BTreeMap<_, _> = defaults.labels.iter().copied().collect();
        let config = Blob::json(
            "application/vnd.oci.image.config.v1+json",
            &json!({
                "architecture": architecture(),
                "os": "linux",
                "config": {
                    "User": defaults.user,
                    "Entrypoint": defaults.entrypoint,
                    "Cmd": defaults.command,
                    "Env": defaults.environment,
                    "Labels": labels,
                    "WorkingDir": "/",
                },
                "rootfs": {"type": "layers", "diff_ids": digests},
            }),
        )?;
        let manifest = Blob::json(
            "application/vnd.oci.image.manifest.v1+json",
            &json!({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": config.descriptor(),
                "layers": layers.iter().map(Blob::descriptor).collect::<Vec<_>>(),
            }),
        )?;
        Ok(Image {
            manifest,
            config,
            layers,
        })
    }

    /// A tag that changes with the content alone.
    pub(crate) fn content_tag(&self) -> String {
        self.manifest.digest.chars().take(12).collect()
    }

    /// Writes the archive, under all these names (`host/name:tag`). It appears whole or not at all.
    pub(crate) fn write(&self, path: &Path, names: &[String]) -> Result<()> {
        let folder = path.parent().context("an archive needs a folder")?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let file = tempfile::NamedTempFile::new_in(folder)?;
        self.write_to(file.as_file(), names)
            .with_context(|| format!("cannot write {}", path.display()))?;
        file.persist(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(())
    }

    fn write_to(&self, file: &File, names: &[String]) -> Result<()> {
        let manifests: Vec<Value> = names.iter().map(|name| self.named(name)).collect();
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": manifests,
        });
        let mut content = Layer::default();
        content.file("oci-layout", 0o644, r#"{"imageLayoutVersion":"1.0.0"}"#);
        content.file("index.json", 0o644, serde_json::to_vec(&index)?);
        content.file(
            "manifest.json",
            0o644,
            serde_json::to_vec(&self.for_docker(names))?,
        );
        for blob in [&self.manifest, &self.config].into_iter().chain(&self.layers) {
            content.file(&blob.path(), 0o644, blob.content.clone());
        }
        let mut file = file;
        file.write_all(&content.tar()?)?;
        Ok(())
    }

    /// What `docker load` reads, which before Docker 25 knew no OCI layout.
    fn for_docker(&self, names: &[String]) -> Value {
        let layers: Vec<String> = self.layers.iter().map(Blob::path).collect();
        json!([{"Config": self.config.path(), "RepoTags": names, "Layers": layers}])
    }

    fn named(&self, name: &str) -> Value {
        let mut descriptor = self.manifest.descriptor();
        if let Some(fields) = descriptor.as_object_mut() {
            let tag = name.rsplit(':').next().unwrap_or_default();
            fields.insert(
                "platform".into(),
                json!({"architecture": architecture(), "os": "linux"}),
            );
            fields.insert(
                "annotations".into(),
                // containerd and Docker read the first, podman the second.
                json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}),
            );
        }
        descriptor
    }
}

/// This machine's processor, by Go's name for it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer() -> Layer {
        let mut layer = Layer::default();
        layer.file("usr/bin/x", 0o755, "x");
        layer.link("bin", "usr/bin");
        layer.folder("tmp", 0o1777);
        layer
    }

    #[test]
    fn folders_come_before_what_is_in_them() {
        let tar = layer().tar().unwrap();
        let mut archive = tar::Archive::new(tar.as_slice());
        let paths: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(paths, ["bin", "tmp/", "usr/", "usr/bin/", "usr/bin/x"]);
    }

    #[test]
    fn the_same_content_gives_the_same_archive() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            let image = Image::new(
                &[&layer()],
                &Defaults {
                    user: "65532",
                    ..Defaults::default()
                },
            )
            .unwrap();
            image
                .write(
                    &path,
                    &[
                        "localhost/x:1".into(),
                        format!("localhost/x:{}", image.content_tag()),
                    ],
                )
                .unwrap();
            std::fs::read(path).unwrap()
        };
        assert_eq!(write("one.tar"), write("two.tar"));
    }
}

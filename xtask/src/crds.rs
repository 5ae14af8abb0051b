//! `cargo xtask crds`: the CRDs, from the Rust types to the files that are installed and the page that explains them.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::{api_reference, checkout};

/// Write the CRDs to `crds/` and to the chart `execution-api`, and their fields to `docs/reference/api.md`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail, and name the files, if any differs from the types.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.check {
        check()?
    } else {
        write(&files()?)?
    }
    Ok(ExitCode::SUCCESS)
}

/// The definitions as one file.
pub(crate) fn in_one_file() -> anyhow::Result<String> {
    let files = files()?;
    let definitions = files.iter().filter(|(file, _)| file.starts_with("crds"));
    Ok(definitions.map(|(_, yaml)| format!("---\n{yaml}")).collect())
}

/// What every file has to hold.
fn files() -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let mut manifests = Vec::new();
    for crd in ayatori_core::crd::all() {
        let kind = crd.spec.names.kind.to_lowercase();
        let mut manifest = serde_json::to_value(&crd).context("writing a CRD as JSON")?;
        whole_numbers(&mut manifest);
        files.insert(PathBuf::from(format!("crds/{kind}.yaml")), yaml(&manifest)?);
        manifests.push(manifest.clone());
        keep_on_uninstall(&mut manifest);
        let template = format!("charts/execution-api/templates/crd-{kind}.yaml");
        files.insert(PathBuf::from(template), escape_for_helm(&yaml(&manifest)?));
    }
    let reference = api_reference::render(&manifests)?;
    files.insert(PathBuf::from("docs/reference/api.md"), reference);
    Ok(files)
}

fn write(files: &BTreeMap<PathBuf, String>) -> anyhow::Result<()> {
    for (file, content) in files {
        let path = checkout::root().join(file);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        fs::write(&path, content).with_context(|| format!("writing {}", file.display()))?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Fails unless the files are what the types say.
pub(crate) fn check() -> anyhow::Result<()> {
    let files = files()?;
    let differing: Vec<String> = files
        .iter()
        .filter(|(file, content)| {
            fs::read_to_string(checkout::root().join(file)).ok().as_ref() != Some(*content)
        })
        .map(|(file, _)| file.display().to_string())
        .collect();
    ensure!(
        differing.is_empty(),
        "not what the types say: {}. Run `cargo xtask crds` and commit the result.",
        differing.join(", ")
    );
    Ok(())
}

fn yaml(manifest: &Value) -> anyhow::Result<String> {
    let body = serde_yaml::to_string(manifest).context("writing a CRD as YAML")?;
    Ok(format!(
        "# Generated from crates/core by `cargo xtask crds`. Do not edit.\n{body}"
    ))
}

/// Limits are floating-point numbers in the Rust type of a CRD; people write `1`, not `1.0`.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15) {
                *number = serde_json::Number::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Uninstalling the chart must not delete every Job with its definition.
fn keep_on_uninstall(manifest: &mut Value) {
    if let Some(metadata) = manifest.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.insert(
            "annotations".to_owned(),
            serde_json::json!({ "helm.sh/resource-policy": "keep" }),
        );
    }
}

/// Text that Helm would take for a template stays text.
fn escape_for_helm(manifest: &str) -> String {
    manifest.replace("{{", r#"{{ "{{" }}"#)
}

//! A real Prometheus on this machine, for one test.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use reqwest::{Client, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::api::eventually;

/// How often it scrapes, and judges its rules.
const INTERVAL: &str = "1s";

/// The process. It ends, and everything it has stored goes, when this is dropped.
pub struct Prometheus {
    url: String,
    client: Client,
    began: SystemTime,
    _process: Child,
    _folder: tempfile::TempDir,
}

/// An alert that is pending or firing.
#[derive(Clone, Debug, Deserialize)]
pub struct Alert {
    /// `alertname` too.
    pub labels: BTreeMap<String, String>,
    /// Summary, description and runbook, with everything filled in.
    pub annotations: BTreeMap<String, String>,
    /// `pending` or `firing`.
    pub state: String,
}

impl Alert {
    /// What it is called.
    pub fn name(&self) -> &str {
        self.labels.get("alertname").map_or("", String::as_str)
    }

    /// Whether it has all these labels.
    pub fn has<'a>(&self, labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> bool {
        let mut labels = labels.into_iter();
        labels.all(|(name, value)| self.labels.get(name).is_some_and(|found| found == value))
    }
}

#[derive(Deserialize)]
struct Answer<T> {
    data: Option<T>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Alerts {
    alerts: Vec<Alert>,
}

#[derive(Deserialize)]
struct Matrix {
    result: Vec<Series>,
}

/// A series with its samples.
#[derive(Debug, Deserialize)]
pub struct Series {
    /// Its labels.
    pub metric: BTreeMap<String, String>,
    values: Vec<(f64, String)>,
}

impl Series {
    /// Its samples that are numbers.
    pub fn numbers(&self) -> impl Iterator<Item = f64> {
        let parsed = self.values.iter().filter_map(|(_, value)| value.parse().ok());
        parsed.filter(|number: &f64| number.is_finite())
    }
}

/// An address on loopback where nobody listens yet.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("finding a free port")?;
    Ok(listener.local_addr()?)
}

impl Prometheus {
    /// Starts it with these rules, a whole file of them. `targets` has the label `job` and the address of everything
    /// that it is to scrape, also of what is not there yet.
    pub async fn start(rules: &str, targets: &[(&str, SocketAddr)]) -> anyhow::Result<Self> {
        let program = std::env::var_os("AYATORI_PROMETHEUS")
            .context("AYATORI_PROMETHEUS is not set: run `cargo xtask test`")?;
        let folder = tempfile::tempdir()?;
        let mut jobs = BTreeMap::<_, Vec<_>>::new();
        for (job, address) in targets {
            jobs.entry(*job).or_default().push(address.to_string());
        }
        let scrapes = jobs
            .into_iter()
            .map(|(job, targets)| json!({"job_name": job, "static_configs": [{"targets": targets}]}));
        // What is JSON is YAML too.
        let config = json!({
            "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": ["rules.yaml"],
            "scrape_configs": scrapes.collect::<Vec<_>>(),
        });
        let config_file = folder.path().join("prometheus.yaml");
        tokio::fs::write(&config_file, config.to_string()).await?;
        tokio::fs::write(folder.path().join("rules.yaml"), rules).await?;
        let listen = free_address()?;
        let process = Command::new(program)
            .current_dir(folder.path())
            .arg(format!("--config.file={}", config_file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={listen}"))
            .arg("--log.level=warn")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("starting Prometheus")?;
        // Fails only where another test of this process has done it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let prometheus = Self {
            url: format!("http://{listen}"),
            client: Client::builder()
                .timeout(Duration::from_secs(30))
                .no_proxy()
                .build()?,
            began: SystemTime::now(),
            _process: process,
            _folder: folder,
        };
        eventually("Prometheus is ready", async || {
            let ready = prometheus.client.get(format!("{}/-/ready", prometheus.url));
            Ok(ready
                .send()
                .await
                .is_ok_and(|answer| answer.status().is_success()))
        })
        .await?;
        Ok(prometheus)
    }

    /// The alerts that are pending or firing now.
    pub async fn alerts(&self) -> anyhow::Result<Vec<Alert>> {
        let alerts: Alerts = self.ask("alerts", &[]).await?;
        Ok(alerts.alerts)
    }

    /// Every series that a query gave since the start, a second apart.
    pub async fn history(&self, query: &str) -> anyhow::Result<Vec<Series>> {
        let seconds = |time: SystemTime| Ok::<_, anyhow::Error>(time.duration_since(SystemTime::UNIX_EPOCH)?);
        let (start, end) = (seconds(self.began)?, seconds(SystemTime::now())?);
        let range = [
            ("query", query.to_owned()),
            ("start", start.as_secs_f64().to_string()),
            ("end", end.as_secs_f64().to_string()),
            ("step", "1".to_owned()),
        ];
        let matrix: Matrix = self.ask("query_range", &range).await?;
        Ok(matrix.result)
    }

    async fn ask<T: DeserializeOwned>(&self, what: &str, query: &[(&str, String)]) -> anyhow::Result<T> {
        let url = Url::parse_with_params(&format!("{}/api/v1/{what}", self.url), query)?;
        let answer = self.client.get(url).send().await?;
        let status = answer.status();
        let answer: Answer<T> = answer.json().await.with_context(|| format!("{what}: {status}"))?;
        ensure!(
            answer.error.is_none(),
            "{what}: {}",
            answer.error.unwrap_or_default()
        );
        answer.data.with_context(|| format!("{what}: no data"))
    }
}

/// The rules that the chart `execution-api` has with these values, as a file for Prometheus.
pub async fn rules(values: &[String]) -> anyhow::Result<String> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/execution-api");
    let values: Vec<_> = values.iter().map(|value| format!("--set={value}")).collect();
    let mut arguments = vec!["template", "execution-api", chart];
    arguments.push("--show-only=templates/prometheusrule.yaml");
    arguments.push("--set=monitoring.prometheusRule.enabled=true");
    arguments.extend(values.iter().map(String::as_str));
    let rendered = crate::replica::helm(&arguments).await?;
    let object = Value::deserialize(serde_yaml::Deserializer::from_str(&rendered))?;
    let spec = object.get("spec").context("a PrometheusRule without a spec")?;
    Ok(spec.to_string())
}

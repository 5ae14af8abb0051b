//! The charts as they are installed for all tests.

use ayatori_e2e::accounts::SYSTEM_NAMESPACE;
use ayatori_e2e::charts::{self, API, CHARTS, text};
use ayatori_e2e::replica::helm;
use serde_json::Value;

/// A chart as it is installed.
pub(crate) struct Release {
    pub(crate) chart: &'static str,
    /// What it was given.
    pub(crate) values: Value,
}

impl Release {
    async fn of(chart: &'static str) -> anyhow::Result<Self> {
        let get = ["get", "values", chart, "--namespace", SYSTEM_NAMESPACE];
        let values = helm(&[&get[..], &["--output", "json"]].concat()).await?;
        let values = serde_json::from_str(&values)?;
        Ok(Self { chart, values })
    }

    pub(crate) fn is_adapter(&self) -> bool {
        self.chart != API
    }

    /// Installs or upgrades it to what it was.
    async fn restore(&self) -> anyhow::Result<()> {
        let values = tempfile::NamedTempFile::new()?;
        std::fs::write(values.path(), self.values.to_string())?;
        let folder = charts::folder(self.chart);
        let upgrade = ["upgrade", "--install", self.chart, text(&folder)?];
        let how = ["--namespace", SYSTEM_NAMESPACE, "--force-conflicts", "--wait"];
        let given = ["--timeout=3m", "--values", text(values.path())?];
        helm(&[&upgrade[..], &how, &given].concat()).await.map(drop)
    }
}

/// Runs a test on all releases and puts them back, however it ends.
pub(crate) async fn with_releases(
    test: impl AsyncFnOnce(&[Release]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut releases = Vec::new();
    for chart in CHARTS {
        releases.push(Release::of(chart).await?);
    }
    let outcome = test(&releases).await;
    let restored = async {
        for release in &releases {
            release.restore().await?;
        }
        anyhow::Ok(())
    };
    outcome.and(restored.await)
}

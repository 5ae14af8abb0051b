//! Which alerts have fired.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use ayatori_e2e::api::{self, PATIENCE};
use ayatori_e2e::ground::within;
use ayatori_e2e::prometheus::{Alert, Prometheus};
use tokio::sync::watch;

use crate::adapters::{AWAY, BUSY, LIMITED};

/// How often Prometheus is asked, which judges its rules once a second.
const OFTEN: Duration = Duration::from_millis(500);
/// The class whose server falls silent.
pub(crate) const SILENT: &str = "silent";

/// Every alert, and the labels that it has here besides. The name of a class has that of the namespace before it.
pub(crate) const EXPECTED: [(&str, &[(&str, &str)]); 10] = [
    ("AyatoriNoLeader", &[("lease", AWAY)]),
    ("AyatoriJobClassNotReady", &[("class", SILENT)]),
    ("AyatoriResultUnknown", &[("class", SILENT)]),
    (
        "AyatoriReconcileErrors",
        &[("job", LIMITED), ("reason", "Forbidden")],
    ),
    ("AyatoriQueueBacklog", &[("job", BUSY), ("controller", "job")]),
    ("AyatoriDeletionsLate", &[("job", AWAY)]),
    ("AyatoriDeletionBlocked", &[("kind", "Job")]),
    ("AyatoriOrphanedExecutions", &[("job", BUSY)]),
    ("AyatoriDefaultJobClassAmbiguous", &[]),
    (
        "AyatoriUndecodableObjects",
        &[("job", BUSY), ("kind", "OpenSandboxExecutionParameters")],
    ),
];

/// Looks for alerts, and remembers which have fired.
pub(crate) struct Watch<'a> {
    prometheus: &'a Prometheus,
    /// The whole name of the class whose server falls silent.
    class: &'a str,
    fired: watch::Sender<BTreeSet<&'static str>>,
}

impl<'a> Watch<'a> {
    pub(crate) fn over(prometheus: &'a Prometheus, class: &'a str) -> Self {
        Self {
            prometheus,
            class,
            fired: watch::Sender::default(),
        }
    }

    /// Looks until every alert has fired.
    pub(crate) async fn keep(&self) -> anyhow::Result<()> {
        let looking = async {
            let mut interval = tokio::time::interval(OFTEN);
            while self.fired.borrow().len() < EXPECTED.len() {
                interval.tick().await;
                self.look().await?;
            }
            anyhow::Ok(())
        };
        // The longest trouble has several waits, one after another.
        let looked = within(PATIENCE * 2, looking).await;
        looked.with_context(|| format!("only these alerts have fired: {:?}", *self.fired.borrow()))?
    }

    /// Returns once this alert has fired.
    pub(crate) async fn until_fired(&self, alert: &str) -> anyhow::Result<()> {
        let mut fired = self.fired.subscribe();
        let waited = within(PATIENCE, fired.wait_for(|fired| fired.contains(alert))).await;
        waited.with_context(|| format!("{alert} fires"))??;
        Ok(())
    }

    /// Returns once this metric of this adapter has been scraped.
    pub(crate) async fn until_seen(&self, metric: &str, adapter: &str) -> anyhow::Result<()> {
        let query = format!("{metric}{{job=\"{adapter}\"}}");
        api::eventually(&format!("{query} is scraped"), async || {
            Ok(!self.prometheus.history(&query).await?.is_empty())
        })
        .await
    }

    async fn look(&self) -> anyhow::Result<()> {
        let alerts = self.prometheus.alerts().await?;
        for alert in alerts.iter().filter(|alert| alert.state == "firing") {
            if let Some((name, _)) = EXPECTED.iter().find(|expected| self.is(alert, expected)) {
                tells_a_person(alert)?;
                self.fired.send_if_modified(|fired| fired.insert(name));
            }
        }
        Ok(())
    }

    fn is(&self, alert: &Alert, (name, labels): &(&str, &[(&str, &str)])) -> bool {
        let whole = |value| if value == SILENT { self.class } else { value };
        let labels = labels.iter().map(|(label, value)| (*label, whole(*value)));
        *name == alert.name() && alert.has(labels)
    }
}

/// Fails unless everything that a person reads is there, with every label filled in.
fn tells_a_person(alert: &Alert) -> anyhow::Result<()> {
    for annotation in ["summary", "description", "runbook_url"] {
        let text = alert.annotations.get(annotation).map_or("", String::as_str);
        ensure!(
            !text.is_empty() && !text.contains("<error") && !text.contains("<no value>"),
            "{}: {annotation}: {text:?}",
            alert.name()
        );
    }
    Ok(())
}

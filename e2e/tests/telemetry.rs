//! What an adapter tells of itself to a collector: one trace of each Job, whatever becomes of the adapter, and the
//! same metrics as on its page.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, ensure};
use ayatori_core::job::Outcome;
use ayatori_core::names::TRACEPARENT;
use ayatori_e2e::api::eventually;
use ayatori_e2e::collector::{Collector, attribute, hex};
use ayatori_e2e::replica::Stage;
use ayatori_e2e::world::{World, expect, with_world};
use kube::ResourceExt;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::{metric, number_data_point};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_one_trace_of_its_callers_though_its_adapter_is_killed_and_another_ends_it()
-> anyhow::Result<()> {
    with_world(async |world: World| {
        let stage = Stage::take(&world.client).await?;
        let outcome = tells_everything(&world, &stage).await;
        stage.clear().await?;
        outcome
    })
    .await
}

async fn tells_everything(world: &World, stage: &Stage) -> anyhow::Result<()> {
    let collector = Collector::start().await?;
    let (first, second) = (free_address()?, free_address()?);
    stage.forget_leaders().await?;
    let replica = stage.start_watched("first", first, &collector.endpoint)?;
    // It runs for as long as no adapter is there.
    let mut called = world.job("called", "sleep 4; exit 3");
    called
        .annotations_mut()
        .insert(TRACEPARENT.to_owned(), format!("00-{TRACE}-{CALLER}-01"));
    let called = world.create(&called).await?;
    world.when_started("called").await?;
    let has = |trace: &str, name: &str| collector.spans(trace).iter().any(|sent| sent.span.name == name);
    eventually("the start has arrived", async || Ok(has(TRACE, "Started"))).await?;
    replica.kill().await?;

    stage.forget_leaders().await?;
    let replica = stage.start_watched("second", second, &collector.endpoint)?;
    let mut alone = world.job("alone", "exit 0");
    alone
        .annotations_mut()
        .insert(TRACEPARENT.to_owned(), "00-not-of-this-world".repeat(1000));
    let alone = world.create(&alone).await?;
    let own = alone.uid().context("no UID")?.replace('-', "");
    expect(
        &world.when_finished("alone").await?,
        Outcome::Succeeded,
        "Completed",
        Some(0),
    )?;
    expect(
        &world.when_finished("called").await?,
        Outcome::Failed,
        "NonZeroExit",
        Some(3),
    )?;
    eventually("both ends have arrived", async || {
        Ok(has(TRACE, "Job") && has(&own, "Job"))
    })
    .await?;

    let by = [
        ("Accepted", "first"),
        ("Scheduled", "first"),
        ("Started", "first"),
        ("Finished", "second"),
    ];
    complete(&collector, TRACE, &called.uid().context("no UID")?, CALLER, by)?;
    complete(
        &collector,
        &own,
        &alone.uid().context("no UID")?,
        "",
        by.map(|(name, _)| (name, "second")),
    )?;
    same_metrics(&world.class, &collector, second).await?;

    // Who is asked to end says first what it had not said yet.
    let last = world.create(&world.job("last", "exit 0")).await?;
    world.when_finished("last").await?;
    replica.stop().await?;
    let own = last.uid().context("no UID")?.replace('-', "");
    ensure!(has(&own, "Job"), "the last words were not sent");
    Ok(())
}

/// That each step of a Job is in its trace exactly once, under the whole, and sent by whom it was made.
fn complete(
    collector: &Collector,
    trace: &str,
    uid: &str,
    caller: &str,
    steps: [(&str, &str); 4],
) -> anyhow::Result<()> {
    let sent = collector.spans(trace);
    let only = |name: &str| -> anyhow::Result<_> {
        let of_name: Vec<_> = sent.iter().filter(|sent| sent.span.name == name).collect();
        let [one] = of_name.as_slice() else {
            anyhow::bail!("{} spans {name} in trace {trace}: {sent:#?}", of_name.len());
        };
        Ok(*one)
    };
    let whole = &only("Job")?.span;
    ensure!(
        hex(&whole.parent_span_id) == caller,
        "not under the caller's: {whole:#?}"
    );
    ensure!(
        attribute(&whole.attributes, "ayatori.job.uid").as_deref() == Some(uid),
        "{whole:#?}"
    );
    let mut time = whole.start_time_unix_nano;
    for (name, replica) in steps {
        let step = only(name)?;
        ensure!(step.replica == replica, "{name} was sent by {}", step.replica);
        let span = &step.span;
        ensure!(
            span.parent_span_id == whole.span_id,
            "not under the whole: {span:#?}"
        );
        ensure!(
            span.start_time_unix_nano == time,
            "a gap before {name}: {sent:#?}"
        );
        time = span.end_time_unix_nano;
    }
    ensure!(
        time == whole.end_time_unix_nano,
        "the whole ends elsewhere: {sent:#?}"
    );
    let created = sent.iter().find(|sent| {
        let operation = attribute(&sent.span.attributes, "ayatori.backend.operation");
        operation.as_deref() == Some("create jobs.batch")
    });
    let created = created.context("no request to the backend in the trace")?;
    let look = sent
        .iter()
        .find(|sent| sent.span.span_id == created.span.parent_span_id);
    let look = look.context("the request belongs to no reconcile")?;
    ensure!(look.span.name == "reconcile" && look.span.parent_span_id == whole.span_id);
    println!("{} spans in trace {trace}", sent.len());
    Ok(())
}

/// That what the page shows of a class is what was sent.
async fn same_metrics(class: &str, collector: &Collector, listen: SocketAddr) -> anyhow::Result<()> {
    eventually("the collector knows what the page shows", async || {
        let page = reqwest::get(format!("http://{listen}/metrics"))
            .await?
            .text()
            .await?;
        let of_class = format!("class=\"{class}\"");
        let shown: BTreeMap<_, _> = page
            .lines()
            .filter(|line| line.contains(&of_class) && !line.contains("_bucket{") && !line.contains("_sum{"))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(series, value)| (series.to_owned(), value.to_owned()))
            .collect();
        let expected = [
            format!("ayatori_jobs{{{of_class},state=\"Failed\"}}"),
            format!("ayatori_jobs_finished_total{{{of_class},outcome=\"Failed\",reason=\"NonZeroExit\"}}"),
            format!("ayatori_job_stage_duration_seconds_count{{{of_class},stage=\"Finished\"}}"),
            format!("ayatori_job_class_ready{{{of_class}}}"),
        ];
        Ok(expected.iter().all(|series| shown.contains_key(series)) && shown == sent(collector, class))
    })
    .await
}

/// The series of a class that were sent last, as the page writes them.
fn sent(collector: &Collector, class: &str) -> BTreeMap<String, String> {
    let mut series = BTreeMap::new();
    for metric in collector.metrics() {
        let name = metric.name.replace('.', "_");
        let numbers = |points: Vec<opentelemetry_proto::tonic::metrics::v1::NumberDataPoint>| {
            let value = |value| match value {
                number_data_point::Value::AsDouble(value) => value.to_string(),
                number_data_point::Value::AsInt(value) => value.to_string(),
            };
            let points = points.into_iter();
            points
                .filter_map(|point| Some((point.attributes, value(point.value?))))
                .collect::<Vec<_>>()
        };
        let (name, points) = match metric.data {
            Some(metric::Data::Gauge(gauge)) => (name, numbers(gauge.data_points)),
            Some(metric::Data::Sum(sum)) if sum.is_monotonic => {
                (format!("{name}_total"), numbers(sum.data_points))
            }
            Some(metric::Data::Sum(sum)) => (name, numbers(sum.data_points)),
            Some(metric::Data::Histogram(histogram)) => {
                let points = histogram.data_points.into_iter();
                let counts = points.map(|point| (point.attributes, point.count.to_string()));
                (format!("{name}_seconds_count"), counts.collect())
            }
            Some(metric::Data::ExponentialHistogram(_) | metric::Data::Summary(_)) | None => continue,
        };
        for (attributes, value) in points {
            if attribute(&attributes, "class").as_deref() == Some(class) {
                series.insert(format!("{name}{{{}}}", labels(&attributes)), value);
            }
        }
    }
    series
}

fn labels(attributes: &[KeyValue]) -> String {
    let label = |a: &KeyValue| {
        let value = attribute(attributes, &a.key).unwrap_or_default();
        format!("{}=\"{value}\"", a.key)
    };
    let mut labels: Vec<_> = attributes.iter().map(label).collect();
    labels.sort();
    labels.join(",")
}

fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("finding a free port")?;
    Ok(listener.local_addr()?)
}

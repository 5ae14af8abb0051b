//! Whether Jobs that cannot go on slow others.

use std::time::Duration;

use anyhow::Context;
use ayatori_core::job::{EnvVar, EnvVarSource, Job, KeySelector};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use kube::Api;
use kube::api::PostParams;

use super::latency::{between, live};
use super::{Outcome, Size};
use crate::adapter::Adapter;
use crate::arena::{Arena, Limits};
use crate::budgets::FAIRNESS;
use crate::chronicle::Moment;
use crate::figures::{Figure, Spread, quantile};
use crate::herd;
use crate::peer::{self, HERD, Peer, Work};
use crate::stage::Stage;

pub(crate) const ABOUT: &str = "\
One new Job a second in one namespace, while in another 2,000 Jobs wait for ConfigMaps that do not exist, which the \
adapter keeps asking for. The peer is the same without them; noise is the first such time against the last.";

const BLOCKED: u32 = 2_000;
/// How many Jobs each time.
const JOBS: u32 = 100;
const PERIOD: Duration = Duration::from_secs(1);

pub(crate) async fn measure(stage: &Stage, size: Size) -> anyhow::Result<Outcome> {
    let arena = Arena::open(stage, Limits::Lifted).await?;
    let mut adapter = Adapter::of_pods(&arena).await?;
    let watching = arena.chronicle.watch(&arena.client, Peer::Ours.namespace());
    let jobs = size.of(JOBS);

    let before = pass(&arena, "before", jobs).await?;
    let blocked = size.of(BLOCKED);
    let looked = adapter.reconciles().await? as u32;
    block(&arena, blocked).await?;
    adapter.when_settled(looked.saturating_add(blocked)).await?;
    let beside = pass(&arena, "beside", jobs).await?;
    herd::forget(&arena.store, HERD).await?;
    let after = pass(&arena, "after", jobs).await?;

    drop(watching);
    adapter.stop().await?;
    arena.close().await?;
    let alone = [before.clone(), after.clone()].concat();
    let figure = |what: &str, q| {
        Figure::new(what, "ms", Spread::quantile(&beside, q))
            .beside("alone", Spread::quantile(&alone, q))
            .with_noise(quantile(&before, q) / quantile(&after, q))
    };
    Ok(vec![
        figure("create to Finished beside 2,000 blocked Jobs, p50", 0.5),
        figure(FAIRNESS, 0.99),
    ]
    .into())
}

/// One new Job a second; how long each took.
async fn pass(arena: &Arena<'_>, name: &str, jobs: u32) -> anyhow::Result<Vec<f64>> {
    eprintln!("fairness: {jobs} Jobs, {name}");
    let lives = (0..jobs).map(async |number| {
        tokio::time::sleep(PERIOD * number).await;
        live(arena, Peer::Ours, &format!("{name}-{number:06}")).await
    });
    try_join_all(lives).await?;
    let lives = arena.chronicle.lives_of(Peer::Ours, name);
    Ok(between(&lives, Moment::Asked, Moment::Finished))
}

/// Jobs that wait for what never comes.
async fn block(arena: &Arena<'_>, jobs: u32) -> anyhow::Result<()> {
    let all = Api::<Job>::namespaced(arena.client.clone(), HERD);
    stream::iter(0..jobs)
        .map(Ok)
        .try_for_each_concurrent(16, async |number| {
            let mut job = peer::ours(&format!("blocked-{number:06}"), &Work::NOTHING);
            job.spec.env = vec![EnvVar {
                name: "MISSING".to_owned(),
                value_from: Some(EnvVarSource {
                    config_map_key_ref: Some(KeySelector {
                        name: format!("missing-{number}"),
                        key: "key".to_owned(),
                        optional: None,
                    }),
                    ..EnvVarSource::default()
                }),
                ..EnvVar::default()
            }];
            let created = all.create(&PostParams::default(), &job).await;
            created.map(drop).context("creating a Job that is blocked")
        })
        .await
}

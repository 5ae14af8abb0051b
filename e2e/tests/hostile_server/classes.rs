//! What a class says of its server, and what edits of its parameters do.

use anyhow::ensure;
use ayatori_core::conditions::{ACCEPTED, READY, RESULT_UNKNOWN, SCHEDULED};
use ayatori_core::job::Outcome;
use ayatori_e2e::ground::{class_condition, holds};
use ayatori_e2e::world::expect;
use ayatori_opensandbox_adapter::backend::Options;
use ayatori_opensandbox_adapter::stub::{Call, Certificate, Fault, Stub};
use serde_json::json;

use crate::trial::{options, with, with_server};

#[tokio::test]
async fn a_server_that_cannot_show_the_end_of_a_command_is_sent_none() -> anyhow::Result<()> {
    with(async |trial| {
        // A server with pools runs sandboxes in Kubernetes.
        let pools = Fault::Answers(200, r#"{"items":[]}"#.into());
        trial.server.set(|faults| faults.on(Call::Other, pools));
        let _adapter = trial.start_unready().await?;
        trial.when_class_says(READY, "RuntimeCannotShowEnd").await?;
        let job = trial.create("").await?;
        trial.when_says(&job, SCHEDULED, "JobClassNotReady").await?;
        ensure!(trial.server.calls(Call::Create) == 0);
        trial.server.set(|faults| faults.off(Call::Other));
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

#[tokio::test]
async fn an_http_endpoint_needs_the_adapters_consent_too() -> anyhow::Result<()> {
    let options = Options {
        allow_insecure_http: false,
        ..options()
    };
    with_server(Stub::start().await?, options, async |trial| {
        let _adapter = trial.start_unready().await?;
        trial.when_class_says(ACCEPTED, "InvalidEndpoint").await?;
        ensure!(trial.server.requests().is_empty());
        Ok(())
    })
    .await
}

/// A class on a server with this certificate is not ready, and says these words.
async fn distrusted(certificate: Certificate, words: &str) -> anyhow::Result<()> {
    with_server(
        Stub::start_with_tls(certificate).await?,
        options(),
        async |trial| {
            let _adapter = trial.start_unready().await?;
            let class = trial.when_class_says(READY, "BackendUnreachable").await?;
            let message = class_condition(&class, READY).map_or("", |c| &c.message);
            ensure!(message.contains(words), "{certificate:?}: {message}");
            ensure!(trial.server.requests().is_empty(), "something was sent");
            Ok(())
        },
    )
    .await
}

#[tokio::test]
async fn a_certificate_that_cannot_be_trusted_keeps_a_class_unready_and_is_named_by_its_fault()
-> anyhow::Result<()> {
    let all = futures::join!(
        distrusted(Certificate::Expired, "certificate expired"),
        distrusted(Certificate::NotYetValid, "certificate not valid yet"),
        distrusted(Certificate::OfOtherName, "does not name the endpoint's host"),
        distrusted(Certificate::OfOtherAuthority, "unknown issuer"),
    );
    all.0.and(all.1).and(all.2).and(all.3)
}

#[tokio::test]
async fn jobs_run_on_a_server_whose_private_authority_the_parameters_name() -> anyhow::Result<()> {
    let server = Stub::start_with_tls(Certificate::Good).await?;
    let options = Options {
        allow_insecure_http: false,
        ..options()
    };
    with_server(server, options, async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("exit=7").await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(7))?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

#[tokio::test]
async fn what_runs_on_a_server_that_the_parameters_no_longer_name_is_unknown_and_not_run_on_the_new_one()
-> anyhow::Result<()> {
    let other = Stub::start().await?;
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create("runs=forever").await?;
        let job = trial.when_started(&job).await?;
        trial
            .edit_parameters(json!({"endpoint": other.endpoint()}))
            .await?;
        trial
            .when_says(&job, RESULT_UNKNOWN, "ParametersReplaced")
            .await?;
        trial.server.end(&trial.sandbox(&job)?, 137);
        // The new server is used, for new Jobs.
        trial.when_ready().await?;
        let new = trial.create("").await?;
        let new = trial.when_finished(&new).await?;
        expect(&new, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!((other.calls(Call::Create), trial.posts(&new)) == (1, 0));
        trial.when_released(&new).await?;
        let still = trial.when(&job, "there", |_| true).await?;
        ensure!(holds(&still, RESULT_UNKNOWN) && !holds(&still, "Finished"));
        trial
            .edit_parameters(json!({"endpoint": trial.server.endpoint()}))
            .await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(137))?;
        trial.expect_one_post(&job, 1)
    })
    .await
}

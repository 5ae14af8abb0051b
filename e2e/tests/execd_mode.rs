//! Commands that are started inside a sandbox that is up already (`commandMode: Execd`): the adapter, run against a real
//! API server and a server whose sandboxes really run what they are told to. A start is what the command itself leaves
//! behind, so that nothing of the protocol is taken for granted.
//!
//! The control plane alone is enough. `ADAPTER_LOG=debug` shows what the adapters say.

use std::fs;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::PathBuf;

use anyhow::{Context, ensure};
use ayatori_controller::telemetry::{self, LogFormat};
use ayatori_controller::testing::death::{Death, Moment};
use ayatori_controller::testing::replica::{Replica, impatient};
use ayatori_core::conditions::{ACCEPTED, FINISHED, READY, RESULT_UNKNOWN, SCHEDULED, STARTED};
use ayatori_core::job::{EnvVar, EnvVarSource, Job, JobSpec, KeySelector, Outcome};
use ayatori_core::parameters::{
    CommandMode, OpenSandboxExecutionParametersSpec as ParametersSpec, PoolTemplate, SecretKeyReference,
};
use ayatori_core::resources::{ResourceQuantities, ResourceRequirements};
use ayatori_e2e::api::{self, DEADLINE, Run};
use ayatori_e2e::ground::{Ground, class_condition, condition, holds, status};
use ayatori_e2e::world::{expect, result};
use ayatori_opensandbox_adapter::backend::{OpenSandboxBackend, Options};
use ayatori_opensandbox_adapter::stub::{API_KEY, Call, Fault, Faults, Recorded, Stub};
use futures::FutureExt;
use futures::future::try_join_all;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tempfile::TempDir;

/// The identity of a test's replica.
const ONE: &str = "one";

/// One test's part of the world.
struct Trial {
    ground: Ground,
    server: Stub,
    options: Options,
    /// Where commands leave what they did.
    witness: TempDir,
}

impl Deref for Trial {
    type Target = Ground;

    fn deref(&self) -> &Ground {
        &self.ground
    }
}

/// Options of an adapter that a test can wait for.
fn options() -> Options {
    Options {
        allow_insecure_http: true,
        allow_secrets: true,
        send_window_seconds: 4,
        fence_seconds: 8,
        clock_skew_seconds: 1,
        list_lag_seconds: 1,
        log_window_seconds: 0,
        hold_seconds: 60,
        inside_poll_milliseconds: 300,
        poll_milliseconds: 200,
        call_timeout_seconds: 3,
        create_timeout_seconds: 5,
        ..Options::default()
    }
}

/// Runs a test with a class of this kind and cleans up however it ends. It fails if anything is left behind.
async fn with_class(
    options: Options,
    adjust: impl Fn(&mut ParametersSpec),
    test: impl AsyncFn(&Trial) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    api::in_namespace(async |run: Run| {
        if let Some(level) = std::env::var_os("ADAPTER_LOG") {
            let _ = telemetry::init_logs(LogFormat::Text, &level.to_string_lossy());
        }
        let trial = Trial {
            ground: Ground::of(run, "opensandbox"),
            server: Stub::start_with_machines().await?,
            options,
            witness: tempfile::tempdir()?,
        };
        let outcome = AssertUnwindSafe(trial.run(&adjust, &test)).catch_unwind().await;
        let cleared = trial.clear().await;
        if cleared.is_err() {
            trial.force().await?;
        }
        match outcome {
            Ok(outcome) => outcome.and(cleared),
            Err(panic) => resume_unwind(panic),
        }
    })
    .await
}

async fn with(test: impl AsyncFn(&Trial) -> anyhow::Result<()>) -> anyhow::Result<()> {
    with_class(options(), |_| {}, test).await
}

impl Trial {
    async fn run(
        &self,
        adjust: &impl Fn(&mut ParametersSpec),
        test: &impl AsyncFn(&Trial) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.store("key", API_KEY).await?;
        let mut spec = ParametersSpec {
            endpoint: self.server.endpoint(),
            allow_insecure_http: Some(true),
            command_mode: Some(CommandMode::Execd),
            api_key_secret_ref: SecretKeyReference {
                namespace: self.namespace.clone(),
                name: "key".to_owned(),
                key: "key".to_owned(),
            },
            ..ParametersSpec::default()
        };
        adjust(&mut spec);
        self.create_class(&self.class, spec).await?;
        let outcome = test(self).await;
        if outcome.is_err() {
            self.show().await;
            eprintln!("sandboxes: {:?}", self.server.sandboxes());
        }
        outcome
    }

    /// Stores a Secret with one key of the same name.
    async fn store(&self, name: &str, value: &str) -> anyhow::Result<()> {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            string_data: Some([(name.to_owned(), value.to_owned())].into()),
            ..Secret::default()
        };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        secrets.create(&PostParams::default(), &secret).await?;
        Ok(())
    }

    /// Starts the adapter, and returns when its class is ready.
    async fn start(&self) -> anyhow::Result<Replica> {
        let replica = self.start_as(&self.namespace, ONE, Death::never()).await?;
        self.when_ready().await?;
        Ok(replica)
    }

    async fn start_as(&self, namespace: &str, identity: &str, death: Death) -> anyhow::Result<Replica> {
        let make =
            |client: &Client| OpenSandboxBackend::new(client, &self.options).called(self.controller.as_str());
        let settings = self.options.settings(impatient());
        Replica::start_with(make, settings, namespace, identity, death).await
    }

    /// Creates a Job whose command notes its start under this name and then does what the script says.
    async fn create_noted(
        &self,
        name: &str,
        script: &str,
        adjust: impl FnOnce(&mut JobSpec),
    ) -> anyhow::Result<Job> {
        let script = format!("echo started >>{}; {script}", self.noted(name).display());
        self.create_with("", |spec| {
            spec.command = ["/bin/sh", "-c", &script].map(str::to_owned).into();
            spec.args = Vec::new();
            adjust(spec);
        })
        .await
    }

    async fn create_script(&self, script: &str) -> anyhow::Result<Job> {
        self.create_noted("job", script, |_| {}).await
    }

    fn noted(&self, name: &str) -> PathBuf {
        self.witness.path().join(name)
    }

    /// How often the command of the Job with this name was started.
    fn starts_of(&self, name: &str) -> usize {
        let noted = fs::read_to_string(self.noted(name)).unwrap_or_default();
        noted.lines().filter(|line| *line == "started").count()
    }

    fn expect_starts(&self, starts: usize) -> anyhow::Result<()> {
        let seen = self.starts_of("job");
        ensure!(
            seen == starts,
            "the command was started {seen} times, not {starts}"
        );
        Ok(())
    }

    /// The Job's sandbox, and who it says it is.
    fn sandbox(&self, job: &Job) -> anyhow::Result<(String, String)> {
        let execution = status(job).execution.context("nothing is recorded")?;
        execution.id.zip(execution.uid).context("no sandbox is recorded")
    }

    fn requests(&self, call: Call) -> Vec<Recorded> {
        let requests = self.server.requests().into_iter();
        requests.filter(|request| request.call == call).collect()
    }

    /// Returns once the server has got so many more requests of this kind.
    async fn after_more(&self, calls: usize, call: Call) {
        let wanted = self.server.calls(call).saturating_add(calls);
        self.server.until(|server| server.calls(call) >= wanted).await;
    }

    /// Deletes everything through a healthy adapter and a healthy server; fails if anything does not go.
    async fn clear(&self) -> anyhow::Result<()> {
        self.server.set(|faults| *faults = Faults::default());
        let _replica = self.start_as(&self.namespace, ONE, Death::never()).await?;
        self.ground.clear().await?;
        let left = self.server.sandboxes();
        ensure!(
            left.is_empty(),
            "the Jobs are gone, and their sandboxes are not: {left:?}"
        );
        Ok(())
    }
}

// ------------------------------------------------------------------------------------------------- results

#[tokio::test]
async fn a_command_runs_in_a_prepared_sandbox_and_its_code_arrives() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        for (script, outcome, reason, code) in [
            ("exit 0", Outcome::Succeeded, "Completed", 0),
            ("exit 4", Outcome::Failed, "NonZeroExit", 4),
        ] {
            let job = trial.create_noted(reason, script, |_| {}).await?;
            let job = trial.when_released(&job).await?;
            expect(&job, outcome, reason, Some(code))?;
            ensure!(holds(&job, STARTED) && status(&job).start_time.is_some());
            ensure!(trial.starts_of(reason) == 1);
        }
        let job = trial
            .create_with("", |spec| spec.command = vec!["no-such-program".to_owned()])
            .await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "StartError", None)
    })
    .await
}

#[tokio::test]
async fn a_held_sandbox_gets_neither_command_nor_environment_and_secrets_only_come_with_the_start()
-> anyhow::Result<()> {
    let allow = |spec: &mut ParametersSpec| spec.allow_secret_env = Some(true);
    with_class(options(), allow, async |trial| {
        let _adapter = trial.start().await?;
        trial.store("token", "secret-canary").await?;
        let variable = |name: &str, value: Option<&str>, from: Option<&str>| EnvVar {
            name: name.to_owned(),
            value: value.map(str::to_owned),
            value_from: from.map(|secret| EnvVarSource {
                secret_key_ref: Some(KeySelector {
                    name: secret.to_owned(),
                    key: secret.to_owned(),
                    optional: None,
                }),
                ..EnvVarSource::default()
            }),
        };
        let seen = trial.noted("seen");
        let script = format!("printf '%s' \"$TOKEN $PLAIN $0\" >{}", seen.display());
        let job = trial
            .create_noted("job", &script, |spec| {
                spec.args = vec!["$(TOKEN)".to_owned()];
                spec.env = vec![
                    variable("TOKEN", None, Some("token")),
                    variable("PLAIN", Some("plain-canary"), None),
                ];
            })
            .await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!(fs::read_to_string(seen)? == "secret-canary plain-canary secret-canary");
        for request in trial.server.requests() {
            let text = format!("{}{}", request.target, request.body);
            let script = request.body["command"].as_str().unwrap_or_default();
            ensure!(
                request.call == Call::Run || !text.contains("canary"),
                "{:?} carried a value: {text}",
                request.call
            );
            ensure!(
                !script.contains("canary"),
                "a daemon may log what it runs: {script}"
            );
        }
        ensure!(!format!("{job:?}").contains("secret-canary"));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_is_written_where_the_end_should_be_is_no_success_and_a_lost_sandbox_is_lost()
-> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create_script("sleep 1000").await?;
        let job = trial.when_started(&job).await?;
        let (sandbox, hold) = trial.sandbox(&job)?;
        let end = format!(".ayatori-{hold}/end");
        for text in [
            "{\"running\": false, \"exit_code\": null}",
            "0\n",
            "waitid: no child processes",
            "",
        ] {
            trial.server.put_file(&sandbox, &end, Some(text))?;
            let job = trial.when_says(&job, RESULT_UNKNOWN, "ExecutionNotFound").await?;
            ensure!(!holds(&job, FINISHED), "{text:?} is no end");
            trial.server.put_file(&sandbox, &end, None)?;
            trial
                .when(&job, "known again", |job| !holds(job, RESULT_UNKNOWN))
                .await?;
        }
        trial.server.vanish(&sandbox);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "ExecutionLost", None)?;
        trial.expect_starts(1)
    })
    .await
}

#[tokio::test]
async fn a_command_whose_marks_are_removed_is_not_started_again() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create_script("sleep 1000").await?;
        let job = trial.when_started(&job).await?;
        let (sandbox, hold) = trial.sandbox(&job)?;
        for mark in ["start", ""] {
            trial
                .server
                .put_file(&sandbox, &format!(".ayatori-{hold}/{mark}"), None)?;
            trial.when_says(&job, RESULT_UNKNOWN, "ExecutionNotFound").await?;
            trial.after_more(6, Call::File).await;
        }
        trial.expect_starts(1)?;
        trial.server.vanish(&sandbox);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "ExecutionLost", None)
    })
    .await
}

#[tokio::test]
async fn a_daemon_that_does_not_answer_makes_a_result_unknown_and_an_end_is_found_once_it_does()
-> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let go = trial.noted("go");
        let script = format!("until [ -e {} ]; do sleep 0.1; done; exit 6", go.display());
        let job = trial.create_script(&script).await?;
        let job = trial.when_started(&job).await?;
        trial
            .server
            .set(|faults| faults.on(Call::File, Fault::AnswersBadGateway));
        let job = trial
            .when_says(&job, RESULT_UNKNOWN, "BackendUnreachable")
            .await?;
        fs::write(&go, "")?;
        trial.server.set(|faults| faults.off(Call::File));
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "NonZeroExit", Some(6))?;
        trial.expect_starts(1)
    })
    .await
}

// ------------------------------------------------------------------------------------------------- starts

#[tokio::test]
async fn whatever_becomes_of_the_answers_to_a_start_the_command_is_started_once() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let faults = [
            Fault::LosesRequest,
            Fault::LosesAnswer,
            Fault::TruncatesAnswer,
            Fault::StopsHalfway,
            Fault::AnswersHalfJson,
            Fault::AnswersPage,
            Fault::AnswersBadGateway,
            Fault::InternalError,
            Fault::NoRoute,
            Fault::Refuses(404, "FILE_NOT_FOUND"),
            Fault::Refuses(404, "DOCKER::SANDBOX_NOT_FOUND"),
            Fault::Answers(200, "{\"running\": false, \"exit_code\": 0}".into()),
        ];
        for (number, fault) in faults.into_iter().enumerate() {
            let name = format!("job-{number}");
            trial
                .server
                .set(|faults| faults.on_next(2, Call::Run, fault.clone()));
            let job = trial.create_noted(&name, "exit 5", |_| {}).await?;
            let job = trial
                .when_finished(&job)
                .await
                .with_context(|| format!("{fault:?}"))?;
            expect(&job, Outcome::Failed, "NonZeroExit", Some(5))?;
            let starts = trial.starts_of(&name);
            ensure!(starts == 1, "{fault:?}: {starts} starts");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_sandbox_that_is_prepared_twice_starts_one_command_and_nothing_is_left() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial.server.set(|faults| {
            faults.on_next(1, Call::Create, Fault::LosesAnswer);
            // Until there are two, nothing is recorded.
            faults.on(Call::File, Fault::AnswersBadGateway);
        });
        let job = trial.create_script("exit 0").await?;
        trial.server.until(|server| server.calls(Call::Create) > 0).await;
        trial.server.put(&trial.requests(Call::Create)[0].body);
        trial.server.set(|faults| faults.off(Call::File));
        let job = trial.when_released(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        trial.expect_starts(1)?;
        ensure!(trial.server.sandboxes().is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_lists_do_not_show_yet_is_not_prepared_again() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .set(|faults| faults.list_lag = SignedDuration::from_secs(5));
        let job = trial.create_script("exit 0").await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        ensure!(trial.server.calls(Call::Create) == 1);
        trial.expect_starts(1)
    })
    .await
}

#[tokio::test]
async fn a_recorded_sandbox_that_is_gone_is_lost_and_not_replaced_by_another_that_was_prepared()
-> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .set(|faults| faults.on_next(1, Call::Create, Fault::LosesAnswer));
        let job = trial.create_script("sleep 1000").await?;
        let job = trial.when_started(&job).await?;
        let (sandbox, _) = trial.sandbox(&job)?;
        let other = trial.server.put(&trial.requests(Call::Create)[0].body);
        trial.server.vanish(&sandbox);
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "ExecutionLost", None)?;
        ensure!(trial.sandbox(&job)?.0 == sandbox && sandbox != other);
        trial.when_released(&job).await?;
        ensure!(trial.server.sandboxes().is_empty());
        trial.expect_starts(1)
    })
    .await
}

#[tokio::test]
async fn two_leaders_at_once_start_every_command_once() -> anyhow::Result<()> {
    with(async |trial| {
        // Leases in two namespaces: both believe that they lead.
        api::in_namespace(async |elsewhere: Run| {
            let _one = trial.start().await?;
            let _two = trial
                .start_as(&elsewhere.namespace, "two", Death::never())
                .await?;
            let names: Vec<_> = (0..12).map(|number| format!("job-{number}")).collect();
            let jobs = try_join_all(
                names
                    .iter()
                    .map(|name| trial.create_noted(name, "exit 3", |_| {})),
            )
            .await?;
            for (job, name) in jobs.iter().zip(&names) {
                let job = trial.when_finished(job).await?;
                expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
                let starts = trial.starts_of(name);
                ensure!(starts == 1, "{name}: {starts} starts");
            }
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test]
async fn a_crash_between_any_two_writes_starts_the_command_once() -> anyhow::Result<()> {
    with(async |trial| {
        for moment in [Moment::Before, Moment::After] {
            for step in 1.. {
                let name = format!("{moment:?}-{step}");
                let first = trial
                    .start_as(&trial.namespace, ONE, Death::at(step, moment))
                    .await?;
                let job = trial.create_noted(&name, "exit 3", |_| {}).await?;
                let died = tokio::select! {
                    () = first.died() => true,
                    released = trial.when_released(&job) => {
                        released?;
                        false
                    }
                };
                first.kill().await;
                let second = trial.start().await?;
                let job = trial.when_released(&job).await?;
                expect(&job, Outcome::Failed, "NonZeroExit", Some(3))?;
                let starts = trial.starts_of(&name);
                ensure!(starts == 1, "{name}: {starts} starts");
                second.kill().await;
                if !died {
                    // Five writes where the start and the end are seen together; a death after the last one may be
                    // seen later than what it wrote.
                    ensure!(step >= 5, "the whole life took {step} steps?");
                    break;
                }
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_sandbox_that_waited_too_long_starts_nothing_and_the_job_says_so() -> anyhow::Result<()> {
    let options = Options {
        hold_seconds: 4,
        ..options()
    };
    with_class(
        options,
        |_| {},
        async |trial| {
            let _adapter = trial.start().await?;
            trial
                .server
                .set(|faults| faults.on(Call::Run, Fault::LosesRequest));
            let job = trial.create_script("exit 0").await?;
            trial.when_says(&job, STARTED, "BackendUnavailable").await?;
            let job = trial.when_finished(&job).await?;
            expect(&job, Outcome::Failed, "StartTooLate", None)?;
            trial.server.set(|faults| faults.off(Call::Run));
            trial.when_released(&job).await?;
            ensure!(!holds(&job, STARTED));
            trial.expect_starts(0)
        },
    )
    .await
}

#[tokio::test]
async fn the_expiry_of_a_started_sandbox_is_put_off() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create_script("sleep 1000").await?;
        trial.when_started(&job).await?;
        trial.server.until(|server| server.calls(Call::Renew) > 0).await;
        let first: Vec<_> = trial
            .requests(Call::Create)
            .iter()
            .map(|request| request.body["timeout"].as_u64())
            .collect();
        ensure!(first == [Some(360)], "a sandbox that waits lives for {first:?}");
        trial.server.advance(SignedDuration::from_secs(1000));
        trial.after_more(2, Call::List).await;
        trial.cancel(&job).await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Cancelled, "CancelRequested", None)
    })
    .await
}

// -------------------------------------------------------------------------------------------------- stops

#[tokio::test]
async fn a_running_command_is_cancelled_and_its_processes_are_gone() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create_script("trap '' TERM; sleep 1000").await?;
        let job = trial.when_started(&job).await?;
        trial.cancel(&job).await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Cancelled, "CancelRequested", None)?;
        let stop = status(&job).execution.and_then(|e| e.stop).context("no stop")?;
        ensure!(stop.delivered_time.is_some(), "{stop:?}");
        ensure!(trial.server.sandboxes().is_empty());
        trial.expect_starts(1)
    })
    .await
}

#[tokio::test]
async fn a_stop_that_wins_the_start_keeps_the_command_from_ever_running() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .set(|faults| faults.on(Call::Run, Fault::LosesRequest));
        let job = trial.create_script("exit 0").await?;
        trial.when_says(&job, STARTED, "BackendUnavailable").await?;
        trial.cancel(&job).await?;
        let stopping = |job: &Job| status(job).execution.is_some_and(|e| e.stop.is_some());
        trial.when(&job, "stop stored", stopping).await?;
        trial.server.set(|faults| faults.off(Call::Run));
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Cancelled, "CancelRequested", None)?;
        ensure!(!holds(&job, STARTED));
        trial.expect_starts(0)
    })
    .await
}

#[tokio::test]
async fn an_end_that_came_before_the_stop_keeps_its_own_result() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let go = trial.noted("go");
        let script = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
        let job = trial.create_script(&script).await?;
        let job = trial.when_started(&job).await?;
        let (sandbox, hold) = trial.sandbox(&job)?;
        // Nobody sees the end, and nobody can stop it either.
        trial.server.set(|faults| {
            faults.on(Call::File, Fault::AnswersBadGateway);
            faults.on(Call::Run, Fault::LosesRequest);
        });
        trial
            .when_says(&job, RESULT_UNKNOWN, "BackendUnreachable")
            .await?;
        trial.cancel(&job).await?;
        let stopping = |job: &Job| status(job).execution.is_some_and(|e| e.stop.is_some());
        trial.when(&job, "stop stored", stopping).await?;
        fs::write(&go, "")?;
        let end = format!(".ayatori-{hold}/end");
        trial
            .server
            .until(|server| server.file(&sandbox, &end).is_some())
            .await;
        trial.server.set(|faults| {
            faults.off(Call::File);
            faults.off(Call::Run);
        });
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        trial.expect_starts(1)
    })
    .await
}

#[tokio::test]
async fn a_sandbox_whose_daemon_is_dead_is_deleted_by_a_stop_all_the_same() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create_script("sleep 1000").await?;
        let job = trial.when_started(&job).await?;
        trial.server.set(|faults| {
            faults.on(Call::File, Fault::LosesRequest);
            faults.on(Call::Run, Fault::LosesRequest);
        });
        trial.cancel(&job).await?;
        trial.server.until(|server| server.sandboxes().is_empty()).await;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "ExecutionLost", None)?;
        trial.expect_starts(1)
    })
    .await
}

#[tokio::test]
async fn a_deadline_stops_a_command_and_a_deletion_takes_it_along() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial
            .create_noted("job", "sleep 1000", |spec| {
                spec.active_deadline_seconds = Some(DEADLINE)
            })
            .await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "DeadlineExceeded", None)?;
        trial.expect_starts(1)?;

        let job = trial.create_noted("deleted", "sleep 1000", |_| {}).await?;
        trial.when_started(&job).await?;
        trial.delete(&job).await?;
        trial.when_gone(&job).await?;
        ensure!(trial.server.sandboxes().is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_of_which_nothing_is_recorded_goes_although_its_server_is_away() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        trial
            .server
            .set(|faults| faults.on(Call::File, Fault::AnswersBadGateway));
        let held = trial.create_script("exit 0").await?;
        trial.server.until(|server| !server.sandboxes().is_empty()).await;
        let said = trial.when_says(&held, SCHEDULED, "BackendUnavailable").await?;
        let said = condition(&said, SCHEDULED).map(|c| c.message.clone());
        ensure!(
            said.as_ref()
                .is_some_and(|said| said.contains("is up, and the daemon in it cannot be reached")),
            "{said:?}"
        );
        trial.delete(&held).await?;
        trial.when_gone(&held).await?;
        ensure!(
            trial.server.sandboxes().is_empty(),
            "a sandbox that waited was left"
        );

        let held = trial.create_script("exit 0").await?;
        trial.server.until(|server| !server.sandboxes().is_empty()).await;
        trial.server.set(|faults| faults.on_all(&Fault::InternalError));
        trial.delete(&held).await?;
        trial.when_gone(&held).await?;
        // It waits for nothing, and ends by itself.
        let waiting = trial.server.sandboxes();
        ensure!(waiting.len() == 1, "{waiting:?}");
        waiting.iter().for_each(|sandbox| trial.server.vanish(sandbox));
        trial.expect_starts(0)
    })
    .await
}

// -------------------------------------------------------------------------------------------------- pools

const POOL: &str = "warm";

fn pooled(spec: &mut ParametersSpec) {
    spec.pool_ref = Some(POOL.to_owned());
    spec.pool_template = Some(PoolTemplate {
        image: "registry.example/warm:1".to_owned(),
        limits: Some(quantities("500m", "256Mi")),
    });
}

fn quantities(cpu: &str, memory: &str) -> ResourceQuantities {
    ResourceQuantities {
        cpu: Some(Quantity(cpu.to_owned())),
        memory: Some(Quantity(memory.to_owned())),
    }
}

#[tokio::test]
async fn a_pool_has_to_exist_and_a_job_has_to_ask_for_exactly_what_it_has() -> anyhow::Result<()> {
    with_class(options(), pooled, async |trial| {
        let _adapter = trial.start_as(&trial.namespace, ONE, Death::never()).await?;
        trial.when_class_says(READY, "PoolNotSupported").await?;
        trial
            .server
            .set(|faults| faults.pools = vec!["another".to_owned()]);
        trial.when_class_says(READY, "PoolNotSupported").await?;
        trial.server.set(|faults| faults.pools = vec![POOL.to_owned()]);
        trial.when_ready().await?;

        let asking = async |image: &str, limits: Option<ResourceQuantities>| {
            let adjust = |spec: &mut JobSpec| {
                spec.image = image.to_owned();
                spec.resources = limits.map(|limits| ResourceRequirements {
                    limits: Some(limits),
                    ..ResourceRequirements::default()
                });
            };
            trial.create_noted("job", "exit 0", adjust).await
        };
        let template = "registry.example/warm:1";
        for (image, limits, told) in [
            (
                "busybox",
                Some(quantities("500m", "256Mi")),
                ["busybox", template],
            ),
            (
                template,
                Some(quantities("1", "256Mi")),
                ["cpu 1000m", "cpu 500m"],
            ),
            (template, None, ["none", "cpu 500m"]),
        ] {
            let job = asking(image, limits).await?;
            let job = trial.when_says(&job, ACCEPTED, "UnsupportedFeature").await?;
            let message = condition(&job, ACCEPTED)
                .map(|c| c.message.clone())
                .unwrap_or_default();
            ensure!(told.iter().all(|word| message.contains(word)), "{message}");
        }
        trial.expect_starts(0)?;
        let job = asking(template, Some(quantities("0.5", "262144Ki"))).await?;
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Succeeded, "Completed", Some(0))?;
        let created = trial.requests(Call::Create);
        ensure!(
            created
                .iter()
                .all(|request| request.body["extensions"]["poolRef"] == POOL),
            "{created:?}"
        );
        trial.expect_starts(1)
    })
    .await
}

#[tokio::test]
async fn a_class_does_not_take_secrets_into_sandboxes_that_are_handed_on() -> anyhow::Result<()> {
    let adjust = |spec: &mut ParametersSpec| {
        pooled(spec);
        spec.allow_secret_env = Some(true);
    };
    with_class(options(), adjust, async |trial| {
        let _adapter = trial.start_as(&trial.namespace, ONE, Death::never()).await?;
        let class = trial.when_class_says(ACCEPTED, "SecretEnvNotAllowed").await?;
        let message = class_condition(&class, ACCEPTED).map(|c| c.message.clone());
        ensure!(message.is_some_and(|m| m.contains("poolRef")));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_image_that_cannot_hold_a_command_ends_the_job_and_says_what_it_lacks() -> anyhow::Result<()> {
    with(async |trial| {
        let _adapter = trial.start().await?;
        let job = trial.create_script("exit 0").await?;
        // As of an image whose shell ends at once.
        trial
            .server
            .set(|faults| faults.on(Call::File, Fault::AnswersBadGateway));
        trial.server.until(|server| !server.sandboxes().is_empty()).await;
        for sandbox in trial.server.sandboxes() {
            trial.server.end(&sandbox, 1);
        }
        let job = trial.when_finished(&job).await?;
        expect(&job, Outcome::Failed, "StartError", None)?;
        ensure!(
            result(&job)?
                .message
                .as_ref()
                .is_some_and(|message| message.contains("/bin/sh"))
        );
        trial.expect_starts(0)
    })
    .await
}

//! What the client makes of whatever a server does, one line per behaviour.

#![allow(clippy::unwrap_used)] // A test's helpers are tests too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ayatori_opensandbox_adapter::client::{Client, Options};
use ayatori_opensandbox_adapter::failure::Failure;
use ayatori_opensandbox_adapter::stub::{API_KEY, Call, Certificate, Fault, Stub};
use ayatori_opensandbox_adapter::wire::{CreateSandbox, Image, ImageAuth};
use ayatori_opensandbox_adapter::wrapper::{self, Evidence, Fence};
use jiff::{SignedDuration, Timestamp};
use secrecy::SecretString;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Short enough to wait for, long enough for an answer on a busy machine.
const PATIENCE: Duration = Duration::from_millis(1500);

fn patient() -> Options {
    Options {
        connect: PATIENCE,
        call: PATIENCE,
        create: PATIENCE,
        list: 4 * PATIENCE,
        pages: 5,
    }
}

fn client_of(stub: &Stub) -> Client {
    Client::new(&stub.endpoint(), stub.ca_bundle(), stub.key(), &patient()).unwrap()
}

fn sandbox(uid: &str, words: &[&str]) -> CreateSandbox {
    CreateSandbox {
        image: Image {
            uri: "registry.example/app:1".to_owned(),
            auth: Some(ImageAuth {
                username: "robot-canary".into(),
                password: "password-canary".into(),
            }),
            untried: 0,
        },
        entrypoint: words.iter().map(|word| (*word).into()).collect(),
        resource_limits: BTreeMap::new(),
        resource_requests: BTreeMap::new(),
        env: BTreeMap::from([("TOKEN".to_owned(), "env-canary".into())]),
        metadata: BTreeMap::from([("job-uid".to_owned(), uid.to_owned())]),
        timeout: 3600,
        extensions: None,
    }
}

/// Nothing of what was sent in confidence stands in a failure.
fn assert_discreet(failure: &Failure) {
    let said = format!("{failure} {failure:?} {:?}", failure.why());
    assert!(!said.contains("canary") && !said.contains('<'), "{said}");
}

#[tokio::test]
async fn after_a_create_request_only_a_refusal_of_the_server_is_certain() {
    for (fault, reason, certain, created) in [
        (Fault::LosesAnswer, "BackendUnavailable", false, 1),
        (Fault::TruncatesAnswer, "BackendUnavailable", false, 1),
        (Fault::StopsHalfway, "BackendUnavailable", false, 1),
        (Fault::AnswersHalfJson, "BackendUnavailable", false, 1),
        (Fault::AnswersPage, "BackendUnavailable", false, 1),
        (Fault::AnswersNothing, "BackendUnavailable", false, 1),
        (Fault::AnswersPodReadyTimeout, "BackendUnavailable", false, 1),
        (Fault::AnswersPodFailed, "BackendUnavailable", false, 1),
        (Fault::AnswersBadGateway, "BackendUnavailable", false, 1),
        (Fault::LosesRequest, "BackendUnavailable", false, 0),
        (Fault::Silent, "BackendUnavailable", false, 0),
        (Fault::Busy(None), "BackendAtCapacity", true, 0),
        (Fault::Overloaded, "BackendAtCapacity", false, 0),
        (Fault::InternalError, "BackendUnavailable", false, 0),
        (Fault::Unauthorized, "AuthenticationFailed", true, 0),
        (Fault::ProxyUnauthorized, "AuthenticationFailed", false, 0),
        (Fault::NoRoute, "BackendUnavailable", false, 0),
        (Fault::EchoesRequest, "BackendRejected", true, 0),
        (Fault::Floods, "BackendUnavailable", false, 0),
        (
            Fault::Refuses(400, "SANDBOX::INVALID_PARAMETER"),
            "BackendRejected",
            true,
            0,
        ),
        (
            Fault::Refuses(404, "KUBERNETES::POOL_NOT_FOUND"),
            "BackendRejected",
            true,
            0,
        ),
        (
            Fault::Refuses(404, "DOCKER::SANDBOX_NOT_FOUND"),
            "ExecutionNotFound",
            false,
            0,
        ),
        (Fault::Refuses(408, "A::B"), "BackendUnavailable", false, 0),
        (Fault::Refuses(499, "A::B"), "BackendUnavailable", false, 0),
        (
            Fault::Refuses(500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED"),
            "ImagePullFailed",
            true,
            0,
        ),
        (
            Fault::Refuses(500, "DOCKER::SANDBOX_START_FAILED"),
            "BackendUnavailable",
            false,
            0,
        ),
    ] {
        let stub = Stub::start().await.unwrap();
        stub.set(|faults| faults.on(Call::Create, fault.clone()));
        let failure = client_of(&stub).create(&sandbox("u1", &[])).await.unwrap_err();
        assert_eq!(
            (failure.reason(), failure.is_certain()),
            (reason, certain),
            "{fault:?}: {failure}"
        );
        assert_eq!(
            (stub.posts("job-uid", "u1"), stub.sandboxes().len()),
            (1, created),
            "{fault:?}"
        );
        assert_discreet(&failure);
    }
}

#[tokio::test]
async fn other_calls_are_sorted_by_the_same_words() {
    for (fault, reason) in [
        (Fault::LosesAnswer, "BackendUnavailable"),
        (Fault::AnswersPage, "BackendUnavailable"),
        (Fault::AnswersBadGateway, "BackendUnavailable"),
        (Fault::Silent, "BackendUnavailable"),
        (Fault::Busy(None), "BackendAtCapacity"),
        (Fault::Overloaded, "BackendAtCapacity"),
        (Fault::InternalError, "BackendUnavailable"),
        (Fault::Unauthorized, "AuthenticationFailed"),
        (Fault::NoRoute, "BackendUnavailable"),
        (
            Fault::Refuses(500, "DOCKER::SANDBOX_DELETE_FAILED"),
            "BackendUnavailable",
        ),
        (
            Fault::Refuses(409, "DOCKER::SANDBOX_NOT_RUNNING"),
            "BackendRejected",
        ),
    ] {
        let stub = Stub::start().await.unwrap();
        let client = client_of(&stub);
        let id = client.create(&sandbox("u1", &["runs=forever"])).await.unwrap().id;
        stub.set(|faults| {
            for call in [
                Call::List,
                Call::Get,
                Call::Delete,
                Call::Pause,
                Call::Renew,
                Call::Log,
                Call::Events,
            ] {
                faults.on(call, fault.clone());
            }
            faults.deletes_nothing = true;
        });
        let (get, list, probe, delete, pause, renew, log, events) = tokio::join!(
            client.get(&id),
            client.list(&[]),
            client.probe(),
            client.delete(&id),
            client.pause(&id),
            client.renew(&id, Timestamp::MAX),
            client.log(&id),
            client.events(&id),
        );
        let failures = [
            get.map(drop),
            list.map(drop),
            probe,
            delete,
            pause,
            renew.map(drop),
            log.map(drop),
            events.map(drop),
        ];
        for failure in failures.map(Result::unwrap_err) {
            assert_eq!(failure.reason(), reason, "{fault:?}: {failure}");
            assert_discreet(&failure);
        }
    }
}

#[tokio::test]
async fn only_the_servers_own_word_makes_a_sandbox_absent() {
    let stub = Stub::start().await.unwrap();
    let client = client_of(&stub);
    assert_eq!(client.get("nowhere").await, Ok(None));
    assert_eq!(client.log("nowhere").await, Ok(None));
    assert_eq!(client.events("nowhere").await, Ok(None));
    assert_eq!(client.delete("nowhere").await, Ok(()));
    for failure in [
        client.pause("nowhere").await,
        client.renew("nowhere", Timestamp::MAX).await.map(drop),
    ] {
        assert!(matches!(failure, Err(Failure::NotFound { .. })), "{failure:?}");
    }
    // What would lead to another path does not, and is no sandbox either.
    for id in ["../../health", "a/b?c#d", "漢"] {
        assert_eq!(client.get(id).await, Ok(None), "{id}");
    }
    let targets: Vec<_> = stub
        .requests()
        .into_iter()
        .map(|request| request.target)
        .collect();
    assert!(
        targets.contains(&"/v1/sandboxes/..%2F..%2Fhealth".to_owned()),
        "{targets:?}"
    );
    for status in [Fault::NoRoute, Fault::Refuses(404, "GENERAL::UNKNOWN_ERROR")] {
        stub.set(|faults| faults.on(Call::Get, status.clone()));
        assert!(client.get("nowhere").await.is_err(), "{status:?}");
    }
}

#[tokio::test]
async fn a_sandbox_lives_as_on_the_docker_runtime() {
    let stub = Stub::start().await.unwrap();
    let client = client_of(&stub);
    let create = async |words: &[&str]| client.create(&sandbox("u1", words)).await.unwrap().id;
    let shown = async |id: &str| {
        let sandbox = client.get(id).await.unwrap().unwrap();
        (sandbox.state, sandbox.reason.unwrap(), sandbox.message.unwrap())
    };
    let state =
        |state: &str, reason: &str, message: &str| (state.to_owned(), reason.to_owned(), message.to_owned());
    let exited = |code| {
        state(
            "Failed",
            "CONTAINER_EXITED_ERROR",
            &format!("Sandbox container exited with code {code}."),
        )
    };
    let stopped = state(
        "Terminated",
        "CONTAINER_EXITED",
        "Sandbox container exited successfully.",
    );
    assert_eq!(shown(&create(&["exit=0"]).await).await, stopped);
    assert_eq!(shown(&create(&["exit=3"]).await).await, exited(3));
    let hungry = create(&["oom"]).await;
    assert_eq!(shown(&hungry).await, exited(137));
    assert!(
        client
            .events(&hungry)
            .await
            .unwrap()
            .unwrap()
            .contains("OOMKilled")
    );
    assert_eq!(shown(&create(&["stuck"]).await).await.0, "Pending");

    let slow = create(&["runs=60000", "exit=4"]).await;
    assert_eq!(shown(&slow).await.0, "Running");
    stub.advance(SignedDuration::from_secs(61));
    assert_eq!(shown(&slow).await, exited(4));
    assert!(matches!(
        client.pause(&slow).await,
        Err(Failure::Refused { status: 409, .. })
    ));

    let paused = create(&["runs=60000"]).await;
    client.pause(&paused).await.unwrap();
    stub.advance(SignedDuration::from_secs(61));
    assert_eq!(shown(&paused).await.0, "Paused");
    client.delete(&paused).await.unwrap();
    assert_eq!(client.get(&paused).await, Ok(None));

    let ended = create(&["runs=forever"]).await;
    stub.end(&ended, 0);
    assert_eq!(shown(&ended).await, stopped);

    let short = create(&["runs=forever"]).await;
    let expiry = client.get(&short).await.unwrap().unwrap().expires_at.unwrap();
    let later = expiry + SignedDuration::from_hours(1);
    assert_eq!(client.renew(&short, later).await, Ok(later));
    stub.advance(SignedDuration::from_mins(65));
    assert!(client.get(&short).await.unwrap().is_some());
    stub.advance(SignedDuration::from_hours(1));
    assert_eq!(client.get(&short).await, Ok(None));
    assert!(client.renew(&short, Timestamp::UNIX_EPOCH).await.is_err());
    // All but the one that never came up.
    assert_eq!(stub.starts("job-uid", "u1"), 7);
}

#[tokio::test]
async fn a_wrapped_command_leaves_the_wrappers_evidence() {
    let stub = Stub::start().await.unwrap();
    let client = client_of(&stub);
    let now = Timestamp::now();
    let at = |seconds| now + SignedDuration::from_secs(seconds);
    let fence = |earliest, latest| Fence {
        earliest: at(earliest),
        latest: at(latest),
    };
    let ended = |code| Evidence::Ended {
        code,
        signalled: false,
    };
    for (uid, fence, command, exit, expected, started) in [
        ("u1", fence(-9, 9), ["exit=3", ""], Some(3), ended(3), 1),
        ("u2", fence(-9, 9), ["exit=0", ""], Some(0), ended(0), 1),
        (
            "u3",
            fence(-9, 9),
            ["runs=forever", ""],
            None,
            Evidence::Starting,
            1,
        ),
        (
            "u4",
            fence(-9, 9),
            ["missing", ""],
            Some(127),
            Evidence::Unstartable { code: 127 },
            0,
        ),
        (
            "u5",
            fence(-9, -5),
            ["exit=0", ""],
            Some(125),
            Evidence::TooLate,
            0,
        ),
        ("u6", fence(5, 9), ["exit=0", ""], Some(125), Evidence::NoClock, 0),
    ] {
        let mut request = sandbox(uid, &[]);
        request.entrypoint = wrapper::entrypoint("attempt", fence, None, command.map(SecretString::from));
        let id = client.create(&request).await.unwrap().id;
        let log = client.log(&id).await.unwrap().unwrap();
        assert_eq!(
            wrapper::evidence(&log, "attempt"),
            Some(expected),
            "{command:?}: {log}"
        );
        assert_eq!(stub.starts("job-uid", uid), started);
        assert_eq!(stub.running("job-uid", uid), usize::from(exit.is_none()));
        let shown = client.get(&id).await.unwrap().unwrap().message.unwrap();
        assert_eq!(
            exit.is_some_and(|code| code > 0),
            shown.contains("with code"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn a_create_request_that_was_given_up_may_still_be_carried_out() {
    let stub = Stub::start().await.unwrap();
    let client = client_of(&stub);
    stub.set(|faults| {
        faults.creation_takes = Duration::from_secs(600);
        faults.on(Call::Create, Fault::AnswersPodReadyTimeout);
    });
    let failure = client
        .create(&sandbox("u1", &["runs=forever"]))
        .await
        .unwrap_err();
    assert!(!failure.is_certain(), "{failure}");
    let listed = async || client.list(&[("job-uid", "u1")]).await.unwrap().sandboxes.len();
    assert_eq!((listed().await, stub.starts("job-uid", "u1")), (0, 0));
    stub.advance(SignedDuration::from_secs(600));
    assert_eq!((listed().await, stub.starts("job-uid", "u1")), (1, 1));
}

#[tokio::test]
async fn a_list_is_whole_or_a_failure_and_holds_only_what_was_asked_for() {
    let stub = Stub::start().await.unwrap();
    let client = client_of(&stub);
    for uid in ["a&b=c", "u2", "u2"] {
        client.create(&sandbox(uid, &[])).await.unwrap();
    }
    let listed = async |labels: &[(&str, &str)]| {
        let listing = client.list(labels).await.map_err(|failure| failure.reason())?;
        Ok::<_, &str>((listing.sandboxes.len(), listing.one_page))
    };
    assert_eq!(listed(&[("job-uid", "a&b=c")]).await, Ok((1, true)));
    assert_eq!(listed(&[("job-uid", "u2")]).await, Ok((2, true)));
    assert_eq!(listed(&[("job-uid", "")]).await, Ok((0, true)));
    assert_eq!(listed(&[]).await, Ok((3, true)));
    stub.set(|faults| faults.foreign = 450);
    assert_eq!(listed(&[]).await, Ok((453, false)));
    assert_eq!(listed(&[("job-uid", "u2")]).await, Ok((2, true)));
    stub.set(|faults| faults.ignores_filter = true);
    assert_eq!(listed(&[("job-uid", "u2")]).await, Ok((2, false)));
    stub.set(|faults| faults.foreign = 5000);
    assert_eq!(listed(&[("job-uid", "u2")]).await, Err("BackendUnavailable"));
    stub.set(|faults| {
        faults.foreign = 450;
        faults.on_next(1, Call::List, Fault::AnswersPage);
    });
    assert_eq!(listed(&[]).await, Err("BackendUnavailable"));
    stub.set(|faults| faults.shows = Some(Arc::new(|sandbox| sandbox["id"] = json!(null))));
    assert_eq!(listed(&[]).await, Err("BackendUnavailable"));
    stub.set(|faults| {
        faults.shows = None;
        faults.ignores_filter = false;
        faults.list_lag = SignedDuration::from_secs(30);
    });
    client.create(&sandbox("u3", &[])).await.unwrap();
    assert_eq!(listed(&[("job-uid", "u3")]).await, Ok((0, true)));
    stub.advance(SignedDuration::from_secs(30));
    assert_eq!(listed(&[("job-uid", "u3")]).await, Ok((1, true)));
}

#[tokio::test]
async fn words_to_come_and_missing_fields_are_read() {
    let stub = Stub::start().await.unwrap();
    let client = client_of(&stub);
    let id = client.create(&sandbox("u1", &[])).await.unwrap().id;
    for (status, state, reason) in [
        (
            json!({"state": "Hibernating", "reason": "NEW"}),
            "Hibernating",
            Some("NEW"),
        ),
        (json!({"state": "Terminated", "reason": null}), "Terminated", None),
        (json!({}), "", None),
        (json!(null), "", None),
    ] {
        stub.set(|faults| faults.show_status(status));
        let sandbox = client.get(&id).await.unwrap().unwrap();
        assert_eq!(
            (sandbox.state.as_str(), sandbox.reason.as_deref()),
            (state, reason)
        );
    }
}

#[tokio::test]
async fn a_busy_server_says_when_to_come_back() {
    let stub = Stub::start().await.unwrap();
    for (header, expected) in [
        (Some("7"), Some(7)),
        (Some("86400"), Some(300)),
        (Some("soon"), None),
        (None, None),
    ] {
        let fault = Fault::Busy(header.map(str::to_owned));
        stub.set(|faults| faults.on(Call::List, fault));
        let failure = client_of(&stub).probe().await.unwrap_err();
        assert_eq!(
            failure.retry_after(),
            expected.map(Duration::from_secs),
            "{header:?}"
        );
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_the_key_stays_here() {
    let (stub, other) = (Stub::start().await.unwrap(), Stub::start().await.unwrap());
    let redirect = Fault::Redirects(other.endpoint());
    stub.set(|faults| {
        for call in [Call::Create, Call::List] {
            faults.on(call, redirect.clone());
        }
    });
    let client = client_of(&stub);
    let failure = client.create(&sandbox("u1", &[])).await.unwrap_err();
    assert!(
        !failure.is_certain() && failure.to_string().contains("redirect"),
        "{failure}"
    );
    assert!(client.probe().await.is_err());
    assert_eq!(other.requests(), []);
    assert!(stub.requests().iter().all(|request| request.carried_a_key));
}

#[tokio::test]
async fn a_failed_handshake_names_its_cause_and_sends_nothing() {
    for (certificate, cause) in [
        (Certificate::Expired, "certificate expired"),
        (Certificate::NotYetValid, "certificate not valid yet"),
        (Certificate::OfOtherName, "not valid for name"),
        (Certificate::OfOtherAuthority, "unknown issuer"),
    ] {
        let stub = Stub::start_with_tls(certificate).await.unwrap();
        let failure = client_of(&stub).create(&sandbox("u1", &[])).await.unwrap_err();
        let Failure::Tls { cause: said, .. } = &failure else {
            panic!("{certificate:?}: {failure}");
        };
        assert!(said.contains(cause), "{said}");
        assert!(
            failure.is_certain() && failure.to_string().contains(&stub.endpoint()),
            "{failure}"
        );
        assert_eq!(stub.requests(), []);
    }
    let stub = Stub::start_with_tls(Certificate::Good).await.unwrap();
    client_of(&stub).probe().await.unwrap();
    let stranger = Client::new(&stub.endpoint(), None, stub.key(), &patient()).unwrap();
    assert!(matches!(stranger.probe().await, Err(Failure::Tls { .. })));
}

#[tokio::test]
async fn where_no_connection_is_made_nothing_was_sent() {
    let plain = Stub::start().await.unwrap();
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    for (endpoint, cause) in [
        (closed, "connection refused"),
        ("http://nowhere.invalid:1".to_owned(), "dns"),
        (plain.endpoint().replace("http:", "https:"), "TLS"),
    ] {
        let client = Client::new(&endpoint, None, API_KEY.into(), &patient()).unwrap();
        let failure = client.create(&sandbox("u1", &[])).await.unwrap_err();
        assert!(failure.is_certain(), "{endpoint}: {failure:?}");
        assert!(failure.to_string().contains(cause), "{failure}");
        assert_eq!(failure.reason(), "BackendUnreachable");
    }
    assert_eq!(plain.requests(), []);
}

#[tokio::test]
async fn an_endpoint_is_what_stands_before_v1() {
    let stub = Stub::start().await.unwrap();
    for (path, target) in [
        ("", "/v1/sandboxes/s"),
        ("/", "/v1/sandboxes/s"),
        ("/base", "/base/v1/sandboxes/s"),
        ("/base/", "/base/v1/sandboxes/s"),
        ("/a%20b/c/", "/a%20b/c/v1/sandboxes/s"),
    ] {
        let client = Client::new(
            &format!("{}{path}", stub.endpoint()),
            None,
            stub.key(),
            &patient(),
        )
        .unwrap();
        assert_eq!(client.get("s").await, Ok(None));
        assert_eq!(stub.requests().last().unwrap().target, target);
    }
}

#[test]
fn what_no_client_can_be_made_of_is_refused_without_being_repeated() {
    for (endpoint, bundle, key, reason) in [
        ("no url", None, "k", "InvalidEndpoint"),
        ("ftp://h", None, "k", "InvalidEndpoint"),
        ("https://user:canary@h", None, "k", "InvalidEndpoint"),
        ("https://canary@h", None, "k", "InvalidEndpoint"),
        ("https://h?canary=1", None, "k", "InvalidEndpoint"),
        ("https://h#canary", None, "k", "InvalidEndpoint"),
        ("https://h", Some("canary"), "k", "InvalidEndpoint"),
        (
            "https://h",
            Some("-----BEGIN CERTIFICATE-----\ncanary\n"),
            "k",
            "InvalidEndpoint",
        ),
        (
            "https://h",
            Some("-----BEGIN CERTIFICATE-----\nY2FuYXJ5\n-----END CERTIFICATE-----\n"),
            "k",
            "InvalidEndpoint",
        ),
        ("https://h", None, "", "InvalidCredentials"),
        ("https://h", None, "canary\n", "InvalidCredentials"),
        ("https://h", None, " canary", "InvalidCredentials"),
        ("https://h", None, "can\0ary", "InvalidCredentials"),
    ] {
        let why = Client::new(endpoint, bundle, key.into(), &Options::default()).unwrap_err();
        assert_eq!(why.reason, reason, "{endpoint}: {why:?}");
        assert!(!why.message.contains("canary"), "{why:?}");
    }
    let client = Client::new("https://h/p", None, "canary-key".into(), &Options::default()).unwrap();
    assert!(!format!("{client:?}").contains("canary"));
}

/// A server that reads requests and answers each connection's first with `answer`, counting all requests.
async fn raw_server(answer: &'static str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = requests.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let counter = counter.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 1 << 16];
                let mut first = true;
                while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                    counter.fetch_add(1, Ordering::SeqCst);
                    if !first {
                        return; // Closed in the face of whoever reuses the connection.
                    }
                    first = false;
                    if answer.is_empty() || stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (endpoint, requests)
}

#[tokio::test]
async fn a_request_is_never_sent_twice() {
    let (endpoint, requests) = raw_server("").await;
    let client = Client::new(&endpoint, None, API_KEY.into(), &patient()).unwrap();
    assert!(!client.create(&sandbox("u1", &[])).await.unwrap_err().is_certain());
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    assert!(client.delete("s").await.is_err());
    assert!(client.probe().await.is_err());
    assert_eq!(requests.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_create_request_has_a_connection_of_its_own() {
    const CREATED: &str = "HTTP/1.1 202 Accepted\r\ncontent-length: 10\r\n\r\n{\"id\":\"s\"}";
    let (endpoint, requests) = raw_server(CREATED).await;
    let client = Client::new(&endpoint, None, API_KEY.into(), &patient()).unwrap();
    // Each connection serves one request only: a second over the same would fail.
    for sent in 1..=3 {
        client.create(&sandbox("u1", &[])).await.unwrap();
        assert_eq!(requests.load(Ordering::SeqCst), sent);
    }
}

#[tokio::test]
async fn nonsense_instead_of_http_is_no_answer() {
    for answer in [
        "SSH-2.0-OpenSSH\r\n",
        "HTTP/1.1 202 Accepted\r\ncontent-length: 50\r\n\r\n{\"id\":\"s\"}",
        "\0\0\0",
    ] {
        let (endpoint, _) = raw_server(answer).await;
        let client = Client::new(&endpoint, None, API_KEY.into(), &patient()).unwrap();
        let failure = client.create(&sandbox("u1", &[])).await.unwrap_err();
        assert!(
            matches!(failure, Failure::Unanswered { .. }),
            "{answer:?}: {failure:?}"
        );
    }
}

const PROXY_TEST: &str = "a_proxy_of_the_environment_is_used_and_named";

/// The environment of a process is read when a client is made, so this test runs itself again in one of its own.
#[tokio::test]
async fn a_proxy_of_the_environment_is_used_and_named() {
    const CHILD: &str = "AYATORI_TEST_PROXY_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let status = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", PROXY_TEST])
            .env(CHILD, "1")
            .env("HTTP_PROXY", "http://user:canary@127.0.0.1:1")
            .env("NO_PROXY", "10.0.0.0/8,127.0.0.0/8,direct.invalid")
            .status();
        assert!(status.await.unwrap().success());
        return;
    }
    let failure_of = async |endpoint: &str| {
        let client = Client::new(endpoint, None, API_KEY.into(), &patient()).unwrap();
        client.probe().await.unwrap_err().to_string()
    };
    let through = failure_of("http://somewhere.invalid").await;
    assert_eq!(
        through,
        "cannot connect to http://somewhere.invalid through the proxy 127.0.0.1:1: connection refused"
    );
    let direct = failure_of("http://direct.invalid").await;
    assert!(direct.contains("dns") && !direct.contains("proxy"), "{direct}");
    let by_address = failure_of("http://127.0.0.1:1").await;
    assert_eq!(
        by_address,
        "cannot connect to http://127.0.0.1:1: connection refused"
    );
}

//! The stub's HTTP: which call a request is, what the real server would answer, and how a fault spoils it.

use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::faults::{Call, Fault};
use super::machine::Machine;
use super::{Inside, Recorded, Shared};
use crate::client::API_KEY_HEADER;

/// The connection is closed without an answer.
#[derive(Clone, Debug)]
struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lost")
    }
}

impl std::error::Error for Lost {}

/// Serves until it is dropped, with every connection.
pub(super) async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, shared) = (tls.clone(), shared.clone());
        connections.spawn(async move {
            match tls {
                None => converse(stream, shared).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        converse(stream, shared).await;
                    }
                }
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, shared: Arc<Shared>) {
    let service = service_fn(move |request| answer(shared.clone(), request));
    // An error is a connection that ended early, which is the client's to notice.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Lost> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
    let asked = Asked::of(&head, &body);
    let key = head.headers.get(API_KEY_HEADER);
    let (has_key, fault) = shared.with(|inside| {
        let has_key = key.map(|key| key.as_bytes() == inside.key.as_bytes());
        inside.recorded.push(Recorded {
            call: asked.call,
            target: head.uri.to_string(),
            carried_a_key: has_key.is_some(),
            body: asked.body.clone(),
        });
        (has_key, inside.faults.take(asked.call))
    });
    if has_key != Some(true) {
        return Ok(error(
            401,
            if has_key.is_some() {
                "INVALID_API_KEY"
            } else {
                "MISSING_API_KEY"
            },
        ));
    }
    let Some(fault) = fault else {
        return Ok(serve_request(&shared, &asked).await);
    };
    match unserved(&fault, &head, &asked).await {
        Some(answer) => answer,
        None => spoil(&fault, carry_out(&shared, &asked)).await,
    }
}

/// A request, understood.
struct Asked {
    call: Call,
    id: String,
    query: Vec<(String, String)>,
    body: Value,
}

impl Asked {
    /// What stands before `/v1` belongs to the endpoint.
    fn of(head: &Parts, body: &Bytes) -> Self {
        let path = head.uri.path().split_once("/v1/").map_or("", |(_, path)| path);
        let segments: Vec<&str> = path.split('/').collect();
        let (call, id) = match (&head.method, segments.as_slice()) {
            (&Method::POST, ["sandboxes"]) => (Call::Create, ""),
            (&Method::GET, ["sandboxes"]) => (Call::List, ""),
            (&Method::GET, ["sandboxes", id]) => (Call::Get, *id),
            (&Method::DELETE, ["sandboxes", id]) => (Call::Delete, *id),
            (&Method::POST, ["sandboxes", id, "pause"]) => (Call::Pause, *id),
            (&Method::POST, ["sandboxes", id, "renew-expiration"]) => (Call::Renew, *id),
            (&Method::GET, ["sandboxes", id, "diagnostics", "logs"]) => (Call::Log, *id),
            (&Method::GET, ["sandboxes", id, "diagnostics", "events"]) => (Call::Events, *id),
            (&Method::POST, ["sandboxes", id, "proxy", "44772", "command"]) => (Call::Run, *id),
            (&Method::GET, ["sandboxes", id, "proxy", "44772", "files", "download"]) => (Call::File, *id),
            (&Method::GET, ["pools", name]) => (Call::Pool, *name),
            _ => (Call::Other, ""),
        };
        Self {
            call,
            id: id.to_owned(),
            query: pairs(head.uri.query().unwrap_or_default()),
            body: serde_json::from_slice(body).unwrap_or_default(),
        }
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str, default: usize) -> usize {
        self.parameter(name)
            .and_then(|number| number.parse().ok())
            .unwrap_or(default)
    }
}

fn pairs(query: &str) -> Vec<(String, String)> {
    url::form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect()
}

/// The answer of a fault that keeps the request from being carried out, if it does.
async fn unserved(fault: &Fault, head: &Parts, asked: &Asked) -> Option<Result<Response<Body>, Lost>> {
    let answer = match fault {
        Fault::LosesRequest => return Some(Err(Lost)),
        Fault::Silent => std::future::pending().await,
        Fault::Busy(after) => {
            let mut busy = error(429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED");
            if let Some(after) = after.as_ref().and_then(|after| after.parse().ok()) {
                busy.headers_mut().insert(RETRY_AFTER, after);
            }
            busy
        }
        Fault::Overloaded => text(503, "text/plain", "Service Unavailable"),
        Fault::InternalError => text(500, "text/plain", "Internal Server Error"),
        Fault::Unauthorized => error(401, "INVALID_API_KEY"),
        Fault::ProxyUnauthorized => text(401, "text/html", PAGE),
        Fault::Redirects(origin) => {
            let mut redirect = text(307, "text/html", PAGE);
            let target = format!("{origin}{}", head.uri.path());
            if let Ok(target) = target.parse() {
                redirect.headers_mut().insert(LOCATION, target);
            }
            redirect
        }
        Fault::NoRoute => text(404, "text/html", PAGE),
        Fault::EchoesRequest => {
            let problem = json!({
                "type": "string_type",
                "loc": ["body", "env"],
                "msg": format!("Input should be a valid string: {}", asked.body),
                "input": asked.body,
            });
            reply(422, &json!({"detail": [problem]}))
        }
        Fault::Refuses(status, code) => error(*status, code),
        Fault::Answers(status, body) => response(*status, "application/json", body.clone().into()),
        Fault::Floods => {
            let chunks = stream::repeat(Ok::<_, Lost>(Bytes::from_static(&[b' '; 1 << 16])));
            response(200, "application/json", Body::from_stream(chunks))
        }
        Fault::LosesAnswer
        | Fault::TruncatesAnswer
        | Fault::StopsHalfway
        | Fault::AnswersHalfJson
        | Fault::AnswersPage
        | Fault::AnswersNothing
        | Fault::AnswersPodReadyTimeout
        | Fault::AnswersPodFailed
        | Fault::AnswersBadGateway => return None,
    };
    Some(Ok(answer))
}

/// What becomes of the answer of a request that was carried out.
async fn spoil(fault: &Fault, answer: Response<Body>) -> Result<Response<Body>, Lost> {
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
    let half = body.slice(..body.len() / 2);
    let broken_off = |end: stream::BoxStream<'static, Result<Bytes, Lost>>| {
        let start = stream::iter([Ok(half.clone())]);
        let mut answer = Response::from_parts(head.clone(), Body::from_stream(start.chain(end)));
        answer.headers_mut().insert(CONTENT_LENGTH, body.len().into());
        answer
    };
    Ok(match fault {
        Fault::TruncatesAnswer => broken_off(stream::iter([Err(Lost)]).boxed()),
        Fault::StopsHalfway => broken_off(stream::pending().boxed()),
        Fault::AnswersHalfJson => response(200, "application/json", half.into()),
        Fault::AnswersPage => text(200, "text/html", PAGE),
        Fault::AnswersNothing => text(204, "text/plain", ""),
        Fault::AnswersPodReadyTimeout => error(504, "KUBERNETES::POD_READY_TIMEOUT"),
        Fault::AnswersPodFailed => error(500, "KUBERNETES::POD_FAILED"),
        Fault::AnswersBadGateway => text(502, "text/html", PAGE),
        _ => return Err(Lost),
    })
}

/// A create request that is answered, when its sandbox is there.
async fn serve_request(shared: &Shared, asked: &Asked) -> Response<Body> {
    if asked.call == Call::Run {
        let answer = carry_out(shared, asked);
        tokio::time::sleep(EXECD_LINGERS).await;
        return answer;
    }
    if asked.call != Call::Create {
        return carry_out(shared, asked);
    }
    let takes = shared.with(|inside| {
        inside.creating = inside.creating.saturating_add(1);
        inside.most_creating = inside.most_creating.max(inside.creating);
        inside.faults.creation_takes
    });
    let answer = carry_out(shared, asked);
    tokio::time::sleep(takes).await;
    shared.with(|inside| inside.creating = inside.creating.saturating_sub(1));
    answer
}

/// What the real server does and answers. A sandbox comes into being by the clock, also when the client has gone.
fn carry_out(shared: &Shared, asked: &Asked) -> Response<Body> {
    shared.with(|inside| {
        inside.notice_ends();
        act(inside, asked)
    })
}

fn act(inside: &mut Inside, asked: &Asked) -> Response<Body> {
    match asked.call {
        Call::Create => {
            let id = inside.create(&asked.body, inside.faults.creation_takes);
            reply(202, &inside.show_new(&id))
        }
        Call::List => list(inside, asked),
        Call::Pool if inside.faults.pools.is_empty() => error(501, "KUBERNETES::POOL_NOT_SUPPORTED"),
        Call::Pool if inside.faults.pools.contains(&asked.id) => reply(200, &json!({"name": asked.id})),
        Call::Pool => error(404, "KUBERNETES::POOL_NOT_FOUND"),
        _ if inside.find(&asked.id).is_none() => not_found(),
        Call::Get => inside
            .show(&asked.id)
            .map_or_else(not_found, |shown| reply(200, &shown)),
        Call::Delete => {
            inside.delete(&asked.id);
            text(204, "text/plain", "")
        }
        Call::Pause if inside.pause(&asked.id) => text(202, "text/plain", ""),
        Call::Pause => error(409, "DOCKER::SANDBOX_NOT_RUNNING"),
        Call::Renew => renew(inside, asked),
        Call::Log => diagnostics(asked, "logs", inside.log(&asked.id)),
        Call::Events => diagnostics(asked, "events", inside.events(&asked.id)),
        Call::Run | Call::File => inside
            .machine(&asked.id)
            .filter(|machine| machine.exit_code().is_none())
            .map_or_else(no_daemon, |machine| execd(machine, asked)),
        Call::Other => reply(404, &json!({"detail": "Not Found"})),
    }
}

/// For how long the daemon keeps its answer open after its last word.
const EXECD_LINGERS: Duration = Duration::from_secs(1);

/// What the daemon in a sandbox does and answers.
fn execd(machine: &Machine, asked: &Asked) -> Response<Body> {
    let answer = match asked.call {
        Call::Run => machine.run(&asked.body).map(|()| {
            let events = "{\"type\":\"init\",\"text\":\"0a1b\"}\n\n{\"type\":\"execution_complete\"}\n\n";
            text(200, "text/event-stream", events)
        }),
        _ => machine
            .read(asked.parameter("path").unwrap_or_default())
            .map(|file| response(200, "application/octet-stream", file.into())),
    };
    answer.unwrap_or_else(|failure| match failure.kind() {
        ErrorKind::NotFound => error(404, "FILE_NOT_FOUND"),
        _ => error(500, "RUNTIME_ERROR"),
    })
}

/// The server, of a sandbox in which nobody listens.
fn no_daemon() -> Response<Body> {
    reply(
        502,
        &json!({"detail": "Could not connect to the backend sandbox"}),
    )
}

fn list(inside: &Inside, asked: &Asked) -> Response<Body> {
    let filter = pairs(asked.parameter("metadata").unwrap_or_default());
    let (page, size) = (
        asked.number("page", 1).max(1),
        asked.number("pageSize", 20).clamp(1, 200),
    );
    let all = inside.list(&filter);
    let items: Vec<&Value> = all
        .chunks(size)
        .nth(page.saturating_sub(1))
        .unwrap_or_default()
        .iter()
        .collect();
    let pages = all.len().div_ceil(size);
    let pagination = json!({
        "page": page, "pageSize": size, "totalItems": all.len(), "totalPages": pages, "hasNextPage": page < pages,
    });
    reply(200, &json!({"items": items, "pagination": pagination}))
}

fn renew(inside: &mut Inside, asked: &Asked) -> Response<Body> {
    let time = asked.body.get("expiresAt").and_then(Value::as_str);
    match time.and_then(|time| time.parse::<Timestamp>().ok()) {
        Some(time) if time > inside.now() => {
            inside.renew(&asked.id, time);
            reply(200, &json!({"expiresAt": time.to_string()}))
        }
        _ => error(400, "DOCKER::INVALID_EXPIRATION"),
    }
}

fn diagnostics(asked: &Asked, kind: &str, content: Option<String>) -> Response<Body> {
    match content {
        Some(content) => reply(
            200,
            &json!({
                "sandboxId": asked.id, "kind": kind, "scope": asked.parameter("scope"),
                "delivery": "inline", "content": content, "truncated": false,
            }),
        ),
        None => not_found(),
    }
}

/// The page of something that is not the server.
const PAGE: &str = "<!DOCTYPE html><html><body><h1>This is another server</h1></body></html>";

fn not_found() -> Response<Body> {
    error(404, "DOCKER::SANDBOX_NOT_FOUND")
}

/// An error in the server's own form.
fn error(status: u16, code: &str) -> Response<Body> {
    reply(
        status,
        &json!({"code": code, "message": format!("The stub says {code}.")}),
    )
}

fn reply(status: u16, body: &Value) -> Response<Body> {
    response(status, "application/json", body.to_string().into())
}

fn text(status: u16, content_type: &'static str, body: &'static str) -> Response<Body> {
    response(status, content_type, body.into())
}

fn response(status: u16, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}

//! A proxy between an adapter and the OpenSandbox server that can hold up create requests, on their way there or
//! back, and knows how far each one came.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use ayatori_core::job::Job;
use ayatori_core::names::JOB_UID_LABEL;
use http::{HeaderMap, Method, StatusCode, Uri, header};
use kube::ResourceExt;
use reqwest::{Client, Url};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::opensandbox::OpenSandbox;

/// What the gate lets through of create requests; everything else always passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Opening {
    /// No request reaches the server.
    Shut,
    /// Requests reach the server, and no answer comes back.
    OneWay,
    /// Everything passes.
    Wide,
}

/// How far the create request of a Job came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// The adapter has sent it.
    Sent,
    /// It was passed on to the server.
    PassedOn,
    /// The server has answered.
    Answered,
    /// The answer was passed on to the adapter.
    Returned,
}

/// A proxy that speaks plain HTTP on loopback.
pub struct Gate {
    /// What the adapter has to take for the server.
    pub endpoint: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    server: Url,
    client: Client,
    opening: watch::Sender<Opening>,
    /// By the UID of the Job: how many requests there were, and how far the last one came.
    creates: Mutex<BTreeMap<String, (u32, Progress)>>,
}

#[derive(Deserialize)]
struct Create {
    metadata: BTreeMap<String, String>,
}

impl Gate {
    /// A gate before this server, wide open.
    pub async fn before(server: &OpenSandbox) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address: SocketAddr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server: Url::parse(&server.endpoint)?,
            client: server.client(),
            opening: watch::Sender::new(Opening::Wide),
            creates: Mutex::default(),
        });
        let router = Router::new().fallback(pass).with_state(shared.clone());
        let serving = axum::serve(listener, router);
        Ok(Self {
            endpoint: format!("http://{address}"),
            shared,
            task: tokio::spawn(async move {
                // Fails never, says axum.
                let _ = serving.await;
            }),
        })
    }

    /// From now on lets this through.
    pub fn open(&self, opening: Opening) {
        self.shared.opening.send_replace(opening);
    }

    /// How far the Job's create request came, if there was one.
    pub fn progress(&self, job: &Job) -> Option<Progress> {
        self.shared.create(job).map(|(_, progress)| progress)
    }

    /// How many create requests there were for the Job.
    pub fn creates(&self, job: &Job) -> u32 {
        job.uid().map_or(0, |uid| self.creates_of(&uid))
    }

    /// The same by the Job's UID.
    pub fn creates_of(&self, uid: &str) -> u32 {
        self.shared.creates().get(uid).map_or(0, |(count, _)| *count)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn create(&self, job: &Job) -> Option<(u32, Progress)> {
        self.creates().get(&job.uid()?).copied()
    }

    fn creates(&self) -> MutexGuard<'_, BTreeMap<String, (u32, Progress)>> {
        self.creates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sent(&self, uid: &str) {
        let mut creates = self.creates();
        let (count, progress) = creates.entry(uid.to_owned()).or_insert((0, Progress::Sent));
        *count += 1;
        *progress = Progress::Sent;
    }

    fn came(&self, uid: &str, to: Progress) {
        if let Some((_, progress)) = self.creates().get_mut(uid) {
            *progress = to;
        }
    }

    async fn opened(&self, opening: Opening) {
        // Fails only without a sender, which is here.
        let _ = self.opening.subscribe().wait_for(|now| *now >= opening).await;
    }
}

/// Dropped where the adapter hangs up: what was held then goes nowhere.
async fn pass(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let uid = uid_of_create(&method, &uri, &body);
    if let Some(uid) = &uid {
        shared.sent(uid);
        shared.opened(Opening::OneWay).await;
        shared.came(uid, Progress::PassedOn);
    }
    // What the server has begun it ends, whoever still listens.
    let forwarding = tokio::spawn({
        let (shared, uid) = (shared.clone(), uid.clone());
        async move {
            let answer = forward(&shared, method, &uri, headers, body).await;
            if let Some(uid) = &uid {
                shared.came(uid, Progress::Answered);
            }
            answer
        }
    });
    let answer = forwarding.await;
    if let Some(uid) = &uid {
        shared.opened(Opening::Wide).await;
        shared.came(uid, Progress::Returned);
    }
    match answer {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

fn uid_of_create(method: &Method, uri: &Uri, body: &[u8]) -> Option<String> {
    if method != Method::POST || uri.path() != "/v1/sandboxes" {
        return None;
    }
    let mut create: Create = serde_json::from_slice(body).ok()?;
    create.metadata.remove(JOB_UID_LABEL)
}

async fn forward(
    shared: &Shared,
    method: Method,
    uri: &Uri,
    mut headers: HeaderMap,
    body: Bytes,
) -> anyhow::Result<Response> {
    let path = uri.path_and_query().context("a request without a path")?;
    let url = shared.server.join(path.as_str())?;
    for own in [header::HOST, header::CONTENT_LENGTH, header::CONNECTION] {
        headers.remove(own);
    }
    let request = shared.client.request(method, url).headers(headers).body(body);
    let answer = request.send().await?;
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    for own in [
        header::TRANSFER_ENCODING,
        header::CONTENT_LENGTH,
        header::CONNECTION,
    ] {
        headers.remove(own);
    }
    Ok((status, headers, answer.bytes().await?).into_response())
}

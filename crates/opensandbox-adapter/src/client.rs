//! One OpenSandbox server, over HTTP. Every call is one request with a time limit; nothing is ever sent twice,
//! no redirect is followed, and the key goes to the configured origin only.
//!
//! Through which proxy a request goes is what `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` say. A proxy that is
//! used for an `http` endpoint reads everything, the key included; for `https` it only passes a tunnel on.

use std::fmt;
use std::time::{Duration, SystemTime};

use ayatori_controller::telemetry::Telemetry;
use ayatori_core::execution::Why;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use jiff::Timestamp;
use reqwest::{RequestBuilder, Response};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use url::{Url, form_urlencoded};

use crate::failure::{self, Failure, Unsuccessful};
use crate::wire::{
    CreateSandbox, Diagnostics, Page, Renewal, Renewed, RunCommand, Sandbox, ServerWord, hide,
};

/// The header that carries the API key.
pub const API_KEY_HEADER: HeaderName = HeaderName::from_static("open-sandbox-api-key");

/// The largest answer that is read. A full page of sandboxes has some 300 KB, a log of a hundred lines of
/// the daemon's longest, all control characters, 10 MB.
const LARGEST_ANSWER: usize = 16 << 20;

/// The largest file that is read from a sandbox.
const LARGEST_FILE: usize = 16 << 10;

/// Where the daemon in a sandbox listens, and its word for a file that is not there.
const EXECD_PORT: &str = "44772";
const NO_FILE: &str = "FILE_NOT_FOUND";

/// The most a page may hold.
const PAGE_SIZE: &str = "200";

/// How many connections are kept open between calls, and how long: less than servers keep theirs.
const IDLE_CONNECTIONS: usize = 4;
const IDLE_TIME: Duration = Duration::from_secs(4);

/// Time limits and bounds of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For any call but a create request, from connecting to the last byte.
    pub call: Duration,
    /// For a create request: it pulls the image before it answers.
    pub create: Duration,
    /// For all pages of a list together.
    pub list: Duration,
    /// How many pages a list may have.
    pub pages: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            call: Duration::from_secs(10),
            create: Duration::from_secs(180),
            list: Duration::from_secs(60),
            pages: 100,
        }
    }
}

/// What a list has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Everything that carries the labels asked for, once each.
    pub sandboxes: Vec<Sandbox>,
    /// Whether it came on one page. Only then is what is missing absent: a deletion between two pages hides
    /// another sandbox.
    pub one_page: bool,
}

/// A connection to one server with one key. A clone shares its connections.
#[derive(Clone)]
pub struct Client {
    /// Ends in `/v1`.
    base: Url,
    /// Origin, and the proxy in between, for messages.
    server: String,
    /// Marked as sensitive, which keeps it from being printed; it cannot be zeroized.
    key: HeaderValue,
    calls: reqwest::Client,
    /// Has no idle connections: a connection that the server is just closing cannot lose a create request.
    creates: reqwest::Client,
    options: Options,
    telemetry: Telemetry,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.server)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the server at `endpoint`, which is what stands before `/v1`. Certificates may be signed by
    /// an authority of the system or of `ca_bundle` (PEM).
    ///
    /// Connects to nothing. Fails with `InvalidEndpoint` or `InvalidCredentials`.
    pub fn new(
        endpoint: &str,
        ca_bundle: Option<&str>,
        key: SecretString,
        options: &Options,
    ) -> Result<Self, Why> {
        let endpoint = Endpoint::parse(endpoint)?;
        let tls = tls(ca_bundle)?;
        let build = |idle| {
            http_client(tls.clone(), options, idle)
                .map_err(|_| Why::new(INVALID_ENDPOINT, "the HTTP client cannot be set up"))
        };
        Ok(Self {
            server: endpoint.server(),
            base: endpoint.base,
            key: key_header(&key)?,
            calls: build(IDLE_CONNECTIONS)?,
            creates: build(0)?,
            options: *options,
            telemetry: Telemetry::default(),
        })
    }

    /// The same, whose requests are told of there.
    #[must_use]
    pub fn telling(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    /// Creates a sandbox, and thereby starts what it runs. Sent at most once, over a connection of its own;
    /// see [`Failure::is_certain`] for when nothing came of it.
    pub async fn create(&self, sandbox: &CreateSandbox) -> Result<Sandbox, Failure> {
        // The body is zeroized when the last reference to it goes. What the layers below copy of it on its way
        // (hyper's write buffer, the records of rustls, the kernel) is not.
        let body = Bytes::from_owner(sandbox.body());
        let request = self
            .request_by(&self.creates, Method::POST, self.url(&["sandboxes"]))
            .timeout(self.options.create)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(body);
        let answer = self.ask("create", request).await?;
        answer.success(|text| self.hide_key(&sandbox.hide_secrets(text)))?;
        answer.json()
    }

    /// All sandboxes with these labels, or a failure; never a part of them.
    pub async fn list(&self, labels: &[(&str, &str)]) -> Result<Listing, Failure> {
        let all = tokio::time::timeout(self.options.list, self.list_all(labels));
        all.await
            .unwrap_or_else(|_| Err(Failure::unanswered("the pages of a list did not come in time")))
    }

    async fn list_all(&self, labels: &[(&str, &str)]) -> Result<Listing, Failure> {
        let mut sandboxes: Vec<Sandbox> = Vec::new();
        for number in 1..=self.options.pages {
            let page = self.page(labels, number).await?;
            // A server that ignores the filter must not give us sandboxes of others.
            sandboxes.extend(
                page.items
                    .into_iter()
                    .filter(|sandbox| sandbox.has_labels(labels)),
            );
            if !page.pagination.has_next_page {
                // One that is created meanwhile pushes others over to the next page.
                sandboxes.sort_by(|a, b| a.id.cmp(&b.id));
                sandboxes.dedup_by(|a, b| a.id == b.id);
                return Ok(Listing {
                    sandboxes,
                    one_page: number == 1,
                });
            }
        }
        Err(Failure::unanswered(format!(
            "a list has more than {} pages of {PAGE_SIZE}",
            self.options.pages
        )))
    }

    async fn page(&self, labels: &[(&str, &str)], number: u32) -> Result<Page, Failure> {
        let mut url = self.url(&["sandboxes"]);
        {
            let mut query = url.query_pairs_mut();
            query.append_pair("page", &number.to_string());
            query.append_pair("pageSize", PAGE_SIZE);
            if !labels.is_empty() {
                query.append_pair("metadata", &filter(labels));
            }
        }
        self.read("list", url).await
    }

    /// One sandbox. `None` only where the server itself says that it has no such sandbox.
    pub async fn get(&self, id: &str) -> Result<Option<Sandbox>, Failure> {
        let sandbox: Option<Sandbox> = found(self.read("get", self.url(&["sandboxes", id])).await)?;
        match sandbox {
            Some(sandbox) if sandbox.id != id => Err(Failure::unanswered("it is about another sandbox")),
            sandbox => Ok(sandbox),
        }
    }

    /// Deletes a sandbox with everything that runs in it, at once. Fine if there is none any more; while it is
    /// being deleted by another request, the server answers 500 and this fails.
    pub async fn delete(&self, id: &str) -> Result<(), Failure> {
        let request = self.request(Method::DELETE, self.url(&["sandboxes", id]));
        found(self.acknowledged("delete", request).await).map(drop)
    }

    /// Asks for a sandbox to be paused. Its success is no proof that it is.
    pub async fn pause(&self, id: &str) -> Result<(), Failure> {
        let request = self.request(Method::POST, self.url(&["sandboxes", id, "pause"]));
        self.acknowledged("pause", request).await
    }

    /// Sets when a sandbox expires, and returns what the server made of it.
    pub async fn renew(&self, id: &str, expires_at: Timestamp) -> Result<Timestamp, Failure> {
        let request = self
            .request(Method::POST, self.url(&["sandboxes", id, "renew-expiration"]))
            .json(&Renewal { expires_at });
        let answer = self.ask("renew", request).await?;
        answer.success(|text| self.hide_key(text))?;
        answer.json::<Renewed>().map(|renewed| renewed.expires_at)
    }

    /// The last hundred lines of a sandbox's log, each with its time before it: the server lets nobody choose
    /// how many. `None` only where the server itself says that it has no such sandbox.
    pub async fn log(&self, id: &str) -> Result<Option<String>, Failure> {
        self.diagnostics(id, "logs", "container").await
    }

    /// What the runtime says of a sandbox's life, in its own words. `None` only where the server itself says
    /// that it has no such sandbox.
    pub async fn events(&self, id: &str) -> Result<Option<String>, Failure> {
        self.diagnostics(id, "events", "runtime").await
    }

    async fn diagnostics(
        &self,
        id: &str,
        kind: &'static str,
        scope: &str,
    ) -> Result<Option<String>, Failure> {
        let mut url = self.url(&["sandboxes", id, "diagnostics", kind]);
        url.query_pairs_mut().append_pair("scope", scope);
        let diagnostics: Option<Diagnostics> = found(self.read(kind, url).await)?;
        match diagnostics {
            Some(diagnostics) if diagnostics.sandbox_id != id => {
                Err(Failure::unanswered("it is about another sandbox"))
            }
            diagnostics => Ok(diagnostics.map(|diagnostics| diagnostics.content.unwrap_or_default())),
        }
    }

    /// Has the daemon in a sandbox run something. That it answers does not show that it did.
    ///
    /// What stands behind the answer runs in the sandbox, beside the Job's command: nothing in it is the server's word.
    pub async fn run(&self, id: &str, command: &RunCommand) -> Result<(), Failure> {
        let request = self
            .request(Method::POST, self.execd(id, &["command"]))
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(Bytes::from_owner(command.body()));
        let answer = self.ask("run", request).await?;
        answer.success(|text| self.hide_key(&command.hide_secrets(text)))
    }

    /// A small file in a sandbox, as the daemon there shows it. `None` where that says that there is none.
    pub async fn file(&self, id: &str, path: &str) -> Result<Option<String>, Failure> {
        let mut url = self.execd(id, &["files", "download"]);
        url.query_pairs_mut().append_pair("path", path);
        let request = self.request(Method::GET, url);
        let answer = self.ask_for("file", request, LARGEST_FILE).await?;
        match answer.success(|text| self.hide_key(text)) {
            Ok(()) => Ok(Some(String::from_utf8_lossy(&answer.body).into_owned())),
            Err(Failure::Refused {
                status: 404, code, ..
            }) if code == NO_FILE => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Whether the server has this pool; not, where its runtime has none at all.
    pub async fn has_pool(&self, name: &str) -> Result<bool, Failure> {
        let url = self.url(&["pools", name]);
        let answer = self.ask("pool", self.request(Method::GET, url)).await?;
        let absent = match answer.status {
            StatusCode::NOT_IMPLEMENTED => true,
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => ServerWord::read(&answer.body).is_some(),
            _ => false,
        };
        if absent {
            return Ok(false);
        }
        answer.success(|text| self.hide_key(text)).map(|()| true)
    }

    /// Whether the server can be reached and accepts the key.
    pub async fn probe(&self) -> Result<(), Failure> {
        let mut url = self.url(&["sandboxes"]);
        url.query_pairs_mut()
            .append_pair("page", "1")
            .append_pair("pageSize", "1");
        self.read::<Page>("probe", url).await.map(drop)
    }

    /// Whether the server offers pools: then it runs sandboxes in Kubernetes.
    pub async fn has_pools(&self) -> Result<bool, Failure> {
        let request = self.request(Method::GET, self.url(&["pools"]));
        let answer = self.ask("pools", request).await?;
        if matches!(answer.status, StatusCode::NOT_IMPLEMENTED | StatusCode::NOT_FOUND) {
            return Ok(false);
        }
        answer.success(|text| self.hide_key(text)).map(|()| true)
    }

    /// The address of something below `/v1`.
    fn url(&self, path: &[&str]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(path);
        }
        url
    }

    /// The address of something that the daemon in a sandbox serves.
    fn execd(&self, id: &str, path: &[&str]) -> Url {
        self.url(&[&["sandboxes", id, "proxy", EXECD_PORT], path].concat())
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.request_by(&self.calls, method, url)
            .timeout(self.options.call)
    }

    fn request_by(&self, client: &reqwest::Client, method: Method, url: Url) -> RequestBuilder {
        client
            .request(method, url)
            .header(API_KEY_HEADER, self.key.clone())
    }

    async fn read<T: DeserializeOwned>(&self, operation: &'static str, url: Url) -> Result<T, Failure> {
        let answer = self.ask(operation, self.request(Method::GET, url)).await?;
        answer.success(|text| self.hide_key(text))?;
        answer.json()
    }

    /// Sends what is answered without content.
    async fn acknowledged(&self, operation: &'static str, request: RequestBuilder) -> Result<(), Failure> {
        let answer = self.ask(operation, request).await?;
        answer.success(|text| self.hide_key(text))?;
        answer.nothing()
    }

    async fn ask(&self, operation: &'static str, request: RequestBuilder) -> Result<Answer, Failure> {
        self.ask_for(operation, request, LARGEST_ANSWER).await
    }

    async fn ask_for(
        &self,
        operation: &'static str,
        request: RequestBuilder,
        most: usize,
    ) -> Result<Answer, Failure> {
        let answer = self.answer(request, most);
        let code = |answer: &Result<Answer, Failure>| match answer {
            Ok(answer) => answer.status.as_str().to_owned().into(),
            Err(failure) => failure.word().into(),
        };
        self.telemetry.backend_request(operation, answer, code).await
    }

    async fn answer(&self, request: RequestBuilder, most: usize) -> Result<Answer, Failure> {
        let failed = |error: reqwest::Error| failure::of_transport(&error, &self.server);
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        Answer::read(response, most).await.map_err(|error| match error {
            Unreadable::TooLarge => Failure::unusable(status, "a body that is too large to be read"),
            Unreadable::Broken(error) => failed(error),
        })
    }

    fn hide_key(&self, text: &str) -> String {
        self.key
            .to_str()
            .map_or_else(|_| text.to_owned(), |key| hide(text, key))
    }
}

/// Whether a client can be made with these, and whether its connections are then secret. Fails with
/// `InvalidEndpoint`.
pub fn check_endpoint(endpoint: &str, ca_bundle: Option<&str>) -> Result<bool, Why> {
    let endpoint = Endpoint::parse(endpoint)?;
    certificates(ca_bundle)?;
    Ok(endpoint.base.scheme() == "https")
}

/// Turns the server's own word that it has no such sandbox into `None`.
fn found<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Failure::NotFound { .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The filter of a list: pairs in the form of a query, which becomes one value of the real one.
fn filter(labels: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(labels)
        .finish()
}

/// A whole answer. Its body may quote the request.
struct Answer {
    status: StatusCode,
    retry_after: Option<HeaderValue>,
    body: Zeroizing<Vec<u8>>,
}

/// Why an answer could not be read.
enum Unreadable {
    TooLarge,
    Broken(reqwest::Error),
}

impl Answer {
    async fn read(mut response: Response, most: usize) -> Result<Self, Unreadable> {
        let mut body = Zeroizing::new(Vec::new());
        while let Some(chunk) = response.chunk().await.map_err(Unreadable::Broken)? {
            if body.len().saturating_add(chunk.len()) > most {
                return Err(Unreadable::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Self {
            status: response.status(),
            retry_after: response.headers().get(RETRY_AFTER).cloned(),
            body,
        })
    }

    /// Whether the status is one of success. `hide` takes out of a message what must not be repeated.
    fn success(&self, hide: impl Fn(&str) -> String) -> Result<(), Failure> {
        if self.status.is_success() {
            return Ok(());
        }
        let answer = Unsuccessful {
            status: self.status,
            retry_after: self.retry_after.as_ref(),
            body: &self.body,
            now: SystemTime::now(),
        };
        Err(answer.failure(hide))
    }

    fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body)
            .map_err(|_| Failure::unusable(self.status, "a body that is not the server's"))
    }

    /// Whether it is as empty as the server's own: the page of a proxy is no success.
    fn nothing(&self) -> Result<(), Failure> {
        if self.body.is_empty() || serde_json::from_slice::<serde::de::IgnoredAny>(&self.body).is_ok() {
            return Ok(());
        }
        Err(Failure::unusable(self.status, "a body that is not the server's"))
    }
}

const INVALID_ENDPOINT: &str = "InvalidEndpoint";

/// Where the server is.
struct Endpoint {
    base: Url,
    proxy: Option<Uri>,
}

impl Endpoint {
    /// Messages do not repeat the text: it may hold a password.
    fn parse(endpoint: &str) -> Result<Self, Why> {
        let invalid = |message: &str| Why::new(INVALID_ENDPOINT, format!("spec.endpoint {message}"));
        let mut base = Url::parse(endpoint).map_err(|error| invalid(&format!("is not a URL: {error}")))?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(invalid("must be an https URL with a host"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(invalid(
                "must not hold a user or password; use spec.apiKeySecretRef",
            ));
        }
        if base.query().is_some() || base.fragment().is_some() {
            return Err(invalid("must not have a query or fragment"));
        }
        if let Ok(mut segments) = base.path_segments_mut() {
            segments.pop_if_empty().push("v1");
        }
        let proxy = Uri::try_from(base.as_str())
            .ok()
            .and_then(|uri| Matcher::from_env().intercept(&uri))
            .map(|proxy| proxy.uri().clone());
        Ok(Self { base, proxy })
    }

    /// Names the server in messages, and the proxy without its credentials.
    fn server(&self) -> String {
        let origin = self.base.origin().ascii_serialization();
        let proxy = self.proxy.as_ref().and_then(|proxy| {
            let port = proxy
                .port_u16()
                .map(|port| format!(":{port}"))
                .unwrap_or_default();
            Some(format!("{}{port}", proxy.host()?))
        });
        match proxy {
            Some(proxy) => format!("{origin} through the proxy {proxy}"),
            None => origin,
        }
    }
}

fn key_header(key: &SecretString) -> Result<HeaderValue, Why> {
    let key = key.expose_secret();
    let invalid = |what: &str| Why::new("InvalidCredentials", format!("the API key {what}"));
    if key.is_empty() {
        return Err(invalid("is empty"));
    }
    let mut value = HeaderValue::from_str(key)
        .ok()
        .filter(|_| key.trim() == key)
        .ok_or_else(|| invalid("holds a space or line break at an end, or what no header can carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Trusts the authorities of the system and of the bundle. A system without any is fine: plain HTTP needs
/// none, and with TLS the handshake says that the issuer is unknown.
fn tls(ca_bundle: Option<&str>) -> Result<rustls::ClientConfig, Why> {
    let mut roots = certificates(ca_bundle)?;
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = rustls::crypto::ring::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|_| invalid_bundle("cannot be used: no common version of TLS"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

/// The authorities of the bundle.
fn certificates(ca_bundle: Option<&str>) -> Result<rustls::RootCertStore, Why> {
    let mut roots = rustls::RootCertStore::empty();
    let Some(bundle) = ca_bundle else {
        return Ok(roots);
    };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(bundle.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| invalid_bundle("is not PEM"))?;
    if certificates.is_empty() {
        return Err(invalid_bundle("holds no certificate"));
    }
    for certificate in certificates {
        roots
            .add(certificate)
            .map_err(|_| invalid_bundle("holds a certificate that cannot be read"))?;
    }
    Ok(roots)
}

fn invalid_bundle(what: &str) -> Why {
    Why::new(INVALID_ENDPOINT, format!("spec.caBundle {what}"))
}

/// HTTP/1.1 only, as the server itself: HTTP/2 would share one connection between calls, and its logs print
/// headers.
fn http_client(
    tls: rustls::ClientConfig,
    options: &Options,
    idle_connections: usize,
) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .user_agent(concat!("ayatori-opensandbox-adapter/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls)
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .connect_timeout(options.connect)
        .pool_max_idle_per_host(idle_connections)
        .pool_idle_timeout(IDLE_TIME)
        .build()
}

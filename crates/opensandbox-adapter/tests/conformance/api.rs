//! As much of an API server as the backend needs here: the one Secret that holds the API key.

use ayatori_core::parameters::SecretKeyReference;
use ayatori_opensandbox_adapter::stub::API_KEY;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::json;

/// Where the API key is.
pub(crate) fn api_key() -> SecretKeyReference {
    SecretKeyReference {
        namespace: "servers".to_owned(),
        name: "stub".to_owned(),
        key: "key".to_owned(),
    }
}

/// A client of it.
pub(crate) fn client() -> Client {
    Client::new(tower::service_fn(answer), "default")
}

async fn answer(request: Request<Body>) -> http::Result<Response<Body>> {
    let SecretKeyReference { namespace, name, key } = api_key();
    let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
    if request.method() != Method::GET || request.uri().path() != path {
        // A watch, that has nothing to tell.
        return std::future::pending().await;
    }
    let secret = json!({
        "metadata": { "namespace": namespace, "name": name },
        "data": { key: k8s_openapi::ByteString(API_KEY.into()) },
    });
    Response::builder().body(Body::from(secret.to_string().into_bytes()))
}

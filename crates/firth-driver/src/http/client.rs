//! Requests and their answers. An error says whether the request may have happened: `false` is a
//! promise.

use bytes::Bytes;
use firth::{Error, ErrorKind, Result};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// The largest answer.
const MAX_ANSWER: usize = 256 * 1024 * 1024;
/// Longer than a server takes for any answer.
const TIME_LIMIT: Duration = Duration::from_secs(75);
const KINDS: [ErrorKind; 12] = [
    ErrorKind::Invalid,
    ErrorKind::NotFound,
    ErrorKind::AlreadyExists,
    ErrorKind::Unauthorized,
    ErrorKind::Unavailable,
    ErrorKind::Timeout,
    ErrorKind::Overloaded,
    ErrorKind::Fenced,
    ErrorKind::Closed,
    ErrorKind::Unsupported,
    ErrorKind::Corrupt,
    ErrorKind::Internal,
];

/// A server; clones share its connections.
#[derive(Clone)]
pub(super) struct Api {
    sockets: Client<HttpConnector, Full<Bytes>>,
    base: String,
    token: Option<String>,
}

impl Api {
    pub(super) fn new(base: &str, token: Option<String>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let sockets = Client::builder(TokioExecutor::new()).build(connector);
        Self { sockets, base: base.to_owned(), token }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        read(&self.call(self.request(Method::GET, path), Bytes::new()).await?)
    }

    /// Sends JSON.
    pub(super) async fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        let request = self.request(method, path).header(header::CONTENT_TYPE, "application/json");
        read(&self.call(request, body.to_string().into()).await?)
    }

    /// Sends JSON that the server takes once, however often it is sent under this key.
    pub(super) async fn send_once(&self, key: &str, path: &str, body: Bytes) -> Result<()> {
        let request = self.request(Method::POST, path).header(header::CONTENT_TYPE, "application/json");
        self.call(request.header("Idempotency-Key", key), body).await.map(drop)
    }

    /// An answer without end, as soon as it begins.
    pub(super) async fn open(&self, path: &str) -> Result<Incoming> {
        let request = self.request(Method::GET, path).header(header::ACCEPT, "application/x-ndjson");
        let response = self.begin(request, Bytes::new()).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        Err(refusal(status, &collect(response).await?))
    }

    fn request(&self, method: Method, path: &str) -> hyper::http::request::Builder {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    async fn call(&self, request: hyper::http::request::Builder, body: Bytes) -> Result<Bytes> {
        let whole = async {
            let response = self.begin(request, body).await?;
            let status = response.status();
            let answer = collect(response).await?;
            if status.is_success() { Ok(answer) } else { Err(refusal(status, &answer)) }
        };
        tokio::time::timeout(TIME_LIMIT, whole).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Timeout, "the server does not answer").with_unknown_outcome())
        })
    }

    async fn begin(&self, request: hyper::http::request::Builder, body: Bytes) -> Result<Response<Incoming>> {
        let request = request
            .body(Full::new(body))
            .map_err(|error| Error::new(ErrorKind::Invalid, "--server is not a URL").with_source(error))?;
        self.sockets.request(request).await.map_err(|error| {
            let refused = error.is_connect();
            let failed =
                Error::new(ErrorKind::Unavailable, "the server cannot be reached").with_source(error);
            if refused { failed } else { failed.with_unknown_outcome() }
        })
    }
}

async fn collect(response: Response<Incoming>) -> Result<Bytes> {
    let collected = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the answer broke off").with_source(error).with_unknown_outcome()
    })
}

/// The problem that a server tells.
#[derive(Deserialize)]
struct Problem {
    kind: String,
    detail: String,
    may_have_happened: bool,
}

fn refusal(status: StatusCode, answer: &[u8]) -> Error {
    let Ok(problem) = serde_json::from_slice::<Problem>(answer) else {
        return Error::new(ErrorKind::Unsupported, format!("status {status}: is this a firth server?"));
    };
    let kind = KINDS.into_iter().find(|kind| kind.as_str() == problem.kind).unwrap_or(ErrorKind::Internal);
    let error = Error::new(kind, problem.detail);
    if problem.may_have_happened { error.with_unknown_outcome() } else { error }
}

/// Never shows the text: it may hold a payload.
pub(super) fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    serde_json::from_slice(text)
        .map_err(|error| Error::new(ErrorKind::Unsupported, format!("the answer is not understood: {error}")))
}

/// A part of a path or a query, escaped.
pub(super) fn escape(text: &str) -> impl std::fmt::Display {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
}

/// A record as the API shows it. Only text is sent by this program, so that no other form is read.
#[derive(Deserialize)]
pub(super) struct Shown {
    pub(super) partition: u32,
    id: String,
    pub(super) attempt: u32,
    pub(super) key: Option<String>,
    #[serde(default)]
    pub(super) payload: String,
    #[serde(default)]
    headers: BTreeMap<String, Value>,
}

impl Shown {
    /// What the sender calls it, or its place if another program sent it.
    pub(super) fn id(&self) -> String {
        match self.headers.get("id") {
            Some(Value::String(id)) => id.clone(),
            _ => format!("{}/{}", self.partition, self.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_becomes_the_error_that_it_tells() {
        let text = br#"{"type":"x","kind":"fenced","detail":"why","may_have_happened":true}"#;
        let error = refusal(StatusCode::CONFLICT, text);
        assert_eq!((error.kind(), error.may_have_happened()), (ErrorKind::Fenced, true));
        assert_eq!(refusal(StatusCode::BAD_GATEWAY, b"<html>").kind(), ErrorKind::Unsupported);
    }
}

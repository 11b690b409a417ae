//! How commands reach the API: over a socket, or inside this process on an engine of its own. One
//! code path for both.

mod connect;

use crate::api;
use crate::app::App;
use crate::auth::{CLIENT, Guard};
use crate::problem::Problem;
use crate::wire::invalid;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, StatusCode, Uri, header};
use connect::Connector;
use firth::{Broker, Error, ErrorKind, Result};
use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client as Sockets;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::path::Path;
use std::time::Duration;
use tower_service::Service;

/// The largest answer that is read.
const MAX_ANSWER: usize = 1024 * 1024 * 1024;
/// The longest line of an endless answer.
const MAX_ANSWER_LINE: usize = 64 * 1024 * 1024;
/// Longer than any answer of a server takes.
const TIME_LIMIT: Duration = Duration::from_secs(75);

/// The API, wherever it is; clones share it.
#[derive(Clone)]
pub(crate) enum Client {
    /// A running server.
    Remote { sockets: Box<Sockets<Connector, Body>>, base: String, token: Option<String> },
    /// This process.
    Local { app: App, router: axum::Router },
}

impl Client {
    /// Speaks to the server at `base`.
    pub(crate) fn remote(base: &str, token: Option<String>) -> Result<Self> {
        let base = base.trim_end_matches('/');
        let uri: Uri =
            base.parse().map_err(|error| invalid("--server is not a URL").with_source(format!("{error}")))?;
        let connector = match uri.scheme_str().filter(|_| uri.host().is_some()) {
            Some("http") => Connector::plain(),
            Some("https") => Connector::tls(std::env::var_os("FIRTH_CA_FILE").as_deref().map(Path::new))?,
            _ => return Err(invalid("--server looks like http://127.0.0.1:7171 or https://HOST")),
        };
        let sockets = Box::new(Sockets::builder(TokioExecutor::new()).build(connector));
        Ok(Self::Remote { sockets, base: base.to_owned(), token })
    }

    /// Opens an engine in this process.
    pub(crate) async fn local(engine: &str) -> Result<Self> {
        let app = App::new(Broker::connect(engine).await?, Guard::Inside, None);
        Ok(Self::Local { router: api::router(app.clone()), app })
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let answer = self.call(Method::GET, path, None).await?;
        read(&answer)
    }

    pub(crate) async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        let body =
            serde_json::to_vec(body).map_err(|error| invalid("this is not JSON").with_source(error))?;
        let answer = self.call(method, path, Some(body)).await?;
        read(&answer)
    }

    /// Posts what may be posted again: the server acts once on all requests with this key.
    pub(crate) async fn send_once<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        key: &str,
    ) -> Result<T> {
        let body =
            serde_json::to_vec(body).map_err(|error| invalid("this is not JSON").with_source(error))?;
        let response = self.head(Method::POST, path, Some(body), Some(key)).await?;
        read(&finish(response).await?)
    }

    /// Whether the server is ready; this needs no token.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.call(Method::GET, "/health/ready", None).await.map(drop)
    }

    /// Sends what is answered without a body.
    pub(crate) async fn send_only(&self, method: Method, path: &str, body: &impl Serialize) -> Result<()> {
        let body =
            serde_json::to_vec(body).map_err(|error| invalid("this is not JSON").with_source(error))?;
        self.call(method, path, Some(body)).await.map(drop)
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        self.call(Method::DELETE, path, None).await.map(drop)
    }

    /// An answer that comes line by line, without end.
    pub(crate) async fn lines(&self, path: &str) -> Result<Lines> {
        let response = self.head(Method::GET, path, None, None).await?;
        if response.status().is_success() {
            return Ok(Lines { body: response.into_body(), buffer: Vec::new() });
        }
        let status = response.status();
        let answer = collect(response.into_body()).await?;
        Err(refusal(status, &answer))
    }

    /// An answer of any length, piece by piece.
    pub(crate) async fn download(&self, path: &str) -> Result<Download> {
        let response = self.head(Method::GET, path, None, None).await?;
        if response.status().is_success() {
            return Ok(Download { body: response.into_body() });
        }
        let status = response.status();
        let answer = collect(response.into_body()).await?;
        Err(refusal(status, &answer))
    }

    /// Leaves groups and closes what was opened here.
    pub(crate) async fn close(self) -> Result<()> {
        match self {
            Self::Remote { .. } => Ok(()),
            Self::Local { app, .. } => app.close().await,
        }
    }

    async fn call(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Bytes> {
        finish(self.head(method, path, body, None).await?).await
    }

    /// The answer as far as its head, within the time limit.
    async fn head(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        key: Option<&str>,
    ) -> Result<axum::response::Response> {
        tokio::time::timeout(TIME_LIMIT, self.respond(method, path, body, key)).await.map_err(|_| {
            Error::new(ErrorKind::Timeout, "the server does not answer").with_unknown_outcome()
        })?
    }

    async fn respond(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        key: Option<&str>,
    ) -> Result<axum::response::Response> {
        let (base, token) = match self {
            Self::Remote { base, token, .. } => (base.as_str(), token.as_deref()),
            Self::Local { .. } => ("", None),
        };
        // The server sends streams as JSON lines to a client that accepts JSON.
        let mut request = Request::builder().method(method).uri(format!("{base}{path}"));
        request = request.header(header::ACCEPT, "application/json");
        request = request.header(CLIENT, format!("firth {}", std::process::id()));
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Body::from(body.unwrap_or_default()))
            .map_err(|error| invalid("this cannot be asked").with_source(error))?;
        match self {
            Self::Remote { sockets, base, .. } => match sockets.request(request).await {
                Ok(response) => Ok(response.map(Body::new)),
                Err(error) if error.is_connect() => Err(unreached(base, error)),
                Err(error) => {
                    let failed = Error::new(ErrorKind::Unavailable, "the connection broke");
                    Err(failed.with_source(error).with_unknown_outcome())
                }
            },
            Self::Local { router, .. } => {
                let answer = router.clone().call(request).await;
                Ok(answer.unwrap_or_else(|never| match never {}))
            }
        }
    }
}

/// The body of an answer, or the error that it tells.
async fn finish(response: axum::response::Response) -> Result<Bytes> {
    let status = response.status();
    let answer = collect(response.into_body()).await?;
    if status.is_success() { Ok(answer) } else { Err(refusal(status, &answer)) }
}

/// Why no request could be sent: nothing listens there, or it does not speak TLS as wanted.
fn unreached(base: &str, error: hyper_util::client::legacy::Error) -> Error {
    let mut causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
    if causes.any(<dyn std::error::Error>::is::<connect::TlsFailed>) {
        let context = format!(
            "a secure connection to {base} failed: name its certificate authority in FIRTH_CA_FILE, \
             or use http:// if the server has no certificate"
        );
        return Error::new(ErrorKind::Invalid, context).with_source(error);
    }
    let context = format!("no server at {base}: start one with `firth serve`, or name it with --server");
    Error::new(ErrorKind::Unavailable, context).with_source(error)
}

async fn collect(body: Body) -> Result<Bytes> {
    let collected = Limited::new(body, MAX_ANSWER).collect().await;
    collected.map(http_body_util::Collected::to_bytes).map_err(broke_off)
}

fn broke_off(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Unavailable, "the answer broke off").with_source(error).with_unknown_outcome()
}

/// The error that the server tells.
fn refusal(status: StatusCode, answer: &[u8]) -> Error {
    match serde_json::from_slice::<Problem>(answer) {
        Ok(problem) if status == StatusCode::FORBIDDEN => problem.into_error().with_source(Forbidden),
        Ok(problem) => problem.into_error(),
        Err(_) => {
            let context = format!("status {status} from something that is no firth server");
            Error::new(ErrorKind::Unsupported, context)
        }
    }
}

/// The cause of an error that the server told as 403.
#[derive(Debug)]
struct Forbidden;

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server knows the caller and does not allow this (403)")
    }
}

impl std::error::Error for Forbidden {}

/// Whether the server knows the caller and does not allow what it asked for.
pub(crate) fn is_forbidden(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<Forbidden>)
}

/// An answer of any length.
pub(crate) struct Download {
    body: Body,
}

impl Download {
    /// The next piece; nothing at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            let Some(frame) = self.body.frame().await.transpose().map_err(broke_off)? else {
                return Ok(None);
            };
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }
}

/// An endless answer, line by line.
pub(crate) struct Lines {
    body: Body,
    buffer: Vec<u8>,
}

impl Lines {
    /// The next line that is not empty, as JSON; `None` at the end.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<_> = self.buffer.drain(..=end).collect();
                if !line.trim_ascii().is_empty() {
                    return read(&line).map(Some);
                }
                continue;
            }
            if self.buffer.len() > MAX_ANSWER_LINE {
                return Err(Error::new(ErrorKind::Unsupported, "the server sends a line without end"));
            }
            match self.body.frame().await.transpose().map_err(broke_off)? {
                Some(frame) => self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                None => return Ok(None),
            }
        }
    }
}

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T> {
    serde_json::from_slice(answer).map_err(|error| {
        Error::new(ErrorKind::Unsupported, "the server's answer is not understood: is it of this version?")
            .with_source(error)
    })
}

/// Encodes any text as one part of a path or a query.
pub(crate) fn escape(text: &str) -> impl std::fmt::Display {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
}

pub(crate) fn topic_path(topic: &str) -> String {
    format!("/v1/topics/{}", escape(topic))
}

pub(crate) fn group_path(topic: &str, group: &str) -> String {
    format!("{}/groups/{}", topic_path(topic), escape(group))
}

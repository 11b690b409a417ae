//! How commands reach the API: over a socket, or inside this process on an engine of its own. One code path for both.

use crate::api;
use crate::app::App;
use crate::auth::Guard;
use crate::problem::Problem;
use crate::wire::invalid;
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Uri, header};
use firth::{Broker, Error, ErrorKind, Result};
use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client as Sockets;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tower_service::Service;

/// The largest answer that is read.
const MAX_ANSWER: usize = 1024 * 1024 * 1024;
/// Longer than any answer of a server takes.
const TIME_LIMIT: Duration = Duration::from_secs(75);

/// The API, wherever it is.
pub(crate) enum Client {
    /// A running server.
    Remote { sockets: Sockets<HttpConnector, Body>, base: String, token: Option<String> },
    /// This process.
    Local { app: App, router: axum::Router },
}

impl Client {
    /// Speaks to the server at `base`.
    pub(crate) fn remote(base: &str, token: Option<String>) -> Result<Self> {
        let base = base.trim_end_matches('/');
        let uri: Uri =
            base.parse().map_err(|error| invalid("--server is not a URL").with_source(format!("{error}")))?;
        if uri.scheme_str() != Some("http") || uri.host().is_none() {
            return Err(invalid("--server looks like http://127.0.0.1:7171"));
        }
        let sockets = Sockets::builder(TokioExecutor::new()).build_http();
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

    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        self.call(Method::DELETE, path, None).await.map(drop)
    }

    /// Leaves groups and closes what was opened here.
    pub(crate) async fn close(self) -> Result<()> {
        match self {
            Self::Remote { .. } => Ok(()),
            Self::Local { app, .. } => app.close().await,
        }
    }

    async fn call(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Bytes> {
        let response =
            tokio::time::timeout(TIME_LIMIT, self.respond(method, path, body)).await.map_err(|_| {
                Error::new(ErrorKind::Timeout, "the server does not answer").with_unknown_outcome()
            })??;
        let status = response.status();
        let answer = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the answer broke off")
                .with_source(error)
                .with_unknown_outcome()
        })?;
        let answer = answer.to_bytes();
        if status.is_success() {
            return Ok(answer);
        }
        Err(match serde_json::from_slice::<Problem>(&answer) {
            Ok(problem) => problem.into_error(),
            Err(_) => Error::new(
                ErrorKind::Unsupported,
                format!("status {status} from something that is no firth server"),
            ),
        })
    }

    async fn respond(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<axum::response::Response> {
        let (base, token) = match self {
            Self::Remote { base, token, .. } => (base.as_str(), token.as_deref()),
            Self::Local { .. } => ("", None),
        };
        let mut request = Request::builder().method(method).uri(format!("{base}{path}"));
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
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
                Err(error) if error.is_connect() => {
                    let context = format!(
                        "no server at {base}: start one with `firth serve`, or name it with --server"
                    );
                    Err(Error::new(ErrorKind::Unavailable, context))
                }
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

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T> {
    serde_json::from_slice(answer).map_err(|error| {
        Error::new(ErrorKind::Unsupported, "the server's answer is not understood: is it of this version?")
            .with_source(error)
    })
}

/// A part of a path or a query, whatever it contains.
pub(crate) fn escape(text: &str) -> impl std::fmt::Display {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
}

pub(crate) fn topic_path(topic: &str) -> String {
    format!("/v1/topics/{}", escape(topic))
}

pub(crate) fn group_path(topic: &str, group: &str) -> String {
    format!("{}/groups/{}", topic_path(topic), escape(group))
}

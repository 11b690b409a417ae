//! Bodies in and out: size and time limits, media types, JSON with errors that name the field.

use super::MAX_BODY;
use crate::problem::{Answer, Problem};
use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use firth::ErrorKind;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// How long a body may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(30);

/// A whole body with its media type, within the limits.
pub(crate) struct Raw {
    pub(crate) media: String,
    pub(crate) bytes: Bytes,
}

impl<S: Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Answer<Self> {
        let media = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media = media.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
        let media = media.to_ascii_lowercase();
        let collecting = Limited::new(request.into_body(), MAX_BODY).collect();
        let collected = tokio::time::timeout(ARRIVAL, collecting).await.map_err(|_| {
            let detail = format!("the body did not arrive within {} s", ARRIVAL.as_secs());
            Problem::http(StatusCode::REQUEST_TIMEOUT, ErrorKind::Timeout, detail)
        })?;
        let bytes = collected.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => {
                let detail = format!("a request has at most {MAX_BODY} bytes: send several");
                Problem::http(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::Invalid, detail)
            }
            None => bad("the body ended before it was complete"),
        })?;
        Ok(Self { media, bytes: bytes.to_bytes() })
    }
}

/// A JSON body; an empty one stands for `{}`.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Answer<Self> {
        let raw = Raw::from_request(request, state).await?;
        if raw.bytes.is_empty() {
            return parse(b"{}").map(Self);
        }
        expect_media(&raw.media, &["application/json"])?;
        parse(&raw.bytes).map(Self)
    }
}

/// Path parameters, with problem details on failure.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let found: Result<_, PathRejection> = axum::extract::Path::from_request_parts(parts, state).await;
        found.map(|axum::extract::Path(found)| Self(found)).map_err(|error| bad(error.body_text()))
    }
}

/// Query parameters, with problem details on failure.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let found: Result<_, QueryRejection> = axum::extract::Query::from_request_parts(parts, state).await;
        found.map(|axum::extract::Query(found)| Self(found)).map_err(|error| bad(error.body_text()))
    }
}

/// A JSON answer.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => {
                let kind = HeaderValue::from_static("application/json");
                ([(header::CONTENT_TYPE, kind)], Body::from(body)).into_response()
            }
            Err(error) => {
                let detail = format!("the answer cannot be written as JSON: {error}");
                Problem::http(StatusCode::INTERNAL_SERVER_ERROR, ErrorKind::Internal, detail).into_response()
            }
        }
    }
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Answer<T> {
    serde_json::from_slice(bytes).map_err(|error| bad(format!("the body is not as expected: {error}")))
}

pub(crate) fn expect_media(media: &str, known: &[&str]) -> Answer<()> {
    if known.contains(&media) {
        return Ok(());
    }
    let detail = format!("send the header `Content-Type: {}`", known.join("` or `"));
    Err(Problem::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorKind::Invalid, detail))
}

pub(crate) fn bad(detail: impl Into<String>) -> Problem {
    Problem::from(crate::wire::invalid(detail))
}

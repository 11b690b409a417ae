//! Bodies in and out: size, time and memory limits, media types, JSON with errors that name the
//! field.

use crate::app::App;
use crate::problem::{Answer, Problem};
use crate::wire::Object;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use firth::ErrorKind;
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// A whole request: its headers, and its body within the limits. The body's room is given back when
/// it is dropped.
pub(crate) struct Raw {
    pub(crate) headers: HeaderMap,
    pub(crate) media: String,
    pub(crate) bytes: Bytes,
    _room: Vec<OwnedSemaphorePermit>,
}

impl FromRequest<App> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Answer<Self> {
        let limit = app.limits().request_size;
        Self::within(request, app, limit).await
    }
}

impl Raw {
    /// As a body of any call, with a limit of its own on its bytes.
    pub(crate) async fn within(request: Request, app: &App, limit: usize) -> Answer<Self> {
        let (Parts { headers, .. }, mut body) = request.into_parts();
        let media = media_type(&headers)?;
        let limits = app.limits();
        let limit = limit.min(limits.request_size);
        let announced = headers.get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
        if announced > limit {
            return Err(too_large(limit));
        }
        let mut room = Room { app, size: 0, taken: Vec::new() };
        let mut parts = Vec::new();
        let mut size = 0;
        let until = Instant::now() + limits.body_time;
        loop {
            let Ok(frame) = tokio::time::timeout_at(until, body.frame()).await else {
                return Err(Problem::too_slow("body", limits.body_time));
            };
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|_| Problem::field("body", "the body ended before it was complete"))?;
            let Ok(data) = frame.into_data() else { continue };
            size += data.len();
            if size > limit {
                return Err(too_large(limit));
            }
            room.grow(size)?;
            parts.push(data);
        }
        let bytes = if parts.len() == 1 { parts.remove(0) } else { parts.concat().into() };
        Ok(Self { headers, media, bytes, _room: room.taken })
    }
}

/// A body that is no upload: verdicts, fetches, single messages.
const SMALL: usize = 64 * 1024;

/// Room for a body, taken as it arrives: what was only announced takes none. A small body has room
/// of its own; one that grows moves to where uploads are.
struct Room<'a> {
    app: &'a App,
    size: usize,
    /// At most one of each room.
    taken: Vec<OwnedSemaphorePermit>,
}

impl Room<'_> {
    fn grow(&mut self, size: usize) -> Answer<()> {
        let more = size - self.size;
        let moves = self.size <= SMALL && size > SMALL;
        let taken = match (size <= SMALL, moves) {
            (true, _) => self.app.small_room_for(more),
            (false, true) => self.app.room_for(size),
            (false, false) => self.app.room_for(more),
        };
        let taken = taken.ok_or_else(|| {
            let limit = self.app.limits().buffered as u64;
            let detail = format!("the server holds {limit} bytes of requests already: try again in a moment");
            Problem::http(StatusCode::TOO_MANY_REQUESTS, ErrorKind::Overloaded, detail)
                .at("body")
                .limit(limit)
        })?;
        if moves {
            self.taken.clear();
        }
        let same = |held: &&mut OwnedSemaphorePermit| Arc::ptr_eq(held.semaphore(), taken.semaphore());
        match self.taken.iter_mut().find(same) {
            Some(held) => held.merge(taken),
            None => self.taken.push(taken),
        }
        self.size = size;
        Ok(())
    }
}

fn media_type(headers: &HeaderMap) -> Answer<String> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(String::new()) };
    if headers.contains_key(header::CONTENT_ENCODING) {
        let detail = "a body is sent as it is: leave out the header Content-Encoding";
        let problem = Problem::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorKind::Invalid, detail);
        return Err(problem.at("Content-Encoding"));
    }
    let text = value.to_str().unwrap_or_default();
    Ok(text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn too_large(limit: usize) -> Problem {
    let detail = format!("a request has at most {limit} bytes: send several");
    let problem = Problem::http(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::Invalid, detail);
    problem.at("body").limit(limit as u64)
}

/// A JSON body; an empty one stands for `{}`.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Answer<Self> {
        let raw = Raw::from_request(request, app).await?;
        if raw.bytes.is_empty() {
            return parse(b"{}").map(|Object(value)| Self(value));
        }
        expect_media(&raw.media, &["application/json"])?;
        parse(&raw.bytes).map(|Object(value)| Self(value))
    }
}

/// Path parameters, with problem details on failure.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let found: Result<_, PathRejection> = axum::extract::Path::from_request_parts(parts, state).await;
        found.map(|axum::extract::Path(found)| Self(found)).map_err(|error| {
            let detail = error.body_text();
            let field = quoted(&detail).unwrap_or_else(|| "path".to_owned());
            Problem::field(&field, detail)
        })
    }
}

/// Query parameters, with problem details on failure.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        let found: Result<_, QueryRejection> = axum::extract::Query::from_request_parts(parts, state).await;
        found.map(|axum::extract::Query(found)| Self(found)).map_err(|error| {
            let detail = error.body_text();
            let named = detail.split(": ").nth(1).filter(|name| !name.contains(' '));
            let unknown = quoted(&detail).filter(|_| detail.contains("unknown field"));
            let field = unknown.or_else(|| named.map(str::to_owned));
            Problem::field(field.as_deref().unwrap_or("query"), detail)
        })
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

/// Reads JSON; only a failure costs the second pass that finds the field.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Answer<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        let mut again = serde_json::Deserializer::from_slice(bytes);
        let path = match serde_path_to_error::deserialize::<_, T>(&mut again) {
            Ok(_) => String::new(),
            // A question mark stands where the text broke off.
            Err(error) => error.path().to_string().trim_end_matches(['.', '?']).to_owned(),
        };
        let inner = quoted(&error.to_string()).filter(|_| !error.is_syntax() && !error.is_eof());
        let is_whole = path.is_empty() || path == ".";
        let field = match inner.filter(|_| names_a_field(&error)) {
            Some(name) if is_whole => name,
            Some(name) if path.ends_with(&name) => path,
            Some(name) => format!("{path}.{name}"),
            None if is_whole => "body".to_owned(),
            None => path,
        };
        Problem::field(&field, format!("the body is not as expected: {error}"))
    })
}

fn names_a_field(error: &serde_json::Error) -> bool {
    let text = error.to_string();
    ["unknown field", "missing field", "duplicate field"].iter().any(|start| text.starts_with(start))
}

/// What stands in the first pair of backticks.
fn quoted(text: &str) -> Option<String> {
    text.split('`').nth(1).filter(|name| !name.is_empty()).map(str::to_owned)
}

pub(crate) fn expect_media(media: &str, known: &[&str]) -> Answer<()> {
    if known.contains(&media) {
        return Ok(());
    }
    let detail = format!("send the header `Content-Type: {}`", known.join("` or `"));
    let problem = Problem::http(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorKind::Invalid, detail);
    Err(problem.at("Content-Type"))
}

/// A number within its bounds, or a problem that names field and limit.
pub(crate) fn within(field: &str, value: u64, min: u64, max: u64) -> Answer<u64> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    let limit = if value < min { min } else { max };
    Err(Problem::field(field, format!("{field} is {value}; give {min} to {max}")).limit(limit))
}

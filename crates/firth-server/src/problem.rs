//! RFC 9457 problem details: the one table from an error's kind to its status, and back for the command line.
//!
//! Details are the error's own context and causes; the engine never puts payloads or secrets there.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use firth::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// What goes wrong in HTTP itself and in what lies below.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    pub(crate) uri: Box<str>,
    pub(crate) title: Box<str>,
    pub(crate) status: u16,
    pub(crate) detail: String,
    pub(crate) kind: Box<str>,
    /// Whether the same request may succeed later.
    pub(crate) retryable: bool,
    /// Whether it may have happened although it failed.
    pub(crate) may_have_happened: bool,
    /// Which part of the request is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// The limit that it breaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<u64>,
    /// When to come again, in seconds, if not at once; goes into the head.
    #[serde(skip)]
    pub(crate) retry_after: u32,
}

/// What the engine's and the queue's errors say, and which field of a request that is.
const FIELDS: [(&str, &str); 24] = [
    ("topic name", "topic"),
    ("group name", "group"),
    ("payload has", "payload"),
    ("key has", "key"),
    ("headers take", "headers"),
    (" headers; at most", "headers"),
    ("a header has an empty name", "headers"),
    ("can be delayed by at most", "after_ms"),
    ("cannot wait longer", "after_ms"),
    (" partitions; ", "partitions"),
    ("partitions can only", "partitions"),
    ("max_payload is", "max_payload"),
    ("record id must", "id"),
    ("a dead letter's id", "id"),
    ("partition ", "partition"),
    ("producer name", "Idempotency-Key"),
    ("subscription's collection", "collection"),
    ("subscription's document", "document"),
    ("service name", "service"),
    ("member name", "worker"),
    ("offer name", "name"),
    (" shards", "shards"),
    ("a checkpoint of", "checkpoint"),
    ("an offer rests", "rest_ms"),
];

/// The table: each kind with its status and its title.
const TABLE: [(ErrorKind, StatusCode, &str); 13] = [
    (ErrorKind::Invalid, StatusCode::BAD_REQUEST, "The request is wrong"),
    (ErrorKind::NotFound, StatusCode::NOT_FOUND, "It does not exist"),
    (ErrorKind::AlreadyExists, StatusCode::CONFLICT, "It exists already"),
    (ErrorKind::Unauthorized, StatusCode::BAD_GATEWAY, "The engine refuses this server"),
    (ErrorKind::Unavailable, StatusCode::SERVICE_UNAVAILABLE, "The engine cannot serve this now"),
    (ErrorKind::Timeout, StatusCode::GATEWAY_TIMEOUT, "No answer in time"),
    (ErrorKind::Overloaded, StatusCode::TOO_MANY_REQUESTS, "A limit is reached"),
    (ErrorKind::Fenced, StatusCode::CONFLICT, "Somebody newer owns this"),
    (ErrorKind::WentBack, StatusCode::CONFLICT, "The log went back"),
    (ErrorKind::Closed, StatusCode::SERVICE_UNAVAILABLE, "The server is closing"),
    (ErrorKind::Unsupported, StatusCode::NOT_IMPLEMENTED, "The engine cannot do this"),
    (ErrorKind::Corrupt, StatusCode::INTERNAL_SERVER_ERROR, "Stored data cannot be read"),
    (ErrorKind::Internal, StatusCode::INTERNAL_SERVER_ERROR, "A mistake of the server"),
];

impl Problem {
    /// A problem of HTTP itself; `kind` is what the command line makes of it.
    pub(crate) fn http(status: StatusCode, kind: ErrorKind, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Refused");
        let slug = title.to_ascii_lowercase().replace(' ', "-");
        Self {
            uri: format!("urn:firth:problem:{slug}").into(),
            title: title.into(),
            status: status.as_u16(),
            detail: detail.into(),
            kind: kind.as_str().into(),
            retryable: kind.is_retryable(),
            may_have_happened: false,
            field: None,
            limit: None,
            retry_after: 0,
        }
    }

    /// A request with something wrong in `field`.
    pub(crate) fn field(field: &str, detail: impl Into<String>) -> Self {
        let problem = Self::from(Error::new(ErrorKind::Invalid, detail.into()));
        Self { field: Some(field.to_owned()), ..problem }
    }

    /// A request whose `what` came too slowly.
    pub(crate) fn too_slow(what: &str, limit: Duration) -> Self {
        let detail = format!("the {what} did not arrive within {} ms", limit.as_millis());
        let problem = Self::http(StatusCode::REQUEST_TIMEOUT, ErrorKind::Timeout, detail);
        problem.at(what).limit(crate::wire::millis(limit))
    }

    /// Says which field is wrong.
    pub(crate) fn at(self, field: &str) -> Self {
        Self { field: Some(field.to_owned()), ..self }
    }

    /// Says which limit is broken.
    pub(crate) fn limit(self, limit: u64) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Says when to come again.
    pub(crate) fn after(self, wait: Duration) -> Self {
        Self { retry_after: wait.as_secs_f64().ceil().clamp(1.0, 3600.0) as u32, retryable: true, ..self }
    }

    /// The error that a client of this server sees.
    pub(crate) fn into_error(self) -> Error {
        let kind = TABLE.iter().map(|row| row.0).find(|kind| kind.as_str() == &*self.kind);
        let error = Error::new(kind.unwrap_or(ErrorKind::Internal), self.detail);
        if self.may_have_happened { error.with_unknown_outcome() } else { error }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        let internal = (kind, StatusCode::INTERNAL_SERVER_ERROR, "A mistake of the server");
        let (_, status, title) = TABLE.into_iter().find(|row| row.0 == kind).unwrap_or(internal);
        let mut detail = error.context().to_owned();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            detail = format!("{detail}: {cause}");
            source = cause.source();
        }
        let is_ours = kind == ErrorKind::Invalid;
        let known = FIELDS.iter().find(|(words, _)| is_ours && detail.contains(words));
        let named = leading_field(&detail).filter(|_| is_ours);
        let field = named.or_else(|| known.map(|(_, field)| (*field).to_owned()));
        let limit = limit_in(&detail).filter(|_| is_ours);
        Self {
            field,
            limit,
            retry_after: 0,
            uri: format!("urn:firth:problem:{}", kind.as_str().replace(' ', "-")).into(),
            title: title.into(),
            status: status.as_u16(),
            detail,
            kind: kind.as_str().into(),
            retryable: error.is_retryable(),
            may_have_happened: error.may_have_happened(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::warn!(status = self.status, kind = &*self.kind, detail = self.detail, "request failed");
        }
        let body = serde_json::to_vec(&self).expect("strings and numbers are always JSON");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.retryable {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after.max(1)));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The field in front of our own errors: `at_ms: no clock shows this time`.
fn leading_field(detail: &str) -> Option<String> {
    // A message of several is named in front: `message 2: key: …`.
    let detail = detail
        .split_once(": ")
        .filter(|(front, _)| front.starts_with("message "))
        .map_or(detail, |(_, rest)| rest);
    let (field, _) = detail.split_once(": ")?;
    let is_field =
        !field.is_empty() && field.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    is_field.then(|| field.to_owned())
}

/// The number after "at most" or "give 1 to".
fn limit_in(detail: &str) -> Option<u64> {
    let rest = ["at most ", "give 1 to "].iter().find_map(|words| Some(detail.split_once(words)?.1))?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// What handlers answer.
pub(crate) type Answer<T> = Result<T, Problem>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_requests_are_told_the_field_and_the_limit() {
        let told = |context: &'static str| {
            let problem = Problem::from(Error::new(ErrorKind::Invalid, context));
            (problem.field, problem.limit)
        };
        let field = |name: &str| Some(name.to_owned());
        assert_eq!(told("topic name has 129 bytes; at most 128 are allowed"), (field("topic"), Some(128)));
        assert_eq!(
            told("send to t/0: key has 2000 bytes; at most 1024 are allowed"),
            (field("key"), Some(1024))
        );
        assert_eq!(told("0 partitions; give 1 to 4096"), (field("partitions"), Some(4096)));
        assert_eq!(told("at_ms: no clock shows this time"), (field("at_ms"), None));
        assert_eq!(told("something else"), (None, None));
    }

    #[test]
    fn an_error_survives_the_way_over_the_wire() {
        for (kind, status, _) in TABLE {
            let problem = Problem::from(Error::new(kind, "why").with_unknown_outcome());
            assert_eq!(problem.status, status.as_u16());
            let text = serde_json::to_string(&problem).unwrap();
            let error = serde_json::from_str::<Problem>(&text).unwrap().into_error();
            assert_eq!((error.kind(), error.context(), error.may_have_happened()), (kind, "why", true));
        }
    }
}

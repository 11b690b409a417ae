//! RFC 9457 problem details: the one table from an error's kind to its status, and back for the
//! command line.
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

/// Fields of the engine that have another name in a request.
const FIELDS: [(&str, &str); 2] = [("member", "worker"), ("producer", "Idempotency-Key")];

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
        let field = error.field().map(|field| {
            FIELDS.iter().find(|(ours, _)| *ours == field).map_or(field, |(_, theirs)| theirs).to_owned()
        });
        let limit = error.limit();
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

/// What handlers answer.
pub(crate) type Answer<T> = Result<T, Problem>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_requests_are_told_the_field_and_the_limit() {
        let told = |error: Error| {
            let problem = Problem::from(error);
            (problem.field, problem.limit)
        };
        let error = |context: &'static str| Error::new(ErrorKind::Invalid, context);
        let field = |name: &str| Some(name.to_owned());
        let name = firth::TopicName::new("x".repeat(129)).unwrap_err();
        assert_eq!(told(name.during("send")), (field("topic"), Some(128)));
        assert_eq!(told(error("x").with_field("member")), (field("worker"), None));
        assert_eq!(told(error("payload has 5 bytes; at most 4")), (None, None), "text decides nothing");
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

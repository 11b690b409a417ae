//! RFC 9457 problem details: the one table from an error's kind to its status, and back for the command line.
//!
//! Details are the error's own context and causes; the engine never puts payloads or secrets there.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use firth::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

/// What goes wrong in HTTP itself and in what lies below.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    pub(crate) uri: String,
    pub(crate) title: String,
    pub(crate) status: u16,
    pub(crate) detail: String,
    pub(crate) kind: String,
    /// Whether the same request may succeed later.
    pub(crate) retryable: bool,
    /// Whether it may have happened although it failed.
    pub(crate) may_have_happened: bool,
}

/// The table: each kind with its status and its title.
const TABLE: [(ErrorKind, StatusCode, &str); 12] = [
    (ErrorKind::Invalid, StatusCode::BAD_REQUEST, "The request is wrong"),
    (ErrorKind::NotFound, StatusCode::NOT_FOUND, "It does not exist"),
    (ErrorKind::AlreadyExists, StatusCode::CONFLICT, "It exists already"),
    (ErrorKind::Unauthorized, StatusCode::BAD_GATEWAY, "The engine refuses this server"),
    (ErrorKind::Unavailable, StatusCode::SERVICE_UNAVAILABLE, "The engine cannot serve this now"),
    (ErrorKind::Timeout, StatusCode::GATEWAY_TIMEOUT, "No answer in time"),
    (ErrorKind::Overloaded, StatusCode::TOO_MANY_REQUESTS, "A limit is reached"),
    (ErrorKind::Fenced, StatusCode::CONFLICT, "Somebody newer owns this"),
    (ErrorKind::Closed, StatusCode::SERVICE_UNAVAILABLE, "The server is closing"),
    (ErrorKind::Unsupported, StatusCode::NOT_IMPLEMENTED, "The engine cannot do this"),
    (ErrorKind::Corrupt, StatusCode::INTERNAL_SERVER_ERROR, "Stored data cannot be read"),
    (ErrorKind::Internal, StatusCode::INTERNAL_SERVER_ERROR, "A mistake of the server"),
];

impl Problem {
    /// A problem of HTTP itself; `kind` is what the command line makes of it.
    pub(crate) fn http(status: StatusCode, kind: ErrorKind, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Refused").to_owned();
        let slug = title.to_ascii_lowercase().replace(' ', "-");
        Self {
            uri: format!("urn:firth:problem:{slug}"),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            kind: kind.as_str().to_owned(),
            retryable: kind.is_retryable(),
            may_have_happened: false,
        }
    }

    /// The error that a client of this server sees.
    pub(crate) fn into_error(self) -> Error {
        let kind = TABLE.iter().map(|row| row.0).find(|kind| kind.as_str() == self.kind);
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
        Self {
            uri: format!("urn:firth:problem:{}", kind.as_str().replace(' ', "-")),
            title: title.to_owned(),
            status: status.as_u16(),
            detail,
            kind: kind.as_str().to_owned(),
            retryable: error.is_retryable(),
            may_have_happened: error.may_have_happened(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::warn!(status = self.status, kind = self.kind, detail = self.detail, "request failed");
        }
        let body = serde_json::to_vec(&self).expect("strings and numbers are always JSON");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.retryable {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
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

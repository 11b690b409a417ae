//! [`ServerError`]: what the server refuses, and what that means for a source.

use crate::error::{Error, ErrorKind};
use bytes::Bytes;
use std::fmt;

/// An error response of the server. Its details are left out: they may hold values of rows.
#[derive(Clone, Debug)]
pub(crate) struct ServerError {
    /// The code of five characters.
    pub(crate) code: String,
    /// What the server says.
    pub(crate) message: String,
}

impl ServerError {
    /// Reads the fields of an error response.
    pub(crate) fn read(body: &Bytes) -> Self {
        let field = |wanted: u8| {
            let fields = body.split(|byte| *byte == 0);
            let found = fields.filter_map(|field| field.split_first()).find(|(tag, _)| **tag == wanted);
            found.map_or_else(String::new, |(_, text)| String::from_utf8_lossy(text).into_owned())
        };
        Self { code: field(b'C'), message: field(b'M') }
    }

    /// What kind of failure it is.
    fn kind(&self) -> ErrorKind {
        match (self.code.get(..2).unwrap_or_default(), &*self.code) {
            // Logins and rights.
            ("28", _) | (_, "42501") => ErrorKind::Unauthorized,
            // Broken connections, missing resources, a server that starts or stops, timeouts.
            ("08" | "53" | "57" | "58" | "40", _) | (_, "55006" | "25006") => ErrorKind::Unavailable,
            _ => ErrorKind::Refused,
        }
    }

    pub(crate) fn into_error(self) -> Error {
        Error::new(self.kind(), format!("PostgreSQL refuses: {}", self.message)).with_source(self)
    }

    /// The code of a failure, if the server told it.
    pub(crate) fn code_of(error: &Error) -> Option<&str> {
        let source = std::error::Error::source(error)?;
        source.downcast_ref::<Self>().map(|error| &*error.code)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for ServerError {}

//! [`Document`]: a JSON object as text, checked once.

use super::MAX_DOCUMENT;
use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

/// A JSON object, kept as its text. Made only from valid JSON, so that readers need not check
/// again. Cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Document(Bytes);

impl Document {
    /// Checks the text: one JSON object, not too large.
    pub fn from_json(text: impl Into<Bytes>) -> Result<Self> {
        let text = text.into();
        if text.len() > MAX_DOCUMENT {
            return Err(Error::invalid(format!(
                "a document has {} bytes; at most {MAX_DOCUMENT} are allowed",
                text.len()
            )));
        }
        let raw: &RawValue = serde_json::from_slice(&text)
            .map_err(|error| Error::invalid("a document is not valid JSON").with_source(position(&error)))?;
        if !raw.get().starts_with('{') {
            return Err(Error::invalid("a document must be a JSON object"));
        }
        Ok(Self(text))
    }

    /// The document that a value makes.
    pub fn from_value(value: &serde_json::Value) -> Result<Self> {
        match value {
            serde_json::Value::Object(_) => Self::from_json(value.to_string()),
            _ => Err(Error::invalid("a document must be a JSON object")),
        }
    }

    /// Text that was checked when it was written; only its first byte is looked at again.
    pub(super) fn trusted(text: Bytes) -> Result<Self> {
        match text.trim_ascii_start().first() {
            Some(b'{') => Ok(Self(text)),
            _ => Err(Error::new(ErrorKind::Corrupt, "a stored document is not a JSON object")),
        }
    }

    /// The JSON text.
    pub fn text(&self) -> &Bytes {
        &self.0
    }

    /// The document as a tree.
    pub fn to_value(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.0).map_err(|error| corrupt(&error))
    }

    /// Whether it has this field, with something else than `null` or `false` in it.
    pub(super) fn is_set(&self, field: &str) -> Result<bool> {
        let fields: HashMap<Cow<'_, str>, &RawValue> =
            serde_json::from_slice(&self.0).map_err(|error| corrupt(&error))?;
        Ok(fields.get(field).is_some_and(|value| !matches!(value.get(), "null" | "false")))
    }
}

fn corrupt(error: &serde_json::Error) -> Error {
    Error::new(ErrorKind::Corrupt, "a stored document is not valid JSON").with_source(position(error))
}

/// Where the JSON went wrong, without any of its content.
pub(crate) fn position(error: &serde_json::Error) -> String {
    format!("line {} column {}", error.line(), error.column())
}

/// Never shows the text.
impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Document({} bytes)", self.0.len())
    }
}

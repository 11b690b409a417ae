//! The crate's error: what happened and what to do. Never contains documents, keys or secrets.

use std::fmt;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of failure it is, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input breaks a rule; the text names the field, the limit and what to do.
    Invalid,
    /// There is no such thing.
    NotFound,
    /// A quota is used up; the text names it.
    Quota,
    /// The caller's token is not for this; the text says for what it is.
    Forbidden,
    /// A newer process has taken the caller's place. Stop.
    Fenced,
    /// Stored bytes are not what this version writes.
    Corrupt,
    /// The other side cannot be reached, or did not answer in time. Trying again may help.
    Unavailable,
    /// The engine or the queue below failed; the source says how.
    Engine,
}

/// A failure of the router.
pub struct Error {
    kind: ErrorKind,
    context: String,
    /// Which part of the input is wrong.
    field: Option<&'static str>,
    /// The limit that it breaks.
    limit: Option<u64>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind with a text for people.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), field: None, limit: None, source: None }
    }

    /// Input that breaks a rule.
    pub fn invalid(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, context)
    }

    /// Says which part of the input is wrong, by its name on the wire.
    #[must_use]
    pub fn with_field(mut self, field: &'static str) -> Self {
        self.field = Some(field);
        self
    }

    /// Says which limit the input breaks.
    #[must_use]
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Which part of the input is wrong, if the error says so.
    pub fn field(&self) -> Option<&'static str> {
        self.field
    }

    /// The limit that the input breaks, if the error says so.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Adds what it came from.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The text for people, without sources.
    pub fn context(&self) -> &str {
        &self.context
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.context)?;
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

//! The crate's error: what happened and what to do. Never contains rows, keys or secrets.

use std::fmt;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the reader of a source can do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The configuration is wrong; the text names the field.
    Invalid,
    /// The database refuses the role, its password or its rights.
    Unauthorized,
    /// The database or the topic cannot be reached now. The reader tries again.
    Unavailable,
    /// The database is not fit as a source: a replica, another system, a table without a key.
    Refused,
    /// The source no longer has changes that the topic lacks. Only a resync helps.
    Lost,
    /// A newer reader has taken over. Stop.
    Fenced,
    /// The stream holds bytes that this version cannot read.
    Corrupt,
    /// One row cannot become an event; the text says which and why.
    Poison,
}

impl ErrorKind {
    /// Its stable lower-case name, for metrics and wire formats.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unauthorized => "unauthorized",
            Self::Unavailable => "unavailable",
            Self::Refused => "refused",
            Self::Lost => "lost",
            Self::Fenced => "fenced",
            Self::Corrupt => "corrupt",
            Self::Poison => "poison",
        }
    }
}

/// A failure of a source.
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind with a text for people.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    /// A wrong configuration.
    pub fn invalid(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, context)
    }

    /// Bytes that cannot be understood.
    #[cfg(feature = "_reader")]
    pub(crate) fn corrupt(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, context)
    }

    /// A row that cannot become an event.
    pub(crate) fn poison(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Poison, context)
    }

    /// A database that cannot be used like this.
    #[cfg(feature = "_reader")]
    pub(crate) fn refused(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, context)
    }

    /// A passing failure.
    #[cfg(feature = "_reader")]
    pub(crate) fn unavailable(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, context)
    }

    /// Adds what it came from.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What can be done about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The text for people, without sources.
    pub fn context(&self) -> &str {
        &self.context
    }
}

/// A failure of the topic, as the reader of a source sees it.
impl From<firth::Error> for Error {
    fn from(error: firth::Error) -> Self {
        let kind = match error.kind() {
            firth::ErrorKind::Fenced => ErrorKind::Fenced,
            kind if kind.is_retryable() => ErrorKind::Unavailable,
            firth::ErrorKind::Corrupt => ErrorKind::Corrupt,
            firth::ErrorKind::Unauthorized => ErrorKind::Unauthorized,
            _ => ErrorKind::Invalid,
        };
        Self::new(kind, format!("the topic: {}", error.context())).with_source(error)
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

//! The one error of the engine and of every crate above it.
//!
//! A kind answers "what do I do now?", the context names the operation and what to change, the
//! source is the level below. `Display` prints one level only: walk `source()` for the rest.
//! Payloads and secrets never enter a context (invariant 10).

use crate::id::RecordId;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// What went wrong, in terms of what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong: a name, a limit, an impossible verdict. Fix the request.
    Invalid,
    /// The topic, partition, group or dead letter does not exist.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// The credentials do not allow it.
    Unauthorized,
    /// The storage cannot serve this now (disk full, read-only, lost connection). Try again later.
    Unavailable,
    /// No answer in time.
    Timeout,
    /// A limit of the engine is reached. Slow down and try again.
    Overloaded,
    /// A newer owner exists. Stop working on this: acquire and open again, or leave it.
    Fenced,
    /// The log lost its newest records in a crash or a failover, and the position names one of
    /// them. Begin at a position that the log has, and fetch anew what was built from the lost
    /// ones.
    WentBack,
    /// The handle was closed.
    Closed,
    /// This engine or this build cannot do that.
    Unsupported,
    /// Stored bytes cannot be understood (damage, or a newer format).
    Corrupt,
    /// A mistake of ours.
    Internal,
}

impl ErrorKind {
    /// Whether the same call may succeed later without any change by the caller.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::Unavailable | Self::Timeout | Self::Overloaded)
    }

    /// The kind's stable lower-case name, for logs and wire formats.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::Unauthorized => "unauthorized",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Overloaded => "overloaded",
            Self::Fenced => "fenced",
            Self::WentBack => "went back",
            Self::Closed => "closed",
            Self::Unsupported => "unsupported",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }
}

/// The result of every engine call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error with its kind, a context for people, and the cause below it.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    context: Cow<'static, str>,
    maybe_done: bool,
    /// Which part of the request is wrong.
    field: Option<&'static str>,
    /// The limit that it breaks.
    limit: Option<u64>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `context` says what was attempted and what to change.
    pub fn new(kind: ErrorKind, context: impl Into<Cow<'static, str>>) -> Self {
        let context = context.into();
        Self(Box::new(Inner { kind, context, maybe_done: false, field: None, limit: None, source: None }))
    }

    /// Adds the cause below.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Marks the outcome as unknown: the step may have happened although it failed.
    #[must_use]
    pub fn with_unknown_outcome(mut self) -> Self {
        self.0.maybe_done = true;
        self
    }

    /// Says which part of the request is wrong, by its name on the wire: `payload`, `topic`.
    #[must_use]
    pub fn with_field(mut self, field: &'static str) -> Self {
        self.0.field = Some(field);
        self
    }

    /// Says which limit the request breaks.
    #[must_use]
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.0.limit = Some(limit);
        self
    }

    /// Puts the operation in front of the context: `append to orders/3: …`.
    #[must_use]
    pub fn during(mut self, operation: impl fmt::Display) -> Self {
        self.0.context = Cow::Owned(format!("{operation}: {}", self.0.context));
        self
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What was attempted, and on what.
    pub fn context(&self) -> &str {
        &self.0.context
    }

    /// Which part of the request is wrong, if the error says so. Decide by this, never by the
    /// context.
    pub fn field(&self) -> Option<&'static str> {
        self.0.field
    }

    /// The limit that the request breaks, if the error says so.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.0.kind.is_retryable()
    }

    /// Whether the step may have happened all the same. When false, it certainly did not.
    pub fn may_have_happened(&self) -> bool {
        self.0.maybe_done
    }

    /// A wrong request: `field` names its part, which breaks `limit`.
    pub(crate) fn beyond(field: &'static str, limit: usize, context: impl Into<Cow<'static, str>>) -> Self {
        Self::invalid(context).with_field(field).with_limit(limit as u64)
    }

    pub(crate) fn invalid(context: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, context)
    }

    /// The log of `at` does not have the record that a position names; it ends at `last`.
    pub(crate) fn went_back(at: &crate::name::Partition, position: RecordId, last: RecordId) -> Self {
        let context = format!(
            "the log of {at} went back: it ends at {last} and has no record {position}, which was lost in a \
             crash or a failover; begin anew at a position that it has"
        );
        Self::new(ErrorKind::WentBack, context)
    }

    pub(crate) fn not_found(context: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::NotFound, context)
    }

    pub(crate) fn corrupt(context: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Corrupt, context)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind.as_str(), self.0.context)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("context", &self.0.context);
        if self.0.maybe_done {
            out.field("may_have_happened", &true);
        }
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_prints_one_level_and_the_source_is_chained() {
        let error =
            Error::new(ErrorKind::Unavailable, "disk full").with_source("no space left").during("append");
        assert_eq!(error.to_string(), "unavailable: append: disk full");
        assert_eq!(StdError::source(&error).unwrap().to_string(), "no space left");
    }

    #[test]
    fn the_field_and_the_limit_stay_with_the_error() {
        let error = Error::beyond("key", 1024, "key has 2000 bytes").during("send");
        assert_eq!((error.field(), error.limit()), (Some("key"), Some(1024)));
        assert_eq!((Error::invalid("x").field(), Error::invalid("x").limit()), (None, None));
    }

    #[test]
    fn only_passing_troubles_are_retryable() {
        assert!(ErrorKind::Unavailable.is_retryable());
        assert!(!ErrorKind::Fenced.is_retryable());
        assert!(!Error::invalid("x").is_retryable());
    }
}

//! Why a reply could not be read as the type asked for, and where in the reply.
//!
//! Made by the conversions beside this file; the path grows from the inside out while the error
//! travels up.

use crate::resp::kind::ValueKind;
use crate::resp::value::Value;
use std::fmt;

/// A reply that does not fit the type asked for:
/// `at [1].fields["price"]: expected integer, found blob string`.
///
/// Names kinds, sizes and the path, never a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertError(Box<ConvertErrorInner>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct ConvertErrorInner {
    path: ValuePath,
    problem: ConvertProblem,
}

impl ConvertError {
    /// An error about the whole value; callers inside aggregates add the path.
    #[cold]
    pub fn new(problem: ConvertProblem) -> Self {
        Self(Box::new(ConvertErrorInner { path: ValuePath(Vec::new()), problem }))
    }

    /// The usual error: the value is not what was `expected`, be it an error, a null or another
    /// kind.
    #[cold]
    pub fn mismatch(expected: &'static str, value: Value<'_>) -> Self {
        Self::new(match ServerError::from_value(value) {
            Some(error) => ConvertProblem::Server(error),
            None if value.is_null() => ConvertProblem::UnexpectedNull { expected },
            None => ConvertProblem::TypeMismatch { expected, found: value.kind() },
        })
    }

    /// Says that the error happened inside the element `segment`.
    #[cold]
    #[must_use]
    pub fn within(mut self, segment: Segment) -> Self {
        self.0.path.0.push(segment);
        self
    }

    /// Where in the reply.
    pub fn path(&self) -> &ValuePath {
        &self.0.path
    }

    /// What is wrong there.
    pub fn problem(&self) -> &ConvertProblem {
        &self.0.problem
    }
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path().is_root() {
            write!(f, "at {}: ", self.path())?;
        }
        self.problem().fmt(f)
    }
}

impl std::error::Error for ConvertError {}

/// What is wrong with a value.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConvertProblem {
    /// Another kind of value, or text that does not read as what was asked for.
    #[error("expected {expected}, found {found}")]
    TypeMismatch {
        /// What the type asks for.
        expected: &'static str,
        /// What came.
        found: ValueKind,
    },
    /// A null where there must be a value; `Option` takes both.
    #[error("expected {expected}, found null (ask for an Option if it may be absent)")]
    UnexpectedNull {
        /// What the type asks for.
        expected: &'static str,
    },
    /// A number that the type cannot hold.
    #[error("number out of range of {target}")]
    OutOfRange {
        /// The type asked for.
        target: &'static str,
    },
    /// The same key twice in a map.
    #[error("duplicate key")]
    DuplicateKey,
    /// Another number of elements than asked for.
    #[error("expected {expected} elements, found {found}")]
    SizeMismatch {
        /// Elements that the type has.
        expected: usize,
        /// Elements that came.
        found: usize,
    },
    /// Text that is not UTF-8 where a string was asked for.
    #[error("text is not UTF-8 (ask for Vec<u8> or Bytes if it may be binary)")]
    InvalidUtf8,
    /// An error from the server in place of the value.
    #[error("server error: {0}")]
    Server(ServerError),
}

/// Where in a reply something is; printed as `[1].fields["price"]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValuePath(Vec<Segment>);

impl ValuePath {
    /// From the outermost element to the innermost.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &Segment> {
        self.0.iter().rev()
    }

    /// Whether this is the reply as a whole.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for ValuePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.segments().try_for_each(|segment| match segment {
            Segment::Index(index) => write!(f, "[{index}]"),
            Segment::Field(name) => write!(f, ".{name}"),
            Segment::Key(key) => write!(f, "[{key:?}]"),
        })
    }
}

/// One step into an aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Segment {
    /// The element at an index; of a map whose key is not text, the pair's.
    Index(usize),
    /// A named part of a known structure.
    Field(&'static str),
    /// The value of a key in a map, at most [`Segment::KEY`] characters of it.
    Key(Box<str>),
}

impl Segment {
    /// Longest key shown, in characters.
    pub const KEY: usize = 40;

    /// Names an entry of a map.
    pub(super) fn key(key: Value<'_>, index: usize) -> Self {
        match key.as_str() {
            Some(text) if text.chars().nth(Self::KEY).is_none() => Self::Key(text.into()),
            Some(text) => Self::Key(text.chars().take(Self::KEY - 1).chain(['…']).collect::<String>().into()),
            None => Self::Index(index),
        }
    }
}

/// An error that the server answered with: `WRONGTYPE Operation against a key …`.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq)]
#[error("{code}{space}{message}", space = if message.is_empty() { "" } else { " " })]
pub struct ServerError {
    /// The first word: `ERR`, `WRONGTYPE`, `MOVED`.
    pub code: Box<str>,
    /// The rest of the line. What a server repeats there of the arguments of a command is left out.
    pub message: Box<str>,
    /// What is known beside the code.
    pub(crate) execution: Execution,
}

/// What is known of the command that an error answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Execution {
    /// Nothing but the code.
    #[default]
    Unknown,
    /// It has not run.
    NotRun,
    /// It ran, or part of it: the error is that of a script.
    MayHaveRun,
}

/// Where servers begin to repeat the arguments of a command that they do not know.
const REPEATED: &str = ", with args beginning with:";

impl ServerError {
    /// An error of these words.
    pub fn new(code: impl Into<Box<str>>, message: impl Into<Box<str>>) -> Self {
        Self { code: code.into(), message: message.into(), execution: Execution::Unknown }
    }

    pub(crate) fn with(mut self, execution: Execution) -> Self {
        self.execution = execution;
        self
    }

    /// Reads an error value; `None` if the value is no error.
    pub fn from_value(value: Value<'_>) -> Option<Self> {
        let text = String::from_utf8_lossy(value.error_bytes()?);
        let (code, message) = text.split_once(' ').unwrap_or((&text, ""));
        // Arguments may be secrets or payloads (invariant 10).
        let message = message.split_once(REPEATED).map_or(message, |(kept, _)| kept);
        Some(Self::new(code, message))
    }
}

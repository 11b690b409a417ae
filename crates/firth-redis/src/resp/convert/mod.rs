//! From a reply to the caller's own type, with an error that names the wrong element.
//!
//! `call::<T>` and the typed pipelines end here. Conversions accept what RESP2 and RESP3 send for
//! the same command: numbers as text, maps as flat arrays or as arrays of pairs. They never lose
//! anything silently: they check ranges of numbers, sizes of tuples and arrays, and duplicate keys
//! of maps.
//!
//! Invariant: no error prints a payload; keys of maps appear in paths, shortened.

mod error;
mod list;
mod map;
mod scalar;
#[cfg(test)]
mod tests;

pub(crate) use error::Execution;
pub use error::{ConvertError, ConvertProblem, Segment, ServerError, ValuePath};

use super::frame::Frame;
use super::value::Value;

/// A type that can be read from a reply.
pub trait FromValue: Sized {
    /// Reads the value.
    ///
    /// # Errors
    /// The value is of another kind, out of range, of the wrong size, null, or an error from the
    /// server.
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError>;

    /// Reads a whole frame, which types that share its bytes can keep.
    ///
    /// # Errors
    /// As [`from_value`](Self::from_value).
    #[inline]
    fn from_frame(frame: Frame) -> Result<Self, ConvertError> {
        Self::from_value(frame.value())
    }

    /// Reads a `Vec` of this type; how `Vec<u8>` is text while `Vec<String>` is a list.
    #[doc(hidden)]
    fn list_from_value(value: Value<'_>) -> Result<Vec<Self>, ConvertError> {
        list::vec(value)
    }
}

/// A null is `None`.
impl<T: FromValue> FromValue for Option<T> {
    #[inline]
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        if value.is_null() { Ok(None) } else { T::from_value(value).map(Some) }
    }

    #[inline]
    fn from_frame(frame: Frame) -> Result<Self, ConvertError> {
        if frame.value().is_null() { Ok(None) } else { T::from_frame(frame).map(Some) }
    }
}

/// An error from the server is a value like others: for the elements of an EXEC reply.
impl<T: FromValue> FromValue for Result<T, ServerError> {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        match ServerError::from_value(value) {
            Some(error) => Ok(Err(error)),
            None => T::from_value(value).map(Ok),
        }
    }

    fn from_frame(frame: Frame) -> Result<Self, ConvertError> {
        match ServerError::from_value(frame.value()) {
            Some(error) => Ok(Err(error)),
            None => T::from_frame(frame).map(Ok),
        }
    }
}

/// Keeps the reply as it is, of any kind.
impl FromValue for Frame {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        Ok(value.to_frame())
    }

    #[inline]
    fn from_frame(frame: Frame) -> Result<Self, ConvertError> {
        Ok(frame)
    }
}

impl<T: FromValue> FromValue for Box<T> {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        T::from_value(value).map(Self::new)
    }

    fn from_frame(frame: Frame) -> Result<Self, ConvertError> {
        T::from_frame(frame).map(Self::new)
    }
}

/// Any reply but an error or a null: the command did what it is for.
///
/// A null is refused because it usually says the opposite (`SET … NX` on an existing key);
/// [`Ignore`] takes it too.
impl FromValue for () {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        if value.kind().is_error() || value.is_null() {
            return Err(ConvertError::mismatch("anything but null", value));
        }
        Ok(())
    }
}

/// Any reply but an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ignore;

impl FromValue for Ignore {
    fn from_value(value: Value<'_>) -> Result<Self, ConvertError> {
        if value.kind().is_error() {
            return Err(ConvertError::mismatch("anything", value));
        }
        Ok(Self)
    }
}

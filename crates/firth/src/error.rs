//! The error of this crate is the engine's: one type from storage to handler. Here are only short
//! ways to make one.

pub use firth_engine::{Error, ErrorKind, Result};
use std::borrow::Cow;

pub(crate) fn invalid(context: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, context)
}

pub(crate) fn closed(context: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Closed, context)
}

/// The same failure for one more waiter: errors are not cloneable, their parts are.
pub(crate) fn same(error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.context().to_owned());
    let copy = match error.field() {
        Some(field) => copy.with_field(field),
        None => copy,
    };
    let copy = match error.limit() {
        Some(limit) => copy.with_limit(limit),
        None => copy,
    };
    if error.may_have_happened() { copy.with_unknown_outcome() } else { copy }
}

//! What clients and gateway say to each other, version 1: JSON objects with a `type`.
//! `docs/edge.md` is the reference.

pub(crate) mod client;
pub(crate) mod server;

pub use client::SubscriptionRequest;

use std::borrow::Cow;
use std::fmt;

/// The version that this gateway speaks.
pub const VERSION: u32 = 1;

/// What went wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The message is not understood; `field` says where.
    Invalid,
    /// No token, a wrong one, or one that has run out.
    Unauthorized,
    /// The token does not allow it.
    Forbidden,
    /// A limit is reached; `limit` says which.
    Limit,
    /// Too many messages in a short time.
    Rate,
    /// The gateway cannot serve now.
    Unavailable,
}

impl Code {
    /// Its name in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Limit => "limit",
            Self::Rate => "rate",
            Self::Unavailable => "unavailable",
        }
    }
}

/// A request that is not granted: what, where, and which limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeError {
    /// What kind.
    pub code: Code,
    /// The field that is wrong.
    pub field: Option<Cow<'static, str>>,
    /// The limit that is reached.
    pub limit: Option<u64>,
    /// For people: what happened and what to do.
    pub message: Cow<'static, str>,
}

impl EdgeError {
    /// An error with a text for people.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, field: None, limit: None, message: message.into() }
    }

    pub(crate) fn invalid(
        field: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { field: Some(field.into()), ..Self::new(Code::Invalid, message) }
    }

    pub(crate) fn limit(field: &'static str, limit: u64, message: impl Into<Cow<'static, str>>) -> Self {
        Self { field: Some(field.into()), limit: Some(limit), ..Self::new(Code::Limit, message) }
    }
}

impl fmt::Display for EdgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for EdgeError {}

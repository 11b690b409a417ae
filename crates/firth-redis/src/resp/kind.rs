//! The fifteen kinds of RESP values.

use std::fmt;

/// The type of a RESP value. RESP2 nulls (`$-1`, `*-1`) are [`ValueKind::Null`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// `+OK`
    SimpleString,
    /// `-ERR message`
    SimpleError,
    /// `$5 hello`, also streamed
    BlobString,
    /// `!21 SYNTAX invalid syntax`
    BlobError,
    /// `:42`
    Integer,
    /// `,3.5`
    Double,
    /// `(3492890328409238509324850943850943825024385`
    BigNumber,
    /// `#t`
    Boolean,
    /// `_`
    Null,
    /// `=15 txt:Some string`
    Verbatim,
    /// `*2`
    Array,
    /// `%2`
    Map,
    /// `~2`
    Set,
    /// `>2`, out of band
    Push,
    /// `|1`, about the value after it; met only through
    /// [`Value::attributes`](super::Value::attributes)
    Attribute,
}

impl ValueKind {
    /// Whether values of this kind have children.
    #[inline]
    pub fn is_aggregate(self) -> bool {
        matches!(self, Self::Array | Self::Map | Self::Set | Self::Push | Self::Attribute)
    }

    /// Whether values of this kind are errors from the server.
    #[inline]
    pub fn is_error(self) -> bool {
        matches!(self, Self::SimpleError | Self::BlobError)
    }
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SimpleString => "simple string",
            Self::SimpleError => "simple error",
            Self::BlobString => "blob string",
            Self::BlobError => "blob error",
            Self::Integer => "integer",
            Self::Double => "double",
            Self::BigNumber => "big number",
            Self::Boolean => "boolean",
            Self::Null => "null",
            Self::Verbatim => "verbatim string",
            Self::Array => "array",
            Self::Map => "map",
            Self::Set => "set",
            Self::Push => "push",
            Self::Attribute => "attribute",
        })
    }
}

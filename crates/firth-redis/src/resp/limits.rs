//! What the decoder accepts, and its errors.
//!
//! A reply comes from the network, so each limit bounds the memory that a hostile or broken server
//! can make the client hold. After a [`ProtocolError`] the two sides no longer agree on where
//! frames begin, hence the connection must be closed. Messages carry counts and type bytes, never
//! payloads.

/// Bounds on what one frame may hold.
///
/// Memory for one frame is at most `frame` bytes of text plus twelve bytes for each element in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Aggregates inside one another.
    pub depth: usize,
    /// Bytes of one line: simple strings and errors, big numbers, doubles.
    pub line: usize,
    /// Bytes of one bulk string, bulk error or verbatim string, streamed ones in total.
    pub bulk: usize,
    /// Elements of one aggregate; a pair of a map counts as one.
    pub container: usize,
    /// Bytes of one whole frame. Values beyond 4 GiB − 1 mean 4 GiB − 1.
    pub frame: usize,
}

impl Default for ReplyLimits {
    fn default() -> Self {
        Self { depth: 32, line: 64 << 10, bulk: 512 << 20, container: 1_000_000, frame: 1 << 30 }
    }
}

impl ReplyLimits {
    /// Brings the limits into the range that 32-bit offsets and counts can express.
    pub(super) fn clamped(self) -> Self {
        let frame = self.frame.min(u32::MAX as usize);
        Self {
            depth: self.depth,
            line: self.line.min(frame),
            bulk: self.bulk.min(frame),
            container: self.container.min(u32::MAX as usize / 2),
            frame,
        }
    }
}

/// The bytes received are not RESP, or more than [`ReplyLimits`] allow: close the connection.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame or element starts with a byte that names no type.
    #[error("unknown type byte 0x{0:02x}")]
    UnknownType(u8),
    /// An integer is empty, has other characters than digits, or does not fit 64 bits.
    #[error("malformed integer")]
    BadInteger,
    /// A length or count is empty, negative, not a number, or overflows.
    #[error("malformed length")]
    BadLength,
    /// A double is not a number.
    #[error("malformed double")]
    BadDouble,
    /// A big number has other characters than digits.
    #[error("malformed big number")]
    BadBigNumber,
    /// A boolean is neither `t` nor `f`.
    #[error("malformed boolean")]
    BadBoolean,
    /// A null has content.
    #[error("malformed null")]
    BadNull,
    /// A verbatim string lacks its three-letter format and colon.
    #[error("malformed verbatim string")]
    BadVerbatim,
    /// A line or a bulk string does not end in CR LF.
    #[error("line or bulk string does not end in CR LF")]
    MissingCrlf,
    /// A line is longer than allowed.
    #[error("line longer than the limit of {limit} bytes")]
    LineTooLong {
        /// [`ReplyLimits::line`]
        limit: usize,
    },
    /// A bulk string is longer than allowed.
    #[error("bulk string of {len} bytes exceeds the limit of {limit}")]
    BulkTooLarge {
        /// Length declared, or reached by a streamed string.
        len: u64,
        /// [`ReplyLimits::bulk`]
        limit: usize,
    },
    /// An aggregate has more elements than allowed.
    #[error("aggregate of {len} elements exceeds the limit of {limit}")]
    ContainerTooLarge {
        /// Count declared, or reached by a streamed aggregate.
        len: u64,
        /// [`ReplyLimits::container`]
        limit: usize,
    },
    /// The whole frame is longer than allowed.
    #[error("frame longer than the limit of {limit} bytes")]
    FrameTooLarge {
        /// [`ReplyLimits::frame`]
        limit: usize,
    },
    /// Aggregates are nested deeper than allowed.
    #[error("aggregates nested deeper than the limit of {limit}")]
    DepthExceeded {
        /// [`ReplyLimits::depth`]
        limit: usize,
    },
    /// A streamed aggregate ends where none is open, or in the middle of a pair.
    #[error("unexpected end of a streamed aggregate")]
    UnexpectedEnd,
    /// A piece of a streamed string stands where none is open, or something else where one is.
    #[error("unexpected piece of a streamed string")]
    UnexpectedChunk,
    /// Attributes stand before something that is not a value.
    #[error("attributes without a value")]
    DanglingAttribute,
}

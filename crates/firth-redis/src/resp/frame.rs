//! A decoded frame: the bytes as they came plus a flat list of nodes.
//!
//! The decoder makes frames, the connection moves them to the callers, and callers read them
//! through [`Value`]. An aggregate costs one allocation of any size, a scalar none.
//!
//! Invariant: offsets and links of nodes were checked against the chunk when the frame was made, so
//! that reading never fails. `Debug` never prints a payload.

use super::kind::ValueKind;
use super::value::Value;
use bytes::{Buf, Bytes};
use std::fmt;

/// One whole reply or push: the bytes as they came plus a flat list of nodes.
///
/// Cheap to move; a scalar carries no heap allocation of its own. Holding a frame (or [`Bytes`]
/// taken from it) keeps the read buffer alive that it arrived in.
#[derive(Clone)]
pub struct Frame {
    pub(super) chunk: Bytes,
    pub(super) root: FrameNode,
    pub(super) wire: u32,
    pub(super) nodes: FrameNodes,
}

impl Frame {
    /// The value that the frame holds.
    #[inline]
    pub fn value(&self) -> Value<'_> {
        Value::root(self)
    }

    /// The type of the value.
    #[inline]
    pub fn kind(&self) -> ValueKind {
        self.root.kind
    }

    /// Whether this came out of band, so that it answers no request.
    #[inline]
    pub fn is_push(&self) -> bool {
        self.root.kind == ValueKind::Push
    }

    /// The attributes in front of the value, if the server sent any.
    pub fn attributes(&self) -> Option<Value<'_>> {
        self.value().attributes()
    }

    /// Bytes that the frame took on the wire; 0 for a part taken out of another frame.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.wire as usize
    }

    /// The text of a string or big number, without a copy and without touching a reference count.
    ///
    /// # Errors
    /// Gives the frame back if it holds anything else.
    #[inline]
    pub fn into_bytes(self) -> Result<Bytes, Self> {
        if !self.root.is_text() || self.root.kind.is_error() {
            return Err(self);
        }
        let mut chunk = self.chunk;
        chunk.advance(self.root.a as usize);
        chunk.truncate(self.root.b as usize);
        Ok(chunk)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("wire_len", &self.wire).field("value", &self.value()).finish()
    }
}

/// The nodes of a frame below its root.
pub(super) type FrameNodes = Box<[FrameNode]>;

/// One element of a frame, in preorder.
///
/// | kind | `a` | `b` |
/// |---|---|---|
/// | strings, errors, big numbers | offset in the chunk | length |
/// | integer, double | low half of the bits | high half |
/// | boolean | – | 0 or 1 |
/// | aggregates | index after the last descendant | children (two for each pair) |
///
/// A scalar's next sibling is the next node, an aggregate's stands at `a`: skipping a sibling is
/// one step.
#[derive(Clone, Copy)]
pub(super) struct FrameNode {
    pub(super) kind: ValueKind,
    /// Of the root only: nodes[0] is the attribute of the whole frame.
    pub(super) attributed: bool,
    pub(super) a: u32,
    pub(super) b: u32,
}

impl FrameNode {
    #[inline]
    pub(super) fn text(kind: ValueKind, at: usize, len: usize) -> Self {
        // ReplyLimits::clamped keeps every offset within 32 bits.
        Self { kind, attributed: false, a: at as u32, b: len as u32 }
    }

    #[inline]
    pub(super) fn bits(kind: ValueKind, bits: u64) -> Self {
        Self { kind, attributed: false, a: bits as u32, b: (bits >> 32) as u32 }
    }

    #[inline]
    pub(super) fn flag(kind: ValueKind, on: bool) -> Self {
        Self { kind, attributed: false, a: 0, b: u32::from(on) }
    }

    #[inline]
    pub(super) fn aggregate(kind: ValueKind, children: u32) -> Self {
        Self { kind, attributed: false, a: 0, b: children }
    }

    #[inline]
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.a) | u64::from(self.b) << 32
    }

    /// Whether the payload lives in the chunk.
    #[inline]
    pub(super) fn is_text(self) -> bool {
        matches!(
            self.kind,
            ValueKind::SimpleString
                | ValueKind::SimpleError
                | ValueKind::BlobString
                | ValueKind::BlobError
                | ValueKind::BigNumber
                | ValueKind::Verbatim
        )
    }

    /// The same node in a list where everything stands so much further in front.
    pub(super) fn moved_back(mut self, by: u32) -> Self {
        if self.kind.is_aggregate() {
            self.a -= by;
        }
        self
    }
}

//! The fast lane of the decoder: common elements that are there as a whole.
//!
//! A second way to read what [`parse::element`](super::parse::element) reads: strings, integers and
//! headers of aggregates, whole and plainly within the limits. It keeps everything in registers,
//! which makes it several times as fast. It may give up wherever it likes, and the decoder then
//! asks `element`; invariant: what it accepts is what `element` makes of the same bytes. Hence it
//! has no errors and no state.

use super::frame::FrameNode;
use super::kind::ValueKind;
use super::limits::ReplyLimits;

/// An element and the position after it.
pub(super) enum Quick {
    /// A scalar.
    Leaf(FrameNode, usize),
    /// An aggregate with at least one child.
    Open(ValueKind, u32, usize),
    /// Ask [`parse::element`](super::parse::element).
    Unknown,
}

/// Reads the element at `pos` of a slice that is no longer than a frame may be.
#[inline(always)]
pub(super) fn quick(limits: &ReplyLimits, bytes: &[u8], pos: usize) -> Quick {
    let Some((value, at)) = short_number(bytes, pos + 1) else { return null(bytes, pos) };
    match bytes[pos] {
        b'$' => {
            let end = at + value as usize + 2;
            match bytes.get(end - 2..end) {
                Some(b"\r\n") if value as usize <= limits.bulk => {
                    Quick::Leaf(FrameNode::text(ValueKind::BlobString, at, value as usize), end)
                }
                _ => Quick::Unknown,
            }
        }
        b':' => Quick::Leaf(FrameNode::bits(ValueKind::Integer, value.into()), at),
        b'*' => open(limits, ValueKind::Array, value, 1, at),
        b'>' => open(limits, ValueKind::Push, value, 1, at),
        b'%' => open(limits, ValueKind::Map, value, 2, at),
        b'~' => open(limits, ValueKind::Set, value, 1, at),
        _ => Quick::Unknown,
    }
}

#[inline(always)]
fn null(bytes: &[u8], pos: usize) -> Quick {
    match bytes.get(pos..pos + 3) {
        Some(b"_\r\n") => Quick::Leaf(FrameNode::flag(ValueKind::Null, false), pos + 3),
        _ => Quick::Unknown,
    }
}

#[inline(always)]
fn open(limits: &ReplyLimits, kind: ValueKind, len: u32, each: u32, at: usize) -> Quick {
    if len == 0 || len as usize > limits.container {
        return Quick::Unknown;
    }
    Quick::Open(kind, len * each, at)
}

/// Reads up to seven digits and CR LF.
#[inline(always)]
fn short_number(bytes: &[u8], at: usize) -> Option<(u32, usize)> {
    let mut value = 0;
    for (i, &byte) in bytes.get(at..)?.iter().enumerate().take(8) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            let end = at + i + 2;
            return (i > 0 && byte == b'\r' && bytes.get(end - 1) == Some(&b'\n')).then_some((value, end));
        }
        value = value * 10 + u32::from(digit);
    }
    None
}

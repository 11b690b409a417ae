//! Reads one element (a scalar, or the header of an aggregate) out of a byte slice.
//!
//! The decoder calls it for each element that [`quick`](super::quick) does not know. It is a pure
//! function of the bytes from the element's start. It returns the element, or the number of bytes
//! that the next attempt needs.
//!
//! Invariant: an error depends only on a prefix of the input, so every split of the bytes gives the
//! same error. Only a header line of at most [`DIGITS`] characters that was cut is read twice.

use super::frame::FrameNode;
use super::kind::ValueKind;
use super::limits::{ProtocolError, ReplyLimits};

/// Longest number in a header or integer, sign included: `-9223372036854775808`.
const DIGITS: usize = 20;

/// What stands at one position of a frame.
pub(super) enum Element {
    /// A scalar.
    Leaf(FrameNode),
    /// An aggregate with this many children.
    Open(ValueKind, u32),
    /// An aggregate whose end is marked by [`Element::End`].
    OpenStreamed(ValueKind),
    /// A string that comes in [`Element::Chunk`]s.
    Text,
    /// A piece of a streamed string; an empty one is the last.
    Chunk { at: usize, len: usize },
    /// End of a streamed aggregate.
    End,
}

/// Outcome of one attempt.
pub(super) enum ParseStep {
    /// The element, and the position after it.
    Element(Element, usize),
    /// Any shorter slice than this gives the same answer.
    More(usize),
}

type Parsed = Result<ParseStep, ProtocolError>;

/// One look at the element that starts at `pos`, where there is at least one byte. A line is known
/// to have no end before `seen`.
#[inline(never)]
pub(super) fn element(limits: &ReplyLimits, bytes: &[u8], pos: usize, seen: usize) -> Parsed {
    let at = pos + 1;
    match bytes[pos] {
        b'$' => blob(limits, bytes, at, ValueKind::BlobString),
        b'*' => aggregate(limits, bytes, at, ValueKind::Array),
        b':' => integer(bytes, at),
        b'+' => line(limits, bytes, at, seen, ValueKind::SimpleString),
        b'%' => aggregate(limits, bytes, at, ValueKind::Map),
        b'>' => aggregate(limits, bytes, at, ValueKind::Push),
        other => rare(limits, bytes, at, seen, other),
    }
}

#[inline(never)]
fn rare(limits: &ReplyLimits, bytes: &[u8], at: usize, seen: usize, tag: u8) -> Parsed {
    match tag {
        b'-' => line(limits, bytes, at, seen, ValueKind::SimpleError),
        b'!' => blob(limits, bytes, at, ValueKind::BlobError),
        b'=' => blob(limits, bytes, at, ValueKind::Verbatim),
        b'(' => line(limits, bytes, at, seen, ValueKind::BigNumber),
        b',' => line(limits, bytes, at, seen, ValueKind::Double),
        b'~' => aggregate(limits, bytes, at, ValueKind::Set),
        b'|' => aggregate(limits, bytes, at, ValueKind::Attribute),
        b'_' => {
            fixed(bytes, at, 0, |_| Some(FrameNode::flag(ValueKind::Null, false)), ProtocolError::BadNull)
        }
        b'#' => fixed(bytes, at, 1, boolean, ProtocolError::BadBoolean),
        b'.' => {
            match fixed(
                bytes,
                at,
                0,
                |_| Some(FrameNode::flag(ValueKind::Null, false)),
                ProtocolError::MissingCrlf,
            )? {
                ParseStep::Element(_, end) => Ok(ParseStep::Element(Element::End, end)),
                more => Ok(more),
            }
        }
        b';' => chunk(limits, bytes, at),
        other => Err(ProtocolError::UnknownType(other)),
    }
}

fn boolean(text: &[u8]) -> Option<FrameNode> {
    match text {
        b"t" => Some(FrameNode::flag(ValueKind::Boolean, true)),
        b"f" => Some(FrameNode::flag(ValueKind::Boolean, false)),
        _ => None,
    }
}

/// An element of `len` characters and CR LF. Any defect is reported as `bad`, at the first byte
/// that shows it.
fn fixed(
    bytes: &[u8],
    at: usize,
    len: usize,
    read: fn(&[u8]) -> Option<FrameNode>,
    bad: ProtocolError,
) -> Parsed {
    let end = at + len + 2;
    let have = &bytes[at..end.min(bytes.len())];
    if have.len() < len {
        return Ok(ParseStep::More(at + len));
    }
    let (text, tail) = have.split_at(len);
    let node = read(text).ok_or(bad)?;
    match tail {
        b"\r\n" => Ok(ParseStep::Element(Element::Leaf(node), end)),
        b"" | b"\r" => Ok(ParseStep::More(bytes.len() + 1)),
        _ => Err(bad),
    }
}

/// A number that ends in CR LF.
enum ParsedNumber {
    Is(u64, usize),
    /// Another byte than a digit stands at the start.
    Not,
    More(usize),
}

/// Reads digits up to CR LF.
#[inline(always)]
fn number(bytes: &[u8], at: usize, bad: ProtocolError) -> Result<ParsedNumber, ProtocolError> {
    let mut value: u64 = 0;
    let mut i = at;
    loop {
        let Some(&byte) = bytes.get(i) else { return Ok(ParsedNumber::More(i + 1)) };
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return match byte {
                _ if i == at => Ok(ParsedNumber::Not),
                b'\r' => match bytes.get(i + 1) {
                    Some(b'\n') => Ok(ParsedNumber::Is(value, i + 2)),
                    Some(_) => Err(ProtocolError::MissingCrlf),
                    None => Ok(ParsedNumber::More(i + 2)),
                },
                _ => Err(bad),
            };
        }
        // One below DIGITS: the sign was taken off by the caller, and nineteen nines fit 64 bits.
        if i - at >= DIGITS - 1 {
            return Err(bad);
        }
        value = value * 10 + u64::from(digit);
        i += 1;
    }
}

#[inline]
fn integer(bytes: &[u8], at: usize) -> Parsed {
    let (negative, start) = match bytes.get(at) {
        Some(b'-') => (true, at + 1),
        Some(b'+') => (false, at + 1),
        _ => (false, at),
    };
    match number(bytes, start, ProtocolError::BadInteger)? {
        ParsedNumber::Is(value, end) if value <= i64::MAX as u64 + u64::from(negative) => {
            let value = if negative { (value as i64).wrapping_neg() } else { value as i64 };
            Ok(ParseStep::Element(Element::Leaf(FrameNode::bits(ValueKind::Integer, value as u64)), end))
        }
        ParsedNumber::Is(..) | ParsedNumber::Not => Err(ProtocolError::BadInteger),
        ParsedNumber::More(need) => Ok(ParseStep::More(need)),
    }
}

/// Reads what may stand instead of a length: `?` if allowed, `-1` if allowed.
#[inline(never)]
fn no_length(bytes: &[u8], at: usize, null: bool, stream: Option<Element>) -> Parsed {
    match (bytes[at], stream) {
        (b'-', _) if null => match number(bytes, at + 1, ProtocolError::BadLength)? {
            ParsedNumber::Is(1, end) => {
                Ok(ParseStep::Element(Element::Leaf(FrameNode::flag(ValueKind::Null, false)), end))
            }
            ParsedNumber::Is(..) | ParsedNumber::Not => Err(ProtocolError::BadLength),
            ParsedNumber::More(need) => Ok(ParseStep::More(need)),
        },
        (b'?', Some(item)) => match bytes.get(at + 1..(at + 3).min(bytes.len())).unwrap_or_default() {
            b"\r\n" => Ok(ParseStep::Element(item, at + 3)),
            b"" | b"\r" => Ok(ParseStep::More(bytes.len() + 1)),
            _ => Err(ProtocolError::BadLength),
        },
        _ => Err(ProtocolError::BadLength),
    }
}

/// A string that is preceded by its length.
#[inline]
fn blob(limits: &ReplyLimits, bytes: &[u8], at: usize, kind: ValueKind) -> Parsed {
    match number(bytes, at, ProtocolError::BadLength)? {
        ParsedNumber::Is(len, start) => {
            let (len, end) = body(limits, len, start)?;
            if bytes.len() < end {
                return Ok(ParseStep::More(end));
            }
            if bytes[end - 2..end] != *b"\r\n" {
                return Err(ProtocolError::MissingCrlf);
            }
            let node = if kind == ValueKind::Verbatim {
                verbatim(&bytes[start..start + len], start)?
            } else {
                FrameNode::text(kind, start, len)
            };
            Ok(ParseStep::Element(Element::Leaf(node), end))
        }
        ParsedNumber::More(need) => Ok(ParseStep::More(need)),
        ParsedNumber::Not => {
            let string = kind == ValueKind::BlobString;
            no_length(bytes, at, string, string.then_some(Element::Text))
        }
    }
}

/// Checks a declared length against the limits, before any of the bytes are there.
#[inline(always)]
fn body(limits: &ReplyLimits, len: u64, start: usize) -> Result<(usize, usize), ProtocolError> {
    if len > limits.bulk as u64 {
        return Err(ProtocolError::BulkTooLarge { len, limit: limits.bulk });
    }
    let end = start + len as usize + 2;
    if end > limits.frame {
        return Err(ProtocolError::FrameTooLarge { limit: limits.frame });
    }
    Ok((len as usize, end))
}

/// `txt:` and the text; the node points at the text.
fn verbatim(text: &[u8], at: usize) -> Result<FrameNode, ProtocolError> {
    match text {
        [_, _, _, b':', rest @ ..] => Ok(FrameNode::text(ValueKind::Verbatim, at + 4, rest.len())),
        _ => Err(ProtocolError::BadVerbatim),
    }
}

/// A piece of a streamed string: like a blob, but the empty one has no body.
fn chunk(limits: &ReplyLimits, bytes: &[u8], at: usize) -> Parsed {
    match number(bytes, at, ProtocolError::BadLength)? {
        ParsedNumber::Is(0, start) => Ok(ParseStep::Element(Element::Chunk { at: start, len: 0 }, start)),
        ParsedNumber::Is(len, start) => {
            let (len, end) = body(limits, len, start)?;
            if bytes.len() < end {
                return Ok(ParseStep::More(end));
            }
            if bytes[end - 2..end] != *b"\r\n" {
                return Err(ProtocolError::MissingCrlf);
            }
            Ok(ParseStep::Element(Element::Chunk { at: start, len }, end))
        }
        ParsedNumber::More(need) => Ok(ParseStep::More(need)),
        ParsedNumber::Not => Err(ProtocolError::BadLength),
    }
}

#[inline]
fn aggregate(limits: &ReplyLimits, bytes: &[u8], at: usize, kind: ValueKind) -> Parsed {
    match number(bytes, at, ProtocolError::BadLength)? {
        ParsedNumber::Is(len, end) => {
            if len > limits.container as u64 {
                return Err(ProtocolError::ContainerTooLarge { len, limit: limits.container });
            }
            let children = if matches!(kind, ValueKind::Map | ValueKind::Attribute) { len * 2 } else { len };
            Ok(ParseStep::Element(Element::Open(kind, children as u32), end))
        }
        ParsedNumber::More(need) => Ok(ParseStep::More(need)),
        ParsedNumber::Not => {
            no_length(bytes, at, kind == ValueKind::Array, Some(Element::OpenStreamed(kind)))
        }
    }
}

/// An element that goes up to the next CR LF.
#[inline]
fn line(limits: &ReplyLimits, bytes: &[u8], at: usize, seen: usize, kind: ValueKind) -> Parsed {
    let longest = at + limits.line + 2;
    let window = longest.min(limits.frame);
    let from = seen.max(at);
    let have = window.min(bytes.len());
    let Some(found) = bytes.get(from..have).and_then(|part| memchr::memchr(b'\n', part)) else {
        return match have {
            _ if bytes.len() < window => Ok(ParseStep::More(bytes.len() + 1)),
            _ if longest <= limits.frame => Err(ProtocolError::LineTooLong { limit: limits.line }),
            _ => Err(ProtocolError::FrameTooLarge { limit: limits.frame }),
        };
    };
    let end = from + found + 1;
    let [text @ .., b'\r', b'\n'] = &bytes[at..end] else { return Err(ProtocolError::MissingCrlf) };
    let node = match kind {
        ValueKind::Double => FrameNode::bits(ValueKind::Double, double(text)?.to_bits()),
        ValueKind::BigNumber => big_number(text, at)?,
        _ => FrameNode::text(kind, at, text.len()),
    };
    Ok(ParseStep::Element(Element::Leaf(node), end))
}

fn double(text: &[u8]) -> Result<f64, ProtocolError> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(ProtocolError::BadDouble)
}

fn big_number(text: &[u8], at: usize) -> Result<FrameNode, ProtocolError> {
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ProtocolError::BadBigNumber);
    }
    Ok(FrameNode::text(ValueKind::BigNumber, at, text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_not_searched_where_it_was_searched_before() {
        // The line end at 3 is out of sight, which only holds if the search starts where it is told
        // to.
        let step = element(&ReplyLimits::default(), b"+ab\r\ncd\r\n", 0, 6).unwrap();
        assert!(matches!(step, ParseStep::Element(Element::Leaf(_), 9)));
    }

    #[test]
    fn a_string_that_is_cut_asks_for_all_its_bytes_at_once() {
        let step = element(&ReplyLimits::default(), b"$1000\r\nab", 0, 0).unwrap();
        assert!(matches!(step, ParseStep::More(1009)));
    }
}

//! Reads one element (a scalar, or the header of an aggregate) out of a byte slice.
//!
//! Called by the decoder for each element that [`quick`](super::quick) does not know. A pure function of the bytes from the element's start: it
//! answers with the element, or with how many bytes it must see before another look is of use. Invariant: an error
//! depends only on a prefix of the input, so that however the bytes are split, the same error comes. Nothing is
//! read twice but a header line of at most [`DIGITS`] characters that was cut.

use super::frame::Node;
use super::kind::Kind;
use super::limits::{Limits, ProtocolError};

/// Longest number in a header or integer, sign included: `-9223372036854775808`.
const DIGITS: usize = 20;

/// What stands at one position of a frame.
pub(super) enum Item {
    /// A scalar.
    Leaf(Node),
    /// An aggregate with so many children.
    Open(Kind, u32),
    /// An aggregate whose end is marked by [`Item::End`].
    OpenStreamed(Kind),
    /// A string that comes in [`Item::Chunk`]s.
    Text,
    /// A piece of a streamed string; an empty one is the last.
    Chunk { at: usize, len: usize },
    /// End of a streamed aggregate.
    End,
}

/// Outcome of one look.
pub(super) enum Step {
    /// The element, and the position after it.
    Item(Item, usize),
    /// Any shorter slice than this gives the same answer.
    More(usize),
}

type Parsed = Result<Step, ProtocolError>;

/// One look at the element that starts at `pos`, where there is at least one byte. A line is known to have no end
/// before `seen`.
#[inline(never)]
pub(super) fn element(limits: &Limits, bytes: &[u8], pos: usize, seen: usize) -> Parsed {
    let at = pos + 1;
    match bytes[pos] {
        b'$' => blob(limits, bytes, at, Kind::BlobString),
        b'*' => aggregate(limits, bytes, at, Kind::Array),
        b':' => integer(bytes, at),
        b'+' => line(limits, bytes, at, seen, Kind::SimpleString),
        b'%' => aggregate(limits, bytes, at, Kind::Map),
        b'>' => aggregate(limits, bytes, at, Kind::Push),
        other => rare(limits, bytes, at, seen, other),
    }
}

#[inline(never)]
fn rare(limits: &Limits, bytes: &[u8], at: usize, seen: usize, tag: u8) -> Parsed {
    match tag {
        b'-' => line(limits, bytes, at, seen, Kind::SimpleError),
        b'!' => blob(limits, bytes, at, Kind::BlobError),
        b'=' => blob(limits, bytes, at, Kind::Verbatim),
        b'(' => line(limits, bytes, at, seen, Kind::BigNumber),
        b',' => line(limits, bytes, at, seen, Kind::Double),
        b'~' => aggregate(limits, bytes, at, Kind::Set),
        b'|' => aggregate(limits, bytes, at, Kind::Attribute),
        b'_' => fixed(bytes, at, 0, |_| Some(Node::flag(Kind::Null, false)), ProtocolError::BadNull),
        b'#' => fixed(bytes, at, 1, boolean, ProtocolError::BadBoolean),
        b'.' => {
            match fixed(bytes, at, 0, |_| Some(Node::flag(Kind::Null, false)), ProtocolError::MissingCrlf)? {
                Step::Item(_, end) => Ok(Step::Item(Item::End, end)),
                more => Ok(more),
            }
        }
        b';' => chunk(limits, bytes, at),
        other => Err(ProtocolError::UnknownType(other)),
    }
}

fn boolean(text: &[u8]) -> Option<Node> {
    match text {
        b"t" => Some(Node::flag(Kind::Boolean, true)),
        b"f" => Some(Node::flag(Kind::Boolean, false)),
        _ => None,
    }
}

/// An element of `len` characters and CR LF; whatever is wrong with it is `bad`, at the first byte that shows it.
fn fixed(bytes: &[u8], at: usize, len: usize, read: fn(&[u8]) -> Option<Node>, bad: ProtocolError) -> Parsed {
    let end = at + len + 2;
    let have = &bytes[at..end.min(bytes.len())];
    if have.len() < len {
        return Ok(Step::More(at + len));
    }
    let (text, tail) = have.split_at(len);
    let node = read(text).ok_or(bad)?;
    match tail {
        b"\r\n" => Ok(Step::Item(Item::Leaf(node), end)),
        b"" | b"\r" => Ok(Step::More(bytes.len() + 1)),
        _ => Err(bad),
    }
}

/// A number that ends in CR LF.
enum Number {
    Is(u64, usize),
    /// Another byte than a digit stands at the start.
    Not,
    More(usize),
}

/// Reads digits up to CR LF.
#[inline(always)]
fn number(bytes: &[u8], at: usize, bad: ProtocolError) -> Result<Number, ProtocolError> {
    let mut value: u64 = 0;
    let mut i = at;
    loop {
        let Some(&byte) = bytes.get(i) else { return Ok(Number::More(i + 1)) };
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return match byte {
                _ if i == at => Ok(Number::Not),
                b'\r' => match bytes.get(i + 1) {
                    Some(b'\n') => Ok(Number::Is(value, i + 2)),
                    Some(_) => Err(ProtocolError::MissingCrlf),
                    None => Ok(Number::More(i + 2)),
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
        Number::Is(value, end) if value <= i64::MAX as u64 + u64::from(negative) => {
            let value = if negative { (value as i64).wrapping_neg() } else { value as i64 };
            Ok(Step::Item(Item::Leaf(Node::bits(Kind::Integer, value as u64)), end))
        }
        Number::Is(..) | Number::Not => Err(ProtocolError::BadInteger),
        Number::More(need) => Ok(Step::More(need)),
    }
}

/// Reads what may stand instead of a length: `?` if allowed, `-1` if allowed.
#[inline(never)]
fn no_length(bytes: &[u8], at: usize, null: bool, stream: Option<Item>) -> Parsed {
    match (bytes[at], stream) {
        (b'-', _) if null => match number(bytes, at + 1, ProtocolError::BadLength)? {
            Number::Is(1, end) => Ok(Step::Item(Item::Leaf(Node::flag(Kind::Null, false)), end)),
            Number::Is(..) | Number::Not => Err(ProtocolError::BadLength),
            Number::More(need) => Ok(Step::More(need)),
        },
        (b'?', Some(item)) => match bytes.get(at + 1..(at + 3).min(bytes.len())).unwrap_or_default() {
            b"\r\n" => Ok(Step::Item(item, at + 3)),
            b"" | b"\r" => Ok(Step::More(bytes.len() + 1)),
            _ => Err(ProtocolError::BadLength),
        },
        _ => Err(ProtocolError::BadLength),
    }
}

/// A string that is preceded by its length.
#[inline]
fn blob(limits: &Limits, bytes: &[u8], at: usize, kind: Kind) -> Parsed {
    match number(bytes, at, ProtocolError::BadLength)? {
        Number::Is(len, start) => {
            let (len, end) = body(limits, len, start)?;
            if bytes.len() < end {
                return Ok(Step::More(end));
            }
            if bytes[end - 2..end] != *b"\r\n" {
                return Err(ProtocolError::MissingCrlf);
            }
            let node = if kind == Kind::Verbatim {
                verbatim(&bytes[start..start + len], start)?
            } else {
                Node::text(kind, start, len)
            };
            Ok(Step::Item(Item::Leaf(node), end))
        }
        Number::More(need) => Ok(Step::More(need)),
        Number::Not => {
            let string = kind == Kind::BlobString;
            no_length(bytes, at, string, string.then_some(Item::Text))
        }
    }
}

/// Checks a declared length against the limits, before any of the bytes are there.
#[inline(always)]
fn body(limits: &Limits, len: u64, start: usize) -> Result<(usize, usize), ProtocolError> {
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
fn verbatim(text: &[u8], at: usize) -> Result<Node, ProtocolError> {
    match text {
        [_, _, _, b':', rest @ ..] => Ok(Node::text(Kind::Verbatim, at + 4, rest.len())),
        _ => Err(ProtocolError::BadVerbatim),
    }
}

/// A piece of a streamed string: like a blob, but the empty one has no body.
fn chunk(limits: &Limits, bytes: &[u8], at: usize) -> Parsed {
    match number(bytes, at, ProtocolError::BadLength)? {
        Number::Is(0, start) => Ok(Step::Item(Item::Chunk { at: start, len: 0 }, start)),
        Number::Is(len, start) => {
            let (len, end) = body(limits, len, start)?;
            if bytes.len() < end {
                return Ok(Step::More(end));
            }
            if bytes[end - 2..end] != *b"\r\n" {
                return Err(ProtocolError::MissingCrlf);
            }
            Ok(Step::Item(Item::Chunk { at: start, len }, end))
        }
        Number::More(need) => Ok(Step::More(need)),
        Number::Not => Err(ProtocolError::BadLength),
    }
}

#[inline]
fn aggregate(limits: &Limits, bytes: &[u8], at: usize, kind: Kind) -> Parsed {
    match number(bytes, at, ProtocolError::BadLength)? {
        Number::Is(len, end) => {
            if len > limits.container as u64 {
                return Err(ProtocolError::ContainerTooLarge { len, limit: limits.container });
            }
            let children = if matches!(kind, Kind::Map | Kind::Attribute) { len * 2 } else { len };
            Ok(Step::Item(Item::Open(kind, children as u32), end))
        }
        Number::More(need) => Ok(Step::More(need)),
        Number::Not => no_length(bytes, at, kind == Kind::Array, Some(Item::OpenStreamed(kind))),
    }
}

/// An element that goes up to the next CR LF.
#[inline]
fn line(limits: &Limits, bytes: &[u8], at: usize, seen: usize, kind: Kind) -> Parsed {
    let longest = at + limits.line + 2;
    let window = longest.min(limits.frame);
    let from = seen.max(at);
    let have = window.min(bytes.len());
    let Some(found) = bytes.get(from..have).and_then(|part| memchr::memchr(b'\n', part)) else {
        return match have {
            _ if bytes.len() < window => Ok(Step::More(bytes.len() + 1)),
            _ if longest <= limits.frame => Err(ProtocolError::LineTooLong { limit: limits.line }),
            _ => Err(ProtocolError::FrameTooLarge { limit: limits.frame }),
        };
    };
    let end = from + found + 1;
    let [text @ .., b'\r', b'\n'] = &bytes[at..end] else { return Err(ProtocolError::MissingCrlf) };
    let node = match kind {
        Kind::Double => Node::bits(Kind::Double, double(text)?.to_bits()),
        Kind::BigNumber => big_number(text, at)?,
        _ => Node::text(kind, at, text.len()),
    };
    Ok(Step::Item(Item::Leaf(node), end))
}

fn double(text: &[u8]) -> Result<f64, ProtocolError> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(ProtocolError::BadDouble)
}

fn big_number(text: &[u8], at: usize) -> Result<Node, ProtocolError> {
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ProtocolError::BadBigNumber);
    }
    Ok(Node::text(Kind::BigNumber, at, text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_not_searched_where_it_was_searched_before() {
        // The line end at 3 is out of sight, which only holds if the search starts where it is told to.
        let step = element(&Limits::default(), b"+ab\r\ncd\r\n", 0, 6).unwrap();
        assert!(matches!(step, Step::Item(Item::Leaf(_), 9)));
    }

    #[test]
    fn a_string_that_is_cut_asks_for_all_its_bytes_at_once() {
        let step = element(&Limits::default(), b"$1000\r\nab", 0, 0).unwrap();
        assert!(matches!(step, Step::More(1009)));
    }
}

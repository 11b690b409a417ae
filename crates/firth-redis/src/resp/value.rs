//! A decoded frame and the views into it.
//!
//! [`Decoder`](super::Decoder) makes frames; the connection moves them to whoever waits; [`FromValue`](super::FromValue)
//! and users read them through [`Value`]. A frame keeps the bytes as they came plus a flat list of nodes in
//! preorder, so that an aggregate costs one allocation whatever it holds, and a scalar none. Invariant: node
//! offsets and links were checked against the chunk by the decoder, so that reading never fails and `Debug` never
//! prints a payload.

use std::fmt;

use bytes::{Buf, Bytes};

/// The type of a RESP value. RESP2 nulls (`$-1`, `*-1`) are [`Kind::Null`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
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
    /// `|1`, about the value after it; met only through [`Value::attributes`]
    Attribute,
}

impl Kind {
    /// Whether values of this kind have children.
    pub fn is_aggregate(self) -> bool {
        matches!(self, Self::Array | Self::Map | Self::Set | Self::Push | Self::Attribute)
    }

    /// Whether values of this kind are errors from the server.
    pub fn is_error(self) -> bool {
        matches!(self, Self::SimpleError | Self::BlobError)
    }
}

impl fmt::Display for Kind {
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

/// One element of a frame, in preorder.
///
/// | kind | `a` | `b` |
/// |---|---|---|
/// | strings, errors, big numbers | offset in the chunk | length |
/// | integer, double | low half of the bits | high half |
/// | boolean | – | 0 or 1 |
/// | aggregates | index after the last descendant | children (two for each pair) |
///
/// A scalar's next sibling is the next node, an aggregate's stands at `a`: skipping a sibling is one step.
#[derive(Clone, Copy)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// Of the root only: nodes[0] is the attribute of the whole frame.
    pub(super) attributed: bool,
    pub(super) a: u32,
    pub(super) b: u32,
}

impl Node {
    #[inline]
    pub(super) fn text(kind: Kind, at: usize, len: usize) -> Self {
        // Limits::clamped keeps every offset within 32 bits.
        Self { kind, attributed: false, a: at as u32, b: len as u32 }
    }

    #[inline]
    pub(super) fn bits(kind: Kind, bits: u64) -> Self {
        Self { kind, attributed: false, a: bits as u32, b: (bits >> 32) as u32 }
    }

    #[inline]
    pub(super) fn flag(kind: Kind, on: bool) -> Self {
        Self { kind, attributed: false, a: 0, b: u32::from(on) }
    }

    #[inline]
    pub(super) fn aggregate(kind: Kind, children: u32) -> Self {
        Self { kind, attributed: false, a: 0, b: children }
    }

    #[inline]
    fn to_bits(self) -> u64 {
        u64::from(self.a) | u64::from(self.b) << 32
    }

    /// Whether the payload lives in the chunk.
    #[inline]
    pub(super) fn is_text(self) -> bool {
        matches!(
            self.kind,
            Kind::SimpleString
                | Kind::SimpleError
                | Kind::BlobString
                | Kind::BlobError
                | Kind::BigNumber
                | Kind::Verbatim
        )
    }
}

/// Index that stands for the root; its successor is the first node.
const ROOT: u32 = u32::MAX;
/// No attributes.
const NONE: u32 = u32::MAX;

/// One whole reply or push: the bytes as they came plus a flat list of nodes.
///
/// Cheap to move; a scalar carries no heap allocation of its own. Holding a frame (or [`Bytes`] taken from it)
/// keeps the read buffer alive that it arrived in.
#[derive(Clone)]
pub struct Frame {
    pub(super) chunk: Bytes,
    pub(super) root: Node,
    pub(super) wire: u32,
    pub(super) nodes: Box<[Node]>,
}

impl Frame {
    /// The value that the frame holds.
    #[inline]
    pub fn value(&self) -> Value<'_> {
        let attribute = if self.root.attributed { 0 } else { NONE };
        Value { frame: self, index: ROOT, attribute }
    }

    /// The type of the value.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.root.kind
    }

    /// Whether this came out of band, so that it answers no request.
    #[inline]
    pub fn is_push(&self) -> bool {
        self.root.kind == Kind::Push
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

    #[inline]
    fn node(&self, index: u32) -> Node {
        if index == ROOT { self.root } else { self.nodes[index as usize] }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("wire_len", &self.wire).field("value", &self.value()).finish()
    }
}

/// A view of one value inside a [`Frame`].
#[derive(Clone, Copy)]
pub struct Value<'a> {
    frame: &'a Frame,
    index: u32,
    attribute: u32,
}

impl<'a> Value<'a> {
    /// The type of the value.
    #[inline]
    pub fn kind(self) -> Kind {
        self.node().kind
    }

    /// The text of a string or big number; `None` for every other kind, errors included.
    ///
    /// A verbatim string's text comes without its format.
    #[inline]
    pub fn as_bytes(self) -> Option<&'a [u8]> {
        let node = self.node();
        (node.is_text() && !node.kind.is_error()).then(|| self.text(node))
    }

    /// [`as_bytes`](Self::as_bytes), if it is UTF-8.
    #[inline]
    pub fn as_str(self) -> Option<&'a str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// [`as_bytes`](Self::as_bytes) as a shared slice of the frame's chunk, without a copy.
    pub fn bytes(self) -> Option<Bytes> {
        let node = self.node();
        let at = node.a as usize;
        (node.is_text() && !node.kind.is_error()).then(|| self.frame.chunk.slice(at..at + node.b as usize))
    }

    /// An integer, or text that reads as one.
    #[inline]
    pub fn as_i64(self) -> Option<i64> {
        let node = self.node();
        match node.kind {
            Kind::Integer => Some(node.to_bits() as i64),
            _ => self.as_str()?.parse().ok(),
        }
    }

    /// A double, an integer, or text that reads as a number.
    #[inline]
    pub fn as_f64(self) -> Option<f64> {
        let node = self.node();
        match node.kind {
            Kind::Double => Some(f64::from_bits(node.to_bits())),
            Kind::Integer => Some(node.to_bits() as i64 as f64),
            _ => self.as_str()?.parse().ok(),
        }
    }

    /// A boolean, or the integers 0 and 1 that stand for one in RESP2.
    #[inline]
    pub fn as_bool(self) -> Option<bool> {
        let node = self.node();
        match node.kind {
            Kind::Boolean => Some(node.b != 0),
            Kind::Integer if node.to_bits() <= 1 => Some(node.to_bits() == 1),
            _ => None,
        }
    }

    /// Whether this is a null of RESP3 or RESP2.
    #[inline]
    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    /// Code (the first word) and message of an error from the server.
    ///
    /// A message that is not UTF-8 ends where it stops being so; [`ServerError`] replaces such bytes instead.
    pub fn error(self) -> Option<(&'a str, &'a str)> {
        let text = self.error_bytes()?;
        let text = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        Some(text.split_once(' ').unwrap_or((text, "")))
    }

    /// The three bytes of a verbatim string's format: `txt`, `mkd`.
    pub fn verbatim_format(self) -> Option<[u8; 3]> {
        let node = self.node();
        let at = node.a as usize;
        if node.kind == Kind::Verbatim { self.frame.chunk[at - 4..at - 1].try_into().ok() } else { None }
    }

    /// How many children [`iter`](Self::iter) gives: 0 for scalars, two for each pair of a map.
    #[inline]
    pub fn len(self) -> usize {
        let node = self.node();
        if node.kind.is_aggregate() { node.b as usize } else { 0 }
    }

    /// Whether there are no children.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The children in order, keys and values of a map in turn, attributes left out.
    #[inline]
    pub fn iter(self) -> Children<'a> {
        // Of an attributed root the children start behind the attribute's own nodes.
        let at = match self.index {
            ROOT if self.frame.root.attributed => self.frame.nodes[0].a,
            index => index.wrapping_add(1),
        };
        Children { frame: self.frame, at, left: self.len() as u32 }
    }

    /// Keys and values of a map, or of an array of even length (how RESP2 sends maps); `None` for anything else.
    pub fn pairs(self) -> Option<Pairs<'a>> {
        match self.kind() {
            Kind::Map | Kind::Attribute => Some(Pairs(self.iter())),
            Kind::Array if self.len().is_multiple_of(2) => Some(Pairs(self.iter())),
            _ => None,
        }
    }

    /// The child at `index`, found by stepping over those before it.
    pub fn get(self, index: usize) -> Option<Self> {
        self.iter().nth(index)
    }

    /// The attributes in front of this value, as a value of kind [`Kind::Attribute`] that has [`pairs`](Self::pairs).
    pub fn attributes(self) -> Option<Self> {
        (self.attribute != NONE).then_some(Self { frame: self.frame, index: self.attribute, attribute: NONE })
    }

    /// A frame of its own that holds just this value, sharing the chunk.
    pub fn to_frame(self) -> Frame {
        let mut root = self.node();
        let own = if root.kind.is_aggregate() { self.descendants() } else { 0..0 };
        let attributes = self.attributes().map_or(0..0, |attribute| {
            attribute.index as usize..self.frame.nodes[attribute.index as usize].a as usize
        });
        root.attributed = !attributes.is_empty();
        let mut nodes = Vec::with_capacity(attributes.len() + own.len());
        for part in [attributes, own] {
            let shift = part.start as u32 - nodes.len() as u32;
            nodes.extend(self.frame.nodes[part].iter().map(|node| node.moved_back(shift)));
        }
        Frame { chunk: self.frame.chunk.clone(), root, wire: 0, nodes: nodes.into_boxed_slice() }
    }

    /// Bytes of an error, code included.
    pub(super) fn error_bytes(self) -> Option<&'a [u8]> {
        let node = self.node();
        node.kind.is_error().then(|| self.text(node))
    }

    fn descendants(self) -> std::ops::Range<usize> {
        let start = self.iter().at as usize;
        match self.index {
            ROOT => start..self.frame.nodes.len(),
            index => start..self.frame.nodes[index as usize].a as usize,
        }
    }

    #[inline]
    fn node(self) -> Node {
        self.frame.node(self.index)
    }

    #[inline]
    fn text(self, node: Node) -> &'a [u8] {
        let at = node.a as usize;
        &self.frame.chunk[at..at + node.b as usize]
    }
}

impl Node {
    fn moved_back(mut self, by: u32) -> Self {
        if self.kind.is_aggregate() {
            self.a -= by;
        }
        self
    }
}

/// Prints kinds and lengths, a few children deep, never a payload.
impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let node = self.node();
        write!(f, "{:?}", node.kind)?;
        if node.is_text() {
            return write!(f, "({} B)", node.b);
        }
        if !node.kind.is_aggregate() {
            return Ok(());
        }
        write!(f, "({}) ", node.b)?;
        let mut list = f.debug_list();
        list.entries(self.iter().take(SHOWN));
        if self.len() > SHOWN { list.finish_non_exhaustive() } else { list.finish() }
    }
}

impl<'a> IntoIterator for Value<'a> {
    type Item = Self;
    type IntoIter = Children<'a>;

    fn into_iter(self) -> Children<'a> {
        self.iter()
    }
}

/// Iterator over the children of an aggregate; see [`Value::iter`].
#[derive(Clone)]
pub struct Children<'a> {
    frame: &'a Frame,
    at: u32,
    left: u32,
}

impl<'a> Iterator for Children<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (mut index, mut attribute) = (self.at, NONE);
        let mut node = self.frame.nodes[index as usize];
        if node.kind == Kind::Attribute {
            (attribute, index) = (index, node.a);
            node = self.frame.nodes[index as usize];
        }
        self.at = if node.kind.is_aggregate() { node.a } else { index + 1 };
        Some(Value { frame: self.frame, index, attribute })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Children<'_> {}
impl std::iter::FusedIterator for Children<'_> {}

impl fmt::Debug for Children<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Children").field("left", &self.left).finish()
    }
}

/// Iterator over the pairs of a map; see [`Value::pairs`].
#[derive(Debug, Clone)]
pub struct Pairs<'a>(Children<'a>);

impl<'a> Iterator for Pairs<'a> {
    type Item = (Value<'a>, Value<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.next()?, self.0.next()?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let pairs = self.0.len() / 2;
        (pairs, Some(pairs))
    }
}

impl ExactSizeIterator for Pairs<'_> {}
impl std::iter::FusedIterator for Pairs<'_> {}

/// An error that the server answered with: `WRONGTYPE Operation against a key …`.
#[derive(thiserror::Error, Debug, Clone, PartialEq, Eq)]
#[error("{code}{space}{message}", space = if message.is_empty() { "" } else { " " })]
pub struct ServerError {
    /// The first word: `ERR`, `WRONGTYPE`, `MOVED`.
    pub code: Box<str>,
    /// The rest of the line.
    pub message: Box<str>,
}

impl ServerError {
    /// Reads an error value; `None` if the value is no error.
    pub fn from_value(value: Value<'_>) -> Option<Self> {
        let text = String::from_utf8_lossy(value.error_bytes()?);
        let (code, message) = text.split_once(' ').unwrap_or((&text, ""));
        Some(Self { code: code.into(), message: message.into() })
    }
}

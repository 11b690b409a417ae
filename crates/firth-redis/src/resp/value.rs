//! Views into a frame: typed access to scalars, iteration over aggregates.
//!
//! Conversions and users read frames through these. A view is two words and `Copy`. It borrows the
//! frame, follows the links that the decoder made, and skips a sibling of any size in one step.

use super::frame::{Frame, FrameNode};
use super::kind::ValueKind;
use bytes::Bytes;
use std::fmt;

/// Index that stands for the root; its successor is the first node.
const ROOT: u32 = u32::MAX;
/// No attributes.
const NONE: u32 = u32::MAX;

/// A view of one value inside a [`Frame`].
#[derive(Clone, Copy)]
pub struct Value<'a> {
    frame: &'a Frame,
    index: u32,
    attribute: u32,
}

impl<'a> Value<'a> {
    #[inline]
    pub(super) fn root(frame: &'a Frame) -> Self {
        Self { frame, index: ROOT, attribute: if frame.root.attributed { 0 } else { NONE } }
    }

    /// The type of the value.
    #[inline]
    pub fn kind(self) -> ValueKind {
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
    #[inline]
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
            ValueKind::Integer => Some(node.to_bits() as i64),
            _ => self.as_str()?.parse().ok(),
        }
    }

    /// A double, an integer, or text that reads as a number.
    #[inline]
    pub fn as_f64(self) -> Option<f64> {
        let node = self.node();
        match node.kind {
            ValueKind::Double => Some(f64::from_bits(node.to_bits())),
            ValueKind::Integer => Some(node.to_bits() as i64 as f64),
            _ => self.as_str()?.parse().ok(),
        }
    }

    /// A boolean, or the integers 0 and 1 that stand for one in RESP2.
    #[inline]
    pub fn as_bool(self) -> Option<bool> {
        let node = self.node();
        match node.kind {
            ValueKind::Boolean => Some(node.b != 0),
            ValueKind::Integer if node.to_bits() <= 1 => Some(node.to_bits() == 1),
            _ => None,
        }
    }

    /// Whether this is a null of RESP3 or RESP2.
    #[inline]
    pub fn is_null(self) -> bool {
        self.kind() == ValueKind::Null
    }

    /// Code (the first word) and message of an error from the server.
    ///
    /// A message that is not UTF-8 ends where it stops being so;
    /// [`ServerError`](super::ServerError) replaces such bytes instead.
    pub fn error(self) -> Option<(&'a str, &'a str)> {
        let text = self.error_bytes()?;
        let text = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        Some(text.split_once(' ').unwrap_or((text, "")))
    }

    /// The three bytes of a verbatim string's format: `txt`, `mkd`.
    pub fn verbatim_format(self) -> Option<[u8; 3]> {
        let node = self.node();
        let at = node.a as usize;
        if node.kind == ValueKind::Verbatim { self.frame.chunk[at - 4..at - 1].try_into().ok() } else { None }
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

    /// Keys and values of a map, or of an array of even length (how RESP2 sends maps); `None` for
    /// anything else.
    #[inline]
    pub fn pairs(self) -> Option<Pairs<'a>> {
        match self.kind() {
            ValueKind::Map | ValueKind::Attribute => Some(Pairs(self.iter())),
            ValueKind::Array if self.len().is_multiple_of(2) => Some(Pairs(self.iter())),
            _ => None,
        }
    }

    /// The child at `index`, found by stepping over those before it.
    #[inline]
    pub fn get(self, index: usize) -> Option<Self> {
        self.iter().nth(index)
    }

    /// The attributes in front of this value, as a value of kind [`ValueKind::Attribute`] that has
    /// [`pairs`](Self::pairs).
    #[inline]
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
        for part in [attributes, own].into_iter().filter(|part| !part.is_empty()) {
            let shift = part.start as u32 - nodes.len() as u32;
            nodes.extend(self.frame.nodes[part].iter().map(|node| node.moved_back(shift)));
        }
        Frame { chunk: self.frame.chunk.clone(), root, wire: 0, nodes: nodes.into() }
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
    fn node(self) -> FrameNode {
        if self.index == ROOT { self.frame.root } else { self.frame.nodes[self.index as usize] }
    }

    #[inline]
    fn text(self, node: FrameNode) -> &'a [u8] {
        let at = node.a as usize;
        &self.frame.chunk[at..at + node.b as usize]
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
        let mut index = self.at;
        let mut attribute = NONE;
        let mut node = self.frame.nodes[index as usize];
        if node.kind == ValueKind::Attribute {
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

//! The incremental decoder: a read buffer in, whole frames out.
//!
//! The connection calls [`Decoder::decode`] after each read until it says `None`. The decoder remembers where it
//! stopped inside a frame that is not whole yet, so that any split of the input costs the same and gives the same
//! frames. Nothing is allocated because of a declared length: nodes are collected in a scratch list that grows
//! with the bytes that are really there, and are copied out once, in one allocation of the right size. After an
//! error the decoder keeps giving it; the connection is of no more use.

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};

use super::limits::{Limits, ProtocolError};
use super::parse::{self, Item, Step};
use super::value::{Frame, Kind, Node};

/// A scratch list above this many nodes is given away with its frame instead of being copied and kept.
const SCRATCH: usize = 4096;

/// Stands for the root among indices of nodes.
const ROOT: u32 = u32::MAX;

/// Takes frames off the front of a read buffer.
pub struct Decoder {
    limits: Limits,
    /// How long the buffer must be before another look is of use.
    need: usize,
    /// Bytes of the current frame that are done with.
    pos: usize,
    missing: usize,
    failed: Option<ProtocolError>,
    partial: Partial,
}

impl Decoder {
    /// A decoder at the start of a connection.
    pub fn new(limits: Limits) -> Self {
        let limits = limits.clamped();
        Self { limits, need: 1, pos: 0, missing: 0, failed: None, partial: Partial::default() }
    }

    /// Takes the next whole frame off the front of `buf`, or says `None` when more bytes are needed.
    ///
    /// Between calls `buf` may only grow at its end. What has been seen is not scanned again: any split of the
    /// input gives the same frames at the same total cost.
    ///
    /// # Errors
    /// The bytes are not RESP or exceed the limits; every later call says the same.
    #[inline]
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
        if buf.len() < self.need {
            return self.wait(buf.len());
        }
        let step = self.look(buf);
        if self.pos == 0
            && let Ok(Step::Item(Item::Leaf(node), end)) = step
        {
            self.need = 1;
            self.missing = 0;
            return Ok(Some(scalar(buf, node, end)));
        }
        self.resume(buf, step)
    }

    /// How many bytes more than it last saw the current frame is known to need: a lower bound, 0 if unknown.
    ///
    /// Lets the reader reserve once for a large bulk string. The figure is the server's word, checked only against
    /// the limits.
    pub fn missing(&self) -> usize {
        self.missing
    }

    #[inline(always)]
    fn look(&self, bytes: &[u8]) -> Result<Step, ProtocolError> {
        let step = parse::element(&self.limits, bytes, self.pos, self.need - 1)?;
        match step {
            Step::Item(_, end) if end > self.limits.frame => {
                Err(ProtocolError::FrameTooLarge { limit: self.limits.frame })
            }
            step => Ok(step),
        }
    }

    #[cold]
    fn wait(&mut self, buffered: usize) -> Result<Option<Frame>, ProtocolError> {
        match self.failed {
            Some(error) => Err(error),
            None => {
                self.missing = if buffered == 0 { 0 } else { self.need - buffered };
                Ok(None)
            }
        }
    }

    #[cold]
    fn fail(&mut self, error: ProtocolError) -> ProtocolError {
        // No buffer is that long: every later call ends in `wait`, which repeats the error.
        self.need = usize::MAX;
        self.missing = 0;
        self.failed = Some(error);
        self.partial = Partial::default();
        error
    }

    #[inline(never)]
    fn resume(
        &mut self,
        buf: &mut BytesMut,
        mut step: Result<Step, ProtocolError>,
    ) -> Result<Option<Frame>, ProtocolError> {
        let bytes = &buf[..];
        loop {
            let (item, end) = match step {
                Ok(Step::Item(item, end)) => (item, end),
                Ok(Step::More(need)) => {
                    self.need = need;
                    return self.wait(bytes.len());
                }
                Err(error) => return Err(self.fail(error)),
            };
            match self.partial.accept(&self.limits, item, end) {
                Ok(None) => self.pos = end,
                Ok(Some(root)) => return Ok(Some(self.finish(buf, root, end))),
                Err(error) => return Err(self.fail(error)),
            }
            step = if end < bytes.len() { self.look(bytes) } else { Ok(Step::More(end + 1)) };
        }
    }

    fn finish(&mut self, buf: &mut BytesMut, root: Node, end: usize) -> Frame {
        (self.need, self.pos, self.missing) = (1, 0, 0);
        let mut chunk = buf.split_to(end);
        for (from, to, len) in std::mem::take(&mut self.partial.moves) {
            chunk.copy_within(from..from + len, to);
        }
        Frame { chunk: chunk.freeze(), root, wire: end as u32, nodes: self.partial.take_nodes() }
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("limits", &self.limits)
            .field("parsed", &self.pos)
            .field("missing", &self.missing)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// A frame of one scalar, without touching the list of nodes.
#[inline]
fn scalar(buf: &mut BytesMut, node: Node, end: usize) -> Frame {
    let chunk = if !node.is_text() {
        buf.advance(end);
        Bytes::new()
    } else if end == OK.len() && buf[..end] == *OK {
        // The commonest reply needs no share of the read buffer.
        buf.advance(end);
        Bytes::from_static(OK)
    } else {
        buf.split_to(end).freeze()
    };
    Frame { chunk, root: node, wire: end as u32, nodes: Box::default() }
}

const OK: &[u8] = b"+OK\r\n";

/// What is known of a frame that is not whole yet.
#[derive(Default)]
struct Partial {
    /// Root of the frame, once its header has come.
    root: Option<Node>,
    nodes: Vec<Node>,
    /// Aggregates that still miss children, outermost first.
    open: Vec<Level>,
    /// The last thing read was an attribute, so that a value must follow.
    attributed: bool,
    /// A streamed string that has not ended: where its text starts, and how much of it there is.
    text: Option<(usize, usize)>,
    /// Pieces of streamed strings to be joined in place when the frame is whole: from, to, length.
    moves: Vec<(usize, usize, usize)>,
}

/// An aggregate that still misses children.
struct Level {
    node: u32,
    /// Children still to come; of a streamed aggregate, children that came.
    count: u32,
    kind: Kind,
    streamed: bool,
}

impl Partial {
    /// Adds one element that ends at `end`; gives the root when that made the frame whole.
    #[inline]
    fn accept(&mut self, limits: &Limits, item: Item, end: usize) -> Result<Option<Node>, ProtocolError> {
        if self.text.is_some() && !matches!(item, Item::Chunk { .. }) {
            return Err(ProtocolError::UnexpectedChunk);
        }
        match item {
            Item::Leaf(node) => {
                self.attach(node);
                self.close(limits)
            }
            Item::Open(kind, children) => self.open(limits, kind, children, false),
            Item::OpenStreamed(kind) => self.open(limits, kind, 0, true),
            Item::Text => {
                self.text = Some((end, 0));
                Ok(None)
            }
            Item::Chunk { at, len } => self.chunk(limits, at, len),
            Item::End => self.end(limits),
        }
    }

    /// Puts a node in its place and says which that is.
    #[inline]
    fn attach(&mut self, mut node: Node) -> u32 {
        if self.root.is_none() && self.open.is_empty() && node.kind != Kind::Attribute {
            node.attributed = self.attributed;
            self.attributed = false;
            self.root = Some(node);
            return ROOT;
        }
        self.attributed = false;
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    #[inline]
    fn open(
        &mut self,
        limits: &Limits,
        kind: Kind,
        children: u32,
        streamed: bool,
    ) -> Result<Option<Node>, ProtocolError> {
        if self.open.len() >= limits.depth {
            return Err(ProtocolError::DepthExceeded { limit: limits.depth });
        }
        if kind == Kind::Attribute && self.attributed {
            return Err(ProtocolError::DanglingAttribute);
        }
        let node = self.attach(Node::aggregate(kind, children));
        if children > 0 || streamed {
            self.open.push(Level { node, count: children, kind, streamed });
            return Ok(None);
        }
        self.seal(node);
        self.complete(limits, kind)
    }

    /// An aggregate has all its children: says where its next sibling will stand.
    #[inline]
    fn seal(&mut self, node: u32) {
        // The root has no sibling: nothing is at its index.
        let next = self.nodes.len() as u32;
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.a = next;
        }
    }

    /// An aggregate is whole: an attribute waits for its value, anything else is one child more for its parent.
    #[inline]
    fn complete(&mut self, limits: &Limits, kind: Kind) -> Result<Option<Node>, ProtocolError> {
        if kind == Kind::Attribute {
            self.attributed = true;
            return Ok(None);
        }
        self.close(limits)
    }

    /// Counts one child for the innermost open aggregate, and closes those that are now whole.
    #[inline]
    fn close(&mut self, limits: &Limits) -> Result<Option<Node>, ProtocolError> {
        loop {
            let Some(top) = self.open.last_mut() else { return Ok(self.root.take()) };
            if top.streamed {
                top.count += 1;
                return within(limits, top);
            }
            top.count -= 1;
            if top.count > 0 {
                return Ok(None);
            }
            let (node, kind) = (top.node, top.kind);
            self.open.pop();
            self.seal(node);
            if kind == Kind::Attribute {
                self.attributed = true;
                return Ok(None);
            }
        }
    }

    fn end(&mut self, limits: &Limits) -> Result<Option<Node>, ProtocolError> {
        if self.attributed {
            return Err(ProtocolError::DanglingAttribute);
        }
        match self.open.pop() {
            Some(Level { node, count, kind, streamed: true }) if !paired(kind) || count.is_multiple_of(2) => {
                let own = if node == ROOT { self.root.as_mut() } else { self.nodes.get_mut(node as usize) };
                own.expect("an open aggregate has its node").b = count;
                self.seal(node);
                self.complete(limits, kind)
            }
            _ => Err(ProtocolError::UnexpectedEnd),
        }
    }

    fn chunk(&mut self, limits: &Limits, at: usize, len: usize) -> Result<Option<Node>, ProtocolError> {
        let Some((start, sum)) = self.text else { return Err(ProtocolError::UnexpectedChunk) };
        if len == 0 {
            self.text = None;
            self.attach(Node::text(Kind::BlobString, start, sum));
            return self.close(limits);
        }
        if sum + len > limits.bulk {
            return Err(ProtocolError::BulkTooLarge { len: (sum + len) as u64, limit: limits.bulk });
        }
        self.moves.push((at, start + sum, len));
        self.text = Some((start, sum + len));
        Ok(None)
    }

    /// The nodes of a whole frame, in one allocation of the right size.
    #[inline]
    fn take_nodes(&mut self) -> Box<[Node]> {
        if self.nodes.len() > SCRATCH {
            return std::mem::take(&mut self.nodes).into_boxed_slice();
        }
        let nodes = Box::from(self.nodes.as_slice());
        self.nodes.clear();
        nodes
    }
}

fn paired(kind: Kind) -> bool {
    matches!(kind, Kind::Map | Kind::Attribute)
}

/// The limit on elements, for an aggregate that did not declare how many it has.
fn within(limits: &Limits, level: &Level) -> Result<Option<Node>, ProtocolError> {
    let len = if paired(level.kind) { level.count.div_ceil(2) } else { level.count };
    if len as usize > limits.container {
        return Err(ProtocolError::ContainerTooLarge { len: len.into(), limit: limits.container });
    }
    Ok(None)
}

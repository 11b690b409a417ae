//! A frame that is being put together, element by element.
//!
//! The decoder hands elements over; this keeps the list of nodes, the aggregates that still miss
//! children, and the streamed strings that have not ended. Pure bookkeeping, bounded by the limits:
//! one node for each element that has really come, one level for each open aggregate. Invariant:
//! whenever [`Partial::whole`] gives a root, the nodes are its descendants in preorder, each linked
//! to its next sibling.

use super::frame::{FrameNode, FrameNodes};
use super::kind::ValueKind;
use super::limits::{ProtocolError, ReplyLimits};
use super::parse::Element;
use super::quick::{Quick, quick};
use bytes::BytesMut;

/// A scratch list above this many nodes is given away with its frame instead of being copied and
/// kept.
const SCRATCH: usize = 4096;

/// Stands for the root among indices of nodes.
const ROOT: u32 = u32::MAX;

/// What is known of a frame that is not whole yet.
#[derive(Default)]
pub(super) struct Partial {
    /// Root of the frame, once it has come.
    root: Option<FrameNode>,
    nodes: Vec<FrameNode>,
    /// Aggregates that still miss children, outermost first.
    open: Vec<OpenAggregate>,
    /// The last thing read was an attribute, so that a value must follow.
    attributed: bool,
    /// A streamed string that has not ended: where its text starts, and how much of it there is.
    text: Option<(usize, usize)>,
    /// Pieces of streamed strings to be joined in place when the frame is whole.
    moves: Vec<Move>,
}

/// An aggregate that still misses children.
struct OpenAggregate {
    node: u32,
    /// Children still to come; of a streamed aggregate, children that came.
    count: u32,
    kind: ValueKind,
    streamed: bool,
}

struct Move {
    from: usize,
    to: usize,
    len: usize,
}

impl Partial {
    /// Begins a frame with an aggregate that has children; says no if the limits forbid it.
    #[inline(always)]
    pub(super) fn begin(&mut self, limits: &ReplyLimits, kind: ValueKind, children: u32) -> bool {
        if limits.depth == 0 {
            return false;
        }
        self.root = Some(FrameNode::aggregate(kind, children));
        self.open.push(OpenAggregate { node: ROOT, count: children, kind, streamed: false });
        true
    }

    /// Takes common elements from `pos` on, as long as there are any, and says where it stopped.
    #[inline(always)]
    pub(super) fn fill(&mut self, limits: &ReplyLimits, bytes: &[u8], mut pos: usize) -> usize {
        let Some(mut left) = self.plainly_missing() else { return pos };
        loop {
            match quick(limits, bytes, pos) {
                Quick::Leaf(node, end) => {
                    self.nodes.push(node);
                    (pos, left) = (end, left - 1);
                }
                Quick::Open(kind, children, end) if self.open.len() < limits.depth => {
                    self.set_count(left);
                    let node = self.nodes.len() as u32;
                    self.nodes.push(FrameNode::aggregate(kind, children));
                    self.open.push(OpenAggregate { node, count: children, kind, streamed: false });
                    (pos, left) = (end, children);
                }
                _ => {
                    self.set_count(left);
                    return pos;
                }
            }
            if left == 0 {
                self.set_count(1);
                self.count_child();
                match self.plainly_missing() {
                    Some(count) => left = count,
                    None => return pos,
                }
            }
        }
    }

    /// Children that the innermost aggregate still misses, if nothing out of the ordinary is going
    /// on.
    #[inline(always)]
    fn plainly_missing(&self) -> Option<u32> {
        let top = self.open.last()?;
        (!top.streamed && !self.attributed && self.text.is_none()).then_some(top.count)
    }

    #[inline(always)]
    fn set_count(&mut self, count: u32) {
        if let Some(top) = self.open.last_mut() {
            top.count = count;
        }
    }

    /// Adds any element; `end` is the position after it.
    pub(super) fn accept(
        &mut self,
        limits: &ReplyLimits,
        item: Element,
        end: usize,
    ) -> Result<(), ProtocolError> {
        if self.text.is_some() && !matches!(item, Element::Chunk { .. }) {
            return Err(ProtocolError::UnexpectedChunk);
        }
        self.open.last().map_or(Ok(()), |top| top.check(limits))?;
        match item {
            Element::Leaf(node) => {
                self.attach(node);
                self.count_child();
            }
            Element::Open(kind, children) => self.open(limits, kind, children, false)?,
            Element::OpenStreamed(kind) => self.open(limits, kind, 0, true)?,
            Element::Text => self.text = Some((end, 0)),
            Element::Chunk { at, len } => self.chunk(limits, at, len)?,
            Element::End => self.end()?,
        }
        Ok(())
    }

    /// The root, once everything below it has come.
    #[inline(always)]
    pub(super) fn whole(&mut self) -> Option<FrameNode> {
        if self.open.is_empty() { self.root.take() } else { None }
    }

    /// Bytes of memory held.
    pub(super) fn held(&self) -> usize {
        self.nodes.capacity() * size_of::<FrameNode>()
            + self.open.capacity() * size_of::<OpenAggregate>()
            + self.moves.capacity() * size_of::<Move>()
    }

    /// Joins the pieces of streamed strings inside the frame's own bytes.
    #[inline(always)]
    pub(super) fn join_texts(&mut self, chunk: &mut BytesMut) {
        if self.moves.is_empty() {
            return;
        }
        for Move { from, to, len } in std::mem::take(&mut self.moves) {
            chunk.copy_within(from..from + len, to);
        }
    }

    /// The nodes of a whole frame, in at most one allocation, of the right size.
    #[inline(always)]
    pub(super) fn take_nodes(&mut self) -> FrameNodes {
        if self.nodes.len() > SCRATCH {
            return std::mem::take(&mut self.nodes).into();
        }
        let nodes = FrameNodes::from(self.nodes.as_slice());
        self.nodes.clear();
        nodes
    }

    /// Puts a node in its place and says which that is.
    fn attach(&mut self, mut node: FrameNode) -> u32 {
        let attributed = std::mem::take(&mut self.attributed);
        if self.open.is_empty() && node.kind != ValueKind::Attribute {
            node.attributed = attributed;
            self.root = Some(node);
            return ROOT;
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    fn open(
        &mut self,
        limits: &ReplyLimits,
        kind: ValueKind,
        count: u32,
        streamed: bool,
    ) -> Result<(), ProtocolError> {
        if self.open.len() >= limits.depth {
            return Err(ProtocolError::DepthExceeded { limit: limits.depth });
        }
        if kind == ValueKind::Attribute && self.attributed {
            return Err(ProtocolError::DanglingAttribute);
        }
        let node = self.attach(FrameNode::aggregate(kind, count));
        if count > 0 || streamed {
            self.open.push(OpenAggregate { node, count, kind, streamed });
        } else {
            self.seal(node, kind);
        }
        Ok(())
    }

    /// Counts one child for the innermost aggregate, and closes those that are now whole.
    #[inline(always)]
    fn count_child(&mut self) {
        while let Some(top) = self.open.last_mut() {
            if top.streamed {
                top.count += 1;
                return;
            }
            top.count -= 1;
            if top.count > 0 {
                return;
            }
            let node = top.node;
            let kind = top.kind;
            self.open.pop();
            self.link(node);
            if kind == ValueKind::Attribute {
                self.attributed = true;
                return;
            }
        }
    }

    /// Tells an aggregate that has all its children where its next sibling will stand.
    #[inline(always)]
    fn link(&mut self, node: u32) {
        let next = self.nodes.len() as u32;
        // The root has no sibling, and no node has its index.
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.a = next;
        }
    }

    /// An aggregate is whole: an attribute waits for its value, any other is one child more for its
    /// parent.
    fn seal(&mut self, node: u32, kind: ValueKind) {
        self.link(node);
        if kind == ValueKind::Attribute {
            self.attributed = true;
        } else {
            self.count_child();
        }
    }

    fn end(&mut self) -> Result<(), ProtocolError> {
        if self.attributed {
            return Err(ProtocolError::DanglingAttribute);
        }
        match self.open.pop() {
            Some(OpenAggregate { node, count, kind, streamed: true })
                if !paired(kind) || count.is_multiple_of(2) =>
            {
                let own = if node == ROOT { self.root.as_mut() } else { self.nodes.get_mut(node as usize) };
                own.expect("an open aggregate has its node").b = count;
                self.seal(node, kind);
                Ok(())
            }
            _ => Err(ProtocolError::UnexpectedEnd),
        }
    }

    fn chunk(&mut self, limits: &ReplyLimits, at: usize, len: usize) -> Result<(), ProtocolError> {
        let Some((start, sum)) = self.text else { return Err(ProtocolError::UnexpectedChunk) };
        if sum + len > limits.bulk {
            return Err(ProtocolError::BulkTooLarge { len: (sum + len) as u64, limit: limits.bulk });
        }
        if len > 0 {
            self.moves.push(Move { from: at, to: start + sum, len });
            self.text = Some((start, sum + len));
        } else {
            self.text = None;
            self.attach(FrameNode::text(ValueKind::BlobString, start, sum));
            self.count_child();
        }
        Ok(())
    }
}

impl OpenAggregate {
    /// The limit on elements, which an aggregate that did not declare how many it has reaches on
    /// the way.
    fn check(&self, limits: &ReplyLimits) -> Result<(), ProtocolError> {
        let len = if paired(self.kind) { self.count.div_ceil(2) } else { self.count };
        if self.streamed && len as usize > limits.container {
            return Err(ProtocolError::ContainerTooLarge { len: len.into(), limit: limits.container });
        }
        Ok(())
    }
}

fn paired(kind: ValueKind) -> bool {
    matches!(kind, ValueKind::Map | ValueKind::Attribute)
}

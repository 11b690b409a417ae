//! The incremental decoder: a read buffer in, whole frames out.
//!
//! The connection calls [`Decoder::decode`] after each read until it returns `None`. The decoder
//! remembers where it stopped inside an incomplete frame. So any split of the input costs the same
//! and gives the same frames.
//!
//! Nothing is allocated because of a declared length: the list of nodes grows with the bytes that
//! came. After an error the decoder repeats it, and the connection must be closed.

use super::frame::{Frame, FrameNode, FrameNodes};
use super::kind::ValueKind;
use super::limits::{ProtocolError, ReplyLimits};
use super::parse::{self, ParseStep};
use super::partial::Partial;
use super::pubsub::{self, PubSubFrame};
use super::quick::{Quick, quick};
use bytes::{Buf, Bytes, BytesMut};
use std::fmt;

/// The commonest reply.
const OK: &[u8] = b"+OK\r\n";

/// Takes frames off the front of a read buffer.
pub struct Decoder {
    limits: ReplyLimits,
    /// Length of the buffer at which another attempt may succeed.
    need: usize,
    /// Bytes of the current frame that are done with.
    pos: usize,
    missing: usize,
    failed: Option<ProtocolError>,
    partial: Partial,
}

impl Decoder {
    /// A decoder at the start of a connection.
    pub fn new(limits: ReplyLimits) -> Self {
        let limits = limits.clamped();
        Self { limits, need: 1, pos: 0, missing: 0, failed: None, partial: Partial::default() }
    }

    /// Takes the next whole frame off the front of `buf`, or says `None` when more bytes are
    /// needed.
    ///
    /// Between calls `buf` may only grow at its end. What has been seen is not scanned again: any
    /// split of the input gives the same frames at the same total cost.
    ///
    /// # Errors
    /// The bytes are not RESP or exceed the limits; every later call says the same.
    #[inline]
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
        if buf.len() < self.need {
            return self.wait(buf.len());
        }
        if self.pos == 0 {
            if buf.starts_with(OK) {
                // No share of the read buffer is needed for this one.
                buf.advance(OK.len());
                let node = FrameNode::text(ValueKind::SimpleString, 1, OK.len() - 3);
                return Ok(Some(self.scalar(Bytes::from_static(OK), node, OK.len())));
            }
            match quick(&self.limits, self.within_frame(buf), 0) {
                Quick::Leaf(node, end) => {
                    let chunk = take(buf, node, end);
                    return Ok(Some(self.scalar(chunk, node, end)));
                }
                Quick::Open(kind, children, end) if self.partial.begin(&self.limits, kind, children) => {
                    self.pos = end;
                }
                _ => {}
            }
        }
        self.resume(buf)
    }

    /// As [`decode`](Self::decode), for a connection of subscriptions: what the frame says, and its
    /// bytes on the wire. Whole messages are taken apart without making a frame of them.
    #[inline]
    pub(crate) fn decode_pubsub(
        &mut self,
        buf: &mut BytesMut,
    ) -> Result<Option<(PubSubFrame, usize)>, ProtocolError> {
        if self.pos == 0
            && self.failed.is_none()
            && let Some((frame, end)) = pubsub::quick_message(&self.limits, buf)
        {
            (self.need, self.missing) = (1, 0);
            return Ok(Some((frame, end)));
        }
        Ok(self.decode(buf)?.map(|frame| (PubSubFrame::read(&frame), frame.wire_len())))
    }

    /// How many bytes more than it last saw the current frame is known to need: a lower bound, 0 if
    /// unknown.
    ///
    /// Lets the reader reserve once for a large bulk string. The figure is the server's word,
    /// checked only against the limits.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Bytes of memory held beside the read buffer; for tests of the promise that it follows what
    /// really came.
    pub(crate) fn held(&self) -> usize {
        self.partial.held()
    }

    #[inline(always)]
    fn within_frame<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[..bytes.len().min(self.limits.frame)]
    }

    /// Goes on inside a frame until it is whole or the bytes are used up.
    #[inline(never)]
    fn resume(&mut self, buf: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
        let bytes = &buf[..];
        loop {
            self.pos = self.partial.fill(&self.limits, self.within_frame(bytes), self.pos);
            if let Some(root) = self.partial.whole() {
                let end = self.pos;
                return Ok(Some(self.finish(buf, root, end)));
            }
            match self.step(bytes) {
                Ok(ParseStep::Element(item, end)) => match self.partial.accept(&self.limits, item, end) {
                    Ok(()) => self.pos = end,
                    Err(error) => return Err(self.fail(error)),
                },
                Ok(ParseStep::More(need)) => {
                    self.need = need;
                    return self.wait(bytes.len());
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    /// Parses the next element.
    fn step(&self, bytes: &[u8]) -> Result<ParseStep, ProtocolError> {
        if self.pos == bytes.len() {
            return Ok(ParseStep::More(self.pos + 1));
        }
        // A line that was cut was searched up to where the bytes ended, which is one less than it
        // needs.
        match parse::element(&self.limits, bytes, self.pos, self.need - 1)? {
            ParseStep::Element(_, end) if end > self.limits.frame => {
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

    /// A frame of one scalar, without touching the list of nodes.
    #[inline(always)]
    fn scalar(&mut self, chunk: Bytes, root: FrameNode, end: usize) -> Frame {
        (self.need, self.missing) = (1, 0);
        Frame { chunk, root, wire: end as u32, nodes: FrameNodes::default() }
    }

    #[inline(always)]
    fn finish(&mut self, buf: &mut BytesMut, root: FrameNode, end: usize) -> Frame {
        (self.need, self.pos, self.missing) = (1, 0, 0);
        let mut chunk = buf.split_to(end);
        self.partial.join_texts(&mut chunk);
        Frame { chunk: chunk.freeze(), root, wire: end as u32, nodes: self.partial.take_nodes() }
    }
}

/// Cuts a frame of one scalar off the buffer; one that carries its value in its node needs no
/// bytes.
#[inline(always)]
fn take(buf: &mut BytesMut, node: FrameNode, end: usize) -> Bytes {
    if node.is_text() {
        return buf.split_to(end).freeze();
    }
    buf.advance(end);
    Bytes::new()
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

//! Read buffer of a connection.
//!
//! Frames are slices of it, so a buffer can be reused only when its frames are gone. A few retired
//! buffers are kept until then, because fresh memory costs a page fault for every 4 KiB.

use bytes::BytesMut;
use std::collections::VecDeque;

/// What is read at once: grows while reads fill the buffer, falls back when the connection is idle.
const READ_MIN: usize = 8 << 10;
const READ_MAX: usize = 256 << 10;
/// A read is not worth a system call with less room than this.
const READ_ROOM: usize = 4 << 10;
/// Most bytes that are reserved for a length that the server has announced.
const ANNOUNCED_MAX: usize = 16 << 20;
/// Retired buffers that are kept for reuse.
const KEPT: usize = 8;
/// Larger ones are not kept.
const KEPT_BYTES: usize = 2 * READ_MAX;

#[derive(Debug)]
pub(super) struct ReadBuffer {
    pub(super) bytes: BytesMut,
    retired: VecDeque<BytesMut>,
    size: usize,
}

impl ReadBuffer {
    pub(super) fn new(bytes: BytesMut) -> Self {
        Self { bytes, retired: VecDeque::new(), size: READ_MIN }
    }

    /// Makes room for a read, and for what the current frame is known to miss. Returns how much
    /// there is.
    pub(super) fn make_room(&mut self, missing: usize) -> usize {
        if self.room() < missing.clamp(READ_ROOM, READ_MAX) {
            self.replace(missing.min(ANNOUNCED_MAX).max(self.size));
        }
        self.room()
    }

    fn room(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    fn replace(&mut self, wanted: usize) {
        if self.bytes.try_reclaim(wanted) {
            return;
        }
        let mut next = self.reusable(self.bytes.len() + wanted);
        next.extend_from_slice(&self.bytes);
        let mut old = std::mem::replace(&mut self.bytes, next);
        old.clear();
        if self.retired.len() == KEPT {
            // The oldest is the smallest, or a caller keeps one of its frames.
            self.retired.pop_front();
        }
        self.retired.push_back(old);
    }

    /// A retired buffer whose frames are gone, or a fresh one.
    fn reusable(&mut self, wanted: usize) -> BytesMut {
        if wanted <= KEPT_BYTES {
            for _ in 0..self.retired.len() {
                let Some(mut buffer) = self.retired.pop_front() else { break };
                if buffer.try_reclaim(wanted) {
                    return buffer;
                }
                self.retired.push_back(buffer);
            }
        }
        BytesMut::with_capacity(wanted)
    }

    /// A read filled the whole room: the next one may be larger.
    pub(super) fn grow(&mut self) {
        self.size = (self.size * 2).min(READ_MAX);
    }

    /// Gives memory back while the connection is idle.
    pub(super) fn shrink(&mut self) {
        self.size = READ_MIN;
        self.retired.clear();
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the room with bytes and takes them all out as a frame would.
    fn frame(input: &mut ReadBuffer) -> bytes::Bytes {
        let room = input.make_room(0);
        input.bytes.resize(input.bytes.len() + room, b'x');
        input.bytes.split().freeze()
    }

    #[test]
    fn a_buffer_is_used_again_once_its_frames_are_gone() {
        let mut input = ReadBuffer::new(BytesMut::new());
        let first = frame(&mut input);
        let place = first.as_ptr();
        let second = frame(&mut input);
        assert_ne!(second.as_ptr(), place, "its frame is still there");
        drop(first);
        let _third = frame(&mut input);
        let fourth = frame(&mut input);
        assert!([_third.as_ptr(), fourth.as_ptr()].contains(&place), "the memory of the first");
    }

    #[test]
    fn what_was_read_moves_along() {
        let mut input = ReadBuffer::new(BytesMut::from(&b"part of a frame"[..]));
        assert!(input.make_room(1 << 20) >= READ_MAX);
        assert_eq!(&input.bytes[..], b"part of a frame");
    }

    #[test]
    fn an_announced_length_is_not_believed_beyond_a_bound() {
        let mut input = ReadBuffer::new(BytesMut::new());
        input.make_room(1 << 40);
        assert!(input.bytes.capacity() <= 2 * ANNOUNCED_MAX);
    }

    #[test]
    fn an_idle_connection_holds_nothing() {
        let mut input = ReadBuffer::new(BytesMut::new());
        let frames: Vec<_> = (0..20).map(|_| frame(&mut input)).collect();
        assert!(input.retired.len() <= KEPT);
        drop(frames);
        input.shrink();
        assert_eq!((input.bytes.capacity(), input.retired.len()), (0, 0));
    }
}

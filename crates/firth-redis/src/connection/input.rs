//! The read buffer of a connection. Frames are slices of it, so a buffer can be used again only when its frames are
//! gone; a few that were left behind are kept until then, because fresh memory costs a page fault for every 4 KiB.

use std::collections::VecDeque;

use bytes::BytesMut;

/// What is read at once: grows while reads fill the buffer, falls back when the connection is idle.
const READ_MIN: usize = 8 << 10;
const READ_MAX: usize = 256 << 10;
/// A read is not worth a system call with less room than this.
const READ_ROOM: usize = 4 << 10;
/// No more than this is reserved because of a length that the server has announced.
const ANNOUNCED_MAX: usize = 16 << 20;
/// Buffers left behind that are kept for another use.
const KEPT: usize = 8;
/// Larger ones are not kept.
const KEPT_BYTES: usize = 2 * READ_MAX;

#[derive(Debug)]
pub(super) struct Input {
    pub(super) bytes: BytesMut,
    left_behind: VecDeque<BytesMut>,
    size: usize,
}

impl Input {
    pub(super) fn new(bytes: BytesMut) -> Self {
        Self { bytes, left_behind: VecDeque::new(), size: READ_MIN }
    }

    /// Makes room for a read, and for what the current frame is known to miss. Returns how much there is.
    pub(super) fn make_room(&mut self, missing: usize) -> usize {
        if self.room() < missing.clamp(READ_ROOM, READ_MAX) {
            self.renew(missing.min(ANNOUNCED_MAX).max(self.size));
        }
        self.room()
    }

    fn room(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    fn renew(&mut self, wanted: usize) {
        if self.bytes.try_reclaim(wanted) {
            return;
        }
        let mut next = self.reusable(self.bytes.len() + wanted);
        next.extend_from_slice(&self.bytes);
        let mut old = std::mem::replace(&mut self.bytes, next);
        old.clear();
        if self.left_behind.len() == KEPT {
            // The oldest is the smallest, or has a frame that somebody keeps.
            self.left_behind.pop_front();
        }
        self.left_behind.push_back(old);
    }

    /// A buffer left behind whose frames are gone, or a fresh one.
    fn reusable(&mut self, wanted: usize) -> BytesMut {
        if wanted <= KEPT_BYTES {
            for _ in 0..self.left_behind.len() {
                let Some(mut buffer) = self.left_behind.pop_front() else { break };
                if buffer.try_reclaim(wanted) {
                    return buffer;
                }
                self.left_behind.push_back(buffer);
            }
        }
        BytesMut::with_capacity(wanted)
    }

    /// A read filled the whole room: the next one may be larger.
    pub(super) fn was_filled(&mut self) {
        self.size = (self.size * 2).min(READ_MAX);
    }

    /// Nothing happens: give back what is not needed.
    pub(super) fn slim_down(&mut self) {
        self.size = READ_MIN;
        self.left_behind.clear();
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the room with bytes and takes them all out as a frame would.
    fn frame(input: &mut Input) -> bytes::Bytes {
        let room = input.make_room(0);
        input.bytes.resize(input.bytes.len() + room, b'x');
        input.bytes.split().freeze()
    }

    #[test]
    fn a_buffer_is_used_again_once_its_frames_are_gone() {
        let mut input = Input::new(BytesMut::new());
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
        let mut input = Input::new(BytesMut::from(&b"part of a frame"[..]));
        assert!(input.make_room(1 << 20) >= READ_MAX);
        assert_eq!(&input.bytes[..], b"part of a frame");
    }

    #[test]
    fn an_announced_length_is_not_believed_beyond_a_bound() {
        let mut input = Input::new(BytesMut::new());
        input.make_room(1 << 40);
        assert!(input.bytes.capacity() <= 2 * ANNOUNCED_MAX);
    }

    #[test]
    fn an_idle_connection_holds_nothing() {
        let mut input = Input::new(BytesMut::new());
        let frames: Vec<_> = (0..20).map(|_| frame(&mut input)).collect();
        assert!(input.left_behind.len() <= KEPT);
        drop(frames);
        input.slim_down();
        assert_eq!((input.bytes.capacity(), input.left_behind.len()), (0, 0));
    }
}

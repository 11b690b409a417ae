//! Bytes of one command: in place while they are few, on the heap beyond that. Building and sending
//! a small command then allocates nothing.

use crate::resp::ByteSink;

/// Bytes that need no heap: enough for a name, a key and a value of 64 bytes.
const INLINE: usize = 120;

/// A growing byte string with room for [`INLINE`] bytes in place.
#[derive(Clone)]
pub(crate) struct InlineBuffer {
    inline: [u8; INLINE],
    /// Bytes used of `inline`; nothing if everything lies on the heap.
    used: u8,
    heap: Vec<u8>,
}

impl InlineBuffer {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { inline: [0; INLINE], used: 0, heap: Vec::new() }
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..usize::from(self.used)] } else { &self.heap }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Reserves room for this many more bytes, so that they are not copied while the buffer grows.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        if self.len() + bytes > INLINE {
            self.spill(b"");
            self.heap.reserve(bytes);
        }
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        if self.heap.is_empty() {
            self.heap.reserve(usize::from(self.used) + bytes.len().max(INLINE));
            self.heap.extend_from_slice(&self.inline[..usize::from(self.used)]);
            self.used = 0;
        }
        self.heap.extend_from_slice(bytes);
    }
}

impl ByteSink for InlineBuffer {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let start = usize::from(self.used);
        match self.inline.get_mut(start..start + bytes.len()) {
            Some(room) if self.heap.is_empty() => {
                room.copy_from_slice(bytes);
                self.used = (start + bytes.len()) as u8;
            }
            _ if bytes.is_empty() => {}
            _ => self.spill(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_what_is_there_on_either_side_of_the_border() {
        for piece in [1, 7, 60, 119, 120, 121, 500] {
            let mut body = InlineBuffer::new();
            let mut expected = Vec::new();
            for n in 0..10_u8 {
                let bytes = vec![n; piece];
                if n % 3 == 1 {
                    body.reserve(piece);
                }
                body.put(&bytes);
                body.put(b"");
                expected.extend_from_slice(&bytes);
                assert_eq!(body.as_slice(), expected);
            }
        }
    }
}

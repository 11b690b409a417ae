//! [`Frames`]: what goes out in one write, without being copied together.

use bytes::Buf;
use std::io::IoSlice;

/// Pieces that one write puts behind each other.
pub(super) struct Frames<'a, P> {
    pieces: &'a [P],
    /// How much of the first piece is written.
    partial: usize,
    remaining: usize,
}

impl<'a, P: AsRef<[u8]>> Frames<'a, P> {
    pub(super) fn new(pieces: &'a [P]) -> Self {
        let remaining = pieces.iter().map(|piece| piece.as_ref().len()).sum();
        let mut frames = Self { pieces, partial: 0, remaining };
        frames.advance(0); // past pieces that are empty
        frames
    }
}

impl<P: AsRef<[u8]>> Buf for Frames<'_, P> {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.first().map_or(&[], |first| &first.as_ref()[self.partial..])
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (slice, piece) in slices.iter_mut().zip(self.pieces) {
            let partial = if used == 0 { self.partial } else { 0 };
            *slice = IoSlice::new(&piece.as_ref()[partial..]);
            used += 1;
        }
        used
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining, "no more can be written than there is");
        self.remaining -= count;
        self.partial += count;
        while let Some((first, rest)) = self.pieces.split_first()
            && self.partial >= first.as_ref().len()
        {
            self.partial -= first.as_ref().len();
            self.pieces = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_out_in_order_however_little_is_taken_at_a_time() {
        let pieces = ["", "abc", "d", "", "efgh", ""];
        for step in 1..9 {
            let mut frames = Frames::new(&pieces);
            let mut out = Vec::new();
            while frames.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 3];
                let used = frames.chunks_vectored(&mut slices);
                let all: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.iter().copied()).collect();
                assert!(!all.is_empty() && !frames.chunk().is_empty(), "progress is possible");
                let taken = &all[..step.min(all.len())];
                out.extend_from_slice(taken);
                frames.advance(taken.len());
            }
            assert_eq!(out, b"abcdefgh", "steps of {step}");
        }
    }
}

//! What fuzzers check of this crate, as plain functions; see `fuzz/` at the root of the repository.
//!
//! Not part of the API. Each function takes any bytes at all and panics when a law is broken. The
//! tests below run the same laws over the committed corpus and mutations of it, so that every build
//! repeats what fuzzing found.

use crate::resp::{Decoder, Frame, FromValue, ProtocolError, ReplyLimits, StreamEntry, Tree};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;

/// Result of decoding an input: the frames, the bytes left over, and the error if there was one.
#[derive(Debug, PartialEq)]
struct DecodeOutcome {
    frames: Vec<Vec<u8>>,
    left: Option<usize>,
    error: Option<ProtocolError>,
}

/// The laws of the RESP decoder: it never panics, a split of the input changes nothing, and memory
/// follows the bytes that came. Every frame can be written and read again, and conversions fail
/// cleanly.
pub fn resp(data: &[u8]) {
    for limits in [ReplyLimits::default(), tight()] {
        let whole = decode(&limits, data, std::iter::once(data.len()));
        assert_eq!(whole, decode(&limits, data, std::iter::repeat_n(1, data.len())), "one byte at a time");
        let mut random = Xorshift::seeded(data);
        let sizes = std::iter::from_fn(|| Some(1 + random.below(64)));
        assert_eq!(whole, decode(&limits, data, sizes), "in random pieces");
    }
}

/// Limits that small inputs run into.
fn tight() -> ReplyLimits {
    ReplyLimits { depth: 4, line: 16, bulk: 32, container: 8, frame: 256 }
}

fn decode(limits: &ReplyLimits, data: &[u8], sizes: impl Iterator<Item = usize>) -> DecodeOutcome {
    let mut decoder = Decoder::new(limits.clone());
    let mut buf = BytesMut::new();
    let mut rest = data;
    let mut outcome = DecodeOutcome { frames: Vec::new(), left: None, error: None };
    for size in sizes {
        let (piece, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        buf.extend_from_slice(piece);
        while outcome.error.is_none() {
            let before = buf.len();
            match decoder.decode(&mut buf) {
                Ok(Some(frame)) => {
                    assert_eq!(frame.wire_len(), before - buf.len());
                    outcome.frames.push(check(&frame));
                }
                Ok(None) => break,
                Err(error) => outcome.error = Some(error),
            }
        }
        // A node takes twelve bytes and at least three on the wire; vectors double; the rest is
        // what is kept warm.
        assert!(decoder.held() <= 8 * data.len() + 4096, "{} held for {}", decoder.held(), data.len());
        if outcome.error.is_some() {
            assert_eq!(decoder.decode(&mut buf).err(), outcome.error, "an error is final");
            return outcome;
        }
        if rest.is_empty() {
            break;
        }
    }
    assert!(buf.is_empty() || buf.len() <= limits.frame, "no frame may be waited for beyond the limit");
    outcome.left = Some(buf.len());
    outcome
}

/// Reads a frame in every way there is, and gives its canonical encoding.
fn check(frame: &Frame) -> Vec<u8> {
    let value = frame.value();
    let mut wire = Vec::new();
    Tree::from(value).encode(&mut wire);
    let mut copy = Vec::new();
    Tree::from(value.to_frame().value()).encode(&mut copy);
    assert_eq!(wire, copy, "a part taken out is the same value");
    let mut again = BytesMut::from(&wire[..]);
    let limits =
        ReplyLimits { bulk: usize::MAX, line: usize::MAX, frame: usize::MAX, ..ReplyLimits::default() };
    let read = Decoder::new(limits).decode(&mut again).expect("what was written is RESP").expect("and whole");
    let mut twice = Vec::new();
    Tree::from(read.value()).encode(&mut twice);
    assert_eq!(wire, twice, "writing and reading is the identity");
    let _ = format!("{frame:?}");
    convert(frame);
    wire
}

fn convert(frame: &Frame) {
    fn try_as<T: FromValue>(frame: &Frame) {
        if let Err(error) = T::from_frame(frame.clone()) {
            let _ = error.to_string();
        }
        let _ = T::from_value(frame.value());
    }
    try_as::<String>(frame);
    try_as::<Bytes>(frame);
    try_as::<Vec<u8>>(frame);
    try_as::<u8>(frame);
    try_as::<f32>(frame);
    try_as::<bool>(frame);
    try_as::<Vec<Option<i64>>>(frame);
    try_as::<Vec<(String, String)>>(frame);
    try_as::<HashMap<String, Vec<StreamEntry>>>(frame);
    try_as::<(Frame, Frame)>(frame);
    try_as::<[Bytes; 2]>(frame);
}

/// A small generator of pseudo-random numbers, so that a failing input fails again.
struct Xorshift(u64);

impl Xorshift {
    fn seeded(data: &[u8]) -> Self {
        let seed = data.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self(seed | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus() -> Vec<(String, Vec<u8>)> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/resp");
        let mut seeds: Vec<_> = std::fs::read_dir(folder)
            .unwrap_or_else(|error| panic!("the corpus is committed at {folder}: {error}"))
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
            .collect();
        seeds.sort();
        seeds
    }

    #[test]
    fn the_corpus_keeps_the_laws_of_the_decoder() {
        let seeds = corpus();
        assert!(seeds.len() >= 20, "{} seeds", seeds.len());
        for (_, seed) in &seeds {
            resp(seed);
        }
    }

    #[test]
    fn mutations_of_the_corpus_keep_the_laws_of_the_decoder() {
        let seeds = corpus();
        let mut random = Xorshift::seeded(b"mutations");
        for (_, seed) in seeds.iter().filter(|(_, seed)| seed.len() <= 4096) {
            for _ in 0..100 {
                let (_, other) = &seeds[random.below(seeds.len())];
                resp(&mutated(seed, other, &mut random));
            }
        }
    }

    /// A few edits: bytes that mean something to RESP, repeats, cuts, and a splice with another
    /// seed.
    fn mutated(seed: &[u8], other: &[u8], random: &mut Xorshift) -> Vec<u8> {
        const MEANT: &[u8] = b"$*:+-_#,(!=%~>|.;?0123456789\r\n-t\xff\0";
        let mut data = seed.to_vec();
        for _ in 0..=random.below(4) {
            let at = random.below(data.len() + 1);
            let len = random.below(data.len() - at + 1).min(64);
            match random.below(6) {
                0 if at < data.len() => data[at] = MEANT[random.below(MEANT.len())],
                1 if at < data.len() => data[at] = random.next() as u8,
                2 => data.insert(at, MEANT[random.below(MEANT.len())]),
                3 => drop(data.drain(at..at + len)),
                4 => data.extend_from_within(at..at + len),
                _ => {
                    data.truncate(at);
                    data.extend(&other[random.below(other.len() + 1).min(other.len())..]);
                    data.truncate(8192);
                }
            }
        }
        data
    }
}

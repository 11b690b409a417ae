//! Reads and verifies the stream, fed in pieces of any size.

use super::writer::StreamHead;
use super::{BLOCK_HEAD, HEAD, MAGIC, MAX_BODY, Totals, VERSION};
use crate::codec::Reader;
use crate::error::{Error, ErrorKind, Result};
use bytes::{Buf, Bytes, BytesMut};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What a backup says that it will hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupPlan {
    /// Partitions with records.
    pub partitions: u64,
    /// Records of all partitions.
    pub records: u64,
    /// About how many bytes these take.
    pub bytes: u64,
}

/// How far a stream was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Records seen so far.
    pub records: u64,
    /// What is still to come, once the stream said so.
    pub plan: Option<BackupPlan>,
}

/// One verified block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Block {
    /// Entries of the state: keys with values.
    Entries(Vec<(Bytes, Bytes)>),
    /// Changes of the state; nothing for a removed key.
    Changes(Vec<(Bytes, Option<Bytes>)>),
    /// What is still to come.
    Plan(BackupPlan),
    /// Records of one log: numbers with stored values.
    Records {
        /// The number of the log.
        log: u64,
        /// The records.
        records: Vec<(u64, Bytes)>,
    },
    /// The end, with the figures of everything before it.
    End(Totals),
    /// Why there is no end.
    Failed(String),
}

/// Verifies a stream while it passes: checksums, counts, its end. Holds at most one block.
#[derive(Debug, Default)]
pub struct BackupReader {
    buffer: BytesMut,
    /// Where the buffer starts in the stream.
    offset: u64,
    head: Option<StreamHead>,
    chain: u64,
    seen: Totals,
    plan: Option<BackupPlan>,
    end: Option<Totals>,
}

impl BackupReader {
    /// A reader at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next piece of the stream. Take all blocks out before the next piece.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next block, if it is there as a whole; an error names the first damaged place.
    pub fn block(&mut self) -> Result<Option<Block>> {
        if self.head.is_none() && !self.read_head()? {
            return Ok(None);
        }
        if self.end.is_some() {
            return match self.buffer.is_empty() {
                true => Ok(None),
                false => Err(self.damaged("something follows its end")),
            };
        }
        let Some((kind, body)) = self.body()? else { return Ok(None) };
        let block = parse(kind, body).ok_or_else(|| self.damaged("a block is not understood"))?;
        self.count(&block)?;
        Ok(Some(block))
    }

    /// Whether the stream has ended as it should; else how it was cut off.
    pub fn finish(&self) -> Result<Totals> {
        let at = self.offset + self.buffer.len() as u64;
        self.end.ok_or_else(|| {
            Error::corrupt(format!("the backup is cut off after {at} bytes: it has no end; take another one"))
        })
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        Progress { bytes: self.offset, records: self.seen.records, plan: self.plan }
    }

    /// When the backup was begun, once its head was read.
    pub fn taken(&self) -> Option<SystemTime> {
        self.head.map(|head| UNIX_EPOCH + Duration::from_millis(head.wall_ms))
    }

    pub(crate) fn head(&self) -> Option<StreamHead> {
        self.head
    }

    /// Reads the head; false if it is not there yet.
    fn read_head(&mut self) -> Result<bool> {
        let begins = self.buffer.len().min(MAGIC.len());
        if self.buffer[..begins] != MAGIC[..begins] {
            return Err(Error::new(
                ErrorKind::Invalid,
                "this is no backup of firth: it does not begin like one",
            ));
        }
        if self.buffer.len() < HEAD {
            return Ok(false);
        }
        let mut bytes = self.buffer.split_to(HEAD).freeze();
        let chain = xxh3_64(&bytes[..HEAD - 8]);
        bytes.advance(MAGIC.len());
        let (version, layout) = (bytes.get_u32(), bytes.get_u32());
        let (engine_us, wall_ms) = (bytes.get_u64(), bytes.get_u64());
        if chain != bytes.get_u64() {
            return Err(self.damaged("its head is altered"));
        }
        if version > VERSION {
            let context = format!(
                "the backup has version {version}; this build reads versions up to {VERSION}: use a newer build"
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        self.offset = HEAD as u64;
        self.chain = chain;
        self.head = Some(StreamHead { layout, engine_us, wall_ms });
        Ok(true)
    }

    /// The kind and the body of the next block, verified.
    fn body(&mut self) -> Result<Option<(u8, Bytes)>> {
        if self.buffer.len() < BLOCK_HEAD {
            return Ok(None);
        }
        let mut head = &self.buffer[1..BLOCK_HEAD];
        let (length, sum) = (head.get_u32() as usize, head.get_u32());
        let wanted = xxh3_64_with_seed(&self.buffer[..BLOCK_HEAD - 4], self.chain) as u32;
        if sum != wanted || length > MAX_BODY {
            return Err(self.damaged("a block is altered, missing or out of place"));
        }
        let whole = BLOCK_HEAD + length + 8;
        if self.buffer.len() < whole {
            self.buffer.reserve(whole - self.buffer.len());
            return Ok(None);
        }
        let chain = xxh3_64_with_seed(&self.buffer[..whole - 8], self.chain);
        if chain.to_be_bytes() != self.buffer[whole - 8..whole] {
            return Err(self.damaged("a block is altered"));
        }
        let block = self.buffer.split_to(whole).freeze();
        self.chain = chain;
        self.offset += whole as u64;
        Ok(Some((block[0], block.slice(BLOCK_HEAD..whole - 8))))
    }

    /// Counts a block, and holds the end to what was counted.
    fn count(&mut self, block: &Block) -> Result<()> {
        match block {
            Block::Entries(entries) => self.seen.entries += entries.len() as u64,
            Block::Changes(changes) => self.seen.changes += changes.len() as u64,
            Block::Plan(plan) => self.plan = Some(*plan),
            Block::Records { records, .. } => self.seen.records += records.len() as u64,
            Block::Failed(why) => {
                return Err(Error::corrupt(format!("the backup has no end, because it failed: {why}")));
            }
            Block::End(totals) => {
                let Totals { entries, changes, records, .. } = self.seen;
                let is_whole = (totals.entries, totals.changes, totals.records)
                    == (entries, changes, records)
                    && self.plan.is_some_and(|plan| plan.records == records);
                if !is_whole {
                    return Err(self.damaged("its end counts other blocks than those before it"));
                }
                self.end = Some(*totals);
            }
        }
        Ok(())
    }

    fn damaged(&self, why: &str) -> Error {
        let at = self.offset;
        Error::corrupt(format!("the backup is damaged at byte {at}: {why}; use another one"))
    }
}

fn parse(kind: u8, body: Bytes) -> Option<Block> {
    let mut rest = Reader(body);
    match kind {
        b'S' => {
            let mut entries = Vec::new();
            while !rest.is_empty() {
                entries.push((rest.run()?, rest.run()?));
            }
            Some(Block::Entries(entries))
        }
        b'C' => {
            let mut changes = Vec::new();
            while !rest.is_empty() {
                let is_set = rest.byte()? != 0;
                let key = rest.run()?;
                changes.push((key, if is_set { Some(rest.run()?) } else { None }));
            }
            Some(Block::Changes(changes))
        }
        b'P' => {
            let [partitions, records, bytes] = [rest.number()?, rest.number()?, rest.number()?];
            Some(Block::Plan(BackupPlan { partitions, records, bytes }))
        }
        b'L' => {
            let log = rest.number()?;
            let mut records = Vec::new();
            while !rest.is_empty() {
                records.push((rest.number()?, rest.run()?));
            }
            Some(Block::Records { log, records })
        }
        b'E' => {
            let [entries, changes] = [rest.number()?, rest.number()?];
            let [records, bytes] = [rest.number()?, rest.number()?];
            Some(Block::End(Totals { entries, changes, records, bytes }))
        }
        b'F' => Some(Block::Failed(String::from_utf8_lossy(&rest.rest()).into_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::{BlockWriter, body_of};
    use crate::codec::put_number;
    use crate::codec::put_run;
    use proptest::prelude::*;

    /// A stream with every kind of block, and where its parts end.
    fn stream() -> (Vec<u8>, Vec<usize>) {
        let (mut writer, mut out) = {
            let (writer, head) = BlockWriter::begin(StreamHead { layout: 3, engine_us: 5, wall_ms: 7 });
            (writer, head.to_vec())
        };
        let mut ends = vec![out.len()];
        let mut push = |block: Bytes| {
            out.extend_from_slice(&block);
            ends.push(out.len());
        };
        let mut body = Vec::new();
        body_of(&mut body, b"key", Some(b"value"), false);
        body_of(&mut body, b"other", Some(b""), false);
        push(writer.entries(2, &body));
        body.clear();
        body_of(&mut body, b"key", None, true);
        body_of(&mut body, b"new", Some(b"value"), true);
        push(writer.changes(2, &body));
        push(writer.plan(1, 3, 100));
        for (first, count) in [(1, 2_u64), (3, 1)] {
            body.clear();
            put_number(&mut body, 9);
            for seq in first..first + count {
                put_number(&mut body, seq);
                put_run(&mut body, b"record");
            }
            push(writer.records(count, &body));
        }
        push(writer.end());
        (out, ends)
    }

    /// Reads a stream to its end.
    fn read(stream: &[u8], piece: usize) -> Result<Vec<Block>> {
        let mut reader = BackupReader::new();
        let mut blocks = Vec::new();
        for piece in stream.chunks(piece) {
            reader.push(piece);
            while let Some(block) = reader.block()? {
                blocks.push(block);
            }
        }
        reader.finish().map(|_| blocks)
    }

    #[test]
    fn a_stream_is_read_as_it_was_written_however_it_is_cut_into_pieces() {
        let (stream, ends) = stream();
        let blocks = read(&stream, stream.len()).unwrap();
        assert_eq!(blocks.len(), ends.len() - 1);
        assert_eq!(blocks[1], {
            let changes = vec![("key".into(), None), ("new".into(), Some("value".into()))];
            Block::Changes(changes)
        });
        for piece in [1, 2, 7, 40, 41] {
            assert_eq!(read(&stream, piece).unwrap(), blocks);
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let (stream, _) = stream();
        for bit in 0..stream.len() * 8 {
            let mut altered = stream.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&altered, 64).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_stream_that_is_cut_off_anywhere_is_refused_with_the_place() {
        let (stream, _) = stream();
        for end in 0..stream.len() {
            let error = read(&stream[..end], 64).unwrap_err();
            assert!(error.context().contains(&format!("cut off after {end} bytes")), "{error}");
        }
    }

    #[test]
    fn a_block_that_is_missing_repeated_or_moved_is_found() {
        let (stream, ends) = stream();
        let block = |n: usize| &stream[ends[n - 1]..ends[n]];
        for n in 1..ends.len() {
            let missing = [&stream[..ends[n - 1]], &stream[ends[n]..]].concat();
            assert!(read(&missing, 64).is_err(), "without block {n}");
            let twice = [&stream[..ends[n]], &stream[ends[n - 1]..]].concat();
            assert!(read(&twice, 64).is_err(), "block {n} twice");
            if n + 1 < ends.len() {
                let moved = [&stream[..ends[n - 1]], block(n + 1), block(n), &stream[ends[n + 1]..]].concat();
                assert!(read(&moved, 64).is_err(), "blocks {n} and {} exchanged", n + 1);
            }
        }
        assert!(read(&[&stream[..], b"x"].concat(), 64).is_err(), "something follows");
    }

    #[test]
    fn a_backup_that_failed_says_why() {
        let (mut writer, head) = BlockWriter::begin(StreamHead { layout: 3, engine_us: 5, wall_ms: 7 });
        let error = read(&[&head[..], &writer.failed("the disk is gone")].concat(), 64).unwrap_err();
        assert!(error.context().contains("the disk is gone"), "{error}");
    }

    #[test]
    fn what_is_no_backup_or_a_newer_one_is_told_apart() {
        assert_eq!(read(b"PK\x03\x04", 64).unwrap_err().kind(), ErrorKind::Invalid);
        let (mut newer, _) = stream();
        newer[11] = 9;
        let sum = xxh3_64(&newer[..HEAD - 8]).to_be_bytes();
        newer[HEAD - 8..HEAD].copy_from_slice(&sum);
        assert_eq!(read(&newer, 64).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, from in 0..300_usize) {
            let (stream, _) = stream();
            let mixed = [&stream[..from.min(stream.len())], &bytes].concat();
            let _ = read(&mixed, 13);
        }
    }
}

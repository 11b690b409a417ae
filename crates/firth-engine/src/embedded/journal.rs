//! The storage library's journal, read by ourselves: which batches are whole, and what is wrong
//! after them.
//!
//! The library cannot tell a tail that was being written when the power failed from damage in the
//! middle. We can, because batches carry marks: the first one after each sync says which order
//! number comes next, so everything below that number was on the disk. If a mark follows a hole and
//! is above it, the hole was written and lost: that is damage. Otherwise it is a torn tail, which
//! no one was promised.
//!
//! A batch: `1` count order-number, then count times `2` kind compression keyspace key-length
//! length stored-length key value (or `4` keyspace), then `3` checksum of the items, and the
//! library's magic. All numbers are little-endian.

use super::keys::SYNCED;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8] = b"FJL\x03";

/// One whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) number: u64,
    /// Everything below this order number was on the disk before the batch was written.
    pub(super) synced: Option<u64>,
    /// It says only that.
    pub(super) is_mark: bool,
}

/// What a journal holds.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Whole batches from the start on.
    pub(super) batches: Vec<Batch>,
    pub(super) hole: Option<Hole>,
}

/// What follows the last whole batch and is none.
#[derive(Debug)]
pub(super) struct Hole {
    pub(super) from: usize,
    /// The number of the broken batch, if that can be read.
    number: Option<u64>,
    /// Whole batches behind it.
    pub(super) later: Vec<Batch>,
}

impl Journal {
    /// Reads the bytes of a journal, without the zeroes at its end.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut batches = Vec::new();
        let mut at = 0;
        while let Some(batch) = batch_at(bytes, at) {
            at = batch.to;
            batches.push(batch);
        }
        let hole = (at < bytes.len()).then(|| Hole {
            from: at,
            number: start_at(bytes, at).map(|(_, number)| number),
            later: later_batches(bytes, at + 1),
        });
        Self { batches, hole }
    }

    /// Where the whole batches end.
    pub(super) fn end(&self) -> usize {
        self.batches.last().map_or(0, |batch| batch.to)
    }

    /// Everything below this order number was on the disk, as the journal itself says.
    pub(super) fn synced(&self) -> u64 {
        self.batches.iter().filter_map(|batch| batch.synced).max().unwrap_or(0)
    }

    /// Whether the hole was once on the disk. `marked` says that this build's marks can be relied
    /// on; an older build wrote none, and a hole that is followed by anything whole counts as
    /// damage.
    pub(super) fn is_damaged(&self, marked: bool) -> bool {
        let Some(hole) = &self.hole else { return false };
        if !marked {
            return !hole.later.is_empty();
        }
        let next = self.batches.last().map_or(0, |batch| batch.number + 1);
        let broken = hole.number.unwrap_or(next);
        hole.later.iter().filter_map(|batch| batch.synced).any(|synced| synced > broken)
    }
}

fn later_batches(bytes: &[u8], from: usize) -> Vec<Batch> {
    let mut found = Vec::new();
    let mut at = from;
    while let Some(start) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == 1)) {
        at += start;
        match batch_at(bytes, at) {
            Some(batch) => {
                at = batch.to;
                found.push(batch);
            }
            None => at += 1,
        }
    }
    found
}

/// The count and the number of the batch that starts here.
fn start_at(bytes: &[u8], at: usize) -> Option<(u32, u64)> {
    let mut rest = Remainder(bytes.get(at..)?);
    (rest.u8()? == 1).then_some(())?;
    Some((rest.u32()?, rest.u64()?))
}

/// The batch that starts here, if it is whole.
fn batch_at(bytes: &[u8], at: usize) -> Option<Batch> {
    const START: usize = 13;
    let (count, number) = start_at(bytes, at)?;
    let first = at + START;
    let mut rest = Remainder(bytes.get(first..)?);
    let mut synced = None;
    for _ in 0..count {
        if let Some((SYNCED, value)) = rest.item()? {
            synced = Some(u64::from_be_bytes(value.try_into().ok()?));
        }
    }
    let end = bytes.len() - rest.0.len();
    (rest.u8()? == 3 && rest.u64()? == xxh3_64(&bytes[first..end]) && rest.take(4)? == MAGIC).then_some(())?;
    let to = bytes.len() - rest.0.len();
    Some(Batch { from: at, to, number, synced, is_mark: count == 1 && synced.is_some() })
}

/// What is left to read.
struct Remainder<'a>(&'a [u8]);

impl<'a> Remainder<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
    }

    /// Reads one item: its key and its value as stored; nothing for a cleared keyspace.
    #[expect(clippy::option_option, reason = "unreadable, or without a key")]
    fn item(&mut self) -> Option<Option<(&'a [u8], &'a [u8])>> {
        match self.u8()? {
            2 => {
                let _kind = self.u8()?;
                let _compression = self.u8()?;
                let _keyspace = self.u64()?;
                let key = self.u16()?;
                let _length = self.u32()?;
                let stored = self.u32()?;
                Some(Some((self.take(key.into())?, self.take(usize::try_from(stored).ok()?)?)))
            }
            4 => self.u64().map(|_| None),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A journal as the library writes it: three batches with marks, values that fill pages.
    fn written() -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let db = fjall::Database::builder(dir.path()).manual_journal_persist(true).open().unwrap();
        let state = db.keyspace("state", Default::default).unwrap();
        for round in 0..3_u8 {
            let mut batch = db.batch();
            batch.insert(&state, SYNCED, db.seqno().to_be_bytes());
            let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(20_000).collect();
            batch.insert(&state, [b'a', round], noise);
            batch.insert(&state, [b'b', round], vec![round; 9_000]);
            batch.remove(&state, [b'c', round]);
            batch.commit().unwrap();
            db.persist(fjall::PersistMode::SyncData).unwrap();
        }
        crate::embedded::rescue::contents(&dir.path().join("0.jnl")).unwrap()
    }

    #[test]
    fn what_the_library_writes_is_read() {
        let bytes = written();
        let journal = Journal::read(&bytes);
        assert_eq!((journal.batches.len(), journal.end()), (3, bytes.len()));
        assert!(journal.hole.is_none());
        assert!(journal.batches.iter().all(|batch| batch.synced == Some(batch.number) && !batch.is_mark));
        assert_eq!(journal.synced(), journal.batches[2].number);
    }

    #[test]
    fn q01_a_torn_tail_is_told_from_damage_in_the_middle() {
        let bytes = written();
        let whole = Journal::read(&bytes).batches;
        for hit in 0..3 {
            for at in (whole[hit].from..whole[hit].to).step_by(1_001) {
                let mut bytes = bytes.clone();
                let end = (at + 4096).min(whole[hit].to);
                bytes[at..end].fill(0);
                let journal = Journal::read(&bytes);
                assert_eq!(journal.end(), whole[hit].from, "at {at}");
                assert_eq!(journal.hole.as_ref().unwrap().later, whole[hit + 1..], "at {at}");
                assert_eq!(journal.is_damaged(true), hit < 2, "at {at}");
                assert_eq!(journal.is_damaged(false), hit < 2, "at {at}");
            }
        }
    }

    #[test]
    fn a_hole_before_batches_of_the_same_group_is_a_torn_tail() {
        let mut bytes = written();
        let first = Journal::read(&bytes).batches[0];
        let group: Vec<u8> = bytes[first.from..first.to].to_vec();
        bytes[first.to - 1] = 0;
        bytes.truncate(first.to);
        bytes.extend(group);
        let journal = Journal::read(&bytes);
        assert_eq!(journal.hole.as_ref().unwrap().later.len(), 1);
        assert!(!journal.is_damaged(true) && journal.is_damaged(false));
    }
}

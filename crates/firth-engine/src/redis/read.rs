//! Reading records: a plain range of the stream where that is safely small, else a script that
//! stops at the byte limit.
//!
//! Plain ranges cost the server half of what a script does, but know no byte limit. A partition
//! remembers its largest blob. While the wanted number of such blobs fits the limit, a plain range
//! cannot break it. Each answer refreshes what is known, and what was learned more than a moment
//! ago does not count: bigger records may have come since.

use super::RedisEngine;
use super::blob;
use super::error_mapping::{odd_answer, of_call};
use super::keys::PartitionKeys;
use super::reply_decoding::{Parts, StepSubject};
use super::scripts::SCRIPTS;
use crate::error::{Error, Result};
use crate::facet::ReadLimit;
use crate::id::RecordId;
use crate::limits::MAX_READ;
use crate::name::Partition;
use crate::record::{Content, Record};
use bytes::Bytes;
use firth_redis::resp::{Frame, Value};
use firth_redis::{Command, cmd, pipe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the largest blob is taken for granted.
const FRESH: Duration = Duration::from_millis(50);

/// What reading has taught about a partition: its largest blob (0: unknown) and when, and records
/// per 16 blobs of late.
#[derive(Debug)]
pub(super) struct Sizes {
    born: Instant,
    largest: AtomicU64,
    learned_ms: AtomicU64,
    per_16: AtomicU64,
}

impl Default for Sizes {
    fn default() -> Self {
        let (largest, learned_ms, per_16) = Default::default();
        Self { born: Instant::now(), largest, learned_ms, per_16 }
    }
}

impl Sizes {
    /// How many entries to ask for so that about `records` come; `None` if they might break the
    /// byte limit.
    pub(super) fn entries_for(&self, records: usize, bytes: usize) -> Option<usize> {
        if self.age() > FRESH {
            return None;
        }
        let largest =
            usize::try_from(self.largest.load(Ordering::Relaxed)).ok().filter(|largest| *largest > 0)?;
        let per_16 = usize::try_from(self.per_16.load(Ordering::Relaxed)).unwrap_or(16).max(16);
        let entries = (records * 16).div_ceil(per_16).max(1);
        (entries.saturating_mul(largest) <= bytes).then_some(entries)
    }

    /// Whether what is known will hold for some reads more.
    pub(super) fn is_recent(&self) -> bool {
        self.age() <= FRESH / 2
    }

    /// How long ago something was learned.
    fn age(&self) -> Duration {
        let learned = Duration::from_millis(self.learned_ms.load(Ordering::Relaxed));
        self.born.elapsed().saturating_sub(learned)
    }

    fn learn(&self, largest: u64, entries: usize, records: usize) {
        self.largest.store(largest.max(1), Ordering::Relaxed);
        let now_ms = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.learned_ms.store(now_ms, Ordering::Relaxed);
        if let Some(now) = (records * 16).checked_div(entries) {
            let old = self.per_16.load(Ordering::Relaxed).max(16);
            self.per_16.store((3 * old + now as u64) / 4, Ordering::Relaxed);
        }
    }

    fn forget(&self) {
        self.largest.store(0, Ordering::Relaxed);
    }
}

/// Reads what a range needs to be understood: the largest blob, the trimmed mark, the last record.
pub(super) fn head(keys: &PartitionKeys) -> Command {
    cmd("HMGET").key(&keys.meta).arg("m").arg("t").arg("l")
}

/// What is being read.
pub(super) struct ReadCall<'a> {
    at: &'a Partition,
    keys: &'a PartitionKeys,
    after: RecordId,
    max: ReadLimit,
    records: Vec<Record>,
    bytes: usize,
    is_done: bool,
}

impl<'a> ReadCall<'a> {
    pub(super) fn new(at: &'a Partition, keys: &'a PartitionKeys, after: RecordId, max: ReadLimit) -> Self {
        let max = ReadLimit { records: max.records.clamp(1, MAX_READ), bytes: max.bytes.max(1) };
        Self { at, keys, after, max, records: Vec::new(), bytes: 0, is_done: false }
    }

    pub(super) fn into_records(self) -> Vec<Record> {
        self.records
    }
}

impl RedisEngine {
    pub(super) async fn read_records(
        &self,
        at: &Partition,
        after: RecordId,
        max: ReadLimit,
    ) -> Result<Vec<Record>> {
        let keys = self.keys.partition(at);
        let mut reading = ReadCall::new(at, &keys, after, max);
        while !reading.is_done {
            let max = reading.max;
            let room = max.records - reading.records.len();
            let bytes = max.bytes - reading.bytes;
            match keys.sizes.entries_for(room, bytes) {
                Some(entries) => self.read_range(&mut reading, entries).await?,
                None => self.read_bounded(&mut reading, room, bytes).await?,
            }
        }
        Ok(reading.records)
    }

    async fn read_range(&self, reading: &mut ReadCall<'_>, entries: usize) -> Result<()> {
        let keys = reading.keys;
        if reading.after == RecordId::MAX {
            reading.is_done = true;
        }
        // An open interval that begins at the greatest id is no interval.
        let from = reading.after.min(RecordId::new(u64::MAX, u64::MAX - 1));
        let range =
            cmd("XRANGE").key(&keys.stream).arg(format!("({from}")).arg("+").arg("COUNT").arg(entries);
        let both = pipe().then(range).then(head(keys)).together();
        let answers = self.steps.client.pipeline::<(Frame, Frame)>(both).await;
        let (range, head) = match answers {
            Ok((Ok(range), Ok(head))) => (range, head),
            Ok((Err(error), _) | (_, Err(error))) | Err(error) => {
                // It may have been too much: the next try asks the careful way.
                keys.sizes.forget();
                return Err(of_call(error));
            }
        };
        reading.take_range(Some(range.value()), head.value())
    }

    async fn read_bounded(&self, reading: &mut ReadCall<'_>, room: usize, bytes: usize) -> Result<()> {
        let keys = reading.keys;
        let from = reading.after.min(RecordId::new(u64::MAX, u64::MAX - 1));
        let call = SCRIPTS.read.keys([&keys.meta, &keys.stream]).arg(from.to_string()).arg(room).arg(bytes);
        let answer = StepSubject::partition(reading.at).accept(self.steps.quick(call).await?)?;
        let mut parts = Parts::of(answer.value());
        let largest = parts.number()?;
        let trimmed = parts.id()?;
        let last = parts.id()?;
        reading.check_end(last)?;
        let mut list = Parts::of(parts.value()?);
        let mut found = Vec::new();
        while !list.is_empty() {
            found.push((list.id()?, list.bytes()?));
        }
        keys.sizes.learn(largest, found.len(), records_in(&found));
        reading.take(found, trimmed)?;
        // The script stopped at a limit or at the end.
        reading.is_done = true;
        Ok(())
    }
}

impl ReadCall<'_> {
    /// Takes in the entries of a range, if there are any, read together with a [`head`].
    pub(super) fn take_range(&mut self, range: Option<Value<'_>>, head: Value<'_>) -> Result<()> {
        let found = entries_of(range)?;
        let mut head = Parts::of(head);
        let largest = head.value()?;
        if largest.is_null() {
            return Err(StepSubject::partition(self.at).missing());
        }
        let largest =
            largest.as_i64().and_then(|largest| u64::try_from(largest).ok()).ok_or_else(odd_answer)?;
        let trimmed = head.id()?;
        let last = head.id()?;
        self.check_end(last)?;
        let entries = found.len();
        self.keys.sizes.learn(largest, entries, records_in(&found));
        self.take(found, trimmed)?;
        self.is_done |= entries == 0 || self.after >= last;
        Ok(())
    }

    /// Refuses a position behind the end of the log.
    fn check_end(&self, last: RecordId) -> Result<()> {
        if self.after.names_a_record() && self.after > last {
            return Err(Error::went_back(self.at, self.after, last));
        }
        Ok(())
    }

    /// Takes in entries that came right behind what was known as the end.
    pub(super) fn take_newest(&mut self, entries: Option<Value<'_>>) -> Result<()> {
        self.take(entries_of(entries)?, self.after)
    }

    /// Takes in entries; done when a limit is reached.
    fn take(&mut self, entries: Vec<(RecordId, Bytes)>, trimmed: RecordId) -> Result<()> {
        self.records.reserve(records_in(&entries).min(self.max.records - self.records.len()));
        for (last, blob) in entries {
            let packed = blob::unpack(blob).ok_or_else(|| damaged(self.at, last))?;
            let first =
                last.seq.checked_sub(packed.len() as u64 - 1).ok_or_else(|| damaged(self.at, last))?;
            for (seq, record) in (first..).zip(packed) {
                let id = RecordId::new(last.ms, seq);
                if id <= self.after || id <= trimmed {
                    continue;
                }
                let is_full =
                    self.records.len() >= self.max.records || self.bytes + record.len() > self.max.bytes;
                if is_full && !self.records.is_empty() {
                    self.is_done = true;
                    return Ok(());
                }
                if self.after.names_a_record() && seq <= self.after.seq {
                    // The number was given again: behind this position stands another record.
                    return Err(Error::went_back(self.at, self.after, id));
                }
                self.bytes += record.len();
                self.after = id;
                self.records.push(Record { id, attempt: 1, crashes: 0, content: Content::unpack(record)? });
            }
            self.after = self.after.max(last);
        }
        self.is_done = self.records.len() >= self.max.records || self.bytes >= self.max.bytes;
        Ok(())
    }
}

/// The entries of an answer, if there are any: their ids and blobs.
pub(super) fn entries_of(range: Option<Value<'_>>) -> Result<Vec<(RecordId, Bytes)>> {
    let entry = |entry: Value<'_>| {
        let mut entry = Parts::of(entry);
        let id = entry.id()?;
        let blob = entry.value()?.get(1).and_then(Value::bytes).ok_or_else(odd_answer)?;
        Ok((id, blob))
    };
    range.into_iter().flatten().map(entry).collect()
}

/// How many records lie in these entries, wanted or not: a reader with little room still learns how
/// full they are.
fn records_in(entries: &[(RecordId, Bytes)]) -> usize {
    entries.iter().map(|(_, blob)| blob::count(blob)).sum()
}

fn damaged(at: &Partition, id: RecordId) -> Error {
    Error::corrupt(format!(
        "the entry {id} of partition {at} cannot be understood: did another program write it?"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_or_big_blobs_are_read_the_careful_way() {
        let sizes = Sizes::default();
        assert_eq!(sizes.entries_for(100, 1 << 20), None);
        sizes.learn(1000, 10, 10);
        assert_eq!(sizes.entries_for(100, 1 << 20), Some(100));
        assert_eq!(sizes.entries_for(2000, 1 << 20), None);
        sizes.forget();
        assert_eq!(sizes.entries_for(1, 1 << 20), None);
    }

    #[test]
    fn what_was_learned_long_ago_does_not_count() {
        let born = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let sizes = Sizes { born, ..Sizes::default() };
        sizes.learn(1000, 10, 10);
        assert!(sizes.entries_for(1, 1 << 20).is_some());
        sizes.learned_ms.store(9_000, Ordering::Relaxed);
        assert_eq!(sizes.entries_for(1, 1 << 20), None, "bigger ones may have come");
    }

    #[test]
    fn full_blobs_need_fewer_entries() {
        let sizes = Sizes::default();
        (0..20).for_each(|_| sizes.learn(4000, 10, 150));
        let entries = sizes.entries_for(150, 1 << 20).unwrap();
        assert!((10..=12).contains(&entries), "{entries}");
    }
}

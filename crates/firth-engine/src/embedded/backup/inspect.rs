//! What a store or a backup holds, value by value: everything decodes, nothing is missing, and the
//! counters agree with what they count.

use crate::embedded::claim_shard_values::{ClaimShardMeta, MemberEntry, OfferEntry};
use crate::embedded::file::Opened;
use crate::embedded::keys::{self, Space};
use crate::embedded::step::{KeyView, Range};
use crate::embedded::values::{
    Cancelled, CatalogEntry, DeadEntry, DueEntry, GroupMeta, KeptClock, LeaseEntry, PartitionMeta,
    ProducerState, Value,
};
use crate::error::{Error, Result};
use crate::facet::SourceMark;
use crate::id::RecordId;
use crate::name::{GroupName, Partition};
use crate::record::Content;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Records that are read one by one after a damaged place, before a scan is tried again.
const ONE_BY_ONE: u64 = 512;

/// A group, as the state has it.
pub(super) struct KnownGroup {
    pub(super) partition: u64,
    pub(super) name: GroupName,
    pub(super) meta: GroupMeta,
}

/// The partitions and groups of a store, and what was counted beside them.
#[derive(Default)]
pub(super) struct State {
    pub(super) entries: u64,
    pub(super) partitions: BTreeMap<Partition, PartitionMeta>,
    pub(super) groups: HashMap<u64, KnownGroup>,
    /// How many entries of a kind a number has.
    counts: HashMap<(u8, u64), u64>,
    /// What is wrong, with the number of the partition or group, if it belongs to one.
    pub(super) wrong: Vec<(Option<u64>, String)>,
}

impl State {
    /// Reads the whole state of a store.
    pub(super) fn read(opened: &Opened) -> Result<Self> {
        let mut state = Self::default();
        let range = Range { from: Vec::new(), to: vec![u8::MAX; 32] };
        opened.scan(Space::State, range, &mut |key, value| {
            state.take(key, &value);
            Ok(true)
        })?;
        Ok(state)
    }

    /// Takes one entry in.
    pub(super) fn take(&mut self, key: &[u8], value: &Bytes) {
        self.entries += 1;
        let number = keys::number_at(key, 1);
        if let (Some(kind), Some(number)) = (key.first(), number) {
            *self.counts.entry((*kind, number)).or_default() += 1;
        }
        if let Err(error) = self.decode(key, value.clone()) {
            let owner = number.filter(|_| keys::SWEPT.contains(&key.first().copied().unwrap_or(0)));
            self.wrong.push((owner, error.context().to_owned()));
        }
    }

    fn decode(&mut self, key: &[u8], value: Bytes) -> Result<()> {
        match key {
            b"n" => KeptClock::read(value).map(drop),
            [b'p', ..] => {
                let name = keys::partition_name(key)
                    .ok_or_else(|| Error::corrupt("a partition's key is damaged"))?;
                self.partitions.insert(name, PartitionMeta::read(value)?);
                Ok(())
            }
            [b'g', ..] => {
                let name = keys::group_name(key).zip(keys::number_at(key, 1));
                let (name, partition) = name.ok_or_else(|| Error::corrupt("a group's key is damaged"))?;
                let meta = GroupMeta::read(value)?;
                self.groups.insert(meta.no, KnownGroup { partition, name, meta });
                Ok(())
            }
            [b'd' | b'k', ..] => match DueEntry::read(value)?.kept {
                Some(kept) => Content::unpack(kept).map(drop),
                None => Ok(()),
            },
            [b'x', ..] => Content::unpack(DeadEntry::read(value)?.content).map(drop),
            [b'y', ..] => Content::unpack(value.slice(8.min(value.len())..)).map(drop),
            [b'a', ..] => Cancelled::read(value).map(drop),
            [b'q', ..] => ProducerState::read(value).map(drop),
            [b'm', ..] => SourceMark::read(value).map(drop),
            [b'l', ..] => LeaseEntry::read(value).map(drop),
            [b'#' | b'e' | b'h' | b's', ..] => u64::read(value).map(drop),
            [b'c', ..] => CatalogEntry::read(value).map(drop),
            [b'b', b'm', ..] => ClaimShardMeta::read(value).map(drop),
            [b'b', b'w', ..] => MemberEntry::read(value).map(drop),
            [b'b', b'o', ..] => OfferEntry::read(value).map(drop),
            _ => Ok(()),
        }
    }

    fn count(&self, kind: u8, number: u64) -> u64 {
        self.counts.get(&(kind, number)).copied().unwrap_or(0)
    }

    /// What is wrong with a partition and its groups, apart from its records.
    pub(super) fn findings(&self, meta: &PartitionMeta) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        let mut holds = |holds: bool, what: String| {
            if !holds {
                found.push(what);
            }
        };
        let (trimmed, last) = (meta.trimmed.seq, meta.last.seq);
        holds(trimmed <= last, format!("record {trimmed} is trimmed, and {last} is the last one"));
        agrees(&mut holds, "delayed messages", meta.delayed, self.count(b'y', meta.no));
        agrees(&mut holds, "producers", meta.producers, self.count(b'q', meta.no));
        for group in self.groups.values().filter(|group| group.partition == meta.no) {
            let KnownGroup { name, meta: GroupMeta { no, frontier, ahead, due, dead, .. }, .. } = group;
            holds(
                frontier.seq <= last,
                format!("group {name} has settled record {}, which is not there", frontier.seq),
            );
            let (first, end) = ahead.bounds().unwrap_or((frontier.seq + 1, last));
            let is_ahead = first > frontier.seq && end <= last.max(frontier.seq);
            holds(is_ahead, format!("group {name} has settled records that are not there"));
            let waiting = self.count(b'd', *no) + self.count(b'k', *no);
            agrees(&mut holds, &format!("due records of group {name}"), *due, waiting);
            agrees(&mut holds, &format!("dead letters of group {name}"), *dead, self.count(b'x', *no));
            let marked = self.count(b't', *no) + self.count(b'w', *no);
            agrees(&mut holds, &format!("marks of due records of group {name}"), waiting, marked);
        }
        for (number, what) in &self.wrong {
            let is_mine = number.is_some_and(|number| {
                number == meta.no || self.groups.get(&number).is_some_and(|group| group.partition == meta.no)
            });
            holds(!is_mine, what.clone());
        }
        found
    }
}

fn agrees(holds: &mut impl FnMut(bool, String), what: &str, counted: u64, there: u64) {
    holds(counted == there, format!("{counted} {what} are counted, {there} are there"));
}

/// What became of the records of one partition.
#[derive(Debug, Default)]
pub(super) struct LogFigures {
    pub(super) readable: u64,
    pub(super) unreadable: u64,
    /// The newest record that cannot be read; 0 if all can.
    pub(super) last_unreadable: u64,
    pub(super) bytes: u64,
    pub(super) findings: Vec<String>,
}

/// Reads every record of a partition, and goes on behind damaged places. `each` gets what is
/// readable.
pub(super) fn read_log(
    view: &Opened,
    meta: &PartitionMeta,
    each: &mut dyn FnMut(RecordId, Bytes) -> Result<()>,
) -> Result<LogFigures> {
    let mut log =
        LogReading { next: meta.trimmed.seq + 1, newest: meta.trimmed, figures: LogFigures::default() };
    let last = meta.last.seq;
    while log.next <= last {
        let range = Range { from: keys::record(log.next), to: keys::record(last + 1) };
        let mut stopped = None;
        let scanned = unpanicked(|| {
            view.scan(Space::Log(meta.no), range.clone(), &mut |key, value| {
                let seq = keys::number_at(key, 0).unwrap_or_default();
                log.lose_until(seq);
                stopped = log.take(seq, value, each).err();
                Ok(stopped.is_none())
            })
        });
        if let Some(error) = stopped {
            return Err(error);
        }
        if scanned.is_ok() {
            log.lose_until(last + 1);
            break;
        }
        // The scan may fail on what comes later, so the next records are read one by one.
        let end = (log.next + ONE_BY_ONE).min(last + 1);
        for seq in log.next..end {
            match unpanicked(|| view.get(Space::Log(meta.no), &keys::record(seq))) {
                Ok(Some(value)) => log.take(seq, value, each)?,
                _ => log.lose_until(seq + 1),
            }
        }
    }
    if log.newest.ms > meta.last.ms {
        log.figures.findings.push("a record is newer than the last one".to_owned());
    }
    Ok(log.figures)
}

struct LogReading {
    next: u64,
    newest: RecordId,
    figures: LogFigures,
}

impl LogReading {
    /// Everything before `seq` that was not read is lost.
    fn lose_until(&mut self, seq: u64) {
        if seq > self.next {
            self.figures.unreadable += seq - self.next;
            self.figures.last_unreadable = seq - 1;
            self.next = seq;
        }
    }

    fn take(
        &mut self,
        seq: u64,
        value: Bytes,
        each: &mut dyn FnMut(RecordId, Bytes) -> Result<()>,
    ) -> Result<()> {
        let ms = keys::number_at(&value, 0);
        let id = ms.filter(|_| is_readable(&value)).map(|ms| RecordId::new(ms, seq));
        let Some(id) = id else {
            self.lose_until(seq + 1);
            return Ok(());
        };
        if id.ms < self.newest.ms && self.figures.findings.is_empty() {
            self.figures.findings.push(format!("record {seq} is older than the one before it"));
        }
        self.newest = id;
        self.next = seq + 1;
        self.figures.readable += 1;
        self.figures.bytes += value.len() as u64;
        each(id, value)
    }
}

/// Whether a stored record can be read.
pub(super) fn is_readable(value: &Bytes) -> bool {
    value.len() >= 8 && Content::unpack(value.slice(8..)).is_ok()
}

/// Damaged files can trip assertions of the storage library.
fn unpanicked<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(Error::corrupt("stored data cannot be read")))
}

//! Appending, reading and promotion.
//!
//! A record is stored as `ms` (8 bytes, big-endian) and its packed content, under its `seq`.

use super::marks;
use super::producer::{self, Judgement};
use crate::durability::Durability;
use crate::embedded::hooks::Mutation;
use crate::embedded::keys::{self, Space};
use crate::embedded::step::{Range, Step, Write};
use crate::embedded::values::{PartitionMeta, SentBatch};
use crate::error::{Error, Result};
use crate::facet::{Appended, Bounds, NewMark, ProducerSeq, Promoted, ReadLimit};
use crate::id::RecordId;
use crate::limits::{MAX_BATCH, MAX_BATCH_BYTES, MAX_READ};
use crate::name::Partition;
use crate::record::{Content, Record};
use crate::watch::HintKey;
use bytes::Bytes;
use std::time::Duration;

/// A batch whose records are packed already (by the caller's task, outside the serial part), each
/// with room for its `ms`.
pub(in crate::embedded) struct PackedAppend {
    pub(in crate::embedded) records: Vec<Vec<u8>>,
    pub(in crate::embedded) after: Duration,
    pub(in crate::embedded) producer: Option<ProducerSeq>,
    pub(in crate::embedded) mark: Option<NewMark>,
    pub(in crate::embedded) durability: Option<Durability>,
}

/// Packs content with room for its `ms`.
pub(in crate::embedded) fn pack(content: &Content) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + content.packed_len());
    out.extend_from_slice(&[0; 8]);
    content.pack(&mut out);
    out
}

pub(in crate::embedded) fn append(
    step: &mut Step<'_>,
    at: &Partition,
    batch: PackedAppend,
) -> Result<Appended> {
    step.batch.durability = batch.durability;
    let mut part = step.partition(at)?;
    let count = batch.records.len() as u64;
    if let Some(mark) = &batch.mark {
        let duplicate = !marks::note(step, at, part.no, mark)?;
        if duplicate || count == 0 {
            return Ok(Appended { first: None, count, duplicate });
        }
    }
    let state = match &batch.producer {
        None => None,
        Some(seq) => match producer::check(step, part.no, seq, count)? {
            Judgement::Duplicate(appended) => return Ok(appended),
            Judgement::New(state) => Some((seq, state)),
        },
    };
    let first = if batch.after.is_zero() || step.planted(Mutation::NoDelay) {
        Some(write_records(step, at, &mut part, batch.records))
    } else {
        delay_records(step, &mut part, batch.records, batch.after);
        step.hint(HintKey::Log(at.clone()));
        None
    };
    if let Some((seq, state)) = state {
        let sent = SentBatch { first: seq.first, count, id: first.unwrap_or(RecordId::ZERO) };
        producer::remember(step, &mut part, seq, state, sent)?;
    }
    step.store(keys::partition(at), &part);
    Ok(Appended { first, count, duplicate: false })
}

/// Puts records at the end of the log; answers the first one's id.
pub(super) fn write_records(
    step: &mut Step<'_>,
    at: &Partition,
    part: &mut PartitionMeta,
    mut records: Vec<Vec<u8>>,
) -> RecordId {
    let first = RecordId::new(step.now.ms().max(part.last.ms), part.last.seq + 1);
    part.last = RecordId::new(first.ms, part.last.seq + records.len() as u64);
    if step.planted(Mutation::HalfBatch) {
        let half = records.len().div_ceil(2);
        records.truncate(half);
        part.last.seq = first.seq + half as u64 - 1;
    }
    for (offset, mut record) in records.into_iter().enumerate() {
        record[..8].copy_from_slice(&first.ms.to_be_bytes());
        let key = keys::record(first.seq + offset as u64);
        step.batch.writes.push(Write { space: Space::Log(part.no), key, value: Some(record.into()) });
    }
    step.hint(HintKey::Log(at.clone()));
    first
}

fn delay_records(step: &mut Step<'_>, part: &mut PartitionMeta, records: Vec<Vec<u8>>, after: Duration) {
    let ms = step.now.later_ms(after);
    for record in records {
        part.delayed += 1;
        part.delayed_ever += 1;
        step.store_raw(keys::delayed(part.no, ms, part.delayed_ever), record.into());
    }
}

pub(in crate::embedded) fn promote_due(step: &mut Step<'_>, at: &Partition, max: usize) -> Result<Promoted> {
    let mut part = step.partition(at)?;
    let now_ms = step.now.ms();
    let max = max.clamp(1, MAX_BATCH);
    let mut ripe = Vec::new();
    let mut bytes = 0;
    let mut next = None;
    step.scan(Range::prefix(keys::numbered(b'y', part.no)), &mut |key, value| {
        let ms =
            keys::number_at(key, 9).ok_or_else(|| Error::corrupt("a delayed message has a damaged key"))?;
        if ms > now_ms || ripe.len() == max || (bytes > 0 && bytes + value.len() > MAX_BATCH_BYTES) {
            next = Some(ms);
            return Ok(false);
        }
        bytes += value.len();
        ripe.push((key.to_vec(), Vec::from(value)));
        Ok(true)
    })?;
    let moved = ripe.len();
    if moved > 0 {
        let (old, records): (Vec<_>, Vec<_>) = ripe.into_iter().unzip();
        if !step.planted(Mutation::PromoteTwice) {
            old.into_iter().for_each(|key| step.remove(key));
            part.delayed -= moved as u64;
        }
        write_records(step, at, &mut part, records);
        step.store(keys::partition(at), &part);
    }
    Ok(Promoted { moved, next: next.map(|ms| step.now.until(ms)) })
}

pub(in crate::embedded) fn read(
    step: &Step<'_>,
    at: &Partition,
    after: RecordId,
    max: ReadLimit,
) -> Result<Vec<Record>> {
    let part = step.partition(at)?;
    let is_later =
        after.names_a_record() && stored(step, &part, after.seq)?.is_some_and(|(id, _)| id > after);
    if is_later || after.names_a_record() && after > part.last {
        return Err(Error::went_back(at, after, part.last));
    }
    let from = position_after(step, &part, after)? + 1;
    let mut records = Vec::with_capacity(max.records.clamp(1, 128));
    let limit = max.records.clamp(1, MAX_READ);
    let mut bytes = 0;
    let range = Range { from: keys::record(from), to: keys::record(u64::MAX) };
    step.view.scan(Space::Log(part.no), range, &mut |key, value| {
        bytes += value.len();
        if !records.is_empty() && bytes > max.bytes {
            return Ok(false);
        }
        records.push(unpack(key, value)?);
        Ok(records.len() < limit)
    })?;
    Ok(records)
}

fn unpack(key: &[u8], value: Bytes) -> Result<Record> {
    let seq = keys::number_at(key, 0).ok_or_else(|| Error::corrupt("a record has a damaged key"))?;
    let (id, content) = split(seq, value)?;
    Ok(Record { id, attempt: 1, crashes: 0, content: Content::unpack(content)? })
}

/// A stored record as its id and its packed content.
pub(super) fn split(seq: u64, value: Bytes) -> Result<(RecordId, Bytes)> {
    let ms = keys::number_at(&value, 0).ok_or_else(|| Error::corrupt("a stored record is damaged"))?;
    Ok((RecordId::new(ms, seq), value.slice(8..)))
}

/// The record with this number: its id and packed content, unless it is trimmed or not yet there.
pub(super) fn stored(step: &Step<'_>, part: &PartitionMeta, seq: u64) -> Result<Option<(RecordId, Bytes)>> {
    if seq <= part.trimmed.seq || seq > part.last.seq {
        return Ok(None);
    }
    step.view.get(Space::Log(part.no), &keys::record(seq))?.map(|value| split(seq, value)).transpose()
}

/// The id of a record that must be there.
pub(super) fn id_of(step: &Step<'_>, part: &PartitionMeta, seq: u64) -> Result<RecordId> {
    match seq {
        _ if seq == part.last.seq => Ok(part.last),
        _ if seq == part.trimmed.seq => Ok(part.trimmed),
        _ => stored(step, part, seq)?.map(|(id, _)| id).ok_or_else(|| {
            Error::corrupt(format!("record {seq} is missing from the log: see `firth check`"))
        }),
    }
}

/// The number of the last record at or before `id`, at least that of the last trimmed one.
///
/// An id from this log is its own answer; only positions in time need the search.
pub(super) fn position_after(step: &Step<'_>, part: &PartitionMeta, id: RecordId) -> Result<u64> {
    if id <= part.trimmed {
        return Ok(part.trimmed.seq);
    }
    if id >= part.last {
        return Ok(part.last.seq);
    }
    if stored(step, part, id.seq)?.is_some_and(|(found, _)| found == id) {
        return Ok(id.seq);
    }
    last_where(step, part, |record| record <= id)
}

/// The number of the last record for which `holds` is true, where it holds for a first part of the
/// log only.
pub(super) fn last_where(
    step: &Step<'_>,
    part: &PartitionMeta,
    holds: impl Fn(RecordId) -> bool,
) -> Result<u64> {
    let mut low = part.trimmed.seq;
    let mut high = part.last.seq;
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(id_of(step, part, middle)?) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(low)
}

pub(in crate::embedded) fn bounds(step: &Step<'_>, at: &Partition) -> Result<Bounds> {
    let part = step.partition(at)?;
    let first = step.first_key(Range::prefix(keys::numbered(b'y', part.no)))?;
    let next_ripe = first.and_then(|key| keys::number_at(&key, 9)).map(|ms| step.now.until(ms));
    Ok(Bounds { trimmed: part.trimmed, last: part.last, delayed: part.delayed, next_ripe })
}

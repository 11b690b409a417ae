//! Due records: entries by id (by reference or with their content), an index by time, and marks.
//! The index has the records that the owner has not taken; the marks name those that it has. Every
//! change of a due record goes through here, so the three always agree.

use super::leases::fence;
use super::log::stored;
use crate::embedded::keys;
use crate::embedded::step::{Range, Step};
use crate::embedded::values::{DueEntry, GroupMeta, PartitionMeta, Value};
use crate::error::{Error, Result};
use crate::facet::{Due, DueRecord, Pending};
use crate::failures::Failures;
use crate::hold::{Hold, LeaseName};
use crate::id::RecordId;
use crate::limits::{MAX_BATCH_BYTES, MAX_READ};
use crate::name::{GroupName, Partition};
use crate::record::Content;
use bytes::Bytes;
use std::collections::HashSet;
use std::time::Duration;

/// The entry of a due record, whichever way it is stored.
pub(super) fn find(step: &Step<'_>, group: u64, id: RecordId) -> Result<Option<DueEntry>> {
    match step.load(&keys::due(group, id, false))? {
        Some(entry) => Ok(Some(entry)),
        None => step.load(&keys::due(group, id, true)),
    }
}

/// Writes an entry and its mark: taken, or in the index by time.
pub(super) fn write(step: &mut Step<'_>, group: u64, id: RecordId, entry: &DueEntry) {
    step.store(keys::due(group, id, entry.kept.is_some()), entry);
    let mark = if entry.taken { keys::taken(group, id) } else { keys::due_time(group, entry.ms, id) };
    step.store_raw(mark, Bytes::new());
}

/// Removes an entry and its mark.
pub(super) fn erase(step: &mut Step<'_>, group: u64, id: RecordId, entry: &DueEntry) {
    step.remove(keys::due(group, id, entry.kept.is_some()));
    step.remove(if entry.taken { keys::taken(group, id) } else { keys::due_time(group, entry.ms, id) });
}

/// Time until the next record that the owner has not taken is due.
pub(super) fn next(step: &Step<'_>, group: u64) -> Result<Option<Duration>> {
    let key = step.first_key(Range::prefix(keys::numbered(b't', group)))?;
    Ok(key.and_then(|key| keys::number_at(&key, 9)).map(|ms| step.now.until(ms)))
}

/// Gives everything that was taken back to the index, due at once; `crashed` owners are counted.
pub(super) fn give_back(step: &mut Step<'_>, group: u64, crashed: bool) -> Result<()> {
    for (id, entry) in taken(step, group)? {
        step.remove(keys::taken(group, id));
        let crashes = entry.crashes + u32::from(crashed);
        write(step, group, id, &DueEntry { ms: step.now.ms(), taken: false, crashes, ..entry });
    }
    Ok(())
}

fn taken(step: &Step<'_>, group: u64) -> Result<Vec<(RecordId, DueEntry)>> {
    let mut found = Vec::new();
    step.scan(Range::prefix(keys::numbered(b'w', group)), &mut |key, _| {
        let id = keys::id_at_end(key).ok_or_else(|| Error::corrupt("a due record has a damaged key"))?;
        if let Some(entry) = find(step, group, id)? {
            found.push((id, entry));
        }
        Ok(true)
    })?;
    Ok(found)
}

/// Takes up to `max` of what is due, for the owner, without the content of what it knows.
pub(in crate::embedded) fn take(
    step: &mut Step<'_>,
    at: &Partition,
    group: &GroupName,
    hold: &Hold,
    (max, known): (usize, &HashSet<RecordId>),
) -> Result<Due> {
    (step.batch.relaxed, step.batch.frugal) = (true, true);
    let part = step.partition(at)?;
    fence(step, hold, &LeaseName::group(at, group))?;
    let mut meta = step.group(at, part.no, group)?;
    let (ripe, next) = ripe(step, meta.no, max.clamp(1, MAX_READ))?;
    let mut due = Due { next: next.map(|ms| step.now.until(ms)), ..Due::default() };
    let mut bytes = 0;
    for (ms, id) in ripe {
        let Some(entry) = find(step, meta.no, id)? else {
            return Err(Error::corrupt("the index of due records names one that is missing"));
        };
        let is_known = known.contains(&id) && id.seq > part.trimmed.seq;
        let packed = if is_known { Some(Bytes::new()) } else { content(step, &part, id, &entry)? };
        let Some(packed) = packed else {
            due.lost += 1;
            meta.due -= 1;
            erase(step, meta.no, id, &entry);
            continue;
        };
        bytes += packed.len();
        if bytes > MAX_BATCH_BYTES && !due.records.is_empty() {
            due.next = Some(Duration::ZERO);
            break;
        }
        let content = if is_known { None } else { Some(Content::unpack(packed)?) };
        let record = DueRecord { id, attempt: entry.attempt, crashes: entry.crashes, content };
        step.remove(keys::due_time(meta.no, ms, id));
        write(step, meta.no, id, &DueEntry { taken: true, ms: step.now.ms(), ..entry });
        due.records.push(record);
    }
    if due.lost > 0 {
        step.store(keys::group(part.no, group), &meta);
    }
    Ok(due)
}

type ByTime = (u64, RecordId);

/// Up to `max` ids whose time has come, and the time of the one after them.
fn ripe(step: &Step<'_>, group: u64, max: usize) -> Result<(Vec<ByTime>, Option<u64>)> {
    let mut ripe = Vec::new();
    let mut next = None;
    let now_ms = step.now.ms();
    step.scan(Range::prefix(keys::numbered(b't', group)), &mut |key, _| {
        let time = keys::number_at(key, 9).zip(keys::id_at_end(key));
        let (ms, id) = time.ok_or_else(|| Error::corrupt("a due record has a damaged key"))?;
        if ms > now_ms || ripe.len() == max {
            next = Some(ms);
            return Ok(false);
        }
        ripe.push((ms, id));
        Ok(true)
    })?;
    Ok((ripe, next))
}

/// The packed content of a due record; `None` if a lossy trim removed it.
fn content(step: &Step<'_>, part: &PartitionMeta, id: RecordId, entry: &DueEntry) -> Result<Option<Bytes>> {
    match &entry.kept {
        Some(kept) => Ok(Some(kept.clone())),
        None => Ok(stored(step, part, id.seq)?.map(|(_, packed)| packed)),
    }
}

/// All due records of a group in the order of their ids, after `after`.
pub(in crate::embedded) fn pending(
    step: &Step<'_>,
    at: &Partition,
    group: &GroupName,
    after: RecordId,
    max: usize,
) -> Result<Vec<Pending>> {
    let part = step.partition(at)?;
    let meta = step.group(at, part.no, group)?;
    let max = max.clamp(1, MAX_READ);
    let mut found = entries(step, &meta, false, after, max)?;
    found.extend(entries(step, &meta, true, after, max)?);
    found.sort_by_key(|(id, _)| *id);
    found.truncate(max);
    let view = |(id, entry): (RecordId, DueEntry)| Pending {
        id,
        attempt: entry.attempt,
        crashes: entry.crashes,
        due_in: (!entry.taken).then(|| step.now.until(entry.ms)),
        age: step.now.since(id.ms),
        idle: entry.taken.then(|| step.now.since(entry.ms)),
        reason: Failures::read(&entry.failures, step.now.ms()).reason,
        kept: entry.kept.is_some(),
    };
    Ok(found.into_iter().map(view).collect())
}

/// Entries of one way of storing, after `after`.
pub(super) fn entries(
    step: &Step<'_>,
    meta: &GroupMeta,
    kept: bool,
    after: RecordId,
    max: usize,
) -> Result<Vec<(RecordId, DueEntry)>> {
    let kind = if kept { b'k' } else { b'd' };
    let range = Range::prefix_after(keys::numbered(kind, meta.no), keys::due(meta.no, after, kept));
    let mut found = Vec::new();
    step.scan(range, &mut |key, value| {
        let id = keys::id_at_end(key).ok_or_else(|| Error::corrupt("a due record has a damaged key"))?;
        found.push((id, DueEntry::read(value)?));
        Ok(found.len() < max)
    })?;
    Ok(found)
}

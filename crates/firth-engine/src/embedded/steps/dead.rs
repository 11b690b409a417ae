//! Dead letters: looked at, taken back, deleted.

use super::due;
use super::log::write_records;
use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Range, Step};
use crate::embedded::values::{DeadEntry, DueEntry, GroupMeta, PartitionMeta, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::facet::{DeadLetter, Replay};
use crate::failures::Failures;
use crate::id::RecordId;
use crate::limits::{MAX_BATCH_BYTES, MAX_DUE, MAX_READ};
use crate::name::{GroupName, Partition};
use crate::record::{Content, Origin};
use crate::watch::HintKey;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;

/// How many dead letters one expiry removes.
const EXPIRE: usize = 1000;

pub(in crate::embedded) fn list(
    step: &Step<'_>,
    at: &Partition,
    group: &GroupName,
    after: RecordId,
    max: usize,
) -> Result<Vec<DeadLetter>> {
    let part = step.partition(at)?;
    let meta = step.group(at, part.no, group)?;
    let max = max.clamp(1, MAX_READ);
    let mut found = Vec::new();
    let mut bytes = 0;
    let range = Range::prefix_after(keys::numbered(b'x', meta.no), keys::dead(meta.no, after));
    step.scan(range, &mut |key, value| {
        bytes += value.len();
        let (id, entry) = read(key, value)?;
        let Failures { reason, attempts: history } = Failures::read(&entry.failures, step.now.ms());
        found.push(DeadLetter {
            at: at.clone(),
            group: group.clone(),
            id,
            content: Content::unpack(entry.content)?,
            attempts: entry.attempts,
            crashes: entry.crashes,
            reason,
            history,
            age: step.now.since(entry.ms),
        });
        Ok(found.len() < max && bytes < MAX_BATCH_BYTES)
    })?;
    Ok(found)
}

pub(in crate::embedded) fn list_ids(
    step: &Step<'_>,
    at: &Partition,
    group: &GroupName,
    after: RecordId,
    max: usize,
) -> Result<Vec<RecordId>> {
    let part = step.partition(at)?;
    let meta = step.group(at, part.no, group)?;
    let mut found = Vec::new();
    let max = max.clamp(1, MAX_READ);
    let range = Range::prefix_after(keys::numbered(b'x', meta.no), keys::dead(meta.no, after));
    step.scan(range, &mut |key, _| {
        found.push(id_of(key)?);
        Ok(found.len() < max)
    })?;
    Ok(found)
}

fn id_of(key: &[u8]) -> Result<RecordId> {
    keys::id_at_end(key).ok_or_else(|| Error::corrupt("a dead letter has a damaged key"))
}

fn read(key: &[u8], value: bytes::Bytes) -> Result<(RecordId, DeadEntry)> {
    let id = id_of(key)?;
    Ok((id, DeadEntry::read(value)?))
}

/// Writes a dead letter, also to those by time.
pub(super) fn write(step: &mut Step<'_>, group: u64, id: RecordId, letter: &DeadEntry) {
    step.store(keys::dead(group, id), letter);
    step.store_raw(keys::dead_time(group, letter.ms, id), Bytes::new());
}

/// Removes a dead letter.
pub(super) fn erase(step: &mut Step<'_>, group: u64, id: RecordId, letter: &DeadEntry) {
    step.remove(keys::dead(group, id));
    step.remove(keys::dead_time(group, letter.ms, id));
}

/// Dead letters to take back; `edited` stands in for the content of each.
pub(in crate::embedded) struct Taken {
    pub(in crate::embedded) ids: Vec<RecordId>,
    pub(in crate::embedded) edited: Option<Bytes>,
    pub(in crate::embedded) to: Replay,
}

pub(in crate::embedded) fn replay(
    step: &mut Step<'_>,
    at: &Partition,
    group: &GroupName,
    Taken { ids, edited, to }: Taken,
) -> Result<usize> {
    let mut part = step.partition(at)?;
    let mut meta = step.group(at, part.no, group)?;
    let mut letters = find(step, &meta, &ids)?;
    if let Some(edited) = edited.filter(|_| !step.planted(Mutation::ReplayUnedited)) {
        letters.iter_mut().for_each(|(_, letter)| letter.content = edited.clone());
    }
    let taken = letters.len();
    let to = if step.planted(Mutation::ReplayToAll) { Replay::Everyone } else { to };
    if to == Replay::Group && meta.due + taken as u64 > MAX_DUE {
        return Err(Error::new(
            ErrorKind::Overloaded,
            format!("group {group} has too many records due on {at}"),
        ));
    }
    if !step.planted(Mutation::ReplayKeepsDead) {
        letters.iter().for_each(|(id, letter)| erase(step, meta.no, *id, letter));
        meta.dead -= taken as u64;
    }
    match to {
        Replay::Group => {
            for (id, letter) in letters {
                revive(step, &mut meta, id, letter)?;
            }
            step.hint(HintKey::Log(at.clone()));
        }
        Replay::Everyone => append_again(step, at, &mut part, group, letters)?,
    }
    step.store(keys::group(part.no, group), &meta);
    Ok(taken)
}

/// The dead letters among `ids`, each once, in order.
fn find(step: &Step<'_>, meta: &GroupMeta, ids: &[RecordId]) -> Result<Vec<(RecordId, DeadEntry)>> {
    let ids: BTreeSet<RecordId> = ids.iter().copied().collect();
    let mut found = Vec::new();
    for id in ids {
        found.extend(step.load::<DeadEntry>(&keys::dead(meta.no, id))?.map(|letter| (id, letter)));
    }
    Ok(found)
}

/// Makes a dead letter due at once for its own group, with its content kept aside. After a reset
/// its record may be waiting or due again; then it comes anyway, and must not be in two places.
fn revive(step: &mut Step<'_>, meta: &mut GroupMeta, id: RecordId, letter: DeadEntry) -> Result<()> {
    let is_waiting = id.seq > meta.frontier.seq && !meta.ahead.contains(id.seq);
    if is_waiting || due::find(step, meta.no, id)?.is_some() {
        return Ok(());
    }
    let entry = DueEntry {
        ms: step.now.ms(),
        attempt: 1,
        crashes: 0,
        taken: false,
        failures: letter.failures,
        kept: Some(letter.content),
    };
    meta.due += 1;
    due::write(step, meta.no, id, &entry);
    Ok(())
}

fn append_again(
    step: &mut Step<'_>,
    at: &Partition,
    part: &mut PartitionMeta,
    group: &GroupName,
    letters: Vec<(RecordId, DeadEntry)>,
) -> Result<()> {
    if letters.is_empty() {
        return Ok(());
    }
    let mut records = Vec::with_capacity(letters.len());
    for (id, letter) in letters {
        let mut content = Content::unpack(letter.content)?;
        content.origin.get_or_insert_with(|| Box::new(Origin { at: at.clone(), id, group: group.clone() }));
        records.push(super::log::pack(&content));
    }
    write_records(step, at, part, records);
    step.store(keys::partition(at), part);
    Ok(())
}

pub(in crate::embedded) fn delete(
    step: &mut Step<'_>,
    at: &Partition,
    group: &GroupName,
    ids: &[RecordId],
) -> Result<usize> {
    let part = step.partition(at)?;
    let meta = step.group(at, part.no, group)?;
    let found = find(step, &meta, ids)?.into_iter().map(|(id, letter)| (letter.ms, id)).collect();
    Ok(remove(step, &part, group, meta, found))
}

/// Removes letters by their age. It looks at those that have died first, and at no content: this
/// runs on the one thread that writes.
pub(in crate::embedded) fn expire(
    step: &mut Step<'_>,
    at: &Partition,
    group: &GroupName,
    age: Duration,
) -> Result<usize> {
    let part = step.partition(at)?;
    let meta = step.group(at, part.no, group)?;
    let mut old = Vec::new();
    step.scan(Range::prefix(keys::numbered(b'v', meta.no)), &mut |key, _| {
        let died = keys::number_at(key, 9).zip(keys::id_at_end(key));
        let (ms, id) = died.ok_or_else(|| Error::corrupt("a dead letter has a damaged key"))?;
        let is_old = step.now.since(ms) > age;
        if is_old {
            old.push((ms, id));
        }
        Ok(is_old && old.len() < EXPIRE)
    })?;
    Ok(remove(step, &part, group, meta, old))
}

fn remove(
    step: &mut Step<'_>,
    part: &PartitionMeta,
    group: &GroupName,
    mut meta: GroupMeta,
    letters: Vec<(u64, RecordId)>,
) -> usize {
    step.batch.frugal = true;
    let count = letters.len();
    for (ms, id) in letters {
        step.remove(keys::dead(meta.no, id));
        step.remove(keys::dead_time(meta.no, ms, id));
    }
    if count > 0 {
        meta.dead -= count as u64;
        step.store(keys::group(part.no, group), &meta);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::hooks::Hooks;
    use crate::embedded::keys::Space;
    use crate::embedded::memory::MemoryStore;
    use crate::embedded::step::{Batch, Each, KeyView, Now};
    use crate::name::TopicName;
    use std::cell::Cell;

    /// Counts the bytes that scans look at.
    struct Counted<'a>(&'a MemoryStore, Cell<usize>);

    impl KeyView for Counted<'_> {
        fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>> {
            self.0.get(space, key)
        }

        fn scan(&self, space: Space, range: Range, each: &mut Each<'_>) -> Result<()> {
            self.0.scan(space, range, &mut |key, value| {
                self.1.set(self.1.get() + key.len() + value.len());
                each(key, value)
            })
        }
    }

    #[test]
    fn q08_expiry_looks_at_no_letter_that_is_young() {
        let at = Partition::new(TopicName::new("t").unwrap(), 0);
        let group = GroupName::new("g").unwrap();
        let hooks = Hooks::default();
        let mut store = MemoryStore::default();
        let change = |store: &mut MemoryStore, change: &dyn Fn(&mut Step<'_>)| {
            let mut step = Step::new(&*store, Now { us: 0 }, &hooks);
            change(&mut step);
            let mut batch: Batch = step.batch;
            store.apply(&mut batch);
        };
        change(&mut store, &|step| {
            step.store(keys::partition(&at), &PartitionMeta { no: 1, ..PartitionMeta::default() });
            step.store(keys::group(1, &group), &GroupMeta { no: 2, dead: 500, ..GroupMeta::default() });
            for n in 1..=500 {
                let content = vec![1; 10_000].into();
                let letter =
                    DeadEntry { ms: n * 1000, attempts: 1, crashes: 0, failures: String::new(), content };
                write(step, 2, RecordId::new(1, 1000 - n), &letter);
            }
        });
        let expire = |store: &MemoryStore, age_s: u64| {
            let counted = Counted(store, Cell::new(0));
            let mut step = Step::new(&counted, Now { us: 500_000_000 }, &hooks);
            let removed = expire(&mut step, &at, &group, Duration::from_secs(age_s)).unwrap();
            (removed, step.batch, counted.1.get())
        };
        let (removed, _, seen) = expire(&store, 600);
        assert_eq!(removed, 0);
        assert!(seen < 100, "{seen} bytes were read");
        let (removed, mut batch, seen) = expire(&store, 100);
        assert_eq!((removed, batch.writes.len()), (399, 2 * 399 + 1));
        assert!(seen < 100 * 400, "{seen} bytes were read");
        store.apply(&mut batch);
        assert_eq!(expire(&store, 100).0, 0);
        assert_eq!(expire(&store, 0).0, 100);
    }
}

//! Bringing an older layout up to date, once, when it is opened.
//!
//! | from | to | what changes |
//! |---|---|---|
//! | 1 | 2 | Every log had files of its own from its first record on; since 2 that is what a mark says. |
//! | 2 | 3 | Journals did not say what was synced, and dead letters were not kept by time. |
//!
//! Each step may be cut short and is then repeated: the mark of the directory moves when all is on
//! disk.

use super::file::{FileOptions, Opened};
use super::format;
use super::keys::{self, FORMAT, Space};
use super::recover::write_error;
use super::step::{KeyView, Range, Write};
use super::values::{DeadEntry, Value};
use crate::error::Result;
use fjall::PersistMode;
use std::path::Path;

/// The opened store in the newest layout.
pub(super) fn upgrade(dir: &Path, found: u32, opened: Opened, options: &FileOptions) -> Result<Opened> {
    if found == FORMAT {
        return Ok(opened);
    }
    tracing::info!(from = found, to = FORMAT, dir = %dir.display(), "bringing the data directory up to date");
    if found < 2 {
        mark_own_logs(&opened)?;
    }
    if found < 3 {
        note_deaths(&opened)?;
    }
    opened.persist(PersistMode::SyncAll).map_err(write_error)?;
    drop(opened);
    format::set(dir, FORMAT)?;
    Opened::open(dir, options, true, 0)
}

/// Every log lies in files of its own from the first record on.
fn mark_own_logs(opened: &Opened) -> Result<()> {
    let from_the_first = bytes::Bytes::copy_from_slice(&0_u64.to_be_bytes());
    let mark = |no| Write { space: Space::State, key: keys::moved(no), value: Some(from_the_first.clone()) };
    opened.write(opened.logs().grown().into_iter().map(mark).collect()).map_err(write_error)?;
    Ok(())
}

/// Keeps all dead letters by time, too.
fn note_deaths(opened: &Opened) -> Result<()> {
    const PART: usize = 5_000;
    let mut range = Range::prefix(b"x".to_vec());
    loop {
        let mut writes = Vec::new();
        let mut last = None;
        opened.scan(Space::State, range.clone(), &mut |key, value| {
            if let (Some(group), Some(id)) = (keys::number_at(key, 1), keys::id_at_end(key)) {
                let key = keys::dead_time(group, DeadEntry::read(value)?.ms, id);
                writes.push(Write { space: Space::State, key, value: Some(bytes::Bytes::new()) });
            }
            last = Some(key.to_vec());
            Ok(writes.len() < PART)
        })?;
        let Some(last) = last else { return Ok(()) };
        opened.write(writes).map_err(write_error)?;
        range = Range::prefix_after(b"x".to_vec(), last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::values::{GroupMeta, PartitionMeta};
    use crate::facet::{Append, ReadLimit};
    use crate::{Content, Durability, Engine, GroupName, Partition, RecordId, TopicName};

    /// A directory as format 1 left it: each log in a keyspace of its own, and no mark of it.
    fn format_1(dir: &Path, at: &Partition, payloads: &[&str]) {
        format::set(dir, 1).unwrap();
        let db = fjall::Database::builder(dir.join("store")).open().unwrap();
        let state = db.keyspace("state", Default::default).unwrap();
        let log = db.keyspace("log-1", Default::default).unwrap();
        let last = RecordId::new(1000, payloads.len() as u64);
        let meta = PartitionMeta { no: 1, last, ..PartitionMeta::default() };
        state.insert(keys::partition(at), meta.packed()).unwrap();
        state.insert(keys::counter(), 1_u64.packed()).unwrap();
        for (seq, payload) in (1..).zip(payloads) {
            let mut record = 1000_u64.to_be_bytes().to_vec();
            Content::new(payload.to_string()).pack(&mut record);
            log.insert(keys::record(seq), record).unwrap();
        }
        db.persist(PersistMode::SyncAll).unwrap();
    }

    #[tokio::test]
    async fn q08_dead_letters_of_format_2_expire() {
        let dir = tempfile::tempdir().unwrap();
        let at = Partition::new(TopicName::new("old").unwrap(), 0);
        let name = GroupName::new("g").unwrap();
        format_1(dir.path(), &at, &["a", "b"]);
        format::set(dir.path(), 2).unwrap();
        let db = fjall::Database::builder(dir.path().join("store")).open().unwrap();
        let state = db.keyspace("state", Default::default).unwrap();
        let group =
            GroupMeta { no: 7, dead: 6_000, frontier: RecordId::new(1000, 2), ..GroupMeta::default() };
        state.insert(keys::group(1, &name), group.packed()).unwrap();
        for n in 0..6_000_u64 {
            let content = Content::new("x").packed();
            let letter =
                DeadEntry { ms: 1000 + n, attempts: 1, crashes: 0, failures: String::new(), content };
            state.insert(keys::dead(7, RecordId::new(1, n)), letter.packed()).unwrap();
        }
        db.persist(PersistMode::SyncAll).unwrap();
        drop((db, state));
        let engine = Engine::file(dir.path(), FileOptions::default()).await.unwrap();
        let mut expired = 0;
        while expired < 6_000 {
            let some = engine.expire_dead(&at, &name, std::time::Duration::from_secs(1)).await.unwrap();
            assert!(some > 0, "only {expired} letters expired");
            expired += some;
        }
        assert_eq!(engine.status(&at, &name).await.unwrap().dead, 0);
        engine.close().await.unwrap();
    }

    async fn payloads(engine: &Engine, at: &Partition) -> Vec<bytes::Bytes> {
        let records = engine.read(at, RecordId::ZERO, ReadLimit::records(100)).await.unwrap();
        records.into_iter().map(|record| record.content.payload).collect()
    }

    #[tokio::test]
    async fn a_directory_of_format_1_is_brought_up_to_date() {
        let dir = tempfile::tempdir().unwrap();
        let at = Partition::new(TopicName::new("old").unwrap(), 0);
        format_1(dir.path(), &at, &["a", "b"]);
        let options = || FileOptions { durability: Durability::Fast, ..FileOptions::default() };
        for expected in [&["a", "b"][..], &["a", "b", "c"], &["a", "b", "c", "c"]] {
            let engine = Engine::file(dir.path(), options()).await.unwrap();
            assert_eq!(payloads(&engine, &at).await, expected);
            engine.append(&at, Append::new([Content::new("c")])).await.unwrap();
            engine.close().await.unwrap();
        }
        assert_eq!(format::check(dir.path()).unwrap(), FORMAT);
    }
}

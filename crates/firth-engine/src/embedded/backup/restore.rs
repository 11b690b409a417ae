//! A new data directory made of a backup: built aside, moved into place last.
//!
//! What a restore changes, because the store goes on at another place of its history:
//!
//! | what | becomes |
//! |---|---|
//! | epochs | go on above every epoch that may have been given out since the backup |
//! | owners of partitions | have left: the backup is no crash, so no record counts one |
//! | leases | are over when the store is opened, as after every restart |

use crate::backup::{BackupReader, Block, Progress, StreamHead};
use crate::embedded::directory::{self, RESTORING, STORE};
use crate::embedded::file::{FileOptions, Opened, io_error};
use crate::embedded::format;
use crate::embedded::keys::{self, FORMAT, Space};
use crate::embedded::lock::DirLock;
use crate::embedded::recover::write_error;
use crate::embedded::rescue;
use crate::embedded::step::{KeyView, Range, Write};
use crate::embedded::values::{GroupMeta, Value};
use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Writes that share a batch.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 1 << 20;
/// What is read of the input at once.
const PIECE: usize = 256 << 10;
/// What may lie in a directory that a restore fills.
const HARMLESS: &[&str] = &["firth.lock", "FORMAT", "FORMAT.new", "store.new", RESTORING, "lost+found"];
/// Layouts below this say nothing of where a log lies, and a restore decides that anew.
const LAYS_OUT: u32 = 2;

/// What a restore brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// When the backup was begun.
    pub taken: SystemTime,
    /// Partitions with records, and the records.
    pub partitions: u64,
    /// Records of all partitions.
    pub records: u64,
    /// Entries of the state: partitions, groups, dead letters, delayed messages, claims.
    pub entries: u64,
}

/// Makes the data directory `dir` of a backup. The directory must be missing or empty, and no
/// process may have it open. `progress` hears how far it is.
///
/// The store appears in one step at the end. If the backup is damaged, or the process is killed,
/// nothing of it is there: opening the directory says so, and the next restore begins anew.
pub fn restore(mut input: impl Read, dir: &Path, progress: &mut dyn FnMut(&Progress)) -> Result<Restored> {
    check_empty(dir)?;
    directory::make_dir(dir).map_err(|error| io_error(dir, "cannot make it", error))?;
    let lock = DirLock::acquire(dir)?;
    check_empty(dir)?;
    let aside = dir.join(RESTORING);
    clear(&aside).map_err(|error| io_error(dir, "cannot clear it", error))?;
    let filled = fill(&mut input, &aside, progress);
    let outcome = filled.and_then(|(restored, layout)| {
        format::set(dir, layout.max(LAYS_OUT))?;
        let moved = std::fs::rename(&aside, dir.join(STORE)).and_then(|()| rescue::sync_dir(dir));
        moved.map(|()| restored).map_err(|error| io_error(dir, "cannot move the store into place", error))
    });
    if outcome.is_err() {
        let _ = clear(&aside);
    }
    drop(lock);
    outcome
}

/// Refuses a directory that holds anything of its own.
fn check_empty(dir: &Path) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let entry = entry.map_err(|error| io_error(dir, "cannot look into it", error))?;
        if entry.file_name().to_str().is_none_or(|name| !HARMLESS.contains(&name)) {
            let context = format!(
                "{} is not empty (it has {}): restore into a new directory, or move this one away first",
                dir.display(),
                entry.file_name().display()
            );
            return Err(Error::new(ErrorKind::AlreadyExists, context));
        }
    }
    Ok(())
}

fn clear(aside: &Path) -> std::io::Result<()> {
    if aside.try_exists()? { std::fs::remove_dir_all(aside) } else { Ok(()) }
}

/// Builds the store in `aside`; answers its layout, too.
fn fill(input: &mut impl Read, aside: &Path, progress: &mut dyn FnMut(&Progress)) -> Result<(Restored, u32)> {
    let mut reader = BackupReader::new();
    let mut piece = vec![0; PIECE];
    let mut store = None;
    loop {
        let count = input.read(&mut piece).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("the backup cannot be read ({error})"))
        })?;
        reader.push(&piece[..count]);
        while let Some(block) = reader.block()? {
            check_layout(&reader)?;
            // A file that is no backup leaves no trace.
            let store = match &mut store {
                Some(store) => store,
                none => none.insert(Filling::begin(aside)?),
            };
            store.take(block)?;
        }
        progress(&reader.progress());
        if count == 0 {
            break;
        }
    }
    let totals = reader.finish()?;
    let head = reader.head().unwrap_or(StreamHead { layout: FORMAT, engine_us: 0, wall_ms: 0 });
    let store = store.ok_or_else(|| Error::corrupt("the backup has no content"))?;
    store.end(aside, head)?;
    let restored = Restored {
        taken: UNIX_EPOCH + Duration::from_millis(head.wall_ms),
        partitions: reader.progress().plan.map_or(0, |plan| plan.partitions),
        records: totals.records,
        entries: totals.entries,
    };
    Ok((restored, head.layout))
}

fn check_layout(reader: &BackupReader) -> Result<()> {
    match reader.head() {
        Some(head) if head.layout > FORMAT => {
            let context = format!(
                "the backup is of a store with format {}; this build knows formats up to {FORMAT}: use a newer \
                 build",
                head.layout
            );
            Err(Error::new(ErrorKind::Unsupported, context))
        }
        _ => Ok(()),
    }
}

/// A store that is being filled.
pub(super) struct Filling {
    opened: Opened,
    batch: Vec<Write>,
    bytes: usize,
}

impl Filling {
    pub(super) fn begin(aside: &Path) -> Result<Self> {
        let opened = Opened::open_database(aside, &FileOptions::default(), true).map_err(write_error)?;
        directory::close_to_others(aside).map_err(|error| io_error(aside, "cannot close it", error))?;
        Ok(Self { opened, batch: Vec::new(), bytes: 0 })
    }

    /// Stores a block.
    pub(super) fn take(&mut self, block: Block) -> Result<()> {
        match block {
            Block::Entries(entries) => {
                for (key, value) in entries {
                    self.write(Space::State, key.to_vec(), Some(value))?;
                }
            }
            Block::Changes(changes) => {
                for (key, value) in changes {
                    self.write(Space::State, key.to_vec(), value)?;
                }
            }
            Block::Records { log, records } => {
                for (seq, value) in records {
                    self.write(Space::Log(log), keys::record(seq), Some(value))?;
                }
            }
            Block::Plan(_) | Block::End(_) | Block::Failed(_) => {}
        }
        Ok(())
    }

    pub(super) fn write(&mut self, space: Space, key: keys::Key, value: Option<Bytes>) -> Result<()> {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.batch.push(Write { space, key, value });
        if self.batch.len() < BATCH && self.bytes < BATCH_BYTES {
            return Ok(());
        }
        self.flush()
    }

    /// Writes what waits; a log that has outgrown the shared keyspace moves at its next record.
    fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        let grown = self.opened.write(std::mem::take(&mut self.batch)).map_err(write_error)?;
        grown.into_iter().try_for_each(|no| self.opened.logs().grow(no)).map_err(write_error)
    }

    /// Brings the state into order for its new life, and makes everything durable.
    pub(super) fn end(mut self, aside: &Path, head: StreamHead) -> Result<()> {
        self.flush()?;
        self.raise_epochs(head)?;
        self.let_owners_leave()?;
        self.seal(aside)
    }

    /// Makes everything durable.
    pub(super) fn seal(mut self, aside: &Path) -> Result<()> {
        self.flush()?;
        self.opened.seal().map_err(write_error)?;
        drop(self.opened);
        directory::sync_dirs(aside).map_err(|error| io_error(aside, "cannot be synced", error))
    }

    /// Epochs follow the engine's time, so none that was given out since the backup is above it.
    fn raise_epochs(&mut self, head: StreamHead) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let passed = u64::try_from(now).unwrap_or(u64::MAX).saturating_sub(head.wall_ms.saturating_mul(1000));
        let floor = head.engine_us.saturating_add(passed);
        let known = self.opened.get(Space::State, &keys::gone_epoch())?;
        let known = known.map(u64::read).transpose()?.unwrap_or(0);
        self.write(Space::State, keys::gone_epoch(), Some(floor.max(known).packed()))
    }

    fn let_owners_leave(&mut self) -> Result<()> {
        let mut range = Range::prefix(b"g".to_vec());
        loop {
            let mut found = Vec::new();
            let mut last = None;
            self.opened.scan(Space::State, range, &mut |key, value| {
                let group = GroupMeta::read(value)?;
                if !group.left {
                    found.push((key.to_vec(), GroupMeta { left: true, ..group }.packed()));
                }
                last = Some(key.to_vec());
                Ok(found.len() < BATCH)
            })?;
            for (key, value) in found {
                self.write(Space::State, key, Some(value))?;
            }
            let Some(last) = last else { return Ok(()) };
            range = Range::prefix_after(b"g".to_vec(), last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::{BlockWriter, body_of};
    use crate::codec::{put_number, put_run};
    use crate::embedded::values::{DeadEntry, PartitionMeta};
    use crate::facet::ReadLimit;
    use crate::{Content, Engine, GroupName, Partition, RecordId, TopicName};

    /// A backup of a store with this layout: one partition with two records, and a dead letter that
    /// is not kept by time, as before layout 3.
    fn older(layout: u32, at: &Partition, group: &GroupName) -> Vec<u8> {
        let (mut writer, head) =
            BlockWriter::begin(StreamHead { layout, engine_us: 2_000_000, wall_ms: 2000 });
        let last = RecordId::new(1000, 2);
        let meta = PartitionMeta { no: 1, last, ..PartitionMeta::default() };
        let of_group = GroupMeta { no: 7, dead: 1, frontier: last, ..GroupMeta::default() };
        let content = Content::new("x").packed();
        let letter = DeadEntry { ms: 1000, attempts: 1, crashes: 0, failures: String::new(), content };
        let mut body = Vec::new();
        for (key, value) in [
            (keys::counter(), 7_u64.packed()),
            (keys::group(1, group), of_group.packed()),
            (keys::partition(at), meta.packed()),
            (keys::dead(7, RecordId::new(1000, 1)), letter.packed()),
        ] {
            body_of(&mut body, &key, Some(&value), false);
        }
        let entries = writer.entries(4, &body);
        let plan = writer.plan(1, 2, 0);
        body.clear();
        put_number(&mut body, 1);
        for (seq, payload) in [(1, "a"), (2, "b")] {
            let mut record = 1000_u64.to_be_bytes().to_vec();
            Content::new(payload).pack(&mut record);
            put_number(&mut body, seq);
            put_run(&mut body, &record);
        }
        let records = writer.records(2, &body);
        [head, entries, plan, records, writer.end()].concat()
    }

    #[tokio::test]
    async fn a_backup_of_an_older_layout_is_restored_and_brought_up_to_date() {
        let at = Partition::new(TopicName::new("old").unwrap(), 0);
        let group = GroupName::new("g").unwrap();
        for layout in 1..=FORMAT {
            let dir = tempfile::tempdir().unwrap();
            restore(&older(layout, &at, &group)[..], dir.path(), &mut |_| {}).unwrap();
            let engine = Engine::file(dir.path(), FileOptions::default()).await.unwrap();
            let records = engine.read(&at, RecordId::ZERO, ReadLimit::records(9)).await.unwrap();
            assert_eq!(records.len(), 2, "layout {layout}");
            if layout < FORMAT {
                let age = std::time::Duration::from_secs(1);
                assert_eq!(engine.expire_dead(&at, &group, age).await.unwrap(), 1, "layout {layout}");
            }
            engine.close().await.unwrap();
            assert_eq!(format::check(dir.path()).unwrap(), FORMAT);
        }
        let dir = tempfile::tempdir().unwrap();
        let error = restore(&older(FORMAT + 1, &at, &group)[..], dir.path(), &mut |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(!dir.path().join(STORE).exists());
    }
}

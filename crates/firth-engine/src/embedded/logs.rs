//! Where the records of partitions lie: small logs together in one keyspace (the *shared
//! keyspace*), each grown one in a keyspace of its own.
//!
//! A keyspace costs tens of milliseconds and several files, and more the more there are; so a log
//! gets one only when it has outgrown the shared keyspace. The janitor makes it; the next append
//! moves in, and a mark in the same batch says from which record on. Older records stay behind
//! until they are trimmed. In a log of its own a trim drops whole table files; in the shared
//! keyspace, where no log is large, it removes keys.

use super::file::walk;
use super::keys;
use super::rescue::sync_dir;
use super::step::{Each, Range};
use crate::error::Result;
use bytes::Bytes;
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

const SHARED_KEYSPACE: &str = "logs";
/// Keys that one batch removes from the shared keyspace.
const REMOVALS: usize = 5_000;
const UNPOISONED: &str = "nothing panics while it holds this lock";

/// The logs of all partitions.
pub(super) struct Logs {
    db: Database,
    shared_keyspace: Keyspace,
    own: RwLock<HashMap<u64, OwnLog>>,
    /// Bytes in the shared keyspace by log, as far as this process wrote or removed them: enough to
    /// see a log grow.
    sizes: Mutex<HashMap<u64, u64>>,
    memtable: u64,
    outgrown: u64,
    /// Logs that had files of their own, and have none.
    missing: Vec<u64>,
}

/// The keyspace of one log.
#[derive(Clone)]
struct OwnLog {
    keyspace: Keyspace,
    /// The first record in it; `None` until there is one.
    from: Option<u64>,
}

/// Where a record goes.
pub(super) enum Home {
    /// Among others, under this key.
    SharedKeyspace(keys::Key),
    /// In the log's own keyspace.
    Own(Keyspace),
    /// As the first one in the log's own keyspace, which has to be marked.
    First(Keyspace),
}

/// How one view reads: a snapshot, or what is there now.
pub(super) trait ReadView {
    fn get(&self, keyspace: &Keyspace, key: &[u8]) -> fjall::Result<Option<fjall::UserValue>>;
    fn range(&self, keyspace: &Keyspace, range: Range) -> fjall::Iter;
}

impl Logs {
    /// `marks` are the first records of logs with a keyspace of their own.
    pub(super) fn open(
        db: &Database,
        memtable: u64,
        outgrown: u64,
        marks: &HashMap<u64, u64>,
    ) -> fjall::Result<Self> {
        let shared_keyspace = db.keyspace(SHARED_KEYSPACE, || log_options(memtable))?;
        let mut own = HashMap::new();
        for name in db.list_keyspace_names() {
            if let Some(no) = name.strip_prefix("log-").and_then(|no| no.parse().ok()) {
                let keyspace = db.keyspace(&name, || log_options(memtable))?;
                own.insert(no, OwnLog { keyspace, from: marks.get(&no).copied() });
            }
        }
        let missing = marks.keys().copied().filter(|no| !own.contains_key(no)).collect();
        let own = RwLock::new(own);
        let sizes = Mutex::default();
        Ok(Self { db: db.clone(), shared_keyspace, own, sizes, memtable, outgrown, missing })
    }

    fn own(&self, no: u64) -> Option<OwnLog> {
        self.own.read().expect(UNPOISONED).get(&no).cloned()
    }

    /// The keyspace that small logs share.
    pub(super) fn shared_keyspace(&self) -> &Keyspace {
        &self.shared_keyspace
    }

    /// The numbers of all logs with a keyspace of their own.
    pub(super) fn grown(&self) -> Vec<u64> {
        self.own.read().expect(UNPOISONED).keys().copied().collect()
    }

    /// The numbers of logs that had files of their own when they were last written, and have none
    /// now.
    pub(super) fn missing(&self) -> &[u64] {
        &self.missing
    }

    /// The numbers of all logs that have something in the shared keyspace, found by leaping from
    /// one to the next.
    pub(super) fn in_shared_keyspace(&self) -> fjall::Result<Vec<u64>> {
        let mut found = Vec::new();
        let mut next = 0;
        loop {
            let first = self.shared_keyspace.range(keys::in_shared_keyspace(next, 0)..).next();
            let Some(guard) = first else { return Ok(found) };
            let key = guard.key()?;
            let Some(no) = keys::number_at(&key, 0) else { return Ok(found) };
            found.push(no);
            let Some(after) = no.checked_add(1) else { return Ok(found) };
            next = after;
        }
    }

    /// Where record `seq` of log `no` goes.
    pub(super) fn home(&self, no: u64, seq: u64) -> Home {
        match self.own(no) {
            None => Home::SharedKeyspace(keys::in_shared_keyspace(no, seq)),
            Some(OwnLog { keyspace, from: Some(from) }) if from <= seq => Home::Own(keyspace),
            Some(OwnLog { from: Some(_), .. }) => Home::SharedKeyspace(keys::in_shared_keyspace(no, seq)),
            Some(OwnLog { keyspace, from: None }) => {
                if let Some(own) = self.own.write().expect(UNPOISONED).get_mut(&no) {
                    own.from = Some(seq);
                }
                Home::First(keyspace)
            }
        }
    }

    /// Notes what went into the shared keyspace; true each time the log has grown by as much as
    /// should have files of its own.
    pub(super) fn grew(&self, no: u64, bytes: u64) -> bool {
        let mut sizes = self.sizes.lock().expect(UNPOISONED);
        let size = sizes.entry(no).or_default();
        let before = *size;
        *size += bytes;
        before / self.outgrown < *size / self.outgrown
    }

    /// Makes the keyspace of a log that has outgrown the shared keyspace.
    pub(super) fn grow(&self, no: u64) -> fjall::Result<()> {
        if self.own(no).is_none() {
            let keyspace = self.db.keyspace(&format!("log-{no}"), || log_options(self.memtable))?;
            // A folder whose name a power failure takes away would be an empty log.
            keyspace.path().parent().map_or(Ok(()), sync_dir)?;
            self.own.write().expect(UNPOISONED).insert(no, OwnLog { keyspace, from: None });
        }
        Ok(())
    }

    /// Removes a log with its files; answers how many bytes went from the shared keyspace.
    pub(super) fn drop_log(&self, no: u64) -> fjall::Result<u64> {
        let own = self.own.write().expect(UNPOISONED).remove(&no);
        if let Some(own) = own {
            self.db.delete_keyspace(own.keyspace)?;
        }
        let removed = self.clear_shared_keyspace(no, u64::MAX)?;
        self.sizes.lock().expect(UNPOISONED).remove(&no);
        Ok(removed)
    }

    /// Removes what a log has in the shared keyspace up to `seq`, and the tables of its own that
    /// hold nothing above; answers how many bytes went from the shared keyspace.
    pub(super) fn cut(&self, no: u64, seq: u64) -> fjall::Result<u64> {
        let own = self.own(no);
        let removed = self.clear_shared_keyspace(no, seq)?;
        if let Some(OwnLog { keyspace, from: Some(from) }) = own
            && from <= seq
        {
            keyspace.tree.drop_range(..=keys::record(seq))?;
        }
        Ok(removed)
    }

    fn clear_shared_keyspace(&self, no: u64, seq: u64) -> fjall::Result<u64> {
        let from = keys::in_shared_keyspace(no, 0);
        let to = keys::in_shared_keyspace(no, seq);
        let mut removed = 0;
        let mut batch = OwnedWriteBatch::with_capacity(self.db.clone(), 0);
        for guard in self.shared_keyspace.range(from..=to) {
            let (key, value) = guard.into_inner()?;
            removed += (key.len() + value.len()) as u64;
            batch.remove(&self.shared_keyspace, key);
            if batch.len() == REMOVALS {
                batch.commit()?;
                batch = OwnedWriteBatch::with_capacity(self.db.clone(), 0);
            }
        }
        batch.commit()?;
        if let Some(size) = self.sizes.lock().expect(UNPOISONED).get_mut(&no) {
            *size = size.saturating_sub(removed);
        }
        Ok(removed)
    }

    /// The bytes in tables of all logs.
    pub(super) fn disk_bytes(&self) -> u64 {
        let own = self.own.read().expect(UNPOISONED);
        own.values().map(|own| own.keyspace.disk_space()).sum::<u64>() + self.shared_keyspace.disk_space()
    }

    /// The bytes in tables of the log's own.
    pub(super) fn table_bytes(&self, no: u64) -> u64 {
        self.own(no).map_or(0, |own| own.keyspace.disk_space())
    }

    /// Writes a key that no record has, so that the library's order number moves on. No reader ever
    /// asks for it.
    pub(super) fn touch(&self, no: u64) -> fjall::Result<()> {
        self.own(no).map_or(Ok(()), |own| own.keyspace.insert(keys::record(0), Bytes::new()))
    }

    /// As [`touch`](Self::touch), in the shared keyspace.
    pub(super) fn touch_shared_keyspace(&self) -> fjall::Result<()> {
        self.shared_keyspace.insert(keys::in_shared_keyspace(0, 0), Bytes::new())?;
        self.shared_keyspace.remove(keys::in_shared_keyspace(0, 0))
    }

    /// Lets go of the files of dropped tables: the library does so when it flushes.
    pub(super) fn flush(&self, no: u64) -> fjall::Result<()> {
        self.own(no).map_or(Ok(()), |own| self.flush_keyspace(&own.keyspace))
    }

    /// As [`flush`](Self::flush), for the shared keyspace.
    pub(super) fn flush_shared_keyspace(&self) -> fjall::Result<()> {
        self.flush_keyspace(&self.shared_keyspace)
    }

    /// Waits for the flush, unless the database has failed: then it never ends.
    fn flush_keyspace(&self, keyspace: &Keyspace) -> fjall::Result<()> {
        if keyspace.rotate_memtable()? {
            while keyspace.tree.sealed_memtable_count() > 0 {
                self.db.persist(PersistMode::Buffer)?;
                // own thread: the library does not tell when it has flushed
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// The record under `key`, which is its number.
    pub(super) fn get(&self, look: &impl ReadView, no: u64, key: &[u8]) -> fjall::Result<Option<Bytes>> {
        let seq = keys::number_at(key, 0).unwrap_or_default();
        let found = match self.own(no) {
            Some(OwnLog { keyspace, from: Some(from) }) if from <= seq => look.get(&keyspace, key)?,
            _ => look.get(&self.shared_keyspace, &keys::in_shared_keyspace(no, seq))?,
        };
        Ok(found.map(Bytes::from))
    }

    /// Calls `each` for the records in `range`, in order.
    pub(super) fn scan(
        &self,
        look: &impl ReadView,
        no: u64,
        range: Range,
        each: &mut Each<'_>,
    ) -> Result<()> {
        let first = keys::number_at(&range.from, 0).unwrap_or_default();
        let end = keys::number_at(&range.to, 0).unwrap_or(u64::MAX);
        let own = self.own(no).and_then(|own| Some((own.keyspace, own.from?)));
        let border = own.as_ref().map_or(end, |(_, from)| *from);
        if first < border {
            let range = Range {
                from: keys::in_shared_keyspace(no, first),
                to: keys::in_shared_keyspace(no, end.min(border)),
            };
            let goes_on =
                walk(look.range(&self.shared_keyspace, range), &mut |key, value| each(&key[8..], value))?;
            if !goes_on {
                return Ok(());
            }
        }
        if let Some((keyspace, from)) = own
            && from < end
        {
            let range = Range { from: keys::record(first.max(from)), to: range.to };
            walk(look.range(&keyspace, range), each)?;
        }
        Ok(())
    }
}

/// Tables stay as small as a memtable, because a table is freed only when nothing in it is needed.
fn log_options(memtable: u64) -> KeyspaceCreateOptions {
    let compaction = fjall::compaction::Leveled::default().with_table_target_size(memtable);
    KeyspaceCreateOptions::default().max_memtable_size(memtable).compaction_strategy(Arc::new(compaction))
}

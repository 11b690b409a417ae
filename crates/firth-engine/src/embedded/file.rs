//! The store of `file:DIR`: keyspaces of `fjall`, one per partition's log and one for the state.
//!
//! Layout: `firth.lock`, `FORMAT` (our layout's version), `store/` (fjall's own files). Logs are only appended to and
//! cut at the front: a trim moves a mark and later drops whole table files, so retention writes nothing and frees space.
//!
//! Only the committer thread writes. Readers look through the snapshot that was taken after the last sync.

use super::keys::{self, Space};
use super::lock::DirLock;
use super::step::{Each, Range, View, Write};
use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

/// What an acknowledgement means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It is on disk: it survives a power failure. Concurrent calls share one fsync.
    #[default]
    Synced,
    /// The operating system has it: it survives the death of the process, and of the machine but for the last moments.
    Fast,
}

/// Options of an engine on files.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// What an acknowledgement means.
    pub durability: Durability,
    /// With less free space than this, appends are refused while reading, settling and trimming go on.
    pub min_free: u64,
    /// Memory for cached blocks.
    pub cache: u64,
    /// Memory for the newest records of one partition, before they go to a table file. Trimming frees whole table files.
    pub memtable: u64,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { durability: Durability::default(), min_free: 128 << 20, cache: 32 << 20, memtable: 32 << 20 }
    }
}

const STATE: &str = "state";
const STATE_MEMTABLE: u64 = 16 << 20;
/// All journals together; restarting replays at most this much.
const JOURNALS: u64 = 128 << 20;
/// How long readers may take to leave before a broken store is opened again.
const READERS_LEAVE: Duration = Duration::from_secs(5);

/// The open store, and what is needed to open it again.
pub(super) struct FileStore {
    dir: PathBuf,
    options: FileOptions,
    open: RwLock<Option<Arc<Opened>>>,
    /// Held until the store is closed for good.
    lock: Mutex<Option<DirLock>>,
}

/// One opened database.
pub(super) struct Opened {
    db: Database,
    state: Keyspace,
    logs: RwLock<HashMap<u64, Keyspace>>,
    durable: RwLock<Snapshot>,
    memtable: u64,
}

impl FileStore {
    /// Opens or makes the store in `dir`; also answers the newest time that it knows, in µs.
    pub(super) fn open(dir: &Path, options: FileOptions) -> Result<(Self, u64)> {
        std::fs::create_dir_all(dir).map_err(|error| io_error(dir, "cannot make it", error))?;
        let lock = DirLock::acquire(dir)?;
        super::format::check(dir)?;
        let opened = Opened::open(dir, &options)?;
        let newest_us = super::recover::recover(&opened)?;
        let store = Self {
            dir: dir.to_owned(),
            options,
            open: RwLock::new(Some(Arc::new(opened))),
            lock: Mutex::new(Some(lock)),
        };
        Ok((store, newest_us))
    }

    pub(super) fn options(&self) -> &FileOptions {
        &self.options
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The database as it is, unsynced changes included: for the committer.
    pub(super) fn current(&self) -> Result<Arc<Opened>> {
        let open =
            self.open.read().map_err(|_| Error::new(ErrorKind::Internal, "the store's lock is poisoned"))?;
        open.clone().ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("{} is being opened again", self.dir.display()))
        })
    }

    /// The last durable state: for readers.
    pub(super) fn durable(&self) -> Result<DurableView> {
        let opened = self.current()?;
        let snapshot = opened.durable.read().expect("nothing panics while it holds this lock").clone();
        Ok(DurableView { opened, snapshot })
    }

    /// Bytes that are still free on the disk of the store.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let stats = rustix::fs::statvfs(&self.dir).ok()?;
        Some(stats.f_bavail.saturating_mul(stats.f_frsize))
    }

    /// Closes the database and opens it again, after a failed write has made it unusable.
    pub(super) fn reopen(&self) -> Result<()> {
        self.shut();
        let opened = Opened::open(&self.dir, &self.options)?;
        *self.open.write().expect("nothing panics while it holds this lock") = Some(Arc::new(opened));
        Ok(())
    }

    /// Closes the database for good and lets others have the directory.
    pub(super) fn close(&self) {
        self.shut();
        self.lock.lock().expect("nothing panics while it holds this lock").take();
    }

    /// Closes the database, waiting for readers to leave.
    fn shut(&self) {
        let opened = self.open.write().expect("nothing panics while it holds this lock").take();
        let deadline = Instant::now() + READERS_LEAVE;
        while opened.as_ref().is_some_and(|opened| Arc::strong_count(opened) > 1) && Instant::now() < deadline
        {
            // own thread: readers leave within microseconds, and nobody tells when
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Opened {
    fn open(dir: &Path, options: &FileOptions) -> Result<Self> {
        let path = dir.join("store");
        let open = || Self::open_database(&path, options);
        // Damaged files can trip assertions of the storage library.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(open))
            .unwrap_or_else(|_| Err(fjall::Error::Unrecoverable))
            .map_err(|error| open_error(dir, error))
    }

    fn open_database(path: &Path, options: &FileOptions) -> fjall::Result<Self> {
        let db = Database::builder(path)
            .cache_size(options.cache)
            .max_journaling_size(JOURNALS)
            .manual_journal_persist(true)
            .open()?;
        let state =
            db.keyspace(STATE, || KeyspaceCreateOptions::default().max_memtable_size(STATE_MEMTABLE))?;
        let (mut logs, memtable) = (HashMap::new(), options.memtable);
        for name in db.list_keyspace_names() {
            if let Some(no) = name.strip_prefix("log-").and_then(|no| no.parse().ok()) {
                logs.insert(no, db.keyspace(&name, || log_options(memtable))?);
            }
        }
        let durable = RwLock::new(db.snapshot());
        Ok(Self { db, state, logs: RwLock::new(logs), durable, memtable })
    }

    fn log(&self, no: u64) -> Option<Keyspace> {
        self.logs.read().expect("nothing panics while it holds this lock").get(&no).cloned()
    }

    /// The numbers of all logs.
    pub(super) fn logs(&self) -> Vec<u64> {
        self.logs.read().expect("nothing panics while it holds this lock").keys().copied().collect()
    }

    fn space(&self, space: Space) -> Option<Keyspace> {
        match space {
            Space::State => Some(self.state.clone()),
            Space::Log(no) => self.log(no),
        }
    }

    fn log_to_write(&self, no: u64) -> fjall::Result<Keyspace> {
        if let Some(log) = self.log(no) {
            return Ok(log);
        }
        let log = self.db.keyspace(&format!("log-{no}"), || log_options(self.memtable))?;
        self.logs.write().expect("nothing panics while it holds this lock").insert(no, log.clone());
        Ok(log)
    }

    /// Writes a batch as one atomic unit, not yet synced.
    pub(super) fn write(&self, writes: Vec<Write>) -> fjall::Result<()> {
        let mut batch = fjall::OwnedWriteBatch::with_capacity(self.db.clone(), writes.len());
        let mut log: Option<(u64, Keyspace)> = None;
        for write in last_of_each_key(writes) {
            let keyspace = match write.space {
                Space::State => &self.state,
                Space::Log(no) => {
                    if log.as_ref().is_none_or(|(known, _)| *known != no) {
                        log = Some((no, self.log_to_write(no)?));
                    }
                    &log.as_ref().expect("it was just set").1
                }
            };
            match write.value {
                Some(value) => batch.insert(keyspace, write.key, value),
                None => batch.remove(keyspace, write.key),
            }
        }
        batch.commit()
    }

    /// Makes everything written so far durable.
    pub(super) fn persist(&self, mode: PersistMode) -> fjall::Result<()> {
        self.db.persist(mode)
    }

    /// Shows everything written so far to readers.
    pub(super) fn publish(&self) {
        *self.durable.write().expect("nothing panics while it holds this lock") = self.db.snapshot();
    }

    /// Removes a log with its files.
    pub(super) fn drop_log(&self, no: u64) -> fjall::Result<()> {
        let log = self.logs.write().expect("nothing panics while it holds this lock").remove(&no);
        log.map_or(Ok(()), |log| self.db.delete_keyspace(log))
    }

    /// Drops the tables of a log that hold nothing above `seq`.
    pub(super) fn cut_log(&self, no: u64, seq: u64) -> fjall::Result<()> {
        match self.log(no) {
            Some(log) => Ok(log.tree.drop_range(..=keys::record(seq))?),
            None => Ok(()),
        }
    }

    /// The bytes in tables of a log.
    pub(super) fn table_bytes(&self, no: u64) -> u64 {
        self.log(no).map_or(0, |log| log.disk_space())
    }

    /// Writes a key that no record has, so that the library's order number moves on. No reader ever asks for it.
    pub(super) fn touch_log(&self, no: u64) -> fjall::Result<()> {
        self.log(no).map_or(Ok(()), |log| log.insert(keys::record(0), Bytes::new()))
    }

    /// Lets go of the files of dropped tables: the library does so when it flushes.
    pub(super) fn flush_log(&self, no: u64) -> fjall::Result<()> {
        self.log(no).map_or(Ok(()), |log| log.rotate_memtable_and_wait())
    }
}

/// Tables stay as small as a memtable, because a table is freed only when nothing in it is needed.
fn log_options(memtable: u64) -> KeyspaceCreateOptions {
    let compaction = fjall::compaction::Leveled::default().with_table_target_size(memtable);
    KeyspaceCreateOptions::default().max_memtable_size(memtable).compaction_strategy(Arc::new(compaction))
}

/// A batch of the storage library has one order number for all its writes, so a key must occur once: the last one counts.
/// Records are never written twice.
fn last_of_each_key(writes: Vec<Write>) -> Vec<Write> {
    let mut last = HashMap::new();
    for (at, write) in writes.iter().enumerate() {
        if write.space == Space::State {
            last.insert(write.key.clone(), at);
        }
    }
    let is_last = |at: usize, write: &Write| write.space != Space::State || last[&write.key] == at;
    writes.into_iter().enumerate().filter(|(at, write)| is_last(*at, write)).map(|(_, write)| write).collect()
}

impl View for Opened {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(keyspace) = self.space(space) else {
            return Ok(None);
        };
        Ok(keyspace.get(key).map_err(read_error)?.map(Bytes::from))
    }

    fn scan(&self, space: Space, range: Range, each: &mut Each<'_>) -> Result<()> {
        match self.space(space) {
            Some(keyspace) => walk(keyspace.range(range.from..range.to), each),
            None => Ok(()),
        }
    }
}

/// What was durable when the view was made.
pub(super) struct DurableView {
    opened: Arc<Opened>,
    snapshot: Snapshot,
}

impl View for DurableView {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>> {
        let Some(keyspace) = self.opened.space(space) else {
            return Ok(None);
        };
        Ok(self.snapshot.get(&keyspace, key).map_err(read_error)?.map(Bytes::from))
    }

    fn scan(&self, space: Space, range: Range, each: &mut Each<'_>) -> Result<()> {
        match self.opened.space(space) {
            Some(keyspace) => walk(self.snapshot.range(&keyspace, range.from..range.to), each),
            None => Ok(()),
        }
    }
}

fn walk(iter: fjall::Iter, each: &mut Each<'_>) -> Result<()> {
    for guard in iter {
        let (key, value) = guard.into_inner().map_err(read_error)?;
        if !each(&key, value.into())? {
            break;
        }
    }
    Ok(())
}

fn read_error(error: fjall::Error) -> Error {
    Error::new(ErrorKind::Corrupt, "stored data cannot be read").with_source(error)
}

/// An error of the file system about the data directory.
pub(super) fn io_error(dir: &Path, problem: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("data directory {}: {problem} ({error})", dir.display()))
        .with_source(error)
}

fn open_error(dir: &Path, error: fjall::Error) -> Error {
    let dir = dir.display();
    let (kind, text) = match &error {
        fjall::Error::Locked => {
            (ErrorKind::Unavailable, format!("the store in {dir} is in use by another process"))
        }
        fjall::Error::Io(io)
            if io.kind() != std::io::ErrorKind::InvalidData
                && io.kind() != std::io::ErrorKind::UnexpectedEof =>
        {
            (ErrorKind::Unavailable, format!("cannot open the store in {dir} ({io})"))
        }
        fjall::Error::InvalidVersion(_) => (
            ErrorKind::Corrupt,
            format!("the store in {dir} was written by another storage version: use the build that wrote it"),
        ),
        _ => (
            ErrorKind::Corrupt,
            format!("the store in {dir} is damaged: restore a backup, or move it away to start anew"),
        ),
    };
    Error::new(kind, text).with_source(error)
}

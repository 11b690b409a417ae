//! The store of `file:DIR`: keyspaces of `fjall`, one for the state and those of the logs
//! (`logs.rs`).
//!
//! Layout: `firth.lock`, `FORMAT` (our layout's version), `store/` (fjall's own files). Logs are
//! only appended to and cut at the front: a trim moves a mark, and files are freed later.
//!
//! Before the library opens its journals they are brought into order (`rescue.rs`).
//!
//! Only the committer thread writes. Readers look through the snapshot that was taken after the
//! last sync.

use super::backup::ChangeLog;
use super::directory::{self, STORE};
use super::keys::{self, MARKED, Space};
use super::lock::DirLock;
use super::logs::{Home, Logs, ReadView};
use super::rescue::{self, Journals};
use super::step::{Each, KeyView, Range, Write};
use super::tombstone_watermarks::TombstoneWatermarks;
use crate::durability::Durability;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Partition;
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot, UserValue};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

/// Options of an engine on files.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// What an acknowledgement means: [`Durability::Synced`] or [`Durability::Fast`]; there are no
    /// replicas.
    pub durability: Durability,
    /// With less free space than this, appends are refused while reading, settling and trimming go
    /// on.
    pub min_free: u64,
    /// Memory for cached blocks.
    pub cache: u64,
    /// Memory for the newest records of one partition, before they go to a table file. Trimming
    /// frees whole table files.
    pub memtable: u64,
    /// Records of small partitions lie together; one that holds more than this many bytes gets
    /// files of its own.
    pub outgrown: u64,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            min_free: 128 << 20,
            cache: 32 << 20,
            memtable: 16 << 20,
            outgrown: 1 << 20,
        }
    }
}

/// The library's folder of keyspaces in its own.
pub(super) const KEYSPACES: &str = "keyspaces";
/// How many damaged partitions are named.
const NAMED: usize = 10;
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
    /// What was on the disk before it was closed to be opened again.
    synced: AtomicU64,
    /// Why it cannot be written to.
    broken: Mutex<Option<String>>,
    /// Partitions that could not be read.
    damaged: Mutex<BTreeSet<String>>,
    /// A running backup needs the files of records that are trimmed.
    keeps_files: AtomicBool,
    /// Held until the store is closed for good.
    lock: Mutex<Option<DirLock>>,
}

/// One opened database.
pub(super) struct Opened {
    db: Database,
    state: Keyspace,
    logs: Logs,
    durable: RwLock<Snapshot>,
    floors: TombstoneWatermarks,
    /// Everything below this order number is on the disk.
    synced: AtomicU64,
    /// What the next batch says about that; 0 if it was said.
    mark: AtomicU64,
    /// Batches that were written, and those of them that readers see.
    written: AtomicU64,
    published: AtomicU64,
    /// Where changes of the state are noted while a backup reads it.
    changes: Mutex<Option<ChangeLog>>,
}

/// The janitor removes no files of logs until it is dropped.
pub(super) struct KeptFiles(Arc<FileStore>);

impl Drop for KeptFiles {
    fn drop(&mut self) {
        self.0.keeps_files.store(false, Ordering::Release);
    }
}

impl FileStore {
    /// Opens or makes the store in `dir`; also answers the newest time that it knows, in µs.
    pub(super) fn open(dir: &Path, options: FileOptions) -> Result<(Self, u64)> {
        directory::make_dir(dir).map_err(|error| io_error(dir, "cannot make it", error))?;
        directory::keep_private(dir);
        let lock = DirLock::acquire(dir)?;
        directory::check_restored(dir)?;
        let format = super::format::check(dir)?;
        let opened = Opened::open(dir, &options, format >= MARKED, 0)?;
        let opened = super::upgrade::upgrade(dir, format, opened, &options)?;
        let newest_us = super::recover::recover(&opened)?;
        let store = Self {
            dir: dir.to_owned(),
            options,
            open: RwLock::new(Some(Arc::new(opened))),
            synced: AtomicU64::new(0),
            broken: Mutex::default(),
            damaged: Mutex::default(),
            keeps_files: AtomicBool::new(false),
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

    /// Keeps all files of logs, for one backup at a time.
    pub(super) fn keep_files(store: &Arc<Self>) -> Result<KeptFiles> {
        if store.keeps_files.swap(true, Ordering::AcqRel) {
            let context = "a backup is being taken already, and one at a time is: wait until it has ended";
            return Err(Error::new(ErrorKind::Overloaded, context));
        }
        Ok(KeptFiles(store.clone()))
    }

    /// Whether files of logs must stay.
    pub(super) fn keeps_files(&self) -> bool {
        self.keeps_files.load(Ordering::Acquire)
    }

    /// Whether it cannot be written to.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.lock().expect("nothing panics while it holds this lock").is_some()
    }

    /// The last durable state: for readers.
    pub(super) fn durable(&self) -> Result<DurableView> {
        let opened = self.current()?;
        let snapshot = opened.durable.read().expect("nothing panics while it holds this lock").clone();
        Ok(DurableView { opened, snapshot })
    }

    /// Notes why the store cannot be written to, or that it can again.
    pub(super) fn set_broken(&self, why: Option<&str>) {
        *self.broken.lock().expect("nothing panics while it holds this lock") = why.map(str::to_owned);
    }

    /// What is known to be wrong.
    pub(super) fn health(&self) -> Result<()> {
        self.takes_appends()?;
        let damaged = self.damaged.lock().expect("nothing panics while it holds this lock");
        if damaged.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = damaged.iter().take(NAMED).map(String::as_str).collect();
        Err(Error::corrupt(format!(
            "{} partitions cannot be read ({}): `firth check` counts what is readable, and says how \
             the rest goes on without them",
            damaged.len(),
            names.join(", ")
        )))
    }

    /// Notes that a partition could not be read.
    pub(super) fn note_damage(&self, at: &Partition) {
        let mut damaged = self.damaged.lock().expect("nothing panics while it holds this lock");
        if damaged.insert(at.to_string()) {
            tracing::error!(partition = %at, "the partition is damaged");
        }
    }

    /// The partition is gone, and its damage with it.
    pub(super) fn forget_damage(&self, at: &Partition) {
        self.damaged.lock().expect("nothing panics while it holds this lock").remove(&at.to_string());
    }

    /// Whether it is usable, and its disk has room.
    pub(super) fn takes_appends(&self) -> Result<()> {
        if let Some(why) = &*self.broken.lock().expect("nothing panics while it holds this lock") {
            return Err(Error::new(ErrorKind::Unavailable, format!("read-only: {why}")));
        }
        if self.is_low() { Err(self.low_disk()) } else { Ok(()) }
    }

    /// Whether the disk has so little room that appends are refused.
    pub(super) fn is_low(&self) -> bool {
        self.free_bytes().is_some_and(|free| free < self.options.min_free)
    }

    /// The refusal of an append.
    pub(super) fn low_disk(&self) -> Error {
        Error::new(
            ErrorKind::Unavailable,
            format!(
                "the disk of {} has less than {} MiB free: appends are refused until space is freed or \
                 topics are trimmed",
                self.dir.display(),
                self.options.min_free >> 20
            ),
        )
    }

    /// Bytes that are still free on the disk of the store.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        directory::free_bytes(&self.dir)
    }

    /// Closes the database and opens it again, after a failed write or sync has made it unusable.
    pub(super) fn reopen(&self) -> Result<()> {
        if let Ok(opened) = self.current() {
            self.synced.fetch_max(opened.synced.load(Ordering::Acquire), Ordering::AcqRel);
        }
        self.shut();
        let opened = Opened::open(&self.dir, &self.options, true, self.synced.load(Ordering::Acquire))?;
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
            // own thread: readers leave within microseconds, and no event tells when
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Opened {
    /// Opens the store, or makes it. `marked` says that its journals tell what was synced;
    /// `synced`, below which order number everything was.
    pub(super) fn open(dir: &Path, options: &FileOptions, marked: bool, synced: u64) -> Result<Self> {
        let store = dir.join(STORE);
        directory::check_made(dir)?;
        if store.exists() {
            Journals::new(&store, marked, synced).settle()?;
        }
        let open = || {
            make(dir, options)?;
            Self::open_database(&store, options, false)
        };
        // Damaged files can trip assertions of the storage library.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(open))
            .unwrap_or_else(|_| Err(fjall::Error::Unrecoverable))
            .map_err(|error| open_error(dir, error))
    }

    pub(super) fn open_database(path: &Path, options: &FileOptions, is_new: bool) -> fjall::Result<Self> {
        let db = Database::builder(path)
            .cache_size(options.cache)
            .max_journaling_size(JOURNALS)
            .manual_journal_persist(true)
            .open()?;
        if !is_new && !db.keyspace_exists(STATE) {
            return Err(fjall::Error::Unrecoverable);
        }
        let state =
            db.keyspace(STATE, || KeyspaceCreateOptions::default().max_memtable_size(STATE_MEMTABLE))?;
        let logs = Logs::open(&db, options.memtable, options.outgrown.max(1), &marks(&state)?)?;
        let durable = RwLock::new(db.snapshot());
        rescue::sync_dir(&path.join(KEYSPACES))?;
        let synced = db.seqno();
        let mark = AtomicU64::new(synced);
        let synced = AtomicU64::new(synced);
        let (written, published) = (AtomicU64::new(0), AtomicU64::new(0));
        let (floors, changes) = (TombstoneWatermarks::default(), Mutex::default());
        Ok(Self { db, state, logs, durable, floors, synced, mark, written, published, changes })
    }

    /// The records of all partitions.
    pub(super) fn logs(&self) -> &Logs {
        &self.logs
    }

    /// Writes a batch as one atomic unit, not yet synced; answers which logs have outgrown the
    /// shared keyspace by it.
    pub(super) fn write(&self, writes: Vec<Write>) -> fjall::Result<Vec<u64>> {
        let mut batch = fjall::OwnedWriteBatch::with_capacity(self.db.clone(), writes.len());
        let mut grown = Vec::new();
        let mut changes = self.changes.lock().expect("nothing panics while it holds this lock");
        let mark = self.mark.swap(0, Ordering::AcqRel);
        if mark > 0 {
            batch.insert(&self.state, keys::SYNCED, mark.to_be_bytes());
        }
        for Write { space, key, value } in last_of_each_key(writes) {
            let (keyspace, key) = match space {
                Space::State => {
                    if value.is_some() {
                        self.floors.lower(&key);
                    }
                    if let Some(changes) = &mut *changes {
                        changes.note(&key, value.as_deref());
                    }
                    (self.state.clone(), key)
                }
                Space::Log(no) => {
                    let seq = keys::number_at(&key, 0).unwrap_or_default();
                    match self.logs.home(no, seq) {
                        Home::Own(keyspace) => (keyspace, key),
                        Home::First(keyspace) => {
                            batch.insert(&self.state, keys::moved(no), seq.to_be_bytes());
                            (keyspace, key)
                        }
                        Home::SharedKeyspace(key) => {
                            let size = key.len() + value.as_ref().map_or(0, Bytes::len);
                            if self.logs.grew(no, size as u64) {
                                grown.push(no);
                            }
                            (self.logs.shared_keyspace().clone(), key)
                        }
                    }
                }
            };
            match value {
                Some(value) => batch.insert(&keyspace, key, value),
                None => batch.remove(&keyspace, key),
            }
        }
        batch.commit()?;
        self.written.fetch_add(1, Ordering::AcqRel);
        Ok(grown)
    }

    /// From now on every change of the state is noted there, or nowhere; answers what was noted
    /// until now, and how many batches were written.
    pub(super) fn note_changes(&self, to: Option<ChangeLog>) -> (Option<ChangeLog>, u64) {
        let mut changes = self.changes.lock().expect("nothing panics while it holds this lock");
        (std::mem::replace(&mut *changes, to), self.written.load(Ordering::Acquire))
    }

    /// How many batches readers see.
    pub(super) fn published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Makes everything written so far durable.
    pub(super) fn persist(&self, mode: PersistMode) -> fjall::Result<()> {
        let next = self.db.seqno();
        self.db.persist(mode)?;
        if mode != PersistMode::Buffer {
            // A background thread that failed to sync takes the error with it, and tells the
            // database.
            self.db.persist(PersistMode::Buffer)?;
            self.synced.store(next, Ordering::Release);
            self.mark.store(next, Ordering::Release);
        }
        Ok(())
    }

    /// Syncs everything for the last time, and says so in the journal.
    pub(super) fn seal(&self) -> fjall::Result<()> {
        self.persist(PersistMode::SyncAll)?;
        self.write(Vec::new())?;
        self.persist(PersistMode::SyncAll)
    }

    /// Shows everything written so far to readers.
    pub(super) fn publish(&self) {
        let written = self.written.load(Ordering::Acquire);
        *self.durable.write().expect("nothing panics while it holds this lock") = self.db.snapshot();
        self.published.store(written, Ordering::Release);
    }
}

/// Makes a new store in one step, however often a crash interrupts it: builds it aside, then
/// renames it. If the process dies while the storage library makes its first files, the library can
/// never open what is left.
fn make(dir: &Path, options: &FileOptions) -> fjall::Result<()> {
    let store = dir.join(STORE);
    if directory::is_half_made(&store)? {
        std::fs::remove_dir_all(&store)?;
    }
    if store.try_exists()? {
        return Ok(());
    }
    let aside = dir.join("store.new");
    if aside.try_exists()? {
        std::fs::remove_dir_all(&aside)?;
    }
    let made = Opened::open_database(&aside, options, true)?;
    made.persist(PersistMode::SyncAll)?;
    drop(made);
    directory::close_to_others(&aside)?;
    directory::sync_dirs(&aside)?;
    std::fs::rename(&aside, &store)?;
    Ok(rescue::sync_dir(dir)?)
}

/// The first records of logs with a keyspace of their own.
fn marks(state: &Keyspace) -> fjall::Result<HashMap<u64, u64>> {
    let mut found = HashMap::new();
    for guard in state.prefix(keys::MOVED) {
        let (key, value) = guard.into_inner()?;
        if let (Some(no), Some(from)) = (keys::number_at(&key, 1), keys::number_at(&value, 0)) {
            found.insert(no, from);
        }
    }
    Ok(found)
}

/// A batch of the storage library has one order number for all its writes, so a key must occur
/// once: the last one counts. Records are never written twice.
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

/// What is there now.
struct Current;

impl ReadView for Current {
    fn get(&self, keyspace: &Keyspace, key: &[u8]) -> fjall::Result<Option<UserValue>> {
        keyspace.get(key)
    }

    fn range(&self, keyspace: &Keyspace, range: Range) -> fjall::Iter {
        keyspace.range(range.from..range.to)
    }
}

impl ReadView for Snapshot {
    fn get(&self, keyspace: &Keyspace, key: &[u8]) -> fjall::Result<Option<UserValue>> {
        Readable::get(self, keyspace, key)
    }

    fn range(&self, keyspace: &Keyspace, range: Range) -> fjall::Iter {
        Readable::range(self, keyspace, range.from..range.to)
    }
}

impl Opened {
    fn look_up(&self, look: &impl ReadView, space: Space, key: &[u8]) -> Result<Option<Bytes>> {
        let found = match space {
            Space::State => look.get(&self.state, key).map(|found| found.map(Bytes::from)),
            Space::Log(no) => self.logs.get(look, no, key),
        };
        found.map_err(read_error)
    }

    fn look_through(
        &self,
        look: &impl ReadView,
        space: Space,
        range: Range,
        each: &mut Each<'_>,
    ) -> Result<()> {
        match space {
            Space::State => walk(look.range(&self.state, range), each).map(drop),
            Space::Log(no) => self.logs.scan(look, no, range, each),
        }
    }
}

impl KeyView for Opened {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>> {
        self.look_up(&Current, space, key)
    }

    fn scan(&self, space: Space, range: Range, each: &mut Each<'_>) -> Result<()> {
        let (range, lesson) = match space {
            Space::State => self.floors.above(range),
            Space::Log(_) => (range, None),
        };
        let Some(lesson) = lesson else { return self.look_through(&Current, space, range, each) };
        let mut first = None;
        self.look_through(&Current, space, range, &mut |key, value| {
            first.get_or_insert_with(|| key.to_vec());
            each(key, value)
        })?;
        self.floors.learn(lesson, first);
        Ok(())
    }
}

/// What was durable when the view was made.
pub(super) struct DurableView {
    opened: Arc<Opened>,
    snapshot: Snapshot,
}

impl KeyView for DurableView {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>> {
        self.opened.look_up(&self.snapshot, space, key)
    }

    fn scan(&self, space: Space, range: Range, each: &mut Each<'_>) -> Result<()> {
        self.opened.look_through(&self.snapshot, space, range, each)
    }
}

/// Goes through what was found; false if `each` wanted no more.
pub(super) fn walk(iter: fjall::Iter, each: &mut Each<'_>) -> Result<bool> {
    for guard in iter {
        let (key, value) = guard.into_inner().map_err(read_error)?;
        if !each(&key, value.into())? {
            return Ok(false);
        }
    }
    Ok(true)
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
            format!(
                "the store in {dir} is damaged: `firth check {dir}` reads all of it; restore a backup \
                 with `firth restore`, or move it away to start anew"
            ),
        ),
    };
    Error::new(kind, text).with_source(error)
}

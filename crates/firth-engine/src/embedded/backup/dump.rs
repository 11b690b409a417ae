//! A backup in the making: the state piece by piece, the changes since, then all records.
//!
//! No snapshot lives longer than one block. **Why**: the storage library keeps everything in memory
//! that was written since the oldest snapshot. Records need no snapshot, because they never change
//! and the janitor keeps their files until the backup ends.

use super::changes::Changes;
use super::{BLOCK, ChangeLog, is_kept};
use crate::backup::{BlockSource, BlockWriter, StreamHead, body_of};
use crate::codec::{Reader, put_number, put_run};
use crate::embedded::file::{FileStore, KeptFiles, Opened};
use crate::embedded::keys::{self, FORMAT, Key, Space};
use crate::embedded::step::{KeyView, Range};
use crate::embedded::values::{PartitionMeta, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Partition;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a write may take to become durable.
const DURABLE: Duration = Duration::from_secs(60);

/// A backup that is being read.
pub(in crate::embedded) struct Dump {
    store: Arc<FileStore>,
    opened: Weak<Opened>,
    writer: BlockWriter,
    stage: DumpStage,
    /// Partitions by key, as far as they were read.
    partitions: BTreeMap<Key, PartitionMeta>,
    /// Whether the disk had little room when it began.
    began_low: bool,
    _files: KeptFiles,
}

enum DumpStage {
    Head(Bytes),
    /// Entries behind this key.
    Entries(Key),
    Changes(Changes),
    Plan,
    Records(VecDeque<LogPart>),
    Ended,
}

/// What is left to read of a log.
struct LogPart {
    at: Partition,
    no: u64,
    next: u64,
    last: u64,
}

impl Dump {
    /// Begins a backup: from now on every change of the state is noted.
    pub(in crate::embedded) fn begin(store: Arc<FileStore>, engine_us: u64) -> Result<Self> {
        let files = FileStore::keep_files(&store)?;
        let opened = store.current()?;
        let changes = ChangeLog::begin(store.dir())
            .map_err(|error| crate::embedded::file::io_error(store.dir(), "cannot note changes", error))?;
        let wall_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let wall_ms = u64::try_from(wall_ms).unwrap_or(u64::MAX);
        let (writer, head) = BlockWriter::begin(StreamHead { layout: FORMAT, engine_us, wall_ms });
        let written = opened.note_changes(Some(changes)).1;
        let dump = Self {
            began_low: store.is_low(),
            opened: Arc::downgrade(&opened),
            store,
            writer,
            stage: DumpStage::Head(head),
            partitions: BTreeMap::new(),
            _files: files,
        };
        dump.wait_until_durable(&opened, written)?;
        Ok(dump)
    }

    /// Waits until readers see the first `written` batches.
    fn wait_until_durable(&self, opened: &Arc<Opened>, written: u64) -> Result<()> {
        let deadline = Instant::now() + DURABLE;
        while opened.published() < written {
            self.check(opened)?;
            if Instant::now() > deadline {
                return Err(ended("the disk does not answer"));
            }
            // own thread: the committer publishes after its next sync, and no event tells when
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether the store is the one that the backup began with, and has room.
    fn check(&self, opened: &Arc<Opened>) -> Result<()> {
        if !self.store.current().is_ok_and(|current| Arc::ptr_eq(&current, opened)) || self.store.is_broken()
        {
            return Err(ended("the store failed and is opened again"));
        }
        if !self.began_low && self.store.is_low() {
            return Err(ended("the disk has little room left, and a backup keeps files that could go"));
        }
        Ok(())
    }

    fn opened(&self) -> Result<Arc<Opened>> {
        let opened = self.opened.upgrade().ok_or_else(|| ended("the store was closed"))?;
        self.check(&opened)?;
        Ok(opened)
    }

    /// The next entries of the state; nothing if that was all.
    fn entries(&mut self, after: &mut Key) -> Result<Option<Bytes>> {
        let view = self.store.durable()?;
        let mut body = Vec::with_capacity(BLOCK + 4096);
        let mut count = 0;
        let range = Range { from: after.clone(), to: vec![u8::MAX; 32] };
        let scanned = view.scan(Space::State, range, &mut |key, value| {
            after.clear();
            after.extend_from_slice(key);
            after.push(0);
            if is_kept(key) {
                note_partition(&mut self.partitions, key, Some(&value))?;
                body_of(&mut body, key, Some(&value), false);
                count += 1;
            }
            Ok(body.len() < BLOCK)
        });
        scanned.map_err(|error| match error.kind() {
            ErrorKind::Corrupt => {
                let context = "the state of the store cannot be read: `firth check DIR` says what is damaged; \
                               restore an older backup";
                Error::corrupt(context).with_source(error)
            }
            _ => error,
        })?;
        Ok((count > 0).then(|| self.writer.entries(count, &body)))
    }

    /// Stops noting changes; what was noted is read from now on.
    fn end_changes(&self) -> Result<Changes> {
        let opened = self.opened()?;
        let (changes, written) = opened.note_changes(None);
        self.wait_until_durable(&opened, written)?;
        changes.ok_or_else(|| ended("its noted changes are gone"))?.read()
    }

    fn changes(&mut self, changes: &mut Changes) -> Result<Option<Bytes>> {
        let mut body = Vec::new();
        let mut count = 0;
        while body.len() < BLOCK
            && let Some(entry) = changes.next()?
        {
            body.extend_from_slice(&entry);
            count += 1;
            let mut rest = Reader(entry.into());
            let is_set = rest.byte() == Some(1);
            if let Some(key) = rest.run() {
                let value = if is_set { rest.run() } else { None };
                note_partition(&mut self.partitions, &key, value.as_ref())?;
            }
        }
        Ok((count > 0).then(|| self.writer.changes(count, &body)))
    }

    /// The logs to read, by name.
    fn logs(&mut self) -> VecDeque<LogPart> {
        let partitions = std::mem::take(&mut self.partitions);
        let part = |(key, meta): (Key, PartitionMeta)| {
            let (next, last) = (meta.trimmed.seq + 1, meta.last.seq);
            Some(LogPart { at: keys::partition_name(&key)?, no: meta.no, next, last })
        };
        partitions.into_iter().filter_map(part).filter(|log| log.next <= log.last).collect()
    }

    fn records(&mut self, log: &mut LogPart) -> Result<Bytes> {
        let view = self.store.durable()?;
        let mut body = Vec::with_capacity(BLOCK + 4096);
        put_number(&mut body, log.no);
        let first = log.next;
        let range = Range { from: keys::record(first), to: keys::record(log.last + 1) };
        let next = &mut log.next;
        let read = view.scan(Space::Log(log.no), range, &mut |key, value| {
            let seq = keys::number_at(key, 0).unwrap_or_default();
            if seq != *next {
                return Err(Error::corrupt(format!("record {next} is missing")));
            }
            put_number(&mut body, seq);
            put_run(&mut body, &value);
            *next += 1;
            Ok(body.len() < BLOCK)
        });
        let is_short = log.next == first;
        let read = read.and_then(|()| match is_short {
            true => Err(Error::corrupt(format!("record {first} is missing"))),
            false => Ok(()),
        });
        read.map_err(|error| self.unreadable(log, error))?;
        Ok(self.writer.records(log.next - first, &body))
    }

    fn unreadable(&self, log: &LogPart, error: Error) -> Error {
        if error.kind() != ErrorKind::Corrupt {
            return error;
        }
        self.store.note_damage(&log.at);
        let LogPart { at, next, .. } = log;
        let context = format!(
            "partition {at} is damaged behind record {}: stop the server, let `firth check DIR` count what is \
             readable, and set it aside with `firth check DIR --set-aside {at}`",
            next - 1
        );
        Error::corrupt(context).with_source(error)
    }
}

impl BlockSource for Dump {
    fn next_block(&mut self) -> Result<Option<Bytes>> {
        if matches!(self.stage, DumpStage::Ended) {
            return Ok(None);
        }
        let opened = self.opened()?;
        loop {
            match std::mem::replace(&mut self.stage, DumpStage::Ended) {
                DumpStage::Head(head) => {
                    self.stage = DumpStage::Entries(Vec::new());
                    return Ok(Some(head));
                }
                DumpStage::Entries(mut after) => {
                    if let Some(block) = self.entries(&mut after)? {
                        self.stage = DumpStage::Entries(after);
                        return Ok(Some(block));
                    }
                    self.stage = DumpStage::Changes(self.end_changes()?);
                }
                DumpStage::Changes(mut changes) => {
                    if let Some(block) = self.changes(&mut changes)? {
                        self.stage = DumpStage::Changes(changes);
                        return Ok(Some(block));
                    }
                    self.stage = DumpStage::Plan;
                }
                DumpStage::Plan => {
                    let logs = self.logs();
                    let records = logs.iter().map(|log| log.last + 1 - log.next).sum();
                    let plan = self.writer.plan(logs.len() as u64, records, opened.logs().disk_bytes());
                    self.stage = DumpStage::Records(logs);
                    return Ok(Some(plan));
                }
                DumpStage::Records(mut logs) => {
                    let Some(log) = logs.front_mut() else { return Ok(Some(self.writer.end())) };
                    let block = self.records(log)?;
                    if log.next > log.last {
                        logs.pop_front();
                    }
                    self.stage = DumpStage::Records(logs);
                    return Ok(Some(block));
                }
                DumpStage::Ended => return Ok(None),
            }
        }
    }

    fn failed(&mut self, why: &Error) -> Bytes {
        self.writer.failed(why.context())
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        if let Some(opened) = self.opened.upgrade() {
            opened.note_changes(None);
        }
    }
}

fn note_partition(
    partitions: &mut BTreeMap<Key, PartitionMeta>,
    key: &[u8],
    value: Option<&Bytes>,
) -> Result<()> {
    if key.first() != Some(&b'p') {
        return Ok(());
    }
    match value {
        Some(value) => partitions.insert(key.to_vec(), PartitionMeta::read(value.clone())?),
        None => partitions.remove(key),
    };
    Ok(())
}

fn ended(why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the backup was ended: {why}; take another one"))
}

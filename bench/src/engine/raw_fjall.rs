//! The raw limit on files: plain batches of the storage library, with a sync per batch where the
//! engine syncs too; a scan and one stored position.

use super::driver::Worker;
use super::place::Place;
use super::workload::{APPENDED, Kind, Payloads, READ, RECORDS, Workload};
use anyhow::{Result, bail};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

/// One log and one position.
pub(crate) struct Raw {
    db: Database,
    log: Keyspace,
    state: Keyspace,
    payloads: Payloads,
    mode: PersistMode,
    reads: bool,
    last: u64,
    position: u64,
}

impl Raw {
    pub(crate) fn prepare(workload: Workload, place: &Place) -> Result<Self> {
        let Place::Directory { dir, synced } = place else {
            bail!("the raw limit of files needs a directory")
        };
        let db =
            Database::builder(dir.0.join("raw")).cache_size(32 << 20).manual_journal_persist(true).open()?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(32 << 20);
        let log = db.keyspace("log", options)?;
        let state = db.keyspace("state", options)?;
        let mode = if *synced { PersistMode::SyncData } else { PersistMode::Buffer };
        let reads = workload.kind == Kind::Settle;
        let mut raw = Self { db, log, state, payloads: Payloads::new(), mode, reads, last: 0, position: 0 };
        if reads {
            for _ in 0..RECORDS.div_ceil(APPENDED) {
                raw.append()?;
            }
        }
        Ok(raw)
    }

    fn append(&mut self) -> Result<u64> {
        let mut batch = self.db.batch();
        for _ in 0..APPENDED {
            self.last += 1;
            batch.insert(&self.log, self.last.to_be_bytes(), self.payloads.next());
        }
        batch.commit()?;
        self.db.persist(self.mode)?;
        Ok(APPENDED as u64)
    }

    fn read(&mut self) -> Result<u64> {
        let mut count = 0;
        for guard in self.log.range((self.position + 1).to_be_bytes()..).take(READ) {
            let (key, value) = guard.into_inner()?;
            std::hint::black_box(value);
            self.position = key.first_chunk::<8>().map_or(0, |seq| u64::from_be_bytes(*seq));
            count += 1;
        }
        if count == 0 {
            self.position = 0;
            return Ok(0);
        }
        self.state.insert("position", self.position.to_be_bytes())?;
        self.db.persist(self.mode)?;
        Ok(count)
    }
}

impl Worker for Raw {
    async fn step(&mut self) -> Result<u64> {
        if self.reads { self.read() } else { self.append() }
    }
}

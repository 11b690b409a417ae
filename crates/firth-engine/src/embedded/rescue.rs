//! Bringing journals into order before the storage library reads them, at every opening.
//!
//! | found | done |
//! |---|---|
//! | a torn tail: the power failed while it was written | cut off, and told in the log |
//! | damage: something that was synced is gone | refused, and named |
//! | batches of which it is not known that they were synced | moved into a new journal |
//!
//! **Why they are moved.** After a failed sync the operating system marks the pages as clean. Reads
//! see them until the system evicts them, but no later sync writes them. A batch that is appended
//! behind them ends behind a hole. A new file has only new pages. The system reports the error
//! once, to the process that synced. A process that starts later cannot know, so it moves them too.
//!
//! **How it survives a cut.** The tail is written aside and synced. Its name, `rescue-N-P`, then
//! says what is to be done: cut journal `N` at byte `P`, and make this file journal `N + 1`. Each
//! step can be repeated.

use super::file::io_error;
use super::journal::{Batch, Journal};
use crate::error::{Error, ErrorKind, Result};
use rustix::fs::SeekFrom;
use std::fs::{File, OpenOptions};
use std::io::{Error as IoError, Read, Result as IoResult, Write};
use std::path::{Path, PathBuf};

/// What a disk writes whole or not at all.
const PAGE: usize = 4096;
const ASIDE: &str = "rescue.new";
const TAIL: &str = "rescue-";

/// The journals of a store that is closed.
pub(super) struct Journals<'a> {
    store: &'a Path,
    /// Batches carry marks of what was synced.
    marked: bool,
    /// Everything below this order number is on the disk, as far as this process knows.
    synced: u64,
}

impl<'a> Journals<'a> {
    pub(super) fn new(store: &'a Path, marked: bool, synced: u64) -> Self {
        Self { store, marked, synced }
    }

    /// Brings all journals into order: what they hold afterwards is whole and on the disk.
    pub(super) fn settle(&self) -> Result<()> {
        let failed = |error: IoError| io_error(self.store, "cannot bring its journals into order", error);
        let _closed = self.closed()?;
        self.finish().map_err(failed)?;
        let mut journals = self.list().map_err(failed)?;
        let Some((number, active)) = journals.pop() else { return Ok(()) };
        for (_, sealed) in &journals {
            let journal = Journal::read(&contents(sealed).map_err(failed)?);
            if let Some(hole) = &journal.hole {
                return Err(damaged(sealed, hole.from, hole.later.len()));
            }
        }
        let bytes = contents(&active).map_err(failed)?;
        let journal = Journal::read(&bytes);
        if let Some(hole) = &journal.hole {
            if journal.is_damaged(self.marked) {
                return Err(damaged(&active, hole.from, hole.later.len()));
            }
            let cut = bytes.len() - hole.from;
            let batches = hole.later.len();
            tracing::warn!(
                journal = %active.display(), at = hole.from, bytes = cut, whole_batches = batches,
                "cut off the torn tail of the journal: it was being written when the power failed, \
                 and nothing in it was acknowledged as synced"
            );
        }
        self.secure(number, &active, &bytes, &journal).map_err(failed)
    }

    /// The library's lock, so that no former handle of this process writes during the rescue.
    fn closed(&self) -> Result<Option<File>> {
        let Ok(lock) = OpenOptions::new().read(true).write(true).open(self.store.join("lock")) else {
            return Ok(None);
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(_) => {
                let context = format!("the store in {} is still being closed", self.store.display());
                Err(Error::new(ErrorKind::Unavailable, context))
            }
        }
    }

    /// Moves what is not known to be on the disk into a new journal, and cuts off what is no batch.
    fn secure(&self, number: u64, path: &Path, bytes: &[u8], journal: &Journal) -> IoResult<()> {
        let synced = self.synced.max(journal.synced());
        let known = journal.batches.iter().take_while(|batch| batch.number < synced).count();
        let (safe, unsure) = journal.batches.split_at(known);
        let end = |batches: &[Batch]| batches.last().map_or(0, |batch| batch.to);
        if unsure.iter().all(|batch| batch.is_mark) {
            return cut(path, end(safe));
        }
        // The page in which they meet may have been hit too.
        let border = end(safe) / PAGE * PAGE;
        let from = end(&safe[..safe.iter().take_while(|batch| batch.to <= border).count()]);
        let aside = self.store.join(ASIDE);
        let mut file = File::create(&aside)?;
        file.write_all(&bytes[from..journal.end()])?;
        file.sync_all()?;
        std::fs::rename(&aside, self.store.join(format!("{TAIL}{number}-{from}")))?;
        sync_dir(self.store)?;
        self.finish()
    }

    /// Does what the name of a tail says.
    fn finish(&self) -> IoResult<()> {
        let _ = std::fs::remove_file(self.store.join(ASIDE));
        for entry in std::fs::read_dir(self.store)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(words) = name.to_str().and_then(|name| name.strip_prefix(TAIL)) else { continue };
            let words = words.split_once('-').and_then(|(n, at)| Some((n.parse().ok()?, at.parse().ok()?)));
            let (number, at): (u64, usize) =
                words.ok_or_else(|| IoError::other(format!("{} is no tail", entry.path().display())))?;
            let path = |number: u64| self.store.join(format!("{number}.jnl"));
            if path(number).try_exists()? {
                cut(&path(number), at)?;
            }
            std::fs::rename(entry.path(), path(number + 1))?;
            sync_dir(self.store)?;
        }
        Ok(())
    }

    /// All journals with their numbers, oldest first.
    fn list(&self) -> IoResult<Vec<(u64, PathBuf)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.store)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(number) = name.strip_suffix(".jnl").and_then(|number| number.parse().ok()) {
                found.push((number, path));
            }
        }
        found.sort();
        Ok(found)
    }
}

/// Whether any journal of the store holds anything.
pub(super) fn is_empty(store: &Path) -> IoResult<bool> {
    for (_, path) in Journals::new(store, true, 0).list()? {
        if !contents(&path)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes the names in a folder durable.
pub(super) fn sync_dir(dir: &Path) -> IoResult<()> {
    File::open(dir)?.sync_all()
}

/// Cuts a journal off, and makes that durable.
fn cut(path: &Path, at: usize) -> IoResult<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    if file.metadata()?.len() != at as u64 {
        file.set_len(at as u64)?;
    }
    file.sync_all()
}

/// The bytes of a journal without the zeroes at its end, for which there is room in advance.
pub(super) fn contents(path: &Path) -> IoResult<Vec<u8>> {
    const PART: u64 = 256 << 10;
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    let mut at = 0;
    // Room that was never written to takes no time.
    while let Ok(next) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let start = bytes.len();
        bytes.resize(usize::try_from(next).map_err(IoError::other)?, 0);
        at = next + (&mut file).take(PART).read_to_end(&mut bytes)? as u64;
        let is_zero = bytes[start..].iter().all(|byte| *byte == 0);
        let written = if is_zero { start } else { bytes.len() };
        bytes.truncate(written);
    }
    let last = bytes.iter().rposition(|byte| *byte != 0);
    bytes.truncate(last.map_or(0, |last| last + 1));
    Ok(bytes)
}

fn damaged(path: &Path, at: usize, later: usize) -> Error {
    Error::corrupt(format!(
        "{} is damaged at byte {at}: what was stored there is gone, and {later} later batches are readable: \
         restore a backup with `firth restore`, or move the data directory away to start anew",
        path.display()
    ))
}

//! Changes of the state that are made while a backup reads it, kept in a file without a name.

use crate::backup::body_of;
use crate::error::{Error, ErrorKind, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

/// The most bytes of changes that wait to be read.
const MAX_CHANGES: u64 = 2 << 30;

/// Notes changes; a failure ends the backup and never a writer.
pub(in crate::embedded) struct ChangeLog {
    file: BufWriter<File>,
    bytes: u64,
    failed: Option<String>,
    entry: Vec<u8>,
}

impl ChangeLog {
    /// An empty log beside the store. Its name is removed at once, so that nothing of it is left.
    pub(super) fn begin(dir: &Path) -> std::io::Result<Self> {
        let path = dir.join(format!("backup-{:016x}.changes", fastrand::u64(..)));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { file, bytes: 0, failed: None, entry: Vec::new() })
    }

    /// Notes a written or removed key.
    pub(in crate::embedded) fn note(&mut self, key: &[u8], value: Option<&[u8]>) {
        if self.failed.is_some() || !super::is_kept(key) {
            return;
        }
        self.entry.clear();
        body_of(&mut self.entry, key, value, true);
        self.bytes += 4 + self.entry.len() as u64;
        let length = u32::try_from(self.entry.len()).unwrap_or(u32::MAX).to_be_bytes();
        let noted = self.file.write_all(&length).and_then(|()| self.file.write_all(&self.entry));
        self.failed = match noted {
            Err(error) => Some(error.to_string()),
            Ok(()) if self.bytes > MAX_CHANGES => {
                Some(format!("it is read too slowly: {MAX_CHANGES} bytes of changes wait"))
            }
            Ok(()) => None,
        };
    }

    /// What was noted, from the start.
    pub(super) fn read(mut self) -> Result<Changes> {
        let ended = |why: String| {
            Error::new(ErrorKind::Unavailable, format!("the backup was ended: {why}; take another one"))
        };
        if let Some(why) = self.failed.take() {
            return Err(ended(why));
        }
        let mut file = self.file.into_inner().map_err(|error| ended(error.to_string()))?;
        file.rewind().map_err(|error| ended(error.to_string()))?;
        Ok(Changes { file: BufReader::with_capacity(1 << 20, file), left: self.bytes })
    }
}

/// Noted changes, read one after the other.
pub(super) struct Changes {
    file: BufReader<File>,
    left: u64,
}

impl Changes {
    /// The next change as it stands in a block; nothing at the end.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut read = || {
            let mut length = [0; 4];
            self.file.read_exact(&mut length)?;
            let mut entry = vec![0; u32::from_be_bytes(length) as usize];
            self.file.read_exact(&mut entry).map(|()| entry)
        };
        let entry = read().map_err(|error: std::io::Error| {
            let context = format!("the backup was ended: its noted changes cannot be read ({error})");
            Error::new(ErrorKind::Unavailable, context)
        })?;
        self.left -= 4 + entry.len() as u64;
        Ok(Some(entry))
    }
}

//! Backups of an engine on files: one stream that shows the store at one moment, and a new data
//! directory made of it.
//!
//! [`Backup`] is taken of a running engine ([`Backend::backup`](crate::facet::Backend::backup)).
//! [`restore`] makes a data directory, [`BackupReader`] verifies a stream while it passes, and
//! [`check_dir`] reads a whole data directory that no process has open.
//!
//! # The stream
//!
//! All fixed numbers are big-endian; *number* is LEB128, *run* a number and that many bytes.
//!
//! | part | bytes |
//! |---|---|
//! | head | `FIRTHBAK`, version (u32), layout of the store (u32), engine time in µs (u64), wall clock in ms (u64), checksum (u64) |
//! | block | kind (u8), length of the body (u32), checksum of these two (u32), body, checksum (u64) |
//!
//! | kind | body |
//! |---|---|
//! | `S` | entries of the state: run key, run value |
//! | `C` | later changes of the state, in order: 1 run key run value, or 0 run key for a removal |
//! | `P` | once: number of partitions, number of records, estimate of their bytes |
//! | `L` | records: number of the log, then number `seq`, run value |
//! | `E` | once, at the end: how many entries, changes, records and bytes of bodies |
//! | `F` | instead of the end: why there is none, as text |
//!
//! A checksum is XXH3 with the checksum before it as the seed. So an altered, missing, repeated or
//! moved block is found where it stands. Checksums find damage; they stop no one who forges a file.
//!
//! **One moment.** The state is read piece by piece while writers go on, and every change since the
//! first piece is noted and follows in `C`. Both together are the state when the last change was
//! noted. Records never change, so they are read afterwards, as far as that state knows them.

mod reader;
mod writer;

pub use crate::embedded::backup::{
    CheckReport, DamagedPartition, Restored, SetAside, check_dir, check_file, restore, set_aside,
};
pub use crate::name::Partition as PartitionName;
pub use reader::{BackupPlan, BackupReader, Block, Progress};
pub(crate) use writer::{BlockWriter, StreamHead, body_of};

use crate::error::{Error, ErrorKind, Result};
use bytes::Bytes;

const MAGIC: &[u8; 8] = b"FIRTHBAK";
/// The version of the stream; [`BackupReader`] reads all up to it.
const VERSION: u32 = 1;
/// Magic, version, layout, two times, checksum.
const HEAD: usize = 40;
/// Kind, length, checksum.
const BLOCK_HEAD: usize = 9;
/// The largest body. A block holds many entries, or a single one that is larger than a block.
const MAX_BODY: usize = 64 << 20;

/// A backup that is being taken. Dropping it ends it.
///
/// The store goes on taking writes. Until the backup ends, it keeps the files of records that are
/// trimmed, and notes changes of the state in a file without a name.
pub struct Backup {
    source: Option<Box<dyn BlockSource>>,
    last_words: Option<Bytes>,
}

/// Gives the blocks of a backup, one after the other.
pub(crate) trait BlockSource: Send {
    /// The next piece of the stream; nothing at its end. It reads files: not for async tasks.
    fn next_block(&mut self) -> Result<Option<Bytes>>;

    /// The block that stands in the place of the end.
    fn failed(&mut self, why: &Error) -> Bytes;
}

impl Backup {
    pub(crate) fn new(source: impl BlockSource + 'static) -> Self {
        Self { source: Some(Box::new(source)), last_words: None }
    }

    /// The next piece of the stream, at most about 256 KiB unless a single record is larger;
    /// nothing at its end. An error ends the backup, and so does dropping the returned future
    /// before it is ready.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(mut source) = self.source.take() else {
            return Err(Error::new(ErrorKind::Closed, "the backup is over"));
        };
        let read = tokio::task::spawn_blocking(move || match source.next_block() {
            Ok(block) => (Ok(block), None, Some(source)),
            Err(error) => {
                let last_words = source.failed(&error);
                (Err(error), Some(last_words), None)
            }
        });
        let (block, last_words, source) = read
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, "a backup did not finish").with_source(error))?;
        self.last_words = last_words;
        self.source = source.filter(|_| matches!(block, Ok(Some(_))));
        block
    }

    /// What a reader of the stream is to get after an error instead of an end: it then knows why.
    pub fn last_words(&mut self) -> Option<Bytes> {
        self.last_words.take()
    }
}

impl std::fmt::Debug for Backup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backup").field("is_over", &self.source.is_none()).finish()
    }
}

/// What a stream holds, in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Entries of the state.
    pub entries: u64,
    /// Changes of the state that were made while it was read.
    pub changes: u64,
    /// Records.
    pub records: u64,
    /// Bytes of all bodies.
    pub bytes: u64,
}

//! Reads everything that a data directory or a backup holds, and names what is damaged.

use super::inspect::{self, State};
use crate::backup::{BackupReader, Block};
use crate::embedded::directory::{self, STORE};
use crate::embedded::file::{FileOptions, Opened};
use crate::embedded::format;
use crate::embedded::keys::MARKED;
use crate::embedded::lock::DirLock;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Partition;
use std::io::Read;
use std::path::Path;

/// How many damaged partitions are named.
const NAMED: usize = 1000;
/// How many findings a partition names.
const FINDINGS: usize = 10;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Partitions.
    pub partitions: u64,
    /// Groups, counted once per partition.
    pub groups: u64,
    /// Records that are readable.
    pub records: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Entries of the state.
    pub entries: u64,
    /// Partitions with damage; at most 1000 are named.
    pub damaged: Vec<DamagedPartition>,
    /// Damage that belongs to no partition.
    pub other: Vec<String>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.damaged.is_empty() && self.other.is_empty()
    }
}

/// A damaged partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedPartition {
    /// Which.
    pub at: Partition,
    /// Records that can be read.
    pub readable: u64,
    /// Records that cannot.
    pub unreadable: u64,
    /// The newest record that cannot be read; 0 if all can.
    pub last_unreadable: u64,
    /// Records behind that one, which stay when the partition is set aside.
    pub behind: u64,
    /// What else is wrong.
    pub findings: Vec<String>,
}

/// Reads everything in a data directory that no process has open. `progress` hears how many records
/// of how many were read.
///
/// Journals are brought into order first, as every start does; nothing else is changed. A store
/// that cannot even be opened is an error, which says what to do.
pub fn check_dir(dir: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
    let (_lock, opened) = open(dir)?;
    let state = State::read(&opened).map_err(unreadable_state)?;
    report(&opened, &state, progress)
}

/// Opens the store of a directory alone, as it is; answers the lock, too.
pub(super) fn open(dir: &Path) -> Result<(DirLock, Opened)> {
    if !dir.join(STORE).exists() {
        directory::check_restored(dir)?;
        let context = format!("there is no store in {}: give the data directory of a server", dir.display());
        return Err(Error::new(ErrorKind::NotFound, context));
    }
    let lock = DirLock::acquire(dir)?;
    let found = format::check(dir)?;
    let opened = Opened::open(dir, &FileOptions::default(), found >= MARKED, 0)?;
    Ok((lock, opened))
}

pub(super) fn unreadable_state(error: Error) -> Error {
    let context = "the state of the store is damaged, and without it no record can be found: restore a backup with \
                   `firth restore`";
    Error::corrupt(context).with_source(error)
}

pub(super) fn report(
    opened: &Opened,
    state: &State,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport> {
    let total = state.partitions.values().map(|meta| meta.last.seq.saturating_sub(meta.trimmed.seq)).sum();
    let mut report = CheckReport {
        partitions: state.partitions.len() as u64,
        groups: state.groups.len() as u64,
        entries: state.entries,
        ..CheckReport::default()
    };
    let mut read = 0;
    for (at, meta) in &state.partitions {
        let log = inspect::read_log(opened, meta, &mut |_, _| {
            read += 1;
            if read % 1024 == 0 {
                progress(read, total);
            }
            Ok(())
        })?;
        report.records += log.readable;
        report.bytes += log.bytes;
        let mut findings = state.findings(meta);
        findings.extend(log.findings);
        findings.truncate(FINDINGS);
        if log.unreadable > 0 || !findings.is_empty() {
            let behind = if log.unreadable > 0 { meta.last.seq - log.last_unreadable } else { log.readable };
            let (readable, unreadable) = (log.readable, log.unreadable);
            let at = at.clone();
            let last_unreadable = log.last_unreadable;
            report.damaged.push(DamagedPartition {
                at,
                readable,
                unreadable,
                last_unreadable,
                behind,
                findings,
            });
        }
        progress(read, total);
    }
    report.damaged.truncate(NAMED);
    report.other =
        state.wrong.iter().filter(|(owner, _)| owner.is_none()).map(|(_, what)| what.clone()).collect();
    report.other.truncate(FINDINGS);
    Ok(report)
}

/// Reads a whole backup: every checksum, every value. `progress` hears how far it is. A damaged or
/// cut stream is an error that names the place.
pub fn check_file(
    mut input: impl Read,
    progress: &mut dyn FnMut(&crate::backup::Progress),
) -> Result<CheckReport> {
    let mut reader = BackupReader::new();
    let mut piece = vec![0; super::BLOCK];
    let mut report = CheckReport::default();
    loop {
        let count = input.read(&mut piece).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("the backup cannot be read ({error})"))
        })?;
        reader.push(&piece[..count]);
        while let Some(block) = reader.block()? {
            look_into(block, &mut report);
        }
        progress(&reader.progress());
        if count == 0 {
            break;
        }
    }
    let totals = reader.finish()?;
    (report.entries, report.bytes) = (totals.entries, totals.bytes);
    Ok(report)
}

/// Decodes every value of a block.
fn look_into(block: Block, report: &mut CheckReport) {
    let mut state = State::default();
    match block {
        Block::Entries(entries) => entries.iter().for_each(|(key, value)| state.take(key, value)),
        Block::Changes(changes) => {
            for (key, value) in &changes {
                value.iter().for_each(|value| state.take(key, value));
            }
            // A change is no partition or group of its own.
            (state.partitions, state.groups) = Default::default();
        }
        Block::Records { log, records } => {
            for (seq, value) in &records {
                match inspect::is_readable(value) {
                    true => report.records += 1,
                    false => state.wrong.push((None, format!("record {seq} of log {log} cannot be read"))),
                }
            }
        }
        Block::Plan(_) | Block::End(_) | Block::Failed(_) => {}
    }
    report.partitions += state.partitions.len() as u64;
    report.groups += state.groups.len() as u64;
    let left = FINDINGS.saturating_sub(report.other.len());
    report.other.extend(state.wrong.into_iter().map(|(_, what)| what).take(left));
}

//! Sets damaged partitions aside, so that the rest of a store serves again.
//!
//! The store is written anew without what is damaged, and takes the place of the old one in one
//! step. **Why everything is written anew**: small logs share table files, and the storage library
//! would meet the damaged place again whenever it merges these.
//!
//! | of a partition that is set aside | goes where |
//! |---|---|
//! | records up to the newest unreadable one | readable ones: into a backup file beside the store |
//! | records behind that one | stay, as after a trim up to there |
//! | groups, dead letters, delayed messages, marks of sources | stay |
//! | retries of records that went | count as lost when they come due |
//! | the old store | stays as `store.damaged-TIME` until it is removed by hand |

use super::check::{self, CheckReport, DamagedPartition};
use super::inspect::{self, State};
use super::is_kept;
use super::restore::Filling;
use crate::backup::{BlockWriter, StreamHead, body_of};
use crate::codec::{put_number, put_run};
use crate::embedded::directory::{self, RESTORING, STORE};
use crate::embedded::file::{Opened, io_error};
use crate::embedded::keys::{self, FORMAT, Space};
use crate::embedded::rescue;
use crate::embedded::step::{KeyView, Range};
use crate::embedded::values::{PartitionMeta, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::id::RecordId;
use crate::name::Partition;
use bytes::Bytes;
use rustix::fs::{CWD, RenameFlags};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The new store, once it is whole, and the old one for a moment.
const EXCHANGED: &str = "store.exchanged";

/// What became of the partitions that were set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetAside {
    /// The partitions, as they were.
    pub partitions: Vec<DamagedPartition>,
    /// Readable records that went into `file`.
    pub moved: u64,
    /// A backup that holds these and nothing else; `firth restore` makes a directory of it.
    pub file: PathBuf,
    /// The store as it was.
    pub old_store: PathBuf,
}

/// Sets damaged partitions of a data directory aside. All that are damaged must be named. No
/// process may have the directory open, and the disk must have room for the store once more.
///
/// `progress` hears how many records of how many were read. If the process is killed, the store is
/// the old one or the new one.
pub fn set_aside(dir: &Path, named: &[Partition], progress: &mut dyn FnMut(u64, u64)) -> Result<SetAside> {
    let (lock, opened) = check::open(dir)?;
    let state = State::read(&opened).map_err(check::unreadable_state)?;
    let report = check::report(&opened, &state, progress)?;
    let damaged = judge(&report, named)?;
    check_room(dir, &opened)?;
    clear(dir).map_err(|error| io_error(dir, "cannot be cleared of an earlier try", error))?;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let file = dir.join(format!("set-aside-{now_ms}.backup"));
    let moved = write_remainder(&file, &opened, &state, &damaged)?;
    rebuild(dir, &opened, &state, &damaged)?;
    drop(opened);
    let old_store = dir.join(format!("store.damaged-{now_ms}"));
    exchange(dir, &old_store).map_err(|error| io_error(dir, "cannot exchange the stores", error))?;
    drop(lock);
    Ok(SetAside { partitions: damaged, moved, file, old_store })
}

/// The damage of the named partitions; refuses if others are damaged, or these are not.
fn judge(report: &CheckReport, named: &[Partition]) -> Result<Vec<DamagedPartition>> {
    if let Some(what) = report.other.first() {
        let context =
            format!("the state of the store is damaged ({what}): restore a backup with `firth restore`");
        return Err(Error::corrupt(context));
    }
    let has_lost = |damage: &&DamagedPartition| damage.unreadable > 0;
    for at in named {
        if !report.damaged.iter().filter(has_lost).any(|damage| damage.at == *at) {
            let context = format!("all records of partition {at} can be read: there is nothing to set aside");
            return Err(Error::new(ErrorKind::Invalid, context));
        }
    }
    let others = report.damaged.iter().filter(has_lost).filter(|damage| !named.contains(&damage.at));
    let others: Vec<String> = others.take(10).map(|damage| format!("--set-aside {}", damage.at)).collect();
    if !others.is_empty() {
        let context = format!("other partitions are damaged, too: add {}", others.join(" "));
        return Err(Error::new(ErrorKind::Invalid, context));
    }
    Ok(report.damaged.iter().filter(has_lost).cloned().collect())
}

fn check_room(dir: &Path, opened: &Opened) -> Result<()> {
    let wanted = opened.logs().disk_bytes() + (256 << 20);
    let free = directory::free_bytes(dir).unwrap_or(u64::MAX);
    if free >= wanted {
        return Ok(());
    }
    let context = format!(
        "the store is written anew, which takes {} MiB, and the disk of {} has {} MiB free: free some space",
        wanted >> 20,
        dir.display(),
        free >> 20
    );
    Err(Error::new(ErrorKind::Unavailable, context))
}

/// Removes what an earlier try left half-made; a whole store is kept.
fn clear(dir: &Path) -> std::io::Result<()> {
    let aside = dir.join(RESTORING);
    if aside.try_exists()? {
        std::fs::remove_dir_all(aside)?;
    }
    let exchanged = dir.join(EXCHANGED);
    if exchanged.try_exists()? {
        std::fs::rename(exchanged, dir.join(format!("store.damaged-{:08x}", fastrand::u32(..))))?;
    }
    Ok(())
}

fn loss<'a>(damaged: &'a [DamagedPartition], at: &Partition) -> Option<&'a DamagedPartition> {
    damaged.iter().find(|damage| damage.at == *at)
}

/// Writes the readable records that go into a backup of their own, numbered anew without holes.
fn write_remainder(file: &Path, opened: &Opened, state: &State, damaged: &[DamagedPartition]) -> Result<u64> {
    let failed = |error| io_error(file, "cannot be written", error);
    let out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(failed)?;
    let engine_us = state.partitions.values().map(|meta| meta.last.ms).max().unwrap_or(0) * 1000;
    let (writer, head) =
        BlockWriter::begin(StreamHead { layout: FORMAT, engine_us, wall_ms: engine_us / 1000 });
    let mut remainder = MovedRecords { out: BufWriter::new(out), writer };
    remainder.put(&head)?;
    let logs: Vec<_> =
        state.partitions.iter().filter_map(|(at, meta)| Some((meta, loss(damaged, at)?))).collect();
    let counts = logs.iter().map(|(meta, damage)| count(opened, meta, damage)).collect::<Result<Vec<_>>>()?;
    remainder.state(
        opened,
        state,
        damaged,
        &logs.iter().map(|(meta, _)| meta.no).zip(counts.clone()).collect::<Vec<_>>(),
    )?;
    let moved = counts.iter().map(|(count, _)| count).sum();
    let plan = remainder.writer.plan(logs.len() as u64, moved, 0);
    remainder.put(&plan)?;
    for (meta, damage) in logs {
        remainder.log(opened, meta, damage)?;
    }
    let end = remainder.writer.end();
    remainder.put(&end)?;
    remainder.out.into_inner().map_err(|error| failed(error.into_error()))?.sync_all().map_err(failed)?;
    Ok(moved)
}

/// How many readable records go, and when the last one of them was stored.
fn count(opened: &Opened, meta: &PartitionMeta, damage: &DamagedPartition) -> Result<(u64, u64)> {
    let (mut count, mut ms) = (0, meta.trimmed.ms);
    each_that_goes(opened, meta, damage, &mut |id, _| {
        (count, ms) = (count + 1, id.ms);
        Ok(())
    })?;
    Ok((count, ms))
}

fn each_that_goes(
    opened: &Opened,
    meta: &PartitionMeta,
    damage: &DamagedPartition,
    each: &mut dyn FnMut(RecordId, Bytes) -> Result<()>,
) -> Result<()> {
    let last = RecordId::new(meta.last.ms, damage.last_unreadable);
    inspect::read_log(opened, &PartitionMeta { last, ..meta.clone() }, each).map(drop)
}

struct MovedRecords {
    out: BufWriter<File>,
    writer: BlockWriter,
}

impl MovedRecords {
    fn put(&mut self, block: &[u8]) -> Result<()> {
        self.out.write_all(block).map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("the readable records cannot be written ({error})"))
        })
    }

    /// The catalog, and all partitions: those set aside with what went, the others empty.
    fn state(
        &mut self,
        opened: &Opened,
        state: &State,
        damaged: &[DamagedPartition],
        counts: &[(u64, (u64, u64))],
    ) -> Result<()> {
        let mut body = Vec::new();
        let mut number = 0;
        for prefix in [&b"#"[..], b"c", b"s"] {
            opened.scan(Space::State, Range::prefix(prefix.to_vec()), &mut |key, value| {
                body_of(&mut body, key, Some(&value), false);
                number += 1;
                Ok(true)
            })?;
        }
        for (at, meta) in &state.partitions {
            let moved = counts.iter().find(|(no, _)| *no == meta.no && loss(damaged, at).is_some());
            let (trimmed, last) = match moved {
                Some((_, (count, ms))) => (meta.trimmed, RecordId::new(*ms, meta.trimmed.seq + count)),
                None => (meta.last, meta.last),
            };
            let meta =
                PartitionMeta { no: meta.no, trimmed, last, rank: meta.rank, ..PartitionMeta::default() };
            body_of(&mut body, &keys::partition(at), Some(&meta.packed()), false);
            number += 1;
        }
        let block = self.writer.entries(number, &body);
        self.put(&block)
    }

    fn log(&mut self, opened: &Opened, meta: &PartitionMeta, damage: &DamagedPartition) -> Result<()> {
        let mut body = Vec::new();
        let mut count = 0;
        let mut next = meta.trimmed.seq;
        each_that_goes(opened, meta, damage, &mut |_, value| {
            if count == 0 {
                put_number(&mut body, meta.no);
            }
            (next, count) = (next + 1, count + 1);
            put_number(&mut body, next);
            put_run(&mut body, &value);
            if body.len() < super::BLOCK {
                return Ok(());
            }
            let block = self.writer.records(std::mem::take(&mut count), &std::mem::take(&mut body));
            self.put(&block)
        })?;
        if count > 0 {
            let block = self.writer.records(count, &body);
            self.put(&block)?;
        }
        Ok(())
    }
}

/// Writes the new store aside.
fn rebuild(dir: &Path, opened: &Opened, state: &State, damaged: &[DamagedPartition]) -> Result<()> {
    let aside = dir.join(RESTORING);
    let mut store = Filling::begin(&aside)?;
    let range = Range { from: Vec::new(), to: vec![u8::MAX; 32] };
    opened.scan(Space::State, range, &mut |key, value| {
        if is_kept(key) {
            store.write(Space::State, key.to_vec(), Some(value))?;
        }
        Ok(true)
    })?;
    for (at, meta) in &state.partitions {
        let mut first = meta.trimmed;
        if let Some(damage) = loss(damaged, at) {
            first = RecordId::new(meta.trimmed.ms, damage.last_unreadable);
            let cut = PartitionMeta { trimmed: first, measured: 0, measured_bytes: 0, ..meta.clone() };
            store.write(Space::State, keys::partition(at), Some(cut.packed()))?;
        }
        let kept = PartitionMeta { trimmed: first, ..meta.clone() };
        inspect::read_log(opened, &kept, &mut |id, value| {
            store.write(Space::Log(meta.no), keys::record(id.seq), Some(value))
        })?;
    }
    store.seal(&aside)
}

/// Puts the new store into the place of the old one, in one step.
fn exchange(dir: &Path, old_store: &Path) -> std::io::Result<()> {
    let exchanged = dir.join(EXCHANGED);
    std::fs::rename(dir.join(RESTORING), &exchanged)?;
    rescue::sync_dir(dir)?;
    rustix::fs::renameat_with(CWD, &exchanged, CWD, dir.join(STORE), RenameFlags::EXCHANGE)?;
    rescue::sync_dir(dir)?;
    std::fs::rename(&exchanged, old_store)?;
    rescue::sync_dir(dir)
}

//! What happens once after opening files: leases of the former process end, half-finished deletions
//! are finished, and the clock learns how late it must be.

use super::claim_shard_values::ClaimShardMeta;
use super::file::Opened;
use super::hooks::Hooks;
use super::keys::{self, Space};
use super::step::{Batch, KeyView, Now, Range, Step, Write};
use super::steps::partitions;
use super::values::{LeaseEntry, PartitionMeta, Value};
use crate::error::{Error, ErrorKind, Result};
use fjall::PersistMode;
use std::collections::HashSet;

/// Brings the store into order; answers the newest time that it knows, in µs.
pub(super) fn recover(opened: &Opened) -> Result<u64> {
    let (live, newest_ms) = partitions(opened)?;
    let logs = opened.logs();
    if let Some(no) = logs.missing().iter().find(|no| live.contains(no)) {
        let context = format!(
            "the files of log-{no} are missing: `firth check DIR` names the partition, and can set it aside; else \
             restore a backup with `firth restore`"
        );
        return Err(Error::corrupt(context));
    }
    let known = logs.grown().into_iter().chain(logs.in_shared_keyspace().map_err(write_error)?);
    for no in known.filter(|no| !live.contains(no)).collect::<HashSet<_>>() {
        logs.drop_log(no).map_err(write_error)?;
    }
    let newest_epoch = end_leases(opened)?;
    finish_deletions(opened)?;
    opened.persist(PersistMode::SyncData).map_err(write_error)?;
    opened.publish();
    Ok(newest_epoch.max(newest_ms.saturating_mul(1000)))
}

fn partitions(opened: &Opened) -> Result<(HashSet<u64>, u64)> {
    let mut live = HashSet::new();
    let mut newest_ms = 0;
    opened.scan(Space::State, Range::prefix(b"p".to_vec()), &mut |_, value| {
        let part = PartitionMeta::read(value)?;
        newest_ms = newest_ms.max(part.last.ms);
        live.insert(part.no);
        Ok(true)
    })?;
    Ok((live, newest_ms))
}

/// Expires all leases: only the former process could hold a lease here, and it is gone. Epochs and
/// tokens stay on record. A remote holder may still renew its lease until another holder takes
/// over.
fn end_leases(opened: &Opened) -> Result<u64> {
    let mut ended = Vec::new();
    let mut newest = 0;
    opened.scan(Space::State, Range::prefix(b"l".to_vec()), &mut |key, value| {
        let lease = LeaseEntry::read(value)?;
        newest = newest.max(lease.epoch.0);
        if lease.deadline > 0 {
            let value = Some(LeaseEntry { deadline: 0, ..lease }.packed());
            ended.push(Write { space: Space::State, key: key.to_vec(), value });
        }
        Ok(true)
    })?;
    for epochs in [b"e".to_vec(), keys::gone_epoch()] {
        opened.scan(Space::State, Range::prefix(epochs), &mut |_, value| {
            newest = newest.max(u64::read(value)?);
            Ok(true)
        })?;
    }
    newest = newest.max(newest_grant(opened)?);
    opened.write(ended).map_err(write_error)?;
    Ok(newest)
}

/// The newest epoch of all claim shards. Members of claim shards keep their deadlines: a member may
/// be another process, which the former process only served. That member works on until its
/// deadline. If a member joins again under its name, its former life ends at once, as ever.
fn newest_grant(opened: &Opened) -> Result<u64> {
    let mut newest = 0;
    opened.scan(Space::State, Range::prefix(b"bm".to_vec()), &mut |_, value| {
        newest = newest.max(ClaimShardMeta::read(value)?.epoch);
        Ok(true)
    })?;
    Ok(newest)
}

fn finish_deletions(opened: &Opened) -> Result<()> {
    loop {
        let hooks = Hooks::default();
        let mut step = Step::new(opened, Now { us: 0 }, &hooks);
        let has_more = partitions::sweep(&mut step)?;
        let Batch { writes, .. } = step.batch;
        opened.write(writes).map_err(write_error)?;
        if !has_more {
            return Ok(());
        }
    }
}

pub(super) fn write_error(error: fjall::Error) -> Error {
    Error::new(ErrorKind::Unavailable, "the store cannot be written").with_source(error)
}

/// Kept here so that the key layout and its recovery are read together.
const _: () = assert!(keys::FORMAT == 3, "recovery must know the layout");

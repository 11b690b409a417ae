//! Making and deleting partitions.

use crate::embedded::hooks::Mutation;
use crate::embedded::keys::{self, SWEPT};
use crate::embedded::step::{MaintenanceJob, Range, Step};
use crate::embedded::values::{GroupMeta, PartitionMeta, Value};
use crate::error::Result;
use crate::name::Partition;
use crate::watch::HintKey;

/// How many keys one sweep removes at most, so that no batch grows without bound.
const SWEEP: usize = 5_000;

/// What [`create`] found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::embedded) enum FormerPartition {
    /// Nothing.
    Missing,
    /// One of a lower rank, which is to be swept.
    Replaced,
    /// One that stays.
    Stays,
}

/// What is there with a lower rank is taken out of sight in the same step.
pub(in crate::embedded) fn create(step: &mut Step<'_>, at: &Partition, rank: u64) -> Result<FormerPartition> {
    let former = match step.load::<PartitionMeta>(&keys::partition(at))? {
        Some(meta) if meta.rank >= rank => return Ok(FormerPartition::Stays),
        Some(meta) => {
            take_away(step, at, &meta)?;
            FormerPartition::Replaced
        }
        None => FormerPartition::Missing,
    };
    let no = step.fresh_number()?;
    step.store(keys::partition(at), &PartitionMeta { no, rank, ..PartitionMeta::default() });
    Ok(former)
}

/// Takes a partition of a lower rank out of sight in one step; what remains under its number is
/// swept afterwards.
pub(in crate::embedded) fn delete(step: &mut Step<'_>, at: &Partition, rank: u64) -> Result<bool> {
    step.batch.frugal = true;
    match step.load::<PartitionMeta>(&keys::partition(at))? {
        Some(meta) if meta.rank < rank || step.planted(Mutation::DeleteAnyLife) => {
            take_away(step, at, &meta)?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

fn take_away(step: &mut Step<'_>, at: &Partition, meta: &PartitionMeta) -> Result<()> {
    let mut groups = Vec::new();
    step.scan(Range::prefix(keys::numbered(b'g', meta.no)), &mut |_, value| {
        groups.push(GroupMeta::read(value)?.no);
        Ok(true)
    })?;
    let mut leases = Vec::new();
    step.scan(Range::prefix(keys::group_leases(at)), &mut |key, _| {
        leases.push(key.to_vec());
        Ok(true)
    })?;
    for no in groups.into_iter().chain([meta.no]) {
        step.store_raw(keys::swept(no), bytes::Bytes::new());
    }
    leases.into_iter().for_each(|key| step.remove(key));
    step.remove(keys::partition(at));
    step.batch.jobs.push(MaintenanceJob::Drop(meta.no));
    step.hint(HintKey::Log(at.clone()));
    step.hint(HintKey::GroupLeases(at.clone()));
    Ok(())
}

/// Removes a part of what deleted partitions and groups left behind; true while there is more.
pub(in crate::embedded) fn sweep(step: &mut Step<'_>) -> Result<bool> {
    (step.batch.relaxed, step.batch.frugal) = (true, true);
    let Some(mark) = step.first_key(Range::prefix(b"z".to_vec()))? else {
        return Ok(false);
    };
    let number = keys::number_at(&mark, 1).unwrap_or_default();
    let mut found = Vec::new();
    for kind in SWEPT {
        step.scan(Range::prefix(keys::numbered(*kind, number)), &mut |key, _| {
            found.push(key.to_vec());
            Ok(found.len() < SWEEP)
        })?;
    }
    if found.len() < SWEEP {
        found.push(mark);
    }
    found.into_iter().for_each(|key| step.remove(key));
    Ok(true)
}

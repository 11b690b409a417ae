//! Retention: cutting the log off at the front, as far as the groups allow.
//!
//! By size needs the sum of what is there. Appends do not pay for it: the sum is kept by the trims
//! themselves, which add up what is new since the last one, in bounded steps. Any other trim makes
//! the sum worthless, and the next one by size counts from the front again.

use super::log::{id_of, last_where, position_after};
use crate::embedded::hooks::Mutation;
use crate::embedded::keys::{self, Space};
use crate::embedded::step::{MaintenanceJob, Range, Step};
use crate::embedded::values::{GroupMeta, PartitionMeta, Value};
use crate::error::{Error, Result};
use crate::facet::{Trim, TrimTo, Trimmed};
use crate::name::Partition;

/// How many records, and how many bytes of them, one step by size looks at.
const STEP_RECORDS: usize = 4096;
const STEP_BYTES: usize = 8 << 20;

/// One bounded step of a trim.
pub(in crate::embedded) struct Cut {
    pub(in crate::embedded) trimmed: Trimmed,
    /// There is more to do.
    pub(in crate::embedded) more: bool,
}

pub(in crate::embedded) fn trim(step: &mut Step<'_>, at: &Partition, trim: Trim) -> Result<Cut> {
    step.batch.frugal = true;
    let mut part = step.partition(at)?;
    let allowed = if trim.lossy { part.last.seq } else { floor(step, &part)? };
    if let TrimTo::KeepBytes(keep) = trim.to {
        return by_size(step, at, part, keep, allowed);
    }
    let wanted = wanted(step, &part, trim.to)?;
    let target = wanted.min(allowed).max(part.trimmed.seq);
    let removed = target - part.trimmed.seq;
    if removed > 0 {
        part.trimmed = id_of(step, &part, target)?;
        if !step.planted(Mutation::TrimByStaleSum) {
            (part.measured, part.measured_bytes) = (0, 0);
        }
        step.store(keys::partition(at), &part);
    }
    // Also when nothing is new: what was in memory at the last trim may be in a file by now.
    step.batch.jobs.push(MaintenanceJob::Cut(part.no, target));
    let trimmed = Trimmed { removed, trimmed: part.trimmed, held_back: allowed < wanted };
    Ok(Cut { trimmed, more: false })
}

fn wanted(step: &Step<'_>, part: &PartitionMeta, to: TrimTo) -> Result<u64> {
    match to {
        TrimTo::Id(id) => position_after(step, part, id),
        TrimTo::Keep(count) => Ok(part.last.seq.saturating_sub(count)),
        TrimTo::KeepBytes(_) => Ok(part.trimmed.seq),
        TrimTo::OlderThan(age) => {
            let oldest_kept =
                step.now.ms().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            last_where(step, part, |id| id.ms < oldest_kept)
        }
    }
}

/// Adds up what is new, and once everything is counted, cuts from the front until the rest fits.
fn by_size(
    step: &mut Step<'_>,
    at: &Partition,
    mut part: PartitionMeta,
    keep: u64,
    allowed: u64,
) -> Result<Cut> {
    if part.measured < part.trimmed.seq {
        (part.measured, part.measured_bytes) = (part.trimmed.seq, 0);
    }
    let before = part.clone();
    sizes_after(step, &before, before.measured, |seq, bytes| {
        (part.measured, part.measured_bytes) = (seq, part.measured_bytes + bytes);
        true
    })?;
    let is_counted = part.measured == part.last.seq;
    let mut target = part.trimmed.seq;
    if is_counted {
        let mut left = part.measured_bytes;
        sizes_after(step, &before, target, |seq, bytes| {
            let cut = left > keep && seq <= allowed;
            if cut {
                (target, left) = (seq, left - bytes.min(left));
            }
            cut
        })?;
        part.measured_bytes = left;
    }
    let removed = target - part.trimmed.seq;
    if removed > 0 {
        part.trimmed = id_of(step, &before, target)?;
    }
    step.batch.jobs.push(MaintenanceJob::Cut(part.no, target));
    let too_much = part.measured_bytes > keep;
    if part != before {
        step.store(keys::partition(at), &part);
    }
    let held_back = is_counted && too_much && target >= allowed;
    let trimmed = Trimmed { removed, trimmed: part.trimmed, held_back };
    Ok(Cut { trimmed, more: !is_counted || (too_much && target < allowed) })
}

/// The packed size of each record after `seq`, as long as `each` wants more and the step's limits
/// allow.
fn sizes_after(
    step: &Step<'_>,
    part: &PartitionMeta,
    seq: u64,
    mut each: impl FnMut(u64, u64) -> bool,
) -> Result<()> {
    let mut records = 0;
    let mut bytes = 0;
    let range = Range { from: keys::record(seq + 1), to: keys::record(u64::MAX) };
    step.view.scan(Space::Log(part.no), range, &mut |key, value| {
        let seq = keys::number_at(key, 0).ok_or_else(|| Error::corrupt("a record has a damaged key"))?;
        (records, bytes) = (records + 1, bytes + value.len());
        // Before the packed content stands the time.
        let wanted = each(seq, value.len().saturating_sub(8) as u64);
        Ok(wanted && records < STEP_RECORDS && bytes < STEP_BYTES)
    })
}

/// The last record that no group needs any more.
fn floor(step: &Step<'_>, part: &PartitionMeta) -> Result<u64> {
    let mut floors = Vec::new();
    step.scan(Range::prefix(keys::numbered(b'g', part.no)), &mut |_, value| {
        let group = GroupMeta::read(value)?;
        let due = step.first_key(Range::prefix(keys::numbered(b'd', group.no)))?;
        let due = due.and_then(|key| keys::id_at_end(&key)).filter(|_| !step.planted(Mutation::TrimDue));
        floors.push(due.map_or(u64::MAX, |id| id.seq - 1).min(group.first_open() - 1));
        Ok(true)
    })?;
    let floor = match step.planted(Mutation::TrimToHighestFrontier) {
        true => floors.into_iter().max(),
        false => floors.into_iter().min(),
    };
    Ok(floor.unwrap_or(part.last.seq))
}

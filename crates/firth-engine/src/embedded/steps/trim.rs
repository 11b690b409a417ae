//! Retention: cutting the log off at the front, as far as the groups allow.

use super::log::{id_of, last_where, position_after};
use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Chore, Range, Step};
use crate::embedded::values::{GroupMeta, PartitionMeta, Value};
use crate::error::Result;
use crate::facet::{Trim, TrimTo, Trimmed};
use crate::name::Partition;

pub(in crate::embedded) fn trim(step: &mut Step<'_>, at: &Partition, trim: Trim) -> Result<Trimmed> {
    step.batch.frugal = true;
    let mut part = step.partition(at)?;
    let wanted = wanted(step, &part, trim.to)?;
    let allowed = if trim.lossy { part.last.seq } else { floor(step, &part)? };
    let target = wanted.min(allowed).max(part.trimmed.seq);
    let removed = target - part.trimmed.seq;
    if removed > 0 {
        part.trimmed = id_of(step, &part, target)?;
        step.store(keys::partition(at), &part);
    }
    // Also when nothing is new: what was in memory at the last trim may be in a file by now.
    step.batch.chores.push(Chore::Cut(part.no, target));
    Ok(Trimmed { removed, trimmed: part.trimmed, held_back: allowed < wanted })
}

fn wanted(step: &Step<'_>, part: &PartitionMeta, to: TrimTo) -> Result<u64> {
    match to {
        TrimTo::Id(id) => position_after(step, part, id),
        TrimTo::Keep(count) => Ok(part.last.seq.saturating_sub(count)),
        TrimTo::OlderThan(age) => {
            let oldest_kept =
                step.now.ms().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            last_where(step, part, |id| id.ms < oldest_kept)
        }
    }
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

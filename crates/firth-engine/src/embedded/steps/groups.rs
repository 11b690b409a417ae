//! Groups: made, opened, looked at, moved, deleted.

use super::due;
use super::leases::{self, fence};
use super::log::{id_of, last_where, position_after, stored};
use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Range, Step};
use crate::embedded::values::{GroupMeta, LeaseEntry, PartitionMeta};
use crate::error::{Error, Result};
use crate::facet::{GroupStatus, Reset, StartPosition};
use crate::hold::{Hold, LeaseName};
use crate::id::RecordId;
use crate::limits::MAX_DUE;
use crate::name::{GroupName, Partition};
use crate::progress::Progress;
use bytes::Bytes;

pub(in crate::embedded) fn create(
    step: &mut Step<'_>,
    at: &Partition,
    group: &GroupName,
    from: StartPosition,
    by: Option<&Hold>,
) -> Result<bool> {
    // A new group may be what drains the topic.
    step.batch.frugal = true;
    let part = step.partition(at)?;
    fence_by(step, at, by.filter(|_| !step.planted(Mutation::CreateWithoutFence)))?;
    if step.load::<GroupMeta>(&keys::group(part.no, group))?.is_some() {
        return Ok(false);
    }
    let meta = fresh(step, &part, (at, group), from)?;
    step.store(keys::group(part.no, group), &meta);
    Ok(true)
}

/// Only the newest holder goes on, if a hold must be shown: of this group's lease or of another's
/// on the partition.
fn fence_by(step: &Step<'_>, at: &Partition, by: Option<&Hold>) -> Result<()> {
    let Some(hold) = by else { return Ok(()) };
    crate::checks::group_on(hold, at)?;
    fence(step, hold, &hold.lease)
}

fn fresh(
    step: &mut Step<'_>,
    part: &PartitionMeta,
    (at, group): (&Partition, &GroupName),
    from: StartPosition,
) -> Result<GroupMeta> {
    if from == StartPosition::Existing {
        return Err(Error::not_found(format!("group {group} does not exist on {at}")));
    }
    let frontier = start(step, part, from)?;
    let no = step.fresh_number()?;
    let reach = Some(frontier.seq);
    Ok(GroupMeta { no, frontier, reach, left: true, ..GroupMeta::default() })
}

/// The frontier of a group that starts at `from`.
fn start(step: &Step<'_>, part: &PartitionMeta, from: StartPosition) -> Result<RecordId> {
    let seq = match from {
        StartPosition::Start | StartPosition::Existing => part.trimmed.seq,
        StartPosition::End => part.last.seq,
        StartPosition::After(id) => position_after(step, part, id)?,
        StartPosition::Age(age) => {
            let oldest = step.now.ms().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            last_where(step, part, |id| id.ms < oldest)?
        }
    };
    id_of(step, part, seq)
}

pub(in crate::embedded) fn open(
    step: &mut Step<'_>,
    at: &Partition,
    group: &GroupName,
    from: StartPosition,
    hold: &Hold,
) -> Result<Progress> {
    step.batch.frugal = true;
    let part = step.partition(at)?;
    if !step.planted(Mutation::SkipFenceOnOpen) {
        fence(step, hold, &LeaseName::group(at, group))?;
    }
    let mut meta = match step.load(&keys::group(part.no, group))? {
        Some(meta) => meta,
        None => fresh(step, &part, (at, group), from)?,
    };
    let is_new_owner = meta.opened != hold.epoch;
    let crashed = is_new_owner && !meta.left && !step.planted(Mutation::ForgetCrashes);
    if !step.planted(Mutation::LoseTaken) {
        due::give_back(step, meta.no, crashed)?;
    }
    if is_new_owner {
        let had_work = waiting(&part, &meta) > 0;
        count_crash(&mut meta, crashed, had_work);
    }
    (meta.opened, meta.left) = (hold.epoch, false);
    step.store(keys::group(part.no, group), &meta);
    let next_due = match meta.due {
        0 => None,
        _ => due::next(step, meta.no)?.or_else(|| taken_are_due_now(step)),
    };
    Ok(Progress {
        frontier: meta.frontier,
        ahead: meta.ahead,
        crashes: meta.crashes,
        due: meta.due,
        next_due,
        last: part.last,
        reach: meta.reach,
    })
}

/// Everything due was taken by the former owner, and this very step gives it back.
fn taken_are_due_now(step: &Step<'_>) -> Option<std::time::Duration> {
    Some(step.now.until(0))
}

/// Counts owners in a row that vanished with work at hand while the frontier stood still.
fn count_crash(meta: &mut GroupMeta, crashed: bool, had_work: bool) {
    let first_open = meta.first_open();
    meta.crashes = match (crashed && had_work, meta.crash_seq == first_open) {
        (true, true) => meta.crashes + 1,
        (true, false) => 1,
        (false, _) => 0,
    };
    meta.crash_seq = first_open;
}

/// Records of the log that are waiting or in flight.
fn waiting(part: &PartitionMeta, meta: &GroupMeta) -> u64 {
    let from = meta.frontier.seq.max(part.trimmed.seq);
    part.last.seq.saturating_sub(from) - meta.ahead.count_between(from + 1, part.last.seq + 1)
}

pub(in crate::embedded) fn status(step: &Step<'_>, at: &Partition, group: &GroupName) -> Result<GroupStatus> {
    let part = step.partition(at)?;
    let meta = step.group(at, part.no, group)?;
    let name = LeaseName::group(at, group);
    let lease: Option<LeaseEntry> = step.load(&keys::lease(&name))?;
    let waiting = waiting(&part, &meta);
    Ok(GroupStatus {
        frontier: meta.frontier,
        ahead: meta.ahead.len(),
        waiting,
        due: meta.due,
        next_due: due::next(step, meta.no)?,
        dead: meta.dead,
        crashes: meta.crashes,
        oldest: if waiting > 0 { oldest(step, &part, &meta)? } else { None },
        owner: lease.map(|lease| leases::info(step.now, &name, &lease)),
    })
}

fn oldest(step: &Step<'_>, part: &PartitionMeta, meta: &GroupMeta) -> Result<Option<std::time::Duration>> {
    let seq = meta.ahead.first_missing_after(meta.frontier.seq.max(part.trimmed.seq));
    Ok(stored(step, part, seq)?.map(|(id, _)| step.now.since(id.ms)))
}

pub(in crate::embedded) fn list(step: &Step<'_>, at: &Partition) -> Result<Vec<GroupName>> {
    let part = step.partition(at)?;
    let mut names = Vec::new();
    step.scan(Range::prefix(keys::numbered(b'g', part.no)), &mut |key, _| {
        names.push(keys::group_name(key).ok_or_else(|| Error::corrupt("a group has a damaged key"))?);
        Ok(true)
    })?;
    Ok(names)
}

pub(in crate::embedded) fn reset(
    step: &mut Step<'_>,
    at: &Partition,
    group: &GroupName,
    reset: Reset,
    by: Option<&Hold>,
) -> Result<RecordId> {
    crate::checks::place(reset.to)?;
    let part = step.partition(at)?;
    fence_by(step, at, by.filter(|_| !step.planted(Mutation::ResetByAnyone)))?;
    let mut meta = step.group(at, part.no, group)?;
    let frontier = start(step, &part, reset.to)?;
    for kept in [false, true] {
        let count = usize::try_from(MAX_DUE).unwrap_or(usize::MAX);
        for (id, entry) in due::entries(step, &meta, kept, RecordId::ZERO, count)? {
            let comes_anyway = id.seq > frontier.seq;
            if reset.drop_due || comes_anyway {
                due::erase(step, meta.no, id, &entry);
                meta.due -= 1;
            } else if entry.taken {
                step.remove(keys::taken(meta.no, id));
                let ms = step.now.ms();
                due::write(
                    step,
                    meta.no,
                    id,
                    &crate::embedded::values::DueEntry { ms, taken: false, ..entry },
                );
            }
        }
    }
    meta.frontier = frontier;
    meta.ahead = crate::ahead::Ahead::new();
    (meta.left, meta.crashes, meta.crash_seq) = (true, 0, frontier.seq + 1);
    // What was started before will be started again: no owner has started it since.
    meta.reach = Some(frontier.seq);
    step.store(keys::group(part.no, group), &meta);
    if !step.planted(Mutation::ResetWithoutFence) {
        leases::take_away(step, &LeaseName::group(at, group))?;
    }
    Ok(frontier)
}

pub(in crate::embedded) fn delete(
    step: &mut Step<'_>,
    at: &Partition,
    group: &GroupName,
    by: Option<&Hold>,
) -> Result<bool> {
    let part = step.partition(at)?;
    fence_by(step, at, by.filter(|_| !step.planted(Mutation::DeleteWithoutFence)))?;
    let meta = step.load::<GroupMeta>(&keys::group(part.no, group))?;
    leases::forget(step, &LeaseName::group(at, group), meta.is_some())?;
    if let Some(meta) = &meta {
        step.remove(keys::group(part.no, group));
        step.store_raw(keys::swept(meta.no), Bytes::new());
    }
    step.batch.frugal = true;
    Ok(meta.is_some())
}

//! The commit: a batch of verdicts in one fenced step.
//!
//! Everything is checked first, against stored state; then the due index, the dead letters and the
//! progress are written together.

use super::leases::{fence, held};
use super::{dead, due, log};
use crate::commit::{Commit, Dead, Retry};
use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Range, Step};
use crate::embedded::values::{DeadEntry, DueEntry, GroupMeta, PartitionMeta, Value};
use crate::error::{Error, ErrorKind, Result};
use crate::facet::Committed;
use crate::failures::failed;
use crate::hold::{Hold, LeaseName};
use crate::id::RecordId;
use crate::limits::MAX_DUE;
use crate::name::{GroupName, Partition};

pub(in crate::embedded) fn commit(
    step: &mut Step<'_>,
    at: &Partition,
    group: &GroupName,
    hold: &Hold,
    commit: &Commit,
) -> Result<Committed> {
    step.batch.frugal = true;
    let part = step.partition(at)?;
    if !skips_fence(step, commit) {
        fence(step, hold, &LeaseName::group(at, group))?;
    }
    let mut meta = step.group(at, part.no, group)?;
    let seen = commit.seen;
    if seen.names_a_record() && seen != part.last && seen.seq > part.trimmed.seq {
        let found = log::stored(step, &part, seen.seq)?.map(|(id, _)| id);
        if found != Some(seen) {
            return Err(Error::went_back(at, seen, part.last));
        }
    }
    check_progress(step, &part, &meta, commit)?;
    let verdicts = CommitVerdicts::look_up(step, &meta, commit)?;
    let due = meta.due + verdicts.added_due() - verdicts.removed_due();
    if due > MAX_DUE && verdicts.added_due() > 0 {
        return Err(Error::new(
            ErrorKind::Overloaded,
            format!("group {group} has {MAX_DUE} records due on {at}: let them drain or give some up"),
        ));
    }
    for (id, entry) in verdicts.done {
        if !step.planted(Mutation::KeepDoneDue) {
            due::erase(step, meta.no, id, &entry);
        }
    }
    let has_failed = !verdicts.retries.is_empty() || !verdicts.dead.is_empty();
    let lease = if has_failed { held(step, hold)? } else { None };
    let owner = lease.and_then(|lease| lease.holder);
    let owner = owner.as_ref().map_or("", |holder| holder.as_str());
    for retry in verdicts.retries {
        postpone(step, &part, &meta, owner, retry)?;
    }
    for (dead, former) in verdicts.dead {
        meta.dead += bury(step, &meta, owner, dead, former)?;
    }
    meta.due = due;
    meta.frontier = commit.frontier;
    meta.ahead = commit.ahead.clone();
    if commit.reach > 0 {
        meta.reach = Some(commit.reach);
    }
    if meta.first_open() != meta.crash_seq {
        meta.crashes = 0;
    }
    step.store(keys::group(part.no, group), &meta);
    let next = verdicts_next(step, &meta, commit)?;
    Ok(Committed { due, next_due: next })
}

/// The planted bugs about fencing.
fn skips_fence(step: &Step<'_>, commit: &Commit) -> bool {
    step.planted(Mutation::SkipFenceOnCommit)
        || (step.planted(Mutation::SkipFenceOnRetry) && !commit.retries.is_empty())
        || (step.planted(Mutation::SkipFenceOnDone) && !commit.done.is_empty())
        || (step.planted(Mutation::SkipFenceAhead) && !commit.ahead.runs().is_empty())
}

/// Progress only grows, and stays within the log.
fn check_progress(step: &Step<'_>, part: &PartitionMeta, meta: &GroupMeta, commit: &Commit) -> Result<()> {
    let goes_back =
        commit.frontier.seq < meta.frontier.seq || !commit.ahead.covers(&meta.ahead, commit.frontier.seq);
    if goes_back && !step.planted(Mutation::FrontierGoesBack) {
        return Err(Error::invalid(format!(
            "the commit would open settled records again (frontier {} after {}): open the group again",
            commit.frontier, meta.frontier
        )));
    }
    let furthest = commit.ahead.bounds().map_or(0, |(_, last)| last).max(commit.frontier.seq);
    if furthest > part.last.seq || commit.frontier.ms > part.last.ms {
        return Err(Error::invalid(format!(
            "the commit settles record {furthest}, but {} is the last one",
            part.last
        )));
    }
    Ok(())
}

/// The verdicts of a commit, each with the due entry that its record came from.
struct CommitVerdicts<'c> {
    done: Vec<(RecordId, DueEntry)>,
    retries: Vec<(&'c Retry, Option<DueEntry>)>,
    dead: Vec<(&'c Dead, Option<DueEntry>)>,
}

impl<'c> CommitVerdicts<'c> {
    fn look_up(step: &Step<'_>, meta: &GroupMeta, commit: &'c Commit) -> Result<Self> {
        let source = |id: RecordId| source(step, meta, commit, id);
        let done = commit.done.iter().map(|id| {
            let entry = source(*id)?.ok_or_else(|| not_open(*id))?;
            Ok((*id, entry))
        });
        let retries = commit.retries.iter().map(|retry| Ok((retry, source(retry.id)?)));
        let dead = commit.dead.iter().map(|dead| Ok((dead, source(dead.record.id)?)));
        Ok(Self {
            done: done.collect::<Result<_>>()?,
            retries: retries.collect::<Result<_>>()?,
            dead: dead.collect::<Result<_>>()?,
        })
    }

    fn added_due(&self) -> u64 {
        self.retries.iter().filter(|(_, former)| former.is_none()).count() as u64
    }

    fn removed_due(&self) -> u64 {
        (self.done.len() + self.dead.iter().filter(|(_, former)| former.is_some()).count()) as u64
    }
}

/// Where a judged record was: `Some` if the owner had taken it from due, `None` if it was open in
/// the log.
fn source(step: &Step<'_>, meta: &GroupMeta, commit: &Commit, id: RecordId) -> Result<Option<DueEntry>> {
    if let Some(entry) = due::find(step, meta.no, id)? {
        return if entry.taken { Ok(Some(entry)) } else { Err(not_open(id)) };
    }
    let was_open = id.seq > meta.frontier.seq && !meta.ahead.contains(id.seq);
    let is_passed = id.seq <= commit.frontier.seq || commit.ahead.contains(id.seq);
    if was_open && is_passed { Ok(None) } else { Err(not_open(id)) }
}

fn not_open(id: RecordId) -> Error {
    Error::invalid(format!("record {id} is not open for a verdict: open the group again"))
}

/// Makes a record due later; its attempt count grows.
fn postpone(
    step: &mut Step<'_>,
    part: &PartitionMeta,
    meta: &GroupMeta,
    owner: &str,
    (retry, former): (&Retry, Option<DueEntry>),
) -> Result<()> {
    if let Some(former) = &former {
        due::erase(step, meta.no, retry.id, former);
    }
    if step.planted(Mutation::LoseRetry) {
        return Ok(());
    }
    let attempt = former.as_ref().map_or(1, |entry| entry.attempt);
    let kept = match (&retry.kept, former.as_ref().and_then(|entry| entry.kept.clone())) {
        (Some(content), _) => Some(content.packed()),
        (None, kept) => kept,
    };
    let past = former.as_ref().map(|entry| entry.failures.as_str());
    let past = past.filter(|_| !step.planted(Mutation::ForgetFailures));
    let failures = failed(past, &retry.reason, attempt, step.now.ms(), owner);
    let entry = DueEntry {
        ms: step.now.later_ms(retry.after),
        attempt: if step.planted(Mutation::ForgetAttempts) { attempt } else { attempt + 1 },
        crashes: former.map_or(0, |entry| entry.crashes),
        taken: false,
        failures,
        kept,
    };
    due::write(step, meta.no, retry.id, &entry);
    if step.planted(Mutation::ShareDue) {
        share(step, part, meta, retry.id, &entry)?;
    }
    Ok(())
}

/// The planted bug [`Mutation::ShareDue`].
fn share(
    step: &mut Step<'_>,
    part: &PartitionMeta,
    meta: &GroupMeta,
    id: RecordId,
    entry: &DueEntry,
) -> Result<()> {
    let mut others = Vec::new();
    step.scan(Range::prefix(keys::numbered(b'g', part.no)), &mut |key, value| {
        others.push((key.to_vec(), GroupMeta::read(value)?));
        Ok(true)
    })?;
    for (key, mut other) in others.into_iter().filter(|(_, other)| other.no != meta.no) {
        due::write(step, other.no, id, entry);
        other.due += 1;
        step.store(key, &other);
    }
    Ok(())
}

/// Writes a dead letter; answers how many more there are now.
fn bury(
    step: &mut Step<'_>,
    meta: &GroupMeta,
    owner: &str,
    letter: &Dead,
    former: Option<DueEntry>,
) -> Result<u64> {
    let id = letter.record.id;
    if let Some(former) = &former {
        due::erase(step, meta.no, id, former);
    }
    if step.planted(Mutation::LoseDeadLetter) {
        return Ok(1);
    }
    let earlier = step.load::<DeadEntry>(&keys::dead(meta.no, id))?;
    if let Some(earlier) = &earlier {
        dead::erase(step, meta.no, id, earlier);
    }
    let attempts = former.as_ref().map_or(1, |entry| entry.attempt);
    let past = former.as_ref().map(|entry| entry.failures.as_str());
    let failures = failed(past, &letter.reason, attempts, step.now.ms(), owner);
    let entry = DeadEntry {
        ms: step.now.ms(),
        attempts,
        crashes: former.map_or(letter.record.crashes, |entry| entry.crashes),
        failures,
        content: letter.record.content.packed(),
    };
    dead::write(step, meta.no, id, &entry);
    Ok(u64::from(earlier.is_none()))
}

/// When the next untaken record is due after this commit: the earliest of the stored ones and the
/// new ones.
fn verdicts_next(step: &Step<'_>, meta: &GroupMeta, commit: &Commit) -> Result<Option<std::time::Duration>> {
    let stored = due::next(step, meta.no)?;
    let added = commit.retries.iter().map(|retry| retry.after).min();
    Ok(match (stored, added) {
        (Some(stored), Some(added)) => Some(stored.min(added)),
        (stored, added) => stored.or(added),
    })
}

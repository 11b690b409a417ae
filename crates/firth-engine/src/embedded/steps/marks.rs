//! Source marks: judged and noted in the step that appends.

use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Range, Step};
use crate::error::Result;
use crate::facet::{MarkJudgement, NewMark, SourceMark};
use crate::limits::MAX_SOURCES;
use crate::name::{Partition, SourceName};

/// Judges a marked batch for the partition with this number, and notes its mark; false if the log
/// has the batch.
pub(super) fn note(step: &mut Step<'_>, at: &Partition, no: u64, mark: &NewMark) -> Result<bool> {
    let key = keys::source(no, &mark.source);
    let stored = step.load::<SourceMark>(&key)?;
    if stored.is_none() && count(step, no)? >= MAX_SOURCES {
        return Err(NewMark::too_many(at));
    }
    let seen = stored.as_ref().filter(|_| !step.planted(Mutation::ForgetMark));
    let new = SourceMark { epoch: mark.epoch, upto: mark.upto.clone() };
    let (kept, is_new) = match mark.judge(at, seen) {
        Ok(MarkJudgement::New) => (new, true),
        Ok(MarkJudgement::Duplicate(kept)) => (kept, false),
        Err(_) if step.planted(Mutation::SkipFenceOnMark) => (new, true),
        Err(error) => return Err(error),
    };
    if !step.planted(Mutation::LoseMark) {
        step.store(key, &kept);
    }
    Ok(is_new)
}

fn count(step: &Step<'_>, no: u64) -> Result<u64> {
    let mut count = 0;
    step.scan(Range::prefix(keys::numbered(b'm', no)), &mut |_, _| {
        count += 1;
        Ok(count < MAX_SOURCES)
    })?;
    Ok(count)
}

pub(in crate::embedded) fn mark(
    step: &Step<'_>,
    at: &Partition,
    source: &SourceName,
) -> Result<Option<SourceMark>> {
    let part = step.partition(at)?;
    step.load(&keys::source(part.no, source))
}

/// Forgets a source; true if the partition knew it.
pub(in crate::embedded) fn forget(step: &mut Step<'_>, at: &Partition, source: &SourceName) -> Result<bool> {
    step.batch.frugal = true;
    let key = keys::source(step.partition(at)?.no, source);
    let was_there = step.load::<SourceMark>(&key)?.is_some();
    if was_there {
        step.remove(key);
    }
    Ok(was_there)
}

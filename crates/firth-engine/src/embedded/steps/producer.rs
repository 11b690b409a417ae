//! Idempotent producers: deciding whether a batch is new, a repetition, or out of order.

use crate::embedded::hooks::Mutation;
use crate::embedded::keys;
use crate::embedded::step::{Range, Step};
use crate::embedded::values::{PartitionMeta, ProducerState, SentBatch};
use crate::error::{Error, Result};
use crate::facet::{Appended, ProducerSeq, SequenceGap};
use crate::id::RecordId;
use crate::limits::{MAX_PRODUCERS, PRODUCER_WINDOW};

/// What the producer's state says about a batch.
#[derive(Debug, PartialEq)]
pub(super) enum Judgement {
    /// Append it; the state to extend.
    New(ProducerState),
    /// It is there already.
    Duplicate(Appended),
}

/// Decides about a batch of `count` records; pure.
pub(super) fn judge(state: Option<ProducerState>, first: u64, count: u64) -> Result<Judgement> {
    let Some(state) = state else {
        return Ok(Judgement::New(ProducerState::default()));
    };
    let Some(last) = state.batches.last() else {
        return Ok(Judgement::New(state));
    };
    let expected = last.first + last.count;
    if first == expected {
        return Ok(Judgement::New(state));
    }
    if first > expected {
        return Err(SequenceGap { expected }.refusal());
    }
    let duplicate = |first| Judgement::Duplicate(Appended { first, count, duplicate: true });
    match state.batches.iter().find(|batch| batch.first == first) {
        Some(batch) if batch.count == count => {
            Ok(duplicate(Some(batch.id).filter(|id| *id != RecordId::ZERO)))
        }
        None if state.batches.first().is_some_and(|oldest| first + count <= oldest.first) => {
            Ok(duplicate(None))
        }
        _ => Err(Error::invalid(format!(
            "the producer's batch {first}..{} was sent before with other borders: send it as it was",
            first + count
        ))
        .with_field("batch")),
    }
}

/// Looks the batch up; `Err` in the inner place means that it is a duplicate.
pub(super) fn check(step: &Step<'_>, no: u64, seq: &ProducerSeq, count: u64) -> Result<Judgement> {
    let state = step.load(&keys::producer(no, &seq.name))?;
    match judge(state.clone(), seq.first, count)? {
        Judgement::Duplicate(_) if step.planted(Mutation::ForgetProducer) => {
            Ok(Judgement::New(state.unwrap_or_default()))
        }
        judgement => Ok(judgement),
    }
}

/// Remembers a batch that is being appended, and forgets the most silent producer if there are too
/// many.
pub(super) fn remember(
    step: &mut Step<'_>,
    part: &mut PartitionMeta,
    seq: &ProducerSeq,
    mut state: ProducerState,
    sent: SentBatch,
) -> Result<()> {
    let is_known = !state.batches.is_empty();
    if is_known {
        step.remove(keys::producer_use(part.no, state.ms, &seq.name));
    } else {
        part.producers += 1;
    }
    if part.producers > MAX_PRODUCERS {
        forget_oldest(step, part)?;
    }
    state.ms = step.now.later_ms(seq.keep);
    state.batches.push(sent);
    let extra = state.batches.len().saturating_sub(PRODUCER_WINDOW);
    state.batches.drain(..extra);
    step.store_raw(keys::producer_use(part.no, state.ms, &seq.name), bytes::Bytes::new());
    step.store(keys::producer(part.no, &seq.name), &state);
    Ok(())
}

fn forget_oldest(step: &mut Step<'_>, part: &mut PartitionMeta) -> Result<()> {
    let oldest = step.first_key(Range::prefix(keys::numbered(b'r', part.no)))?;
    if let Some(name) = oldest.as_deref().and_then(keys::used_producer) {
        step.remove(keys::producer(part.no, &name));
        step.remove(oldest.expect("the name came from it"));
        part.producers -= 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(batches: &[(u64, u64)]) -> Option<ProducerState> {
        let sent =
            |&(first, count): &(u64, u64)| SentBatch { first, count, id: RecordId::new(9, first + 100) };
        Some(ProducerState { ms: 0, batches: batches.iter().map(sent).collect() })
    }

    #[test]
    fn the_next_batch_is_new_and_an_old_one_is_not() {
        let is_new = |judgement| matches!(judgement, Ok(Judgement::New(_)));
        assert!(is_new(judge(None, 77, 2)));
        assert!(is_new(judge(state(&[(0, 3)]), 3, 1)));
        let ids = Appended { first: Some(RecordId::new(9, 100)), count: 3, duplicate: true };
        assert_eq!(judge(state(&[(0, 3), (3, 1)]), 0, 3).unwrap(), Judgement::Duplicate(ids));
        let forgotten = Appended { first: None, count: 2, duplicate: true };
        assert_eq!(judge(state(&[(8, 3)]), 2, 2).unwrap(), Judgement::Duplicate(forgotten));
    }

    #[test]
    fn gaps_and_other_borders_are_refused() {
        assert!(judge(state(&[(0, 3)]), 4, 1).is_err());
        assert!(judge(state(&[(0, 3)]), 0, 2).is_err());
        assert!(judge(state(&[(0, 3)]), 1, 2).is_err());
        assert!(judge(state(&[(8, 3)]), 7, 2).is_err());
    }
}

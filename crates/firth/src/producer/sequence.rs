//! The numbers of an idempotent producer in one partition, and what the engine lost of them. Pure.

use firth_engine::facet::{Appended, ProducerSeq, SequenceGap};
use firth_engine::{ProducerName, RecordId};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Acknowledged batches whose places are remembered, per partition.
const REMEMBERED: usize = 256;
/// Losses that wait to be asked for; beyond that the oldest is forgotten. Each is in the log, too.
const MAX_LOSSES: usize = 1024;

/// The next number, and the name that it counts under.
pub(super) struct Sequence {
    next: ProducerSeq,
    /// Acknowledged batches, oldest first.
    sent: VecDeque<Sent>,
}

struct Sent {
    first: u64,
    count: u64,
    id: Option<RecordId>,
}

impl Sequence {
    /// A sequence under a name that no engine has seen.
    pub(super) fn fresh(stem: &str, keep: Duration) -> Self {
        let name = ProducerName::new(format!("{stem}-{:016x}", fastrand::u64(..)))
            .expect("the stem was checked with room to spare");
        Self { next: ProducerSeq { name, first: 0, keep }, sent: VecDeque::new() }
    }

    /// The name and number of the next batch.
    pub(super) fn next(&self) -> ProducerSeq {
        self.next.clone()
    }

    /// The next batch is stored.
    pub(super) fn stored(&mut self, appended: &Appended) {
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        let first = self.next.first;
        let count = appended.count;
        self.sent.push_back(Sent { first, count, id: appended.first });
        self.next.first += count;
    }

    /// What was acknowledged under this name and is not there any more.
    pub(super) fn lost(&self, partition: u32, gap: SequenceGap) -> LostSends {
        let is_lost = |sent: &&Sent| sent.first >= gap.expected;
        let first = self.sent.iter().find(is_lost).filter(|sent| sent.first == gap.expected);
        let last = self.sent.back().filter(|last| is_lost(last));
        LostSends {
            partition,
            count: self.next.first.saturating_sub(gap.expected),
            first: first.and_then(|sent| sent.id),
            last: last.and_then(|sent| Some(sent.id?.plus(sent.count.saturating_sub(1)))),
        }
    }
}

/// Messages that were acknowledged and that the engine lost afterwards, as a server can that
/// crashes before they are on its disk or at its replica. Send them again if they matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostSends {
    /// The partition.
    pub partition: u32,
    /// How many messages.
    pub count: u64,
    /// The receipt's id of the first of them; `None` if it was delayed, or too long ago.
    pub first: Option<RecordId>,
    /// The receipt's id of the last of them; `None` if it was delayed.
    pub last: Option<RecordId>,
}

/// Losses that the program has not asked for yet; only the newest if there are too many.
#[derive(Default)]
pub(super) struct UntoldLosses(Mutex<VecDeque<LostSends>>);

impl UntoldLosses {
    pub(super) fn note(&self, lost: LostSends) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() == MAX_LOSSES {
            list.pop_front();
        }
        list.push_back(lost);
    }

    pub(super) fn take(&self) -> Vec<LostSends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn appended(seq: u64, count: u64) -> Appended {
        Appended { first: Some(RecordId::new(9, seq)), count, duplicate: false }
    }

    #[test]
    fn k05_a_gap_names_the_sends_that_the_engine_lost() {
        let mut sequence = Sequence::fresh("p", Duration::ZERO);
        for (seq, count) in [(1, 3), (4, 2), (20, 5)] {
            sequence.stored(&appended(seq, count));
        }
        assert_eq!(sequence.next().first, 10);
        let lost = sequence.lost(7, SequenceGap { expected: 3 });
        let first = Some(RecordId::new(9, 4));
        let last = Some(RecordId::new(9, 24));
        assert_eq!(lost, LostSends { partition: 7, count: 7, first, last });
    }

    #[test]
    fn k05_a_loss_from_before_what_is_remembered_has_no_first_id() {
        let mut sequence = Sequence::fresh("p", Duration::ZERO);
        for seq in 1..=1000 {
            sequence.stored(&appended(seq, 1));
        }
        let lost = sequence.lost(0, SequenceGap { expected: 2 });
        let last = Some(RecordId::new(9, 1000));
        assert_eq!(lost, LostSends { partition: 0, count: 998, first: None, last });
    }
}

//! [`Losses`]: records that the log lost, for programs that must report the loss. A lossy trim
//! removed them before they were read, or the log went back: a crash or a failover took back what
//! had been read.

use firth_engine::RecordId;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What all lanes of a consumer, one after the other, know of its partitions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    /// Losses, by partition and the number of the first record behind them. At most [`MAX`], and
    /// one for each partition; beyond that the oldest of a partition counts as a part of the next.
    losses: BTreeMap<(u32, u64), u64>,
    /// The newest record that was read of each partition.
    read: HashMap<u32, RecordId>,
}

/// A consumer has no more records in flight than this; and most do not ask.
const MAX: usize = 1024;

impl Losses {
    /// This many records before `next` are gone. The same loss may be seen again after a lane has
    /// started over.
    pub(crate) fn note(&self, partition: u32, next: u64, count: u64) {
        let losses = &mut self.inner().losses;
        losses.insert((partition, next), count);
        if losses.len() > MAX {
            let mut places = losses.range((partition, 0)..=(partition, u64::MAX)).map(|(place, _)| *place);
            if let (Some(oldest), Some(next)) = (places.next(), places.next()) {
                let count = losses.remove(&oldest).unwrap_or_default();
                *losses.entry(next).or_default() += count;
            }
        }
    }

    /// How many are gone before the record with this number; those are forgotten.
    pub(crate) fn take(&self, partition: u32, up_to: u64) -> u64 {
        let losses = &mut self.inner().losses;
        losses.extract_if((partition, 0)..=(partition, up_to), |_, _| true).map(|(_, count)| count).sum()
    }

    /// The partition was read up to this record.
    pub(crate) fn read(&self, partition: u32, up_to: RecordId) {
        self.inner().read.insert(partition, up_to);
    }

    /// The newest record that was read of the partition.
    pub(crate) fn last_read(&self, partition: u32) -> Option<RecordId> {
        self.inner().read.get(&partition).copied()
    }

    /// The partition lost the newest record that was read; it is read again from `next` on.
    pub(crate) fn went_back(&self, partition: u32, next: u64, count: u64) {
        self.inner().read.remove(&partition);
        self.note(partition, next, count);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_once_and_not_before_its_place() {
        let losses = Losses::default();
        losses.note(1, 10, 4);
        losses.note(1, 10, 4);
        losses.note(1, 30, 5);
        losses.note(2, 7, 6);
        assert_eq!([losses.take(1, 9), losses.take(1, 10), losses.take(1, 29)], [0, 4, 0]);
        assert_eq!([losses.take(1, 40), losses.take(2, 40), losses.take(2, 40)], [5, 6, 0]);
        (0..3000).for_each(|next| losses.note(0, next, 1));
        assert_eq!(losses.inner().losses.len(), MAX);
        assert_eq!(losses.take(0, 3000), 3000);
    }

    #[test]
    fn a_log_that_went_back_is_a_loss_before_what_comes_next() {
        let losses = Losses::default();
        losses.read(1, RecordId::new(9, 50));
        losses.went_back(1, 41, 5);
        assert_eq!((losses.last_read(1), losses.take(1, 46)), (None, 5));
    }
}

//! [`Losses`]: records that a lossy trim removed before they were read, for whoever must tell somebody of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Losses, by partition and the number of the first record behind them. At most [`MAX`], and one for each partition; beyond that the oldest of a
/// partition counts as a part of the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses(Arc<Mutex<BTreeMap<(u32, u64), u64>>>);

/// A consumer has no more records in flight than this; and most do not ask.
const MAX: usize = 1024;

impl Losses {
    /// So many records before `next` are gone. The same loss may be seen again after a lane has started over.
    pub(crate) fn note(&self, partition: u32, next: u64, count: u64) {
        let mut losses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut losses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        losses.extract_if((partition, 0)..=(partition, up_to), |_, _| true).map(|(_, count)| count).sum()
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
        assert_eq!(losses.0.lock().unwrap().len(), MAX);
        assert_eq!(losses.take(0, 3000), 3000);
    }
}

//! What a writer knows of the appends to each partition. Pure.

use crate::error::{Result, invalid};
use bytes::Bytes;
use tokio::sync::Mutex;

/// The partitions that take part.
pub(super) struct Partitions(Vec<Mutex<Slot>>);

/// One partition; its lock is held during an append.
#[derive(Default)]
pub(super) struct Slot {
    /// The position of the last append that was answered.
    last: Bytes,
    /// The append whose outcome is not known: its position, and how many records it has.
    open: Option<(Bytes, usize)>,
}

impl Partitions {
    pub(super) fn new(count: u32) -> Self {
        Self((0..count).map(|_| Mutex::default()).collect())
    }

    pub(super) fn get(&self, partition: u32) -> Option<&Mutex<Slot>> {
        self.0.get(usize::try_from(partition).ok()?)
    }

    /// Refuses unless every append is answered, and none went beyond `upto`.
    pub(super) fn check_quiet(&mut self, upto: &Bytes) -> Result<()> {
        for slot in self.0.iter_mut().map(Mutex::get_mut) {
            if slot.open.is_some() {
                return Err(slot.refusal());
            }
            if slot.last > *upto {
                let context = "the position lies before one that was appended: give the newest";
                return Err(invalid(context).with_field("upto"));
            }
        }
        Ok(())
    }

    pub(super) fn grow(&mut self, count: u32, upto: &Bytes) {
        self.0 = (0..count).map(|_| Mutex::new(Slot { last: upto.clone(), open: None })).collect();
    }
}

impl Slot {
    /// An append begins. Until it is answered only the same one may follow.
    pub(super) fn begin(&mut self, upto: &Bytes, count: usize) -> Result<()> {
        let this = (upto.clone(), count);
        if self.open.as_ref().is_some_and(|open| *open != this) {
            return Err(self.refusal());
        }
        self.open = Some(this);
        Ok(())
    }

    /// It was answered; it reached this far, if it succeeded.
    pub(super) fn end(&mut self, upto: Option<Bytes>) {
        self.open = None;
        if let Some(upto) = upto.filter(|upto| *upto > self.last) {
            self.last = upto;
        }
    }

    fn refusal(&self) -> crate::Error {
        let count = self.open.as_ref().map_or(0, |(_, count)| *count);
        invalid(format!(
            "the outcome of an earlier append of {count} messages is not known: send the same batch again, or open \
             a writer under a new epoch"
        ))
        .with_field("upto")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_an_outcome_is_unknown_only_the_same_batch_may_follow() {
        let mut slot = Slot::default();
        let a = Bytes::from_static(b"a");
        let b = Bytes::from_static(b"b");
        slot.begin(&a, 2).unwrap();
        assert!(slot.begin(&b, 2).is_err() && slot.begin(&a, 3).is_err());
        slot.begin(&a, 2).unwrap();
        slot.end(Some(a));
        slot.begin(&b, 1).unwrap();
    }

    #[test]
    fn partitions_are_added_only_when_all_is_answered_and_covered() {
        let a = Bytes::from_static(b"a");
        let b = Bytes::from_static(b"b");
        let mut slots = Partitions::new(2);
        slots.0[1].get_mut().begin(&b, 1).unwrap();
        assert!(slots.check_quiet(&b).is_err());
        slots.0[1].get_mut().end(Some(b.clone()));
        assert!(slots.check_quiet(&a).is_err());
        slots.check_quiet(&b).unwrap();
        slots.grow(5, &b);
        assert!(slots.get(4).is_some() && slots.get(5).is_none());
    }
}

//! What leaves a lane because its events are read from the topic again.

use super::gap::Left;
use super::{Item, Lane, Position, ReleaseCause, Released};
use std::sync::Arc;

impl Lane {
    /// Removes the live events of a partition from `from` on that are not in flight. A reader takes
    /// them from the topic again later. An event before `from` is a replayed dead letter: it stays,
    /// because no reader reads it again.
    pub fn park(&mut self, partition: u32, from: u64) -> Vec<Released> {
        self.take_out(partition, true, from)
    }

    /// Detaches and returns the records of the live events of a partition from `from` on that are
    /// in flight. A reader takes these events from the topic again, so no record need wait for the
    /// answer. The events themselves stay, without their records, until the gateway answers.
    pub fn detach_in_flight(&mut self, partition: u32, from: u64) -> Vec<Released> {
        let is_theirs = |item: &Item| {
            item.live
                && item.position.partition == partition
                && item.position.seq >= from
                && item.record_number != 0
        };
        let mut released = Vec::new();
        for batch in self.out.values_mut() {
            if !batch.items.iter().any(is_theirs) {
                continue;
            }
            for item in Arc::make_mut(&mut batch.items).iter_mut().filter(|item| is_theirs(item)) {
                let record_number = std::mem::take(&mut item.record_number);
                released.push(Released {
                    position: item.position,
                    record_number,
                    cause: ReleaseCause::Parked,
                });
            }
        }
        released
    }

    /// Removes the events of a partition that a catch-up reader put in and that are not in flight.
    /// The next catch-up reader reads them once more.
    pub fn drop_fed(&mut self, partition: u32) -> Vec<Released> {
        self.take_out(partition, false, 0)
    }

    fn take_out(&mut self, partition: u32, live: bool, from: u64) -> Vec<Released> {
        let mut released = Vec::new();
        let is_there = |at: Position| at.partition == partition && at.seq >= from;
        let leaves = |item: &Item| item.live == live && is_there(item.position);
        let mut drained = self.chains.drain(leaves);
        drained.extend(self.barrier.drain(leaves));
        for item in drained {
            self.release(
                (item.position, item.record_number, item.bytes),
                ReleaseCause::Parked,
                &mut released,
            );
        }
        let parks = |left: &Left| left.live == live && is_there(left.position);
        for left in self.gap.take_out(parks) {
            self.release((left.position, left.record_number, 0), ReleaseCause::Parked, &mut released);
        }
        self.weigh();
        released
    }
}

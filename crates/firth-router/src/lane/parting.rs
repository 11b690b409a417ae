//! What leaves a lane because its events are read from the topic again.

use super::gap::Left;
use super::{Fate, Item, Lane, Position, Released};
use std::sync::Arc;

impl Lane {
    /// Takes everything live of a partition from a place on, that is not on its way, out of the lane, to be read from the topic later. What is
    /// before that place is a dead letter that was replayed: nobody reads it again.
    pub fn park(&mut self, partition: u32, from: u64) -> Vec<Released> {
        self.take_out(partition, true, from)
    }

    /// The records of what is live of a partition from a place on, and on its way: its events are read from the topic again, so nobody need wait for an
    /// answer. The events themselves stay until there is one, without their records.
    pub fn disown(&mut self, partition: u32, from: u64) -> Vec<Released> {
        let is_theirs = |item: &Item| {
            item.live && item.position.partition == partition && item.position.seq >= from && item.ticket != 0
        };
        let mut released = Vec::new();
        for batch in self.out.values_mut() {
            if !batch.items.iter().any(is_theirs) {
                continue;
            }
            for item in Arc::make_mut(&mut batch.items).iter_mut().filter(|item| is_theirs(item)) {
                let ticket = std::mem::take(&mut item.ticket);
                released.push(Released { position: item.position, ticket, fate: Fate::Parked });
            }
        }
        released
    }

    /// Takes everything that was read again of a partition and is not on its way out of the lane; whoever feeds it next reads it once more.
    pub fn unfeed(&mut self, partition: u32) -> Vec<Released> {
        self.take_out(partition, false, 0)
    }

    fn take_out(&mut self, partition: u32, live: bool, from: u64) -> Vec<Released> {
        let mut released = Vec::new();
        let is_there = |at: Position| at.partition == partition && at.seq >= from;
        for item in self.chains.drain(|item| item.live == live && is_there(item.position)) {
            self.release((item.position, item.ticket, item.bytes), Fate::Parked, &mut released);
        }
        let parks = |left: &Left| left.live == live && is_there(left.position);
        for left in self.gap.take_out(parks) {
            self.release((left.position, left.ticket, 0), Fate::Parked, &mut released);
        }
        self.weigh();
        released
    }
}

//! Controls in a lane: a control goes out after every earlier event of its collection, and later
//! ones go out after it. Others are not held up.
//!
//! What must wait for a control stands here in order, and is let into the chains when its turn has
//! come. Controls are rare, so the lane looks through what it holds while there is one, and at
//! nothing otherwise.

use super::Lane;
use super::item::Item;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Barrier {
    waiting: VecDeque<Item>,
    /// A control may be among the chains or on its way.
    is_armed: bool,
}

impl Barrier {
    pub(super) fn items(&self) -> impl Iterator<Item = &Item> {
        self.waiting.iter()
    }

    pub(super) fn drain(&mut self, mut leaves: impl FnMut(&Item) -> bool) -> Vec<Item> {
        let (out, stay) = self.waiting.drain(..).partition(&mut leaves);
        self.waiting = stay;
        out.into()
    }
}

/// Whether one of them is a control about the other's collection, in the same partition: partitions
/// have no order among them.
fn conflict(one: &Item, other: &Item) -> bool {
    one.position.partition == other.position.partition
        && (one.event.covers(&other.event) || other.event.covers(&one.event))
}

impl Lane {
    /// Puts an event into the chains, or behind the control that it must wait for.
    pub(super) fn enqueue(&mut self, item: Item) {
        match self.must_wait(&item) {
            true => self.barrier.waiting.push_back(item),
            false => self.let_in(item),
        }
    }

    /// Whether an event must wait for a control, or a control for earlier events.
    pub(super) fn must_wait(&self, item: &Item) -> bool {
        let is_concerned =
            item.event.is_control() || self.barrier.is_armed || !self.barrier.waiting.is_empty();
        is_concerned
            && (self.barrier.waiting.iter().any(|before| conflict(before, item)) || self.is_behind(item))
    }

    /// Lets in what need not wait any more.
    pub(super) fn lift_barrier(&mut self) {
        if self.barrier.waiting.is_empty() {
            return;
        }
        let mut still = VecDeque::new();
        for item in std::mem::take(&mut self.barrier.waiting) {
            let waits = still.iter().any(|before| conflict(before, &item)) || self.is_behind(&item);
            match waits {
                true => still.push_back(item),
                false => self.let_in(item),
            }
        }
        self.barrier.waiting = still;
        let mut held = self.chains.items().chain(self.out.values().flat_map(|batch| batch.items.iter()));
        self.barrier.is_armed = held.any(|item| item.event.is_control());
    }

    fn let_in(&mut self, item: Item) {
        self.barrier.is_armed |= item.event.is_control();
        self.chains.push(item);
    }

    /// Whether something that goes out or is on its way must be delivered before.
    fn is_behind(&self, item: &Item) -> bool {
        let out = self.out.values().flat_map(|batch| batch.items.iter());
        self.chains.items().chain(out).any(|before| conflict(before, item))
    }
}

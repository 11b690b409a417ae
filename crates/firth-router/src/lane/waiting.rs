//! The events of one document that wait, in order. Mostly there is one, and it lies in place: a
//! queue behind it is made only when it is needed.

use super::item::Item;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Waiting {
    /// There is one unless there is none at all.
    first: Option<Item>,
    rest: VecDeque<Item>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn push_back(&mut self, item: Item) {
        match self.first {
            None => self.first = Some(item),
            Some(_) => self.rest.push_back(item),
        }
    }

    pub(super) fn push_front(&mut self, item: Item) {
        if let Some(second) = self.first.replace(item) {
            self.rest.push_front(second);
        }
    }

    pub(super) fn pop_front(&mut self) -> Option<Item> {
        let first = self.first.take();
        self.first = self.rest.pop_front();
        first
    }

    pub(super) fn back_mut(&mut self) -> Option<&mut Item> {
        self.rest.back_mut().or(self.first.as_mut())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.first.iter().chain(&self.rest)
    }

    /// Moves those that leave to `out`.
    pub(super) fn take_out(&mut self, mut leaves: impl FnMut(&Item) -> bool, out: &mut Vec<Item>) {
        let all = self.first.take().into_iter().chain(std::mem::take(&mut self.rest));
        for item in all {
            match leaves(&item) {
                true => out.push(item),
                false => self.push_back(item),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Operation};
    use crate::lane::Position;
    use crate::name::Tenant;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn item(seq: u64) -> Item {
        let event = Event::new(Operation::Insert, Tenant::new("t").unwrap(), "c", "k");
        Item::new(Position { partition: 0, seq }, 1, Arc::new(event), &[])
    }

    proptest! {
        #[test]
        fn it_is_a_queue(steps in proptest::collection::vec(0_u8..4, 0..40)) {
            let mut waiting = Waiting::default();
            let mut model = VecDeque::new();
            for (seq, step) in (0_u64..).zip(steps) {
                match step {
                    0 => { waiting.push_back(item(seq)); model.push_back(seq); }
                    1 => { waiting.push_front(item(seq)); model.push_front(seq); }
                    2 => prop_assert_eq!(waiting.pop_front().map(|item| item.position.seq), model.pop_front()),
                    _ => {
                        let mut out = Vec::new();
                        waiting.take_out(|item| item.position.seq % 3 == 0, &mut out);
                        let gone: Vec<_> = model.iter().copied().filter(|seq| seq % 3 == 0).collect();
                        model.retain(|seq| seq % 3 != 0);
                        prop_assert_eq!(out.iter().map(|item| item.position.seq).collect::<Vec<_>>(), gone);
                    }
                }
                prop_assert_eq!(waiting.iter().map(|item| item.position.seq).collect::<VecDeque<_>>(), model.clone());
                prop_assert_eq!((waiting.len(), waiting.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(waiting.back_mut().map(|item| item.position.seq), model.back().copied());
            }
        }
    }
}

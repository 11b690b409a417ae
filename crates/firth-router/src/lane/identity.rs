//! The name of a batch, made of what is in it: the same over all attempts, and never that of
//! another batch.

use super::Batch;
use super::gap::Gap;
use super::item::Item;
use sha2::{Digest, Sha256};

impl Batch {
    /// The name of its content.
    pub(crate) fn name(&self) -> String {
        name_of(&self.topic, &self.items, self.gap.as_ref())
    }
}

/// The name of some events of a topic and a marker. The epoch keeps a topic that was deleted and
/// made anew apart from the one before.
pub(crate) fn name_of(topic: &str, items: &[Item], gap: Option<&Gap>) -> String {
    let mut hash = Sha256::new();
    hash.update((topic.len() as u64).to_be_bytes());
    hash.update(topic);
    for item in items {
        hash.update(item.position.partition.to_be_bytes());
        hash.update(item.epoch.to_be_bytes());
        hash.update(item.position.seq.to_be_bytes());
    }
    if let Some(gap) = gap {
        hash.update(b"gap");
        hash.update(gap.mark().to_be_bytes());
        for left in gap.positions() {
            hash.update(left.partition.to_be_bytes());
            hash.update(left.seq.to_be_bytes());
        }
    }
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Operation};
    use crate::lane::Position;
    use crate::name::{SubscriptionId, Tenant};
    use std::sync::Arc;

    fn item(seq: u64) -> Item {
        let event = Event::new(Operation::Insert, Tenant::new("t").unwrap(), "c", "k");
        Item::new(Position { partition: 0, seq }, 1, Arc::new(event), &[])
    }

    fn moved(id: &str) -> Gap {
        let mut gap = Gap::default();
        gap.move_in([SubscriptionId::new(id).unwrap()]);
        gap
    }

    #[test]
    fn r03_the_same_content_has_the_same_name_and_no_other_has_it() {
        let name = name_of("a", &[item(1), item(2)], None);
        assert_eq!(name_of("a", &[item(1), item(2)], None), name);
        let mut epoch = item(1);
        epoch.epoch = 2;
        let others = [
            name_of("b", &[item(1), item(2)], None),
            name_of("a", &[item(1)], None),
            name_of("a", &[epoch, item(2)], None),
            name_of("a", &[item(1), item(2)], Some(&moved("s"))),
        ];
        assert!(others.iter().all(|other| *other != name));
    }

    #[test]
    fn r06_two_markers_differ_though_they_say_the_same() {
        let first = moved("s");
        let second = moved("s");
        assert_ne!(name_of("a", &[], Some(&first)), name_of("a", &[], Some(&second)));
        let mut returned = Gap::default();
        returned.merge(first.clone());
        assert_eq!(name_of("a", &[], Some(&returned)), name_of("a", &[], Some(&first)), "it is sent again");
        returned.merge(second);
        assert_ne!(name_of("a", &[], Some(&returned)), name_of("a", &[], Some(&first)), "it says more");
    }
}

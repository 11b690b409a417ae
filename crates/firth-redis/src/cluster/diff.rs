//! Differences between two topologies: slots that changed their master, nodes that left, nodes that
//! came. Pure, one pass over the slots; the topology cache retires lost nodes by it.

use super::topology::{SLOTS, Topology};
use crate::config::Address;
use std::ops::RangeInclusive;

/// Ranges that are logged one by one at most.
const LOGGED: usize = 16;

/// The way from one topology to another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TopologyDiff {
    /// In the order of the slots; neighbours that moved alike are one range.
    pub(crate) moved: Vec<MovedSlots>,
    /// Nodes that are no longer part of the cluster.
    pub(crate) lost: Vec<Address>,
    /// Nodes that were no part of it.
    pub(crate) added: Vec<Address>,
}

/// Slots that changed their master. `None` means no master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MovedSlots {
    pub(crate) slots: RangeInclusive<u16>,
    pub(crate) from: Option<Address>,
    pub(crate) to: Option<Address>,
}

impl TopologyDiff {
    /// Logs the changes.
    pub(crate) fn log(&self) {
        let slots: usize = self.moved.iter().map(|moved| moved.slots.len()).sum();
        let lost = self.lost.len();
        let added = self.added.len();
        tracing::info!(slots, lost, added, "the cluster changed");
        for MovedSlots { slots, from, to } in self.moved.iter().take(LOGGED) {
            let from = name(from);
            let to = name(to);
            tracing::debug!(first = slots.start(), last = slots.end(), from, to, "slots moved");
        }
    }
}

fn name(node: &Option<Address>) -> String {
    node.as_ref().map_or_else(|| "nobody".to_owned(), ToString::to_string)
}

/// What leads from `old` to `new`.
pub(crate) fn diff(old: &Topology, new: &Topology) -> TopologyDiff {
    TopologyDiff { moved: moved(old, new), lost: missing(old, new), added: missing(new, old) }
}

fn moved(old: &Topology, new: &Topology) -> Vec<MovedSlots> {
    // Addresses are compared once per shard, not once per slot.
    let position = |master: &Address| new.shards().iter().position(|shard| shard.master == *master);
    let stays: Vec<Option<usize>> = old.shards().iter().map(|shard| position(&shard.master)).collect();
    let mut moved: Vec<MovedSlots> = Vec::new();
    let mut last = None;
    for slot in 0..SLOTS as u16 {
        let from = old.shard_index(slot);
        let to = new.shard_index(slot);
        let same = from.is_none() && to.is_none() || to.is_some() && from.and_then(|f| stays[f]) == to;
        if same {
            last = None;
            continue;
        }
        match moved.last_mut() {
            Some(range) if last == Some((from, to)) => range.slots = *range.slots.start()..=slot,
            _ => moved.push(MovedSlots {
                slots: slot..=slot,
                from: from.map(|index| old.shards()[index].master.clone()),
                to: to.map(|index| new.shards()[index].master.clone()),
            }),
        }
        last = Some((from, to));
    }
    moved
}

fn missing(here: &Topology, there: &Topology) -> Vec<Address> {
    let there: std::collections::HashSet<&Address> = there.nodes().collect();
    here.nodes().filter(|node| !there.contains(node)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::topology::tests::{node, shard};
    use proptest::prelude::*;

    #[test]
    fn moved_neighbours_are_one_range() {
        let old = Topology::from_ranges([(0..=99, shard(1, &[3])), (100..=16_383, shard(2, &[]))]);
        let new = Topology::from_ranges([
            (0..=9, shard(1, &[3])),
            (10..=49, shard(2, &[])),
            (50..=99, shard(4, &[])),
            (100..=16_383, shard(2, &[])),
        ]);
        let found = diff(&old, &new);
        let moved = |slots, from, to| MovedSlots { slots, from: Some(node(from)), to: Some(node(to)) };
        assert_eq!(found.moved, [moved(10..=49, 1, 2), moved(50..=99, 1, 4)]);
        assert_eq!((found.lost, found.added), (vec![], vec![node(4)]));
    }

    #[test]
    fn a_failover_moves_every_slot_of_the_lost_master_to_its_replica() {
        let old = Topology::from_ranges([(0..=99, shard(1, &[3])), (100..=16_383, shard(2, &[]))]);
        let new = Topology::from_ranges([(0..=99, shard(3, &[])), (100..=16_383, shard(2, &[]))]);
        let found = diff(&old, &new);
        assert_eq!(found.moved, [MovedSlots { slots: 0..=99, from: Some(node(1)), to: Some(node(3)) }]);
        assert_eq!((found.lost, found.added), (vec![node(1)], vec![]));
    }

    #[test]
    fn slots_without_an_owner_come_and_go() {
        let none = Topology::empty();
        let all = Topology::single(node(1));
        assert_eq!(
            diff(&none, &all).moved,
            [MovedSlots { slots: 0..=16_383, from: None, to: Some(node(1)) }]
        );
        assert_eq!(
            diff(&all, &none).moved,
            [MovedSlots { slots: 0..=16_383, from: Some(node(1)), to: None }]
        );
        assert_eq!(
            (diff(&none, &none), diff(&all, &all)),
            (TopologyDiff::default(), TopologyDiff::default())
        );
    }

    fn topology() -> impl Strategy<Value = Topology> {
        let range = (0..16_384u16, 0..2_000u16, 1..6u16, proptest::collection::vec(10..16u16, 0..3));
        proptest::collection::vec(range, 0..12).prop_map(|ranges| {
            Topology::from_ranges(ranges.into_iter().map(|(start, len, master, replicas)| {
                (start..=start.saturating_add(len).min(16_383), shard(master, &replicas))
            }))
        })
    }

    proptest! {
        #[test]
        fn the_ranges_are_exactly_the_slots_whose_master_differs(old in topology(), new in topology()) {
            let found = diff(&old, &new);
            let mut told = vec![false; SLOTS];
            for moved in &found.moved {
                prop_assert_ne!(&moved.from, &moved.to);
                for slot in moved.slots.clone() {
                    prop_assert!(!std::mem::replace(&mut told[usize::from(slot)], true), "told once");
                    prop_assert_eq!(old.master_of(slot), moved.from.as_ref());
                    prop_assert_eq!(new.master_of(slot), moved.to.as_ref());
                }
            }
            for slot in 0..SLOTS as u16 {
                prop_assert_eq!(told[usize::from(slot)], old.master_of(slot) != new.master_of(slot));
            }
            for pair in found.moved.windows(2) {
                let adjoin = *pair[0].slots.end() + 1 == *pair[1].slots.start();
                prop_assert!(!adjoin || (&pair[0].from, &pair[0].to) != (&pair[1].from, &pair[1].to), "merged");
            }
        }

        #[test]
        fn a_diff_turned_round_leads_back(old in topology(), new in topology()) {
            let there = diff(&old, &new);
            let back = diff(&new, &old);
            prop_assert_eq!((&there.lost, &there.added), (&back.added, &back.lost));
            let turned: Vec<MovedSlots> = back
                .moved
                .into_iter()
                .map(|m| MovedSlots { slots: m.slots, from: m.to, to: m.from })
                .collect();
            prop_assert_eq!(there.moved, turned);
        }

        #[test]
        fn there_is_no_difference_to_oneself(one in topology()) {
            prop_assert_eq!(diff(&one, &one), TopologyDiff::default());
        }
    }
}

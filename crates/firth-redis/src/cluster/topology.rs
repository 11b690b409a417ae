//! Owners of the slots: a snapshot of the cluster as one node tells it. Pure; read in `parse`,
//! compared in `diff`.
//!
//! Snapshots are *canonical*: shards are in the order of their first slot, replicas in the order of
//! their addresses, and no shard is without a slot. So nodes that agree give equal snapshots.

use crate::config::Address;
use std::ops::RangeInclusive;

/// Number of hash slots of a cluster.
pub(crate) const SLOTS: usize = 16_384;

/// A slot without an owner.
const NOBODY: u16 = u16::MAX;

/// A snapshot of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    shards: Vec<ClusterShard>,
    /// Slot → index into `shards`.
    owner: Box<[u16]>,
}

/// A master and its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterShard {
    pub(crate) master: Address,
    pub(crate) replicas: Vec<Address>,
}

impl ClusterShard {
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Address> {
        std::iter::once(&self.master).chain(&self.replicas)
    }
}

impl Topology {
    /// A cluster without any slot.
    pub(crate) fn empty() -> Self {
        Self { shards: Vec::new(), owner: vec![NOBODY; SLOTS].into() }
    }

    /// One server that owns every slot: a cluster of one, for clients of a single server.
    pub(crate) fn single(server: Address) -> Self {
        Self::from_ranges([(0..=16_383, ClusterShard { master: server, replicas: Vec::new() })])
    }

    /// The snapshot in which each range belongs to its shard; shards are told apart by their
    /// master.
    pub(crate) fn from_ranges(ranges: impl IntoIterator<Item = (RangeInclusive<u16>, ClusterShard)>) -> Self {
        let mut all = Self::empty();
        for (slots, shard) in ranges {
            let index = all.index_of(shard);
            all.owner[usize::from(*slots.start())..=usize::from(*slots.end())].fill(index);
        }
        all.canonical()
    }

    /// The same snapshot with some slots at other masters; `None` if they are there already.
    pub(crate) fn with_slots_at<'a>(
        &self,
        moved: impl IntoIterator<Item = (u16, &'a Address)>,
    ) -> Option<Self> {
        let mut moved = moved.into_iter().filter(|(slot, to)| self.master_of(*slot) != Some(to)).peekable();
        moved.peek()?;
        let mut changed = self.clone();
        for (slot, master) in moved {
            let index = changed.index_of(ClusterShard { master: master.clone(), replicas: Vec::new() });
            changed.owner[usize::from(slot)] = index;
        }
        Some(changed.canonical())
    }

    /// The index of the shard with this master, which is added if it is new.
    fn index_of(&mut self, shard: ClusterShard) -> u16 {
        let index = match self.shards.iter().position(|s| s.master == shard.master) {
            Some(index) => index,
            None => {
                self.shards.push(shard);
                self.shards.len() - 1
            }
        };
        u16::try_from(index).expect("there are no more shards than slots")
    }

    fn canonical(mut self) -> Self {
        let mut rank = vec![NOBODY; self.shards.len()];
        let mut order: Vec<u16> = Vec::with_capacity(rank.len());
        for owner in self.owner.iter_mut().filter(|owner| **owner != NOBODY) {
            let rank = &mut rank[usize::from(*owner)];
            if *rank == NOBODY {
                *rank = order.len() as u16;
                order.push(*owner);
            }
            *owner = *rank;
        }
        self.shards = order.into_iter().map(|old| self.shards[usize::from(old)].clone()).collect();
        for shard in &mut self.shards {
            shard.replicas.sort_unstable();
            shard.replicas.dedup();
        }
        self
    }

    pub(crate) fn shards(&self) -> &[ClusterShard] {
        &self.shards
    }

    /// The index of a slot's shard in [`shards`](Self::shards).
    pub(crate) fn shard_index(&self, slot: u16) -> Option<usize> {
        let owner = self.owner[usize::from(slot)];
        (owner != NOBODY).then_some(usize::from(owner))
    }

    pub(crate) fn shard_of(&self, slot: u16) -> Option<&ClusterShard> {
        self.shard_index(slot).map(|index| &self.shards[index])
    }

    pub(crate) fn master_of(&self, slot: u16) -> Option<&Address> {
        self.shard_of(slot).map(|shard| &shard.master)
    }

    /// Every node, masters first in each shard.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Address> {
        self.shards.iter().flat_map(ClusterShard::nodes)
    }

    pub(crate) fn contains(&self, node: &Address) -> bool {
        self.nodes().any(|n| n == node)
    }

    /// Whether no slot has an owner.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Whether every slot has an owner.
    pub(crate) fn is_complete(&self) -> bool {
        self.owner.iter().all(|&owner| owner != NOBODY)
    }

    /// How many slots have no owner.
    pub(crate) fn orphaned_slots(&self) -> usize {
        self.owner.iter().filter(|&&owner| owner == NOBODY).count()
    }

    /// The slots of a shard, as few ranges as there are.
    pub(crate) fn ranges_of(&self, shard: usize) -> Vec<RangeInclusive<u16>> {
        let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
        for slot in 0..SLOTS as u16 {
            if self.shard_index(slot) != Some(shard) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if *last.end() + 1 == slot => *last = *last.start()..=slot,
                _ => ranges.push(slot..=slot),
            }
        }
        ranges
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn node(port: u16) -> Address {
        Address::new("10.0.0.1", port)
    }

    pub(crate) fn shard(master: u16, replicas: &[u16]) -> ClusterShard {
        ClusterShard { master: node(master), replicas: replicas.iter().map(|&port| node(port)).collect() }
    }

    #[test]
    fn nodes_that_agree_give_equal_snapshots_in_whatever_order() {
        let one = Topology::from_ranges([(0..=99, shard(1, &[4, 5])), (100..=16_383, shard(2, &[6]))]);
        let other = Topology::from_ranges([
            (5_000..=16_383, shard(2, &[6])),
            (0..=99, shard(1, &[5, 4])),
            (100..=4_999, shard(2, &[6])),
        ]);
        assert_eq!(one, other);
        assert!(one.is_complete());
        assert_eq!(one.ranges_of(1), [100..=16_383]);
    }

    #[test]
    fn a_slot_can_be_moved_and_a_shard_without_slots_is_none() {
        let before = Topology::from_ranges([(0..=0, shard(1, &[])), (1..=16_383, shard(2, &[3]))]);
        assert_eq!(before.with_slots_at([(0, &node(1))]), None);
        let after = before.with_slots_at([(0, &node(2))]).unwrap();
        assert_eq!(after.shards(), [shard(2, &[3])]);
        assert_eq!(after.master_of(0), Some(&node(2)));
        let back = after.with_slots_at([(0, &node(1))]).unwrap();
        assert_eq!(back, before);
    }

    #[test]
    fn missing_slots_are_counted() {
        let half = Topology::from_ranges([(0..=8_191, shard(1, &[]))]);
        assert!(!half.is_complete());
        assert_eq!((half.orphaned_slots(), half.master_of(8_192)), (8_192, None));
        assert!(Topology::single(node(1)).is_complete());
        assert!(Topology::empty().is_empty());
    }
}

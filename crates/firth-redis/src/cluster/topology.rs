//! Who owns which slot: a snapshot of the cluster as one node tells it. Pure; read from CLUSTER SLOTS or CLUSTER
//! SHARDS in `parse`, compared in `diff`.

use crate::config::Address;

/// Number of hash slots of a cluster.
pub(crate) const SLOTS: usize = 16_384;

/// A slot without an owner.
const NOBODY: u16 = u16::MAX;

/// A snapshot of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    shards: Vec<Shard>,
    /// Slot → index into `shards`.
    owner: Box<[u16]>,
}

/// A master and its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) master: Address,
    pub(crate) replicas: Vec<Address>,
}

impl Shard {
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
        let mut all = Self::empty();
        all.assign(0..=16_383, Shard { master: server, replicas: Vec::new() });
        all
    }

    /// Gives a range of slots to a shard; shards are told apart by their master.
    pub(crate) fn assign(&mut self, slots: std::ops::RangeInclusive<u16>, shard: Shard) {
        let index = match self.shards.iter().position(|s| s.master == shard.master) {
            Some(index) => index,
            None => {
                self.shards.push(shard);
                self.shards.len() - 1
            }
        };
        let index = u16::try_from(index).expect("a cluster has fewer than 65 535 shards");
        self.owner[usize::from(*slots.start())..=usize::from(*slots.end())].fill(index);
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    pub(crate) fn shard_of(&self, slot: u16) -> Option<&Shard> {
        self.shards.get(usize::from(self.owner[usize::from(slot)]))
    }

    pub(crate) fn master_of(&self, slot: u16) -> Option<&Address> {
        self.shard_of(slot).map(|shard| &shard.master)
    }

    /// Every node, masters first in each shard.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Address> {
        self.shards.iter().flat_map(Shard::nodes)
    }

    pub(crate) fn contains(&self, node: &Address) -> bool {
        self.nodes().any(|n| n == node)
    }

    /// Whether every slot has an owner.
    pub(crate) fn is_complete(&self) -> bool {
        self.owner.iter().all(|&owner| owner != NOBODY)
    }
}

//! Chooses the node of a channel. Pure.
//!
//! Sharded channels follow their slot; others may be anywhere. The preference says which roles are
//! wanted. Among equals the least loaded node wins, so that load spreads first and then balances.

use super::config::NodePreference;
use crate::cluster::topology::Topology;
use crate::config::Address;

/// What placement knows of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeLoad {
    /// Channels that it serves.
    pub(crate) channels: usize,
    /// Whether the connection to it is broken now.
    pub(crate) down: bool,
}

/// The node for a sharded channel, or `None` if its slot has no owner.
pub(crate) fn for_slot(
    topology: &Topology,
    slot: u16,
    preference: NodePreference,
    load: impl Fn(&Address) -> NodeLoad,
) -> Option<&Address> {
    let shard = topology.shard_of(slot)?;
    let master = std::iter::once(&shard.master);
    match preference {
        NodePreference::Masters => Some(&shard.master),
        NodePreference::Balanced => choose(shard.nodes(), std::iter::empty(), load),
        NodePreference::Replicas => choose(shard.replicas.iter(), master, load),
    }
}

/// The least loaded reachable replica of a slot's shard.
pub(crate) fn fallback_replica(
    topology: &Topology,
    slot: u16,
    load: impl Fn(&Address) -> NodeLoad,
) -> Option<&Address> {
    let replicas = topology.shard_of(slot)?.replicas.iter();
    replicas.filter(|node| !load(node).down).min_by_key(|node| load(node).channels)
}

/// The node for a channel that every node delivers, or `None` if there is no node.
pub(crate) fn for_any(
    topology: &Topology,
    preference: NodePreference,
    load: impl Fn(&Address) -> NodeLoad,
) -> Option<&Address> {
    let masters = topology.shards().iter().map(|s| &s.master);
    let replicas = topology.shards().iter().flat_map(|s| &s.replicas);
    match preference {
        NodePreference::Masters => choose(masters, replicas, load),
        NodePreference::Balanced => choose(topology.nodes(), std::iter::empty(), load),
        NodePreference::Replicas => choose(replicas, masters, load),
    }
}

/// Whether this node may serve a sharded channel of this slot.
pub(crate) fn serves(topology: &Topology, slot: u16, preference: NodePreference, node: &Address) -> bool {
    topology.shard_of(slot).is_some_and(|shard| match preference {
        NodePreference::Masters => shard.master == *node,
        NodePreference::Balanced | NodePreference::Replicas => shard.nodes().any(|n| n == node),
    })
}

/// The least loaded reachable node of the wanted ones, then of the others; if none is reachable, a
/// wanted one: its connection is being made again.
fn choose<'t>(
    wanted: impl Iterator<Item = &'t Address>,
    fallback: impl Iterator<Item = &'t Address>,
    load: impl Fn(&Address) -> NodeLoad,
) -> Option<&'t Address> {
    let wanted = wanted.map(|node| (node, false));
    let all = wanted.chain(fallback.map(|node| (node, true)));
    let rank = |(node, second): &(&Address, bool)| {
        let NodeLoad { channels, down } = load(node);
        (down, *second, channels)
    };
    all.min_by_key(rank).map(|(node, _)| node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::topology::ClusterShard;
    use std::collections::HashMap;

    fn node(port: u16) -> Address {
        Address::new("n", port)
    }

    /// Masters 1, 2, 3 with replicas 11, 12, 13.
    fn topology() -> Topology {
        let shard = |n| ClusterShard { master: node(n), replicas: vec![node(10 + n)] };
        Topology::from_ranges([(0..=5460, shard(1)), (5461..=10922, shard(2)), (10923..=16383, shard(3))])
    }

    fn idle(_: &Address) -> NodeLoad {
        NodeLoad { channels: 0, down: false }
    }

    #[test]
    fn sharded_channels_follow_their_slot_and_the_preference() {
        let t = topology();
        let at = |preference| for_slot(&t, 6000, preference, idle).cloned();
        assert_eq!(at(NodePreference::Masters), Some(node(2)));
        assert_eq!(at(NodePreference::Replicas), Some(node(12)));
        let busy = |n: &Address| NodeLoad { channels: usize::from(n.port == 2), down: false };
        assert_eq!(for_slot(&t, 6000, NodePreference::Balanced, busy), Some(&node(12)));
        assert_eq!(for_slot(&Topology::empty(), 1, NodePreference::Masters, idle), None);
    }

    #[test]
    fn a_dead_replica_gives_way_to_its_master() {
        let t = topology();
        let dead = |n: &Address| NodeLoad { channels: 0, down: n.port == 12 };
        assert_eq!(for_slot(&t, 6000, NodePreference::Replicas, dead), Some(&node(2)));
        let all_dead = |_: &Address| NodeLoad { channels: 0, down: true };
        assert_eq!(for_slot(&t, 6000, NodePreference::Masters, all_dead), Some(&node(2)));
    }

    #[test]
    fn ordinary_channels_spread_first_and_then_balance() {
        let t = topology();
        let mut loads: HashMap<Address, usize> = HashMap::new();
        for _ in 0..300 {
            let chosen = for_any(&t, NodePreference::Masters, |n| NodeLoad {
                channels: loads.get(n).copied().unwrap_or(0),
                down: false,
            });
            *loads.entry(chosen.expect("there are masters").clone()).or_default() += 1;
        }
        assert_eq!(loads, HashMap::from([(node(1), 100), (node(2), 100), (node(3), 100)]));
    }

    #[test]
    fn only_the_owner_serves_with_masters_and_the_whole_shard_otherwise() {
        let t = topology();
        assert!(serves(&t, 0, NodePreference::Masters, &node(1)));
        assert!(!serves(&t, 0, NodePreference::Masters, &node(11)));
        assert!(serves(&t, 0, NodePreference::Replicas, &node(11)));
        assert!(!serves(&t, 0, NodePreference::Balanced, &node(12)));
    }
}

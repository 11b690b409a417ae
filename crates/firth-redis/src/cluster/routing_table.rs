//! Topology with the clients of its nodes: the table that routes requests. A snapshot that is
//! replaced whole. Node clients are kept by address from one snapshot to the next, so that their
//! connections stay open.

use super::node::NodeClient;
use super::topology::Topology;
use crate::config::{Address, ReadFrom};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) struct RoutingTable {
    topology: Arc<Topology>,
    /// In the order of the topology's shards.
    shards: Box<[ShardNodes]>,
    nodes: HashMap<Address, Arc<NodeClient>>,
}

/// A master and its replicas.
struct ShardNodes {
    master: Arc<NodeClient>,
    replicas: Box<[Arc<NodeClient>]>,
    next_replica: AtomicUsize,
}

impl RoutingTable {
    pub(crate) fn empty() -> Self {
        Self { topology: Arc::new(Topology::empty()), shards: Box::new([]), nodes: HashMap::new() }
    }

    /// Table of a newer topology. `find` makes the nodes that this table does not know.
    pub(crate) fn next(
        &self,
        topology: Arc<Topology>,
        mut find: impl FnMut(&Address) -> Arc<NodeClient>,
    ) -> Self {
        let mut nodes: HashMap<Address, Arc<NodeClient>> = HashMap::new();
        let mut node = |address: &Address| {
            let known = nodes.get(address).or_else(|| self.nodes.get(address)).cloned();
            let node = known.unwrap_or_else(|| find(address));
            nodes.insert(address.clone(), node.clone());
            node
        };
        let shards = topology
            .shards()
            .iter()
            .map(|shard| ShardNodes {
                master: node(&shard.master),
                replicas: shard.replicas.iter().map(&mut node).collect(),
                next_replica: AtomicUsize::new(fastrand::usize(..1024)),
            })
            .collect();
        Self { topology, shards, nodes }
    }

    pub(crate) fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    pub(crate) fn node(&self, address: &Address) -> Option<&Arc<NodeClient>> {
        self.nodes.get(address)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<NodeClient>> {
        self.nodes.values()
    }

    pub(crate) fn masters(&self) -> impl Iterator<Item = &Arc<NodeClient>> {
        self.shards.iter().map(|shard| &shard.master)
    }

    /// The node that may write a slot.
    pub(crate) fn master(&self, slot: u16) -> Option<&Arc<NodeClient>> {
        self.topology.shard_index(slot).map(|index| &self.shards[index].master)
    }

    /// A replica for a read of this slot, by preference and in turn; `None` means the master.
    pub(crate) fn replica(&self, slot: u16, reads: ReadFrom) -> Option<&Arc<NodeClient>> {
        let shard = &self.shards[self.topology.shard_index(slot)?];
        let count = shard.replicas.len();
        let places = match reads {
            ReadFrom::Master => return None,
            ReadFrom::PreferReplica => count,
            // One place more than there are replicas: the master's.
            ReadFrom::Any => count + 1,
        };
        if count == 0 {
            return None;
        }
        let next_replica = shard.next_replica.fetch_add(1, Ordering::Relaxed) % places;
        if next_replica == count {
            return None;
        }
        (0..count).map(|offset| &shard.replicas[(next_replica + offset) % count]).find(|node| node.can_read())
    }

    /// Any master, rather one that works.
    pub(crate) fn any_master(&self) -> Option<&Arc<NodeClient>> {
        let count = self.shards.len();
        let first = fastrand::usize(..count.max(1));
        let in_turn = || (0..count).map(|offset| &self.shards[(first + offset) % count].master);
        in_turn().find(|node| node.can_serve()).or_else(|| in_turn().next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::topology::{
            ClusterShard,
            tests::{node, shard},
        },
        config::{Config, Server},
    };

    fn next(table: &RoutingTable, shards: [ClusterShard; 2]) -> RoutingTable {
        let [a, b] = shards;
        let topology = Topology::from_ranges([(0..=99, a), (100..=16_383, b)]);
        let config = Config::new(Server::Cluster(vec![node(1)]));
        table.next(Arc::new(topology), |address| {
            Arc::new(NodeClient::new(&config, address.clone(), tokio::sync::broadcast::Sender::new(1)))
        })
    }

    #[test]
    fn nodes_live_on_from_one_view_to_the_next() {
        let first = next(&RoutingTable::empty(), [shard(1, &[3]), shard(2, &[])]);
        let second = next(&first, [shard(3, &[1]), shard(4, &[])]);
        for port in [1, 3] {
            let old = first.node(&node(port)).unwrap();
            let new = second.node(&node(port)).unwrap();
            assert!(Arc::ptr_eq(old, new), "{port} is the same node in another role");
        }
        assert_eq!(second.master(0).unwrap().address(), &node(3));
        assert!(second.node(&node(2)).is_none() && second.node(&node(4)).is_some());
    }

    #[test]
    fn reads_take_turns_among_those_who_may_answer() {
        let table = next(&RoutingTable::empty(), [shard(1, &[3, 4]), shard(2, &[])]);
        let ports = |reads| {
            let mut ports: Vec<Option<u16>> =
                (0..6).map(|_| table.replica(0, reads).map(|node| node.address().port)).collect();
            ports.sort_unstable();
            ports
        };
        assert_eq!(ports(ReadFrom::Master), [None; 6]);
        assert_eq!(ports(ReadFrom::PreferReplica), [3, 3, 3, 4, 4, 4].map(Some));
        assert_eq!(ports(ReadFrom::Any), [None, None, Some(3), Some(3), Some(4), Some(4)]);
        assert!(table.replica(100, ReadFrom::PreferReplica).is_none(), "no replica, no choice");
    }

    #[test]
    fn any_master_is_one_of_the_masters() {
        assert!(RoutingTable::empty().any_master().is_none());
        let table = next(&RoutingTable::empty(), [shard(1, &[3]), shard(2, &[4])]);
        let found: std::collections::HashSet<u16> =
            (0..100).filter_map(|_| table.any_master()).map(|node| node.address().port).collect();
        assert_eq!(found, [1, 2].into());
    }
}

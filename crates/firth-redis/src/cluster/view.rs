//! The topology together with the nodes themselves: what a request is routed by. A snapshot that is replaced whole;
//! nodes are kept from one snapshot to the next by their address, so that their connections live on.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{node::Node, topology::Topology};
use crate::config::{Address, ReadFrom};

pub(crate) struct View {
    topology: Arc<Topology>,
    /// In the order of the topology's shards.
    teams: Box<[Team]>,
    nodes: HashMap<Address, Arc<Node>>,
}

/// A master and its replicas.
struct Team {
    master: Arc<Node>,
    replicas: Box<[Arc<Node>]>,
    turn: AtomicUsize,
}

impl View {
    pub(crate) fn empty() -> Self {
        Self { topology: Arc::new(Topology::empty()), teams: Box::new([]), nodes: HashMap::new() }
    }

    /// The view of a newer topology. Nodes that `find` does not know and that were not here are made anew.
    pub(crate) fn next(&self, topology: Arc<Topology>, mut find: impl FnMut(&Address) -> Arc<Node>) -> Self {
        let mut nodes: HashMap<Address, Arc<Node>> = HashMap::new();
        let mut node = |address: &Address| {
            let known = nodes.get(address).or_else(|| self.nodes.get(address)).cloned();
            let node = known.unwrap_or_else(|| find(address));
            nodes.insert(address.clone(), node.clone());
            node
        };
        let teams = topology
            .shards()
            .iter()
            .map(|shard| Team {
                master: node(&shard.master),
                replicas: shard.replicas.iter().map(&mut node).collect(),
                turn: AtomicUsize::new(fastrand::usize(..1024)),
            })
            .collect();
        Self { topology, teams, nodes }
    }

    pub(crate) fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    pub(crate) fn node(&self, address: &Address) -> Option<&Arc<Node>> {
        self.nodes.get(address)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    pub(crate) fn masters(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.teams.iter().map(|team| &team.master)
    }

    /// The node that may write a slot.
    pub(crate) fn master(&self, slot: u16) -> Option<&Arc<Node>> {
        self.topology.shard_index(slot).map(|index| &self.teams[index].master)
    }

    /// A replica for a read of this slot, by preference and in turn; `None` means the master.
    pub(crate) fn replica(&self, slot: u16, reads: ReadFrom) -> Option<&Arc<Node>> {
        let team = &self.teams[self.topology.shard_index(slot)?];
        let count = team.replicas.len();
        let places = match reads {
            ReadFrom::Master => return None,
            ReadFrom::PreferReplica => count,
            // One place more than there are replicas: the master's.
            ReadFrom::Any => count + 1,
        };
        if count == 0 {
            return None;
        }
        let turn = team.turn.fetch_add(1, Ordering::Relaxed) % places;
        if turn == count {
            return None;
        }
        (0..count).map(|step| &team.replicas[(turn + step) % count]).find(|node| node.reads_well())
    }

    /// Any master, rather one that works.
    pub(crate) fn any_master(&self) -> Option<&Arc<Node>> {
        let count = self.teams.len();
        let first = fastrand::usize(..count.max(1));
        let in_turn = || (0..count).map(|step| &self.teams[(first + step) % count].master);
        in_turn().find(|node| node.works_well()).or_else(|| in_turn().next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::topology::{
            Shard,
            tests::{node, shard},
        },
        config::{Config, Server},
    };

    fn next(view: &View, shards: [Shard; 2]) -> View {
        let [a, b] = shards;
        let topology = Topology::from_ranges([(0..=99, a), (100..=16_383, b)]);
        let config = Config::new(Server::Cluster(vec![node(1)]));
        view.next(Arc::new(topology), |address| {
            Arc::new(Node::new(&config, address.clone(), tokio::sync::broadcast::Sender::new(1)))
        })
    }

    #[test]
    fn nodes_live_on_from_one_view_to_the_next() {
        let first = next(&View::empty(), [shard(1, &[3]), shard(2, &[])]);
        let second = next(&first, [shard(3, &[1]), shard(4, &[])]);
        for port in [1, 3] {
            let (old, new) = (first.node(&node(port)).unwrap(), second.node(&node(port)).unwrap());
            assert!(Arc::ptr_eq(old, new), "{port} is the same node in another role");
        }
        assert_eq!(second.master(0).unwrap().address(), &node(3));
        assert!(second.node(&node(2)).is_none() && second.node(&node(4)).is_some());
    }

    #[test]
    fn reads_take_turns_among_those_who_may_answer() {
        let view = next(&View::empty(), [shard(1, &[3, 4]), shard(2, &[])]);
        let ports = |reads| {
            let mut ports: Vec<Option<u16>> =
                (0..6).map(|_| view.replica(0, reads).map(|node| node.address().port)).collect();
            ports.sort_unstable();
            ports
        };
        assert_eq!(ports(ReadFrom::Master), [None; 6]);
        assert_eq!(ports(ReadFrom::PreferReplica), [3, 3, 3, 4, 4, 4].map(Some));
        assert_eq!(ports(ReadFrom::Any), [None, None, Some(3), Some(3), Some(4), Some(4)]);
        assert!(view.replica(100, ReadFrom::PreferReplica).is_none(), "no replica, no choice");
    }

    #[test]
    fn any_master_is_one_of_the_masters() {
        assert!(View::empty().any_master().is_none());
        let view = next(&View::empty(), [shard(1, &[3]), shard(2, &[4])]);
        let found: std::collections::HashSet<u16> =
            (0..100).filter_map(|_| view.any_master()).map(|node| node.address().port).collect();
        assert_eq!(found, [1, 2].into());
    }
}

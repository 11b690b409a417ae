//! Nodes that join and leave.

use super::RedisCluster;
use super::form::{attach, introduce, make_known, start_node};
use std::sync::atomic::Ordering;

impl RedisCluster {
    /// Adds an empty master and waits until all know it; returns its index.
    pub async fn add_node(&self) -> usize {
        let shards = self.nodes().iter().map(|node| node.shard).max().unwrap_or(0);
        self.join(shards + 1).await
    }

    /// Adds a replica of a master and waits until it is in step; returns its index.
    pub async fn add_replica(&self, master: usize) -> usize {
        let index = self.join(self.node(master).shard).await;
        attach(&self.node(index), &self.node(master)).await;
        self.settle().await;
        index
    }

    /// Makes all others forget a node without slots and without replicas, and ends it. Its index
    /// stays taken.
    ///
    /// # Panics
    /// If the node still owns slots or has replicas: migrate or remove them first.
    pub async fn remove_node(&self, index: usize) {
        let node = self.node(index);
        let view = self.view().await;
        let owns = view.member(node.id()).is_some_and(|member| !member.slots.is_empty());
        assert!(!owns, "node {index} still owns slots");
        assert!(view.replicas_of(node.id()).is_empty(), "node {index} still has replicas");
        node.server.kill().await;
        node.removed.store(true, Ordering::Relaxed);
        for other in self.live_nodes() {
            other.server.order(&["CLUSTER", "FORGET", node.id()]).await;
        }
        self.settle().await;
    }

    async fn join(&self, shard: usize) -> usize {
        let node = start_node(&self.plan, shard).await;
        let host = self.live_nodes().into_iter().next().expect("a node is alive");
        introduce(&host, &node).await;
        make_known(&host, &node).await;
        let index = self.push(node);
        self.settle().await;
        index
    }
}

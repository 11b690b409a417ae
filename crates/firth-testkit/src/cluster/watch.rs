//! Waiting for a cluster to agree, and making it change masters.

use super::RedisCluster;
use super::node::ClusterNode;
use super::view::View;
use crate::wait::{PATIENCE, Poll};
use std::time::{Duration, Instant};

/// Servers give a failover up that starved nodes did not agree on within 5 seconds.
const ORDER_AGAIN: Duration = Duration::from_secs(6);

impl RedisCluster {
    /// Waits until all live nodes call the cluster whole, agree on members, roles and slots, and
    /// all live replicas of live masters are in step. A cluster that lacks slots never settles.
    ///
    /// # Panics
    /// If that does not come about in time.
    pub async fn settle(&self) {
        let mut poll = Poll::new(PATIENCE);
        while !self.is_settled().await {
            assert!(poll.again().await, "the cluster does not settle:\n{}", self.describe().await);
        }
    }

    /// Orders a replica to take over from its master without loss, and waits until all agree.
    pub async fn failover(&self, replica: usize) {
        let node = self.node(replica);
        node.server.order(&["CLUSTER", "FAILOVER"]).await;
        let mut ordered = Instant::now();
        let mut poll = Poll::new(PATIENCE);
        while !node.is_master().await {
            assert!(poll.again().await, "node {replica} is not promoted:\n{}", self.describe().await);
            if ordered.elapsed() > ORDER_AGAIN {
                // refused by a replica that was promoted in this moment
                let _ = node.server.try_command(&["CLUSTER", "FAILOVER"]).await;
                ordered = Instant::now();
            }
        }
        self.settle().await;
    }

    /// Waits until another node of its shard has taken over from a dead or frozen master; returns
    /// who.
    pub async fn wait_promoted(&self, old: usize) -> usize {
        let mut poll = Poll::new(PATIENCE);
        loop {
            let heir = self.agreed().await.and_then(|view| self.heir_of(old, &view));
            if let Some(heir) = heir
                && self.all_content().await
            {
                return heir;
            }
            assert!(poll.again().await, "nobody takes over from node {old}:\n{}", self.describe().await);
        }
    }

    async fn is_settled(&self) -> bool {
        let Some(view) = self.agreed().await else { return false };
        let members = self.nodes().iter().filter(|node| !node.is_removed()).count();
        view.len() == members && self.all_content().await && self.all_linked(&view).await
    }

    /// The view of all live nodes, if they share one.
    async fn agreed(&self) -> Option<View> {
        let mut shared = None;
        for node in self.live_nodes() {
            let view = node.view().await?;
            if *shared.get_or_insert_with(|| view.clone()) != view {
                return None;
            }
        }
        shared
    }

    async fn all_content(&self) -> bool {
        for node in self.live_nodes() {
            if !node.is_content().await {
                return false;
            }
        }
        true
    }

    async fn all_linked(&self, view: &View) -> bool {
        let live = self.live_nodes();
        for node in &live {
            let master = view.member(node.id()).and_then(|member| member.master.as_deref());
            let follows_live = live.iter().any(|other| Some(other.id()) == master);
            if follows_live && !is_linked(node).await {
                return false;
            }
        }
        true
    }

    fn heir_of(&self, old: usize, view: &View) -> Option<usize> {
        let nodes = self.nodes();
        let is_heir = |index: usize, node: &ClusterNode| {
            index != old
                && node.shard == nodes[old].shard
                && view.member(node.id()).is_some_and(|member| !member.slots.is_empty())
        };
        nodes.iter().enumerate().find(|(index, node)| is_heir(*index, node)).map(|(index, _)| index)
    }

    /// What each live node thinks, for the message of a failed wait.
    async fn describe(&self) -> String {
        let mut story = String::new();
        for node in self.live_nodes() {
            let info = node.server.try_command(&["CLUSTER", "NODES"]).await;
            let info = info.map_or_else(|error| error.to_string(), |reply| reply.text());
            story.push_str(&format!("node on port {} ({}):\n{info}\n", node.server.port(), node.id()));
        }
        story
    }
}

async fn is_linked(replica: &ClusterNode) -> bool {
    let Ok(reply) = replica.server.try_command(&["INFO", "replication"]).await else { return false };
    !reply.is_error() && reply.text().contains("master_link_status:up")
}

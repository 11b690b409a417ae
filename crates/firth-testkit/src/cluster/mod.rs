//! A real cluster as a test fixture: formed, broken and reshaped by its own commands.
//!
//! Nodes keep their index for the life of the cluster, in any role: after
//! `RedisCluster::builder().masters(3).replicas_per_master(1)` nodes 0 to 2 are the masters and
//! node 3 replicates node 0, node 4 node 1, and so on. "Live" means running and not frozen; all
//! waiting asks live nodes only.

mod builder;
mod form;
mod membership;
mod migrate;
mod node;
mod slot;
mod view;
mod watch;

use std::sync::{Arc, RwLock};

pub use self::builder::ClusterBuilder;
pub use self::migrate::Migration;
pub use self::node::ClusterNode;
pub use self::slot::slot_of;
use self::view::View;
use crate::bins::Flavor;
use crate::server::conf::userinfo;
use crate::wait::{PATIENCE, Poll};

/// A running cluster; its servers end with it.
#[derive(Debug)]
pub struct RedisCluster {
    plan: ClusterBuilder,
    nodes: RwLock<Vec<Arc<ClusterNode>>>,
}

impl RedisCluster {
    /// Three masters with one replica each.
    pub async fn start(flavor: Flavor) -> Self {
        Self::builder().flavor(flavor).start().await
    }

    /// Chooses what the cluster is like.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// Which server the nodes run.
    pub fn flavor(&self) -> Flavor {
        self.plan.flavor
    }

    /// `redis+cluster://` (with TLS `rediss+cluster://`) with the addresses of all nodes that were
    /// not removed, and the password.
    pub fn url(&self) -> String {
        let nodes = self.nodes();
        let addrs: Vec<String> =
            nodes.iter().filter(|node| !node.is_removed()).map(|node| node.addr().to_string()).collect();
        let user = self.plan.password.as_deref().map(userinfo).unwrap_or_default();
        let scheme = if self.plan.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}+cluster://{user}{}/", addrs.join(","))
    }

    /// All nodes, also dead and removed ones, by index.
    pub fn nodes(&self) -> Vec<Arc<ClusterNode>> {
        self.nodes.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// One node.
    ///
    /// # Panics
    /// If there is no node with this index.
    pub fn node(&self, index: usize) -> Arc<ClusterNode> {
        self.nodes()[index].clone()
    }

    /// The index of the master that owns a slot, as the live nodes see it.
    ///
    /// # Panics
    /// If no node owns it.
    pub async fn master_of_slot(&self, slot: u16) -> usize {
        let view = self.view().await;
        let owner = view.owner(slot).unwrap_or_else(|| panic!("nobody owns slot {slot}"));
        self.index_of(owner)
    }

    /// The index of the master that owns a key's slot.
    pub async fn master_of_key(&self, key: impl AsRef<[u8]>) -> usize {
        self.master_of_slot(slot_of(key)).await
    }

    /// The indices of a master's replicas, as the live nodes see them.
    pub async fn replicas_of(&self, index: usize) -> Vec<usize> {
        let view = self.view().await;
        view.replicas_of(self.node(index).id()).into_iter().map(|id| self.index_of(id)).collect()
    }

    /// The indices of all masters that own slots, as the live nodes see them.
    pub async fn masters(&self) -> Vec<usize> {
        let view = self.view().await;
        let mut masters: Vec<usize> = view.slot_owners().into_iter().map(|id| self.index_of(id)).collect();
        masters.sort_unstable();
        masters
    }

    /// `kill -9` of one node.
    pub async fn kill(&self, index: usize) {
        self.node(index).server().kill().await;
    }

    /// Starts a killed node again with its identity and data; the cluster takes it back as it sees
    /// fit.
    pub async fn restart(&self, index: usize) {
        self.node(index).server().restart().await;
    }

    /// Stops a node without ending it.
    pub fn freeze(&self, index: usize) {
        self.node(index).server().freeze();
    }

    /// Lets a frozen node go on.
    pub fn thaw(&self, index: usize) {
        self.node(index).server().thaw();
    }

    fn live_nodes(&self) -> Vec<Arc<ClusterNode>> {
        self.nodes().into_iter().filter(|node| node.is_live()).collect()
    }

    /// What the first live node believes, once it has made up its mind.
    async fn view(&self) -> View {
        let mut poll = Poll::new(PATIENCE);
        loop {
            let nodes = self.live_nodes();
            let node = nodes.first().expect("a node is alive");
            if let Some(view) = node.view().await {
                return view;
            }
            poll.again_or_panic("a live node knows the cluster").await;
        }
    }

    fn index_of(&self, id: &str) -> usize {
        let nodes = self.nodes();
        nodes.iter().position(|node| node.id() == id).unwrap_or_else(|| panic!("{id} is none of our nodes"))
    }

    fn push(&self, node: ClusterNode) -> usize {
        let mut nodes = self.nodes.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        nodes.push(Arc::new(node));
        nodes.len() - 1
    }
}

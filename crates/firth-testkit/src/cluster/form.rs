//! Forming a cluster: start the nodes, deal out the slots, introduce everyone, attach the replicas.

use super::node::ClusterNode;
use super::{ClusterBuilder, RedisCluster};
use crate::isolation::source_address;
use crate::ports::Port;
use crate::proxy::Proxy;
use crate::server::{RedisServer, RedisServerBuilder};
use crate::wait::{PATIENCE, Poll};
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const SLOTS: usize = 16384;
/// A greeting that has had no effect for so long was lost.
const GREET_AGAIN: Duration = Duration::from_secs(2);

impl RedisCluster {
    pub(super) async fn form(plan: ClusterBuilder) -> Self {
        let nodes = start_nodes(&plan).await;
        for (index, node) in nodes.iter().enumerate() {
            // distinct epochs from the start spare the nodes a round of settling collisions
            node.server.order(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]).await;
        }
        for (index, node) in nodes.iter().take(plan.masters).enumerate() {
            let range = share(index, plan.masters);
            let first = range.start().to_string();
            let last = range.end().to_string();
            node.server.order(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
        }
        for node in &nodes[1..] {
            introduce(&nodes[0], node).await;
        }
        for node in &nodes[1..] {
            make_known(&nodes[0], node).await;
        }
        let nodes: Vec<Arc<ClusterNode>> = nodes.into_iter().map(Arc::new).collect();
        for node in &nodes[plan.masters..] {
            attach(node, &nodes[node.shard]).await;
        }
        let cluster = Self { plan, nodes: RwLock::new(nodes) };
        cluster.settle().await;
        cluster
    }
}

/// Starts all nodes side by side; the result is in the order of their indices.
async fn start_nodes(plan: &ClusterBuilder) -> Vec<ClusterNode> {
    assert!(plan.masters > 0, "a cluster needs a master");
    let total = plan.masters * (1 + plan.replicas_per_master);
    let mut starts = JoinSet::new();
    for index in 0..total {
        let plan = plan.clone();
        starts.spawn(async move { (index, start_node(&plan, index % plan.masters).await) });
    }
    let mut nodes: Vec<(usize, ClusterNode)> = starts.join_all().await;
    nodes.sort_by_key(|(index, _)| *index);
    nodes.into_iter().map(|(_, node)| node).collect()
}

/// Starts one node, which is then a cluster of its own without slots.
pub(super) async fn start_node(plan: &ClusterBuilder, shard: usize) -> ClusterNode {
    let bus = Port::reserve();
    let port = Port::reserve();
    let proxy = if plan.proxies { Some(Proxy::start(port.addr()).await) } else { None };
    let announced = proxy.as_ref().map_or(port.number(), Proxy::port);
    let mut builder = RedisServer::builder()
        .flavor(plan.flavor)
        .persist(plan.persist)
        .arg("cluster-enabled", "yes")
        .arg("cluster-port", bus.number().to_string())
        .arg("cluster-node-timeout", plan.node_timeout_ms.to_string())
        .arg("cluster-announce-ip", "127.0.0.1")
        // so that its calls can be told from those of clients; Redis 7.0 takes only 127.0.0.1 for
        // this machine
        .arg("protected-mode", "no")
        .arg("bind-source-addr", source_address(port.number()))
        .arg("cluster-announce-port", announced.to_string())
        .arg("cluster-announce-bus-port", bus.number().to_string())
        // a replica may always stand for election, and no node changes sides unless a test says so
        .arg("cluster-replica-validity-factor", "0")
        .arg("cluster-allow-replica-migration", "no");
    if let Some(password) = &plan.password {
        builder = builder.password(password);
    }
    if let Some(certs) = &plan.tls {
        builder = builder
            .tls(certs)
            .arg("tls-cluster", "yes")
            .arg("tls-replication", "yes")
            .arg("cluster-announce-tls-port", announced.to_string());
    }
    builder = plan.lines.iter().fold(builder, RedisServerBuilder::config);
    let server = builder.start_on(port).await;
    let id = server.order(&["CLUSTER", "MYID"]).await.text();
    ClusterNode { server, id, shard, proxy, bus, removed: AtomicBool::new(false) }
}

/// Lets `host` greet `guest`; gossip spreads the news.
pub(super) async fn introduce(host: &ClusterNode, guest: &ClusterNode) {
    let port = guest.server.port().to_string();
    let bus = guest.bus.number().to_string();
    host.server.order(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
}

/// Waits until `host` knows `guest`. A greeting can be lost when both are starved of time, so it is
/// repeated.
pub(super) async fn make_known(host: &ClusterNode, guest: &ClusterNode) {
    let mut poll = Poll::new(PATIENCE);
    let mut greeted = Instant::now();
    while !host.view().await.is_some_and(|view| view.knows(&guest.id)) {
        poll.again_or_panic("a node has heard of another").await;
        if greeted.elapsed() > GREET_AGAIN {
            introduce(host, guest).await;
            greeted = Instant::now();
        }
    }
}

/// Makes `replica` follow `master` as soon as it has heard of it.
pub(super) async fn attach(replica: &ClusterNode, master: &ClusterNode) {
    make_known(replica, master).await;
    replica.server.order(&["CLUSTER", "REPLICATE", &master.id]).await;
}

/// The slots of the `index`-th of `masters`.
fn share(index: usize, masters: usize) -> RangeInclusive<usize> {
    index * SLOTS / masters..=(index + 1) * SLOTS / masters - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_masters_share_all_slots_without_overlap() {
        for masters in 1..=20 {
            let shares: Vec<_> = (0..masters).map(|index| share(index, masters)).collect();
            assert_eq!(*shares[0].start(), 0);
            assert_eq!(*shares[masters - 1].end(), SLOTS - 1);
            assert!(shares.windows(2).all(|pair| pair[0].end() + 1 == *pair[1].start()));
        }
    }
}

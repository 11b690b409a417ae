//! What the laws on clusters share: channels by their place, views of all nodes, clients that look
//! rarely.

use super::asked;
use firth_redis::{Client, Config};
use firth_testkit::{ClusterBuilder, Flavor, RedisCluster, RedisServer, slot_of};
use std::sync::Arc;
use std::time::Duration;

/// A cluster that notices a dead master quickly.
pub(super) fn builder(flavor: Flavor) -> ClusterBuilder {
    RedisCluster::builder().flavor(flavor).node_timeout(600).config("cluster-replica-validity-factor 0")
}

pub(super) async fn start(builder: ClusterBuilder) -> Arc<RedisCluster> {
    Arc::new(builder.start().await)
}

/// A client that looks at the topology so rarely that only events can tell it of a change.
pub(super) async fn connect(cluster: &RedisCluster) -> Client {
    let mut config = Config::from_url(&cluster.url()).unwrap();
    config.cluster.poll = Duration::from_secs(60);
    Client::connect(config).await.expect("the cluster is up")
}

/// As [`connect`], with the usual pace.
pub(super) async fn connect_as_usual(cluster: &RedisCluster) -> Client {
    Client::connect(cluster.url()).await.expect("the cluster is up")
}

/// Channels whose slots belong to this node.
pub(super) async fn channels_at(cluster: &RedisCluster, node: usize, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    for n in 0.. {
        let name = format!("ch-{n}");
        if cluster.master_of_slot(slot_of(&name)).await == node {
            found.push(name);
            if found.len() == count {
                break;
            }
        }
    }
    found
}

/// All live servers.
pub(super) fn servers(cluster: &RedisCluster) -> Vec<Arc<firth_testkit::ClusterNode>> {
    cluster.nodes().into_iter().filter(|node| node.is_live()).collect()
}

/// What `of` says about each live server.
pub(super) async fn each<T>(cluster: &RedisCluster, of: impl AsyncFn(&RedisServer) -> T) -> Vec<T> {
    let mut all = Vec::new();
    for node in servers(cluster) {
        all.push(of(node.server()).await);
    }
    all
}

/// How often all live servers together were given a command.
pub(super) async fn asked_in_all(cluster: &RedisCluster, command: &str) -> u64 {
    each(cluster, async |server| asked(server, command).await).await.into_iter().sum()
}

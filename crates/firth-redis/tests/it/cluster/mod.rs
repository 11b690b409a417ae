//! Laws of the cluster client, checked against real clusters. A cluster takes seconds to form, so
//! each test states several laws about one.

mod addresses;
mod calls;
mod discovery;
mod failover;
mod load;
mod migration;
mod scripts;
mod storms;

use firth_redis::{Client, Config};
use firth_testkit::{ClusterNode, RedisCluster};
use std::time::Duration;

/// Long enough for anything that happens at all.
const SOON: Duration = Duration::from_secs(20);

/// A configuration whose requests may outlast a failover.
fn config(cluster: &RedisCluster) -> Config {
    let mut config = Config::from_url(&cluster.url()).expect("the fixture's URL is valid");
    config.timeouts.request = Some(SOON);
    config.cluster.poll = Duration::from_millis(200);
    config
}

async fn connect(config: Config) -> Client {
    Client::connect(config).await.expect("the cluster is up")
}

/// Some keys, spread over all slots.
fn keys(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}:{n}")).collect()
}

/// How often a node answered with this error.
async fn errors(node: &ClusterNode, code: &str) -> u64 {
    let stats = node.server().info("errorstats").await;
    let line = stats.get(&format!("errorstat_{code}"));
    line.and_then(|line| line.strip_prefix("count=")?.parse().ok()).unwrap_or(0)
}

/// How often a node ran this command.
async fn runs(node: &ClusterNode, command: &str) -> u64 {
    let stats = node.server().info("commandstats").await;
    let line = stats.get(&format!("cmdstat_{command}"));
    line.and_then(|line| line.strip_prefix("calls=")?.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// The sum of what `of` says about each node.
async fn sum(cluster: &RedisCluster, of: impl AsyncFn(&ClusterNode) -> u64) -> u64 {
    let mut sum = 0;
    for node in cluster.nodes().iter().filter(|node| node.is_live()) {
        sum += of(node).await;
    }
    sum
}

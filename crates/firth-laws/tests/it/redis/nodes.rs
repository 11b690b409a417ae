//! What the engine tells of its servers: one with a replica, a cluster, those behind sentinels.

use super::block_on;
use firth_engine::Engine;
use firth_engine::facet::{EngineNode, NodeState};
use firth_laws::world::eventually;
use firth_testkit::{Flavor, RedisCluster, RedisServer, SentinelSet, on_both};

on_both!(a_server_tells_its_version_memory_and_replica_and_no_password);

/// Waits until the engine tells so.
async fn tells(engine: &Engine, what: &str, holds: impl Fn(&[EngineNode]) -> bool) -> Vec<EngineNode> {
    eventually(what, || async { holds(&engine.nodes()) }).await;
    engine.nodes()
}

async fn a_server_tells_its_version_memory_and_replica_and_no_password(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).password("secret").start().await;
    let replica = RedisServer::builder().flavor(flavor).password("secret").replica_of(&server).start().await;
    server.order(&["CONFIG", "SET", "maxmemory", "100mb"]).await;
    let url = server.tcp_url().replacen("redis://", "redis://:secret@", 1);
    let url = if server.tcp_url().contains('@') { server.tcp_url() } else { url };
    let engine = Engine::at(&format!("{url}?durability=fast")).await.unwrap();
    let online = |nodes: &[EngineNode]| nodes.len() == 2 && nodes[1].state == NodeState::Online;
    let nodes = tells(&engine, "the replica is online", online).await;
    let address = server.addr().to_string();
    assert_eq!((&nodes[0].address, &nodes[0].replica_of), (&address, &None));
    assert!(nodes[0].version.as_ref().is_some_and(|version| version.contains('.')), "{nodes:?}");
    assert!(nodes[0].memory.is_some_and(|bytes| bytes > 100_000), "{nodes:?}");
    assert_eq!(nodes[0].max_memory, Some(100 << 20));
    assert_eq!(nodes[1].replica_of.as_ref(), Some(&address));
    assert!(nodes[1].address.ends_with(&format!(":{}", replica.port())), "{nodes:?}");
    assert!(!format!("{nodes:?} {engine:?}").contains("secret"));
    replica.kill().await;
    tells(&engine, "the replica is gone", |nodes| nodes.len() == 1).await;
    server.freeze();
    tells(&engine, "the server does not answer", |nodes| nodes[0].state == NodeState::Away).await;
    server.thaw();
    tells(&engine, "the server answers", |nodes| nodes[0].state == NodeState::Online).await;
    engine.close().await.unwrap();
}

#[test]
fn each_master_of_a_cluster_is_told_with_its_slots_and_replicas() {
    block_on(async {
        let cluster = RedisCluster::builder().flavor(Flavor::Valkey).start().await;
        let engine = Engine::at(&cluster.url()).await.unwrap();
        let all = |nodes: &[EngineNode]| {
            nodes.len() == 6 && nodes.iter().all(|node| node.state == NodeState::Online)
        };
        let nodes = tells(&engine, "six servers are online", all).await;
        let masters: Vec<_> = nodes.iter().filter(|node| node.replica_of.is_none()).collect();
        assert_eq!(masters.len(), 3);
        let slots = masters.iter().flat_map(|node| node.slots.iter().map(|range| range.clone().count()));
        assert_eq!(slots.sum::<usize>(), 16_384);
        for pair in nodes.chunks(2) {
            assert_eq!(pair[1].replica_of.as_ref(), Some(&pair[0].address));
            assert_eq!(pair[0].slots, pair[1].slots);
            assert!(pair[0].memory.is_some() && pair[1].memory.is_none());
        }
        let port = nodes[1].address.rsplit(':').next().unwrap().to_owned();
        let index = cluster.nodes().iter().position(|node| node.addr().port().to_string() == port).unwrap();
        cluster.kill(index).await;
        tells(&engine, "the replica is away", |nodes| {
            let gone = nodes.iter().find(|node| node.address.ends_with(&format!(":{port}")));
            gone.is_none_or(|node| node.state == NodeState::Away)
        })
        .await;
        engine.close().await.unwrap();
    });
}

#[test]
fn behind_sentinels_the_current_master_is_told() {
    block_on(async {
        let set = SentinelSet::start(Flavor::Valkey, 1, 3).await;
        let engine = Engine::at(&set.url()).await.unwrap();
        let of = |node: &RedisServer| format!(":{}", node.port());
        let first = of(set.master().await);
        let nodes = tells(&engine, "both are told", |nodes| nodes.len() == 2).await;
        assert!(nodes[0].address.ends_with(&first) && nodes[0].replica_of.is_none(), "{nodes:?}");
        assert_eq!(nodes[1].replica_of.as_ref(), Some(&nodes[0].address));
        set.kill_master().await;
        tells(&engine, "the new master", |nodes| {
            nodes[0].state == NodeState::Online && !nodes[0].address.ends_with(&first)
        })
        .await;
        engine.close().await.unwrap();
    });
}

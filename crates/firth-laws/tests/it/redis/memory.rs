//! The server's memory: a server that evicts keys is refused, and one that is set so later is told.

use super::{append_one, block_on};
use firth_engine::{Engine, ErrorKind};
use firth_laws::world::{self, partition};
use firth_testkit::{Flavor, RedisCluster, RedisServer, on_both};

on_both!(q04_a_server_that_evicts_keys_is_refused_and_noticed_later);

async fn q04_a_server_that_evicts_keys_is_refused_and_noticed_later(flavor: Flavor) {
    let server = RedisServer::builder().flavor(flavor).config("maxmemory 100mb").start().await;
    let set = async |policy: &str| {
        server.order(&["CONFIG", "SET", "maxmemory-policy", policy]).await;
    };
    for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random"] {
        set(policy).await;
        let error = Engine::at(&server.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.context().contains("noeviction") && error.context().contains(policy), "{error}");
    }
    for policy in ["volatile-lru", "noeviction"] {
        set(policy).await;
        Engine::at(&server.url()).await.unwrap().close().await.unwrap();
    }
    let engine = Engine::at(&server.url()).await.unwrap();
    engine.health().unwrap();
    let turns = async |is_good: bool| {
        world::eventually("the watch sees it", || async { engine.health().is_ok() == is_good }).await;
    };
    set("allkeys-lru").await;
    turns(false).await;
    assert!(engine.health().unwrap_err().context().contains("maxmemory-policy noeviction"));
    set("noeviction").await;
    turns(true).await;
    server.order(&["CONFIG", "SET", "maxmemory", "100000"]).await;
    turns(false).await;
    assert!(engine.health().unwrap_err().context().contains("memory is full"));
    server.order(&["CONFIG", "SET", "maxmemory", "0"]).await;
    turns(true).await;
    append_one(&engine, &partition(&engine).await, 1).await.unwrap();
    engine.close().await.unwrap();
}

#[test]
fn q04_one_evicting_master_of_a_cluster_is_enough() {
    block_on(async {
        let cluster = RedisCluster::builder().replicas_per_master(0).start().await;
        let nodes = cluster.nodes();
        let server = nodes[1].server();
        server.order(&["CONFIG", "SET", "maxmemory", "100mb"]).await;
        server.order(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
        let error = Engine::at(&cluster.url()).await.unwrap_err();
        assert!(error.context().contains("noeviction"), "{error}");
    });
}

//! A server that was started again begins its append-only file anew before the first step: once,
//! for any number of clients, at every node that needs it, and with a word where it may not be
//! asked to.

use super::acl::rules;
use super::{append_one, block_on, refused};
use firth_engine::{Engine, ErrorKind};
use firth_laws::world::partition;
use firth_testkit::{Flavor, Persist, RedisCluster, RedisServer};

/// How often the server has rewritten its file since it was started.
async fn rewrites(server: &RedisServer) -> u64 {
    server.info("persistence").await["aof_rewrites"].trim().parse().unwrap()
}

async fn works(engine: &Engine) {
    let at = partition(engine).await;
    append_one(engine, &at, 1).await.unwrap();
    engine.close().await.unwrap();
}

#[test]
fn one_rewrite_serves_all_later_clients_of_a_server_until_it_is_started_again() {
    block_on(async {
        let server = RedisServer::builder().persist(Persist::Aof).start().await;
        for _ in 0..2 {
            // Of several who come at once each may order one.
            works(&Engine::at(&server.url()).await.unwrap()).await;
            let clients: Vec<_> = (0..4)
                .map(|_| {
                    let url = server.url();
                    tokio::spawn(async move { works(&Engine::at(&url).await.unwrap()).await })
                })
                .collect();
            for client in clients {
                client.await.unwrap();
            }
            assert_eq!(rewrites(&server).await, 1);
            server.restart().await;
        }
    });
}

#[test]
fn servers_without_a_file_and_those_that_cut_it_well_are_not_asked() {
    block_on(async {
        for (flavor, persist) in [(Flavor::Redis, Persist::None), (Flavor::Valkey, Persist::Aof)] {
            let server = RedisServer::builder().flavor(flavor).persist(persist).start().await;
            works(&Engine::at(&server.url()).await.unwrap()).await;
            assert_eq!(rewrites(&server).await, 0);
        }
    });
}

/// A snapshot, for a replica or by a timer, and a rewrite exclude each other.
#[test]
fn steps_wait_for_a_snapshot_that_keeps_the_server_from_rewriting() {
    block_on(async {
        let server = RedisServer::builder().persist(Persist::Aof).start().await;
        server.order(&["SET", "other", "1"]).await;
        server.order(&["CONFIG", "SET", "rdb-key-save-delay", "1000000"]).await;
        server.order(&["BGSAVE"]).await;
        works(&Engine::at(&server.url()).await.unwrap()).await;
        assert_eq!(rewrites(&server).await, 1);
    });
}

#[test]
fn every_node_of_a_cluster_is_asked_before_its_first_step() {
    block_on(async {
        let cluster = RedisCluster::builder().replicas_per_master(0).persist(Persist::Aof).start().await;
        let engine = Engine::at(&cluster.url()).await.unwrap();
        for _ in 0..2 {
            for _ in 0..40 {
                append_one(&engine, &partition(&engine).await, 1).await.unwrap();
            }
            for node in cluster.nodes() {
                assert_eq!(rewrites(node.server()).await, 1);
                assert!(node.server().command(&["DBSIZE"]).await.int() > 1);
            }
            for node in cluster.nodes() {
                node.server().order(&["SCRIPT", "FLUSH"]).await;
            }
        }
        engine.close().await.unwrap();
    });
}

#[test]
fn whoever_may_not_order_a_rewrite_is_told_and_cannot_promise_synced() {
    block_on(async {
        let without = rules(Flavor::Redis).replace("+bgrewriteaof ", "+config|get ");
        for (rules, denied) in [(rules(Flavor::Redis) + " +config|get", 0), (without, 1)] {
            let server =
                RedisServer::builder().persist(Persist::AofAlways).acl_user("firth", &rules).start().await;
            let url = format!("redis://firth:secret@{}", server.addr());
            let synced = Engine::at(&format!("{url}?durability=synced")).await;
            if denied == 0 {
                works(&synced.unwrap()).await;
            } else {
                let error = refused(async { synced }).await;
                assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
                assert!(error.context().contains("+bgrewriteaof"), "{error}");
            }
            let engine = Engine::at(&url).await.unwrap();
            assert_eq!(engine.can_promise(firth_engine::Durability::Synced).await.is_err(), denied == 1);
            works(&engine).await;
            let log = server.command(&["ACL", "LOG"]).await;
            assert_eq!(log.items().len().min(1), denied, "{log:?}");
        }
    });
}

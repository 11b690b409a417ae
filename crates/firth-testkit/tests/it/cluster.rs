//! Clusters form, fail over, grow, shrink and move slots.

use firth_testkit::resp::Conn;
use firth_testkit::{Flavor, Persist, RedisCluster, on_both, slot_of, wait};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

on_both!(
    a_cluster_is_whole_when_it_is_ready,
    a_replica_takes_over_from_a_killed_master,
    a_replica_takes_over_from_a_frozen_master,
    a_failover_on_request_keeps_all_data,
    a_slot_moves_with_its_keys,
    a_slot_on_its_way_asks_for_what_has_moved,
    empty_slots_move_in_ranges,
    nodes_join_and_leave,
    a_restarted_node_keeps_its_identity_and_data,
    clients_are_sent_to_the_proxies,
    a_cluster_works_behind_a_password,
);

async fn a_cluster_is_whole_when_it_is_ready(flavor: Flavor) {
    let start = Instant::now();
    let cluster = RedisCluster::start(flavor).await;
    println!("ready after {:?}", start.elapsed());
    assert_eq!(cluster.nodes().len(), 6);
    assert_eq!(cluster.masters().await, [0, 1, 2]);
    for master in 0..3 {
        assert_eq!(cluster.replicas_of(master).await, [master + 3]);
        assert!(cluster.node(master).is_master().await);
    }
    assert_eq!(cluster.master_of_slot(0).await, 0);
    assert_eq!(cluster.master_of_slot(16383).await, 2);
    for key in ["a", "b", "c", "{a}x"] {
        let owner = cluster.node(cluster.master_of_key(key).await);
        assert_eq!(owner.server().command(&["SET", key, "v"]).await.text(), "OK");
        assert_eq!(owner.server().command(&["CLUSTER", "KEYSLOT", key]).await.int(), i64::from(slot_of(key)));
    }
    let addrs: Vec<String> = cluster.nodes().iter().map(|node| node.addr().to_string()).collect();
    assert_eq!(cluster.url(), format!("redis+cluster://{}/", addrs.join(",")));
}

async fn a_replica_takes_over_from_a_killed_master(flavor: Flavor) {
    let cluster = RedisCluster::start(flavor).await;
    cluster.kill(1).await;
    assert_eq!(cluster.wait_promoted(1).await, 4);
    assert_eq!(cluster.masters().await, [0, 2, 4]);
    cluster.restart(1).await;
    cluster.settle().await;
    assert_eq!(cluster.replicas_of(4).await, [1]);
}

async fn a_replica_takes_over_from_a_frozen_master(flavor: Flavor) {
    let cluster = RedisCluster::builder().flavor(flavor).node_timeout(1000).start().await;
    cluster.freeze(0);
    assert_eq!(cluster.wait_promoted(0).await, 3);
    cluster.thaw(0);
    wait::until(wait::PATIENCE, "the old master follows the new one", async || {
        cluster.replicas_of(3).await == [0] && !cluster.node(0).is_master().await
    })
    .await;
}

async fn a_failover_on_request_keeps_all_data(flavor: Flavor) {
    let cluster = RedisCluster::start(flavor).await;
    let master = cluster.master_of_key("k").await;
    cluster.node(master).server().order(&["SET", "k", "v"]).await;
    let replica = cluster.replicas_of(master).await[0];
    cluster.failover(replica).await;
    assert_eq!(cluster.master_of_key("k").await, replica);
    assert_eq!(cluster.node(replica).server().command(&["GET", "k"]).await.text(), "v");
    assert_eq!(cluster.replicas_of(replica).await, [master]);
}

async fn a_slot_moves_with_its_keys(flavor: Flavor) {
    let cluster = RedisCluster::builder().flavor(flavor).replicas_per_master(0).start().await;
    let slot = slot_of("{tag}");
    let from = cluster.master_of_slot(slot).await;
    let to = (from + 1) % 3;
    for n in 0..100 {
        cluster.node(from).server().order(&["SET", &format!("{{tag}}{n}"), "v"]).await;
    }
    cluster.migrate_slot(slot, from, to).await;
    cluster.settle().await;
    assert_eq!(cluster.master_of_slot(slot).await, to);
    assert_eq!(cluster.node(to).server().command(&["DBSIZE"]).await.int(), 100);
    assert!(cluster.node(from).server().command(&["GET", "{tag}1"]).await.text().starts_with("MOVED"));
}

async fn a_slot_on_its_way_asks_for_what_has_moved(flavor: Flavor) {
    let cluster = RedisCluster::builder().flavor(flavor).replicas_per_master(0).start().await;
    let slot = slot_of("{tag}");
    let from = cluster.master_of_slot(slot).await;
    let source = cluster.node(from);
    let to = (from + 1) % 3;
    for n in 0..10 {
        source.server().order(&["SET", &format!("{{tag}}{n}"), "v"]).await;
    }
    let migration = cluster.begin_migration(slot, from, to).await;
    assert_eq!(migration.move_keys(4).await, 4);
    assert_eq!(source.server().command(&["DBSIZE"]).await.int(), 6);
    let asked = source.server().command(&["GET", "{tag}absent"]).await.text();
    assert!(asked.starts_with("ASK") && asked.ends_with(&cluster.node(to).addr().to_string()), "{asked}");
    migration.finish().await;
    assert_eq!(source.server().command(&["DBSIZE"]).await.int(), 0);
}

async fn empty_slots_move_in_ranges(flavor: Flavor) {
    let cluster = RedisCluster::builder().flavor(flavor).replicas_per_master(0).start().await;
    cluster.migrate_slots(0..=99, 0, 2).await;
    assert_eq!(cluster.master_of_slot(99).await, 2);
    assert_eq!(cluster.master_of_slot(100).await, 0);
}

async fn nodes_join_and_leave(flavor: Flavor) {
    let cluster = RedisCluster::builder().flavor(flavor).replicas_per_master(0).start().await;
    let node = cluster.add_node().await;
    assert_eq!(node, 3);
    let replica = cluster.add_replica(node).await;
    assert_eq!(cluster.replicas_of(node).await, [replica]);
    cluster.migrate_slots(5..=9, 0, node).await;
    assert_eq!(cluster.masters().await, [0, 1, 2, 3]);
    cluster.migrate_slots(5..=9, node, 1).await;
    cluster.remove_node(replica).await;
    cluster.remove_node(node).await;
    assert_eq!(cluster.masters().await, [0, 1, 2]);
    assert_eq!(cluster.url().matches("127.0.0.1").count(), 3);
}

async fn a_restarted_node_keeps_its_identity_and_data(flavor: Flavor) {
    let cluster = RedisCluster::builder()
        .flavor(flavor)
        .replicas_per_master(0)
        .persist(Persist::AofAlways)
        .start()
        .await;
    let master = cluster.master_of_key("k").await;
    let node = cluster.node(master);
    node.server().order(&["SET", "k", "v"]).await;
    cluster.kill(master).await;
    cluster.restart(master).await;
    cluster.settle().await;
    assert_eq!(node.server().command(&["CLUSTER", "MYID"]).await.text(), node.id());
    assert_eq!(node.server().command(&["GET", "k"]).await.text(), "v");
}

async fn clients_are_sent_to_the_proxies(flavor: Flavor) {
    let cluster = RedisCluster::builder().flavor(flavor).announce_through_proxies(true).start().await;
    let owner = cluster.master_of_key("k").await;
    let other = cluster.node((owner + 1) % 3);
    let moved = other.server().command(&["GET", "k"]).await.text();
    assert!(moved.ends_with(&cluster.node(owner).addr().to_string()), "{moved}");
    assert_eq!(cluster.node(owner).addr(), cluster.node(owner).proxy().addr());
    let mut conn = Conn::over(TcpStream::connect(cluster.node(owner).addr()).await.unwrap());
    assert_eq!(conn.call(&["SET", "k", "v"]).await.unwrap().text(), "OK");
    cluster.node(owner).proxy().cut().await;
    assert!(conn.call(&["GET", "k"]).await.is_err());
    cluster.settle().await;
}

async fn a_cluster_works_behind_a_password(flavor: Flavor) {
    let cluster = RedisCluster::builder().flavor(flavor).masters(3).password("p w").start().await;
    assert!(cluster.url().starts_with("redis+cluster://:p%20w@127.0.0.1:"));
    let slot = slot_of("k");
    let from = cluster.master_of_key("k").await;
    let to = (from + 1) % 3;
    cluster.node(from).server().order(&["SET", "k", "v"]).await;
    cluster.migrate_slot(slot, from, to).await;
    assert_eq!(cluster.node(to).server().command(&["GET", "k"]).await.text(), "v");
    cluster.kill(to).await;
    cluster.wait_promoted(to).await;
}

#[tokio::test]
async fn a_range_moves_at_once_on_valkey() {
    let cluster = RedisCluster::builder().flavor(Flavor::Valkey).start().await;
    let slot = slot_of("{tag}");
    let from = cluster.master_of_slot(slot).await;
    let to = (from + 1) % 3;
    for n in 0..100 {
        cluster.node(from).server().order(&["SET", &format!("{{tag}}{n}"), "v"]).await;
    }
    cluster.migrate_atomic(slot - 10..=slot, from, to).await;
    assert_eq!(cluster.master_of_slot(slot - 10).await, to);
    assert_eq!(cluster.node(to).server().command(&["DBSIZE"]).await.int(), 100);
    assert_eq!(cluster.node(from).server().command(&["DBSIZE"]).await.int(), 0);
}

#[tokio::test]
async fn a_cluster_of_one_master_is_a_cluster() {
    let start = Instant::now();
    let cluster = RedisCluster::builder().masters(1).replicas_per_master(0).start().await;
    assert_eq!(cluster.master_of_slot(7).await, 0);
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn cluster_futures_can_be_spawned() {
    fn is_send<T: Send>(_: T) {}
    is_send(RedisCluster::start(Flavor::Redis));
    is_send(async {
        let cluster = RedisCluster::start(Flavor::Redis).await;
        cluster.migrate_slots(1..=2, 0, 1).await;
        cluster.failover(1).await;
        cluster.add_replica(0).await;
        cluster.wait_promoted(1).await;
    });
}

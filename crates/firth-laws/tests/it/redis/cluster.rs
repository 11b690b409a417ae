//! What only a cluster shows: where partitions live, and steps that follow their slots.

use super::{append_one, block_on, until_ok};
use firth_engine::facet::ReadLimit;
use firth_engine::{Engine, Partition, RecordId, TopicName};
use firth_laws::world::{numbers, partition, read_all, unmade_partition};
use firth_testkit::{Flavor, RedisCluster, SentinelSet};

#[test]
fn sixteen_partitions_spread_five_or_six_to_each_of_three_masters() {
    block_on(async {
        let cluster = RedisCluster::builder().replicas_per_master(0).start().await;
        let engine = Engine::at(&cluster.url()).await.unwrap();
        let mut before = [0; 3];
        for topic in ["orders", "payments", "users", "clicks"] {
            for index in 0..16 {
                let at = Partition::new(TopicName::new(topic).unwrap(), index);
                assert!(engine.create_partition(&at).await.unwrap());
                append_one(&engine, &at, 0).await.unwrap();
            }
            for (node, before) in before.iter_mut().enumerate() {
                // Two keys each: the partition and its stream.
                let now = cluster.node(node).server().command(&["DBSIZE"]).await.int() / 2;
                assert!((5..=6).contains(&(now - *before)), "{topic}: {} on node {node}", now - *before);
                *before = now;
            }
        }
        engine.close().await.unwrap();
    });
}

#[test]
fn a_partition_follows_its_slot_and_its_scripts_come_along() {
    block_on(async {
        let cluster = RedisCluster::builder().replicas_per_master(0).start().await;
        let engine = Engine::at(&cluster.url()).await.unwrap();
        let at = partition(&engine).await;
        append_one(&engine, &at, 0).await.unwrap();
        let slot = slot_of_partition(&cluster).await;
        let from = cluster.master_of_slot(slot).await;
        let to = (from + 1) % 3;
        let writer = {
            let engine = engine.clone();
            let at = at.clone();
            tokio::spawn(async move {
                for n in 1..200 {
                    append_one(&engine, &at, n).await.unwrap();
                }
            })
        };
        cluster.migrate_slot(slot, from, to).await;
        writer.await.unwrap();
        assert_eq!(numbers(&read_all(&engine, &at).await), (0..200).collect::<Vec<_>>());
        engine.close().await.unwrap();
    });
}

/// The slot of the only partition.
pub(super) async fn slot_of_partition(cluster: &RedisCluster) -> u16 {
    for node in cluster.nodes() {
        if let Some(key) = node.server().command(&["KEYS", "firth:{*:p"]).await.items().first() {
            return firth_testkit::slot_of(key.text());
        }
    }
    panic!("there is a partition");
}

#[test]
fn a_replicated_append_survives_a_failover_by_sentinels() {
    block_on(async {
        let set = SentinelSet::start(Flavor::Redis, 1, 3).await;
        let engine = Engine::at(&format!("{}?durability=replicated", set.url())).await.unwrap();
        let at = unmade_partition();
        until_ok("the replica is connected", || engine.create_partition(&at)).await;
        for n in 0..20 {
            append_one(&engine, &at, n).await.unwrap();
        }
        set.kill_master().await;
        let records =
            until_ok("the replica takes over", || engine.read(&at, RecordId::ZERO, ReadLimit::records(100)))
                .await;
        assert_eq!(numbers(&records), (0..20).collect::<Vec<_>>());
        engine.close().await.unwrap();
    });
}

#[test]
fn a_replicated_append_survives_the_death_of_its_master() {
    block_on(async {
        let cluster = RedisCluster::builder().flavor(Flavor::Valkey).node_timeout(800).start().await;
        let engine = Engine::at(&format!("{}?durability=replicated", cluster.url())).await.unwrap();
        let at = unmade_partition();
        until_ok("the replicas are connected", || engine.create_partition(&at)).await;
        for n in 0..20 {
            append_one(&engine, &at, n).await.unwrap();
        }
        let master = cluster.master_of_slot(slot_of_partition(&cluster).await).await;
        cluster.kill(master).await;
        let records =
            until_ok("the replica takes over", || engine.read(&at, RecordId::ZERO, ReadLimit::records(100)))
                .await;
        assert_eq!(numbers(&records), (0..20).collect::<Vec<_>>());
        engine.close().await.unwrap();
    });
}

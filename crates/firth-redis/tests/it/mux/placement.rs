//! Which nodes serve what: few connections however many channels, the preferred roles, spread and
//! balanced.

use super::clusters::{asked_in_all, builder, connect_as_usual, each, servers, start};
use super::{SOON, ServerSubscriptions, churn, publish, spublish, subscriber_connections};
use firth_redis::mux::{MuxConfig, NodePreference};
use firth_redis::{Client, cmd};
use firth_testkit::{Flavor, RedisCluster, on_both, slot_of, wait};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

on_both!(
    many_channels_use_one_connection_per_node_and_land_where_they_are_wanted,
    a_hundred_tasks_leave_a_cluster_with_what_the_mux_believes_it_has,
    subscribing_succeeds_while_slots_move,
);

fn config(nodes: NodePreference) -> MuxConfig {
    let mut config = MuxConfig::default();
    config.nodes = nodes;
    config
}

/// Sharded channels and ordinary ones at each node.
async fn loads(cluster: &RedisCluster) -> (Vec<usize>, Vec<usize>) {
    let views = each(cluster, ServerSubscriptions::of).await;
    (views.iter().map(|v| v.sharded.len()).collect(), views.iter().map(|v| v.channels.len()).collect())
}

async fn many_channels_use_one_connection_per_node_and_land_where_they_are_wanted(flavor: Flavor) {
    let cluster = start(builder(flavor)).await;
    let client = connect_as_usual(&cluster).await;
    let sharded: Vec<String> = (0..10_000).map(|n| format!("sharded-{n}")).collect();
    let plain: Vec<String> = (0..1_000).map(|n| format!("plain-{n}")).collect();

    // Masters, the default: three connections, sharded channels with their slots, ordinary ones
    // spread evenly.
    let mux = client.mux_with(config(NodePreference::Masters));
    let first = mux.subscribe_sharded(sharded.clone()).await.unwrap();
    let mut second = Vec::new();
    for name in &plain {
        second.push(mux.subscribe([name.clone()]).await.unwrap());
    }
    assert_eq!(each(&cluster, subscriber_connections).await, [1, 1, 1, 0, 0, 0]);
    let (shards, ordinary) = loads(&cluster).await;
    assert_eq!((shards[..3].iter().sum::<usize>(), ordinary[..3].iter().sum::<usize>()), (10_000, 1_000));
    assert!(shards[..3].iter().all(|n| (3_000..3_700).contains(n)), "{shards:?}");
    for node in 0..3 {
        // Least loaded first: ordinary channels fill up what the slots have left uneven.
        let total = shards[node] + ordinary[node];
        assert!((3_600..3_720).contains(&total), "node {node}: {total}, {shards:?} {ordinary:?}");
    }
    assert_eq!((mux.stats().connections, mux.stats().sharded, mux.stats().channels), (3, 10_000, 1_000));
    assert_eq!(asked_in_all(&cluster, "ssubscribe").await as usize, sharded_groups(&sharded));
    drop((first, second));
    wait::until(SOON, "nothing is left", async || {
        each(&cluster, ServerSubscriptions::of)
            .await
            .iter()
            .all(|v| v.channels.is_empty() && v.sharded.is_empty())
    })
    .await;
    mux.close().await;

    // Balanced: every node has its share, and messages come wherever they are published.
    replicas_are_known(&cluster, &client).await;
    let mux = client.mux_with(config(NodePreference::Balanced));
    let few = &sharded[..600];
    let mut one_by_one = Vec::new();
    for name in few {
        one_by_one.push(mux.subscribe_sharded([name.clone()]).await.unwrap());
    }
    let (shards, _) = loads(&cluster).await;
    assert!(shards.iter().all(|n| (80..=120).contains(n)), "{shards:?}");
    let mut ordinary = mux.subscribe(plain[..60].to_vec()).await.unwrap();
    assert_eq!(each(&cluster, subscriber_connections).await, [1; 6]);
    for (name, subscription) in few.iter().zip(&mut one_by_one).take(50) {
        spublish(&client, name, "1").await;
        assert_eq!(super::message(subscription).await.channel, name.as_bytes());
    }
    publish(&client, &plain[0], "1").await;
    assert_eq!(super::message(&mut ordinary).await.channel, plain[0].as_bytes());
    mux.close().await;

    // Replicas: the masters are spared, until there is no replica.
    let mux = client.mux_with(config(NodePreference::Replicas));
    let held = mux.subscribe_sharded(few.to_vec()).await.unwrap();
    let _plain = mux.subscribe(plain[..60].to_vec()).await.unwrap();
    let (shards, ordinary) = loads(&cluster).await;
    assert_eq!((&shards[..3], &ordinary[..3]), (&[0; 3][..], &[0; 3][..]));
    assert!(
        shards[3..].iter().all(|n| *n > 100) && ordinary[3..].iter().all(|n| *n > 0),
        "{shards:?} {ordinary:?}"
    );
    let replica = cluster.replicas_of(0).await[0];
    cluster.kill(replica).await;
    let all_at_home =
        async || mux.stats().unserved == 0 && mux.stats().sharded == 600 && mux.stats().resumed > 0;
    wait::until(SOON, "its channels find their master", all_at_home).await;
    assert!(ServerSubscriptions::of(cluster.node(0).server()).await.sharded.len() > 100);
    drop(held);
}

/// A replica is only listed once it has replicated something.
async fn replicas_are_known(cluster: &RedisCluster, client: &Client) {
    for n in 0..30 {
        client.call::<()>(cmd("SET").key(format!("k{n}")).arg("v")).await.unwrap();
    }
    let all = cluster.nodes().len();
    wait::until(SOON, "the client knows all nodes", async || client.nodes().len() == all).await;
}

/// Sharded names of one slot go in one command.
fn sharded_groups(names: &[String]) -> usize {
    let mut slots: Vec<u16> = names.iter().map(firth_testkit::slot_of).collect();
    slots.sort_unstable();
    slots.dedup();
    slots.len()
}

async fn a_hundred_tasks_leave_a_cluster_with_what_the_mux_believes_it_has(flavor: Flavor) {
    let cluster: Arc<RedisCluster> = start(builder(flavor).replicas_per_master(0)).await;
    let client = connect_as_usual(&cluster).await;
    let nodes = servers(&cluster);
    let all: Vec<_> = nodes.iter().map(|node| node.server()).collect();
    churn::churn(&client, &all, 40, async || ()).await;
}

/// As above, while the slots of the names move around without end.
async fn subscribing_succeeds_while_slots_move(flavor: Flavor) {
    let cluster: Arc<RedisCluster> = start(builder(flavor).replicas_per_master(0)).await;
    let client = connect_as_usual(&cluster).await;
    let nodes = servers(&cluster);
    let all: Vec<_> = nodes.iter().map(|node| node.server()).collect();
    let stop = CancellationToken::new();
    let moving = cluster.clone();
    let stopped = stop.clone();
    let mover = tokio::spawn(async move {
        let mut moves = 0;
        while !stopped.is_cancelled() {
            let slot = slot_of(format!("n{}", moves % u32::from(churn::NAMES)));
            let from = moving.master_of_slot(slot).await;
            moving.migrate_slot(slot, from, (from + 1) % 3).await;
            moves += 1;
        }
        moving.settle().await;
        moves
    });
    churn::churn(&client, &all, 400, async || {
        stop.cancel();
        let moves = mover.await.unwrap();
        println!("{moves} slots moved");
        assert!(moves > 0);
    })
    .await;
}

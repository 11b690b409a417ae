//! Masters that die, freeze, hand over or leave: their channels are told at once and live again at
//! the new owner soon after the cluster has found one; everybody else notices nothing.

use super::accounting::{PublishLoad, PublishMode, Reader, ReceivedEvents};
use super::clusters::{builder, channels_at, connect_as_usual, each, start};
use super::{SOON, ServerSubscriptions, message, name, publish, signal, spublish, subscriber_connections};
use firth_redis::mux::{Mux, MuxConfig, NodePreference, Subscription};
use firth_redis::{CallError, Client, cmd};
use firth_testkit::{Direction, Flavor, RedisCluster, on_both, slot_of, wait};
use std::sync::Arc;
use std::time::{Duration, Instant};

on_both!(
    a_killed_master_is_told_at_once_and_its_channels_live_again_at_its_replica,
    channels_follow_a_manual_failover_and_leave_a_frozen_master,
    a_node_that_leaves_takes_nothing_with_it,
);

/// Load on sharded channels of two nodes and on ordinary ones, and readers of both.
struct FailoverRig {
    cluster: Arc<RedisCluster>,
    mux: Mux,
    touched: Vec<String>,
    untouched: Vec<String>,
    plain: Vec<String>,
    sharded_reader: Reader,
    plain_reader: Reader,
    sharded_load: PublishLoad,
    plain_load: PublishLoad,
}

impl FailoverRig {
    async fn new(cluster: &Arc<RedisCluster>, client: &Client, node: usize, other: usize) -> Self {
        let mux = client.mux().clone();
        let touched = channels_at(cluster, node, 10).await;
        let untouched = channels_at(cluster, other, 4).await;
        let plain: Vec<String> = (0..9).map(|n| format!("plain-{n}")).collect();
        let sharded: Vec<String> = touched.iter().chain(&untouched).cloned().collect();
        let sharded_reader = Reader::start(mux.subscribe_sharded(sharded.clone()).await.unwrap());
        let plain_reader = Reader::start(mux.subscribe(plain.clone()).await.unwrap());
        let sharded_load =
            PublishLoad::start(cluster, sharded.into_iter().map(|c| (c, PublishMode::Sharded)).collect());
        let ordinary = plain.iter().map(|c| (c.clone(), PublishMode::Ordinary(None))).collect();
        let plain_load = PublishLoad::start(cluster, ordinary);
        wait::until(SOON, "messages flow", async || mux.stats().received > 300).await;
        let cluster = cluster.clone();
        Self {
            cluster,
            mux,
            touched,
            untouched,
            plain,
            sharded_reader,
            plain_reader,
            sharded_load,
            plain_load,
        }
    }

    /// Waits until each touched channel has had this many signals of this name.
    async fn touched_hear(&self, signal: &'static str, times: usize) {
        let heard = |log: &ReceivedEvents| {
            self.touched.iter().all(|c| log.signals(c).iter().filter(|s| **s == signal).count() >= times)
        };
        wait::until(SOON, format!("{signal} is told"), async || self.sharded_reader.look(heard)).await;
    }

    async fn flows(&self) {
        let then = self.mux.stats().received;
        wait::until(SOON, "messages flow again", async || self.mux.stats().received > then + 300).await;
    }

    /// Ends the load and judges: no silent gap anywhere, nothing at all for those who were not
    /// touched.
    async fn judge(self) -> (ReceivedEvents, Vec<Subscription>) {
        let sent = self.sharded_load.stop().await;
        let sent_plain = self.plain_load.stop().await;
        let (sharded, log) = self.sharded_reader.finish(&sent).await;
        for channel in &self.touched {
            let lost = sent.no_silent_gap(channel, &log);
            println!("{channel}: {lost} of {} lost in its gaps {:?}", sent.len(channel), log.gaps(channel));
        }
        for channel in &self.untouched {
            assert_eq!(sent.all_came(channel, &log), 0, "{channel} always had its subscriber");
            assert!(log.signals(channel).is_empty(), "{channel}");
        }
        let (plain, plain_log) = self.plain_reader.finish(&sent_plain).await;
        for channel in &self.plain {
            sent_plain.no_silent_gap(channel, &plain_log);
        }
        let connections = each(&self.cluster, subscriber_connections).await;
        assert!(connections.iter().all(|n| *n <= 1), "{connections:?}");
        (log, vec![sharded, plain])
    }
}

async fn a_killed_master_is_told_at_once_and_its_channels_live_again_at_its_replica(flavor: Flavor) {
    let cluster = start(builder(flavor)).await;
    let client = connect_as_usual(&cluster).await;
    let world = FailoverRig::new(&cluster, &client, 0, 1).await;
    cluster.kill(0).await;
    let killed = Instant::now();
    world.touched_hear("gap", 1).await;
    let told = killed.elapsed();
    let heir = cluster.wait_promoted(0).await;
    let promoted = Instant::now();
    world.touched_hear("resumed", 1).await;
    println!("told {told:?} after the end, live {:?} after the promotion", promoted.elapsed());
    assert!(told < Duration::from_secs(1), "{told:?}");
    assert!(promoted.elapsed() < Duration::from_secs(2), "{:?}", promoted.elapsed());
    world.flows().await;
    assert!(ServerSubscriptions::of(cluster.node(heir).server()).await.sharded.contains(&world.touched[0]));
    let touched = world.touched.clone();
    let (log, _held) = world.judge().await;
    for channel in &touched {
        let signals: Vec<_> = log.signals(channel).into_iter().filter(|s| *s != "stalled").collect();
        assert_eq!(signals, ["lost", "gap", "moved", "resumed"], "{channel}");
    }
}

async fn channels_follow_a_manual_failover_and_leave_a_frozen_master(flavor: Flavor) {
    let cluster = start(builder(flavor)).await;
    let client = connect_as_usual(&cluster).await;
    let world = FailoverRig::new(&cluster, &client, 0, 1).await;
    let replica = cluster.replicas_of(0).await[0];
    cluster.failover(replica).await;
    // The old master is a replica now and serves the channels, too, until the client finds out.
    wait::until(SOON, "the new master serves the channels", async || {
        let served = ServerSubscriptions::of(cluster.node(replica).server()).await.sharded;
        world.touched.iter().all(|channel| served.contains(channel))
    })
    .await;
    world.touched_hear("resumed", 1).await;
    world.flows().await;

    // The new master falls silent: its connection stays open, and still its channels move.
    cluster.freeze(replica);
    let frozen = Instant::now();
    assert_eq!(cluster.wait_promoted(replica).await, 0);
    let promoted = Instant::now();
    world.touched_hear("resumed", 2).await;
    println!("frozen for {:?}, live {:?} after the promotion", frozen.elapsed(), promoted.elapsed());
    assert!(promoted.elapsed() < Duration::from_secs(3), "{:?}", promoted.elapsed());
    world.flows().await;
    cluster.thaw(replica);
    cluster.settle().await;
    world.flows().await;
    wait::until(SOON, "the thawed node has nothing left to serve", async || {
        ServerSubscriptions::of(cluster.node(replica).server()).await.sharded.is_empty()
    })
    .await;
    let touched = world.touched.clone();
    let (log, _held) = world.judge().await;
    for channel in &touched {
        let signals: Vec<_> = log.signals(channel).into_iter().filter(|s| *s != "stalled").collect();
        let moves = signals.iter().filter(|s| **s == "moved").count();
        assert_eq!(moves, 2, "{channel}: {signals:?}");
        assert!(log.gaps(channel)[0] < Duration::from_secs(1), "a failover by hand is quick");
    }
}

async fn a_node_that_leaves_takes_nothing_with_it(flavor: Flavor) {
    let cluster = start(builder(flavor).masters(2).replicas_per_master(0)).await;
    let client = connect_as_usual(&cluster).await;
    let mux = client.mux();
    let moving = channels_at(&cluster, 0, 3).await;
    let guest = cluster.add_node().await;
    for channel in &moving {
        cluster.migrate_slot(slot_of(channel), 0, guest).await;
    }
    cluster.settle().await;
    let mut sharded = mux.subscribe_sharded(moving.clone()).await.unwrap();
    // Ordinary channels come one by one, so that the newcomer gets its share.
    let mut plain = Vec::new();
    for n in 0..12 {
        plain.push(mux.subscribe([format!("plain-{n}")]).await.unwrap());
    }
    let guest_view = ServerSubscriptions::of(cluster.node(guest).server()).await;
    assert_eq!(guest_view.sharded.len(), 3);
    assert!(!guest_view.channels.is_empty(), "the newcomer is used: {guest_view:?}");
    for channel in &moving {
        cluster.migrate_slot(slot_of(channel), guest, 0).await;
    }
    cluster.settle().await;
    cluster.remove_node(guest).await;
    let at_home = async || {
        let stats = mux.stats();
        (stats.sharded, stats.channels, stats.unserved, stats.connections) == (3, 12, 0, 2)
    };
    wait::until(SOON, "all have a home, and the connection to the lost node is gone", at_home).await;
    for channel in &moving {
        assert_eq!(spublish(&client, channel, "1").await, 1);
        assert_eq!(message(&mut sharded).await.channel, channel.as_bytes());
    }
    for (n, subscription) in plain.iter_mut().enumerate() {
        publish(&client, &format!("plain-{n}"), "1").await;
        let told = guest_view.channels.contains(&format!("plain-{n}"));
        let mut signals = Vec::new();
        loop {
            match super::event(subscription).await {
                firth_redis::mux::Event::Message(_) => break,
                firth_redis::mux::Event::Signal(signal) => signals.push(super::name(&signal)),
            }
        }
        assert_eq!(signals.contains(&"resumed"), told, "plain-{n}: {signals:?}");
        assert_eq!(signals.is_empty(), !told, "plain-{n}: {signals:?}");
    }
}

/// One client is cut off from one node, without a word; the cluster is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_only_we_cannot_reach_costs_only_its_own_channels() {
    let cluster = start(builder(Flavor::Redis).replicas_per_master(0).announce_through_proxies(true)).await;
    let client = Client::connect(crate::support::watchful(cluster.url())).await.unwrap();
    let mux = client.mux();
    let here = channels_at(&cluster, 0, 1).await.remove(0);
    let there = channels_at(&cluster, 1, 1).await.remove(0);
    let mut cut = mux.subscribe_sharded([here.clone()]).await.unwrap();
    let mut well = mux.subscribe_sharded([there.clone()]).await.unwrap();
    let mut plain = Vec::new();
    for n in 0..6 {
        plain.push(mux.subscribe([format!("plain-{n}")]).await.unwrap());
    }
    assert!(!ServerSubscriptions::of(cluster.node(0).server()).await.channels.is_empty());
    cluster.node(0).proxy().half_open(Direction::Both);
    for wanted in ["lost", "gap"] {
        assert_eq!(name(&signal(&mut cut).await), wanted);
    }
    // Ordinary channels are delivered by any node, so they are back before the node is.
    let back = async || mux.stats().channels == 6;
    wait::until(SOON, "ordinary channels have moved", back).await;
    for (n, subscription) in plain.iter_mut().enumerate() {
        cluster.node(1).server().order(&["PUBLISH", &format!("plain-{n}"), "1"]).await;
        assert_eq!(&message(subscription).await.payload[..], b"1");
    }
    let error = mux
        .subscribe_sharded([format!("{{{here}}}2")])
        .timeout(Duration::from_millis(300))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Down { .. }), "{error}");
    assert_eq!((mux.stats().unserved, mux.stats().sharded), (1, 1), "what did not succeed is forgotten");
    cluster.node(1).server().order(&["SPUBLISH", &there, "1"]).await;
    assert_eq!(&message(&mut well).await.payload[..], b"1");
    assert_eq!(well.pending(), 0);
    cluster.node(0).proxy().heal().await;
    while name(&signal(&mut cut).await) != "resumed" {}
    cluster.node(0).server().order(&["SPUBLISH", &here, "1"]).await;
    assert_eq!(&message(&mut cut).await.payload[..], b"1");
}

/// The server says nothing to subscribers of a replica that gets another master; the topology does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_follows_another_master_is_left() {
    let cluster = start(builder(Flavor::Redis).masters(2)).await;
    let client = connect_as_usual(&cluster).await;
    client.call::<()>(cmd("SET").key("a").arg("1")).await.unwrap();
    client.call::<()>(cmd("SET").key("b").arg("1")).await.unwrap();
    wait::until(SOON, "the replicas are known", async || client.nodes().len() == 4).await;
    let mux = client.mux_with({
        let mut config = MuxConfig::default();
        config.nodes = NodePreference::Replicas;
        config
    });
    let channel = channels_at(&cluster, 0, 1).await.remove(0);
    let mut subscription = mux.subscribe_sharded([channel.clone()]).await.unwrap();
    assert!(
        ServerSubscriptions::of(cluster.node(2).server()).await.sharded.contains(&channel),
        "at the replica"
    );
    cluster.node(2).server().order(&["CLUSTER", "REPLICATE", cluster.node(1).id()]).await;
    for wanted in ["gap", "moved", "resumed"] {
        assert_eq!(name(&signal(&mut subscription).await), wanted);
    }
    assert_eq!(spublish(&client, &channel, "1").await, 1, "its master serves it now");
    assert_eq!(&message(&mut subscription).await.payload[..], b"1");
    let left = async || ServerSubscriptions::of(cluster.node(2).server()).await.sharded.is_empty();
    wait::until(SOON, "the old replica has forgotten it", left).await;
}

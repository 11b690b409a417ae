//! Everything moves at once, with ten thousand subscriptions: the work is bounded, and each channel
//! is subscribed anew once.

use super::clusters::{asked_in_all, builder, connect_as_usual, each, start};
use super::{SOON, ServerSubscriptions, spublish, subscriber_connections};
use firth_redis::mux::{Mux, Subscription};
use firth_testkit::{Flavor, RedisCluster, on_both, slot_of, wait};
use std::collections::BTreeSet;
use std::time::Instant;

on_both!(defect_8_ten_thousand_channels_survive_a_failover_and_a_restart_of_everything);

const CHANNELS: usize = 10_000;

/// Processor time of this process so far, in ticks of 10 ms.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Behind the name, which may hold anything: state is field 3, utime and stime are 14 and 15.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn slots(names: impl IntoIterator<Item = impl AsRef<[u8]>>) -> usize {
    names.into_iter().map(slot_of).collect::<BTreeSet<u16>>().len()
}

async fn all_at_home(mux: &Mux) {
    let at_home = async || {
        let stats = mux.stats();
        let every_gap_ended = stats.resumed == stats.gaps;
        (stats.sharded, stats.channels, stats.unserved) == (CHANNELS, 100, 0) && every_gap_ended
    };
    wait::until(SOON, "every channel has a home", at_home).await;
}

/// The servers' view, and one message to every hundredth channel.
async fn all_are_served(cluster: &RedisCluster, client: &firth_redis::Client, all: &mut [Subscription]) {
    let views = each(cluster, ServerSubscriptions::of).await;
    assert_eq!(views.iter().map(|v| v.sharded.len()).sum::<usize>(), CHANNELS);
    assert_eq!(views.iter().map(|v| v.channels.len()).sum::<usize>(), 100);
    let connections = each(cluster, subscriber_connections).await;
    assert!(connections.iter().all(|n| *n <= 1), "{connections:?}");
    for subscription in all {
        let channel = String::from_utf8(subscription.names()[0].to_vec()).unwrap();
        assert_eq!(spublish(client, &channel, "1").await, 1, "{channel}");
        assert_eq!(super::message(subscription).await.channel, channel.as_bytes());
    }
}

async fn defect_8_ten_thousand_channels_survive_a_failover_and_a_restart_of_everything(flavor: Flavor) {
    let cluster = start(builder(flavor)).await;
    let client = connect_as_usual(&cluster).await;
    let mux = client.mux();
    let names: Vec<String> = (0..CHANNELS).map(|n| format!("channel-{n}")).collect();
    let mut all = Vec::new();
    for some in names.chunks(100) {
        all.push(mux.subscribe_sharded(some.to_vec()).await.unwrap());
    }
    let _plain = mux.subscribe((0..100).map(|n| format!("plain-{n}"))).await.unwrap();
    let moving = ServerSubscriptions::of(cluster.node(0).server()).await.sharded;
    assert!(moving.len() > 3_000);

    // One master's 5461 slots move at once.
    let live = async || asked_in_all(&cluster, "ssubscribe").await;
    cluster.kill(0).await;
    let before = live().await;
    let cpu = cpu_ticks();
    let begun = Instant::now();
    let heir = cluster.wait_promoted(0).await;
    all_at_home(mux).await;
    let asked = live().await - before;
    let groups = slots(&moving) as u64;
    println!(
        "failover: {} channels in {groups} slots, {asked} commands, {} ms of processor in {:?}",
        moving.len(),
        10 * (cpu_ticks() - cpu),
        begun.elapsed()
    );
    assert!(asked <= groups + 50, "{asked} commands for {groups} slots: one each, and a few probes");
    assert!(cpu_ticks() - cpu < 500, "{} ms of processor", 10 * (cpu_ticks() - cpu));
    assert_eq!(ServerSubscriptions::of(cluster.node(heir).server()).await.sharded, moving);
    all_are_served(&cluster, &client, &mut all).await;

    // Everything is restarted; counters of the servers start anew.
    let cpu = cpu_ticks();
    let begun = Instant::now();
    for node in 1..6 {
        cluster.kill(node).await;
    }
    for node in 0..6 {
        cluster.restart(node).await;
    }
    cluster.settle().await;
    all_at_home(mux).await;
    let asked = asked_in_all(&cluster, "ssubscribe").await;
    let groups = slots(&names) as u64;
    println!(
        "restart: {groups} slots, {asked} commands, {} ms of processor in {:?}",
        10 * (cpu_ticks() - cpu),
        begun.elapsed()
    );
    // One each and a few probes; where a starved node breaks its connection once more, that node's
    // again.
    assert!(asked <= groups + groups / 2, "{asked} commands for {groups} slots");
    assert!(cpu_ticks() - cpu < 500, "{} ms of processor", 10 * (cpu_ticks() - cpu));
    all_are_served(&cluster, &client, &mut all).await;
}

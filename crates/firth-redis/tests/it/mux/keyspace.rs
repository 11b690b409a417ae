//! Keyspace notifications in a cluster: each node tells only of its own keys, so the mux listens at
//! every master.

use super::clusters::{builder, connect_as_usual, each, start};
use super::{SOON, ServerSubscriptions, event, name};
use firth_redis::mux::{Event, GapReason, Signal, Subscription};
use firth_redis::{Client, cmd};
use firth_testkit::{Flavor, on_both, slot_of, wait};
use std::collections::BTreeSet;

on_both!(
    c08_key_events_of_every_master_are_heard_once,
    c08_key_events_follow_a_failover,
    c08_key_events_follow_a_new_master,
);

const ANY_SET: &str = "__keyevent@0__:set";

/// Keys that lie on all masters.
fn keys(prefix: &str) -> BTreeSet<String> {
    (0..30).map(|n| format!("{prefix}-{n}")).collect()
}

/// Sets every key, and reads until each has been told. Returns the signals that came between.
async fn all_are_told(client: &Client, heard: &mut Subscription, prefix: &str) -> Vec<Signal> {
    let mut left = keys(prefix);
    for key in &left {
        wait::until(SOON, "the key can be set", async || {
            client.call::<()>(cmd("SET").key(key).arg(1)).await.is_ok()
        })
        .await;
    }
    let mut signals = Vec::new();
    while !left.is_empty() {
        match event(heard).await {
            Event::Message(message) => {
                let key = String::from_utf8(message.payload.to_vec()).unwrap();
                assert!(left.remove(&key) || !key.starts_with(prefix), "{key} was told twice");
            }
            Event::Signal(signal) => signals.push(signal),
        }
    }
    signals
}

/// Reads up to the end of a gap; the names of the signals on the way.
async fn until_resumed(heard: &mut Subscription) -> Vec<&'static str> {
    let mut told = Vec::new();
    while told.last() != Some(&"resumed") {
        if let Event::Signal(signal) = event(heard).await {
            told.push(name(&signal));
        }
    }
    told
}

async fn c08_key_events_of_every_master_are_heard_once(flavor: Flavor) {
    let cluster = start(builder(flavor).replicas_per_master(0).config("notify-keyspace-events KEA")).await;
    let client = connect_as_usual(&cluster).await;
    let mut by_name = client.mux().subscribe([ANY_SET]).await.unwrap();
    let mut by_pattern = client.mux().subscribe_pattern(["__keyspace@0__:two-*"]).await.unwrap();
    let mut by_glob = client.mux().subscribe_pattern(["__key*__:set"]).await.unwrap();
    assert!(all_are_told(&client, &mut by_name, "one").await.is_empty());
    assert!(all_are_told(&client, &mut by_glob, "two").await.is_empty());
    for _ in 0..30 {
        assert!(event(&mut by_pattern).await.message().is_some());
    }
    let views = each(&cluster, ServerSubscriptions::of).await;
    assert!(views.iter().all(|view| view.channels.contains(ANY_SET) && view.patterns == 2), "{views:?}");
    // Others share what is there, and the last one out ends it everywhere.
    let second = client.mux().subscribe([ANY_SET]).await.unwrap();
    by_name.unsubscribe().await.unwrap();
    assert!(each(&cluster, ServerSubscriptions::of).await.iter().all(|view| view.channels.contains(ANY_SET)));
    second.unsubscribe().await.unwrap();
    drop((by_pattern, by_glob));
    let ended =
        async || each(&cluster, ServerSubscriptions::of).await.iter().all(ServerSubscriptions::is_empty);
    wait::until(SOON, "every master has ended them", ended).await;
    // An ordinary channel is still at one node.
    let _plain = client.mux().subscribe(["__other"]).await.unwrap();
    let views = each(&cluster, ServerSubscriptions::of).await;
    assert_eq!(views.iter().filter(|view| !view.channels.is_empty()).count(), 1);
}

async fn c08_key_events_follow_a_failover(flavor: Flavor) {
    let cluster = start(builder(flavor).config("notify-keyspace-events KEA")).await;
    let client = connect_as_usual(&cluster).await;
    let mut heard = client.mux().subscribe([ANY_SET]).await.unwrap();
    assert!(all_are_told(&client, &mut heard, "before").await.is_empty());
    let lost = cluster.node(0).addr().port();
    cluster.kill(0).await;
    let Event::Signal(Signal::NodeLost { node, .. }) = event(&mut heard).await else {
        panic!("the loss comes first")
    };
    assert_eq!(node.port, lost);
    let Event::Signal(Signal::Gap { reason: GapReason::NodeLost, .. }) = event(&mut heard).await else {
        panic!("then the gap")
    };
    let told = until_resumed(&mut heard).await;
    assert!(told.iter().all(|name| ["gap", "stalled", "resumed"].contains(name)), "{told:?}");
    let signals = all_are_told(&client, &mut heard, "after").await;
    assert!(signals.is_empty(), "{signals:?}");
    assert_eq!(client.mux().stats().unserved, 0);
}

async fn c08_key_events_follow_a_new_master(flavor: Flavor) {
    let cluster = start(builder(flavor).replicas_per_master(0).config("notify-keyspace-events KEA")).await;
    let client = connect_as_usual(&cluster).await;
    let mut heard = client.mux().subscribe([ANY_SET]).await.unwrap();
    let new = cluster.add_node().await;
    let moved = slot_of("new-0");
    cluster.migrate_slot(moved, cluster.master_of_slot(moved).await, new).await;
    // The key's event comes from the new master; until it is heard, a gap is told.
    let mut told = until_resumed(&mut heard).await;
    told.retain(|name| *name != "stalled");
    assert_eq!(told, ["gap", "resumed"]);
    assert!(all_are_told(&client, &mut heard, "new").await.is_empty());
}

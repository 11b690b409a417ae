//! Effects of redirections and refreshes on the cache. Time is paused, and nothing is connected.

use super::*;
use crate::cluster::topology::tests::{node, shard};
use crate::config::Server;

fn cache() -> TopologyCache {
    TopologyCache::new(Config::new(Server::Cluster(vec![node(1)])))
}

/// Two masters, of which the second owns the slots from `split` on.
fn halves(split: u16) -> Topology {
    Topology::from_ranges([(0..=split - 1, shard(1, &[])), (split..=16_383, shard(2, &[]))])
}

fn owner(cache: &TopologyCache, slot: u16) -> u16 {
    cache
        .with_table(|table| table.master(slot).map(|node| node.address().port))
        .expect("the slot has an owner")
}

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

#[tokio::test(start_paused = true)]
async fn watchers_see_a_topology_only_when_it_changed() {
    let cache = cache();
    let mut watch = cache.watch();
    assert!(watch.borrow_and_update().is_empty());
    cache.refreshed(halves(100), Instant::now());
    assert!(watch.has_changed().unwrap());
    assert_eq!(**watch.borrow_and_update(), halves(100));
    cache.refreshed(halves(100), Instant::now());
    assert!(!watch.has_changed().unwrap(), "the same again is no news");
    assert_eq!(cache.health().refreshes, 2);
}

#[tokio::test(start_paused = true)]
async fn a_redirection_is_believed_for_a_while_against_a_node_that_has_not_heard_of_it() {
    let cache = cache();
    cache.refreshed(halves(100), Instant::now());
    cache.moved(99, &node(2));
    assert_eq!((owner(&cache, 99), owner(&cache, 98)), (2, 1));
    cache.refreshed(halves(100), Instant::now());
    assert_eq!(owner(&cache, 99), 2, "the look asked a node that was late");
    pass(REDIRECT_TTL).await;
    cache.refreshed(halves(100), Instant::now());
    assert_eq!(owner(&cache, 99), 1, "but not for ever");
}

#[tokio::test(start_paused = true)]
async fn a_redirection_to_a_node_that_is_gone_is_forgotten_at_once() {
    let cache = cache();
    cache.refreshed(halves(100), Instant::now());
    cache.moved(99, &node(7));
    assert_eq!(owner(&cache, 99), 7);
    cache.unreachable(&node(7));
    cache.refreshed(halves(100), Instant::now());
    assert_eq!(owner(&cache, 99), 1);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_redirections_changes_the_view_a_few_times_only() {
    let cache = cache();
    cache.refreshed(halves(8_000), Instant::now());
    let mut watch = cache.watch();
    let mut changes = 0;
    for slot in 0..1_000 {
        cache.moved(slot, &node(2));
        changes += u32::from(watch.has_changed().unwrap());
        watch.borrow_and_update();
    }
    assert_eq!(changes, PATCHES);
    // The next refresh learns them all, even from a node that is late.
    cache.refreshed(halves(8_000), Instant::now());
    assert!((0..1_000).all(|slot| owner(&cache, slot) == 2));
    assert_eq!(owner(&cache, 1_000), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_outside_the_topology_is_kept_while_it_is_of_use() {
    let cache = cache();
    cache.refreshed(halves(100), Instant::now());
    let extra = cache.node(&node(9));
    assert!(Arc::ptr_eq(&extra, &cache.node(&node(9))), "one node, whoever asks");
    pass(EXTRA_NODE_TTL / 2).await;
    cache.refreshed(halves(100), Instant::now());
    assert!(Arc::ptr_eq(&extra, &cache.node(&node(9))));
    // It joins, and is the same node still.
    cache.moved(5, &node(9));
    let member = cache.with_table(|table| table.node(&node(9)).cloned()).unwrap();
    assert!(Arc::ptr_eq(&extra, &member));
    let other = cache.node(&node(8));
    pass(EXTRA_NODE_TTL).await;
    cache.refreshed(halves(100), Instant::now());
    assert!(!Arc::ptr_eq(&other, &cache.node(&node(8))), "a guest that nobody was sent to is forgotten");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_left_are_kept_for_a_farewell_and_closed_with_the_client() {
    let cache = cache();
    cache.refreshed(halves(100), Instant::now());
    cache.refreshed(Topology::single(node(1)), Instant::now());
    assert_eq!(cache.recent().retired.len(), 1);
    pass(DRAIN_TIME).await;
    cache.refresh_failed(ConnectError::Closed);
    assert!(cache.recent().retired.is_empty(), "failed looks count the time too");
    cache.refreshed(halves(100), Instant::now());
    cache.refreshed(Topology::single(node(2)), Instant::now());
    cache.node(&node(9));
    let mut all: Vec<u16> = cache.clear().iter().map(|node| node.address().port).collect();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 9]);
    assert!(cache.with_table(|table| table.any_master().is_none()), "nothing is left to send to");
}

#[tokio::test(start_paused = true)]
async fn a_closed_chart_learns_nothing_from_stragglers() {
    let cache = cache();
    cache.refreshed(halves(100), Instant::now());
    cache.set_closed(true);
    cache.clear();
    cache.moved(5, &node(2));
    assert!(cache.with_table(|table| table.nodes().next().is_none()));
    cache.set_closed(false);
    let mut watch = cache.watch();
    cache.refreshed(halves(100), Instant::now());
    assert_eq!(owner(&cache, 5), 1);
    assert!(!watch.has_changed().unwrap(), "it is the topology that watchers know");
    watch.borrow_and_update();
}

#[tokio::test(start_paused = true)]
async fn losing_and_finding_the_cluster_is_told_once_each() {
    let cache = cache();
    let mut events = cache.events();
    cache.refresh_failed(ConnectError::Closed);
    cache.refresh_failed(ConnectError::Closed);
    cache.refreshed(halves(100), Instant::now());
    cache.refreshed(halves(200), Instant::now());
    cache.refresh_failed(ConnectError::Closed);
    cache.set_closed(true);
    let mut told = Vec::new();
    for _ in 0..4 {
        let event = events.next().await.expect("told");
        told.push((event.kind, event.phase, event.generation));
    }
    assert_eq!(
        told,
        [
            (ConnectionEventKind::Disconnected, ConnectionPhase::Connect, 0),
            (ConnectionEventKind::Connected, ConnectionPhase::Connect, 1),
            (ConnectionEventKind::Disconnected, ConnectionPhase::Runtime, 1),
            (ConnectionEventKind::Closed, ConnectionPhase::Close, 1),
        ]
    );
}

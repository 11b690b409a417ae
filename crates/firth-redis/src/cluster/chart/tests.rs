//! What redirections and looks make of the chart. Time is paused, and nothing is connected.

use super::*;
use crate::{
    cluster::topology::tests::{node, shard},
    config::Server,
};

fn chart() -> Chart {
    Chart::new(Config::new(Server::Cluster(vec![node(1)])))
}

/// Two masters, of which the second owns the slots from `split` on.
fn halves(split: u16) -> Topology {
    Topology::from_ranges([(0..=split - 1, shard(1, &[])), (split..=16_383, shard(2, &[]))])
}

fn owner(chart: &Chart, slot: u16) -> u16 {
    chart.look_up(|view| view.master(slot).map(|node| node.address().port)).expect("the slot has an owner")
}

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

#[tokio::test(start_paused = true)]
async fn watchers_see_a_topology_only_when_it_changed() {
    let chart = chart();
    let mut watch = chart.watch();
    assert!(watch.borrow_and_update().is_empty());
    chart.learn(halves(100), Instant::now());
    assert!(watch.has_changed().unwrap());
    assert_eq!(**watch.borrow_and_update(), halves(100));
    chart.learn(halves(100), Instant::now());
    assert!(!watch.has_changed().unwrap(), "the same again is no news");
    assert_eq!(chart.health().looks, 2);
}

#[tokio::test(start_paused = true)]
async fn a_redirection_is_believed_for_a_while_against_a_node_that_has_not_heard_of_it() {
    let chart = chart();
    chart.learn(halves(100), Instant::now());
    chart.moved(99, &node(2));
    assert_eq!((owner(&chart, 99), owner(&chart, 98)), (2, 1));
    chart.learn(halves(100), Instant::now());
    assert_eq!(owner(&chart, 99), 2, "the look asked a node that was late");
    pass(HELD).await;
    chart.learn(halves(100), Instant::now());
    assert_eq!(owner(&chart, 99), 1, "but not for ever");
}

#[tokio::test(start_paused = true)]
async fn a_redirection_to_a_node_that_is_gone_is_forgotten_at_once() {
    let chart = chart();
    chart.learn(halves(100), Instant::now());
    chart.moved(99, &node(7));
    assert_eq!(owner(&chart, 99), 7);
    chart.unreachable(&node(7));
    chart.learn(halves(100), Instant::now());
    assert_eq!(owner(&chart, 99), 1);
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_redirections_changes_the_view_a_few_times_only() {
    let chart = chart();
    chart.learn(halves(8_000), Instant::now());
    let mut watch = chart.watch();
    let mut changes = 0;
    for slot in 0..1_000 {
        chart.moved(slot, &node(2));
        changes += u32::from(watch.has_changed().unwrap());
        watch.borrow_and_update();
    }
    assert_eq!(changes, PATCHES);
    // The next look learns them all, even from a node that is late.
    chart.learn(halves(8_000), Instant::now());
    assert!((0..1_000).all(|slot| owner(&chart, slot) == 2));
    assert_eq!(owner(&chart, 1_000), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_outside_the_topology_is_kept_while_it_is_of_use() {
    let chart = chart();
    chart.learn(halves(100), Instant::now());
    let guest = chart.node(&node(9));
    assert!(Arc::ptr_eq(&guest, &chart.node(&node(9))), "one node, whoever asks");
    pass(GUEST_STAY / 2).await;
    chart.learn(halves(100), Instant::now());
    assert!(Arc::ptr_eq(&guest, &chart.node(&node(9))));
    // It joins, and is the same node still.
    chart.moved(5, &node(9));
    let member = chart.look_up(|view| view.node(&node(9)).cloned()).unwrap();
    assert!(Arc::ptr_eq(&guest, &member));
    let other = chart.node(&node(8));
    pass(GUEST_STAY).await;
    chart.learn(halves(100), Instant::now());
    assert!(!Arc::ptr_eq(&other, &chart.node(&node(8))), "a guest that nobody was sent to is forgotten");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_left_are_kept_for_a_farewell_and_closed_with_the_client() {
    let chart = chart();
    chart.learn(halves(100), Instant::now());
    chart.learn(Topology::single(node(1)), Instant::now());
    assert_eq!(chart.fresh().retired.len(), 1);
    pass(FAREWELL).await;
    chart.learned_nothing(ConnectError::Closed);
    assert!(chart.fresh().retired.is_empty(), "failed looks count the time too");
    chart.learn(halves(100), Instant::now());
    chart.learn(Topology::single(node(2)), Instant::now());
    chart.node(&node(9));
    let mut all: Vec<u16> = chart.clear().iter().map(|node| node.address().port).collect();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 9]);
    assert!(chart.look_up(|view| view.any_master().is_none()), "nothing is left to send to");
}

#[tokio::test(start_paused = true)]
async fn a_closed_chart_learns_nothing_from_stragglers() {
    let chart = chart();
    chart.learn(halves(100), Instant::now());
    chart.set_closed(true);
    chart.clear();
    chart.moved(5, &node(2));
    assert!(chart.look_up(|view| view.nodes().next().is_none()));
    chart.set_closed(false);
    let mut watch = chart.watch();
    chart.learn(halves(100), Instant::now());
    assert_eq!(owner(&chart, 5), 1);
    assert!(!watch.has_changed().unwrap(), "it is the topology that watchers know");
    watch.borrow_and_update();
}

#[tokio::test(start_paused = true)]
async fn losing_and_finding_the_cluster_is_told_once_each() {
    let chart = chart();
    let mut events = chart.events();
    chart.learned_nothing(ConnectError::Closed);
    chart.learned_nothing(ConnectError::Closed);
    chart.learn(halves(100), Instant::now());
    chart.learn(halves(200), Instant::now());
    chart.learned_nothing(ConnectError::Closed);
    chart.set_closed(true);
    let mut told = Vec::new();
    for _ in 0..4 {
        let event = events.next().await.expect("told");
        told.push((event.kind, event.stage, event.generation));
    }
    assert_eq!(
        told,
        [
            (EventKind::Disconnected, Stage::Connect, 0),
            (EventKind::Connected, Stage::Connect, 1),
            (EventKind::Disconnected, Stage::Runtime, 1),
            (EventKind::Closed, Stage::Close, 1),
        ]
    );
}

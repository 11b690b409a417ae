//! Dead letters that are replayed while their gateway hangs and its lane is full: they are older than everything that it is fed, and cost it nothing of that.

use crate::gateway::{Mood, TestGateway};
use crate::node::World;
use crate::world::*;
use firth_router::node::Router;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const LETTERS: u64 = 8;

/// A gateway with dead letters that hangs by now; its lane has so much room.
async fn hanging(room: usize) -> (World, Arc<TestGateway>, Router) {
    let mut world = World::memory().await;
    // Who refuses is not parked however slow the machine is, and who hangs is as soon as its lane is full.
    world.options.patience = Duration::from_secs(600);
    world.options.routing.backpressure.queue_size = room;
    (world.options.routing.batch.max_size, world.options.routing.delivery.max_in_flight) = (2, 1);
    let gateway = world.gateway("picky", "doc.all").await;
    gateway.set(Mood::Refuses("d3".to_owned()));
    let node = world.node().await;
    for _ in 0..LETTERS * 10 {
        world.send(1).await;
        world.settled().await;
    }
    assert_eq!(world.dead().await, LETTERS);
    gateway.set(Mood::Hangs);
    (world, gateway, node)
}

async fn replay(world: &World) {
    world.broker.dead_letters("changes").replay_all(firth::Replay::Group).await.unwrap();
}

/// Whether the lane of the only gateway is as wanted.
async fn lane_is(node: &Router, what: &str, wanted: impl Fn(usize, &[u32]) -> bool) {
    let is_so = || node.lanes().first().is_some_and(|lane| wanted(lane.held, &lane.parked));
    until(PATIENCE, what, async || is_so()).await;
}

/// The gateway takes everything now, and so many events arrive.
async fn arrive(world: &World, gateway: &TestGateway, count: u64) {
    gateway.set(Mood::Fine);
    until(PATIENCE * 4, "it has caught up", async || {
        let groups = world.broker.admin().groups("changes").await;
        groups.is_ok_and(|groups| groups.len() == 1) && world.dead().await == 0
    })
    .await;
    world.settled().await;
    let seen: BTreeSet<u64> = gateway.by_document().into_values().flatten().collect();
    let missing: Vec<u64> = (1..=count).filter(|number| !seen.contains(number)).collect();
    assert!(missing.is_empty(), "{} never came, the first is {}", missing.len(), missing[0]);
    assert_eq!(gateway.count(), seen.len(), "each came once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_without_room_cost_a_parked_gateway_nothing_of_what_was_left_out() {
    let (mut world, gateway, node) = hanging(5).await;
    world.send(2000).await;
    lane_is(&node, "it is parked on both", |_, parked| parked == [0, 1]).await;
    world.settled().await;
    replay(&world).await;
    lane_is(&node, "its lane is full", |held, _| held >= 5).await;
    arrive(&world, &gateway, LETTERS * 10 + 2000).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_parked_because_a_letter_has_no_room_is_fed_all_that_was_in_its_lane() {
    let (mut world, gateway, node) = hanging(300).await;
    world.send(296).await;
    lane_is(&node, "almost all room is taken", |held, parked| held == 296 && parked.is_empty()).await;
    replay(&world).await;
    lane_is(&node, "it is parked", |_, parked| !parked.is_empty()).await;
    arrive(&world, &gateway, LETTERS * 10 + 296).await;
    node.close().await.unwrap();
}

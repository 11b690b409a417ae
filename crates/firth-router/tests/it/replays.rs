//! Dead letters that are replayed while their gateway hangs and its lane is full: they are older
//! than everything that it is fed, and cost neither it nor others anything.

use crate::gateway::{Mood, TestGateway};
use crate::node::{World, balanced};
use crate::world::*;
use firth_router::node::{LaneStatus, Router};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const LETTERS: u64 = 8;

/// A node, and a gateway that has dead letters, and hangs by now; lanes have so much room.
struct Scene {
    world: World,
    picky: Arc<TestGateway>,
    node: Router,
}

impl Scene {
    async fn new(room: usize, stall_timeout: Duration) -> Self {
        let mut world = World::memory().await;
        let picky = world.gateway("picky", "doc.all").await;
        picky.set(Mood::Refuses("d3".to_owned()));
        // Who refuses is not parked, however slow the machine is: the letters would be of another
        // group.
        world.options.stall_timeout = Duration::from_secs(600);
        let node = world.node().await;
        world.send(LETTERS * 10).await;
        world.settled().await;
        assert_eq!(world.dead().await, LETTERS);
        node.close().await.unwrap();
        picky.set(Mood::Hangs);
        world.options.stall_timeout = stall_timeout;
        world.options.routing.backpressure.queue_size = room;
        let node = world.node().await;
        Self { world, picky, node }
    }

    async fn replay(&self) {
        let letters = self.world.broker.dead_letters("changes");
        letters.replay_all(firth::Replay::Group).await.unwrap();
    }

    /// The lane of the picky gateway becomes as wanted.
    async fn lane_is(&self, what: &str, wanted: impl Fn(usize, &[u32]) -> bool) {
        let is_it = |lane: &LaneStatus| lane.gateway.as_str() == "picky" && wanted(lane.held, &lane.parked);
        until(PATIENCE * 2, what, async || self.node.lanes().iter().any(is_it)).await;
    }

    /// The picky gateway takes everything now, letters too, and `count` events in all have arrived
    /// there.
    async fn end(self, count: u64) {
        self.picky.set(Mood::Fine);
        until(PATIENCE * 4, "it has caught up", async || {
            let letters = self.world.dead().await;
            if letters > 0 {
                self.replay().await;
            }
            let groups = self.world.broker.admin().groups("changes").await;
            letters == 0 && groups.is_ok_and(|groups| groups.len() == 1)
        })
        .await;
        self.world.settled().await;
        assert_eq!(self.world.dead().await, 0);
        let seen: BTreeSet<u64> = self.picky.by_document().into_values().flatten().collect();
        let missing: Vec<u64> = (1..=count).filter(|number| !seen.contains(number)).collect();
        assert!(missing.is_empty(), "{} never came, the first is {}", missing.len(), missing[0]);
        assert_eq!(self.picky.count(), seen.len(), "each came once");
        balanced(&self.node);
        self.node.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_without_room_cost_a_parked_gateway_nothing_of_what_was_left_out() {
    let mut scene = Scene::new(5, Duration::from_secs(600)).await;
    scene.world.send(2000).await;
    scene.lane_is("it is parked on both", |_, parked| parked == [0, 1]).await;
    scene.world.settled().await;
    scene.replay().await;
    scene.lane_is("its lane is full", |held, _| held >= 5).await;
    scene.end(LETTERS * 10 + 2000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_parked_because_a_letter_has_no_room_is_fed_all_that_was_in_its_lane() {
    let mut scene = Scene::new(300, Duration::from_secs(600)).await;
    scene.world.send(296).await;
    scene.lane_is("almost all room is taken", |held, parked| held == 296 && parked.is_empty()).await;
    scene.replay().await;
    scene.lane_is("it is parked", |_, parked| !parked.is_empty()).await;
    scene.end(LETTERS * 10 + 296).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_with_a_letter_for_a_gateway_that_hangs() {
    let mut scene = Scene::new(20, Duration::from_millis(300)).await;
    scene.world.send(200).await;
    scene.lane_is("it is parked on both", |_, parked| parked == [0, 1]).await;
    scene.world.settled().await;
    let quick = scene.world.gateway("quick", "doc.all").await;
    scene.replay().await;
    until(PATIENCE * 2, "what finds no room is a letter again", async || scene.world.dead().await > 0).await;
    scene.world.send(200).await;
    let is_new = |number: &u64| *number > LETTERS * 10 + 200;
    until(PATIENCE * 2, "the others go on", async || {
        quick.by_document().into_values().flatten().filter(is_new).count() == 200
    })
    .await;
    scene.end(LETTERS * 10 + 400).await;
}

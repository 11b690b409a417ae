//! A node that loses partitions and wins them again, itself or after another owner: nothing is
//! lost, nothing stands still, and gateways that were parked get what every owner has
//! left out for them.

use crate::chaos::{books_close, nothing_was_given_up};
use crate::gateway::Mood;
use crate::node::World;
use crate::world::*;
use firth::{Epoch, GroupName, TopicName};
use firth_engine::facet::{LeaseQuery, ReadLimit, StartPosition};
use firth_engine::{Engine, Hold, LeaseName, Partition, Verdict, Window};
use firth_laws::world::{seize, snatch};
use firth_router::node::Router;
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) fn at(index: u32) -> Partition {
    Partition::new(TopicName::new("changes").unwrap(), index)
}

/// Every lease on the topic is lost once: those of the node, and those by which it feeds parked
/// gateways.
async fn seize_all(engine: &Engine) {
    for index in 0..2 {
        for group in engine.groups(&at(index)).await.unwrap() {
            let name = LeaseName::group(&at(index), &group);
            let leases = engine.leases(&LeaseQuery::Names(vec![name])).await.unwrap();
            // If no member holds the lease now, a member is about to take it, or to remove its
            // group.
            let Some(lease) = leases.first().filter(|lease| lease.is_held()) else { continue };
            if let Some(hold) = snatch(engine, lease).await {
                engine.release(&hold).await.unwrap();
            }
        }
    }
}

async fn owns_anew(node: &Router, before: &BTreeMap<u32, Epoch>) {
    until(PATIENCE * 2, "both partitions are the node's again", async || {
        let now = node.consumer().epochs();
        before.iter().all(|(index, epoch)| now.get(index).is_some_and(|now| now > epoch))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_loses_its_partitions_again_and_again_loses_no_event_and_never_stands_still() {
    let mut world = World::memory().await;
    world.options.routing.backpressure.queue_size = 200;
    let quick = world.gateway("quick", "doc.all").await;
    let paused = world.gateway("paused", "doc.all").await;
    paused.set(Mood::Hangs);
    let node = world.node().await;
    let engine = world.broker.engine().clone();
    until(PATIENCE, "it owns both", async || node.consumer().epochs().len() == 2).await;
    for round in 0..12 {
        match round {
            4 => paused.set(Mood::Slow(Duration::from_millis(5))),
            7 => paused.set(Mood::Hangs),
            10 => paused.set(Mood::Fine),
            _ => {}
        }
        let before = node.consumer().epochs();
        world.send(150).await;
        if round % 3 == 0 {
            let is_parked = || node.lanes().iter().any(|lane| !lane.parked.is_empty());
            until(PATIENCE, "it is parked, or keeps up", async || is_parked() || round > 3).await;
        }
        seize_all(&engine).await;
        world.send(50).await;
        owns_anew(&node, &before).await;
        world.has_all(&quick).await;
    }
    world.has_all(&paused).await;
    nothing_was_given_up(&world).await;
    books_close(&node, 1).await;
    node.close().await.unwrap();
}

/// As another node would: settles what is not settled of the router's group, for it is left out for
/// a parked gateway. All but the first event, which that node has not come to.
async fn settle_all(engine: &Engine, index: u32, hold: &Hold, group: &GroupName) -> usize {
    let progress = engine.open(&at(index), group, StartPosition::Start, hold).await.unwrap();
    let mut window = Window::new(&progress, 500);
    let mut settled = 0;
    loop {
        let max = ReadLimit { records: 100, bytes: 1 << 20 };
        let records = engine.read(&at(index), window.position(), max).await.unwrap();
        if records.is_empty() {
            return settled;
        }
        for record in records {
            if window.offer(&record) == firth_engine::Offer::Deliver
                && record.id.seq > progress.frontier.seq + 1
            {
                window.settle(&record, Verdict::Ack).unwrap();
                settled += 1;
            }
        }
        if let Some(commit) = window.take_commit() {
            engine.commit(&at(index), group, hold, commit).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_owner_in_between_left_out_for_a_parked_gateway_is_fed_to_it() {
    let mut world = World::memory().await;
    let paused = world.gateway("paused", "doc.all").await;
    paused.set(Mood::Hangs);
    let node = world.node().await;
    world.send(100).await;
    until(PATIENCE, "it is parked on both", async || {
        node.lanes().first().is_some_and(|lane| lane.parked == [0, 1])
    })
    .await;
    let engine = world.broker.engine().clone();
    let group = GroupName::new("router").unwrap();
    let before = node.consumer().epochs();
    let holds = [seize(&engine, &at(0), &group).await, seize(&engine, &at(1), &group).await];
    world.send(3000).await;
    let mut settled = 0;
    for (index, hold) in (0..).zip(&holds) {
        settled += settle_all(&engine, index, hold, &group).await;
    }
    assert!(settled >= 2998, "{settled} events are left to the feeding of the parked gateway");
    for hold in &holds {
        engine.release(hold).await.unwrap();
    }
    owns_anew(&node, &before).await;
    paused.set(Mood::Fine);
    world.has_all(&paused).await;
    nothing_was_given_up(&world).await;
    books_close(&node, 3100).await;
    node.close().await.unwrap();
}

/// As another node would that has fed the gateway everything, and is gone again before this one
/// looked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_reaches_a_gateway_that_an_owner_in_between_has_fed_and_it_is_not_fed_again() {
    const BATCH: usize = 5;
    let mut world = World::memory().await;
    (world.options.routing.batch.max_size, world.options.routing.delivery.max_in_flight) = (BATCH, 1);
    let paused = world.gateway("paused", "doc.all").await;
    paused.set(Mood::Hangs);
    let node = world.node().await;
    world.send(200).await;
    until(PATIENCE, "it is parked on both", async || {
        node.lanes().first().is_some_and(|lane| lane.parked == [0, 1])
    })
    .await;
    world.settled().await;
    let engine = world.broker.engine().clone();
    let before = node.consumer().epochs();
    let group = GroupName::new("router").unwrap();
    let fed = GroupName::new("router.gw.paused").unwrap();
    for index in 0..2 {
        let hold = seize(&engine, &at(index), &group).await;
        engine.delete_group(&at(index), &fed, Some(&hold)).await.unwrap();
        engine.release(&hold).await.unwrap();
    }
    owns_anew(&node, &before).await;
    // The catch-up readers of the former ownership let go of what they have put into the lane; only
    // what is on its way stays: a batch, or one of each partition.
    let is_clear = || node.lanes().first().is_some_and(|lane| lane.held <= 2 * BATCH);
    until(PATIENCE * 2, "what it was fed before is let go", async || is_clear()).await;
    world.send(100).await;
    paused.set(Mood::Fine);
    let is_new = |number: &u64| *number > 200;
    until(PATIENCE * 4, "it has what happened since", async || {
        paused.by_document().values().flatten().copied().filter(is_new).count() == 100
    })
    .await;
    for (document, numbers) in paused.by_document() {
        assert!(numbers.is_sorted(), "{document}: {numbers:?}");
    }
    let again = paused.by_document().values().flatten().filter(|number| !is_new(number)).count();
    assert!(again <= 2 * BATCH, "{again} events were fed again");
    nothing_was_given_up(&world).await;
    node.close().await.unwrap();
}

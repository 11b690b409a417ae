//! A lossy trim removes events that were not routed yet: gateways are told that some are gone, and
//! the accounting know how many.

use crate::chaos::books_tell;
use crate::gateway::Mood;
use crate::node::World;
use crate::world::*;
use firth_engine::facet::TrimTo;
use firth_router::lane::LaneAccounting;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_are_gone_before_they_were_routed_are_told_of_and_in_the_books() {
    let mut world = World::memory().await;
    // However long a starved machine takes: what is fed again to a parked gateway counts twice.
    world.options.stall_timeout = Duration::from_secs(600);
    let gateway = world.gateway("g", "doc.all").await;
    let node = world.node().await;
    world.send(10).await;
    world.has_all(&gateway).await;
    world.settled().await;
    node.close().await.unwrap();
    world.send(100).await;
    let (removed, _) = world.broker.admin().trim("changes", TrimTo::Keep(0), true).await.unwrap();
    assert_eq!(removed, 110);
    world.send(10).await;
    let node = world.node().await;
    until(PATIENCE, "it has what is left", async || gateway.count() == 20).await;
    until(PATIENCE, "it knows how many are gone", async || gateway.lost() >= 100).await;
    books_tell(&node, (10, 0)).await;
    let accounting = node.accounting().into_values().fold(LaneAccounting::default(), LaneAccounting::plus);
    assert_eq!((accounting.taken, accounting.delivered, accounting.gapped), (110, 10, 100), "{accounting:?}");
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_gateway_is_told_of_events_that_are_gone_before_it_was_fed() {
    let mut world = World::memory().await;
    let gateway = world.gateway("g", "doc.all").await;
    let other = world.gateway("other", "doc.all").await;
    gateway.set(Mood::Hangs);
    let node = world.node().await;
    world.send(500).await;
    until(PATIENCE, "it is parked on both", async || {
        node.lanes().iter().any(|lane| lane.gateway.as_str() == "g" && lane.parked == [0, 1])
    })
    .await;
    world.send(500).await;
    world.has_all(&other).await;
    world.settled().await;
    world.broker.admin().trim("changes", TrimTo::Keep(0), true).await.unwrap();
    world.send(10).await;
    gateway.set(Mood::Fine);
    until(PATIENCE * 2, "all are there or known to be gone", async || {
        gateway.count() as u64 + gateway.lost() >= 1010
    })
    .await;
    assert!(gateway.lost() > 0 && other.lost() == 0);
    books_tell(&node, (1010, 0)).await;
    let accounting = node.accounting().into_values().fold(LaneAccounting::default(), LaneAccounting::plus);
    assert!(accounting.gapped > 0, "{accounting:?}");
    node.close().await.unwrap();
}

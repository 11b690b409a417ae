//! Gateways that come late, crash and are back, or are gone for good; and what each batch is
//! called.

use crate::gateway::{Mood, TestGateway};
use crate::node::World;
use crate::world::*;
use firth_engine::facet::TrimTo;
use firth_router::GatewayId;
use firth_router::deliver::{Deliverer, Delivering};
use firth_router::event::Priority;
use firth_router::lane::{Batch, Circuit, Outcome, Pressure};
use firth_router::registry::{Gateway, Overflow, Subscription};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than any test waits.
const FOR_EVER: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r04_a_gateway_that_registers_late_gets_its_events_at_once_and_took_no_seat() {
    let mut world = World::memory().await;
    world.options.routing.delivery.breaker.open_for = FOR_EVER;
    world.options.stall_timeout = FOR_EVER;
    world.registry.register(wish("w", "doc.all", "late")).await.unwrap();
    let node = world.node().await;
    world.send(10).await;
    until(PATIENCE, "events wait for it", async || node.lanes().iter().any(|lane| lane.held == 10)).await;
    let other = world.gateway("other", "doc.all").await;
    world.send(10).await;
    world.has_all_since(&other, 10).await;
    let circuits: Vec<_> = node.lanes().iter().map(|lane| lane.circuit).collect();
    assert_eq!(circuits, [Circuit::Closed; 2], "it is not unreachable, it is not there");
    let late = TestGateway::start("late").await;
    world.registry.register_gateway(late.registration()).await.unwrap();
    world.has_all(&late).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r04_a_gateway_that_crashed_and_registers_again_gets_its_events_at_once() {
    let mut world = World::memory().await;
    world.options.stall_timeout = FOR_EVER;
    let delivery = &mut world.options.routing.delivery;
    (delivery.retry.initial_delay, delivery.retry.max_delay) = (FOR_EVER, FOR_EVER);
    (delivery.breaker.open_for, delivery.breaker.failures) = (FOR_EVER, 1);
    let gateway = world.gateway("g", "doc.all").await;
    let node = world.node().await;
    world.send(10).await;
    world.has_all(&gateway).await;
    // From the first failure on it would be left alone for good.
    gateway.crash();
    world.send(10).await;
    until(PATIENCE, "it is ejected", async || {
        node.lanes().iter().any(|lane| matches!(lane.circuit, Circuit::Open { .. }))
    })
    .await;
    gateway.come_back().await;
    world.registry.register_gateway(gateway.registration()).await.unwrap();
    world.has_all(&gateway).await;
    node.close().await.unwrap();
}

async fn restarted(world: &mut World, gateway: &Arc<TestGateway>) {
    let node = world.node().await;
    for _ in 0..3 {
        world.send(1).await;
        world.has_all(gateway).await;
    }
    world.settled().await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r03_the_id_of_a_batch_is_the_same_over_all_attempts_and_no_other_batch_has_it() {
    let mut world = World::memory().await;
    world.options.stall_timeout = FOR_EVER;
    let gateway = world.gateway("g", "doc.all").await;
    restarted(&mut world, &gateway).await;
    restarted(&mut world, &gateway).await;
    let ids: BTreeSet<_> = gateway.ids().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), 6, "each batch is another one: {ids:?}");
    let node = world.node().await;
    gateway.set(Mood::Answers(500));
    world.send(1).await;
    until(PATIENCE, "it is tried often", async || gateway.requests() >= 10).await;
    gateway.set(Mood::Fine);
    world.settled().await;
    let mut by_content: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (id, places) in gateway.ids() {
        by_content.entry(places).or_default().insert(id);
    }
    assert_eq!(by_content.len(), 7);
    assert!(by_content.values().all(|ids| ids.len() == 1), "{by_content:?}");
    node.close().await.unwrap();
}

/// The head of an answer is no word on the events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t06_events_whose_answer_breaks_off_are_sent_again() {
    let mut world = World::memory().await;
    let gateway = world.gateway("g", "doc.all").await;
    gateway.set(Mood::BreaksOff);
    let node = world.node().await;
    world.send(10).await;
    until(PATIENCE, "they are sent again", async || gateway.requests() >= 3).await;
    gateway.set(Mood::Fine);
    world.has_all(&gateway).await;
    world.settled().await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r20_a_gateway_that_is_away_is_told_of_lost_events_when_it_is_back() {
    let mut world = World::memory().await;
    let gateway = world.gateway("g", "doc.all").await;
    let node = world.node().await;
    world.send(10).await;
    world.has_all(&gateway).await;
    world.settled().await;
    node.close().await.unwrap();
    world.registry.register(wish("w", "doc.all", "away")).await.unwrap();
    world.send(20).await;
    let (removed, _) = world.broker.admin().trim("changes", TrimTo::Keep(0), true).await.unwrap();
    assert_eq!(removed, 30);
    let node = world.node().await;
    world.send(10).await;
    until(PATIENCE, "who is there is told", async || gateway.lost() > 0).await;
    let away = TestGateway::start("away").await;
    world.registry.register_gateway(away.registration()).await.unwrap();
    until(PATIENCE, "who was away is told too", async || away.lost() > 0).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rte26_with_the_defaults_a_gateway_that_hangs_is_under_pressure_and_sheds_low_priority() {
    let mut world = World::memory().await;
    // The node parks no gateway, and no batch comes back: the lane holds all that can be open.
    world.options.stall_timeout = FOR_EVER;
    world.http.timeout = Duration::from_secs(300);
    let gateway = TestGateway::start("g").await;
    world.registry.register_gateway(gateway.registration()).await.unwrap();
    let low =
        Subscription { priority: Priority::Low, overflow: Overflow::Shed, ..wish("low", "doc.all", "g") };
    world.registry.register(low).await.unwrap();
    let node = world.node().await;
    gateway.set(Mood::Hangs);
    world.send(1000).await;
    let lane = || node.lanes().into_iter().next();
    until(PATIENCE, "the pressure is hard", async || {
        lane().is_some_and(|lane| lane.pressure == Pressure::Hard)
    })
    .await;
    gateway.set(Mood::Fine);
    world.settled().await;
    until(PATIENCE, "it is told of what was left out", async || gateway.missed().contains("low")).await;
    let lane = lane().unwrap();
    assert_eq!((lane.pressure, lane.accounting.taken), (Pressure::None, 1000));
    assert!(
        lane.accounting.gapped > 0 && lane.accounting.delivered + lane.accounting.gapped == 1000,
        "{:?}",
        lane.accounting
    );
    assert_eq!(gateway.count() as u64, lane.accounting.delivered);
    node.close().await.unwrap();
}

/// Accepts everything, and notes of whom it keeps nothing any more.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<BTreeSet<String>>>);

impl Deliverer for Noting {
    fn deliver<'a>(&'a self, _: &'a Gateway, _: &'a Batch) -> Delivering<'a> {
        Box::pin(std::future::ready(Outcome::Accepted))
    }

    fn forget(&self, gateway: &GatewayId) {
        self.0.lock().unwrap().insert(gateway.to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_nothing_is_kept_for_a_gateway_that_is_gone() {
    let mut world = World::memory().await;
    let noting = Noting::default();
    for id in ["stays", "goes"] {
        world.register(id, "http://127.0.0.1:1".to_owned(), firth_router::config::Protocol::Http).await;
    }
    let node = world.node_with(noting.clone()).await;
    world.send(20).await;
    world.settled().await;
    world.registry.unregister_gateway(&gateway("goes")).await.unwrap();
    let forgotten = || noting.0.lock().unwrap().iter().cloned().collect::<Vec<_>>();
    until(PATIENCE, "it is forgotten", async || forgotten() == ["goes"]).await;
    assert_eq!(node.lanes().len(), 1);
    node.close().await.unwrap();
}

//! Subscriptions that name no gateway: spread by hash, or for everyone. And gateways that come and
//! go for good: who moved is told what it may have missed, and nothing is kept for those who are
//! gone.

use crate::chaos::{books_close, nothing_was_given_up};
use crate::gateway::{Mood, TestGateway};
use crate::node::{World, balanced};
use crate::world::*;
use firth_router::node::Router;
use firth_router::registry::{Access, Subscription};
use firth_router::routing::{Target, slot_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

async fn joins(world: &World, id: &str) -> Arc<TestGateway> {
    let gateway = TestGateway::start(id).await;
    world.registry.register_gateway(gateway.registration()).await.unwrap();
    gateway
}

async fn spread(world: &World, target: &Target, count: usize) -> BTreeSet<String> {
    let ids: BTreeSet<String> = (0..count).map(|n| format!("s{n}")).collect();
    for id in &ids {
        let wish = Subscription { target: target.clone(), ..wish(id, "doc.all", "none") };
        world.registry.register(wish).await.unwrap();
    }
    ids
}

/// By the table that all nodes compute alike.
fn homes(world: &World, ids: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let table = world.registry.table(&tenant("t"));
    let mut homes = BTreeMap::<_, BTreeSet<_>>::new();
    for id in ids {
        let home = table.owner(slot_of(&sub_id(id))).unwrap();
        homes.entry(home.to_string()).or_default().insert(id.clone());
    }
    homes
}

/// Nothing is left of a gateway: no lane, and no group that holds the log.
async fn is_forgotten(world: &World, node: &Router, gateway: &str) {
    until(PATIENCE * 4, format!("nothing is kept for {gateway}"), async || {
        let groups = world.broker.admin().groups("changes").await.unwrap();
        groups.len() == 1 && node.lanes().iter().all(|lane| lane.gateway.as_str() != gateway)
    })
    .await;
    balanced(node);
    assert!(node.accounting().values().all(|accounting| accounting.held == 0), "{:?}", node.accounting());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spread_subscription_is_served_by_the_owner_of_its_slot_and_told_of_a_gap_when_that_one_is_gone() {
    let mut world = World::memory().await;
    let a = joins(&world, "a").await;
    let b = joins(&world, "b").await;
    let ids = spread(&world, &Target::Hash, 40).await;
    let before = homes(&world, &ids);
    let node = world.node().await;
    world.send(20).await;
    for gateway in [&a, &b] {
        world.has_all(gateway).await;
        assert_eq!(gateway.subscriptions(), before[&gateway.id], "its own and no others");
    }
    a.set(Mood::Hangs);
    world.send(100).await;
    world.has_all(&b).await;
    until(PATIENCE, "it is parked", async || node.lanes().iter().any(|lane| lane.parked == [0, 1])).await;
    assert!(b.missed().is_empty());
    a.crash();
    world.registry.unregister_gateway(&gateway("a")).await.unwrap();
    until(PATIENCE, "who moved is told", async || b.missed() == before["a"]).await;
    world.send(10).await;
    world.has_all(&b).await;
    assert_eq!(b.got(130), ids, "everyone is served by who is left");
    is_forgotten(&world, &node, "a").await;
    // If a gateway joins while no gateway is owed events, no subscription is told of a gap.
    let c = joins(&world, "c").await;
    world.send(10).await;
    until(PATIENCE, "it serves its share", async || !c.got(140).is_empty()).await;
    assert_eq!(c.got(140), homes(&world, &ids)["c"]);
    assert!(c.missed().is_empty() && b.missed() == before["a"]);
    nothing_was_given_up(&world).await;
    books_close(&node, 150).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broadcast_goes_to_all_gateways_or_only_it_is_refused_with_the_reason() {
    let mut world = World::memory().await;
    world.options.routing.max_fanout = 2;
    let a = joins(&world, "a").await;
    let b = joins(&world, "b").await;
    let ids = spread(&world, &Target::Broadcast, 3).await;
    let node = world.node().await;
    world.send(10).await;
    for gateway in [&a, &b] {
        world.has_all(gateway).await;
        assert_eq!(gateway.subscriptions(), ids);
    }
    nothing_was_given_up(&world).await;
    let c = world.gateway("c", "doc.all").await;
    world.send(10).await;
    until(PATIENCE, "who named its gateway gets them all the same", async || c.count() == 10).await;
    world.settled().await;
    assert_eq!((a.count(), b.count()), (10, 10));
    assert_eq!(c.subscriptions(), BTreeSet::from(["wish-c".to_owned()]));
    let letters = world.broker.dead_letters("changes").list(None, 20).await.unwrap().letters;
    assert_eq!(letters.len(), 10);
    assert!(
        letters.iter().all(|letter| letter.reason.contains("max_fanout is 2")),
        "{:?}",
        letters[0].reason
    );
    balanced(&node);
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn for_a_gateway_that_is_gone_for_good_nothing_is_kept() {
    let mut world = World::memory().await;
    let quick = world.gateway("quick", "doc.all").await;
    let dying = world.gateway("dying", "doc.all").await;
    dying.set(Mood::Hangs);
    let node = world.node().await;
    world.send(1000).await;
    world.has_all(&quick).await;
    until(PATIENCE, "it is parked", async || node.lanes().iter().any(|lane| lane.parked == [0, 1])).await;
    dying.crash();
    // As its time to live would end it: its subscriptions go with it.
    world.registry.unregister_gateway(&gateway("dying")).await.unwrap();
    is_forgotten(&world, &node, "dying").await;
    world.send(50).await;
    world.has_all(&quick).await;
    let taken: u64 = node.accounting().values().map(|accounting| accounting.taken).sum();
    assert!(taken >= 2050, "its books are kept: {taken}");
    nothing_was_given_up(&world).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_a_gateway_for_some_tenants_gets_no_spread_event_of_others() {
    let mut world = World::memory().await;
    let core = joins(&world, "core").await;
    let edge = TestGateway::start("edge-1").await;
    let access = Access::new(vec!["edge-*".to_owned()], vec!["acme".to_owned()]).unwrap();
    world.registry.limited(&access).register_gateway(edge.registration()).await.unwrap();
    let mut ids = spread(&world, &Target::Hash, 20).await;
    let to_each = Subscription { target: Target::Broadcast, ..wish("each", "doc.all", "none") };
    world.registry.register(to_each).await.unwrap();
    ids.insert("each".to_owned());
    let node = world.node().await;
    world.send(20).await;
    world.has_all(&core).await;
    assert_eq!(core.subscriptions(), ids);
    assert!(edge.subscriptions().is_empty(), "they are another tenant's: {:?}", edge.subscriptions());
    node.close().await.unwrap();
}

//! Registrations with several nodes: the answer means that every node which matches events has it.

use crate::chaos::nothing_was_given_up;
use crate::node::World;
use crate::world::*;
use firth::Broker;
use firth_engine::Engine;
use firth_laws::faulty::{Faults, Faulty};
use firth_router::config::RoutingConfig;
use firth_router::node::Router;
use firth_router::registry::{Registry, Subscription};
use firth_testkit::{Flavor, on_both};

async fn open(engine: &Engine) -> Registry {
    Registry::open(&Broker::with_engine(engine.clone()), RoutingConfig::default().subscriptions)
        .await
        .unwrap()
}

/// A second node with a registry of its own, which can be held up; each node has one partition.
async fn second_node(world: &mut World, engine: &Engine) -> (Router, Registry, Faulty) {
    let (behind, faulty) = Faulty::wrap(engine.clone(), Faults::default());
    let first = world.registry.clone();
    let second = open(&behind).await;
    world.registry = second.clone();
    let node = world.node().await;
    world.registry = first;
    (node, second, faulty)
}

async fn share(one: &Router, two: &Router) {
    until(PATIENCE, "each has one partition", async || {
        one.consumer().assignment().len() == 1 && two.consumer().assignment().len() == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_a_registration_is_answered_when_every_node_has_it() {
    let engine = Engine::memory();
    let mut world = World::new(engine.clone()).await;
    let gateway = world.gateway("g", "doc.none").await;
    let one = world.node().await;
    let (two, registry, faulty) = second_node(&mut world, &engine).await;
    share(&one, &two).await;
    faulty.hold_up("get");
    let first = world.registry.clone();
    let asked = faulty.count("get");
    let registering = tokio::spawn(async move { first.register(wish("all", "doc.all", "g")).await });
    until(PATIENCE, "the second node reads it", async || faulty.count("get") > asked).await;
    assert!(!registering.is_finished(), "the second node does not have it yet");
    faulty.heal();
    registering.await.unwrap().unwrap();
    assert_eq!(registry.matches(&order("k", serde_json::json!({ "all": true }))).unwrap().len(), 1);
    world.send(20).await;
    world.has_all(&gateway).await;
    nothing_was_given_up(&world).await;
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_a_node_that_fell_silent_holds_up_registrations_for_a_while_and_matches_nothing_meanwhile() {
    let engine = Engine::memory();
    let mut world = World::new(engine.clone()).await;
    let gateway = world.gateway("g", "doc.none").await;
    let one = world.node().await;
    let (two, registry, faulty) = second_node(&mut world, &engine).await;
    share(&one, &two).await;
    // Its registry hears and says nothing; its consumer goes on.
    faulty.cut();
    world.registry.register(wish("all", "doc.all", "g")).await.unwrap();
    assert!(registry.subscription(&tenant("t"), &sub_id("all")).is_none());
    world.send(20).await;
    until(PATIENCE, "the first node's share arrives", async || gateway.count() > 0).await;
    faulty.heal();
    world.has_all(&gateway).await;
    nothing_was_given_up(&world).await;
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test]
async fn r01_a_node_that_cannot_take_a_registration_refuses_it_for_all() {
    let engine = Engine::memory();
    let one = open(&engine).await;
    let tight = RoutingConfig::default().subscriptions;
    let tight = firth_router::config::Subscriptions { unindexed_per_tenant: 0, ..tight };
    let two = Registry::open(&Broker::with_engine(engine.clone()), tight).await.unwrap();
    two.join("two", "changes", "router").await.unwrap();
    one.register(wish("s", "doc.n == 1", "g")).await.unwrap();
    let refused = one.register(wish("s", "doc.s.contains('x')", "g")).await.unwrap_err();
    assert_eq!(refused.kind(), firth_router::ErrorKind::Quota, "{refused}");
    let event = order("k", serde_json::json!({ "n": 1, "s": "x" }));
    for registry in [&one, &two] {
        until(PATIENCE, "what worked is back", async || {
            let known = registry.subscription(&tenant("t"), &sub_id("s"));
            known.is_some_and(|known| known.filter.as_deref() == Some("doc.n == 1"))
        })
        .await;
        assert_eq!(registry.matches(&event).unwrap().len(), 1);
    }
}

async fn r01_no_event_is_missed_after_the_answer_to_a_registration(flavor: Flavor) {
    let (_server, engine, other) = on_server(flavor).await;
    let mut world = World::new(engine.clone()).await;
    let gateway = world.gateway("g", "doc.none").await;
    let one = world.node().await;
    let (two, _, _) = second_node(&mut world, &other).await;
    share(&one, &two).await;
    // As a server without a node registers.
    let registry = open(&engine).await;
    for n in 1..=20 {
        // The events of a turn are for the subscription of that turn alone.
        let from = (n - 1) * world.documents;
        let filter = format!("doc.n > {from} && doc.n <= {}", from + world.documents);
        let wish = Subscription { id: sub_id(&format!("s{n}")), ..wish("s", &filter, "g") };
        registry.register(wish).await.unwrap();
        world.send(world.documents).await;
    }
    world.has_all(&gateway).await;
    assert_eq!(gateway.subscriptions().len(), 20);
    one.close().await.unwrap();
    two.close().await.unwrap();
}

on_both!(r01_no_event_is_missed_after_the_answer_to_a_registration);

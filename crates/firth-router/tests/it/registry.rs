//! The registry: what one node registers, all nodes match; nothing expires that gives a sign of
//! life.

use crate::world::*;
use firth::Broker;
use firth_engine::facet::{EntryKey, Expect};
use firth_engine::{Engine, SpaceName};
use firth_laws::faulty::{Faults, Faulty};
use firth_router::config::{RoutingConfig, Subscriptions};
use firth_router::registry::{Gateway, Registry, Subscription};
use firth_router::{ErrorKind, Tenant};
use firth_testkit::{Flavor, on_both};
use serde_json::json;
use std::time::Duration;

fn quotas() -> Subscriptions {
    RoutingConfig::default().subscriptions
}

async fn open(engine: &Engine) -> Registry {
    Registry::open(&Broker::with_engine(engine.clone()), quotas()).await.unwrap()
}

fn found(registry: &Registry, document: serde_json::Value) -> Vec<String> {
    let wanted = registry.matches(&order("1", document)).unwrap();
    let mut ids: Vec<_> = wanted.iter().map(|wanted| wanted.subscription.id.to_string()).collect();
    ids.sort();
    ids
}

async fn nodes_share(one: Registry, two: Registry) {
    one.register(wish("a", "doc.n == 1", "g1")).await.unwrap();
    assert_eq!(found(&one, json!({ "n": 1 })), ["a"], "whoever registers matches at once");
    until(PATIENCE, "the other node matches too", async || found(&two, json!({ "n": 1 })) == ["a"]).await;

    two.register(wish("a", "doc.n == 2", "g1")).await.unwrap();
    until(PATIENCE, "it was replaced", async || {
        found(&one, json!({ "n": 2 })) == ["a"] && found(&one, json!({ "n": 1 })).is_empty()
    })
    .await;

    one.heartbeat(&tenant("t"), &sub_id("a")).await.unwrap();
    let unknown = one.heartbeat(&tenant("t"), &sub_id("b")).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);

    two.register_gateway(Gateway::new(gateway("g1"), "http://localhost:1")).await.unwrap();
    until(PATIENCE, "the gateway is known", async || one.gateways().len() == 1).await;
    assert_eq!(one.table(&tenant("t")).owner(0), Some(&gateway("g1")));
    one.register(wish("c", "doc.n == 2", "g2")).await.unwrap();
    assert_eq!(one.unregister_gateway(&gateway("g1")).await.unwrap(), Some(1));
    until(PATIENCE, "only the other gateway's is left", async || {
        found(&two, json!({ "n": 2 })) == ["c"] && two.gateways().is_empty()
    })
    .await;
    assert!(two.unregister(&tenant("t"), &sub_id("c")).await.unwrap());
    assert!(!two.unregister(&tenant("t"), &sub_id("c")).await.unwrap());
    until(PATIENCE, "nothing is left", async || one.is_empty() && two.is_empty()).await;
    one.close().await;
    two.close().await;
}

#[tokio::test]
async fn what_one_node_registers_all_nodes_match() {
    let engine = Engine::memory();
    nodes_share(open(&engine).await, open(&engine).await).await;
}

async fn what_one_node_registers_all_nodes_match_on_a_server(flavor: Flavor) {
    let (_server, one, two) = on_server(flavor).await;
    nodes_share(open(&one).await, open(&two).await).await;
}

on_both!(what_one_node_registers_all_nodes_match_on_a_server);

#[tokio::test]
async fn a_node_that_starts_later_knows_what_was_registered_before() {
    let engine = Engine::memory();
    let one = open(&engine).await;
    for n in 0..200 {
        one.register(wish(&format!("s{n}"), &format!("doc.n == {n}"), "g")).await.unwrap();
    }
    one.close().await;
    let two = open(&engine).await;
    assert_eq!(two.len(), 200);
    assert_eq!(found(&two, json!({ "n": 77 })), ["s77"]);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_ends_when_neither_it_nor_its_gateway_gives_a_sign() {
    let engine = Engine::memory();
    let one = open(&engine).await;
    let two = open(&engine).await;
    let short = |id: &str, to: &str| Subscription { ttl_seconds: 60, ..wish(id, "doc.n == 1", to) };
    for (id, to) in [("beating", "g1"), ("silent", "g1"), ("held", "g2")] {
        one.register(short(id, to)).await.unwrap();
    }
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(20)).await;
        one.heartbeat(&tenant("t"), &sub_id("beating")).await.unwrap();
        two.register_gateway(Gateway::new(gateway("g2"), "")).await.unwrap();
    }
    assert_eq!(found(&one, json!({ "n": 1 })), ["beating", "held"]);
    assert_eq!(found(&two, json!({ "n": 1 })), ["beating", "held"]);
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(one.is_empty() && two.is_empty() && two.gateways().is_empty());
    assert_eq!(open(&engine).await.len(), 0, "they are gone from the catalog too");
}

#[tokio::test]
async fn what_cannot_work_is_refused_and_leaves_nothing_behind() {
    let engine = Engine::memory();
    let tight = Subscriptions { per_tenant: 2, unindexed_per_tenant: 1, ..quotas() };
    let registry = Registry::open(&Broker::with_engine(engine.clone()), tight).await.unwrap();
    let bad = [
        wish("x", "doc.n ==", "g"),
        Subscription { ttl_seconds: 5, ..wish("x", "doc.n == 1", "g") },
        Subscription { collection: "".into(), ..wish("x", "doc.n == 1", "g") },
    ];
    for wrong in bad {
        assert_eq!(registry.register(wrong).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    registry.register(wish("a", "doc.s.contains('a')", "g")).await.unwrap();
    let slow = registry.register(wish("b", "doc.s.contains('b')", "g")).await.unwrap_err();
    assert_eq!(slow.kind(), ErrorKind::Quota);
    registry.register(wish("b", "doc.s == 'b'", "g")).await.unwrap();
    let full = registry.register(wish("c", "doc.s == 'c'", "g")).await.unwrap_err();
    assert!(full.to_string().contains("per_tenant"), "{full}");
    let other = Subscription { tenant: Tenant::new("u").unwrap(), ..wish("a", "doc.s == 'c'", "g") };
    registry.register(other).await.expect("another tenant may use the same id");
    assert_eq!(open(&engine).await.len(), 3);
}

#[tokio::test]
async fn r07_a_refused_replacement_keeps_the_subscription_that_worked() {
    let engine = Engine::memory();
    let tight = Subscriptions { unindexed_per_tenant: 1, ..quotas() };
    let registry = Registry::open(&Broker::with_engine(engine.clone()), tight.clone()).await.unwrap();
    registry.register(wish("slow", "doc.s.contains('y')", "g")).await.unwrap();
    registry.register(wish("a", "doc.n == 1", "g")).await.unwrap();
    let refused = registry.register(wish("a", "doc.s.contains('x')", "g")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Quota);
    let later = Registry::open(&Broker::with_engine(engine.clone()), tight).await.unwrap();
    for registry in [&registry, &later] {
        assert_eq!(found(registry, json!({ "n": 1, "s": "x" })), ["a"]);
    }
    // Its own place is free for it.
    registry.register(wish("slow", "doc.s.contains('z')", "g")).await.unwrap();
    assert_eq!(found(&registry, json!({ "n": 2, "s": "z" })), ["slow"]);
}

/// Stores an entry again, changed.
async fn change(engine: &Engine, space: &str, with: impl Fn(&mut serde_json::Value)) {
    let space = SpaceName::new(space).unwrap();
    for entry in engine.list_all(&space, "").await.unwrap() {
        let mut value: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
        with(&mut value);
        let key = EntryKey::new(space.clone(), entry.name).unwrap();
        engine.put(&key, value.to_string().into(), Expect::Any).await.unwrap();
    }
}

#[tokio::test]
async fn r19_what_a_newer_node_has_stored_is_read_and_what_cannot_be_read_stops_nothing_else() {
    let engine = Engine::memory();
    let registry = open(&engine).await;
    registry.register(wish("a", "doc.n == 1", "g1")).await.unwrap();
    for id in ["g1", "g2"] {
        registry.register_gateway(Gateway::new(gateway(id), "http://localhost:1")).await.unwrap();
    }
    registry.close().await;
    for shard in 0..64 {
        let newer = |value: &mut serde_json::Value| value["of_the_future"] = json!({ "n": 1 });
        change(&engine, &format!("router.subscriptions.{shard}"), newer).await;
    }
    change(&engine, "router.gateways", |value| match value["id"] == "g1" {
        true => value["of_the_future"] = json!(true),
        false => value["protocol"] = json!("of_the_future"),
    })
    .await;
    let later = open(&engine).await;
    assert_eq!(found(&later, json!({ "n": 1 })), ["a"]);
    let ids: Vec<_> = later.gateways().iter().map(|gateway| gateway.id.to_string()).collect();
    assert_eq!(ids, ["g1"], "the one that cannot be read is left out alone");
    later.heartbeat(&tenant("t"), &sub_id("a")).await.unwrap();
}

/// Every stored entry of a space.
async fn stored(engine: &Engine, space: &str) -> Vec<serde_json::Value> {
    let entries = engine.list_all(&SpaceName::new(space).unwrap(), "").await.unwrap();
    entries.iter().map(|entry| serde_json::from_slice(&entry.value).unwrap()).collect()
}

#[tokio::test]
async fn r19_a_heartbeat_of_an_older_node_keeps_the_fields_of_a_newer_one() {
    let engine = Engine::memory();
    let registry = open(&engine).await;
    registry.register(wish("a", "doc.n == 1", "g1")).await.unwrap();
    registry.register_gateway(Gateway::new(gateway("g1"), "http://localhost:1")).await.unwrap();
    registry.close().await;
    let spaces: Vec<_> = (0..64)
        .map(|shard| format!("router.subscriptions.{shard}"))
        .chain(["router.gateways".to_owned()])
        .collect();
    for space in &spaces {
        change(&engine, space, |value| value["of_the_future"] = json!({ "n": 1 })).await;
    }
    let older = open(&engine).await;
    older.heartbeat(&tenant("t"), &sub_id("a")).await.unwrap();
    older.heartbeat_gateway(&gateway("g1")).await.unwrap();
    let mut kept = 0;
    for space in &spaces {
        for entry in stored(&engine, space).await {
            assert_eq!(entry["of_the_future"], json!({ "n": 1 }), "{entry}");
            kept += 1;
        }
    }
    assert_eq!(kept, 2, "the subscription and the gateway");
}

#[tokio::test]
async fn r13_a_gateway_with_many_subscriptions_goes_with_one_call_for_each_of_them() {
    let (engine, faulty) = Faulty::wrap(Engine::memory(), Faults::default());
    let registry = open(&engine).await;
    registry.register_gateway(Gateway::new(gateway("g"), "http://localhost:1")).await.unwrap();
    for n in 0..200 {
        registry.register(wish(&format!("s{n}"), &format!("doc.n == {n}"), "g")).await.unwrap();
    }
    let counts = || ["get", "publish"].map(|call| faulty.count(call));
    let [gets, publishes] = counts();
    assert_eq!(registry.unregister_gateway(&gateway("g")).await.unwrap(), Some(200));
    let [gets, publishes] = [counts()[0] - gets, counts()[1] - publishes];
    // Hearing its own news costs no call either: it knows already.
    assert!(gets <= 2 && publishes <= 3, "{gets} gets, {publishes} publishes");
    assert!(registry.is_empty() && open(&engine).await.is_empty());
}

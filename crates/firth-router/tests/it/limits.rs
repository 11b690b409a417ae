//! What a caller with limits on gateways and tenants may do, also at a node that has not heard of
//! everything.

use crate::world::*;
use firth::Broker;
use firth_engine::facet::{EntryKey, Expect};
use firth_engine::{Engine, SpaceName};
use firth_router::ErrorKind;
use firth_router::config::RoutingConfig;
use firth_router::registry::{Access, Gateway, Registry};
use serde_json::json;

async fn open(engine: &Engine) -> Registry {
    let broker = Broker::with_engine(engine.clone());
    Registry::open(&broker, RoutingConfig::default().subscriptions).await.unwrap()
}

fn edges_of_t() -> Access {
    Access::new(vec!["edge-*".to_owned()], vec!["t".to_owned()]).unwrap()
}

#[tokio::test]
async fn r17_a_limited_caller_replaces_nothing_of_others_that_its_node_has_not_heard_of() {
    let engine = Engine::memory();
    let access = edges_of_t();
    let one = open(&engine).await;
    let deaf = open(&engine).await;
    one.register(wish("mine", "doc.n == 1", "edge-1")).await.unwrap();
    until(PATIENCE, "both nodes know it", async || deaf.len() == 1).await;
    deaf.close().await;
    let limited = deaf.limited(&access);
    one.register(wish("theirs", "doc.n == 1", "core")).await.unwrap();
    assert_eq!(deaf.len(), 1, "it has not heard of it");
    let refused = [
        limited.register(wish("theirs", "doc.n == 2", "edge-1")).await.unwrap_err(),
        limited.heartbeat(&tenant("t"), &sub_id("theirs")).await.unwrap_err(),
        limited.unregister(&tenant("t"), &sub_id("theirs")).await.unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::Forbidden), "{refused:?}");
    // What was its own when it last heard of it may be another caller's by now.
    one.register(wish("mine", "doc.n == 1", "core")).await.unwrap();
    let refused = [
        limited.register(wish("mine", "doc.n == 2", "edge-1")).await.unwrap_err(),
        limited.heartbeat(&tenant("t"), &sub_id("mine")).await.unwrap_err(),
        limited.unregister(&tenant("t"), &sub_id("mine")).await.unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.kind() == ErrorKind::Forbidden), "{refused:?}");
    let later = open(&engine).await;
    for id in ["theirs", "mine"] {
        let stored = later.subscription(&tenant("t"), &sub_id(id)).unwrap();
        assert_eq!(stored.gateway(), Some(&gateway("core")), "{id}");
    }
    // Fields that came since are its own.
    one.register(wish("theirs", "doc.n == 1", "edge-2")).await.unwrap();
    limited.heartbeat(&tenant("t"), &sub_id("theirs")).await.unwrap();
    let limited = later.limited(&access);
    limited.register(wish("theirs", "doc.n == 2", "edge-1")).await.unwrap();
    assert!(limited.unregister(&tenant("t"), &sub_id("theirs")).await.unwrap());
    assert!(!limited.unregister(&tenant("t"), &sub_id("theirs")).await.unwrap());
}

#[tokio::test]
async fn r17_a_limited_caller_does_not_touch_what_its_node_cannot_read() {
    let engine = Engine::memory();
    let access = edges_of_t();
    open(&engine).await.register(wish("s", "doc.n == 1", "edge-1")).await.unwrap();
    let unreadable = json!({ "id": "s", "tenant": "t", "target": "of a newer version" }).to_string();
    for shard in 0..64 {
        let space = SpaceName::new(format!("router.subscriptions.{shard}")).unwrap();
        for entry in engine.list_all(&space, "").await.unwrap() {
            let key = EntryKey::new(space.clone(), entry.name).unwrap();
            engine.put(&key, unreadable.clone().into(), Expect::Any).await.unwrap();
        }
    }
    let registry = open(&engine).await;
    let limited = registry.limited(&access);
    let refused = [
        limited.register(wish("s", "doc.n == 2", "edge-1")).await.unwrap_err(),
        limited.heartbeat(&tenant("t"), &sub_id("s")).await.unwrap_err(),
        limited.unregister(&tenant("t"), &sub_id("s")).await.unwrap_err(),
    ];
    for error in &refused {
        assert!(error.kind() == ErrorKind::Forbidden && error.context().contains("another id"), "{error:?}");
    }
    let all = Access::default();
    registry.limited(&all).register(wish("s", "doc.n == 2", "core")).await.expect("it has no limits");
}

/// Where an order of a tenant goes.
fn gateways_of(registry: &Registry, tenant_name: &str) -> Vec<String> {
    registry.table(&tenant(tenant_name)).gateways().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn r17_a_gateway_of_a_limited_caller_is_in_the_tables_of_its_tenants_alone() {
    let engine = Engine::memory();
    let access = edges_of_t();
    let one = open(&engine).await;
    let two = open(&engine).await;
    let endpoint = "http://localhost:1";
    one.register_gateway(Gateway::new(gateway("core"), endpoint)).await.unwrap();
    one.limited(&access).register_gateway(Gateway::new(gateway("edge-99"), endpoint)).await.unwrap();
    for registry in [&one, &two] {
        until(PATIENCE, "both nodes know both", async || registry.gateways().len() == 2).await;
        assert_eq!(gateways_of(registry, "t"), ["core", "edge-99"]);
        assert_eq!(gateways_of(registry, "other"), ["core"], "other tenants do not reach it");
    }
    // A sign of life keeps that, and so does a node that reads the registry later.
    two.heartbeat_gateway(&gateway("edge-99")).await.unwrap();
    assert_eq!(gateways_of(&open(&engine).await, "other"), ["core"]);
    one.register_gateway(Gateway::new(gateway("edge-99"), endpoint)).await.unwrap();
    assert_eq!(gateways_of(&one, "other"), ["core", "edge-99"], "a caller without limits lifts them");
}

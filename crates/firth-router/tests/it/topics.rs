//! Two routers on one engine, each with a topic of its own, share the registry and the gateways.

use crate::node::World;
use crate::world::*;
use firth::Broker;
use firth_router::config::RoutingConfig;
use firth_router::node::message;
use firth_router::registry::Registry;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r05_two_routed_topics_lose_nothing_at_a_gateway_that_both_send_to() {
    let mut world = World::memory().await;
    let gateway = world.gateway("g", "doc.all").await;
    world.broker.create_topic("others").partitions(2).await.unwrap();
    let one = world.node().await;
    world.options.topic = "others".to_owned();
    let two = world.node().await;
    // The same partition and the same place in it.
    let event = message(&order("k", json!({ "n": 1, "all": true })), 2).unwrap();
    for topic in ["changes", "others"] {
        world.broker.producer(topic).await.unwrap().send(event.clone()).await.unwrap();
    }
    until(PATIENCE, "both arrive", async || gateway.count() == 2).await;
    for topic in ["changes", "others"] {
        until(PATIENCE, "it is settled", async || {
            world.broker.admin().group(topic, "router").await.unwrap().lag() == 0
        })
        .await;
        assert_eq!(world.broker.dead_letters(topic).count().await.unwrap(), 0, "{topic}");
    }
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test]
async fn r05_a_second_router_on_a_topic_is_refused_and_told_what_to_do() {
    let broker = Broker::memory();
    let open = || Registry::open(&broker, RoutingConfig::default().subscriptions);
    let one = open().await.unwrap();
    let two = open().await.unwrap();
    let three = open().await.unwrap();
    one.join("n1", "changes", "router").await.unwrap();
    let refused = two.join("n2", "changes", "other").await.unwrap_err();
    assert!(refused.to_string().contains("node n1 routes the topic changes as router"), "{refused}");
    three.join("n3", "changes", "router").await.unwrap();
    two.join("n2", "others", "other").await.expect("another topic is another matter");
    one.register(wish("s", "doc.all", "g")).await.unwrap();
}

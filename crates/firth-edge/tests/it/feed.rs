//! From a topic to a client, with nothing between but the queue.

use crate::world::{Gateway, PATIENCE, order};
use firth::{Broker, ErrorKind, Message};
use firth::{GroupName, TopicName};
use firth_edge::{Config, TopicFeed};
use firth_engine::Partition;
use firth_engine::facet::TrimTo;
use firth_laws::world::seize;
use firth_testkit::wait;
use std::time::Duration;

#[tokio::test]
async fn what_is_sent_to_the_topic_reaches_the_client_in_order() {
    let broker = Broker::memory();
    broker.create_topic("changes").partitions(2).await.unwrap();
    let producer = broker.producer("changes").await.unwrap();
    let send = async |event: firth_router::event::Event, compact: bool| {
        let payload = if compact { event.to_compact() } else { event.to_json().into() };
        producer.send(Message::new(payload).key(event.message_key())).await.unwrap();
    };
    send(order("acme", "old", 0), true).await;
    let gateway = Gateway::start(Config::default()).await;
    let feed = TopicFeed::start(gateway.edge.hub().clone(), &broker, "changes", "edge-1").await.unwrap();
    let mut ann = gateway.connect("ann").await;
    ann.subscribe("orders", None).await;
    producer.send("this is no event").await.unwrap();
    for n in 1..=20 {
        send(order("acme", "k", n), n % 2 == 0).await;
        send(order("other", "k", n), true).await;
    }
    for n in 1..=20 {
        let event = ann.hear_type("event").await;
        assert_eq!((&event["event"]["key"], &event["event"]["after"]["n"]), (&"k".into(), &n.into()));
    }
    let lag = async || broker.admin().group("changes", "edge-1").await.unwrap().lag();
    wait::until(PATIENCE, "everything settled", async || lag().await == 0).await;
    feed.close().await.unwrap();
    assert!(broker.admin().groups("changes").await.unwrap().is_empty(), "nothing holds back retention");
    drop(ann);
    gateway.close().await;
}

#[tokio::test(start_paused = true)]
async fn two_gateways_cannot_share_a_group() {
    let broker = Broker::memory();
    broker.create_topic("changes").await.unwrap();
    let hub = firth_edge::Hub::start(Config::default()).unwrap();
    let first = TopicFeed::start(hub.clone(), &broker, "changes", "edge").await.unwrap();
    let refused = TopicFeed::start(hub.clone(), &broker, "changes", "edge").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    first.close().await.unwrap();
    TopicFeed::start(hub, &broker, "changes", "edge").await.unwrap().close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn r11_the_group_of_a_gateway_that_crashed_under_a_changing_name_goes_and_others_stay() {
    let broker = Broker::memory();
    broker.create_topic("changes").partitions(2).await.unwrap();
    let admin = broker.admin();
    for group in ["gateway.pod-1", "orders"] {
        admin.create_group("changes", group, firth::StartAt::Newest).await.unwrap();
    }
    let start = async |name: &str| {
        let hub = firth_edge::Hub::start(Config::default()).unwrap();
        TopicFeed::start(hub, &broker, "changes", name).await.unwrap()
    };
    let one = start("gateway.pod-2").await;
    let two = start("gateway.pod-3").await;
    let groups = async || -> Vec<String> {
        admin.groups("changes").await.unwrap().iter().map(ToString::to_string).collect()
    };
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(groups().await.len(), 4, "a gateway that is cut off for a while finds its group");
    tokio::time::sleep(Duration::from_secs(500)).await;
    assert_eq!(groups().await, ["gateway.pod-2", "gateway.pod-3", "orders"]);
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test]
async fn a_feed_whose_topic_is_gone_says_so() {
    let broker = Broker::memory();
    broker.create_topic("changes").await.unwrap();
    let hub = firth_edge::Hub::start(Config::default()).unwrap();
    let mut feed = TopicFeed::start(hub, &broker, "changes", "edge").await.unwrap();
    broker.delete_topic("changes").await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, feed.ended()).await.expect("it ends");
    assert!(ended.is_err());
}

#[tokio::test]
async fn clients_hear_of_events_that_were_removed_before_they_were_read() {
    let broker = Broker::memory();
    broker.create_topic("changes").partitions(1).await.unwrap();
    let producer = broker.producer("changes").await.unwrap();
    let send = async |n: i64| producer.send(Message::new(order("acme", "k", n).to_compact())).await.unwrap();
    let gateway = Gateway::start(Config::default()).await;
    let feed = TopicFeed::start(gateway.edge.hub().clone(), &broker, "changes", "edge").await.unwrap();
    let mut ann = gateway.connect("ann").await;
    ann.subscribe("orders", None).await;
    send(1).await;
    let first = ann.hear_type("event").await;
    let at = Partition::new(TopicName::new("changes").unwrap(), 0);
    let hold = seize(broker.engine(), &at, &GroupName::new("edge").unwrap()).await;
    for n in 2..=10 {
        send(n).await;
    }
    broker.admin().trim("changes", TrimTo::Keep(0), true).await.unwrap();
    send(11).await;
    broker.engine().release(&hold).await.unwrap();
    let told = ann.hear_type("resync-required").await;
    assert_eq!(told["reason"], "source-gap");
    assert_eq!(ann.hear_type("event").await["event"]["after"]["n"], 11);
    // No client resumes across the hole.
    let mut bob = gateway.connect("bob").await;
    let subscribed = bob.subscribe("orders", Some(first["at"].as_str().unwrap())).await;
    assert_eq!(subscribed["resumed"], false);
    drop((ann, bob));
    feed.close().await.unwrap();
    gateway.close().await;
}

//! Positions that hold at every gateway of a topic: clients move between gateways, and gateways
//! restart, without a hole and without an event twice.

use crate::world::{Client, Gateway, PATIENCE, order};
use firth::{Broker, Message, Producer};
use firth_edge::{Config, TopicFeed, Window};
use firth_testkit::{Persist, RedisServer, wait};
use serde_json::Value;

/// A gateway that follows the topic.
async fn gateway(broker: &Broker, name: &str, config: Config) -> (Gateway, TopicFeed) {
    let gateway = Gateway::start(config).await;
    let feed = TopicFeed::start(gateway.edge.hub().clone(), broker, "changes", name).await.unwrap();
    (gateway, feed)
}

/// With several partitions, events go to all of them.
async fn send(producer: &Producer, tenant: &str, n: i64) {
    let event = order(tenant, &format!("k{n}"), n);
    producer.send(Message::new(event.to_json()).key(event.message_key())).await.unwrap();
}

/// The next events have these numbers, in any order if the topic has several partitions; answers
/// where the client stands then.
async fn hear(client: &mut Client, numbers: impl IntoIterator<Item = i64>) -> String {
    let mut at = Value::Null;
    let mut heard = Vec::new();
    let numbers: Vec<i64> = numbers.into_iter().collect();
    for _ in &numbers {
        let event = client.hear().await;
        assert_eq!(event["type"], "event", "{event}");
        heard.push(event["event"]["after"]["n"].as_i64().unwrap());
        at = event["at"].clone();
    }
    let at = at.as_str().unwrap().to_owned();
    if at.matches('.').count() > 1 {
        heard.sort_unstable();
    }
    assert_eq!(heard, numbers, "{at}");
    at
}

async fn resume(gateway: &Gateway, at: &str) -> (Client, Value) {
    let mut client = gateway.connect("ann").await;
    let answer = client.subscribe("orders", Some(at)).await;
    (client, answer)
}

#[tokio::test]
async fn who_comes_from_another_gateway_or_an_earlier_life_misses_nothing_and_gets_nothing_twice() {
    moves(1).await;
}

#[tokio::test]
async fn the_same_holds_with_four_partitions_whatever_the_order_in_which_each_gateway_reads_them() {
    moves(4).await;
}

async fn moves(partitions: u32) {
    let broker = Broker::memory();
    broker.create_topic("changes").partitions(partitions).await.unwrap();
    let producer = broker.producer("changes").await.unwrap();
    for n in 1..=3 {
        send(&producer, "acme", n).await;
    }
    let (one, one_feed) = gateway(&broker, "one", Config::default()).await;
    let mut ann = one.connect("ann").await;
    ann.subscribe("orders", None).await;
    for n in 4..=6 {
        send(&producer, "acme", n).await;
        send(&producer, "other", n).await;
    }
    let at = hear(&mut ann, 4..=6).await;
    drop(ann);
    for n in 7..=20 {
        send(&producer, "acme", n).await;
    }

    // Another gateway, which starts only now.
    let (two, two_feed) = gateway(&broker, "two", Config::default()).await;
    let (mut ann, answer) = resume(&two, &at).await;
    assert_eq!(answer["resumed"], true);
    hear(&mut ann, 7..=20).await;
    send(&producer, "acme", 21).await;
    let at = hear(&mut ann, [21]).await;
    drop(ann);

    // The first one, after a restart.
    one.close().await;
    one_feed.close().await.unwrap();
    for n in 22..=30 {
        send(&producer, "acme", n).await;
    }
    let (one, one_feed) = gateway(&broker, "one", Config::default()).await;
    let (mut ann, answer) = resume(&one, &at).await;
    assert_eq!(answer["resumed"], true);
    hear(&mut ann, 22..=30).await;
    let mut fresh = one.connect("ann").await;
    fresh.subscribe("orders", None).await;
    send(&producer, "acme", 31).await;
    hear(&mut ann, [31]).await;
    hear(&mut fresh, [31]).await;
    drop((ann, fresh));
    for (gateway, feed) in [(one, one_feed), (two, two_feed)] {
        gateway.close().await;
        feed.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_position_that_a_gateway_cannot_cover_is_never_resumed_in_silence() {
    let broker = Broker::memory();
    broker.create_topic("changes").await.unwrap();
    let producer = broker.producer("changes").await.unwrap();
    let (one, one_feed) = gateway(&broker, "one", Config::default()).await;
    let mut ann = one.connect("ann").await;
    ann.subscribe("orders", None).await;
    send(&producer, "acme", 1).await;
    let at = hear(&mut ann, [1]).await;
    drop(ann);
    for n in 2..=6 {
        send(&producer, "acme", n).await;
    }
    let window = Window { events: 3, ..Window::default() };
    let (two, two_feed) = gateway(&broker, "two", Config { window, ..Config::default() }).await;
    let mut ann = two.connect("ann").await;
    ann.say(serde_json::json!({"type": "subscribe", "subscriptions": [{"id": "s", "collection": "orders"}], "after": at})).await;
    assert_eq!(ann.hear().await["reason"], "too-old");
    assert_eq!(ann.hear().await["resumed"], false);
    drop(ann);
    two.close().await;
    two_feed.close().await.unwrap();

    // Another topic of the same name numbers its records anew.
    one.close().await;
    one_feed.close().await.unwrap();
    drop(producer);
    broker.delete_topic("changes").await.unwrap();
    broker.create_topic("changes").await.unwrap();
    let producer = broker.producer("changes").await.unwrap();
    for n in 1..=3 {
        send(&producer, "acme", n).await;
    }
    let (next, next_feed) = gateway(&broker, "one", Config::default()).await;
    let mut ann = next.connect("ann").await;
    ann.say(serde_json::json!({"type": "subscribe", "subscriptions": [{"id": "s", "collection": "orders"}], "after": at})).await;
    assert_eq!(ann.hear().await["reason"], "unknown-epoch");
    drop(ann);
    next.close().await;
    next_feed.close().await.unwrap();
}

/// Redis loses its last moments: a live client, a gateway that stays, and one that starts
/// afterwards.
#[tokio::test]
async fn k04_a_topic_that_went_back_ends_live_clients_and_old_positions_in_resync_required() {
    let server = RedisServer::builder().persist(Persist::Rdb).start().await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    broker.create_topic("changes").partitions(1).await.unwrap();
    let producer = broker.producer("changes").await.unwrap();
    let (stays, feed) = gateway(&broker, "stays", Config::default()).await;
    let mut live = stays.connect("ann").await;
    live.subscribe("orders", None).await;
    send(&producer, "acme", 1).await;
    let survived = hear(&mut live, [1]).await;
    server.order(&["SAVE"]).await;
    for n in 2..=6 {
        send(&producer, "acme", n).await;
    }
    let lost = hear(&mut live, 2..=6).await;
    server.kill().await;
    server.restart().await;
    for n in 11..=20 {
        let event = order("acme", "k", n);
        wait::until(PATIENCE, "the server takes it", async || {
            producer.send(Message::new(event.to_json()).key(event.message_key())).await.is_ok()
        })
        .await;
    }
    assert_eq!(live.hear_type("resync-required").await["reason"], "source-gap");
    let last = async |client: &mut Client| {
        while client.hear_type("event").await["event"]["after"]["n"] != 20 {}
    };
    last(&mut live).await;
    let (comes, other_feed) = gateway(&broker, "comes", Config::default()).await;
    for gateway in [&stays, &comes] {
        let (_client, answer) = resume(gateway, &lost).await;
        assert_eq!(answer["resumed"], false, "{answer}");
    }
    let (mut client, answer) = resume(&comes, &survived).await;
    assert_eq!(answer["resumed"], true, "{answer}");
    last(&mut client).await;
    drop((live, client));
    for feed in [feed, other_feed] {
        feed.close().await.unwrap();
    }
    broker.close().await.unwrap();
}

/// The server comes back with a clock that is behind: what it takes now is earlier than what it
/// lost, and no repetition of it.
#[tokio::test]
async fn k04_what_follows_a_loss_is_no_repetition_where_clocks_differ() {
    let server = RedisServer::builder().persist(Persist::Rdb).start().await;
    let broker = Broker::connect(&server.url()).await.unwrap();
    broker.create_topic("changes").partitions(1).await.unwrap();
    let producer = broker.producer("changes").await.unwrap();
    let (gateway, feed) = gateway(&broker, "one", Config::default()).await;
    let mut live = gateway.connect("ann").await;
    live.subscribe("orders", None).await;
    send(&producer, "acme", 1).await;
    hear(&mut live, [1]).await;
    server.order(&["SAVE"]).await;
    let lost_at = std::time::Instant::now();
    for n in 2..=6 {
        send(&producer, "acme", n).await;
    }
    hear(&mut live, 2..=6).await;
    server.kill().await;
    server.restart().await;
    // A minute behind, and as if that had always been so.
    let time = server.command(&["TIME"]).await;
    let behind = time.items()[0].text().parse::<u64>().unwrap() * 1_000_000 - 60_000_000;
    let key = server.command(&["KEYS", "firth:{*:p"]).await.items()[0].text();
    server.order(&["HSET", &key, "c", &format!("-60000000 {behind}")]).await;
    for n in 11..=20 {
        let event = order("acme", "k", n);
        wait::until(PATIENCE, "the server takes it", async || {
            producer.send(Message::new(event.to_json()).key(event.message_key())).await.is_ok()
        })
        .await;
    }
    assert!(lost_at.elapsed().as_secs() < 60, "the new records are earlier than the lost ones");
    assert_eq!(live.hear_type("resync-required").await["reason"], "source-gap");
    hear(&mut live, 11..=20).await;
    drop(live);
    gateway.close().await;
    feed.close().await.unwrap();
    broker.close().await.unwrap();
}

//! Laws of the WebSocket side.

use crate::slow;
use crate::world::{Gateway, PATIENCE, keys, order, tenant};
use firth_edge::auth::{Collections, Keys};
use firth_edge::{Config, Limits};
use firth_testkit::wait;
use futures_util::SinkExt;
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Error, Message};

#[tokio::test]
async fn a_client_gets_its_events_and_no_other_tenants() {
    let gateway = Gateway::start(Config::default()).await;
    let mut ann = gateway.connect("ann").await;
    let mut eve = gateway.connect("eve").await;
    ann.say(json!({"type": "subscribe", "ref": 7, "subscriptions": [
        {"id": "big", "collection": "orders", "filter": "doc.n > 5"},
        {"id": "one", "collection": "orders", "document": "1"},
        {"id": "cond", "collection": "orders", "conditions": [{"field": "n", "op": "==", "value": 9}]},
    ]}))
    .await;
    assert_eq!(ann.hear().await["ref"], 7);
    eve.subscribe("orders", None).await;
    gateway.publish(order("acme", "1", 1));
    gateway.publish(order("acme", "2", 2));
    gateway.publish(order("acme", "3", 9));
    gateway.publish(order("other", "4", 4));
    let first = ann.hear().await;
    assert_eq!((&first["subs"], &first["event"]["after"]), (&json!(["one"]), &json!({"n": 1})));
    let second = ann.hear().await;
    assert_eq!(second["event"]["key"], "3");
    assert_eq!(second["subs"].as_array().unwrap().len(), 2);
    let theirs = eve.hear().await;
    assert_eq!(theirs["event"]["key"], "4", "and nothing before it");
    ann.say(json!({"type": "unsubscribe", "subscriptions": ["big", "one", "cond"]})).await;
    assert_eq!(ann.hear().await["type"], "unsubscribed");
    drop((ann, eve));
    gateway.close().await;
}

#[tokio::test]
async fn who_comes_back_resumes_behind_what_it_saw() {
    let gateway = Gateway::start(Config::default()).await;
    let mut ann = gateway.connect("ann").await;
    ann.subscribe("orders", None).await;
    gateway.publish(order("acme", "k", 1));
    let at = ann.hear().await["at"].as_str().unwrap().to_owned();
    drop(ann);
    for n in 2..=5 {
        gateway.publish(order("acme", "k", n));
    }
    let mut ann = gateway.connect("ann").await;
    let answer = ann.subscribe("orders", Some(&at)).await;
    assert_eq!((&answer["resumed"], &answer["at"]), (&json!(true), &json!(at)));
    gateway.publish(order("acme", "k", 6));
    for n in 2..=6 {
        assert_eq!(ann.hear().await["event"]["after"]["n"], n);
    }
    let mut bob = gateway.connect("bob").await;
    bob.say(json!({"type": "subscribe", "subscriptions": [{"id": "x", "collection": "orders"}], "after": "00000000000000ff:3"}))
        .await;
    assert_eq!(bob.hear().await["type"], "resync-required");
    drop((ann, bob));
    gateway.close().await;
}

#[tokio::test]
async fn without_a_good_token_or_origin_nobody_gets_in() {
    let config = Config { auth_within: Duration::from_millis(300), ..Config::default() };
    let gateway = Gateway::start(config).await;
    for first in [
        json!({"type": "auth", "version": 1, "token": "nobody"}),
        json!({"type": "auth", "version": 1}),
        json!({"type": "heartbeat"}),
    ] {
        let mut client = gateway.open(&[]).await;
        client.say(first).await;
        assert_eq!(client.hear().await["code"], "unauthorized");
        assert_eq!(client.closed().await, 4401);
    }
    let mut wrong = gateway.open(&[]).await;
    wrong.say(json!({"type": "auth", "version": 2, "token": "ann"})).await;
    let error = wrong.hear().await;
    assert_eq!((&error["field"], &error["limit"]), (&json!("version"), &json!(1)));
    let mut silent = gateway.open(&[]).await;
    assert_eq!(silent.closed().await, 4401, "who says nothing is sent away");
    match gateway.try_open(&[("origin", "https://evil.example.org")]).await {
        Err(Error::Http(response)) => assert_eq!(response.status(), 403),
        other => panic!("a strange page came in: {:?}", other.map(|_| ())),
    }
    let mut known =
        gateway.open(&[("origin", "https://app.example.com"), ("authorization", "Bearer ann")]).await;
    known.say(json!({"type": "auth", "version": 1})).await;
    assert_eq!(known.hear().await["type"], "hello");
    drop(known);
    gateway.close().await;
}

#[tokio::test]
async fn mistakes_are_answered_with_field_and_limit_and_the_connection_lives() {
    let limits = Limits { subscriptions: 2, message_bytes: 1000, ..Limits::default() };
    let gateway = Gateway::start(Config { limits, ..Config::default() }).await;
    let mut bob = gateway.connect("bob").await;
    let request = |id: &str, collection: &str| json!({"id": id, "collection": collection});
    let cases = [
        (
            json!({"type": "subscribe", "ref": 1, "subscriptions": [request("a", "secrets")]}),
            "forbidden",
            "collection",
        ),
        (
            json!({"type": "subscribe", "ref": 1, "subscriptions": [request("a", "orders"), request("b", "orders"), request("c", "orders")]}),
            "limit",
            "subscriptions",
        ),
        (
            json!({"type": "subscribe", "ref": 1, "subscriptions": [{"id": "a", "collection": "orders", "filter": "n =="}]}),
            "invalid",
            "filter",
        ),
        (
            json!({"type": "subscribe", "ref": 7, "subscriptions": [{"id": "a", "colection": "orders"}]}),
            "invalid",
            "message",
        ),
        (
            json!({"type": "subscribe", "ref": 8, "subscriptions": [request("a", "orders")], "after": "x"}),
            "invalid",
            "message",
        ),
        (json!({"type": "dance"}), "invalid", "message"),
        (json!([1]), "invalid", "message"),
    ];
    for (message, code, field) in cases {
        bob.say(message.clone()).await;
        let answer = bob.hear().await;
        assert_eq!((&answer["code"], &answer["field"]), (&json!(code), &json!(field)), "{message}: {answer}");
        assert_eq!(answer["ref"], message["ref"]);
    }
    bob.0.send(Message::Binary(vec![1, 2].into())).await.unwrap();
    assert_eq!(bob.hear().await["code"], "invalid");
    bob.subscribe("orders", None).await;
    bob.say(json!({"type": "auth", "version": 1, "token": "x".repeat(2000)})).await;
    assert_eq!(bob.closed().await, 1009, "too large a message");
    drop(bob);
    gateway.close().await;
}

#[tokio::test]
async fn who_says_too_much_is_sent_away() {
    let limits = Limits { messages_per_second: 1, ..Limits::default() };
    let gateway = Gateway::start(Config { limits, ..Config::default() }).await;
    let mut ann = gateway.connect("ann").await;
    for _ in 0..20 {
        ann.say(json!({"type": "heartbeat"})).await;
    }
    assert_eq!(ann.hear().await["code"], "rate");
    assert_eq!(ann.closed().await, 1008);
    drop(ann);
    gateway.close().await;
}

#[tokio::test]
async fn connections_are_limited_by_address_and_given_back() {
    let limits = Limits { per_address: 2, ..Limits::default() };
    let gateway = Gateway::start(Config { limits, ..Config::default() }).await;
    let first = gateway.connect("ann").await;
    let second = gateway.connect("ann").await;
    match gateway.try_open(&[]).await {
        Err(Error::Http(response)) => assert_eq!(response.status(), 429),
        other => panic!("a third connection: {:?}", other.map(|_| ())),
    }
    drop(first);
    wait::until(PATIENCE, "a connection given back", async || gateway.try_open(&[]).await.is_ok()).await;
    drop(second);
    gateway.close().await;
}

#[tokio::test]
async fn heartbeats_carry_the_position_and_the_silent_are_sent_away() {
    let config = Config {
        heartbeat: Duration::from_millis(100),
        silence: Duration::from_secs(2),
        ..Config::default()
    };
    let gateway = Gateway::start(config).await;
    let mut ann = gateway.connect("ann").await;
    ann.say(json!({"type": "subscribe", "subscriptions": [{"id": "x", "collection": "other"}]})).await;
    let before = ann.hear_type("subscribed").await["at"].clone();
    gateway.publish(order("acme", "k", 1));
    wait::until(PATIENCE, "a heartbeat that is further on", async || {
        ann.hear_type("heartbeat").await["at"] != before
    })
    .await;
    // A socket that answers no ping any more: its client is not polled.
    wait::until(PATIENCE, "the silent client gone", async || gateway.edge.hub().status().connections == 0)
        .await;
    drop(ann);
    gateway.close().await;
}

#[tokio::test]
async fn a_token_that_is_taken_away_ends_its_connections_alone() {
    let gateway = Gateway::start(Config::default()).await;
    let mut ann = gateway.connect("ann").await;
    let mut eve = gateway.connect("eve").await;
    gateway.edge.set_keys(Keys::default().with_token("eve", tenant("other"), Some("eve"), Collections::ALL));
    assert_eq!(ann.closed().await, 4401);
    eve.subscribe("orders", None).await;
    gateway.edge.set_keys(keys());
    drop((ann, gateway.connect("ann").await, eve));
    gateway.close().await;
}

#[tokio::test]
async fn presence_comes_and_goes() {
    let gateway = Gateway::start(Config::default()).await;
    let request = json!({"type": "subscribe", "subscriptions": [{"id": "room", "collection": "orders", "presence": true}]});
    let mut ann = gateway.connect("ann").await;
    ann.say(request.clone()).await;
    assert_eq!(ann.hear_type("presence").await["members"], json!(["ann"]));
    let mut bob = gateway.connect("bob").await;
    bob.say(request).await;
    assert_eq!(bob.hear_type("presence").await["members"], json!(["ann", "bob"]));
    assert_eq!(ann.hear_type("presence").await["count"], 2);
    drop(bob);
    assert_eq!(ann.hear_type("presence").await["members"], json!(["ann"]));
    drop(ann);
    gateway.close().await;
}

#[tokio::test]
async fn a_closing_gateway_says_when_to_come_back() {
    let gateway = Gateway::start(Config::default()).await;
    let mut ann = gateway.connect("ann").await;
    ann.subscribe("orders", None).await;
    gateway.publish(order("acme", "k", 1));
    let closing = tokio::spawn(gateway.close());
    assert_eq!(ann.hear().await["type"], "event", "what waited comes first");
    let bye = ann.hear().await;
    assert_eq!((&bye["type"], &bye["code"]), (&json!("bye"), &json!(1012)));
    assert!(bye["retry_ms"].as_u64().unwrap() < 5000);
    assert_eq!(ann.closed().await, 1012);
    drop(ann);
    closing.await.unwrap();
}

#[tokio::test]
async fn what_a_client_says_together_with_its_opening_is_heard() {
    let gateway = Gateway::start(slow::config()).await;
    let mut socket = TcpStream::connect(gateway.address).await.unwrap();
    let mut opening = b"GET /v1/ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        .to_vec();
    let words = br#"{"type":"auth","version":1,"token":"ann"}"#;
    // A mask of zeros leaves the text as it is.
    opening.extend([0x81, 0x80 | u8::try_from(words.len()).unwrap(), 0, 0, 0, 0]);
    opening.extend(words);
    socket.write_all(&opening).await.unwrap();
    let mut heard = Vec::new();
    let hello = async {
        while !heard.windows(5).any(|part| part == b"hello") {
            assert!(socket.read_buf(&mut heard).await.unwrap() > 0, "{}", String::from_utf8_lossy(&heard));
        }
    };
    tokio::time::timeout(PATIENCE, hello).await.unwrap();
    drop(socket);
    gateway.close().await;
}

/// Pongs are written by another than most events.
#[tokio::test]
async fn pings_are_answered_between_events_and_a_close_with_a_close() {
    let gateway = Gateway::start(slow::config()).await;
    let mut stranger = gateway.open(&[]).await;
    stranger.0.send(Message::Ping(vec![7].into())).await.unwrap();
    assert_eq!(stranger.next().await, Some(Message::Pong(vec![7].into())), "before it has said who it is");
    let mut ann = gateway.connect("ann").await;
    ann.subscribe("orders", None).await;
    let mut pongs = 0_u8;
    let mut events = 0_i64;
    for n in 1..=100 {
        gateway.publish(order("acme", "k", 2 * n - 1));
        ann.0.send(Message::Ping(vec![u8::try_from(n).unwrap()].into())).await.unwrap();
        gateway.publish(order("acme", "k", 2 * n));
        while i64::from(pongs) < n || events < 2 * n {
            match ann.next().await.unwrap() {
                Message::Pong(data) => {
                    pongs += 1;
                    assert_eq!(*data, [pongs]);
                }
                Message::Text(text) => {
                    events += 1;
                    let message: serde_json::Value = serde_json::from_str(&text).unwrap();
                    assert_eq!(message["event"]["after"]["n"], events);
                }
                other => panic!("{other:?}"),
            }
        }
    }
    ann.0.send(Message::Close(None)).await.unwrap();
    assert_eq!(ann.next().await, Some(Message::Close(None)));
    drop((ann, stranger));
    gateway.close().await;
}

/// A client that stops reading, while another goes on; then it reads again.
#[tokio::test]
async fn a_slow_client_hurts_nobody_and_hears_what_it_missed() {
    let gateway = Gateway::start(slow::config()).await;
    let mut late = gateway.connect("ann").await;
    late.subscribe("orders", None).await;
    let mut quick = gateway.connect("bob").await;
    quick.subscribe("orders", None).await;
    let big = "x".repeat(20_000);
    let mut sent = 0_u64;
    // Until the kernel's buffers are full and the slow one's queue runs over.
    while gateway.edge.hub().status().accounting.gap_marked == 0 {
        sent += 1;
        let mut event = order("acme", "k", 0);
        event.after =
            Some(firth_router::event::Document::from_value(&json!({"n": sent, "big": big})).unwrap());
        gateway.publish(event);
        assert_eq!(
            quick.hear_type("event").await["event"]["after"]["n"],
            sent,
            "the quick one misses nothing"
        );
        assert!(sent < 100_000, "the slow one never was slow");
    }
    let mut seen = 0_u64;
    let mut missed = 0_u64;
    while seen + missed < sent {
        let message = late.hear().await;
        match message["type"].as_str().unwrap() {
            "event" => {
                seen += 1;
                assert_eq!(
                    message["event"]["after"]["n"].as_u64(),
                    Some(seen + missed),
                    "in order, but for the gap"
                );
            }
            "gap" => missed += message["events"].as_u64().unwrap(),
            other => panic!("{other}"),
        }
    }
    assert!(missed > 0 && seen + missed == sent);
    wait::until(PATIENCE, "all written", async || gateway.edge.hub().status().accounting.queued == 0).await;
    assert!(gateway.edge.hub().status().accounting.balance());
    drop((late, quick));
    gateway.close().await;
}

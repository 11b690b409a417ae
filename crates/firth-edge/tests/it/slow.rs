//! Clients that do not read: what each policy promises, over real sockets.

use crate::world::{Client, Gateway, PATIENCE, order};
use firth_edge::{Config, Limits};
use firth_router::event::{Document, Event};
use firth_testkit::wait;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

const BIG: usize = 20_000;

/// An event that soon fills the kernel's buffers.
fn big(key: &str, n: u64) -> Event {
    let mut event = order("acme", key, 0);
    event.after = Some(Document::from_value(&json!({"n": n, "big": "x".repeat(BIG)})).unwrap());
    event
}

/// No client is given up for being stuck or silent, nor hears a heartbeat, however long a starved
/// machine takes.
pub(crate) fn config() -> Config {
    let limits = Limits { queued_events: 50, ..Limits::default() };
    let long = Duration::from_secs(600);
    let longer = Duration::from_secs(1200);
    let times = Config { auth_within: long, write_within: long, heartbeat: long, ..Config::default() };
    Config { limits, silence: longer, ..times }
}

async fn connect(gateway: &Gateway, slow: &str) -> Client {
    let mut client = gateway.open(&[]).await;
    client.say(json!({"type": "auth", "version": 1, "token": "ann", "slow": slow})).await;
    assert_eq!(client.hear().await["type"], "hello");
    client.subscribe("orders", None).await;
    client
}

/// Publishes to these keys in turn until the gateway says that the client is slow; answers how
/// many.
async fn flood(gateway: &Gateway, keys: u64, is_slow: impl Fn(&firth_edge::Accounting) -> bool) -> u64 {
    for sent in 1..100_000 {
        gateway.publish(big(&format!("k{}", sent % keys), sent));
        let status = gateway.edge.hub().status();
        if is_slow(&status.accounting) {
            return sent;
        }
        assert!(status.connections > 0, "the client is gone");
        tokio::task::yield_now().await;
    }
    panic!("the client never was slow");
}

#[tokio::test]
async fn who_is_cut_comes_back_and_misses_nothing() {
    let gateway = Gateway::start(config()).await;
    let mut slow = connect(&gateway, "cut").await;
    let sent = flood(&gateway, 3, |accounting| accounting.left_behind > 0).await;
    let mut seen = 0;
    let mut at = String::new();
    let mut code = None;
    while let Some(message) = slow.next().await {
        match message {
            Message::Text(text) => {
                let message: Value = serde_json::from_str(&text).unwrap();
                if message["type"] == "event" {
                    seen += 1;
                    assert_eq!(message["event"]["after"]["n"], seen, "in order");
                    at = message["at"].as_str().unwrap().to_owned();
                }
            }
            Message::Close(frame) => {
                code = frame.map(|frame| u16::from(frame.code));
                break;
            }
            _ => {}
        }
    }
    assert_eq!(code, Some(1013));
    assert!(seen < sent, "it was slow");
    let mut back = gateway.connect("ann").await;
    assert_eq!(back.subscribe("orders", Some(&at)).await["resumed"], true);
    for n in seen + 1..=sent {
        assert_eq!(back.hear_type("event").await["event"]["after"]["n"], n);
    }
    drop((slow, back));
    gateway.close().await;
}

#[tokio::test]
async fn who_conflates_gets_the_newest_of_each_document_and_how_many_it_stands_for() {
    let gateway = Gateway::start(config()).await;
    let mut slow = connect(&gateway, "conflate").await;
    let sent = flood(&gateway, 3, |accounting| accounting.conflated > 100).await;
    let mut told = 0;
    let mut newest = BTreeMap::new();
    while told < sent {
        let message = slow.hear().await;
        assert_eq!(message["type"], "event", "three documents always fit: {}", message["type"]);
        told += 1 + message["replaced"].as_u64().unwrap_or(0);
        let (key, n) =
            (message["event"]["key"].to_string(), message["event"]["after"]["n"].as_u64().unwrap());
        assert!(newest.insert(key, n).is_none_or(|older| older < n), "no document goes back");
    }
    let last: Vec<u64> = newest.into_values().collect();
    assert_eq!(last.iter().max(), Some(&sent));
    assert!(last.len() == 3 && last.iter().all(|n| *n + 3 > sent), "{last:?} of {sent}");
    drop(slow);
    gateway.close().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up_after_a_while() {
    let gateway = Gateway::start(Config { write_within: Duration::from_secs(1), ..config() }).await;
    let stuck = connect(&gateway, "gap").await;
    flood(&gateway, 3, |accounting| accounting.gap_marked + accounting.left_behind > 0).await;
    let hub = gateway.edge.hub();
    wait::until(PATIENCE, "it is given up", async || hub.status().connections == 0).await;
    assert!(hub.status().accounting.left_behind > 0 && hub.status().accounting.balance());
    drop(stuck);
    gateway.close().await;
}

/// One read of a topic may hold more than a connection's whole room.
#[tokio::test]
async fn a_large_burst_alone_makes_nobody_slow() {
    let gateway = Gateway::start(Config { limits: Limits::default(), ..config() }).await;
    let mut ann = gateway.connect("ann").await;
    ann.subscribe("orders", None).await;
    let mut burst = gateway.edge.hub().burst();
    let padding = "x".repeat(2000);
    for n in 0..1500 {
        let document = Document::from_value(&json!({ "n": n, "padding": padding })).unwrap();
        burst.publish(order("acme", "k", n).with_after(document)).unwrap();
    }
    drop(burst);
    for n in 0..1500 {
        let event = ann.hear().await;
        assert_eq!((&event["type"], &event["event"]["after"]["n"]), (&json!("event"), &json!(n)));
    }
    drop(ann);
    gateway.close().await;
}

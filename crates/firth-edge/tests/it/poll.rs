//! Laws of the long poll.

use crate::world::{Gateway, PATIENCE, order};
use firth_edge::Config;
use firth_testkit::wait;
use serde_json::{Value, json};

async fn poll(gateway: &Gateway, body: Value) -> (u16, Value) {
    let (status, body) =
        gateway.http("POST", "/v1/poll", &[("authorization", "Bearer ann")], &body.to_string()).await;
    (status, serde_json::from_str(&body).unwrap())
}

fn ask(after: Option<&Value>, wait_ms: u64) -> Value {
    let mut ask = json!({"subscriptions": [{"id": "mine", "collection": "orders"}], "wait_ms": wait_ms});
    if let Some(after) = after {
        ask["after"] = after.clone();
    }
    ask
}

#[tokio::test]
async fn poll_after_poll_sees_every_event_once_and_in_order() {
    let gateway = Gateway::start(Config::default()).await;
    let (status, begin) = poll(&gateway, ask(None, 60_000)).await;
    assert_eq!((status, &begin["messages"]), (200, &json!([])), "it says at once where the client begins");
    let mut at = begin["at"].clone();
    let mut seen = Vec::new();
    let mut sent = 0;
    for round in 0..5 {
        for _ in 0..round {
            sent += 1;
            gateway.publish(order("acme", "k", sent));
        }
        let (_, answer) = poll(&gateway, ask(Some(&at), 10)).await;
        at = answer["at"].clone();
        seen.extend(
            answer["messages"]
                .as_array()
                .unwrap()
                .iter()
                .map(|message| message["event"]["after"]["n"].as_i64().unwrap()),
        );
    }
    assert_eq!(seen, (1..=sent).collect::<Vec<_>>());
    gateway.close().await;
}

#[tokio::test]
async fn a_waiting_poll_answers_as_soon_as_there_is_something() {
    let gateway = Gateway::start(Config::default()).await;
    let (_, begin) = poll(&gateway, ask(None, 0)).await;
    let publish = async {
        wait::until(PATIENCE, "a waiting poll", async || gateway.edge.hub().status().subscriptions == 1)
            .await;
        gateway.publish(order("other", "k", 1));
        gateway.publish(order("acme", "k", 2));
    };
    let ((_, answer), ()) = tokio::join!(poll(&gateway, ask(Some(&begin["at"]), 60_000)), publish);
    assert_eq!(answer["messages"][0]["event"]["after"]["n"], 2);
    gateway.close().await;
}

#[tokio::test]
async fn a_poll_from_nowhere_must_start_anew_and_presence_is_refused() {
    let gateway = Gateway::start(Config::default()).await;
    let (_, answer) = poll(&gateway, ask(Some(&json!("0000000000000001:9")), 60_000)).await;
    assert_eq!(answer["messages"][0]["type"], "resync-required");
    let (_, next) = poll(&gateway, ask(Some(&answer["at"]), 0)).await;
    assert_eq!(next["messages"], json!([]));
    let request = json!({"subscriptions": [{"id": "x", "collection": "orders", "presence": true}]});
    let (status, error) = poll(&gateway, request).await;
    assert_eq!((status, &error["field"]), (400, &json!("presence")));
    gateway.close().await;
}

//! What keeps strangers and floods out: hosts, tokens that run out, rates, idle connections.

use crate::world::{Gateway, PATIENCE, keys, tenant};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use firth_edge::auth::{Keys, Origins};
use firth_edge::{Config, Limits};
use firth_testkit::wait;
use futures_util::SinkExt;
use ring::hmac;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Bytes, Message};

const SECRET: &[u8] = b"a secret that is long enough for HS256";

/// A token that a gateway accepts for this long: clocks may differ by 30 seconds.
fn token(lasts: Duration) -> String {
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + lasts - Duration::from_secs(30);
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({"tenant": "acme", "sub": "ann", "exp": end.as_secs_f64()});
    let signed = format!("{}.{}", encode(json!({"alg": "HS256"})), encode(claims));
    let mark = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mark))
}

#[tokio::test]
async fn r18_a_token_that_runs_out_on_a_live_socket_ends_it_unless_it_is_renewed() {
    let gateway = Gateway::start(Config::default()).await;
    gateway.edge.set_keys(Keys::default().with_secret("k", SECRET).unwrap());
    let short = token(Duration::from_secs(3));
    let mut ends = gateway.connect(&short).await;
    let mut goes_on = gateway.connect(&short).await;
    goes_on.say(json!({"type": "auth", "version": 1, "token": token(Duration::from_secs(300))})).await;
    ends.subscribe("orders", None).await;
    let bye = ends.hear_type("bye").await;
    assert_eq!((&bye["code"], &bye["reason"]), (&json!(4401), &json!("the token has run out")));
    assert_eq!(ends.closed().await, 4401);
    assert_eq!(goes_on.subscribe("orders", None).await["type"], "subscribed", "it lives");
    let mut late = gateway.open(&[]).await;
    late.say(json!({"type": "auth", "version": 1, "token": short})).await;
    assert_eq!(late.closed().await, 4401, "and no client comes in with it any more");
    drop((ends, goes_on, late));
    gateway.close().await;
}

#[tokio::test]
async fn r16_a_page_whose_name_leads_here_is_refused_by_a_gateway_without_tokens() {
    let gateway = Gateway::start(Config::default()).await;
    gateway.edge.set_keys(Keys::open(tenant("acme")));
    let own = gateway.address.to_string();
    for (host, origin, expected) in [
        ("evil.com:7272", Some("http://evil.com:7272"), 403),
        ("evil.com:7272", None, 403),
        (&*own, Some("http://evil.com:7272"), 403),
        (&*own, None, 200),
        ("localhost:1", Some("http://localhost:1"), 200),
    ] {
        for path in ["/v1/poll", "/v1/ticket"] {
            let origin = origin.map(|origin| format!("origin: {origin}\r\n")).unwrap_or_default();
            let body = r#"{"subscriptions":[{"id":"a","collection":"orders"}]}"#;
            let (status, answer) = gateway.ask_as(host, path, &origin, body).await;
            assert_eq!(status, expected, "{path} {host} {origin}: {answer}");
        }
    }
    // With tokens a strange name does no harm, unless names are given.
    gateway.edge.set_keys(keys());
    let ann = "authorization: Bearer ann\r\n";
    assert_eq!(gateway.ask_as("edge.example.com", "/v1/ticket", ann, "").await.0, 200);
    gateway.close().await;
    let named = Origins::same_host().with_hosts(["edge.example.com"]);
    let gateway = Gateway::start_with(Config::default(), named).await;
    assert_eq!(gateway.ask_as("edge.example.com:443", "/v1/ticket", ann, "").await.0, 200);
    let (status, answer) = gateway.ask_as("evil.com", "/v1/ticket", ann, "").await;
    assert!(status == 403 && answer.contains("--host"), "{answer}");
    gateway.close().await;
}

#[tokio::test]
async fn r20_a_flood_of_pings_ends_the_connection() {
    let limits = Limits { messages_per_second: 2, ..Limits::default() };
    let gateway = Gateway::start(Config { limits, ..Config::default() }).await;
    let mut ann = gateway.connect("ann").await;
    let mut stranger = gateway.open(&[]).await;
    for client in [&mut ann, &mut stranger] {
        for _ in 0..100 {
            if client.0.send(Message::Ping(Bytes::new())).await.is_err() {
                break;
            }
        }
    }
    assert_eq!(ann.hear_type("error").await["code"], "rate");
    assert_eq!(ann.closed().await, 1008);
    assert_eq!(stranger.closed().await, 1008);
    drop((ann, stranger));
    gateway.close().await;
}

#[tokio::test]
async fn r20_connections_that_say_nothing_are_counted_and_bounded() {
    let limits = Limits { connections: 10, per_address: 10, ..Limits::default() };
    let gateway = Gateway::start(Config { limits, ..Config::default() }).await;
    let mut idle = Vec::new();
    for _ in 0..60 {
        idle.push(TcpStream::connect(gateway.address).await.unwrap());
    }
    let mut open = Vec::new();
    let is_open = async |stream: &mut TcpStream| {
        let read = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut [0; 1])).await;
        read.is_err()
    };
    wait::until(PATIENCE, "those above the limit are closed", async || {
        open.clear();
        for stream in &mut idle {
            open.push(is_open(stream).await);
        }
        open.iter().filter(|open| **open).count() == 10 + 1 + 16
    })
    .await;
    drop(idle);
    // The places come back.
    wait::until(PATIENCE, "a client comes in", async || gateway.try_open(&[]).await.is_ok()).await;
    gateway.close().await;
}

//! Laws of server-sent events.

use crate::world::{Gateway, PATIENCE, order};
use firth_edge::Config;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpStream;

/// A stream of events, as a browser reads it.
struct Events(Lines<BufReader<TcpStream>>);

impl Events {
    async fn open(gateway: &Gateway, query: &str, headers: &[(&str, &str)]) -> Self {
        let stream = gateway.request("GET", &format!("/v1/events?{query}"), headers, "").await;
        Self(BufReader::new(stream).lines())
    }

    async fn line(&mut self) -> Option<String> {
        tokio::time::timeout(PATIENCE, self.0.next_line()).await.expect("a line in time").ok().flatten()
    }

    /// The next message and its id.
    async fn next(&mut self) -> Option<(Value, Option<String>)> {
        let mut id = None;
        loop {
            let line = self.line().await?;
            if let Some(text) = line.strip_prefix("id: ") {
                id = Some(text.to_owned());
            }
            if let Some(text) = line.strip_prefix("data: ") {
                return Some((serde_json::from_str(text).unwrap(), id));
            }
        }
    }
}

#[tokio::test]
async fn a_browser_resumes_by_the_last_id_alone() {
    let gateway = Gateway::start(Config::default()).await;
    let token = ("authorization", "Bearer ann");
    let mut events = Events::open(&gateway, "collection=orders", &[token]).await;
    assert_eq!(events.next().await.unwrap().0["type"], "hello");
    assert_eq!(events.next().await.unwrap().0["type"], "subscribed");
    gateway.publish(order("acme", "k", 1));
    let (event, id) = events.next().await.unwrap();
    assert_eq!((&event["subs"], &event["event"]["after"]["n"]), (&json!(["orders"]), &json!(1)));
    drop(events);
    gateway.publish(order("acme", "k", 2));
    gateway.publish(order("other", "k", 3));
    let id = id.unwrap();
    let mut events = Events::open(&gateway, "collection=orders", &[token, ("last-event-id", &id)]).await;
    assert_eq!(events.next().await.unwrap().0["type"], "hello");
    assert_eq!(events.next().await.unwrap().0["resumed"], true);
    assert_eq!(events.next().await.unwrap().0["event"]["after"]["n"], 2);
    gateway.publish(order("acme", "k", 4));
    assert_eq!(events.next().await.unwrap().0["event"]["after"]["n"], 4);
    let closing = tokio::spawn(gateway.close());
    assert_eq!(events.next().await.unwrap().0["type"], "bye");
    let mut told = false;
    while let Some(line) = events.line().await {
        told |= line.starts_with("retry: ");
    }
    assert!(told, "when to come back");
    closing.await.unwrap();
}

/// The answer to the subscription has an id, or who is cut off before its first event would begin
/// anew in silence.
#[tokio::test]
async fn a_browser_that_is_cut_off_before_its_first_event_misses_nothing() {
    let gateway = Gateway::start(Config::default()).await;
    let token = ("authorization", "Bearer ann");
    let mut events = Events::open(&gateway, "collection=orders", &[token]).await;
    assert_eq!(events.next().await.unwrap().1, None, "hello");
    let (subscribed, id) = events.next().await.unwrap();
    assert_eq!(subscribed["at"].as_str(), id.as_deref());
    drop(events);
    gateway.publish(order("acme", "k", 1));
    let id = id.unwrap();
    let query = "collection=orders";
    let mut events = Events::open(&gateway, query, &[token, ("last-event-id", &id)]).await;
    assert_eq!(events.next().await.unwrap().0["type"], "hello");
    assert_eq!(events.next().await.unwrap().0["resumed"], true);
    assert_eq!(events.next().await.unwrap().0["event"]["after"]["n"], 1);
    drop(events);
    gateway.close().await;
}

#[tokio::test]
async fn a_ticket_opens_a_stream_once() {
    let gateway = Gateway::start(Config::default()).await;
    let (status, _) = gateway.http("POST", "/v1/ticket", &[], "").await;
    assert_eq!(status, 401);
    let (status, body) = gateway.http("POST", "/v1/ticket", &[("authorization", "bearer eve")], "").await;
    assert_eq!(status, 200);
    let body: Value = serde_json::from_str(&body).unwrap();
    let query = format!(
        "ticket={}&subscriptions=[%7B%22id%22:%22x%22,%22collection%22:%22orders%22%7D]",
        body["ticket"].as_str().unwrap()
    );
    let mut events = Events::open(&gateway, &query, &[]).await;
    assert_eq!(events.next().await.unwrap().0["type"], "hello");
    assert_eq!(events.next().await.unwrap().0["subscriptions"], json!(["x"]));
    let (status, body) = gateway.http("GET", &format!("/v1/events?{query}"), &[], "").await;
    assert_eq!(
        (status, serde_json::from_str::<Value>(&body).unwrap()["field"].clone()),
        (401, json!("ticket"))
    );
    drop(events);
    gateway.close().await;
}

#[tokio::test]
async fn wrong_requests_and_strange_pages_are_refused() {
    let gateway = Gateway::start(Config::default()).await;
    let bob: &[(&str, &str)] = &[("authorization", "Bearer bob")];
    let evil = &[bob[0], ("origin", "https://evil.org")];
    let cases = [
        ("/v1/events", bob, 400),
        ("/v1/events?collection=orders&colour=red", bob, 400),
        ("/v1/events?collection=orders&after=here", bob, 400),
        ("/v1/events?collection=secrets", bob, 403),
        ("/v1/events?collection=orders", &[], 401),
        ("/v1/events?collection=orders", evil, 403),
        ("/v1/ws", bob, 400),
        ("/", bob, 404),
    ];
    for (path, headers, expected) in cases {
        let (status, body) = gateway.http("GET", path, headers, "").await;
        assert_eq!(status, expected, "{path}: {body}");
    }
    let page = [("origin", "https://app.example.com"), ("access-control-request-method", "POST")];
    assert_eq!(gateway.http("OPTIONS", "/v1/poll", &page, "").await.0, 204);
    assert_eq!(gateway.http("GET", "/health/ready", &[], "").await.0, 200);
    assert!(gateway.http("GET", "/v1/firth.js", &[], "").await.1.contains("export class Firth"));
    assert!(gateway.http("GET", "/v1/example", &[], "").await.1.contains("example.js"));
    gateway.close().await;
}

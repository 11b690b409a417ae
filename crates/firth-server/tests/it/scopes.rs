//! Which scope each call asks for: every method and route of the document against one table.

use crate::talk::call;
use crate::world::{Server, firth, stdout};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

/// What a call asks for: nothing, any token, or one of these scopes (`admin` always does). `any` is
/// a token that covers the topic, with any scopes.
const TABLE: [(&str, &str, &str); 92] = [
    ("GET", "/health", "nothing"),
    ("GET", "/health/live", "nothing"),
    ("GET", "/health/ready", "nothing"),
    ("GET", "/openapi.json", "nothing"),
    ("GET", "/metrics", "observe"),
    ("GET", "/v1", "any"),
    ("GET", "/v1/dead", "any"),
    ("GET", "/v1/engine", "observe"),
    ("GET", "/v1/events", "observe"),
    // Its sender signs each request; no token is asked for.
    ("POST", "/v1/hooks/{source}", "nothing"),
    ("GET", "/v1/sources", "observe"),
    ("GET", "/v1/sources/{source}", "observe"),
    ("DELETE", "/v1/sources/{source}", "admin"),
    ("GET", "/v1/sources/{source}/doctor", "admin"),
    ("POST", "/v1/sources/{source}/pause", "admin"),
    ("POST", "/v1/sources/{source}/resume", "admin"),
    ("POST", "/v1/sources/{source}/restart", "admin"),
    ("POST", "/v1/sources/{source}/snapshot", "admin"),
    ("GET", "/v1/stats", "observe"),
    ("GET", "/v1/backup", "admin"),
    ("GET", "/v1/check", "admin"),
    ("GET", "/v1/channels/{channel}", "consume"),
    ("POST", "/v1/channels/{channel}", "produce"),
    ("GET", "/v1/claims", "any"),
    ("GET", "/v1/claims/{service}", "any"),
    ("PUT", "/v1/claims/{service}", "admin"),
    ("GET", "/v1/claims/{service}/offers", "any"),
    ("POST", "/v1/claims/{service}/offers", "produce"),
    ("DELETE", "/v1/claims/{service}/offers/{offer}", "produce"),
    ("POST", "/v1/claims/{service}/offers/{offer}/release", "admin"),
    ("GET", "/v1/claims/{service}/takeovers", "any"),
    ("GET", "/v1/claims/{service}/workers", "any"),
    ("PUT", "/v1/claims/{service}/workers/{worker}", "consume"),
    ("DELETE", "/v1/claims/{service}/workers/{worker}", "consume"),
    ("POST", "/v1/claims/{service}/workers/{worker}/claim", "consume"),
    ("POST", "/v1/claims/{service}/workers/{worker}/poll", "consume"),
    ("POST", "/v1/claims/{service}/workers/{worker}/renew", "consume"),
    ("POST", "/v1/claims/{service}/workers/{worker}/seize", "admin"),
    ("POST", "/v1/claims/{service}/workers/{worker}/settle", "consume"),
    ("GET", "/v1/claims/{service}/workers/{worker}/stream", "consume"),
    ("POST", "/v1/claims/{service}/workers/{worker}/data/{topic}/read", "consume"),
    ("POST", "/v1/claims/{service}/workers/{worker}/data/{topic}/settle", "consume"),
    ("GET", "/v1/claims/{service}/workers/{worker}/data/{topic}/stream", "consume"),
    ("GET", "/v1/routing", "observe"),
    ("POST", "/v1/routing/explain", "route"),
    ("GET", "/v1/routing/clients", "observe"),
    ("GET", "/v1/routing/gateways", "observe"),
    ("GET", "/v1/routing/gateways/{gateway}", "observe"),
    ("PUT", "/v1/routing/gateways/{gateway}", "route"),
    ("DELETE", "/v1/routing/gateways/{gateway}", "route"),
    ("POST", "/v1/routing/gateways/{gateway}/clients", "route"),
    ("POST", "/v1/routing/gateways/{gateway}/heartbeat", "route"),
    ("GET", "/v1/routing/subscriptions", "route"),
    ("GET", "/v1/routing/subscriptions/{tenant}/{subscription}", "route"),
    ("PUT", "/v1/routing/subscriptions/{tenant}/{subscription}", "route"),
    ("DELETE", "/v1/routing/subscriptions/{tenant}/{subscription}", "route"),
    ("POST", "/v1/routing/subscriptions/{tenant}/{subscription}/heartbeat", "route"),
    ("GET", "/v1/topics", "any"),
    ("GET", "/v1/topics/{topic}", "any"),
    ("PUT", "/v1/topics/{topic}", "admin"),
    ("PATCH", "/v1/topics/{topic}", "admin"),
    ("DELETE", "/v1/topics/{topic}", "admin"),
    ("POST", "/v1/topics/{topic}/adopt", "admin"),
    ("POST", "/v1/topics/{topic}/trim", "admin"),
    ("GET", "/v1/topics/{topic}/delayed", "any"),
    ("GET", "/v1/topics/{topic}/delayed/messages", "consume"),
    ("POST", "/v1/topics/{topic}/delayed/messages/cancel", "admin"),
    ("POST", "/v1/topics/{topic}/delayed/messages/deliver", "admin"),
    ("GET", "/v1/topics/{topic}/records", "consume"),
    ("POST", "/v1/topics/{topic}/records", "produce"),
    ("GET", "/v1/topics/{topic}/dead", "consume"),
    ("GET", "/v1/topics/{topic}/dead/count", "consume"),
    ("GET", "/v1/topics/{topic}/dead/stream", "consume"),
    ("POST", "/v1/topics/{topic}/dead/replay", "admin"),
    ("POST", "/v1/topics/{topic}/dead/delete", "admin"),
    ("POST", "/v1/topics/{topic}/dead/edit", "admin"),
    ("GET", "/v1/topics/{topic}/groups", "any"),
    ("GET", "/v1/topics/{topic}/groups/{group}", "any"),
    ("PUT", "/v1/topics/{topic}/groups/{group}", "consume"),
    ("DELETE", "/v1/topics/{topic}/groups/{group}", "admin"),
    ("POST", "/v1/topics/{topic}/groups/{group}/reset", "admin"),
    ("POST", "/v1/topics/{topic}/groups/{group}/reset/preview", "any"),
    ("GET", "/v1/topics/{topic}/groups/{group}/in_flight", "any"),
    ("GET", "/v1/topics/{topic}/groups/{group}/members", "any"),
    ("GET", "/v1/topics/{topic}/groups/{group}/pending", "any"),
    ("GET", "/v1/topics/{topic}/groups/{group}/policy", "any"),
    ("PUT", "/v1/topics/{topic}/groups/{group}/policy", "admin"),
    ("DELETE", "/v1/topics/{topic}/groups/{group}/policy", "admin"),
    ("POST", "/v1/topics/{topic}/groups/{group}/partitions/{partition}/release", "admin"),
    ("POST", "/v1/topics/{topic}/groups/{group}/fetch", "consume"),
    ("POST", "/v1/topics/{topic}/groups/{group}/settle", "consume"),
    ("GET", "/v1/topics/{topic}/groups/{group}/stream", "consume"),
];
const SCOPES: [&str; 5] = ["produce", "consume", "observe", "route", "admin"];

/// The status of a call; its answer, which may be endless, is not read.
fn status(server: &Server, (method, path): (&str, &str), token: Option<&str>) -> u16 {
    let names = ["channel", "service", "offer", "worker", "topic", "group", "gateway", "tenant", "source"];
    let path = names.iter().fold(path.to_owned(), |path, name| path.replace(&format!("{{{name}}}"), "none"));
    let path = path.replace("{subscription}", "none").replace("{partition}", "0");
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let mut stream = TcpStream::connect(server.address).unwrap();
    let at = server.address;
    // A body that no call takes, so that nothing happens.
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {at}\r\n{token}Content-Type: text/plain\r\nContent-Length: 1\r\n\r\n-"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn t04_every_call_of_the_document_asks_for_the_scope_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    let made = SCOPES.map(|scope| stdout(&crate::world::run(&["token", "--name", scope, "--scopes", scope])));
    let tokens = made.each_ref().map(|made| made.lines().next().unwrap().split('=').nth(1).unwrap());
    std::fs::write(&file, made.concat()).unwrap();
    let mut command = firth();
    command.args(["serve", "--engine", "memory:", "--set", "limits.failures=100000", "--token-file"]);
    let server = Server::start(command.arg(&file), None);

    let document = call(server.address, "GET", "/openapi.json", &[], b"").expect(200).json();
    let paths = document["paths"].as_object().unwrap().iter();
    let calls = paths.flat_map(|(path, item)| {
        item.as_object().unwrap().keys().map(move |method| (method.to_uppercase(), path.clone()))
    });
    let described: BTreeSet<_> = calls.collect();
    let known: BTreeSet<_> =
        TABLE.into_iter().map(|(method, path, _)| (method.to_owned(), path.to_owned())).collect();
    assert_eq!(described, known, "the document and the table differ");

    for (method, path, need) in TABLE {
        let guest = status(&server, (method, path), None);
        assert_eq!(guest != 401, need == "nothing", "{method} {path} without a token: {guest}");
        for (scope, token) in SCOPES.iter().zip(tokens) {
            let status = status(&server, (method, path), Some(token));
            let is_allowed = matches!(need, "nothing" | "any") || need == *scope || *scope == "admin";
            assert_eq!(status != 403, is_allowed, "{method} {path} with the scope {scope}: {status}");
        }
    }
}

//! `firth gateway`: a topic on a real Redis, a client of the gateway, and the end.

use crate::guarding::curl;
use crate::world::{PATIENCE, Server, Value, firth, run, stdout};
use firth_testkit::wait::until;
use firth_testkit::{Certs, Flavor, RedisServer};
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

/// Server-sent events, read as they come.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::ask(address, "collection=orders")
    }

    /// With this query.
    pub(crate) fn ask(address: SocketAddr, query: &str) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET /v1/events?{query} HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream ended");
            if let Some(text) = line.strip_prefix("data: ") {
                return serde_json::from_str(text).unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_brings_what_is_produced_to_a_client_and_leaves_nothing_behind() {
    let redis = RedisServer::start(Flavor::Redis).await;
    let engine = redis.url();
    stdout(&run(&["topic", "create", "changes", "--engine", &engine]));
    let args = ["gateway", "--engine", &engine, "--topic", "changes", "--tenant", "acme"];
    let gateway = Server::start(firth().args(args), None);
    let mut events = Events::open(gateway.address);
    assert_eq!(events.next()["type"], "hello");
    assert_eq!(events.next()["type"], "subscribed");
    for tenant in ["other", "acme"] {
        let event = format!(
            r#"{{"op":"insert","tenant":"{tenant}","collection":"orders","key":"1","after":{{"n":7}}}}"#
        );
        stdout(&run(&["produce", "changes", &event, "--engine", &engine]));
    }
    let event = events.next();
    assert_eq!((&event["type"], &event["event"]["after"]["n"]), (&"event".into(), &7.into()));
    let controls = [
        r#"{"op":"truncate","tenant":"other","collection":"orders"}"#,
        r#"{"op":"truncate","tenant":"acme","collection":"items"}"#,
        r#"{"op":"resync","collection":"orders","reason":"the slot is lost"}"#,
    ];
    for control in controls {
        stdout(&run(&["produce", "changes", control, "--engine", &engine]));
    }
    let told = events.next();
    assert_eq!((&told["type"], &told["reason"]), (&"resync-required".into(), &"source".into()));
    assert_eq!((&told["collection"], &told["message"]), (&"orders".into(), &"the slot is lost".into()));
    gateway.signal(Signal::SIGTERM);
    assert_eq!(events.next()["type"], "bye");
    assert!(gateway.ended());
    let groups = stdout(&run(&["group", "list", "changes", "--engine", &engine, "--json"]));
    assert!(!groups.contains("gateway"), "nothing holds back retention: {groups}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_with_a_certificate_speaks_https_and_takes_a_new_one_over() {
    let dir = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(Flavor::Redis).await;
    let first = Certs::new();
    let second = Certs::new();
    let engine = redis.url();
    let cert = dir.path().join("cert.pem");
    let key = dir.path().join("key.pem");
    let put = |certs: &Certs| {
        std::fs::copy(certs.server_key_path(), &key).unwrap();
        std::fs::copy(certs.server_cert_path(), &cert).unwrap();
    };
    put(&first);
    stdout(&run(&["topic", "create", "changes", "--engine", &engine]));
    let mut command = firth();
    command.args(["gateway", "--engine", &engine, "--topic", "changes", "--tenant", "acme", "--tls-cert"]);
    let gateway = Server::start(command.arg(&cert).arg("--tls-key").arg(&key), None);
    assert!(curl(&gateway, &first.ca_path(), "/health/ready").status.success());
    assert!(!curl(&gateway, &second.ca_path(), "/health/ready").status.success(), "a stranger's certificate");
    put(&second);
    gateway.signal(Signal::SIGHUP);
    until(PATIENCE, "the new certificate is used", async || {
        curl(&gateway, &second.ca_path(), "/health/ready").status.success()
    })
    .await;
    assert!(gateway.terminate());
}

#[test]
fn a_public_address_needs_keys_and_wrong_keys_are_not_shown() {
    let public =
        run(&["gateway", "--engine", "memory:", "--topic", "x", "--tenant", "a", "--listen", "0.0.0.0:0"]);
    let error = String::from_utf8_lossy(&public.stderr).into_owned();
    assert!(public.status.code() == Some(2) && error.contains("--key-file"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    std::fs::write(&file, "hs256 k planted-secret").unwrap();
    let wrong =
        run(&["gateway", "--engine", "memory:", "--topic", "x", "--key-file", file.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        wrong.status.code() == Some(2) && error.contains("line 1") && !error.contains("planted"),
        "{error}"
    );
}

//! Gateways that others have written the libraries of, in Python: they take our wire and we take
//! their answers.

use crate::chaos::books_close;
use crate::node::{ByDocument, World};
use crate::world::*;
use firth_router::config::{NatsAck, Protocol};
use firth_router::deliver::{
    Bearer, Deliverer, GrpcDeliverer, GrpcOptions, HttpDeliverer, HttpOptions, NatsDeliverer, NatsOptions,
    SigningKey, Tls,
};
use firth_testkit::{Certs, NatsServer, Peer};
use std::path::Path;
use std::time::Duration;

/// None of these tests is about time.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Starts a gateway of `tests/peers/`, and waits for its first line.
pub(crate) async fn start(script: &str, args: &[&str]) -> (Peer, serde_json::Value) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(script);
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let mut peer = Peer::start(&script, &args);
    until(PATIENCE * 3, "the peer listens", async || !peer.lines().is_empty()).await;
    let first = serde_json::from_str(&peer.lines()[0]).unwrap();
    (peer, first)
}

/// What a peer has seen, as its last line tells it.
pub(crate) fn documents(peer: &mut Peer) -> ByDocument {
    let last: serde_json::Value = serde_json::from_str(peer.lines().last().unwrap()).unwrap();
    serde_json::from_value(last["documents"].clone()).unwrap_or_default()
}

async fn nats_py(ack: NatsAck, mode: &str) {
    let server = NatsServer::start().await;
    let mut world = World::memory().await;
    let subject = format!("{}.g", firth_router::wire::NATS_SUBJECT);
    let (mut peer, _) = start("nats_gateway.py", &[&server.url(), &subject, mode]).await;
    world.register("g", server.url(), Protocol::Nats).await;
    let options = NatsOptions { ack, ..NatsOptions::new("node", TIMEOUT) };
    world.options.routing.delivery.retry.initial_delay = Duration::from_millis(10);
    let node = world.node_with(NatsDeliverer::new(options)).await;
    world.send(100).await;
    world.arrives("nats-py", || documents(&mut peer)).await;
    world.settled().await;
    assert_eq!(world.dead().await, 0);
    books_close(&node, 100).await;
    node.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_py_answers_our_requests() {
    nats_py(NatsAck::Reply, "reply").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_py_takes_what_we_store_in_jetstream() {
    nats_py(NatsAck::JetStream, "jetstream").await;
}

/// The arguments of a peer with mutual TLS, our side of it, and the scheme.
fn mutual_tls(certs: Option<&Certs>) -> (Vec<String>, Option<Tls>, &'static str) {
    let Some(certs) = certs else { return (Vec::new(), None, "http") };
    let files = [certs.ca_path(), certs.server_cert_path(), certs.server_key_path()];
    let identity = (certs.client_cert_pem().as_bytes(), certs.client_key_pem().as_bytes());
    let tls = Tls::from_pem(Some(certs.ca_pem().as_bytes()), Some(identity)).unwrap();
    (files.map(|file| file.display().to_string()).to_vec(), Some(tls), "https")
}

/// Events reach a peer that refuses at first, each once and in order. Answers its last line.
async fn all_arrive(
    mut peer: Peer,
    endpoint: String,
    wire: Protocol,
    deliverer: impl Deliverer,
) -> serde_json::Value {
    let mut world = World::memory().await;
    world.register("g", endpoint, wire).await;
    let node = world.node_with(deliverer).await;
    world.send(100).await;
    world.arrives("the peer", || documents(&mut peer)).await;
    world.settled().await;
    assert_eq!(world.dead().await, 0);
    books_close(&node, 100).await;
    node.close().await.unwrap();
    serde_json::from_str(peer.lines().last().unwrap()).unwrap()
}

fn bearer() -> Option<Bearer> {
    Some(Bearer::new("token"))
}

async fn hypercorn(certs: Option<&Certs>) {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let (files, tls, scheme) = mutual_tls(certs);
    let args: Vec<&str> = [secret].into_iter().chain(files.iter().map(String::as_str)).collect();
    let (peer, first) = start("http2_gateway.py", &args).await;
    let options = HttpOptions {
        node: "node".to_owned(),
        timeout: TIMEOUT,
        bearer: bearer(),
        signing: Some(SigningKey::parse(secret).unwrap()),
    };
    let deliverer = HttpDeliverer::new(options);
    let deliverer = tls.into_iter().fold(deliverer, HttpDeliverer::with_tls);
    let last =
        all_arrive(peer, format!("{scheme}://127.0.0.1:{}", first["port"]), Protocol::Http, deliverer).await;
    assert_eq!((&last["version"], &last["token"]), (&"2".into(), &"Bearer token".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hypercorn_takes_signed_batches_over_http2() {
    hypercorn(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hypercorn_takes_signed_batches_over_mutual_tls() {
    hypercorn(Some(&Certs::new())).await;
}

fn grpc() -> GrpcOptions {
    GrpcOptions { node: "node".to_owned(), timeout: TIMEOUT, bearer: bearer() }
}

async fn grpcio(certs: Option<&Certs>, is_unary: bool) {
    let (files, tls, scheme) = mutual_tls(certs);
    let proto = format!("{}/proto", env!("CARGO_MANIFEST_DIR"));
    let args: Vec<&str> = [proto.as_str()].into_iter().chain(files.iter().map(String::as_str)).collect();
    let (peer, first) = start("grpc_gateway.py", &args).await;
    let deliverer = tls.into_iter().fold(GrpcDeliverer::new(grpc()), GrpcDeliverer::with_tls);
    let deliverer = if is_unary { deliverer.unary() } else { deliverer };
    let last =
        all_arrive(peer, format!("{scheme}://127.0.0.1:{}", first["port"]), Protocol::Grpc, deliverer).await;
    assert_eq!((&last["gateway"], &last["token"]), (&"g".into(), &"Bearer token".into()));
    assert_eq!(last["unary"], is_unary);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpcio_with_code_from_our_proto_takes_unary_calls() {
    grpcio(None, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpcio_takes_unary_calls_over_mutual_tls() {
    grpcio(Some(&Certs::new()), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpcio_with_code_from_our_proto_takes_the_stream() {
    grpcio(None, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpcio_takes_the_stream_over_mutual_tls() {
    grpcio(Some(&Certs::new()), false).await;
}

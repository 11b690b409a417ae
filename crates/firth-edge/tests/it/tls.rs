//! The same gateway over TLS: tokens, origins and tenants hold there, too, and a certificate can be
//! replaced.

use crate::world::{Gateway, PATIENCE, order};
use firth_edge::Config;
use firth_testkit::Certs;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};

type Socket = WebSocketStream<TlsStream<TcpStream>>;

fn certificate(certs: &Certs) -> Arc<ServerConfig> {
    let identity = certs.server();
    let chain = vec![CertificateDer::from_pem_slice(identity.cert_pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    Arc::new(config.with_single_cert(chain, key).unwrap())
}

async fn secure(gateway: &Gateway, certs: &Certs) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certs.ca_pem().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let connector = TlsConnector::from(Arc::new(config.with_no_client_auth()));
    let stream = TcpStream::connect(gateway.address).await?;
    connector.connect("localhost".try_into().unwrap(), stream).await
}

async fn open(gateway: &Gateway, certs: &Certs, origin: &str) -> Result<Socket, Error> {
    let stream = secure(gateway, certs).await?;
    let mut request = format!("wss://localhost:{}/v1/ws", gateway.address.port()).into_client_request()?;
    request.headers_mut().insert("origin", origin.parse().unwrap());
    Ok(tokio_tungstenite::client_async(request, stream).await?.0)
}

async fn say(socket: &mut Socket, message: Value) {
    socket.send(Message::Text(message.to_string().into())).await.unwrap();
}

async fn hear(socket: &mut Socket) -> Value {
    let next = tokio::time::timeout(PATIENCE, socket.next()).await.expect("a message in time");
    match next.unwrap().unwrap() {
        Message::Text(text) => serde_json::from_str(&text).unwrap(),
        other => panic!("no text but {other:?}"),
    }
}

/// A client of this token that has subscribed to orders.
async fn subscribed(gateway: &Gateway, certs: &Certs, token: &str) -> Socket {
    let mut socket = open(gateway, certs, "https://app.example.com").await.unwrap();
    say(&mut socket, json!({"type": "auth", "version": 1, "token": token})).await;
    assert_eq!(hear(&mut socket).await["type"], "hello");
    say(&mut socket, json!({"type": "subscribe", "subscriptions": [{"id": "s", "collection": "orders"}]}))
        .await;
    assert_eq!(hear(&mut socket).await["type"], "subscribed");
    socket
}

#[tokio::test]
async fn tokens_origins_and_tenants_hold_over_tls_and_the_certificate_can_be_replaced() {
    let first = Certs::new();
    let second = Certs::new();
    let current = Arc::new(Mutex::new(certificate(&first)));
    let shown = current.clone();
    let gateway = Gateway::start_tls(Config::default(), move || shown.lock().unwrap().clone()).await;
    let (mut ann, mut eve) =
        (subscribed(&gateway, &first, "ann").await, subscribed(&gateway, &first, "eve").await);

    // Many at once, and one that is larger than a record of TLS.
    for n in 1..=200 {
        gateway.publish(order("acme", "k", n));
    }
    let big = json!({"n": 201, "text": "ü".repeat(40_000)});
    let mut large = order("acme", "k", 201);
    large.after = Some(firth_router::event::Document::from_value(&big).unwrap());
    gateway.publish(large);
    gateway.publish(order("other", "k", 7));
    for n in 1..=201 {
        assert_eq!(hear(&mut ann).await["event"]["after"]["n"], n);
    }
    assert_eq!(hear(&mut eve).await["event"]["after"]["n"], 7, "nothing of another tenant");

    match open(&gateway, &first, "https://evil.example.com").await {
        Err(Error::Http(response)) => assert_eq!(response.status(), 403),
        other => panic!("a strange page came in: {:?}", other.map(|_| ())),
    }
    let mut nobody = open(&gateway, &first, "https://app.example.com").await.unwrap();
    say(&mut nobody, json!({"type": "auth", "version": 1, "token": "guess"})).await;
    assert_eq!(hear(&mut nobody).await["code"], "unauthorized");
    assert!(open(&gateway, &second, "https://app.example.com").await.is_err(), "a stranger's certificate");

    let mut plain = TcpStream::connect(gateway.address).await.unwrap();
    plain.write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "plain HTTP was answered");

    *current.lock().unwrap() = certificate(&second);
    let late = subscribed(&gateway, &second, "ann").await;
    gateway.publish(order("acme", "k", 300));
    assert_eq!(hear(&mut ann).await["event"]["after"]["n"], 300, "connections that stand stay");
    drop((ann, eve, nobody, late));
    gateway.close().await;
}

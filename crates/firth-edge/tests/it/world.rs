//! A gateway on a port of the system's choice, and clients for it.

use firth_edge::auth::{Collections, Keys, Origins};
use firth_edge::{Config, Edge, Hub};
use firth_router::Tenant;
use firth_router::event::{Document, Event, Operation};
use futures_util::future::BoxFuture;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::rustls::ServerConfig;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

/// Tokens `ann` (tenant acme), `bob` (acme, orders alone) and `eve` (tenant other).
pub(crate) fn keys() -> Keys {
    Keys::default()
        .with_token("ann", tenant("acme"), Some("ann"), Collections::ALL)
        .with_token("bob", tenant("acme"), Some("bob"), Collections::of(["orders"]))
        .with_token("eve", tenant("other"), Some("eve"), Collections::ALL)
}

pub(crate) fn order(tenant_name: &str, key: &str, n: i64) -> Event {
    let document = Document::from_value(&json!({"n": n})).unwrap();
    Event::new(Operation::Update, tenant(tenant_name), "orders", key).with_after(document)
}

fn origins() -> Origins {
    Origins::of(["https://app.example.com"])
}

/// The status and the whole body.
async fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut answer))
        .await
        .expect("answered in time")
        .unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub(crate) struct Gateway {
    pub(crate) edge: Edge,
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Gateway {
    pub(crate) async fn start(config: Config) -> Self {
        Self::start_at(config, "127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(config: Config, address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let serve = |edge: Edge, listener, stop| edge.serve(listener, stop, PATIENCE);
        Self::run(config, origins(), listener, serve)
    }

    /// For pages of these origins.
    pub(crate) async fn start_with(config: Config, origins: Origins) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let serve = |edge: Edge, listener, stop| edge.serve(listener, stop, PATIENCE);
        Self::run(config, origins, listener, serve)
    }

    pub(crate) async fn start_tls(
        config: Config,
        certificate: impl Fn() -> Arc<ServerConfig> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::run(config, origins(), listener, |edge, listener, stop| {
            edge.serve_tls(listener, certificate, stop, PATIENCE)
        })
    }

    fn run<F: Future<Output = ()> + Send + 'static>(
        config: Config,
        origins: Origins,
        listener: TcpListener,
        serve: impl FnOnce(Edge, TcpListener, BoxFuture<'static, ()>) -> F,
    ) -> Self {
        let edge = Edge::new(Hub::start(config).unwrap(), keys(), origins);
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(serve(edge.clone(), listener, Box::pin(shutdown)));
        Self { edge, address, stop: Some(stop), task }
    }

    pub(crate) fn publish(&self, event: Event) {
        self.edge.hub().publish(event).unwrap();
    }

    /// Closes, and checks that nothing was dropped without a word.
    pub(crate) async fn close(mut self) {
        let _ = self.stop.take().unwrap().send(());
        tokio::time::timeout(PATIENCE, self.task).await.expect("it closes in time").unwrap();
        let status = self.edge.hub().status();
        assert_eq!((status.connections, status.subscriptions), (0, 0));
        assert!(status.accounting.balance() && status.accounting.queued == 0, "{status:?}");
    }

    pub(crate) async fn connect(&self, token: &str) -> Client {
        let mut client = self.open(&[]).await;
        client.say(json!({"type": "auth", "version": 1, "token": token})).await;
        assert_eq!(client.hear().await["type"], "hello");
        client
    }

    pub(crate) async fn open(&self, headers: &[(&'static str, &str)]) -> Client {
        self.try_open(headers).await.unwrap()
    }

    pub(crate) async fn try_open(
        &self,
        headers: &[(&'static str, &str)],
    ) -> Result<Client, tokio_tungstenite::tungstenite::Error> {
        let mut request = format!("ws://{}/v1/ws", self.address).into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        tokio_tungstenite::connect_async(request).await.map(|(socket, _)| Client(socket))
    }

    /// One HTTP request; the status, and the whole body.
    pub(crate) async fn http(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String) {
        answer(self.request(method, path, headers, body).await).await
    }

    /// A request to this host, with more headers.
    pub(crate) async fn ask_as(&self, host: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        answer(stream).await
    }

    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }
}

/// A WebSocket client.
pub(crate) struct Client(pub(crate) WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    pub(crate) async fn say(&mut self, message: Value) {
        self.0.send(Message::Text(message.to_string().into())).await.unwrap();
    }

    /// The next message of any kind.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        let next = tokio::time::timeout(PATIENCE, self.0.next()).await.expect("a message in time");
        next.and_then(Result::ok)
    }

    /// The next text.
    pub(crate) async fn hear(&mut self) -> Value {
        loop {
            match self.next().await {
                Some(Message::Text(text)) => return serde_json::from_str(&text).unwrap(),
                Some(Message::Ping(_) | Message::Pong(_)) => {}
                other => panic!("no text but {other:?}"),
            }
        }
    }

    /// The next text of this type, passing over other types.
    pub(crate) async fn hear_type(&mut self, kind: &str) -> Value {
        loop {
            let message = self.hear().await;
            if message["type"] == kind {
                return message;
            }
        }
    }

    /// The code with which the gateway closes, passing over texts.
    pub(crate) async fn closed(&mut self) -> u16 {
        loop {
            match self.next().await {
                Some(Message::Close(Some(frame))) => return frame.code.into(),
                Some(Message::Text(_) | Message::Ping(_) | Message::Pong(_)) => {}
                other => panic!("not closed with a code: {other:?}"),
            }
        }
    }

    pub(crate) async fn subscribe(&mut self, collection: &str, after: Option<&str>) -> Value {
        let mut message = json!({"type": "subscribe", "ref": 1, "subscriptions": [{"id": "mine", "collection": collection}]});
        if let Some(after) = after {
            message["after"] = json!(after);
        }
        self.say(message).await;
        self.hear_type("subscribed").await
    }
}

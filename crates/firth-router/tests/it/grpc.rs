//! Delivery by unary gRPC, to a server of a few lines that does not offer the stream.

use crate::chaos::books_close;
use crate::node::World;
use crate::world::*;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use firth_router::config::Protocol;
use firth_router::deliver::{Bearer, ByProtocol, GrpcDeliverer, GrpcOptions};
use firth_router::node::Router;
use firth_router::registry::Gateway;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EventBatch {
    #[prost(string, tag = "1")]
    gateway_id: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) events: Vec<StreamerEvent>,
    #[prost(uint64, tag = "4")]
    pub(crate) batch: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamerEvent {
    #[prost(string, tag = "1")]
    subscription_id: String,
    #[prost(string, tag = "5")]
    pub(crate) document_id: String,
    #[prost(bytes = "vec", tag = "6")]
    pub(crate) payload: Vec<u8>,
    #[prost(int64, tag = "7")]
    pub(crate) seq: i64,
    #[prost(int32, tag = "8")]
    pub(crate) partition_id: i32,
    #[prost(string, repeated, tag = "9")]
    subscription_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeliveryAck {
    #[prost(int32, tag = "1")]
    pub(crate) accepted: i32,
    #[prost(int32, tag = "2")]
    pub(crate) rejected: i32,
}

#[derive(Default)]
struct Server {
    numbers: Mutex<Vec<u64>>,
    answers: Mutex<Vec<u32>>,
}

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

impl Server {
    /// A server that first answers the given statuses, and then takes everything.
    async fn start(statuses: &[u32]) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = Arc::new(Self { answers: Mutex::new(statuses.to_vec()), ..Self::default() });
        let own = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let own = Arc::clone(&own);
                let service = service_fn(move |request| Arc::clone(&own).handle(request));
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
        (server, endpoint)
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
        if request.uri().path() == "/StreamerService/StreamEvents" {
            // UNIMPLEMENTED
            return Ok(answer(Vec::new(), 12));
        }
        assert_eq!(request.uri().path(), "/StreamerService/DeliverEvents");
        assert_eq!(request.headers()["content-type"], "application/grpc");
        assert_eq!(request.headers()["te"], "trailers");
        assert_eq!(request.headers()["authorization"], "Bearer token");
        let mut body = request.into_body().collect().await?.to_bytes();
        let flag = body.get_u8();
        let length = body.get_u32() as usize;
        assert_eq!((flag, length), (0, body.len()));
        let batch = EventBatch::decode(body).unwrap();
        let next = self.answers.lock().unwrap().pop();
        if let Some(status) = next {
            return Ok(answer(Vec::new(), status));
        }
        for event in &batch.events {
            assert_eq!(event.subscription_ids, [event.subscription_id.as_str()]);
            let document: serde_json::Value = serde_json::from_slice(&event.payload).unwrap();
            self.numbers.lock().unwrap().push(document["n"].as_u64().unwrap());
        }
        let ack = DeliveryAck { accepted: i32::try_from(batch.events.len()).unwrap(), rejected: 0 };
        Ok(answer(ack.encode_to_vec(), 0))
    }
}

fn answer(message: Vec<u8>, status: u32) -> Response<Body> {
    let mut frame = BytesMut::new();
    if status == 0 {
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.len()).unwrap());
        frame.put_slice(&message);
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.to_string().parse().unwrap());
    let frames = vec![Ok(Frame::data(frame.freeze())), Ok(Frame::trailers(trailers))];
    let mut response = Response::new(StreamBody::new(stream::iter(frames)));
    response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    response
}

async fn node(world: &World) -> Router {
    let timeout = Duration::from_secs(5);
    let options = GrpcOptions { node: "node".to_owned(), timeout, bearer: Some(Bearer::new("token")) };
    let wires = ByProtocol::new(Protocol::Http).with(Protocol::Grpc, GrpcDeliverer::new(options));
    let registry = world.registry.clone();
    let options = world.options.clone();
    Router::start(&world.broker, registry, Arc::new(wires), options).await.unwrap()
}

async fn register(world: &World, endpoint: String) {
    let mut gateway = Gateway::new(gateway("g"), endpoint);
    (gateway.protocol, gateway.ttl_seconds) = (Some(Protocol::Grpc), 0);
    world.registry.register_gateway(gateway).await.unwrap();
    world.registry.register(wish("w", "doc.all", "g")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_speaks_grpc_gets_its_events_whatever_it_answers_first() {
    let mut world = World::memory().await;
    // Taken from the back: exhausted, unavailable, and a content error, which refuses each
    // document's first event once.
    let (server, endpoint) = Server::start(&[3, 14, 8]).await;
    register(&world, endpoint).await;
    let node = node(&world).await;
    world.send(50).await;
    until(PATIENCE, "all arrived", async || server.numbers.lock().unwrap().len() >= 50).await;
    world.settled().await;
    let mut numbers = server.numbers.lock().unwrap().clone();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (1..=50).collect::<Vec<_>>());
    assert!(server.answers.lock().unwrap().is_empty());
    assert_eq!(world.dead().await, 0);
    books_close(&node, 50).await;
    node.close().await.unwrap();
}

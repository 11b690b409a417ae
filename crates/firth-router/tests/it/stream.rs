//! The lasting gRPC call: answers by number, breaks and resumption, pauses, gateways that fall
//! silent.

use crate::chaos::books_close;
use crate::grpc::{DeliveryAck, EventBatch};
use crate::node::{ByDocument, World};
use crate::world::*;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use firth_router::config::Protocol;
use firth_router::deliver::{Bearer, GrpcDeliverer, GrpcOptions};
use futures_util::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

#[derive(Clone, PartialEq, Message)]
struct BatchAck {
    #[prost(uint64, tag = "1")]
    batch: u64,
    #[prost(message, optional, tag = "2")]
    ack: Option<DeliveryAck>,
    #[prost(uint32, tag = "3")]
    retry_after_ms: u32,
    #[prost(uint32, tag = "4")]
    window: u32,
}

/// What the server does on one call; after the last of them it takes everything.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    /// Answers some batches, takes some more in without a word, and breaks the call.
    Breaks { answers: usize, unanswered: usize },
    /// Ends the call with this status when the first batch comes.
    Ends(u32),
    /// Wants a pause for the first batch, and then at most two at a time.
    Pauses,
    /// Never says a word.
    Silent,
}

#[derive(Default)]
struct Seen {
    places: BTreeSet<(i32, i64)>,
    documents: ByDocument,
    /// The numbers of batches, by call.
    calls: Vec<Vec<u64>>,
    unary: usize,
}

#[derive(Default)]
struct Server {
    seen: Mutex<Seen>,
    moods: Mutex<VecDeque<Mood>>,
}

type Piece = Result<Frame<Bytes>, &'static str>;

impl Server {
    async fn start(moods: &[Mood]) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = Arc::new(Self { moods: Mutex::new(moods.iter().copied().collect()), ..Self::default() });
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

    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, &'static str>>, hyper::Error> {
        assert_eq!(request.headers()["authorization"], "Bearer token");
        let is_unary = request.uri().path() == "/StreamerService/DeliverEvents";
        let (answers, pieces) = mpsc::unbounded_channel::<Piece>();
        let pieces = stream::unfold(pieces, async |mut pieces| Some((pieces.recv().await?, pieces)));
        let mut response = Response::new(StreamBody::new(pieces.boxed()).boxed_unsync());
        response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        if is_unary {
            let mut body = BytesMut::from(request.into_body().collect().await?.to_bytes());
            let ack = self.take(next(&mut body).unwrap());
            self.seen.lock().unwrap().unary += 1;
            answers.send(Ok(frame(&ack))).unwrap();
            answers.send(Ok(trailers(0))).unwrap();
        } else {
            tokio::spawn(self.stream(request.into_body(), answers));
        }
        Ok(response)
    }

    async fn stream(self: Arc<Self>, mut body: Incoming, answers: mpsc::UnboundedSender<Piece>) {
        let mood = self.moods.lock().unwrap().pop_front();
        let call = {
            let mut seen = self.seen.lock().unwrap();
            seen.calls.push(Vec::new());
            seen.calls.len() - 1
        };
        let mut arrived = BytesMut::new();
        let mut count = 0;
        while let Some(Ok(piece)) = body.frame().await {
            arrived.extend_from_slice(piece.data_ref().map_or(&[], |data| data));
            while let Some(batch) = next(&mut arrived) {
                count += 1;
                let number = batch.batch;
                self.seen.lock().unwrap().calls[call].push(number);
                match mood {
                    Some(Mood::Silent) => continue,
                    Some(Mood::Ends(code)) => return drop(answers.send(Ok(trailers(code)))),
                    Some(Mood::Breaks { answers, .. }) if count > answers => {}
                    Some(Mood::Pauses) if count == 1 => {
                        let pause =
                            BatchAck { batch: number, retry_after_ms: 5, window: 2, ..BatchAck::default() };
                        drop(answers.send(Ok(frame(&pause))));
                        continue;
                    }
                    _ => {
                        let ack = Some(self.take(batch));
                        drop(answers.send(Ok(frame(&BatchAck {
                            batch: number,
                            ack,
                            ..BatchAck::default()
                        }))));
                        continue;
                    }
                }
                // The gateway takes the events in and sends no answer.
                self.take(batch);
                if let Some(Mood::Breaks { answers: some, unanswered }) = mood
                    && count == some + unanswered
                {
                    // A reset would overtake answers that are not written yet.
                    let end = if some > 0 { Ok(trailers(14)) } else { Err("broken on purpose") };
                    return drop(answers.send(end));
                }
            }
        }
    }

    /// Takes each event in once.
    fn take(&self, batch: EventBatch) -> DeliveryAck {
        let mut seen = self.seen.lock().unwrap();
        for event in &batch.events {
            if seen.places.insert((event.partition_id, event.seq)) {
                let document: serde_json::Value = serde_json::from_slice(&event.payload).unwrap();
                let numbers = seen.documents.entry(event.document_id.clone()).or_default();
                numbers.push(document["n"].as_u64().unwrap());
            }
        }
        DeliveryAck { accepted: i32::try_from(batch.events.len()).unwrap(), rejected: 0 }
    }

    fn documents(&self) -> ByDocument {
        self.seen.lock().unwrap().documents.clone()
    }
}

fn frame(message: &impl Message) -> Frame<Bytes> {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.encoded_len()).unwrap());
    message.encode(&mut frame).unwrap();
    Frame::data(frame.freeze())
}

fn trailers(status: u32) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.to_string().parse().unwrap());
    Frame::trailers(trailers)
}

fn next(arrived: &mut BytesMut) -> Option<EventBatch> {
    let length = u32::from_be_bytes(arrived.get(1..5)?.try_into().unwrap()) as usize;
    if arrived.len() < 5 + length {
        return None;
    }
    arrived.advance(5);
    Some(EventBatch::decode(arrived.split_to(length)).unwrap())
}

fn deliverer(timeout: Duration) -> GrpcDeliverer {
    GrpcDeliverer::new(GrpcOptions { node: "node".to_owned(), timeout, bearer: Some(Bearer::new("token")) })
}

/// Sends 400 events in small batches to a server of these moods; all arrive once, in order, and
/// nothing is given up.
async fn all_arrive(moods: &[Mood], timeout: Duration) -> Arc<Server> {
    let (server, endpoint) = Server::start(moods).await;
    let mut world = World::memory().await;
    world.options.routing.batch.max_size = 10;
    world.options.stall_timeout = PATIENCE;
    world.register("g", endpoint, Protocol::Grpc).await;
    let node = world.node_with(deliverer(timeout)).await;
    world.send(400).await;
    world.arrives("g", || server.documents()).await;
    world.settled().await;
    assert_eq!(world.dead().await, 0);
    books_close(&node, 400).await;
    node.close().await.unwrap();
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_share_one_call_and_are_answered_by_number() {
    let server = all_arrive(&[], PATIENCE).await;
    let seen = server.seen.lock().unwrap();
    assert_eq!((seen.calls.len(), seen.unary), (1, 0));
    let numbers = &seen.calls[0];
    assert!(numbers.len() >= 40 && numbers.is_sorted(), "{numbers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_is_resumed_with_what_was_unanswered() {
    let server = all_arrive(&[Mood::Breaks { answers: 3, unanswered: 1 }], PATIENCE).await;
    let seen = server.seen.lock().unwrap();
    let [first, second] = &seen.calls[..] else { panic!("{:?}", seen.calls) };
    let unanswered = &first[3..];
    assert_eq!(&second[..unanswered.len()], unanswered, "the same numbers come first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_without_an_answer_gives_its_batches_back() {
    let moods = [
        Mood::Breaks { answers: 0, unanswered: 1 },
        Mood::Breaks { answers: 0, unanswered: 1 },
        Mood::Ends(14),
    ];
    let server = all_arrive(&moods, PATIENCE).await;
    assert_eq!(server.seen.lock().unwrap().calls.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_may_ask_for_a_pause_and_for_fewer_batches() {
    let server = all_arrive(&[Mood::Ends(8), Mood::Pauses], PATIENCE).await;
    assert_eq!(server.seen.lock().unwrap().calls.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stream_refuses_as_a_whole_is_called_for_one_by_one() {
    let server = all_arrive(&[Mood::Ends(3)], PATIENCE).await;
    let seen = server.seen.lock().unwrap();
    assert!(seen.unary >= 1, "the batches of the first call");
    assert_eq!(seen.calls.len(), 2, "the others go over a stream again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_falls_silent_is_called_anew() {
    let server = all_arrive(&[Mood::Silent], Duration::from_secs(2)).await;
    assert!(server.seen.lock().unwrap().calls.len() >= 2);
}

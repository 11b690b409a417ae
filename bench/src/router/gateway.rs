//! The gateway under the bench: takes every batch without looking into it more than it must, and
//! notes when marked events came.

use crate::queue::nats::Nats;
use anyhow::{Context, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use firth_router::GatewayId;
use firth_router::config::Protocol;
use firth_router::registry::Gateway;
use firth_router::wire::NATS_SUBJECT;
use futures_util::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What is read of a gRPC batch.
#[derive(Clone, PartialEq, Message)]
struct EventBatch {
    #[prost(bytes = "bytes", repeated, tag = "2")]
    events: Vec<Bytes>,
    #[prost(uint64, tag = "4")]
    batch: u64,
}

#[derive(Clone, PartialEq, Message)]
struct DeliveryAck {
    #[prost(int32, tag = "1")]
    accepted: i32,
}

#[derive(Clone, PartialEq, Message)]
struct BatchAck {
    #[prost(uint64, tag = "1")]
    batch: u64,
    #[prost(message, optional, tag = "2")]
    ack: Option<DeliveryAck>,
}

/// What all connections of a gateway share.
#[derive(Clone)]
struct Seen {
    base: Instant,
    took: Arc<Mutex<Vec<u64>>>,
    stalled: watch::Receiver<bool>,
}

/// A listening gateway; ends with the runtime.
pub(crate) struct Taker {
    pub(crate) registration: Gateway,
    /// How long marked events took, in nanoseconds.
    pub(crate) took: Arc<Mutex<Vec<u64>>>,
    /// While it is set it takes requests and answers none.
    pub(super) stalled: watch::Sender<bool>,
    /// The server between, for NATS.
    _nats: Option<Nats>,
}

/// The bytes before each gRPC message.
const HEAD: usize = 5;

/// Where an event's mark stands in its text.
pub(super) const MARK: &[u8] = b"\"mark\":";

impl Taker {
    pub(crate) async fn start(wire: &str, name: &str, base: Instant) -> Result<Self> {
        let (stalled, is_stalled) = watch::channel(false);
        let seen = Seen { base, took: Arc::default(), stalled: is_stalled };
        let protocol = match wire {
            "http2" => Protocol::Http,
            "grpc" | "grpc-stream" => Protocol::Grpc,
            "nats" | "jetstream" => return Self::behind_nats(name, wire == "nats", seen, stalled).await,
            _ => anyhow::bail!("no wire {wire}"),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let mut registration = Gateway::new(GatewayId::new(name)?, endpoint);
        (registration.protocol, registration.ttl_seconds) = (Some(protocol), 0);
        let took = Arc::clone(&seen.took);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let seen = seen.clone();
                let service = service_fn(move |request| take(request, protocol, seen.clone()));
                let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                http.initial_stream_window_size(8 << 20).initial_connection_window_size(8 << 20);
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { registration, took, stalled, _nats: None })
    }

    /// Behind a server of its own. What JetStream stores counts as delivered, so no consumer reads
    /// it.
    async fn behind_nats(
        name: &str,
        answers: bool,
        seen: Seen,
        stalled: watch::Sender<bool>,
    ) -> Result<Self> {
        let nats = Nats::start(false)?;
        let mut registration = Gateway::new(GatewayId::new(name)?, nats.url());
        (registration.protocol, registration.ttl_seconds) = (Some(Protocol::Nats), 0);
        if answers {
            let client = async_nats::connect(nats.url()).await?;
            let mut requests = client.subscribe(format!("{NATS_SUBJECT}.{name}")).await?;
            client.flush().await?;
            let seen = seen.clone();
            tokio::spawn(async move {
                while let Some(request) = requests.next().await {
                    note(&request.payload, &seen);
                    if let Some(reply) = request.reply {
                        // A server that is gone ends the measurement anyway.
                        let _ = client.publish(reply, Bytes::new()).await;
                    }
                }
            });
        }
        Ok(Self { registration, took: seen.took, stalled, _nats: Some(nats) })
    }
}

async fn take(request: Request<Incoming>, protocol: Protocol, seen: Seen) -> Result<Response<Body>> {
    if request.uri().path().ends_with("/StreamEvents") {
        return stream_of(request.into_body(), seen);
    }
    let mut body = request.into_body().collect().await?.to_bytes();
    // An error means that the bench is over.
    seen.stalled.clone().wait_for(|is_stalled| !is_stalled).await?;
    note(&body, &seen);
    if protocol == Protocol::Http {
        return Ok(Response::new(Full::new(Bytes::new()).boxed_unsync()));
    }
    body.advance(HEAD);
    let ack = accept(&EventBatch::decode(body).context("a batch")?)?;
    let trailers = HeaderMap::from_iter([("grpc-status".parse()?, "0".parse()?)]);
    let frames = [Ok(Frame::data(frame(&ack)?)), Ok(Frame::trailers(trailers))];
    grpc(StreamBody::new(stream::iter(frames)).boxed_unsync())
}

/// Answers batches by their numbers as they come.
fn stream_of(mut body: Incoming, seen: Seen) -> Result<Response<Body>> {
    let (answers, mut outgoing) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut arrived = BytesMut::new();
        while let Some(Ok(part)) = body.frame().await {
            arrived.extend_from_slice(part.data_ref().map_or(&[], |data| &data[..]));
            while let Some(batch) = next(&mut arrived)? {
                note(&batch, &seen);
                let batch = EventBatch::decode(batch)?;
                let ack = BatchAck { batch: batch.batch, ack: Some(accept(&batch)?) };
                answers.send(frame(&ack)?)?;
            }
        }
        anyhow::Ok(())
    });
    let outgoing = stream::poll_fn(move |context| outgoing.poll_recv(context));
    grpc(StreamBody::new(outgoing.map(|answer| Ok(Frame::data(answer)))).boxed_unsync())
}

/// The next whole message of what has arrived.
fn next(arrived: &mut BytesMut) -> Result<Option<Bytes>> {
    let Some(head) = arrived.first_chunk::<HEAD>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes([head[1], head[2], head[3], head[4]]))?;
    if arrived.len() < HEAD + length {
        return Ok(None);
    }
    arrived.advance(HEAD);
    Ok(Some(arrived.split_to(length).freeze()))
}

fn accept(batch: &EventBatch) -> Result<DeliveryAck> {
    Ok(DeliveryAck { accepted: i32::try_from(batch.events.len())? })
}

fn frame(message: &impl Message) -> Result<Bytes> {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.encoded_len())?);
    message.encode(&mut frame)?;
    Ok(frame.freeze())
}

fn grpc(body: Body) -> Result<Response<Body>> {
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", "application/grpc".parse()?);
    Ok(response)
}

/// Finds marks, which tell when their events were sent.
fn note(body: &[u8], Seen { base, took, .. }: &Seen) {
    let now = u64::try_from(base.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut rest = body;
    while let Some(at) = rest.windows(MARK.len()).position(|window| window == MARK) {
        rest = &rest[at + MARK.len()..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
        let sent = digits.fold(0_u64, |sent, digit| sent.wrapping_mul(10) + u64::from(digit - b'0'));
        if sent > 0 {
            took.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(now.saturating_sub(sent));
        }
    }
}

//! The gateway under the bench: takes every batch without looking into it more than it must, and notes when marked events came.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use firth_router::GatewayId;
use firth_router::config::Protocol;
use firth_router::registry::Gateway;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpListener;

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

/// What is read of a gRPC batch.
#[derive(Clone, PartialEq, Message)]
struct EventBatch {
    #[prost(bytes = "bytes", repeated, tag = "2")]
    events: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct DeliveryAck {
    #[prost(int32, tag = "1")]
    accepted: i32,
}

/// A listening gateway; ends with the runtime.
pub(super) struct Taker {
    pub(super) registration: Gateway,
    /// How long marked events took, in nanoseconds.
    pub(super) took: Arc<Mutex<Vec<u64>>>,
}

/// Where an event's mark stands in its text.
pub(super) const MARK: &[u8] = b"\"mark\":";

impl Taker {
    pub(super) async fn start(wire: &str, base: Instant) -> Result<Self> {
        let protocol = match wire {
            "http2" => Protocol::Http,
            "grpc" => Protocol::Grpc,
            _ => anyhow::bail!("no wire {wire}"),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let mut registration = Gateway::new(GatewayId::new("gw")?, endpoint);
        (registration.protocol, registration.ttl_seconds) = (Some(protocol), 0);
        let took: Arc<Mutex<Vec<u64>>> = Arc::default();
        let seen = Arc::clone(&took);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let seen = Arc::clone(&seen);
                let service = service_fn(move |request| take(request, protocol, base, Arc::clone(&seen)));
                let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                http.initial_stream_window_size(8 << 20).initial_connection_window_size(8 << 20);
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { registration, took })
    }
}

async fn take(
    request: Request<Incoming>,
    protocol: Protocol,
    base: Instant,
    took: Arc<Mutex<Vec<u64>>>,
) -> Result<Response<Body>> {
    let mut body = request.into_body().collect().await?.to_bytes();
    note(&body, base, &took);
    if protocol == Protocol::Http {
        return Ok(Response::new(StreamBody::new(stream::iter(Vec::new()))));
    }
    body.advance(5);
    let events = EventBatch::decode(body).context("a batch")?.events.len();
    let ack = DeliveryAck { accepted: i32::try_from(events)? };
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(ack.encoded_len())?);
    ack.encode(&mut frame)?;
    let trailers = HeaderMap::from_iter([("grpc-status".parse()?, "0".parse()?)]);
    let frames = vec![Ok(Frame::data(frame.freeze())), Ok(Frame::trailers(trailers))];
    let mut response = Response::new(StreamBody::new(stream::iter(frames)));
    response.headers_mut().insert("content-type", "application/grpc".parse()?);
    Ok(response)
}

/// Finds marks, which tell when their events were sent.
fn note(body: &[u8], base: Instant, took: &Mutex<Vec<u64>>) {
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

//! gRPC: the unary call `StreamerService.DeliverEvents` of `proto/streamer.proto`, to a gateway that is the server.
//!
//! A gRPC call is an HTTP/2 POST whose body is one message behind five bytes, and whose result stands in the trailers; that much
//! needs no more than hyper. The messages below are those of the `.proto` file, written out so that building needs no compiler for it.

use super::connect::{Bearer, Connections, MAX_ANSWER};
use super::tls::Tls;
use super::{Deliverer, Delivering};
use crate::error::{Error, ErrorKind, Result};
use crate::lane::{Answer, Batch, Item, Outcome};
use crate::registry::Gateway;
use crate::wire::NODE_HEADER;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, TE};
use hyper::{Request, Response};
use prost::Message;
use std::time::Duration;

const CALL: &str = "/StreamerService/DeliverEvents";
/// How gateways are called.
#[derive(Clone, Debug)]
pub struct GrpcOptions {
    /// The name of this node.
    pub node: String,
    /// How long a whole delivery may take, connecting included.
    pub timeout: Duration,
    /// Sent as `authorization: Bearer …` if set.
    pub bearer: Option<Bearer>,
}

/// Calls gateways by gRPC.
#[derive(Debug)]
pub struct GrpcDeliverer {
    options: GrpcOptions,
    connections: Connections,
}

impl GrpcDeliverer {
    /// A deliverer without connections; they are made when needed.
    pub fn new(options: GrpcOptions) -> Self {
        Self { options, connections: Connections::default() }
    }

    /// With these settings for `https://` endpoints; without, the system's authorities are trusted.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.connections.set_tls(tls);
        self
    }

    async fn call(&self, to: &Gateway, batch: &Batch) -> Result<Outcome> {
        let message = EventBatch::new(to, &self.options.node, batch);
        let mut request = Request::post(format!("{}{CALL}", to.endpoint.trim_end_matches('/')))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header(NODE_HEADER, &self.options.node)
            .header("grpc-timeout", format!("{}m", self.options.timeout.as_millis().min(99_999_999)));
        if let Some(bearer) = &self.options.bearer {
            request = bearer.add(request)?;
        }
        let request = request.body(Full::new(frame(&message))).map_err(|error| {
            Error::invalid(format!("the endpoint of gateway {} is not an address", to.id)).with_source(error)
        })?;
        let response = self.connections.send(to, request, self.options.timeout).await?;
        outcome(batch, response).await
    }
}

impl Deliverer for GrpcDeliverer {
    fn deliver<'a>(&'a self, to: &'a Gateway, batch: &'a Batch) -> Delivering<'a> {
        Box::pin(self.connections.outcome(to, self.options.timeout, self.call(to, batch)))
    }
}

async fn outcome(batch: &Batch, response: Response<hyper::body::Incoming>) -> Result<Outcome> {
    let (head, body) = response.into_parts();
    if !head.status.is_success() {
        return Err(broken(format!("the gateway answered {}", head.status)));
    }
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(|error| broken("the answer broke off").with_source(error))?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    match status(&trailers).or_else(|| status(&head.headers)) {
        Some(0) => Ok(read(body.to_bytes())?.outcome(batch.items.len())),
        // RESOURCE_EXHAUSTED: it asks for a pause.
        Some(8) => Ok(Outcome::Busy(None)),
        // INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE: the content is at fault, not the way.
        Some(code @ (3 | 9 | 11)) => {
            let reason = format!("the gateway answered gRPC status {code}");
            Ok(Outcome::Answered(vec![Answer::Refused(reason); batch.items.len()]))
        }
        Some(code) => Err(broken(format!("the gateway answered gRPC status {code}"))),
        None => Err(broken("the answer has no gRPC status")),
    }
}

fn status(headers: &HeaderMap) -> Option<u32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(5 + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode(&mut frame).expect("a buffer that grows takes every message");
    frame.freeze()
}

fn read(mut body: Bytes) -> Result<DeliveryAck> {
    if body.len() < 5 || body.get_u8() != 0 {
        return Err(broken("the answer is no plain gRPC message"));
    }
    let length = body.get_u32() as usize;
    if body.len() != length {
        return Err(broken("the answer is not one whole gRPC message"));
    }
    DeliveryAck::decode(body).map_err(|error| broken("the answer is no DeliveryAck").with_source(error))
}

fn broken(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, context)
}

#[derive(Clone, PartialEq, Message)]
struct EventBatch {
    #[prost(string, tag = "1")]
    gateway_id: String,
    #[prost(message, repeated, tag = "2")]
    events: Vec<StreamerEvent>,
    #[prost(string, tag = "3")]
    node: String,
    #[prost(uint64, tag = "4")]
    batch: u64,
    #[prost(message, optional, tag = "5")]
    gap: Option<Gap>,
}

#[derive(Clone, PartialEq, Message)]
struct StreamerEvent {
    #[prost(string, tag = "1")]
    subscription_id: String,
    #[prost(string, tag = "2")]
    event_type: String,
    #[prost(string, tag = "3")]
    tenant: String,
    #[prost(string, tag = "4")]
    collection: String,
    #[prost(string, tag = "5")]
    document_id: String,
    #[prost(bytes = "bytes", tag = "6")]
    payload: Bytes,
    #[prost(int64, tag = "7")]
    seq: i64,
    #[prost(int32, tag = "8")]
    partition_id: i32,
    #[prost(string, repeated, tag = "9")]
    subscription_ids: Vec<String>,
    #[prost(string, repeated, tag = "10")]
    left_subscription_ids: Vec<String>,
    #[prost(uint64, tag = "11")]
    epoch: u64,
    #[prost(bytes = "bytes", tag = "12")]
    before: Bytes,
    #[prost(uint64, tag = "13")]
    committed_ms: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Gap {
    #[prost(message, repeated, tag = "1")]
    events: Vec<Place>,
    #[prost(string, repeated, tag = "2")]
    subscription_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Place {
    #[prost(int32, tag = "1")]
    partition_id: i32,
    #[prost(int64, tag = "2")]
    seq: i64,
}

#[derive(Clone, PartialEq, Message)]
struct DeliveryAck {
    #[prost(int32, tag = "1")]
    accepted: i32,
    #[prost(int32, tag = "2")]
    rejected: i32,
    #[prost(message, repeated, tag = "3")]
    rejections: Vec<Rejection>,
}

#[derive(Clone, PartialEq, Message)]
struct Rejection {
    #[prost(uint32, tag = "1")]
    index: u32,
    #[prost(string, tag = "2")]
    reason: String,
}

impl EventBatch {
    fn new(to: &Gateway, node: &str, batch: &Batch) -> Self {
        let gap = batch.gap.as_ref().map(|gap| Gap {
            events: gap
                .positions()
                .map(|at| Place { partition_id: signed(at.partition), seq: signed_seq(at.seq) })
                .collect(),
            subscription_ids: gap.subscriptions().into_iter().flatten().map(ToString::to_string).collect(),
        });
        let events = batch.items.iter().map(StreamerEvent::from).collect();
        Self { gateway_id: to.id.to_string(), events, node: node.to_owned(), batch: batch.id, gap }
    }
}

impl From<&Item> for StreamerEvent {
    fn from(item: &Item) -> Self {
        let event = &item.event;
        let text = |document: Option<&crate::event::Document>| {
            document.map_or_else(Bytes::new, |document| document.text().clone())
        };
        let names = |leaving: bool| {
            let some = item.wanted.iter().filter(move |one| !leaving || one.leaves);
            some.map(|one| one.subscription.to_string()).collect()
        };
        let subscription_ids: Vec<String> = names(false);
        Self {
            subscription_id: subscription_ids.first().cloned().unwrap_or_default(),
            event_type: event.operation.as_str().to_owned(),
            tenant: event.tenant.to_string(),
            collection: event.collection.to_string(),
            document_id: event.key.to_string(),
            payload: text(event.document()),
            seq: signed_seq(item.position.seq),
            partition_id: signed(item.position.partition),
            subscription_ids,
            left_subscription_ids: names(true),
            epoch: item.epoch,
            before: text(event.before.as_ref()),
            committed_ms: event.committed_ms,
        }
    }
}

impl DeliveryAck {
    /// What it says of a batch of so many events.
    fn outcome(self, events: usize) -> Outcome {
        if self.rejected == 0 && self.rejections.is_empty() && usize::try_from(self.accepted) == Ok(events) {
            return Outcome::Accepted;
        }
        if self.rejections.is_empty() {
            let reason =
                format!("the gateway accepted {} of {events} events without saying which", self.accepted);
            return Outcome::Answered(vec![Answer::Refused(reason); events]);
        }
        let mut answers = vec![Answer::Accepted; events];
        for Rejection { index, mut reason } in self.rejections {
            reason.truncate(reason.floor_char_boundary(500));
            if let Some(answer) = answers.get_mut(index as usize) {
                *answer = Answer::Refused(reason);
            }
        }
        Outcome::Answered(answers)
    }
}

/// Partitions are few.
fn signed(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

/// Places are far from 2^63.
fn signed_seq(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(accepted: i32, rejected: i32, rejections: &[u32]) -> DeliveryAck {
        let rejections =
            rejections.iter().map(|&index| Rejection { index, reason: "no".to_owned() }).collect();
        DeliveryAck { accepted, rejected, rejections }
    }

    #[test]
    fn a_count_alone_accepts_all_or_nothing_and_named_rejections_only_those() {
        assert_eq!(ack(3, 0, &[]).outcome(3), Outcome::Accepted);
        let refused = |outcome: Outcome| match outcome {
            Outcome::Answered(answers) => {
                answers.iter().filter(|answer| **answer != Answer::Accepted).count()
            }
            _ => 0,
        };
        assert_eq!(refused(ack(2, 1, &[]).outcome(3)), 3, "which one is unknown");
        assert_eq!(refused(ack(0, 0, &[]).outcome(3)), 3, "nothing was accepted");
        assert_eq!(refused(ack(2, 1, &[1]).outcome(3)), 1);
        assert_eq!(refused(ack(2, 1, &[1, 7]).outcome(3)), 1, "there is no eighth");
    }

    #[test]
    fn an_answer_that_is_no_message_is_not_taken_for_one() {
        let good = frame(&ack(1, 0, &[]));
        assert_eq!(read(good).unwrap(), ack(1, 0, &[]));
        for bad in [&b""[..], b"\0\0\0", b"\x01\0\0\0\0", b"\0\0\0\0\x09", b"\0\0\0\0\x01\xff"] {
            assert!(read(Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
    }
}

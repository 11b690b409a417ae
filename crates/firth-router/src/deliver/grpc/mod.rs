//! gRPC: `StreamerService` of `proto/streamer.proto`, to a gateway that is the server. Batches go
//! over one call that lasts ([`stream`]); a gateway without it gets one unary call per batch.
//!
//! A gRPC call is an HTTP/2 POST whose body is messages behind five bytes each ([`frames`]), and
//! whose result stands in the trailers; that much needs no more than hyper.

mod frames;
mod line;
mod messages;
mod stream;
mod writer;

use super::connect::{Connections, MAX_ANSWER, Outgoing};
use super::tls::Tls;
use super::token::Bearer;
use super::{Deliverer, Delivering, verdict};
use crate::error::{Error, Result};
use crate::lane::{Answer, Batch, Outcome};
use crate::name::GatewayId;
use crate::registry::Gateway;
use crate::wire::NODE_HEADER;
use frames::broken;
pub(crate) use frames::{frame, only};
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, TE};
use hyper::{Request, Response};
use line::Told;
use messages::DeliveryAck;
use std::sync::Arc;
use std::time::Duration;
use stream::Streams;
use writer::batch_frame;

const UNARY: &str = "/StreamerService/DeliverEvents";
const STREAM: &str = "/StreamerService/StreamEvents";

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

/// Calls gateways by gRPC: over a call that lasts, or by one call per batch where a gateway does
/// not offer that.
#[derive(Debug)]
pub struct GrpcDeliverer {
    options: GrpcOptions,
    connections: Arc<Connections>,
    /// Not there if every batch shall be a call of its own.
    streams: Option<Streams>,
}

impl GrpcDeliverer {
    /// A deliverer without connections; they are made when needed.
    pub fn new(options: GrpcOptions) -> Self {
        Self { options, connections: Arc::default(), streams: Some(Streams::default()) }
    }

    /// One call per batch, also where a gateway offers the stream.
    #[must_use]
    pub fn unary(mut self) -> Self {
        self.streams = None;
        self
    }

    /// With these settings for `https://` endpoints; without, the system's authorities are trusted.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.connections = Arc::new(Connections::with_tls(tls));
        self
    }

    async fn send(&self, to: &Gateway, batch: &Batch) -> Result<Outcome> {
        let Some(streams) = &self.streams else { return self.call(to, batch).await };
        let line = streams.line(to, &self.options, &self.connections);
        let unanswered = line.put(|number| batch_frame(to, &self.options.node, number, batch));
        match unanswered.told().await {
            Told::Answer(answer) => Ok(answer.outcome(batch.items.len())),
            Told::Busy => Ok(Outcome::Busy(None)),
            Told::CallInstead => self.call(to, batch).await,
            Told::Lost => Err(verdict::unreachable("the stream broke")),
        }
    }

    async fn call(&self, to: &Gateway, batch: &Batch) -> Result<Outcome> {
        let frame = batch_frame(to, &self.options.node, batch.id, batch);
        let body = Full::new(frame).boxed_unsync();
        let request = request(to, &self.options, UNARY, Some(self.options.timeout), body)?;
        let response = self.connections.send(to, request, self.options.timeout).await?;
        outcome(batch, response).await
    }
}

impl Deliverer for GrpcDeliverer {
    fn deliver<'a>(&'a self, to: &'a Gateway, batch: &'a Batch) -> Delivering<'a> {
        let silent = || {
            let is_alive =
                self.streams.as_ref().is_some_and(|streams| streams.is_alive(to, self.options.timeout));
            if !is_alive {
                // A silent peer may be half gone: the next batch tries a fresh connection.
                self.connections.forget(&to.id);
                self.streams.iter().for_each(|streams| streams.forget(&to.id));
            }
        };
        Box::pin(verdict::wait(to, self.options.timeout, self.send(to, batch), silent))
    }

    fn forget(&self, gateway: &GatewayId) {
        self.connections.forget(gateway);
        self.streams.iter().for_each(|streams| streams.forget(gateway));
    }
}

/// A call of a method; without a time limit it may last.
fn request(
    to: &Gateway,
    options: &GrpcOptions,
    method: &str,
    timeout: Option<Duration>,
    body: Outgoing,
) -> Result<Request<Outgoing>> {
    let mut request = Request::post(format!("{}{method}", to.endpoint.trim_end_matches('/')))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(NODE_HEADER, &options.node);
    if let Some(timeout) = timeout {
        request = request.header("grpc-timeout", format!("{}m", timeout.as_millis().min(99_999_999)));
    }
    if let Some(bearer) = &options.bearer {
        request = bearer.add_for(&to.id, &to.endpoint, request)?;
    }
    request.body(body).map_err(|error| {
        Error::invalid(format!("the endpoint of gateway {} is not an address", to.id)).with_source(error)
    })
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
        Some(0) => Ok(only::<DeliveryAck>(body.to_bytes())?.outcome(batch.items.len())),
        // RESOURCE_EXHAUSTED: it asks for a pause.
        Some(8) => Ok(Outcome::Busy(None)),
        Some(code) if is_content(code) => {
            let reason = format!("the gateway answered gRPC status {code}");
            Ok(Outcome::Answered(vec![Answer::Refused(reason); batch.items.len()]))
        }
        Some(code) => Err(broken(format!("the gateway answered gRPC status {code}"))),
        None => Err(broken("the answer has no gRPC status")),
    }
}

/// INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE: the content is at fault, not the way.
fn is_content(code: u32) -> bool {
    matches!(code, 3 | 9 | 11)
}

/// The result of a call, where it stands.
pub(crate) fn status(headers: &HeaderMap) -> Option<u32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

//! NATS: a request whose reply is the gateway's answer, or a publication whose acknowledgement says
//! that JetStream has it. A bare publication is never taken for a delivery.
//!
//! - A batch that is larger than the server takes goes in parts ([`parts`]), one after the other,
//!   so that order holds.
//! - A batch for JetStream has an id made of the numbers of its events: what is sent again is
//!   stored once.
//! - While the connection is down nothing is queued here: the lane keeps the batch.
//!
//! A gateway answers a request as it would by HTTP (the results, or nothing), or by the headers of
//! NATS services: `Nats-Service-Error-Code` with a status of HTTP, `Retry-After` beside it.

mod auth;
mod clients;
mod parts;

pub use auth::NatsAuth;

use super::tls::Tls;
use super::verdict::{self, unreachable};
use super::{Deliverer, Delivering};
use crate::config::{Delivery, NatsAck, NatsConfig};
use crate::error::{Error, Result};
use crate::lane::{Answer, Batch, Outcome};
use crate::registry::Gateway;
use crate::wire::{NATS_SUBJECT, NODE_HEADER, Results};
use async_nats::jetstream;
use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, HeaderMap, Request, RequestErrorKind};
use clients::Clients;
use parts::{Next, Parts};
use std::time::Duration;

/// How batches are sent.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// The name of this node.
    pub node: String,
    /// How long a whole delivery may take, connecting included.
    pub timeout: Duration,
    /// The server, for gateways that name none.
    pub url: Option<String>,
    /// What subjects begin with.
    pub subject: String,
    /// What counts as an acknowledgement.
    pub ack: NatsAck,
    /// The stream of JetStream that batches must go to; made if it is not there.
    pub stream: Option<String>,
    /// Who we are to the server.
    pub auth: NatsAuth,
    /// TLS, for servers that want it.
    pub tls: Option<Tls>,
}

impl NatsOptions {
    /// Requests and replies, with the documented subject.
    pub fn new(node: impl Into<String>, timeout: Duration) -> Self {
        let node = node.into();
        let subject = NATS_SUBJECT.to_owned();
        let auth = NatsAuth::default();
        Self { node, timeout, url: None, subject, ack: NatsAck::Reply, stream: None, auth, tls: None }
    }
}

/// Room for headers beside the body, in bytes.
const HEADERS: usize = 1024;

/// Sends batches through NATS.
#[derive(Debug)]
pub struct NatsDeliverer {
    options: NatsOptions,
    clients: Clients,
}

impl NatsDeliverer {
    /// A deliverer without connections; they are made when needed.
    pub fn new(options: NatsOptions) -> Self {
        Self { options, clients: Clients::default() }
    }

    /// As `routing.delivery` says.
    pub(super) fn configured(node: &str, delivery: &Delivery, tls: Option<Tls>) -> Result<Self> {
        let auth = NatsAuth::from_files(&delivery.nats)?;
        let NatsConfig { url, subject, ack, stream, .. } = delivery.nats.clone();
        let options = NatsOptions::new(node, delivery.timeout);
        Ok(Self::new(NatsOptions { url, subject, ack, stream, auth, tls, ..options }))
    }

    async fn send(&self, to: &Gateway, batch: &Batch) -> Result<Outcome> {
        let client = self.clients.get(to, &self.options).await?;
        let subject = format!("{}.{}", self.options.subject, to.id);
        let limit = client.max_payload().saturating_sub(HEADERS);
        let mut parts = Parts::new(to, &self.options.node, batch, limit);
        while let Some(next) = parts.next()? {
            let Next { body, id, events } = next;
            let outcome = match self.options.ack {
                NatsAck::Reply => self.request(&client, &subject, body, events).await?,
                NatsAck::JetStream => self.publish(&client, &subject, body, &id).await?,
            };
            match outcome {
                Outcome::Accepted => parts.answered(vec![Answer::Accepted; events]),
                Outcome::Answered(answers) => parts.answered(answers),
                // Parts that went before come again; receivers drop what they have.
                outcome => return Ok(outcome),
            }
        }
        Ok(Outcome::Answered(parts.into_answers()))
    }

    async fn request(&self, client: &Client, subject: &str, body: Vec<u8>, events: usize) -> Result<Outcome> {
        let mut headers = HeaderMap::new();
        headers.insert(NODE_HEADER, self.options.node.as_str());
        let request = Request::new().payload(body.into()).headers(headers).timeout(None);
        let reply =
            client.send_request(subject.to_owned(), request).await.map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => unreachable("nobody listens to its subject"),
                _ => unreachable(error),
            })?;
        let header = |name: &str| reply.headers.as_ref()?.get(name).map(async_nats::HeaderValue::as_str);
        if let Some(code) = header("Nats-Service-Error-Code") {
            let status = code.trim().parse().unwrap_or(500);
            return verdict::of_status(status, header("Retry-After"), events);
        }
        Ok(Results::read(&reply.payload)?.map_or(Outcome::Accepted, Outcome::Answered))
    }

    async fn publish(&self, client: &Client, subject: &str, body: Vec<u8>, id: &str) -> Result<Outcome> {
        let context = jetstream::context::ContextBuilder::new()
            .timeout(self.options.timeout)
            .ack_timeout(self.options.timeout)
            .build(client.clone());
        let message = PublishMessage::build()
            .payload(body.into())
            .message_id(id)
            .header(NODE_HEADER, self.options.node.as_str());
        let message = match &self.options.stream {
            Some(stream) => message.expected_stream(stream),
            None => message,
        };
        let stored = async { context.send_publish(subject.to_owned(), message).await?.await };
        match stored.await {
            // Stored now, or when it was sent before.
            Ok(_) => Ok(Outcome::Accepted),
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                self.make_stream(&context).await?;
                Err(unreachable("no stream took the batch"))
            }
            Err(error) => Err(unreachable(error)),
        }
    }

    /// Makes the configured stream if it is not there; the batch comes again.
    async fn make_stream(&self, context: &jetstream::Context) -> Result<()> {
        let Some(name) = &self.options.stream else {
            let subject = &self.options.subject;
            return Err(Error::invalid(format!(
                "no stream of JetStream takes {subject}.>; make one, or name it in routing.delivery.nats.stream"
            )));
        };
        let config = jetstream::stream::Config {
            name: name.clone(),
            subjects: vec![format!("{}.>", self.options.subject)],
            ..Default::default()
        };
        context.get_or_create_stream(config).await.map_err(unreachable)?;
        tracing::info!(stream = %name, "a stream of JetStream was made for batches");
        Ok(())
    }
}

impl Deliverer for NatsDeliverer {
    fn deliver<'a>(&'a self, to: &'a Gateway, batch: &'a Batch) -> Delivering<'a> {
        Box::pin(verdict::wait(to, self.options.timeout, self.send(to, batch), || {}))
    }
}

//! HTTP/2 POST of JSON, with TLS for `https://` endpoints, without (h2c with prior knowledge) for
//! `http://`. One connection per gateway, many batches on it at a time.

use super::connect::{Connections, MAX_ANSWER, Outgoing};
use super::sign::{ID_HEADER, SIGNATURE_HEADER, SigningKey, TIME_HEADER};
use super::tls::Tls;
use super::token::Bearer;
use super::{Deliverer, Delivering, verdict};
use crate::error::{Error, ErrorKind, Result};
use crate::lane::{Batch, Outcome};
use crate::name::GatewayId;
use crate::registry::Gateway;
use crate::wire::{BatchOut, NODE_HEADER, PATH, Results};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Request, Response};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How batches are posted.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The name of this node, for the header `x-streamer-node`.
    pub node: String,
    /// How long a whole delivery may take, connecting included.
    pub timeout: Duration,
    /// Sent as `authorization: Bearer …` if set.
    pub bearer: Option<Bearer>,
    /// Signs every batch if set.
    pub signing: Option<SigningKey>,
}

/// Posts batches to gateways.
#[derive(Debug)]
pub struct HttpDeliverer {
    options: HttpOptions,
    connections: Connections,
}

impl HttpDeliverer {
    /// A deliverer without connections; they are made when needed.
    pub fn new(options: HttpOptions) -> Self {
        Self { options, connections: Connections::default() }
    }

    /// With these settings for `https://` endpoints; without, the system's authorities are trusted.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.connections = Connections::with_tls(tls);
        self
    }

    async fn post(&self, to: &Gateway, batch: &Batch) -> Result<Outcome> {
        let body = BatchOut::new(&to.id, &self.options.node, batch).to_json()?;
        let request = self.request(to, batch, Bytes::from(body))?;
        let response = self.connections.send(to, request, self.options.timeout).await?;
        outcome(batch, response).await
    }

    fn request(&self, to: &Gateway, batch: &Batch, body: Bytes) -> Result<Request<Outgoing>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let id = format!("{}-{}", to.id, batch.name());
        let mut request = Request::post(format!("{}{PATH}", to.endpoint.trim_end_matches('/')))
            .header(CONTENT_TYPE, "application/json")
            .header(NODE_HEADER, &self.options.node)
            .header(ID_HEADER, &id)
            .header(TIME_HEADER, now);
        if let Some(key) = &self.options.signing {
            request = request.header(SIGNATURE_HEADER, key.sign(&id, now, &body));
        }
        if let Some(bearer) = &self.options.bearer {
            request = bearer.add_for(&to.id, &to.endpoint, request)?;
        }
        request.body(Full::new(body).boxed_unsync()).map_err(|error| {
            Error::invalid(format!("the endpoint of gateway {} is not an address", to.id)).with_source(error)
        })
    }
}

impl Deliverer for HttpDeliverer {
    fn deliver<'a>(&'a self, to: &'a Gateway, batch: &'a Batch) -> Delivering<'a> {
        // A silent peer may be half gone: the next batch tries a fresh connection.
        let silent = || self.connections.forget(&to.id);
        Box::pin(verdict::wait(to, self.options.timeout, self.post(to, batch), silent))
    }

    fn forget(&self, gateway: &GatewayId) {
        self.connections.forget(gateway);
    }
}

async fn outcome(batch: &Batch, response: Response<hyper::body::Incoming>) -> Result<Outcome> {
    let (head, body) = response.into_parts();
    match head.status {
        status if status.is_success() => {
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body = body.map_err(|error| {
                Error::new(ErrorKind::Unavailable, "the answer broke off").with_source(error)
            })?;
            Ok(Results::read(&body.to_bytes())?.map_or(Outcome::Accepted, Outcome::Answered))
        }
        status => {
            let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            verdict::of_status(status.as_u16(), retry_after, batch.items.len())
        }
    }
}

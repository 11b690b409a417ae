//! HTTP/2 POST of JSON, without TLS (h2c with prior knowledge). One connection per gateway, many batches on it at a time.

use super::connect::{Bearer, Connections, MAX_ANSWER};
use super::sign::{ID_HEADER, SIGNATURE_HEADER, SigningKey, TIME_HEADER};
use super::{Deliverer, Delivering};
use crate::error::{Error, ErrorKind, Result};
use crate::lane::{Answer, Batch, Outcome};
use crate::registry::Gateway;
use crate::wire::{BatchOut, NODE_HEADER, PATH, Results};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
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

/// The longest pause that a gateway can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);

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

    async fn post(&self, to: &Gateway, batch: &Batch) -> Result<Outcome> {
        let body =
            serde_json::to_vec(&BatchOut::new(&to.id, &self.options.node, batch)).map_err(|error| {
                Error::new(ErrorKind::Corrupt, "a document is not valid JSON").with_source(error)
            })?;
        let request = self.request(to, batch, Bytes::from(body))?;
        let response = self.connections.send(to, request, self.options.timeout).await?;
        outcome(batch, response).await
    }

    fn request(&self, to: &Gateway, batch: &Batch, body: Bytes) -> Result<Request<Full<Bytes>>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let id = format!("{}-{}-{}", self.options.node, to.id, batch.id);
        let mut request = Request::post(format!("{}{PATH}", to.endpoint.trim_end_matches('/')))
            .header(CONTENT_TYPE, "application/json")
            .header(NODE_HEADER, &self.options.node)
            .header(ID_HEADER, &id)
            .header(TIME_HEADER, now);
        if let Some(key) = &self.options.signing {
            request = request.header(SIGNATURE_HEADER, key.sign(&id, now, &body));
        }
        if let Some(bearer) = &self.options.bearer {
            request = bearer.add(request)?;
        }
        request.body(Full::new(body)).map_err(|error| {
            Error::invalid(format!("the endpoint of gateway {} is not an address", to.id)).with_source(error)
        })
    }
}

impl Deliverer for HttpDeliverer {
    fn deliver<'a>(&'a self, to: &'a Gateway, batch: &'a Batch) -> Delivering<'a> {
        Box::pin(self.connections.outcome(to, self.options.timeout, self.post(to, batch)))
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
        StatusCode::TOO_MANY_REQUESTS => Ok(Outcome::Busy(pause(&head.headers))),
        StatusCode::SERVICE_UNAVAILABLE if head.headers.contains_key(RETRY_AFTER) => {
            Ok(Outcome::Busy(pause(&head.headers)))
        }
        status if is_refusal(status) => {
            let reason = format!("the gateway answered {status}");
            Ok(Outcome::Answered(batch.items.iter().map(|_| Answer::Refused(reason.clone())).collect()))
        }
        status => Err(Error::new(ErrorKind::Unavailable, format!("the gateway answered {status}"))),
    }
}

/// What the batch's content caused, rather than who sent it or where: another attempt later cannot help there.
fn is_refusal(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 406 | 409 | 413 | 415 | 422)
}

fn pause(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_PAUSE))
}

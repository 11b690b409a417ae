//! HTTP/2 POST of JSON, without TLS (h2c with prior knowledge). One connection per gateway, many batches on it at a time.

use super::sign::{ID_HEADER, SIGNATURE_HEADER, SigningKey, TIME_HEADER};
use super::{Deliverer, Delivering};
use crate::error::{Error, ErrorKind, Result};
use crate::lane::{Answer, Batch, Outcome};
use crate::name::GatewayId;
use crate::registry::Gateway;
use crate::wire::{BatchOut, NODE_HEADER, PATH, Results};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;

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

/// A token that is never shown.
#[derive(Clone)]
pub struct Bearer(String);

impl Bearer {
    /// A token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer")
    }
}

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// The flow-control window of a connection and of a stream: batches are large and answers small.
const WINDOW: u32 = 8 << 20;
/// The longest pause that a gateway can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);

type Sender = SendRequest<Full<Bytes>>;

/// Posts batches to gateways.
#[derive(Debug)]
pub struct HttpDeliverer {
    options: HttpOptions,
    connections: Mutex<HashMap<GatewayId, (String, Sender)>>,
}

impl HttpDeliverer {
    /// A deliverer without connections; they are made when needed.
    pub fn new(options: HttpOptions) -> Self {
        Self { options, connections: Mutex::new(HashMap::new()) }
    }

    async fn post(&self, to: &Gateway, batch: &Batch) -> Result<Outcome> {
        let body =
            serde_json::to_vec(&BatchOut::new(&to.id, &self.options.node, batch)).map_err(|error| {
                Error::new(ErrorKind::Corrupt, "a document is not valid JSON").with_source(error)
            })?;
        let request = self.request(to, batch, Bytes::from(body))?;
        let mut sender = self.connection(to).await?;
        let answered = sender.send_request(request).await;
        let response = answered.map_err(|error| {
            self.forget(&to.id);
            unreachable(error)
        })?;
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
        if let Some(Bearer(token)) = &self.options.bearer {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| Error::invalid("the bearer token has characters that no header can carry"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        request.body(Full::new(body)).map_err(|error| {
            Error::invalid(format!("the endpoint of gateway {} is not an address", to.id)).with_source(error)
        })
    }

    /// The connection to a gateway, made anew if it broke or the gateway moved.
    async fn connection(&self, to: &Gateway) -> Result<Sender> {
        if let Some((endpoint, sender)) = self.lock().get(&to.id)
            && *endpoint == to.endpoint
            && !sender.is_closed()
        {
            return Ok(sender.clone());
        }
        let uri: Uri = to.endpoint.parse().map_err(|error| {
            Error::invalid(format!("the endpoint of gateway {} is not an address", to.id)).with_source(error)
        })?;
        let (Some("http"), Some(host)) = (uri.scheme_str(), uri.host()) else {
            return Err(Error::invalid(format!(
                "the endpoint of gateway {} must be http://host:port",
                to.id
            )));
        };
        let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_connection_window_size(WINDOW)
            .initial_stream_window_size(WINDOW)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(self.options.timeout)
            .handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(unreachable)?;
        // Ends with the connection, which ends when the last sender is gone.
        tokio::spawn(connection);
        self.lock().insert(to.id.clone(), (to.endpoint.clone(), sender.clone()));
        Ok(sender)
    }

    fn forget(&self, gateway: &GatewayId) {
        self.lock().remove(gateway);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<GatewayId, (String, Sender)>> {
        self.connections.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Deliverer for HttpDeliverer {
    fn deliver<'a>(&'a self, to: &'a Gateway, batch: &'a Batch) -> Delivering<'a> {
        Box::pin(async move {
            match tokio::time::timeout(self.options.timeout, self.post(to, batch)).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(error)) => {
                    tracing::debug!(gateway = %to.id, %error, "a batch was not delivered");
                    Outcome::Unreached
                }
                Err(_) => {
                    // A silent peer may be half gone: the next batch tries a fresh connection.
                    self.forget(&to.id);
                    Outcome::Unreached
                }
            }
        })
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

fn unreachable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Unavailable, "the gateway cannot be reached").with_source(error)
}

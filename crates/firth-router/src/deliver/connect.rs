//! Connections to gateways: one HTTP/2 connection each, made when needed, made anew when it broke or the gateway moved.

use crate::error::{Error, ErrorKind, Result};
use crate::lane::Outcome;
use crate::name::GatewayId;
use crate::registry::Gateway;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::request::Builder;
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;

/// The flow-control window of a connection and of a stream: batches are large and answers small.
const WINDOW: u32 = 8 << 20;
/// The largest answer that is read, in bytes.
pub(super) const MAX_ANSWER: usize = 1 << 20;

type Sender = SendRequest<Full<Bytes>>;

/// A token that is never shown.
#[derive(Clone)]
pub struct Bearer(String);

impl Bearer {
    /// A token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    pub(super) fn add(&self, request: Builder) -> Result<Builder> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.0))
            .map_err(|_| Error::invalid("the bearer token has characters that no header can carry"))?;
        value.set_sensitive(true);
        Ok(request.header(AUTHORIZATION, value))
    }
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer")
    }
}

#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<HashMap<GatewayId, (String, Sender)>>);

impl Connections {
    /// Waits for what becomes of a delivery, no longer than `timeout`. Whatever is no answer leaves the gateway unreached.
    pub(super) async fn outcome(
        &self,
        to: &Gateway,
        timeout: Duration,
        delivery: impl Future<Output = Result<Outcome>>,
    ) -> Outcome {
        match tokio::time::timeout(timeout, delivery).await {
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
    }

    /// Sends a request to a gateway and waits for the head of the answer.
    pub(super) async fn send(
        &self,
        to: &Gateway,
        request: Request<Full<Bytes>>,
        timeout: Duration,
    ) -> Result<Response<hyper::body::Incoming>> {
        let mut sender = self.get(to, timeout).await?;
        sender.send_request(request).await.map_err(|error| {
            self.forget(&to.id);
            unreachable(error)
        })
    }

    /// The next request makes a new connection.
    fn forget(&self, gateway: &GatewayId) {
        self.lock().remove(gateway);
    }

    async fn get(&self, to: &Gateway, timeout: Duration) -> Result<Sender> {
        if let Some((endpoint, sender)) = self.lock().get(&to.id)
            && *endpoint == to.endpoint
            && !sender.is_closed()
        {
            return Ok(sender.clone());
        }
        let address =
            || Error::invalid(format!("the endpoint of gateway {} must be http://host:port", to.id));
        let uri: Uri = to.endpoint.parse().map_err(|error| address().with_source(error))?;
        let (Some("http"), Some(host)) = (uri.scheme_str(), uri.host()) else { return Err(address()) };
        let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_connection_window_size(WINDOW)
            .initial_stream_window_size(WINDOW)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(timeout)
            .handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(unreachable)?;
        // Ends with the connection, which ends when the last sender is gone.
        tokio::spawn(connection);
        self.lock().insert(to.id.clone(), (to.endpoint.clone(), sender.clone()));
        Ok(sender)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<GatewayId, (String, Sender)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn unreachable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Unavailable, "the gateway cannot be reached").with_source(error)
}

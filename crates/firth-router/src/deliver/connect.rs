//! Connections to gateways: one HTTP/2 connection each, made when needed, made anew when it broke
//! or the gateway moved.

use super::tls::Tls;
use super::verdict::unreachable;
use crate::config::TlsFiles;
use crate::error::{Error, Result};
use crate::name::GatewayId;
use crate::registry::Gateway;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The flow-control window of a connection and of a stream: batches are large and answers small.
const WINDOW: u32 = 8 << 20;
/// The largest answer that is read, in bytes.
pub(crate) const MAX_ANSWER: usize = 1 << 20;

/// The body of a request, whole or in pieces as they come.
pub(crate) type Outgoing = UnsyncBoxBody<Bytes, Infallible>;

type Sender = SendRequest<Outgoing>;

#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Mutex<HashMap<GatewayId, (String, Sender)>>,
    tls: Option<Tls>,
}

/// A socket, with or without TLS.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

impl Connections {
    /// With these settings for `https://` endpoints, instead of the system's.
    pub(crate) fn with_tls(tls: Tls) -> Self {
        Self { tls: Some(tls), ..Self::default() }
    }

    /// Sends a request to a gateway and waits for the head of the answer.
    pub(crate) async fn send(
        &self,
        to: &Gateway,
        request: Request<Outgoing>,
        timeout: Duration,
    ) -> Result<Response<hyper::body::Incoming>> {
        let mut sender = self.get(to, timeout).await?;
        sender.send_request(request).await.map_err(|error| {
            self.forget(&to.id);
            unreachable(error)
        })
    }

    /// The next request makes a new connection.
    pub(crate) fn forget(&self, gateway: &GatewayId) {
        self.lock().remove(gateway);
    }

    async fn get(&self, to: &Gateway, timeout: Duration) -> Result<Sender> {
        if let Some((endpoint, sender)) = self.lock().get(&to.id)
            && *endpoint == to.endpoint
            && !sender.is_closed()
        {
            return Ok(sender.clone());
        }
        let socket = self.connect(to).await?;
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_connection_window_size(WINDOW)
            .initial_stream_window_size(WINDOW)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(timeout)
            .handshake(TokioIo::new(socket));
        let (sender, connection) = handshake.await.map_err(unreachable)?;
        // Ends with the connection, which ends when the last sender is gone.
        tokio::spawn(connection);
        self.lock().insert(to.id.clone(), (to.endpoint.clone(), sender.clone()));
        Ok(sender)
    }

    async fn connect(&self, to: &Gateway) -> Result<Box<dyn Socket>> {
        let address = || {
            Error::invalid(format!(
                "the endpoint of gateway {} must be http://host:port or https://host:port",
                to.id
            ))
        };
        let uri: Uri = to.endpoint.parse().map_err(|error| address().with_source(error))?;
        let host = uri.host().map(|host| host.trim_start_matches('[').trim_end_matches(']'));
        let (usual_port, host) = match (uri.scheme_str(), host) {
            (Some("http"), Some(host)) => (80, host),
            (Some("https"), Some(host)) => (443, host),
            _ => return Err(address()),
        };
        let stream =
            TcpStream::connect((host, uri.port_u16().unwrap_or(usual_port))).await.map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        if usual_port == 80 {
            return Ok(Box::new(stream));
        }
        let tls = self.tls.clone().map_or_else(|| Tls::from_files(&TlsFiles::default()), Ok)?;
        let name = ServerName::try_from(host.to_owned()).map_err(|error| address().with_source(error))?;
        let stream = TlsConnector::from(tls.for_http2()).connect(name, stream).await.map_err(unreachable)?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(unreachable("it does not speak HTTP/2 over TLS"));
        }
        Ok(Box::new(stream))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<GatewayId, (String, Sender)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The socket under a connection: TCP, Unix or TLS, opened within its time limits. Used by
//! `establish` only.

use crate::config::{Address, Config};
use crate::error::{ConnectError, ConnectStage};
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

/// An address that a socket can be opened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp(Address),
    Unix(PathBuf),
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A connected socket of any kind.
pub(crate) enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl Transport {
    /// Whether TLS took up an earlier session; `None` without TLS.
    pub(crate) fn is_resumed(&self) -> Option<bool> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(stream) => {
                Some(stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed))
            }
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }

    /// Opens the socket, TLS included.
    pub(crate) async fn open(config: &Config, endpoint: &Endpoint) -> Result<Self, ConnectError> {
        let limits = config.timeouts;
        match endpoint {
            Endpoint::Unix(path) => {
                let opened =
                    within(limits.connect, ConnectStage::Connect, endpoint, UnixStream::connect(path))
                        .await?;
                opened.map(Self::Unix).map_err(|e| refused(endpoint, e))
            }
            Endpoint::Tcp(address) => {
                let addresses = resolve(limits.resolve, endpoint, address).await?;
                let secured = async {
                    let tcp = first_reachable(limits.connect, endpoint, &addresses).await?;
                    secure(config, endpoint, address, tcp).await
                };
                within(limits.connect, ConnectStage::Connect, endpoint, secured).await?
            }
        }
    }
}

/// Runs a step of connecting under its limit.
pub(crate) async fn within<T>(
    limit: Option<Duration>,
    stage: ConnectStage,
    endpoint: &Endpoint,
    step: impl Future<Output = T>,
) -> Result<T, ConnectError> {
    let Some(limit) = limit else { return Ok(step.await) };
    let late = |_| ConnectError::Timeout { stage, endpoint: endpoint.to_string(), limit };
    tokio::time::timeout(limit, step).await.map_err(late)
}

async fn resolve(
    limit: Option<Duration>,
    endpoint: &Endpoint,
    address: &Address,
) -> Result<Vec<std::net::SocketAddr>, ConnectError> {
    let host = &address.host;
    let unresolved = |e: io::Error| ConnectError::Resolve { host: host.clone(), source: Arc::new(e) };
    let lookup = tokio::net::lookup_host((host.as_str(), address.port));
    let found: Vec<_> =
        within(limit, ConnectStage::Resolve, endpoint, lookup).await?.map_err(unresolved)?.collect();
    if found.is_empty() {
        Err(unresolved(io::Error::new(io::ErrorKind::NotFound, "no address")))
    } else {
        Ok(found)
    }
}

/// Tries the addresses in order. Each gets an equal share of the time that is left, so that an
/// address that never answers does not hide those after it.
async fn first_reachable(
    limit: Option<Duration>,
    endpoint: &Endpoint,
    addresses: &[std::net::SocketAddr],
) -> Result<TcpStream, ConnectError> {
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
    for (address, left) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        let share = deadline.map(|d| d.saturating_duration_since(Instant::now()) / left);
        match within(share, ConnectStage::Connect, endpoint, TcpStream::connect(address)).await {
            Ok(Ok(tcp)) => {
                tune(&tcp).map_err(|e| refused(endpoint, e))?;
                return Ok(tcp);
            }
            Ok(Err(e)) => last = e,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(refused(endpoint, last))
}

/// Disables the delay of small writes. A peer that vanishes is given up after half a minute: by
/// keepalive while nothing is sent, by a limit on unconfirmed bytes otherwise. While a blocking
/// command waits, nothing else would notice.
fn tune(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(tcp).set_tcp_user_timeout(Some(Duration::from_secs(30)))?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    socket2::SockRef::from(tcp).set_tcp_keepalive(&keepalive)
}

#[cfg(feature = "tls")]
async fn secure(
    config: &Config,
    endpoint: &Endpoint,
    address: &Address,
    tcp: TcpStream,
) -> Result<Transport, ConnectError> {
    let Some(tls) = &config.tls else { return Ok(Transport::Tcp(tcp)) };
    let (connector, name) = config.tls_cache.connector(tls, &address.host).await?;
    let failed = |e| ConnectError::Tls { endpoint: endpoint.to_string(), source: Arc::new(e) };
    let stream = connector.connect(name, tcp).await.map_err(failed)?;
    Ok(Transport::Tls(Box::new(stream)))
}

#[cfg(not(feature = "tls"))]
async fn secure(_: &Config, _: &Endpoint, _: &Address, tcp: TcpStream) -> Result<Transport, ConnectError> {
    Ok(Transport::Tcp(tcp))
}

fn refused(endpoint: &Endpoint, source: io::Error) -> ConnectError {
    ConnectError::Connect { endpoint: endpoint.to_string(), source: Arc::new(source) }
}

/// Calls the same method on whichever socket it is.
macro_rules! each {
    ($self:ident, $socket:ident => $call:expr) => {
        match $self.get_mut() {
            Transport::Tcp($socket) => $call,
            Transport::Unix($socket) => $call,
            #[cfg(feature = "tls")]
            Transport::Tls($socket) => $call,
        }
    };
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self, socket => Pin::new(socket).poll_read(cx, buf))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, socket => Pin::new(socket).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, socket => Pin::new(socket).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, socket => Pin::new(socket).poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::net::{TcpListener, TcpSocket};

    /// A listener that takes no more connections: the system ignores those who ask.
    async fn full() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        let patience = Duration::from_millis(50);
        while let Ok(Ok(tcp)) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
            waiting.push(tcp);
        }
        (listener, waiting, address)
    }

    #[tokio::test]
    async fn an_address_that_swallows_everything_does_not_hide_the_next() {
        let (_listener, _waiting, silent) = full().await;
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::Tcp(Address::new("both", 1));
        let addresses = [silent, good.local_addr().unwrap()];
        let limit = Some(Duration::from_millis(400));
        let tcp = first_reachable(limit, &endpoint, &addresses).await.unwrap();
        assert_eq!(tcp.peer_addr().unwrap(), addresses[1]);
        let refused = first_reachable(limit, &endpoint, &[silent, silent]).await;
        assert!(matches!(refused, Err(ConnectError::Connect { .. })), "{refused:?}");
    }
}

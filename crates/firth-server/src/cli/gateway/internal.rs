//! The internal address: metrics for operators, and batches of routers, with TLS if it has a
//! certificate.

use super::{GatewayArgs, bind};
use crate::config::variable;
use crate::serve::tls::Tls;
use crate::wire::invalid;
use axum::Router;
use axum::routing::get;
use axum::serve::{Listener, ListenerExt};
use firth::Result;
use firth_edge::{Hub, RouterFeed};
use firth_router::GatewayId;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// How long a peer may take to agree on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at a time; more wait in the system's queue.
const HANDSHAKES: usize = 64;

impl GatewayArgs {
    /// Serves the internal address, if one is wanted.
    pub(super) async fn serve_internal(
        &self,
        hub: &Hub,
        id: &str,
        tls: Option<Tls>,
        stop: CancellationToken,
    ) -> Result<Option<JoinHandle<()>>> {
        let Some(address) = self.internal else { return Ok(None) };
        let listener = bind(address).await?;
        let metrics = crate::serve::start_metrics()?;
        let mut routes = Router::new().route("/metrics", get(async move || metrics.render()));
        if let Some(token) = router_token() {
            if tls.is_none() && !address.ip().is_loopback() {
                tracing::warn!(%address, "routers send their token here without TLS: give --internal-cert");
            }
            let mut feed = RouterFeed::new(hub.clone(), &token);
            // A gateway without a chosen name may be registered by hand, under any.
            if self.id.is_some() || self.router.is_some() {
                feed = feed
                    .for_gateway(GatewayId::new(id).map_err(|error| invalid(error.context().to_owned()))?);
            }
            routes = routes.merge(feed.routes());
        }
        Ok(Some(match tls {
            None => tokio::spawn(serve(prompt(listener), routes, stop)),
            Some(tls) => tokio::spawn(serve(Secured::new(listener, tls), routes, stop)),
        }))
    }
}

/// The token with which a router brings batches. `FIRTH_TOKEN` is its older spelling.
pub(super) fn router_token() -> Option<String> {
    variable("FIRTH_GATEWAY_TOKEN").or_else(|| variable("FIRTH_TOKEN"))
}

async fn serve<L>(listener: L, routes: Router, stop: CancellationToken)
where
    L: Listener<Addr = SocketAddr>,
{
    let served = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::error!(%error, "the internal address is not served any more");
    }
}

/// Answers are small and wanted at once.
fn prompt(listener: TcpListener) -> impl Listener<Io = TcpStream, Addr = SocketAddr> {
    listener.tap_io(|stream| drop(stream.set_nodelay(true)))
}

/// Connections that have agreed on TLS. A peer that is slow to do so holds up no other.
struct Secured {
    address: io::Result<SocketAddr>,
    secured: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl Secured {
    fn new(mut listener: TcpListener, tls: Tls) -> Self {
        let address = listener.local_addr();
        let (give, secured) = mpsc::channel(1);
        tokio::spawn(async move {
            let room = Arc::new(Semaphore::new(HANDSHAKES));
            while let Ok(permit) = room.clone().acquire_owned().await {
                let (stream, peer) = tokio::select! {
                    accepted = Listener::accept(&mut listener) => accepted,
                    () = give.closed() => return,
                };
                let _ = stream.set_nodelay(true);
                let give = give.clone();
                let config = tls.for_routers();
                tokio::spawn(async move {
                    let secured = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream));
                    match secured.await {
                        Ok(Ok(stream)) => drop(give.send((stream, peer)).await),
                        Ok(Err(error)) => tracing::debug!(%error, "no TLS"),
                        Err(_) => tracing::debug!("no TLS in time"),
                    }
                    drop(permit);
                });
            }
        });
        Self { address, secured }
    }
}

impl Listener for Secured {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.secured.recv().await {
            Some(accepted) => accepted,
            // Its task lives as long as this.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.address.as_ref().copied().map_err(|error| error.kind().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r13_the_internal_address_answers_without_delay() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut listener = prompt(listener);
        let (_client, (stream, _)) = tokio::join!(TcpStream::connect(address), listener.accept());
        assert!(stream.nodelay().unwrap());
    }
}

//! Connections: accepted within a bound, served one task each, drained at the end.

use super::patient::Patient;
use super::tls::Tls;
use crate::api::{self, Peer};
use crate::app::App;
use crate::config::Limits;
use crate::problem::Problem;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

/// Serves until `stop`, then lets running requests finish for as long as the limits say.
pub(super) async fn run(listener: TcpListener, app: App, tls: Option<Tls>, stop: impl Future<Output = ()>) {
    let limits = app.limits();
    let room = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let tasks = TaskTracker::new();
    let draining = CancellationToken::new();
    let context = ConnectionContext { router: api::router(app.clone()), draining: draining.clone(), limits };
    let mut stop = std::pin::pin!(stop);
    loop {
        let next = async {
            let permit = room.clone().acquire_owned().await.expect("the semaphore is never closed");
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        let Ok((stream, peer)) = accepted.inspect_err(|error| tracing::warn!(%error, "accept failed")) else {
            // Mostly a want of file descriptors: others must end first.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Answers are small and wanted at once.
        let _ = stream.set_nodelay(true);
        let context = context.clone();
        let tls = tls.clone();
        tasks.spawn(async move {
            let _permit = permit;
            let stream = Patient::new(stream, context.limits.write_time);
            let Some(tls) = tls else { return context.serve(stream, peer.ip()).await };
            match tokio::time::timeout(context.limits.head_time, tls.acceptor().accept(stream)).await {
                Ok(Ok(stream)) => context.serve(stream, peer.ip()).await,
                Ok(Err(error)) => tracing::debug!(%error, "no TLS"),
                Err(_) => tracing::debug!("no TLS in time"),
            }
        });
    }
    drop(listener);
    tracing::info!("draining");
    app.drain();
    draining.cancel();
    tasks.close();
    let patience = app.limits().drain_time;
    if tokio::time::timeout(patience, tasks.wait()).await.is_err() {
        tracing::warn!(?patience, "some requests did not finish in time");
    }
}

/// What each connection needs.
#[derive(Clone)]
struct ConnectionContext {
    router: axum::Router,
    draining: CancellationToken,
    limits: Arc<Limits>,
}

impl ConnectionContext {
    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: IpAddr) {
        let router = self.router;
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            router.clone().call(request.map(Body::new))
        });
        let mut http = http1::Builder::new();
        // More headers than the API takes, so that it can say so itself.
        http.timer(TokioTimer::new()).header_read_timeout(self.limits.head_time).max_headers(256);
        let mut connection = http.serve_connection(TokioIo::new(stream), service);
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = self.draining.cancelled() => {
                Pin::new(&mut connection).graceful_shutdown();
                (&mut connection).await
            }
        };
        let Err(error) = ended else { return };
        tracing::debug!(%error, "connection ended");
        if error.is_timeout() {
            let parts = connection.into_parts();
            // A connection that is only idle is closed without a word.
            if !parts.read_buf.is_empty() {
                tell_too_slow(parts.io.into_inner(), self.limits.head_time).await;
            }
        }
    }
}

/// Half a request's head came, and no more.
async fn tell_too_slow(mut stream: impl AsyncWrite + Unpin, limit: Duration) {
    let problem = Problem::too_slow("head", limit);
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    // The client may be gone.
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

//! HTTP around the hub: routes, origins, and a listener that bounds what unknown clients may cost.

mod files;
mod poll;
mod sse;
mod ws;

use crate::config::Limits;
use crate::edge::{Certificate, Edge, HEAD};
use crate::limits::{ConnectionLimiter, ConnectionPermit};
use crate::protocol::{Code, EdgeError, server};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;
use tower_service::Service as _;

/// What a client must take within the time that a write may be stuck.
const PART: usize = 32 << 10;

pub(crate) fn routes(edge: Edge) -> axum::Router {
    axum::Router::new()
        .route("/v1/ws", get(ws::upgrade))
        .route("/v1/events", get(sse::events))
        .route("/v1/poll", post(poll::poll))
        .route("/v1/ticket", post(ticket))
        .merge(files::routes())
        .layer(axum::extract::DefaultBodyLimit::max(edge.hub().config().limits.message_bytes))
        .layer(from_fn_with_state(edge.clone(), only_known_pages))
        .route("/health/live", get(async || "live\n"))
        .route("/health/ready", get(ready))
        .with_state(edge)
}

async fn ready(State(edge): State<Edge>) -> (StatusCode, &'static str) {
    if edge.hub().is_closing() {
        (StatusCode::SERVICE_UNAVAILABLE, "closing\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

async fn nothing_here() -> Response {
    let message =
        "there is nothing here: /v1/ws, /v1/events and /v1/poll serve clients, /v1/example is a page";
    let error = EdgeError::invalid("path", message);
    (StatusCode::NOT_FOUND, json(server::error(&error, None).to_string())).into_response()
}

async fn ticket(State(edge): State<Edge>, headers: HeaderMap) -> Result<Response, EdgeError> {
    let ticket = edge.ticket(&headers)?;
    Ok(json(serde_json::json!({ "ticket": ticket }).to_string()))
}

/// Refuses strange pages, and tells browsers which may read answers.
async fn only_known_pages(State(edge): State<Edge>, request: Request, next: Next) -> Response {
    if let Err(error) = edge.check_page(request.headers()) {
        return error.into_response();
    }
    let origin = request.headers().get(header::ORIGIN).cloned();
    let mut response = match *request.method() {
        Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        _ => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let allowed = HeaderValue::from_static("authorization, content-type, last-event-id");
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
    response
}

impl IntoResponse for EdgeError {
    fn into_response(self) -> Response {
        crate::metrics::refused(self.code);
        let status = match self.code {
            Code::Invalid => StatusCode::BAD_REQUEST,
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::Forbidden => StatusCode::FORBIDDEN,
            Code::Limit | Code::Rate => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, json(server::error(&self, None).to_string())).into_response()
    }
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], text).into_response()
}

/// Where the connection comes from, if the server tells.
fn address(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip())
}

/// Accepts connections until `shutdown`; answers those that are open.
pub(crate) async fn listen(
    edge: &Edge,
    listener: TcpListener,
    certificate: Option<Certificate>,
    shutdown: impl Future<Output = ()>,
) -> TaskTracker {
    let open = TaskTracker::new();
    let routes = edge.routes().fallback(nothing_here);
    // A few more than may have sessions, so that most of those that may not can be told so.
    let Limits { connections, per_address, .. } = edge.hub().config().limits;
    let more = |count: usize| count.saturating_add(count / 10).saturating_add(16);
    let sockets = ConnectionLimiter::new(Limits {
        connections: more(connections),
        per_address: more(per_address),
        ..Limits::default()
    });
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => {
                open.close();
                return open;
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                // Without a word: to say why would take as long as the client likes.
                let Ok(place) = sockets.enter(Some(peer.ip())) else {
                    crate::metrics::refused(Code::Limit);
                    continue;
                };
                prepare(&stream, edge.hub().config().unreachable_after);
                let edge = edge.clone();
                let routes = routes.clone();
                let certificate = certificate.clone();
                open.spawn(async move {
                    let place = Counted::new(place);
                    match certificate {
                        None => serve(edge, routes, stream, peer).await,
                        Some(certificate) => {
                            if let Some(stream) = secure(&certificate, stream).await {
                                serve(edge, routes, stream, peer).await;
                            }
                        }
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                // Mostly a want of file descriptors: other connections must end first.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// A socket, in the metrics as long as it is open.
struct Counted {
    _place: ConnectionPermit,
}

impl Counted {
    fn new(place: ConnectionPermit) -> Self {
        crate::metrics::sockets(1.0);
        Self { _place: place }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        crate::metrics::sockets(-1.0);
    }
}

/// Events are small and wanted at once; a peer that acknowledges nothing for this long is gone.
fn prepare(stream: &TcpStream, patience: Duration) {
    let socket = socket2::SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(patience));
}

/// Speaks TLS with the certificate of this moment.
async fn secure(certificate: &Certificate, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    match timeout(HEAD, TlsAcceptor::from(certificate()).accept(stream)).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, "no TLS"),
        Err(_) => tracing::debug!("no TLS in time"),
    }
    None
}

async fn serve(
    edge: Edge,
    routes: axum::Router,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
) {
    let service = hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        routes.clone().call(request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(16 << 10);
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = edge.stop().cancelled() => {
            // The session of an answer may have ended before its last words are written.
            connection.as_mut().graceful_shutdown();
            match timeout(edge.hub().config().write_within, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Collections, Keys, Origins};
    use crate::{Config, Hub};
    use firth_router::Tenant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// The client takes 64 bytes at a time, so the session ends long before its answer does.
    #[tokio::test]
    async fn a_stream_is_written_to_its_end_when_the_gateway_closes() {
        let keys = Keys::default().with_token("ann", Tenant::new("acme").unwrap(), None, Collections::ALL);
        let edge = Edge::new(Hub::start(Config::default()).unwrap(), keys, Origins::default());
        let (mut client, stream) = tokio::io::duplex(64);
        let peer = "127.0.0.1:1".parse().unwrap();
        let connection = tokio::spawn(serve(edge.clone(), edge.routes(), stream, peer));
        let asked = "GET /v1/events?collection=orders HTTP/1.1\r\nhost: localhost\r\n";
        client.write_all(format!("{asked}authorization: Bearer ann\r\n\r\n").as_bytes()).await.unwrap();
        let mut read = Vec::new();
        while !String::from_utf8_lossy(&read).contains("subscribed") {
            assert!(client.read_buf(&mut read).await.unwrap() > 0, "{}", String::from_utf8_lossy(&read));
        }
        assert!(edge.close(Duration::from_secs(30)).await);
        client.read_to_end(&mut read).await.unwrap();
        connection.await.unwrap();
        let read = String::from_utf8(read).unwrap();
        assert!(read.contains(r#""type":"bye""#) && read.ends_with("\r\n0\r\n\r\n"), "{read}");
    }

    /// A phone that changes networks acknowledges nothing for some seconds.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn r20_a_client_may_be_unreachable_for_longer_than_a_write_may_be_stuck() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let config = Config::default();
        prepare(&stream, config.unreachable_after);
        let socket = socket2::SockRef::from(&stream);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(30)));
        assert!(socket.tcp_nodelay().unwrap() && config.unreachable_after > config.write_within);
    }
}

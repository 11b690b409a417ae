//! HTTP around the hub: routes, origins, and a listener that is careful with strangers.

mod poll;
mod sse;
mod ws;

use crate::edge::{Certificate, Edge, HEAD};
use crate::protocol::{Code, Refusal, server};
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
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tower_service::Service as _;

/// What a client must take within the time that a write may be stuck.
const PART: usize = 32 << 10;

/// The client for browsers, and a page that shows it.
const CLIENT: &str = include_str!("../../js/firth.js");
const PAGE: &str = include_str!("../../js/example.html");
const PAGE_SCRIPT: &str = include_str!("../../js/example.js");
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
/// The page runs its own scripts only and talks to its own host only.
const PAGE_MAY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

pub(crate) fn routes(edge: Edge) -> axum::Router {
    axum::Router::new()
        .route("/v1/ws", get(ws::upgrade))
        .route("/v1/events", get(sse::events))
        .route("/v1/poll", post(poll::poll))
        .route("/v1/ticket", post(ticket))
        .route("/v1/firth.js", get(async || ([(header::CONTENT_TYPE, JAVASCRIPT)], CLIENT)))
        .route("/v1/example.js", get(async || ([(header::CONTENT_TYPE, JAVASCRIPT)], PAGE_SCRIPT)))
        .route("/v1/example", get(page))
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
    let refusal = Refusal::invalid("path", message);
    (StatusCode::NOT_FOUND, json(server::error(&refusal, None).to_string())).into_response()
}

async fn page() -> impl IntoResponse {
    let headers =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, PAGE_MAY)];
    (headers, PAGE)
}

async fn ticket(State(edge): State<Edge>, headers: HeaderMap) -> Result<Response, Refusal> {
    let ticket = edge.ticket(&headers)?;
    Ok(json(serde_json::json!({ "ticket": ticket }).to_string()))
}

/// Refuses strange pages, and tells browsers which may read answers.
async fn only_known_pages(State(edge): State<Edge>, request: Request, next: Next) -> Response {
    if !edge.allows_origin(request.headers()) {
        let message = "pages of this origin may not connect: allow it with --origin";
        let refusal = Refusal { field: Some("origin".into()), ..Refusal::new(Code::Forbidden, message) };
        return refusal.into_response();
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

impl IntoResponse for Refusal {
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

/// Accepts connections until `shutdown`.
pub(crate) async fn listen(
    edge: &Edge,
    listener: TcpListener,
    certificate: Option<Certificate>,
    shutdown: impl Future<Output = ()>,
) {
    let routes = edge.routes().fallback(nothing_here);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                prepare(&stream, edge.hub().config().write_within);
                let (edge, routes, certificate) = (edge.clone(), routes.clone(), certificate.clone());
                tokio::spawn(async move {
                    match certificate {
                        None => serve(edge, routes, stream, peer).await,
                        Some(certificate) => {
                            if let Some(stream) = secure(&certificate, stream).await {
                                serve(edge, routes, stream, peer).await;
                            }
                        }
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                // Mostly a want of file descriptors: others must end first.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
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
    match tokio::time::timeout(HEAD, TlsAcceptor::from(certificate()).accept(stream)).await {
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
    tokio::select! {
        ended = connection => {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        }
        () = edge.stop().cancelled() => {}
    }
}

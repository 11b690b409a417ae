//! [`RegistryService`]: the registry over gRPC, the service of `proto/registry.proto`. Unary calls
//! only, so hyper and prost are enough.

mod callers;
mod client;
mod messages;
mod tls;

pub use callers::{Admitted, CallOutcome, Callers, Refused, RegistryCall, Report};
pub use client::RegistryClient;
pub use tls::ServerTls;

use super::{Access, Registry};
use crate::config::RoutingConfig;
use crate::deliver::connect::Socket;
use crate::deliver::grpc::frame;
use crate::error::{Error, ErrorKind, Result};
use bytes::{Buf, Bytes};
use callers::Reporting;
use futures_util::stream;
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use messages::{
    GatewayMessage, GatewayName, Registered, Removed, SubscriptionMessage, SubscriptionName, Usual,
};
use prost::Message;
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const PREFIX: &str = "/RegistryService/";
/// The largest request: a filter has at most 4 KiB, conditions are not much longer.
const MAX_REQUEST: usize = 64 << 10;
/// Connections at a time; more wait in the system's queue.
const MAX_CONNECTIONS: usize = 1024;
/// How long a caller may take to agree upon TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a call may take.
const MAX_TIME: Duration = Duration::from_secs(30);

/// An answer: one message and the status behind it.
pub type GrpcBody =
    StreamBody<stream::Iter<std::vec::IntoIter<std::result::Result<Frame<Bytes>, Infallible>>>>;

/// Registers gateways and subscriptions for its callers. Clones share everything.
#[derive(Clone)]
pub struct RegistryService(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    registry: Registry,
    token: Option<[u8; 32]>,
    callers: Option<Arc<dyn Callers>>,
    tls: Option<ServerTls>,
    usual: Usual,
}

impl RegistryService {
    /// The service on a registry; with a token, only for callers who send it as
    /// `authorization: Bearer …`.
    pub fn new(registry: Registry, token: Option<&str>) -> Self {
        let token = token.map(|token| Sha256::digest(token.as_bytes()).into());
        let RoutingConfig { mode, subscriptions, .. } = RoutingConfig::default();
        let usual = Usual { mode, ttl: subscriptions.ttl };
        Self(Arc::new(Inner { registry, token, callers: None, tls: None, usual }))
    }

    /// With the configured mode and time to live for subscriptions that do not say.
    #[must_use]
    pub fn configured(mut self, routing: &RoutingConfig) -> Self {
        let usual = Usual { mode: routing.mode, ttl: routing.subscriptions.ttl };
        Arc::make_mut(&mut self.0).usual = usual;
        self
    }

    /// Lets these decide on every call, instead of the token of [`new`](Self::new), which is good
    /// for every gateway and tenant.
    #[must_use]
    pub fn with_callers(mut self, callers: Arc<dyn Callers>) -> Self {
        Arc::make_mut(&mut self.0).callers = Some(callers);
        self
    }

    /// Serves over TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: ServerTls) -> Self {
        Arc::make_mut(&mut self.0).tls = Some(tls);
        self
    }

    /// Serves connections until `stop`, then lets running calls finish.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let tasks = TaskTracker::new();
        loop {
            let next = async {
                let permit = room.clone().acquire_owned().await.expect("the semaphore is never closed");
                (permit, listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                next = next => next,
                () = stop.cancelled() => break,
            };
            let Ok((stream, peer)) = accepted.inspect_err(|error| tracing::warn!(%error, "accept failed"))
            else {
                // Mostly a want of file descriptors: others must end first.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            // Answers are small and wanted at once.
            let _ = stream.set_nodelay(true);
            let service = self.clone();
            let stop = stop.clone();
            tasks.spawn(async move {
                let _permit = permit;
                let Some(stream) = service.secure(stream).await else { return };
                let service = service_fn(move |mut request: Request<Incoming>| {
                    let service = service.clone();
                    request.extensions_mut().insert(peer);
                    async move { Ok::<_, Infallible>(service.answer(request).await) }
                });
                let mut http = http2::Builder::new(TokioExecutor::new());
                http.timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(30));
                let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
                let ended = tokio::select! {
                    ended = &mut connection => ended,
                    () = stop.cancelled() => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                };
                if let Err(error) = ended {
                    tracing::debug!(%error, "a registry connection ended");
                }
            });
        }
        tasks.close();
        if tokio::time::timeout(MAX_TIME, tasks.wait()).await.is_err() {
            tracing::warn!("some registry connections did not end in time");
        }
    }

    /// The connection, after the handshake if there is one.
    async fn secure(&self, stream: TcpStream) -> Option<Box<dyn Socket>> {
        let Some(ServerTls(tls)) = &self.0.tls else { return Some(Box::new(stream)) };
        match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => Some(Box::new(stream)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a caller of the registry did not agree upon TLS");
                None
            }
            Err(_) => None,
        }
    }

    /// Answers one call; also one that came over another listener, which may tell the address of
    /// the other end by an extension of the type [`SocketAddr`].
    pub async fn answer<B>(&self, request: Request<B>) -> Response<GrpcBody>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let peer = head.extensions.get::<SocketAddr>().map(SocketAddr::ip);
        let Admitted { access, report } =
            match self.admit(&RegistryCall { path: head.uri.path(), headers: &head.headers, peer }) {
                Ok(admitted) => admitted,
                Err(Refused { status, text }) => return respond(Err((status, text))),
            };
        let mut reporting = Reporting::new(report);
        let answer = self.work(head.uri.path(), &access, body, &mut reporting.about).await;
        reporting.answered(answer.as_ref().map_or_else(|(status, _)| *status, |_| 0));
        respond(answer)
    }

    fn admit(&self, call: &RegistryCall<'_>) -> std::result::Result<Admitted, Refused> {
        match (&self.0.callers, &self.0.token) {
            (Some(callers), _) => callers.admit(call),
            (None, Some(token)) if !presents(call.headers, token) => {
                let text = "send `authorization: Bearer TOKEN` with the router's token";
                Err(Refused { status: 16, text: text.to_owned() })
            }
            (None, _) => Ok(Admitted { access: Access::default(), report: Box::new(|_| ()) }),
        }
    }

    /// Does what a call asks for; `about` gets what the call names.
    async fn work<B>(
        &self,
        path: &str,
        access: &Access,
        body: B,
        about: &mut String,
    ) -> std::result::Result<Bytes, (u32, String)>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Some(call) = path.strip_prefix(PREFIX) else {
            return Err((12, format!("there is no {path}: see proto/registry.proto")));
        };
        let work = async {
            let body = Limited::new(body, MAX_REQUEST).collect().await;
            let body = body.map_err(|_| too_much())?.to_bytes();
            self.call(call, access, body, about).await
        };
        match tokio::time::timeout(MAX_TIME, work).await {
            Ok(Ok(Some(message))) => Ok(message),
            Ok(Ok(None)) => Err((12, format!("there is no call {call}: see proto/registry.proto"))),
            Ok(Err(error)) => Err((status(error.kind()), error.context().to_owned())),
            Err(_) => Err((4, "no answer in time; it may have happened all the same".to_owned())),
        }
    }

    async fn call(
        &self,
        call: &str,
        access: &Access,
        body: Bytes,
        about: &mut String,
    ) -> Result<Option<Bytes>> {
        let registry = self.0.registry.limited(access);
        let lives =
            |seconds: u64| frame(&Registered { ttl_seconds: u32::try_from(seconds).unwrap_or(u32::MAX) });
        let removed =
            |count: usize| frame(&Removed { subscriptions: u32::try_from(count).unwrap_or(u32::MAX) });
        Ok(Some(match call {
            "RegisterGateway" => {
                let gateway = read::<GatewayMessage>(body)?.read()?;
                about.push_str(gateway.id.as_str());
                let seconds = gateway.ttl_seconds;
                registry.register_gateway(gateway).await?;
                lives(seconds)
            }
            "HeartbeatGateway" => {
                let (id, instance) = read::<GatewayName>(body)?.read()?;
                about.push_str(id.as_str());
                let gateway = registry.heartbeat_instance(&id, instance.as_deref()).await?;
                lives(gateway.ttl_seconds)
            }
            "UnregisterGateway" => {
                let (id, instance) = read::<GatewayName>(body)?.read()?;
                about.push_str(id.as_str());
                removed(registry.unregister_instance(&id, instance.as_deref()).await?.unwrap_or_default())
            }
            "Register" => {
                let subscription = read::<SubscriptionMessage>(body)?.read(&self.0.usual)?;
                *about = format!("{}/{}", subscription.tenant, subscription.id);
                let seconds = subscription.ttl_seconds;
                registry.register(subscription).await?;
                lives(seconds)
            }
            "Heartbeat" => {
                let (tenant, id) = read::<SubscriptionName>(body)?.read()?;
                *about = format!("{tenant}/{id}");
                registry.heartbeat(&tenant, &id).await?;
                lives(self.0.registry.subscription(&tenant, &id).map_or(0, |known| known.ttl_seconds))
            }
            "Unregister" => {
                let (tenant, id) = read::<SubscriptionName>(body)?.read()?;
                *about = format!("{tenant}/{id}");
                removed(usize::from(registry.unregister(&tenant, &id).await?))
            }
            _ => return Ok(None),
        }))
    }
}

impl fmt::Debug for RegistryService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegistryService({:?})", self.0.registry)
    }
}

/// Whether the headers hold the token with this digest.
fn presents(headers: &HeaderMap, expected: &[u8; 32]) -> bool {
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let given: [u8; 32] = Sha256::digest(given.as_bytes()).into();
    given.ct_eq(expected).into()
}

fn status(kind: ErrorKind) -> u32 {
    match kind {
        ErrorKind::Invalid => 3,
        ErrorKind::NotFound => 5,
        ErrorKind::Quota => 8,
        ErrorKind::Forbidden => 7,
        ErrorKind::Fenced => 9,
        ErrorKind::Corrupt => 15,
        ErrorKind::Unavailable | ErrorKind::Engine => 14,
    }
}

fn too_much() -> Error {
    Error::invalid(format!("a request did not arrive whole, or has more than {MAX_REQUEST} bytes"))
}

/// One message without compression behind its five bytes.
fn read<M: Message + Default>(mut body: Bytes) -> Result<M> {
    let wrong = |what: &str| Error::invalid(format!("the request is {what}"));
    if body.len() < 5 || body.get_u8() != 0 {
        return Err(wrong("no plain gRPC message"));
    }
    let length = body.get_u32() as usize;
    if body.len() != length {
        return Err(wrong("not one whole gRPC message"));
    }
    M::decode(body).map_err(|error| wrong("not the message of this call").with_source(error))
}

fn respond(answer: std::result::Result<Bytes, (u32, String)>) -> Response<GrpcBody> {
    let mut trailers = HeaderMap::new();
    let (code, data) = match answer {
        Ok(data) => (0, Some(Ok(Frame::data(data)))),
        Err((code, text)) => {
            // Percent-encoded, as gRPC has it: only what is printable stays.
            let encoded: String = text.bytes().map(percent).collect();
            if let Ok(value) = HeaderValue::try_from(encoded) {
                trailers.insert("grpc-message", value);
            }
            (code, None)
        }
    };
    trailers.insert("grpc-status", HeaderValue::from(code));
    let frames: Vec<_> = data.into_iter().chain([Ok(Frame::trailers(trailers))]).collect();
    let mut response = Response::new(StreamBody::new(stream::iter(frames)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn percent(byte: u8) -> String {
    match byte {
        b' '..=b'~' if byte != b'%' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    }
}

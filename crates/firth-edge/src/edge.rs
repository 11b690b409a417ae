//! [`Edge`]: a hub behind HTTP. Its routes can stand in anyone's axum program, or it serves them
//! itself ([`Edge::serve`]).

use crate::auth::ticket::Tickets;
use crate::auth::{Grant, Keys, Origins};
use crate::hub::{Hub, Session};
use crate::limits::{ConnectionLimiter, ConnectionPermit};
use crate::outbox::SlowPolicy;
use crate::protocol::{Code, EdgeError};
use crate::serve;
use axum::http::{HeaderMap, header};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio_rustls::rustls::ServerConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a client may take to send its request's head.
pub(crate) const HEAD: Duration = Duration::from_secs(15);

/// Gives the certificate of this moment, and how to speak TLS with it.
pub(crate) type Certificate = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// A hub behind HTTP. Clones share it.
#[derive(Clone)]
pub struct Edge(Arc<Inner>);

struct Inner {
    hub: Hub,
    keys: RwLock<Keys>,
    origins: Origins,
    tickets: Mutex<Tickets>,
    limiter: ConnectionLimiter,
    stop: CancellationToken,
}

impl Edge {
    /// An edge for clients with one of the keys, and for web pages of these origins.
    pub fn new(hub: Hub, keys: Keys, origins: Origins) -> Self {
        let limiter = ConnectionLimiter::new(hub.config().limits);
        let keys = RwLock::new(keys);
        let tickets = Mutex::default();
        let stop = CancellationToken::new();
        Self(Arc::new(Inner { hub, keys, origins, tickets, limiter, stop }))
    }

    /// Its hub.
    pub fn hub(&self) -> &Hub {
        &self.0.hub
    }

    /// The routes: `/v1/ws`, `/v1/events`, `/v1/poll`, `/v1/ticket`, `/v1/firth.js`,
    /// `/health/live`, `/health/ready`. Serve them with
    /// [`ConnectInfo`](axum::extract::ConnectInfo), or connections are not limited by address.
    pub fn routes(&self) -> axum::Router {
        serve::routes(self.clone())
    }

    /// Accepts these keys from now on; sessions that rest on other keys end.
    pub fn set_keys(&self, keys: Keys) {
        let mut held = self.0.keys.write().unwrap_or_else(PoisonError::into_inner);
        self.hub().end_unless(|grant| keys.still_hold(grant));
        *held = keys;
    }

    /// Serves its routes until `shutdown`, then tells clients to come back later, and waits for
    /// them to go, at most for `drain`.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>, drain: Duration) {
        let open = serve::listen(&self, listener, None, shutdown).await;
        self.close_all(&open, drain).await;
    }

    /// As [`serve`](Self::serve), over TLS alone. `certificate` is asked for each connection, so
    /// that it can be replaced while it runs.
    pub async fn serve_tls(
        self,
        listener: TcpListener,
        certificate: impl Fn() -> Arc<ServerConfig> + Send + Sync + 'static,
        shutdown: impl Future<Output = ()>,
        drain: Duration,
    ) {
        let open = serve::listen(&self, listener, Some(Arc::new(certificate)), shutdown).await;
        self.close_all(&open, drain).await;
    }

    /// Closes, and waits for the connections that write their last words.
    async fn close_all(&self, open: &TaskTracker, limit: Duration) {
        self.close(limit).await;
        let _ = tokio::time::timeout(limit, open.wait()).await;
    }

    /// Tells clients to come back later, and waits for them to go; false if some had not by then.
    pub async fn close(&self, limit: Duration) -> bool {
        self.hub().drain();
        let gone = async {
            self.hub().close(limit).await;
            self.0.stop.cancel();
            while self.0.limiter.inside() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let gone = tokio::time::timeout(limit, gone).await.is_ok();
        self.0.stop.cancel();
        gone
    }

    /// Cancelled when connections must end.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    pub(crate) fn enter(&self, address: Option<IpAddr>) -> Result<ConnectionPermit, EdgeError> {
        self.0.limiter.enter(address)
    }

    /// Checks the token and opens the session in one step, so that a key that is taken away in
    /// between admits no client.
    pub(crate) fn admit(&self, token: Option<&str>, slow: Option<SlowPolicy>) -> Result<Session, EdgeError> {
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        self.hub().join(keys.check(token, SystemTime::now())?, slow)
    }

    /// As [`admit`](Self::admit), for requests: by ticket or by header.
    pub(crate) fn admit_request(
        &self,
        ticket: Option<&str>,
        headers: &HeaderMap,
        slow: Option<SlowPolicy>,
    ) -> Result<Session, EdgeError> {
        let Some(ticket) = ticket else { return self.admit(bearer(headers), slow) };
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        let grant = self.tickets().redeem(ticket, tokio::time::Instant::now().into_std());
        let grant = grant.filter(|grant| keys.still_hold(grant)).ok_or_else(|| {
            let message = "this ticket was used or is too old: get a new one";
            EdgeError { field: Some("ticket".into()), ..EdgeError::new(Code::Unauthorized, message) }
        })?;
        self.hub().join(grant, slow)
    }

    /// Prolongs a session, in one step as [`admit`](Self::admit).
    pub(crate) fn renew(&self, session: &mut Session, token: Option<&str>) -> Result<(), EdgeError> {
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        session.regrant(keys.check(token, SystemTime::now())?)
    }

    /// Whether the keys cannot be replaced now.
    #[cfg(test)]
    pub(crate) fn keys_are_in_use(&self) -> bool {
        self.0.keys.try_write().is_err()
    }

    fn check(&self, token: Option<&str>) -> Result<Grant, EdgeError> {
        self.0.keys.read().unwrap_or_else(PoisonError::into_inner).check(token, SystemTime::now())
    }

    pub(crate) fn ticket(&self, headers: &HeaderMap) -> Result<String, EdgeError> {
        let grant = self.check(bearer(headers))?;
        self.tickets().issue(grant, tokio::time::Instant::now().into_std())
    }

    /// Refuses requests of strange pages, and those that were meant for another host.
    pub(crate) fn check_page(&self, headers: &HeaderMap) -> Result<(), EdgeError> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("null"));
        let stranger = |field: &'static str, message| {
            Err(EdgeError { field: Some(field.into()), ..EdgeError::new(Code::Forbidden, message) })
        };
        let is_open = self.0.keys.read().unwrap_or_else(PoisonError::into_inner).is_open();
        if !self.0.origins.is_host(text(header::HOST), is_open) {
            return stranger("host", "this gateway does not answer to this name: allow it with --host");
        }
        if !self.0.origins.allow(text(header::ORIGIN), text(header::HOST)) {
            return stranger("origin", "pages of this origin may not connect: allow it with --origin");
        }
        Ok(())
    }

    fn tickets(&self) -> std::sync::MutexGuard<'_, Tickets> {
        self.0.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The token of an `Authorization` header.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = given.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

impl std::fmt::Debug for Edge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Edge").field(self.hub()).finish()
    }
}

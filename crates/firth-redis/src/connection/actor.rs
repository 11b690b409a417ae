//! The task that owns a connection: connect, run until it breaks, wait, connect again. It runs no
//! code of the user (invariant 3) and ends with the last handle (invariant 9).

use super::driver::{ConnectionDriver, Exit};
use super::events::ConnectionPhase;
use super::handshake::{Established, establish};
use super::pipeline::NEVER;
use super::shared::ConnectionShared;
use super::state::ConnectionState;
use super::transport::Endpoint;
use crate::config::{Config, Server};
use crate::error::{ConnectError, ErrorChain, LostCause};
use crate::sentinel::SentinelResolver;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// A connection that is lost sooner than this counts as a failed attempt, so that the backoff
/// grows.
const SHORT_LIVED: Duration = Duration::from_secs(1);

/// Drives a connection until it is closed. The caller has made sure that it runs once.
pub(crate) fn run(shared: Arc<ConnectionShared>) -> impl Future<Output = ()> {
    let end = CloseOnExit(shared);
    async move { run_until_closed(&end.0).await }
}

/// Closes the connection on every exit of its task, also when the runtime ends, so that no caller
/// waits for a task that is gone.
struct CloseOnExit(Arc<ConnectionShared>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        self.0.closed(None);
        self.0.ended();
    }
}

async fn run_until_closed(shared: &ConnectionShared) {
    // Connections in a row that were open, but not for long.
    let mut short_lived = 0;
    loop {
        let (cause, refused) = match unless_closed(shared, connect(shared)).await {
            None => return,
            Some(Ok(established)) => {
                let since = Instant::now();
                match serve(shared, established).await {
                    Exit::Closed => return,
                    Exit::Lost(cause) => {
                        short_lived = if since.elapsed() < SHORT_LIVED { short_lived + 1 } else { 0 };
                        (cause, false)
                    }
                }
            }
            Some(Err(error)) => {
                let refused = error.is_refusal();
                let cause = LostCause::Reconnect(Arc::new(error));
                shared.failed(&cause, failed_phase(&cause), 0);
                (cause, refused)
            }
        };
        let failures = shared.attempts().saturating_add(short_lived);
        if !back_off(shared, &cause, failures, refused).await {
            return;
        }
    }
}

async fn connect(shared: &ConnectionShared) -> Result<Established, ConnectError> {
    let config = &shared.config;
    let attempt = async {
        match &config.server {
            Server::Tcp(address) => establish(config, Endpoint::Tcp(address.clone())).await,
            Server::Unix(path) => establish(config, Endpoint::Unix(path.clone())).await,
            Server::Sentinel(_) => sentinel_resolver(config)?.connect(config).await,
            Server::Cluster(_) => Err(ConnectError::config("server", "a cluster is not one connection")),
        }
    };
    tokio::select! {
        outcome = attempt => outcome,
        never = DeadlineTimer::new(shared) => match never {},
    }
}

async fn serve(shared: &ConnectionShared, established: Established) -> Exit {
    if !shared.opened(&established.endpoint, &established.server_info) {
        return Exit::Closed;
    }
    if let Some(resumed) = established.transport.is_resumed() {
        shared.meter.secured(resumed);
    }
    let endpoint = established.endpoint.clone();
    let mut driver = ConnectionDriver::new(shared, established);
    let exit = match &shared.config.sentinel_resolver {
        None => (&mut driver).await,
        Some(sentinel_resolver) => {
            drive_until_replaced(shared, sentinel_resolver, &endpoint, &mut driver).await
        }
    };
    match &exit {
        Exit::Lost(cause) => shared.failed(cause, ConnectionPhase::Runtime, driver.sent),
        Exit::Closed => {
            shared.closed(Some(driver.sent));
            driver.shut_down().await;
        }
    }
    exit
}

/// Drives a connection to a master until that is replaced. The shared connection follows the
/// sentinels for all.
async fn drive_until_replaced(
    shared: &ConnectionShared,
    sentinel_resolver: &SentinelResolver,
    master: &Endpoint,
    driver: &mut ConnectionDriver<'_>,
) -> Exit {
    tokio::select! {
        biased;
        exit = driver => exit,
        () = sentinel_resolver.replaced(master) => Exit::Lost(LostCause::Demoted),
        never = sentinel_resolver.watch_master(&shared.config), if shared.lane == "shared" => match never {},
    }
}

fn sentinel_resolver(config: &Config) -> Result<&SentinelResolver, ConnectError> {
    config.sentinel_resolver.as_deref().ok_or_else(|| ConnectError::config("server", "was not checked"))
}

/// Waits for the backoff. A server that refused the client is not asked again at once. False if no
/// attempt follows.
async fn back_off(shared: &ConnectionShared, cause: &LostCause, failures: u32, refused: bool) -> bool {
    let Some(backoff) = &shared.config.reconnect else { return false };
    let delay = backoff.delay(if refused { failures.saturating_add(backoff.immediate) } else { failures });
    tracing::debug!(cause = %ErrorChain(cause), ?delay, failures, "reconnecting");
    if !delay.is_zero() && unless_closed(shared, sleep(delay)).await.is_none() {
        return false;
    }
    shared.retry()
}

/// Runs a step unless the connection is closed first.
async fn unless_closed<T>(shared: &ConnectionShared, step: impl Future<Output = T>) -> Option<T> {
    let mut status = shared.watch_status();
    tokio::select! {
        biased;
        _ = status.wait_for(|c| matches!(c.state, ConnectionState::Closing | ConnectionState::Closed)) => None,
        outcome = step => Some(outcome),
    }
}

fn failed_phase(cause: &LostCause) -> ConnectionPhase {
    match cause {
        LostCause::Reconnect(error) => match **error {
            ConnectError::Refused { .. } | ConnectError::Broken { .. } => ConnectionPhase::Handshake,
            _ => ConnectionPhase::Connect,
        },
        _ => ConnectionPhase::Runtime,
    }
}

/// Expires requests that wait for the connection to open. Never ready.
struct DeadlineTimer<'a> {
    shared: &'a ConnectionShared,
    timer: Pin<Box<Sleep>>,
}

impl<'a> DeadlineTimer<'a> {
    fn new(shared: &'a ConnectionShared) -> Self {
        Self { shared, timer: Box::pin(sleep_until(shared.instant(0))) }
    }
}

impl Future for DeadlineTimer<'_> {
    type Output = std::convert::Infallible;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut wakers: Vec<Waker> = Vec::new();
        loop {
            let mut inner = self.shared.lock();
            inner.tick(self.shared.now());
            self.shared.expire(&mut inner, &mut wakers);
            inner.task = Some(cx.waker().clone());
            let due = inner.pipeline.earliest();
            drop(inner);
            wakers.drain(..).for_each(Waker::wake);
            if due == NEVER {
                return Poll::Pending;
            }
            let due = self.shared.instant(due);
            self.timer.as_mut().reset(due);
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

//! The task that owns a connection for its whole life: connect, run until it breaks, wait, connect again. It runs no
//! code of the user (invariant 3) and ends with the last handle (invariant 9).

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::{
    driver::{Driver, Exit},
    events::Stage,
    handshake::{Established, establish},
    pipeline::NEVER,
    shared::Shared,
    state::State,
    transport::Endpoint,
};
use crate::{
    config::{Config, Server},
    error::{Chain, ConnectError, LostCause},
    sentinel::Guide,
};

/// A connection that is lost sooner than this counts like a failed try: the next ones wait longer and longer.
const BRIEF: Duration = Duration::from_secs(1);

/// Drives a connection until it is closed. The caller has made sure that it runs once.
pub(crate) fn run(shared: Arc<Shared>) -> impl Future<Output = ()> {
    let end = End(shared);
    async move { live(&end.0).await }
}

/// Closes the connection however its task ends, be it with its runtime: nobody waits for a task that is gone.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.closed(None);
        self.0.ended();
    }
}

async fn live(shared: &Shared) {
    // Connections in a row that stood, but not for long.
    let mut brief = 0;
    loop {
        let (cause, refused) = match unless_closed(shared, connect(shared)).await {
            None => return,
            Some(Ok(established)) => {
                let since = Instant::now();
                match serve(shared, established).await {
                    Exit::Closed => return,
                    Exit::Lost(cause) => {
                        brief = if since.elapsed() < BRIEF { brief + 1 } else { 0 };
                        (cause, false)
                    }
                }
            }
            Some(Err(error)) => {
                let refused = error.is_refusal();
                let cause = LostCause::Reconnect(Arc::new(error));
                shared.failed(&cause, failed_stage(&cause), 0);
                (cause, refused)
            }
        };
        let failures = shared.attempts().saturating_add(brief);
        if !pause(shared, &cause, failures, refused).await {
            return;
        }
    }
}

async fn connect(shared: &Shared) -> Result<Established, ConnectError> {
    let config = &shared.config;
    let attempt = async {
        match &config.server {
            Server::Tcp(address) => establish(config, Endpoint::Tcp(address.clone())).await,
            Server::Unix(path) => establish(config, Endpoint::Unix(path.clone())).await,
            Server::Sentinel(_) => guide(config)?.connect(config).await,
            Server::Cluster(_) => Err(ConnectError::config("server", "a cluster is not one connection")),
        }
    };
    tokio::select! {
        outcome = attempt => outcome,
        never = Minder::new(shared) => match never {},
    }
}

async fn serve(shared: &Shared, established: Established) -> Exit {
    if !shared.opened(&established.endpoint, &established.greeting) {
        return Exit::Closed;
    }
    if let Some(resumed) = established.transport.is_resumed() {
        shared.meter.secured(resumed);
    }
    let endpoint = established.endpoint.clone();
    let mut driver = Driver::new(shared, established);
    let exit = match &shared.config.guide {
        None => (&mut driver).await,
        Some(guide) => follow(shared, guide, &endpoint, &mut driver).await,
    };
    match &exit {
        Exit::Lost(cause) => shared.failed(cause, Stage::Runtime, driver.sent),
        Exit::Closed => {
            shared.closed(Some(driver.sent));
            driver.shut_down().await;
        }
    }
    exit
}

/// Drives a connection to a master until that is replaced. The shared connection listens to the sentinels for all.
async fn follow(shared: &Shared, guide: &Guide, master: &Endpoint, driver: &mut Driver<'_>) -> Exit {
    tokio::select! {
        biased;
        exit = driver => exit,
        () = guide.replaced(master) => Exit::Lost(LostCause::Demoted),
        never = guide.keep_watch(&shared.config), if shared.lane == "shared" => match never {},
    }
}

fn guide(config: &Config) -> Result<&Guide, ConnectError> {
    config.guide.as_deref().ok_or_else(|| ConnectError::config("server", "was not checked"))
}

/// The backoff window. A server that refused us is not asked again at once. False if there is to be no other try.
async fn pause(shared: &Shared, cause: &LostCause, failures: u32, refused: bool) -> bool {
    let Some(backoff) = &shared.config.reconnect else { return false };
    let delay = backoff.delay(if refused { failures.saturating_add(backoff.immediate) } else { failures });
    tracing::debug!(cause = %Chain(cause), ?delay, failures, "reconnecting");
    if !delay.is_zero() && unless_closed(shared, sleep(delay)).await.is_none() {
        return false;
    }
    shared.retry()
}

/// Runs a step unless the connection is closed meanwhile.
async fn unless_closed<T>(shared: &Shared, step: impl Future<Output = T>) -> Option<T> {
    let mut condition = shared.watch_condition();
    tokio::select! {
        biased;
        _ = condition.wait_for(|c| matches!(c.state, State::Closing | State::Closed)) => None,
        outcome = step => Some(outcome),
    }
}

fn failed_stage(cause: &LostCause) -> Stage {
    match cause {
        LostCause::Reconnect(error) => match **error {
            ConnectError::Refused { .. } | ConnectError::Broken { .. } => Stage::Handshake,
            _ => Stage::Connect,
        },
        _ => Stage::Runtime,
    }
}

/// Keeps the deadlines of requests that wait for the connection to stand. Never ready.
struct Minder<'a> {
    shared: &'a Shared,
    timer: Pin<Box<Sleep>>,
}

impl<'a> Minder<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, timer: Box::pin(sleep_until(shared.instant(0))) }
    }
}

impl Future for Minder<'_> {
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

//! The task that owns a connection for its whole life: connect, run until it breaks, wait, connect again. It runs no
//! code of the user (invariant 3) and ends with the last handle (invariant 9).

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::time::{Sleep, sleep, sleep_until};

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
    config::Server,
    error::{ConnectError, LostCause},
    sentinel,
};

/// Drives a connection until it is closed. The caller has made sure that it runs once.
pub(crate) async fn run(shared: Arc<Shared>) {
    live(&shared).await;
    shared.closed(0);
    shared.ended();
}

async fn live(shared: &Shared) {
    loop {
        let (cause, immediately) = match unless_closed(shared, connect(shared)).await {
            None => return,
            Some(Ok(established)) => match serve(shared, established).await {
                Exit::Closed => return,
                Exit::Lost(cause) => (cause, true),
            },
            Some(Err(error)) => {
                let immediately = !error.is_refusal();
                let cause = LostCause::Reconnect(Arc::new(error));
                shared.failed(&cause, failed_stage(&cause), 0);
                (cause, immediately)
            }
        };
        if !pause(shared, &cause, immediately).await {
            return;
        }
    }
}

async fn connect(shared: &Shared) -> Result<Established, ConnectError> {
    let config = &shared.config;
    let attempt = async {
        let endpoint = match &config.server {
            Server::Tcp(address) => Endpoint::Tcp(address.clone()),
            Server::Unix(path) => Endpoint::Unix(path.clone()),
            Server::Sentinel(sentinels) => sentinel::locate(config, sentinels).await?,
            Server::Cluster(_) => {
                return Err(ConnectError::config("server", "a cluster is not one connection"));
            }
        };
        let established = establish(config, &endpoint).await?;
        sentinel::check_role(config, &established.greeting)?;
        Ok(established)
    };
    tokio::select! {
        outcome = attempt => outcome,
        never = Minder::new(shared) => match never {},
    }
}

async fn serve(shared: &Shared, established: Established) -> Exit {
    if !shared.opened(&established.greeting) {
        return Exit::Closed;
    }
    let mut driver = Driver::new(shared, established);
    let exit = (&mut driver).await;
    match &exit {
        Exit::Lost(cause) => shared.failed(cause, Stage::Runtime, driver.sent),
        Exit::Closed => {
            shared.closed(driver.sent);
            driver.shut_down().await;
        }
    }
    exit
}

/// The backoff window. False if there is to be no other try.
async fn pause(shared: &Shared, cause: &LostCause, immediately: bool) -> bool {
    let Some(backoff) = &shared.config.reconnect else { return false };
    let attempts = shared.attempts();
    let attempts = if immediately { attempts } else { attempts.max(backoff.immediate) };
    let delay = backoff.delay(attempts);
    tracing::debug!(%cause, ?delay, attempts, "reconnecting");
    if !delay.is_zero() && unless_closed(shared, sleep(delay)).await.is_none() {
        return false;
    }
    shared.retry()
}

/// Runs a step unless the connection is closed meanwhile.
async fn unless_closed<T>(shared: &Shared, step: impl Future<Output = T>) -> Option<T> {
    let mut state = shared.watch_state();
    tokio::select! {
        biased;
        _ = state.wait_for(|s| matches!(s, State::Closing | State::Closed)) => None,
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
            inner.now = self.shared.now();
            let now = inner.now;
            inner.pipeline.expire(now, 0, &mut wakers);
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

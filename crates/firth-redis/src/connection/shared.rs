//! State that the handles of a connection and its task share: under one lock that is held for a few
//! dozen nanoseconds. Callers encode straight into the output; the task swaps it out whole. Bounded
//! by requests and bytes (invariant 4).

use super::events::{self, ConnectionEvent, ConnectionEventKind, ConnectionPhase};
use super::handshake::ServerInfo;
use super::locked_state::{LockedState, Submitted};
use super::pipeline::{NEVER, RequestFailure, RequestMeta, RequestOutcome};
use super::push_queue::{PushItem, PushQueue};
use super::request::Request;
use super::state::ConnectionState;
use super::transport::Endpoint;
use crate::config::Config;
use crate::error::{ErrorChain, LostCause};
use crate::metrics::ConnectionMeter;
use crate::resp::Frame;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

/// Longer than any process lives, in ms.
const FOR_EVER: u64 = 1 << 40;

/// How many pushes are kept for a slow listener of [`Client::pushes`](crate::Client::pushes).
const PUSH_CAPACITY: usize = 1024;

pub(crate) struct ConnectionShared {
    pub(crate) config: Config,
    pub(crate) lane: &'static str,
    pub(crate) meter: ConnectionMeter,
    /// Set for a connection without requests: all frames go there.
    pub(crate) push_queue: Option<Arc<PushQueue>>,
    pub(crate) pushes: broadcast::Sender<Arc<Frame>>,
    inner: Mutex<LockedState>,
    room: Arc<Notify>,
    base: Instant,
    status: watch::Sender<ConnectionStatus>,
    running: watch::Sender<bool>,
    events: broadcast::Sender<ConnectionEvent>,
}

/// Published state of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionStatus {
    pub(crate) state: ConnectionState,
    /// Counts failures, so that a watcher misses none although the next attempt has begun.
    pub(crate) failures: u64,
}

impl ConnectionShared {
    pub(crate) fn new(config: Config, lane: &'static str, push_queue: Option<Arc<PushQueue>>) -> Self {
        Self {
            meter: ConnectionMeter::new(lane, config.tls.is_some()),
            config,
            lane,
            push_queue,
            pushes: broadcast::Sender::new(PUSH_CAPACITY),
            inner: Mutex::new(LockedState::new()),
            room: Arc::new(Notify::new()),
            base: Instant::now(),
            status: watch::Sender::new(ConnectionStatus { state: ConnectionState::Init, failures: 0 }),
            running: watch::Sender::new(false),
            events: broadcast::Sender::new(events::CAPACITY),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, LockedState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the connection was made.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }

    /// Instant of a time in ms; for `NEVER`, some decades from now.
    pub(crate) fn instant(&self, at: u64) -> Instant {
        self.base + Duration::from_millis(at.min(FOR_EVER))
    }

    /// Puts a request into the output and the pipeline, if there is room.
    #[inline]
    pub(crate) fn submit(
        &self,
        request: &Request<'_>,
        timeout: Option<Duration>,
        waker: &Waker,
    ) -> Submitted {
        let mut inner = self.lock();
        if let Err(refusal) = inner.admit(self.config.queue, request.wire_len()) {
            return refusal;
        }
        let task = inner.task.take();
        if task.is_some() {
            // The task sleeps, so its clock may stand still.
            inner.now = self.now();
        }
        // The clock may be a fraction ahead of `now`: a deadline is never early.
        let deadline = timeout.map_or(NEVER, |t| inner.now.saturating_add(millis(t)).saturating_add(1));
        let start = inner.end();
        request.encode(&mut inner.out);
        let usual = self.config.timeouts.request;
        let long = timeout.is_none_or(|limit| usual.is_some_and(|usual| limit > usual));
        let blocking = request.is_blocking();
        let meta = RequestMeta { replies: request.replies(), start, deadline, blocking, long };
        let slot = inner.pipeline.push(meta, waker.clone());
        drop(inner);
        wake(task);
        Submitted::Queued(slot)
    }

    /// Sends operations up to `op`, whose answers go to the push queue, if this very connection is
    /// still open. Never refused for lack of room: the wanted subscriptions bound what a mux sends.
    pub(crate) fn send_unpaired(&self, generation: u64, op: u64, bytes: &[u8]) -> bool {
        let mut inner = self.lock();
        if inner.machine.generation() != generation || inner.machine.state() != ConnectionState::Open {
            return false;
        }
        inner.out.extend_from_slice(bytes);
        inner.last_op = op;
        let task = inner.task.take();
        drop(inner);
        wake(task);
        true
    }

    /// Breaks the connection, which then reconnects.
    pub(crate) fn reset(&self) {
        let mut inner = self.lock();
        inner.reset = true;
        let task = inner.task.take();
        drop(inner);
        wake(task);
    }

    /// Outcome of a request; else the waker is stored.
    #[inline]
    pub(crate) fn poll_outcome(&self, slot: usize, waker: &Waker) -> Option<RequestOutcome> {
        self.lock().pipeline.poll(slot, waker)
    }

    pub(crate) fn abandon(&self, slot: usize) {
        self.lock().pipeline.abandon(slot);
    }

    /// Requests whose reply has not come or not been picked up.
    pub(crate) fn in_flight(&self) -> usize {
        self.lock().pipeline.unfinished()
    }

    /// Ends requests whose deadline has passed; those that the task has not taken are never sent.
    pub(crate) fn expire(&self, inner: &mut LockedState, wakers: &mut Vec<Waker>) {
        if inner.now < inner.pipeline.earliest() {
            return;
        }
        let before = wakers.len();
        inner.pipeline.expire(inner.now, inner.taken, wakers);
        self.meter.timeouts.increment((wakers.len() - before) as u64);
        let freed = inner.withdraw();
        self.make_room(inner, freed);
    }

    /// Waits until a request of this size may enter, or must be refused. Another caller may be
    /// quicker: then try and wait again.
    pub(crate) async fn wait_for_room(self: Arc<Self>, bytes: usize) {
        let _counted = RoomWait::new(&self);
        loop {
            let notified = self.room.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if !matches!(self.lock().admit(self.config.queue, bytes), Err(Submitted::Wait)) {
                return;
            }
            notified.await;
        }
    }

    /// Lets as many waiters try again as requests were answered.
    pub(crate) fn make_room(&self, inner: &LockedState, freed: usize) {
        for _ in 0..freed.min(inner.waiting) {
            self.room.notify_one();
        }
    }

    // ---- state ------------------------------------------------------------------------------

    /// Starts the connection; false if it runs.
    pub(crate) fn start(&self) -> bool {
        let mut inner = self.lock();
        if *self.running.borrow() || !inner.machine.start() {
            return false;
        }
        (inner.asked_to_close, inner.abort) = (false, false);
        self.running.send_replace(true);
        self.publish(&inner);
        true
    }

    /// The last act of the task.
    pub(crate) fn ended(&self) {
        self.running.send_replace(false);
    }

    pub(crate) fn opened(&self, endpoint: &Endpoint, server_info: &ServerInfo) -> bool {
        let mut inner = self.lock();
        if !inner.machine.opened() {
            return false;
        }
        inner.server_info = Some(server_info.clone());
        inner.node = self.config.trace.as_ref().map(|_| endpoint.to_string().into());
        inner.reset = false;
        let freed = inner.withdraw();
        self.make_room(&inner, freed);
        self.publish(&inner);
        self.meter.opened.increment(1);
        self.tell(&inner, ConnectionEventKind::Connected, ConnectionPhase::Connect, None);
        if let Some(push_queue) = &self.push_queue {
            let generation = inner.machine.generation();
            push_queue.push(PushItem::Opened { generation, server_info: server_info.clone() });
        }
        true
    }

    /// The connection, or an attempt, failed: every request ends, and new ones are refused until
    /// the next attempt. `sent` is the number of bytes that the network has taken.
    pub(crate) fn failed(&self, cause: &LostCause, phase: ConnectionPhase, sent: u64) {
        let mut inner = self.lock();
        let news = inner.machine.failed();
        if !news && inner.machine.state() != ConnectionState::Closing {
            return;
        }
        let failure = |sent| RequestFailure::Lost { sent, cause: cause.clone() };
        let wakers = inner.end_all(sent, failure);
        self.meter.in_flight.set(0);
        inner.last_error = Some(cause.clone());
        self.status.send_modify(|c| c.failures += 1);
        self.publish(&inner);
        self.make_room(&inner, usize::MAX);
        match phase {
            ConnectionPhase::Runtime => self.meter.lost.increment(1),
            _ => self.meter.failed_attempts.increment(1),
        }
        self.tell(&inner, ConnectionEventKind::Disconnected, phase, Some(cause.clone()));
        drop(inner);
        if let Some(push_queue) = &self.push_queue {
            push_queue.push(PushItem::Lost(cause.clone()));
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn retry(&self) -> bool {
        let mut inner = self.lock();
        let retried = inner.machine.retry();
        if retried {
            self.publish(&inner);
        }
        retried
    }

    /// Closes the connection: requests that still wait fail. `sent` is the number of bytes that the
    /// network has taken, if known.
    pub(crate) fn closed(&self, sent: Option<u64>) {
        let mut inner = self.lock();
        inner.machine.give_up();
        // What the task has taken may have been sent.
        let sent = sent.unwrap_or(inner.taken);
        let wakers = inner.end_all(sent, |sent| RequestFailure::Closed { sent });
        self.meter.in_flight.set(0);
        let news = self.state() != ConnectionState::Closed;
        self.publish(&inner);
        self.make_room(&inner, usize::MAX);
        if news {
            let cause = inner.last_error.clone().filter(|_| !inner.asked_to_close);
            self.tell(&inner, ConnectionEventKind::Closed, ConnectionPhase::Close, cause);
        }
        let task = inner.task.take();
        drop(inner);
        if let Some(push_queue) = self.push_queue.as_ref().filter(|_| news) {
            push_queue.push(PushItem::Closed);
        }
        wakers.into_iter().for_each(Waker::wake);
        wake(task);
    }

    /// Requests the end. An open connection finishes its requests, unless `abort` is set. The task
    /// is told, because it knows best what was sent.
    pub(crate) fn begin_close(&self, abort: bool) {
        let mut inner = self.lock();
        inner.abort |= abort;
        match inner.machine.state() {
            ConnectionState::Closed => {}
            ConnectionState::Open | ConnectionState::Closing => {
                inner.asked_to_close = true;
                inner.machine.close();
                self.publish(&inner);
                self.make_room(&inner, usize::MAX);
                let task = inner.task.take();
                drop(inner);
                wake(task);
            }
            _ => {
                inner.asked_to_close = true;
                drop(inner);
                self.closed(None);
            }
        }
    }

    fn publish(&self, inner: &LockedState) {
        let state = inner.machine.state();
        self.status.send_modify(|c| c.state = state);
    }

    fn tell(
        &self,
        inner: &LockedState,
        kind: ConnectionEventKind,
        phase: ConnectionPhase,
        cause: Option<LostCause>,
    ) {
        let generation = inner.machine.generation();
        let attempts = inner.machine.attempts();
        let first = if kind == ConnectionEventKind::Connected { 1 } else { 0 };
        let phase = if phase == ConnectionPhase::Connect && generation > first {
            ConnectionPhase::Reconnect
        } else {
            phase
        };
        let why = cause.as_ref().map(|c| tracing::field::display(ErrorChain(c)));
        tracing::debug!(?kind, ?phase, generation, attempts, cause = why, "connection");
        // The send fails only without a watcher.
        let _ = self.events.send(ConnectionEvent { kind, phase, generation, attempts, cause });
    }

    pub(crate) fn state(&self) -> ConnectionState {
        self.status.borrow().state
    }

    pub(crate) fn watch_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.subscribe()
    }

    pub(crate) fn watch_running(&self) -> watch::Receiver<bool> {
        self.running.subscribe()
    }

    pub(crate) fn watch_events(&self) -> broadcast::Receiver<ConnectionEvent> {
        self.events.subscribe()
    }

    pub(crate) fn last_error(&self) -> Option<LostCause> {
        self.lock().last_error.clone()
    }

    /// Error that caused the state, unless the end was requested.
    pub(crate) fn unexpected_error(&self) -> Option<LostCause> {
        let inner = self.lock();
        inner.last_error.clone().filter(|_| !inner.asked_to_close)
    }

    pub(crate) fn server_info(&self) -> Option<ServerInfo> {
        self.lock().server_info.clone()
    }

    /// Where the connection leads; known only with a trace hook.
    pub(crate) fn node(&self) -> Option<Arc<str>> {
        self.lock().node.clone()
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.lock().machine.attempts()
    }
}

/// Counts a caller that waits for room. When it is done, the next one may try.
struct RoomWait<'a>(&'a ConnectionShared);

impl<'a> RoomWait<'a> {
    fn new(shared: &'a ConnectionShared) -> Self {
        shared.lock().waiting += 1;
        Self(shared)
    }
}

impl Drop for RoomWait<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.waiting -= 1;
        self.0.make_room(&inner, 1);
    }
}

/// Milliseconds, rounded up; `NEVER` for what does not fit.
pub(crate) fn millis(duration: Duration) -> u64 {
    let rest = u64::from(duration.subsec_nanos().div_ceil(1_000_000));
    duration.as_secs().saturating_mul(1000).saturating_add(rest)
}

fn wake(task: Option<Waker>) {
    if let Some(task) = task {
        task.wake();
    }
}

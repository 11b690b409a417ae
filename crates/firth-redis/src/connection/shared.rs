//! What the handles of a connection and its task share: the state, the pipeline and the output buffer, under one lock
//! that is held for a few dozen nanoseconds. Callers encode straight into the output; the task swaps it out whole.
//! Bounded by requests and bytes (invariant 4).

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use tokio::{
    sync::{Notify, broadcast, watch},
    time::Instant,
};

use super::{
    events::{self, ConnectionEvent, EventKind, Stage},
    feed::{Feed, FeedItem},
    handshake::Greeting,
    inner::{Inner, Submitted},
    pipeline::{Failure, NEVER, Outcome, Ticket},
    request::Request,
    state::State,
    transport::Endpoint,
};
use crate::{
    config::Config,
    error::{Chain, LostCause},
    metrics::Meter,
    resp::Frame,
};

/// So many ms are longer than any process lives.
const FOR_EVER: u64 = 1 << 40;

/// How many pushes are kept for a slow listener of [`Client::pushes`](crate::Client::pushes).
const PUSH_CAPACITY: usize = 1024;

pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) lane: &'static str,
    pub(crate) meter: Meter,
    /// Set for a connection without requests: everything that comes goes there.
    pub(crate) feed: Option<Arc<Feed>>,
    pub(crate) pushes: broadcast::Sender<Arc<Frame>>,
    inner: Mutex<Inner>,
    room: Arc<Notify>,
    base: Instant,
    condition: watch::Sender<Condition>,
    running: watch::Sender<bool>,
    events: broadcast::Sender<ConnectionEvent>,
}

/// What is published of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Condition {
    pub(crate) state: State,
    /// Counts failures, so that one is not missed although the next try has already begun.
    pub(crate) failures: u64,
}

impl Shared {
    pub(crate) fn new(config: Config, lane: &'static str, feed: Option<Arc<Feed>>) -> Self {
        Self {
            meter: Meter::new(lane, config.tls.is_some()),
            config,
            lane,
            feed,
            pushes: broadcast::Sender::new(PUSH_CAPACITY),
            inner: Mutex::new(Inner::new()),
            room: Arc::new(Notify::new()),
            base: Instant::now(),
            condition: watch::Sender::new(Condition { state: State::Init, failures: 0 }),
            running: watch::Sender::new(false),
            events: broadcast::Sender::new(events::CAPACITY),
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the connection was made.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }

    /// The instant of a time in ms; of one beyond all plans, some decades from now.
    pub(crate) fn instant(&self, at: u64) -> Instant {
        self.base + Duration::from_millis(at.min(FOR_EVER))
    }

    /// Puts a request into the output and the line, if there is room.
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
        let patient = request.is_patient();
        let ticket = Ticket { replies: request.replies(), start, deadline, patient, long };
        let slot = inner.pipeline.push(ticket, waker.clone());
        drop(inner);
        wake(task);
        Submitted::Queued(slot)
    }

    /// Sends operations up to `op`, whose answers go to the feed, if this very connection still
    /// stands. Never refused for lack of room: what a feed's owner sends is bounded by what it
    /// wants subscribed.
    pub(crate) fn send_unpaired(&self, generation: u64, op: u64, bytes: &[u8]) -> bool {
        let mut inner = self.lock();
        if inner.machine.generation() != generation || inner.machine.state() != State::Open {
            return false;
        }
        inner.out.extend_from_slice(bytes);
        inner.last_op = op;
        let task = inner.task.take();
        drop(inner);
        wake(task);
        true
    }

    /// Breaks the connection, which then starts afresh.
    pub(crate) fn reset(&self) {
        let mut inner = self.lock();
        inner.reset = true;
        let task = inner.task.take();
        drop(inner);
        wake(task);
    }

    /// The outcome of a request, or the promise to wake.
    #[inline]
    pub(crate) fn poll_outcome(&self, slot: usize, waker: &Waker) -> Option<Outcome> {
        self.lock().pipeline.poll(slot, waker)
    }

    pub(crate) fn abandon(&self, slot: usize) {
        self.lock().pipeline.abandon(slot);
    }

    /// Requests whose reply has not come or not been picked up.
    pub(crate) fn in_flight(&self) -> usize {
        self.lock().pipeline.unfinished()
    }

    /// Ends the requests whose time is up; those that are not with the task yet are never sent.
    pub(crate) fn expire(&self, inner: &mut Inner, wakers: &mut Vec<Waker>) {
        if inner.now < inner.pipeline.earliest() {
            return;
        }
        let before = wakers.len();
        inner.pipeline.expire(inner.now, inner.taken, wakers);
        self.meter.timeouts.increment((wakers.len() - before) as u64);
        let freed = inner.withdraw();
        self.make_room(inner, freed);
    }

    /// Waits until a request of this size may enter, or must be refused. Somebody else may be quicker: try, and
    /// wait again.
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
    pub(crate) fn make_room(&self, inner: &Inner, freed: usize) {
        for _ in 0..freed.min(inner.waiting) {
            self.room.notify_one();
        }
    }

    // ---- state -------------------------------------------------------------------------------------------------

    /// Begins a life; false if one is under way.
    pub(crate) fn start(&self) -> bool {
        let mut inner = self.lock();
        if *self.running.borrow() || !inner.machine.start() {
            return false;
        }
        (inner.asked_to_close, inner.hurry) = (false, false);
        self.running.send_replace(true);
        self.publish(&inner);
        true
    }

    /// The last act of the task.
    pub(crate) fn ended(&self) {
        self.running.send_replace(false);
    }

    pub(crate) fn opened(&self, endpoint: &Endpoint, greeting: &Greeting) -> bool {
        let mut inner = self.lock();
        if !inner.machine.opened() {
            return false;
        }
        inner.greeting = Some(greeting.clone());
        inner.node = self.config.trace.as_ref().map(|_| endpoint.to_string().into());
        inner.reset = false;
        let freed = inner.withdraw();
        self.make_room(&inner, freed);
        self.publish(&inner);
        self.meter.opened.increment(1);
        self.tell(&inner, EventKind::Connected, Stage::Connect, None);
        if let Some(feed) = &self.feed {
            let generation = inner.machine.generation();
            feed.notice(FeedItem::Opened { generation, greeting: greeting.clone() });
        }
        true
    }

    /// The connection, or a try, failed: every request ends, and until the next try new ones are refused. `sent` is
    /// the number of bytes that the network has taken.
    pub(crate) fn failed(&self, cause: &LostCause, stage: Stage, sent: u64) {
        let mut inner = self.lock();
        let news = inner.machine.failed();
        if !news && inner.machine.state() != State::Closing {
            return;
        }
        let failure = |sent| Failure::Lost { sent, cause: cause.clone() };
        let wakers = inner.end_all(sent, failure);
        self.meter.in_flight.set(0);
        inner.last_error = Some(cause.clone());
        self.condition.send_modify(|c| c.failures += 1);
        self.publish(&inner);
        self.make_room(&inner, usize::MAX);
        match stage {
            Stage::Runtime => self.meter.lost.increment(1),
            _ => self.meter.failed_attempts.increment(1),
        }
        self.tell(&inner, EventKind::Disconnected, stage, Some(cause.clone()));
        drop(inner);
        if let Some(feed) = &self.feed {
            feed.notice(FeedItem::Lost(cause.clone()));
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

    /// The end: whatever still waits fails. `sent` is the number of bytes that the network has taken, if known.
    pub(crate) fn closed(&self, sent: Option<u64>) {
        let mut inner = self.lock();
        inner.machine.give_up();
        // What the task has taken may have been sent.
        let sent = sent.unwrap_or(inner.taken);
        let wakers = inner.end_all(sent, |sent| Failure::Closed { sent });
        self.meter.in_flight.set(0);
        let news = self.state() != State::Closed;
        self.publish(&inner);
        self.make_room(&inner, usize::MAX);
        if news {
            let cause = inner.last_error.clone().filter(|_| !inner.asked_to_close);
            self.tell(&inner, EventKind::Closed, Stage::Close, cause);
        }
        let task = inner.task.take();
        drop(inner);
        if let Some(feed) = self.feed.as_ref().filter(|_| news) {
            feed.notice(FeedItem::Closed);
        }
        wakers.into_iter().for_each(Waker::wake);
        wake(task);
    }

    /// Asks for an end: an open connection finishes what is under way, unless that is in a `hurry`. The task is told;
    /// it knows best what was sent.
    pub(crate) fn begin_close(&self, hurry: bool) {
        let mut inner = self.lock();
        inner.hurry |= hurry;
        match inner.machine.state() {
            State::Closed => {}
            State::Open | State::Closing => {
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

    fn publish(&self, inner: &Inner) {
        let state = inner.machine.state();
        self.condition.send_modify(|c| c.state = state);
    }

    fn tell(&self, inner: &Inner, kind: EventKind, stage: Stage, cause: Option<LostCause>) {
        let (generation, attempts) = (inner.machine.generation(), inner.machine.attempts());
        let first = if kind == EventKind::Connected { 1 } else { 0 };
        let stage = if stage == Stage::Connect && generation > first { Stage::Reconnect } else { stage };
        let why = cause.as_ref().map(|c| tracing::field::display(Chain(c)));
        tracing::debug!(?kind, ?stage, generation, attempts, cause = why, "connection");
        // Nobody may be watching: then there is nobody to tell.
        let _ = self.events.send(ConnectionEvent { kind, stage, generation, attempts, cause });
    }

    pub(crate) fn state(&self) -> State {
        self.condition.borrow().state
    }

    pub(crate) fn watch_condition(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
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

    /// The error to blame for the state, if the end was not asked for.
    pub(crate) fn blame(&self) -> Option<LostCause> {
        let inner = self.lock();
        inner.last_error.clone().filter(|_| !inner.asked_to_close)
    }

    pub(crate) fn greeting(&self) -> Option<Greeting> {
        self.lock().greeting.clone()
    }

    /// Where the connection leads; known only with a trace hook.
    pub(crate) fn node(&self) -> Option<Arc<str>> {
        self.lock().node.clone()
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.lock().machine.attempts()
    }
}

/// Counts a caller that waits for room. When it is done, with or without success, the next one may look.
struct RoomWait<'a>(&'a Shared);

impl<'a> RoomWait<'a> {
    fn new(shared: &'a Shared) -> Self {
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

//! The loop of an open connection: the only code that touches its socket (invariant 1).
//!
//! Each turn reads what came, pairs it with the requests, takes what callers have encoded, and
//! writes it. Reading and writing never wait for each other.
//!
//! **Flush coalescing.** With more than one request in flight the task yields once before it
//! writes, so that one write carries the requests of many callers. A lone caller never waits.

use super::handshake::Established;
use super::liveness::{LivenessAction, LivenessDetector, SlowRequest};
use super::locked_state::LockedState;
use super::pipeline::NEVER;
use super::probe::{self, Probe, ProbeResult};
use super::read_buffer::ReadBuffer;
use super::shared::{ConnectionShared, millis};
use super::state::ConnectionState;
use super::transport::{Endpoint, Transport};
use crate::backoff::Backoff;
use crate::config::Server;
use crate::error::LostCause;
use crate::error_origin::is_demoted;
use crate::resp::pubsub::PubSubFrame;
use crate::resp::{Decoder, Frame, ValueKind};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::AsyncWrite;
use tokio::time::{Sleep, sleep_until};
use tokio_util::io::poll_read_buf;

/// Most replies that are delivered under one lock: callers on other threads work between two
/// batches.
const BATCH: usize = 128;
/// An output buffer larger than this is given back when the connection is idle.
const OUTPUT_KEPT: usize = 256 << 10;

/// Time limit of each step of a probe.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// Pauses between two searches for another master. Each search follows a refused write.
const SEARCH_PAUSES: Backoff = Backoff {
    immediate: 0,
    first: Duration::from_millis(100),
    max: Duration::from_secs(2),
    factor: 2.0,
    jitter: 0.2,
};

/// Why the loop ended.
pub(crate) enum Exit {
    /// Closed, with everything answered or the end called for.
    Closed,
    /// The connection broke.
    Lost(LostCause),
}

pub(crate) struct ConnectionDriver<'a> {
    shared: &'a ConnectionShared,
    transport: Transport,
    decoder: Decoder,
    input: ReadBuffer,
    replies: Vec<Frame>,
    pushes: Vec<Frame>,
    /// Frames for the push queue, and their bytes on the wire.
    pubsub: (Vec<PubSubFrame>, usize),
    output: Vec<u8>,
    written: usize,
    flushed: bool,
    yielded: bool,
    wakers: Vec<Waker>,
    timer: Pin<Box<Sleep>>,
    armed: u64,
    liveness: LivenessDetector,
    /// Bytes came since the last exchange.
    received: bool,
    /// The network took more bytes after it was full: the peer reads, hence it lives.
    progressed: bool,
    /// Set once the connection cannot go on; what was read before is delivered first.
    ending: Option<LostCause>,
    follows_master: bool,
    search: Option<MasterSearch>,
    /// Where the connection leads.
    endpoint: Endpoint,
    /// A second connection that checks whether the server serves.
    probe: Option<Probe>,
    /// Bytes that the network has taken.
    pub(crate) sent: u64,
}

/// What to do after the exchange with the callers.
enum Exchange {
    Idle,
    Yield,
    Exit(Exit),
}

impl<'a> ConnectionDriver<'a> {
    pub(crate) fn new(shared: &'a ConnectionShared, established: Established) -> Self {
        let search = MasterSearch::of(shared, &established);
        let Established { transport, decoder, input, endpoint, .. } = established;
        let mut driver = Self {
            shared,
            transport,
            decoder,
            input: ReadBuffer::new(input),
            replies: Vec::new(),
            pushes: Vec::new(),
            pubsub: (Vec::new(), 0),
            output: Vec::new(),
            written: 0,
            flushed: true,
            yielded: false,
            wakers: Vec::new(),
            timer: Box::pin(sleep_until(shared.instant(shared.now()))),
            armed: NEVER,
            liveness: LivenessDetector::new(shared.config.liveness, shared.now()),
            received: true,
            progressed: false,
            ending: None,
            follows_master: matches!(shared.config.server, Server::Sentinel(_)),
            search,
            endpoint,
            probe: None,
            sent: 0,
        };
        // Bytes behind the handshake were read already.
        driver.decode_all();
        driver
    }

    // ---- input ------------------------------------------------------------------------------

    /// Reads what is there. True if anything came.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> bool {
        if self.ending.is_some() {
            return false;
        }
        if self.shared.push_queue.as_ref().is_some_and(|push_queue| push_queue.poll_room(cx).is_pending()) {
            // The client does not read, so the peer is not to blame for silence.
            self.liveness.saw_traffic(self.shared.now());
            return false;
        }
        let room = self.input.make_room(self.decoder.missing());
        match poll_read_buf(Pin::new(&mut self.transport), cx, &mut self.input.bytes) {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => self.ending = Some(LostCause::Eof),
            Poll::Ready(Err(e)) => self.ending = Some(e.into()),
            Poll::Ready(Ok(n)) => {
                self.received = true;
                self.shared.meter.bytes_received.increment(n as u64);
                if n == room {
                    self.input.grow();
                }
                self.decode_all();
            }
        }
        true
    }

    fn decode_all(&mut self) {
        while self.decode() {
            self.deliver_early();
        }
    }

    /// Decodes what was read. True if there may be more, but enough was decoded for one delivery.
    fn decode(&mut self) -> bool {
        if self.shared.push_queue.is_some() {
            return self.decode_pubsub();
        }
        while self.replies.len() < BATCH {
            match self.decoder.decode(&mut self.input.bytes) {
                Ok(Some(frame)) if frame.is_push() => self.pushes.push(frame),
                Ok(Some(frame)) => self.replies.push(frame),
                Ok(None) => return false,
                Err(error) => {
                    self.ending = Some(error.into());
                    return false;
                }
            }
        }
        true
    }

    fn decode_pubsub(&mut self) -> bool {
        loop {
            match self.decoder.decode_pubsub(&mut self.input.bytes) {
                Ok(Some((pubsub, bytes))) => {
                    self.pubsub.0.push(pubsub);
                    self.pubsub.1 += bytes;
                }
                Ok(None) => return false,
                Err(error) => {
                    self.ending = Some(error.into());
                    return false;
                }
            }
        }
    }

    /// A large batch is delivered before the rest is decoded.
    fn deliver_early(&mut self) {
        let shared = self.shared;
        self.deliver(&mut shared.lock());
        self.publish_pushes();
        self.wake_callers();
    }

    // ---- the meeting of callers and socket --------------------------------------------------

    /// Under one lock: delivers replies, takes new output, registers the waker.
    fn exchange(&mut self, cx: &Context<'_>) -> Exchange {
        let shared = self.shared;
        let mut inner = shared.lock();
        let now = inner.tick(shared.now());
        if std::mem::take(&mut self.received) {
            self.liveness.saw_traffic(now);
            self.deliver(&mut inner);
        }
        if std::mem::take(&mut self.progressed) {
            self.liveness.saw_traffic(now);
        }
        self.check_timers(&mut inner, now);
        if inner.reset {
            self.ending.get_or_insert(LostCause::Unsolicited);
        }
        if let Some(cause) = self.ending.take() {
            return Exchange::Exit(Exit::Lost(cause));
        }
        if let Some(exit) = self.finished(&inner) {
            return Exchange::Exit(exit);
        }
        if self.output.is_empty() && !inner.out.is_empty() {
            if inner.pipeline.len() > 1 && !std::mem::replace(&mut self.yielded, true) {
                return Exchange::Yield;
            }
            self.yielded = false;
            std::mem::swap(&mut inner.out, &mut self.output);
            inner.taken += self.output.len() as u64;
        }
        let unwritten = self.output.len() - self.written;
        if unwritten < inner.unwritten {
            shared.make_room(&inner, 1);
        }
        inner.unwritten = unwritten;
        shared.meter.in_flight.set(inner.pipeline.len());
        inner.task = Some(cx.waker().clone());
        Exchange::Idle
    }

    fn deliver(&mut self, inner: &mut LockedState) {
        if let Some(push_queue) = &self.shared.push_queue {
            self.shared.meter.pushes.increment(self.pubsub.0.len() as u64);
            return push_queue.push_frames(&mut self.pubsub.0, std::mem::take(&mut self.pubsub.1));
        }
        let count = self.replies.len();
        let mut demoted = false;
        for frame in self.replies.drain(..) {
            demoted |= is_readonly(&frame);
            match inner.pipeline.reply(frame, self.sent) {
                Ok(waker) => self.wakers.extend(waker),
                Err(_) => self.ending = Some(LostCause::Unsolicited),
            }
        }
        if demoted {
            self.demoted(inner.now);
        }
        self.shared.meter.replies.increment(count as u64);
        self.shared.make_room(inner, count);
    }

    /// Reacts to a write that was refused because the server is no master. With sentinels, the
    /// connection asks them again. Without them, a probe checks whether the name leads to a master
    /// by now.
    fn demoted(&mut self, now: u64) {
        if self.follows_master {
            self.ending = Some(LostCause::Demoted);
        } else if self.probe.is_none()
            && let Some(search) = self.search.as_mut().filter(|search| search.is_due(now))
        {
            search.active = true;
            self.probe = Some(probe::start(&self.shared.config, &self.endpoint, PROBE_LIMIT));
        }
    }

    /// Handles the result of the probe, if one was started.
    fn poll_probe(&mut self, cx: &mut Context<'_>) -> bool {
        let active = self.search.as_ref().is_some_and(|search| search.active);
        if !active && !self.liveness.is_probing() {
            // The peer sent bytes since the last check.
            self.probe = None;
        }
        let Some(probe) = &mut self.probe else { return false };
        let Poll::Ready(result) = probe.as_mut().poll(cx) else { return false };
        self.probe = None;
        let now = self.shared.now();
        if let Some(search) = self.search.as_mut().filter(|search| search.active) {
            search.finished(now);
            if result == (ProbeResult::Serving { master: true }) {
                self.ending = Some(LostCause::Demoted);
            }
        }
        if self.liveness.is_probing()
            && let LivenessAction::Dead(silence) = self.liveness.probed(now, result)
        {
            self.ending = Some(LostCause::Silent(silence));
        }
        true
    }

    fn finished(&self, inner: &LockedState) -> Option<Exit> {
        match inner.machine.state() {
            ConnectionState::Closed => Some(Exit::Closed),
            ConnectionState::Closing if inner.abort => Some(Exit::Closed),
            ConnectionState::Closing
                if inner.pipeline.is_empty() && inner.out.is_empty() && self.output.is_empty() =>
            {
                Some(Exit::Closed)
            }
            _ => None,
        }
    }

    /// Checks deadlines and liveness when they are due.
    fn check_timers(&mut self, inner: &mut LockedState, now: u64) {
        self.shared.expire(inner, &mut self.wakers);
        // `slow_request` walks the queue, so ask only when a check is due.
        let due = now >= self.liveness.due();
        let action =
            if due { self.liveness.check(now, slow_request(inner, now)) } else { LivenessAction::Wait };
        match action {
            LivenessAction::Wait => {}
            LivenessAction::Probe => {
                let limit = self.shared.config.liveness.map_or(PROBE_LIMIT, |l| l.dead_after);
                self.probe.get_or_insert_with(|| probe::start(&self.shared.config, &self.endpoint, limit));
            }
            LivenessAction::Ping => {
                inner.ping_peer(self.shared.push_queue.as_deref());
                if inner.pipeline.len() <= 1 {
                    self.shrink();
                }
            }
            LivenessAction::Dead(silence) => self.ending = Some(LostCause::Silent(silence)),
        }
        self.arm(inner.pipeline.earliest().min(self.liveness.due()));
    }

    /// Gives buffers back while the connection is idle.
    fn shrink(&mut self) {
        self.input.shrink();
        if self.output.capacity() > OUTPUT_KEPT && self.output.is_empty() {
            self.output = Vec::new();
        }
    }

    fn arm(&mut self, due: u64) {
        if due < self.armed {
            self.armed = due;
            self.timer.as_mut().reset(self.shared.instant(due));
        }
    }

    /// The timer only wakes the task; `check_timers` reads the clock.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> bool {
        let fired = self.armed != NEVER && self.timer.as_mut().poll(cx).is_ready();
        if fired {
            self.armed = NEVER;
        }
        fired
    }

    fn wake_callers(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }

    fn publish_pushes(&mut self) {
        if self.pushes.is_empty() {
            return;
        }
        self.shared.meter.pushes.increment(self.pushes.len() as u64);
        for frame in self.pushes.drain(..) {
            // Without a listener a push has no receiver.
            let _ = self.shared.pushes.send(std::sync::Arc::new(frame));
        }
    }

    // ---- output -----------------------------------------------------------------------------

    /// Writes what was taken. True if anything went out.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.sent;
        let resumed = self.written > 0;
        while self.written < self.output.len() && self.ending.is_none() {
            match Pin::new(&mut self.transport).poll_write(cx, &self.output[self.written..]) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    self.ending = Some(std::io::Error::from(std::io::ErrorKind::WriteZero).into());
                }
                Poll::Ready(Err(e)) => self.ending = Some(e.into()),
                Poll::Ready(Ok(n)) => {
                    self.written += n;
                    self.sent += n as u64;
                    self.flushed = false;
                    self.shared.meter.writes.increment(1);
                }
            }
        }
        self.shared.meter.bytes_sent.increment(self.sent - before);
        self.progressed |= resumed && self.sent > before;
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        }
        self.poll_flush(cx);
        self.sent > before || self.ending.is_some()
    }

    /// TLS keeps bytes back until it is flushed.
    fn poll_flush(&mut self, cx: &mut Context<'_>) {
        if self.flushed {
            return;
        }
        match Pin::new(&mut self.transport).poll_flush(cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => self.flushed = true,
            Poll::Ready(Err(e)) => self.ending = Some(e.into()),
        }
    }

    /// Shuts the socket down as far as that is possible without waiting: the peer may never read
    /// again.
    pub(crate) async fn shut_down(mut self) {
        let goodbye = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut self.transport).poll_shutdown(cx)));
        if let Poll::Ready(Err(error)) = goodbye.await {
            tracing::trace!(%error, "the socket was gone before it was closed");
        }
    }
}

impl Future for ConnectionDriver<'_> {
    type Output = Exit;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Exit> {
        let this = self.get_mut();
        loop {
            let read = this.poll_input(cx);
            let step = this.exchange(cx);
            this.publish_pushes();
            this.wake_callers();
            match step {
                Exchange::Exit(exit) => return Poll::Ready(exit),
                Exchange::Yield => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Exchange::Idle => {}
            }
            let wrote = this.poll_output(cx);
            let fired = this.poll_timer(cx);
            let probed = this.probe.is_some() && this.poll_probe(cx);
            if !(read || wrote || fired || probed) {
                return Poll::Pending;
            }
        }
    }
}

/// Request in flight that explains a silent server.
fn slow_request(inner: &LockedState, now: u64) -> SlowRequest {
    match () {
        () if inner.pipeline.is_blocking() => SlowRequest::Blocking,
        () if inner.pipeline.awaits_long_request(now) => SlowRequest::Long,
        () => SlowRequest::None,
    }
}

/// Schedule of the search for another master behind the same name.
struct MasterSearch {
    active: bool,
    /// Searches so far.
    searches: u32,
    next: u64,
}

impl MasterSearch {
    /// A connection that may not reconnect stays where it is. Nodes of a cluster follow the
    /// topology.
    fn of(shared: &ConnectionShared, established: &Established) -> Option<Self> {
        let follows = shared.config.reconnect.is_some()
            && shared.push_queue.is_none()
            && established.server_info.mode != "cluster";
        follows.then_some(Self { active: false, searches: 0, next: 0 })
    }

    fn is_due(&self, now: u64) -> bool {
        now >= self.next
    }

    fn finished(&mut self, now: u64) {
        self.active = false;
        self.next = now.saturating_add(millis(SEARCH_PAUSES.delay(self.searches)));
        self.searches = self.searches.saturating_add(1);
    }
}

fn is_readonly(frame: &Frame) -> bool {
    matches!(frame.kind(), ValueKind::SimpleError | ValueKind::BlobError)
        && frame.value().error().is_some_and(|(code, rest)| is_demoted(code, rest))
}

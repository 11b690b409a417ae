//! The loop of an open connection: the only code that touches its socket (invariant 1). Each turn reads what came,
//! pairs it with the requests, takes what callers have encoded, and writes it; reading and writing never wait for
//! each other.
//!
//! *Flush coalescing*: with more than one request under way the task yields to itself once before it writes, so that
//! one write carries what dozens of callers encode meanwhile; a lone caller never waits.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    io::AsyncWrite,
    time::{Sleep, sleep_until},
};
use tokio_util::io::poll_read_buf;

use super::{
    handshake::Established,
    inner::Inner,
    input::Input,
    opinion::{self, Asking, Opinion},
    pipeline::NEVER,
    pulse::{Excuse, Pulse, Verdict},
    shared::{Shared, millis},
    state::State,
    transport::{Endpoint, Transport},
};
use crate::{
    backoff::Backoff,
    config::Server,
    error::LostCause,
    refusal::is_demoted,
    resp::{Decoder, Frame, Kind, pubsub::Said},
};

/// Replies that are delivered in one go at most: callers on other threads get the lock, and work, between two of them.
const BATCH: usize = 128;
/// An output buffer larger than this is given back when the connection is idle.
const OUTPUT_KEPT: usize = 256 << 10;

/// Each step of a second connection ends after this long.
const SEEK_LIMIT: Duration = Duration::from_secs(5);
/// The pauses between two looks for another master, each of which is made for a write that was
/// refused.
const SEEK_PAUSES: Backoff = Backoff {
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

pub(crate) struct Driver<'a> {
    shared: &'a Shared,
    transport: Transport,
    decoder: Decoder,
    input: Input,
    replies: Vec<Frame>,
    pushes: Vec<Frame>,
    /// What goes to the feed, and the bytes that it stood for.
    said: (Vec<Said>, usize),
    output: Vec<u8>,
    written: usize,
    flushed: bool,
    yielded: bool,
    wakers: Vec<Waker>,
    timer: Pin<Box<Sleep>>,
    armed: u64,
    pulse: Pulse,
    /// Bytes came since the last exchange.
    heard: bool,
    /// The network took more of what it had to be offered again: the peer reads, hence it lives.
    advanced: bool,
    /// Set once the connection cannot go on; what was read before is delivered first.
    ending: Option<LostCause>,
    follows_master: bool,
    seeker: Option<Seeker>,
    /// Where the connection leads.
    endpoint: Endpoint,
    /// A second connection that is asked for its opinion.
    second: Option<Asking>,
    /// Bytes that the network has taken.
    pub(crate) sent: u64,
}

/// What a look at the shared state told.
enum Step {
    Idle,
    Yield,
    Exit(Exit),
}

impl<'a> Driver<'a> {
    pub(crate) fn new(shared: &'a Shared, established: Established) -> Self {
        let seeker = Seeker::of(shared, &established);
        let Established { transport, decoder, input, endpoint, .. } = established;
        let mut driver = Self {
            shared,
            transport,
            decoder,
            input: Input::new(input),
            replies: Vec::new(),
            pushes: Vec::new(),
            said: (Vec::new(), 0),
            output: Vec::new(),
            written: 0,
            flushed: true,
            yielded: false,
            wakers: Vec::new(),
            timer: Box::pin(sleep_until(shared.instant(shared.now()))),
            armed: NEVER,
            pulse: Pulse::new(shared.config.liveness, shared.now()),
            heard: true,
            advanced: false,
            ending: None,
            follows_master: matches!(shared.config.server, Server::Sentinel(_)),
            seeker,
            endpoint,
            second: None,
            sent: 0,
        };
        // What came right behind the handshake has been read already.
        driver.decode_all();
        driver
    }

    // ---- input -------------------------------------------------------------------------------------------------

    /// Reads what is there. True if anything came.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> bool {
        if self.ending.is_some() {
            return false;
        }
        if self.shared.feed.as_ref().is_some_and(|feed| feed.poll_room(cx).is_pending()) {
            // We are the silent one: the peer is not to blame.
            self.pulse.heard(self.shared.now());
            return false;
        }
        let room = self.input.make_room(self.decoder.missing());
        match poll_read_buf(Pin::new(&mut self.transport), cx, &mut self.input.bytes) {
            Poll::Pending => return false,
            Poll::Ready(Ok(0)) => self.ending = Some(LostCause::Eof),
            Poll::Ready(Err(e)) => self.ending = Some(e.into()),
            Poll::Ready(Ok(n)) => {
                self.heard = true;
                self.shared.meter.bytes_received.increment(n as u64);
                if n == room {
                    self.input.was_filled();
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
        if self.shared.feed.is_some() {
            return self.decode_for_feed();
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

    fn decode_for_feed(&mut self) -> bool {
        loop {
            match self.decoder.said(&mut self.input.bytes) {
                Ok(Some((said, bytes))) => {
                    self.said.0.push(said);
                    self.said.1 += bytes;
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
        self.tell_pushes();
        self.wake_callers();
    }

    // ---- the meeting of callers and socket -----------------------------------------------------------------------

    /// Under one lock: delivers replies, takes new output, registers for being woken.
    fn exchange(&mut self, cx: &Context<'_>) -> Step {
        let shared = self.shared;
        let mut inner = shared.lock();
        let now = inner.tick(shared.now());
        if std::mem::take(&mut self.heard) {
            self.pulse.heard(now);
            self.deliver(&mut inner);
        }
        if std::mem::take(&mut self.advanced) {
            self.pulse.heard(now);
        }
        self.beat(&mut inner, now);
        if inner.reset {
            self.ending.get_or_insert(LostCause::Unsolicited);
        }
        if let Some(cause) = self.ending.take() {
            return Step::Exit(Exit::Lost(cause));
        }
        if let Some(exit) = self.finished(&inner) {
            return Step::Exit(exit);
        }
        if self.output.is_empty() && !inner.out.is_empty() {
            if inner.pipeline.len() > 1 && !std::mem::replace(&mut self.yielded, true) {
                return Step::Yield;
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
        Step::Idle
    }

    fn deliver(&mut self, inner: &mut Inner) {
        if let Some(feed) = &self.shared.feed {
            self.shared.meter.pushes.increment(self.said.0.len() as u64);
            return feed.hear(&mut self.said.0, std::mem::take(&mut self.said.1));
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

    /// A write was refused because the server is no master: sentinels are asked anew; without them,
    /// a second connection sees whether the name leads to a master by now.
    fn demoted(&mut self, now: u64) {
        if self.follows_master {
            self.ending = Some(LostCause::Demoted);
        } else if self.second.is_none()
            && let Some(seeker) = self.seeker.as_mut().filter(|seeker| seeker.is_due(now))
        {
            seeker.seeking = true;
            self.second = Some(opinion::ask(&self.shared.config, &self.endpoint, SEEK_LIMIT));
        }
    }

    /// Hears the second opinion, if one was asked for.
    fn poll_second(&mut self, cx: &mut Context<'_>) -> bool {
        let seeking = self.seeker.as_ref().is_some_and(|seeker| seeker.seeking);
        if !seeking && !self.pulse.is_doubtful() {
            // The peer was heard meanwhile.
            self.second = None;
        }
        let Some(second) = &mut self.second else { return false };
        let Poll::Ready(opinion) = second.as_mut().poll(cx) else { return false };
        self.second = None;
        let now = self.shared.now();
        if let Some(seeker) = self.seeker.as_mut().filter(|seeker| seeker.seeking) {
            seeker.sought(now);
            if opinion == (Opinion::Serves { master: true }) {
                self.ending = Some(LostCause::Demoted);
            }
        }
        if self.pulse.is_doubtful()
            && let Verdict::Dead(silence) = self.pulse.opinion(now, opinion)
        {
            self.ending = Some(LostCause::Silent(silence));
        }
        true
    }

    fn finished(&self, inner: &Inner) -> Option<Exit> {
        match inner.machine.state() {
            State::Closed => Some(Exit::Closed),
            State::Closing if inner.hurry => Some(Exit::Closed),
            State::Closing if inner.pipeline.is_empty() && inner.out.is_empty() && self.output.is_empty() => {
                Some(Exit::Closed)
            }
            _ => None,
        }
    }

    /// Deadlines and signs of life, looked at only when their time has come.
    fn beat(&mut self, inner: &mut Inner, now: u64) {
        self.shared.expire(inner, &mut self.wakers);
        match if now < self.pulse.due() { Verdict::Fine } else { self.pulse.check(now, excuse(inner, now)) } {
            Verdict::Fine => {}
            Verdict::Doubt => {
                let limit = self.shared.config.liveness.map_or(SEEK_LIMIT, |l| l.dead_after);
                self.second.get_or_insert_with(|| opinion::ask(&self.shared.config, &self.endpoint, limit));
            }
            Verdict::Ping => {
                inner.ask_for_life(self.shared.feed.as_deref());
                if inner.pipeline.len() <= 1 {
                    self.slim_down();
                }
            }
            Verdict::Dead(silence) => self.ending = Some(LostCause::Silent(silence)),
        }
        self.arm(inner.pipeline.earliest().min(self.pulse.due()));
    }

    /// Nothing happens on this connection: its buffers need not be large.
    fn slim_down(&mut self) {
        self.input.slim_down();
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

    /// The timer only wakes the task; `beat` looks at the clock.
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

    fn tell_pushes(&mut self) {
        if self.pushes.is_empty() {
            return;
        }
        self.shared.meter.pushes.increment(self.pushes.len() as u64);
        for frame in self.pushes.drain(..) {
            // Without a listener a push has no receiver.
            let _ = self.shared.pushes.send(std::sync::Arc::new(frame));
        }
    }

    // ---- output ------------------------------------------------------------------------------------------------

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
        self.advanced |= resumed && self.sent > before;
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

    /// Says goodbye to the peer, as far as that is possible without waiting: it may never read again.
    pub(crate) async fn shut_down(mut self) {
        let goodbye = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut self.transport).poll_shutdown(cx)));
        if let Poll::Ready(Err(error)) = goodbye.await {
            tracing::trace!(%error, "the socket was gone before it was closed");
        }
    }
}

impl Future for Driver<'_> {
    type Output = Exit;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Exit> {
        let this = self.get_mut();
        loop {
            let read = this.poll_input(cx);
            let step = this.exchange(cx);
            this.tell_pushes();
            this.wake_callers();
            match step {
                Step::Exit(exit) => return Poll::Ready(exit),
                Step::Yield => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Step::Idle => {}
            }
            let wrote = this.poll_output(cx);
            let fired = this.poll_timer(cx);
            let told = this.second.is_some() && this.poll_second(cx);
            if !(read || wrote || fired || told) {
                return Poll::Pending;
            }
        }
    }
}

/// What excuses a silent server.
fn excuse(inner: &Inner, now: u64) -> Excuse {
    match () {
        () if inner.pipeline.is_patient() => Excuse::Blocking,
        () if inner.pipeline.waits_long(now) => Excuse::Long,
        () => Excuse::None,
    }
}

/// When to look for another master behind the same name.
struct Seeker {
    seeking: bool,
    /// Looks so far.
    looks: u32,
    next: u64,
}

impl Seeker {
    /// A connection that may not be made anew stays where it is, and the nodes of a cluster are
    /// told by the cluster.
    fn of(shared: &Shared, established: &Established) -> Option<Self> {
        let follows = shared.config.reconnect.is_some()
            && shared.feed.is_none()
            && established.greeting.mode != "cluster";
        follows.then_some(Self { seeking: false, looks: 0, next: 0 })
    }

    fn is_due(&self, now: u64) -> bool {
        now >= self.next
    }

    fn sought(&mut self, now: u64) {
        self.seeking = false;
        self.next = now.saturating_add(millis(SEEK_PAUSES.delay(self.looks)));
        self.looks = self.looks.saturating_add(1);
    }
}

fn is_readonly(frame: &Frame) -> bool {
    matches!(frame.kind(), Kind::SimpleError | Kind::BlobError)
        && frame.value().error().is_some_and(|(code, rest)| is_demoted(code, rest))
}

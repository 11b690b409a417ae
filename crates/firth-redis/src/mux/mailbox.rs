//! Bounded buffer of one subscription. Messages are subject to its overflow policy; signals are
//! always kept, in order.
//!
//! The subscriber swaps the whole content out at once. Only then there is room again, and a link
//! that was refused waits for that.

use super::config::{Buffer, OverflowPolicy};
use super::event::{Event, Message, Signal};
use super::meter::Backlog;
use super::summary;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What a queued message costs beside its payload and channel.
const OVERHEAD: usize = std::mem::size_of::<Event>();

#[derive(Debug)]
pub(crate) struct EventMailbox {
    state: Mutex<MailboxState>,
    buffer: Buffer,
    backlog: Arc<Backlog>,
}

#[derive(Debug, Default)]
struct MailboxState {
    queue: VecDeque<Event>,
    /// Of messages.
    bytes: usize,
    /// How many signals wait, and what they cost.
    signals: usize,
    signal_bytes: usize,
    /// Messages dropped at the tail since the last accepted event.
    dropped_newest: u64,
    reader: Option<Waker>,
    /// Links that wait for room.
    writers: Vec<Waker>,
    closed: bool,
}

/// A subscriber with this many unread events is behind.
const BEHIND: usize = 8;
/// If this many bytes came together, they fill most of their read buffer.
const DENSE: usize = 32 << 10;

/// Up to `FEW_SIGNALS` signals are kept at any cost. Beyond that, signals are joined when they
/// exceed `MANY_SIGNALS` or `SIGNAL_BYTES`.
const FEW_SIGNALS: usize = 64;
const MANY_SIGNALS: usize = 4096;
const SIGNAL_BYTES: usize = 4 << 20;

/// What a message costs in a mailbox.
pub(crate) fn cost(message: &Message) -> usize {
    OVERHEAD + message.payload.len() + message.channel.len()
}

fn is_sparse(messages: &VecDeque<Message>) -> bool {
    messages.len() < DENSE / OVERHEAD && messages.iter().map(cost).sum::<usize>() < DENSE
}

/// Copies a message into memory of its own. Messages are slices of large read buffers, so one that
/// waits for long would keep its whole buffer.
fn compact(message: Message) -> Message {
    let Message { kind, channel, pattern, payload, received } = message;
    let size = channel.len() + payload.len() + pattern.as_ref().map_or(0, Bytes::len);
    let mut all = BytesMut::with_capacity(size);
    let mut copy = |bytes: &Bytes| {
        all.extend_from_slice(bytes);
        all.split().freeze()
    };
    let channel = copy(&channel);
    let pattern = pattern.as_ref().map(&mut copy);
    let payload = copy(&payload);
    Message { kind, channel, pattern, payload, received }
}

impl EventMailbox {
    pub(crate) fn new(buffer: Buffer, backlog: Arc<Backlog>) -> Self {
        Self { state: Mutex::default(), buffer: buffer.sanitised(), backlog }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes messages from the front of `messages` until all are taken, or (policy `Block`) until
    /// it is full; then the rest stays. Returns how many were dropped, and the waker of the
    /// subscriber.
    pub(crate) fn deliver(&self, messages: &mut VecDeque<Message>) -> (u64, Option<Waker>) {
        let mut state = self.lock();
        if state.closed {
            messages.clear();
            return (0, None);
        }
        let mut dropped = 0;
        let before = state.queue.len();
        let compacts = state.queue.len() >= BEHIND && is_sparse(messages);
        while let Some(message) = messages.front() {
            let size = cost(message);
            if state.bytes > 0 && state.bytes + size > self.buffer.bytes {
                match self.buffer.overflow {
                    OverflowPolicy::Block => break,
                    OverflowPolicy::DropNewest => {
                        messages.pop_front();
                        state.dropped_newest += 1;
                        dropped += 1;
                        continue;
                    }
                    OverflowPolicy::DropOldest => {
                        dropped += state.drop_oldest(self.buffer.bytes.saturating_sub(size));
                    }
                }
            }
            state.mark_drops();
            state.bytes += size;
            let message = messages.pop_front();
            let message = if compacts { message.map(compact) } else { message };
            state.queue.extend(message.map(Event::Message));
        }
        self.backlog.changed(before, state.queue.len());
        (dropped, state.reader.take())
    }

    /// Adds a signal; it is never refused. Returns the waker of the subscriber, and how many
    /// messages were dropped: some only if unread signals alone fill the memory.
    pub(crate) fn signal(&self, signal: Signal) -> (u64, Option<Waker>) {
        let mut state = self.lock();
        if state.closed {
            return (0, None);
        }
        let before = state.queue.len();
        state.mark_drops();
        state.signals += 1;
        state.signal_bytes += OVERHEAD + signal.names().map_or(0, std::mem::size_of_val);
        state.queue.push_back(Event::Signal(signal));
        let dropped = if state.has_too_many_signals() { state.summarise() } else { 0 };
        self.backlog.changed(before, state.queue.len());
        (dropped, state.reader.take())
    }

    /// Whether a link that was refused may go on; else stores its waker.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.closed || state.bytes == 0 {
            return Poll::Ready(());
        }
        if !state.writers.iter().any(|writer| writer.will_wake(cx.waker())) {
            state.writers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Swaps everything into `into`. `Ready(false)` when it is closed and empty.
    pub(crate) fn poll_take(&self, cx: &Context<'_>, into: &mut VecDeque<Event>) -> Poll<bool> {
        let mut state = self.lock();
        let before = state.queue.len();
        state.mark_drops();
        if state.queue.is_empty() {
            if state.closed {
                return Poll::Ready(false);
            }
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        std::mem::swap(&mut state.queue, into);
        self.backlog.changed(before, state.queue.len());
        (state.bytes, state.signals, state.signal_bytes) = (0, 0, 0);
        let writers = std::mem::take(&mut state.writers);
        drop(state);
        writers.into_iter().for_each(Waker::wake);
        self.backlog.taken(into.iter().find_map(Event::message));
        Poll::Ready(true)
    }

    /// Events that wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Takes nothing more; what is there can still be read.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let mut wakers = std::mem::take(&mut state.writers);
        wakers.extend(state.reader.take());
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for EventMailbox {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.backlog.changed(state.queue.len(), 0);
    }
}

impl MailboxState {
    /// Drops messages from the front until at most `limit` bytes are left, and leaves one marker in
    /// their place.
    fn drop_oldest(&mut self, limit: usize) -> u64 {
        let mut dropped = 0;
        while self.bytes > limit {
            let Some(at) = self.queue.iter().position(|e| matches!(e, Event::Message(_))) else { break };
            let Event::Message(message) = &self.queue[at] else { break };
            self.bytes -= cost(message);
            dropped += 1;
            match at.checked_sub(1).map(|before| &mut self.queue[before]) {
                Some(Event::Signal(Signal::Lagged { dropped })) => {
                    *dropped += 1;
                    self.queue.remove(at);
                }
                _ => self.queue[at] = Event::Signal(Signal::Lagged { dropped: 1 }),
            }
        }
        dropped
    }

    fn has_too_many_signals(&self) -> bool {
        self.signals > FEW_SIGNALS && (self.signals > MANY_SIGNALS || self.signal_bytes > SIGNAL_BYTES)
    }

    /// Joins everything that waits to one gap; returns how many messages were dropped.
    fn summarise(&mut self) -> u64 {
        let (summary, dropped) = summary::summarise(std::mem::take(&mut self.queue));
        self.queue = summary;
        (self.bytes, self.signals, self.signal_bytes) = (0, self.queue.len(), 0);
        dropped
    }

    /// Puts the notice of messages dropped at the tail before the next event.
    fn mark_drops(&mut self) {
        if self.dropped_newest > 0 {
            let dropped = std::mem::take(&mut self.dropped_newest);
            self.queue.push_back(Event::Signal(Signal::Lagged { dropped }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mux::event::SubscriptionKind;

    fn message(n: u32) -> Message {
        let payload = Bytes::from(n.to_string());
        Message::new(
            SubscriptionKind::Channel,
            Bytes::from_static(b"c"),
            None,
            payload,
            std::time::Instant::now(),
        )
    }

    fn mailbox(room_for: usize, overflow: OverflowPolicy) -> EventMailbox {
        let bytes = room_for * cost(&message(0));
        EventMailbox { state: Mutex::default(), buffer: Buffer { bytes, overflow }, backlog: Arc::default() }
    }

    fn send(mailbox: &EventMailbox, numbers: std::ops::Range<u32>) -> usize {
        let mut messages: VecDeque<Message> = numbers.map(message).collect();
        mailbox.deliver(&mut messages);
        messages.len()
    }

    fn read(mailbox: &EventMailbox) -> String {
        let mut events = VecDeque::new();
        let cx = Context::from_waker(Waker::noop());
        match mailbox.poll_take(&cx, &mut events) {
            Poll::Ready(true) => {}
            Poll::Ready(false) => return "closed".into(),
            Poll::Pending => return "empty".into(),
        }
        let show = |e: &Event| match e {
            Event::Message(m) => String::from_utf8_lossy(&m.payload).into_owned(),
            Event::Signal(Signal::Lagged { dropped }) => format!("-{dropped}"),
            Event::Signal(_) => "s".into(),
        };
        events.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    fn some_signal() -> Signal {
        Signal::Resumed { after: std::time::Duration::ZERO, channels: [].into() }
    }

    #[test]
    fn dropping_the_oldest_marks_the_hole_where_it_is() {
        let m = mailbox(3, OverflowPolicy::DropOldest);
        assert_eq!(send(&m, 0..5), 0);
        assert_eq!(read(&m), "-2 2 3 4");
        m.signal(some_signal());
        send(&m, 0..5);
        assert_eq!(read(&m), "s -2 2 3 4", "signals stay, and stay in place");
    }

    #[test]
    fn dropping_the_newest_marks_the_hole_where_it_is() {
        let m = mailbox(3, OverflowPolicy::DropNewest);
        assert_eq!(send(&m, 0..5), 0);
        m.signal(some_signal());
        assert_eq!(read(&m), "0 1 2 -2 s");
        send(&m, 0..5);
        assert_eq!(read(&m), "0 1 2 -2");
    }

    #[test]
    fn blocking_keeps_what_does_not_fit_with_the_sender() {
        let m = mailbox(3, OverflowPolicy::Block);
        assert_eq!(send(&m, 0..5), 2);
        let cx = Context::from_waker(Waker::noop());
        assert!(m.poll_room(&cx).is_pending());
        assert_eq!(read(&m), "0 1 2");
        assert!(m.poll_room(&cx).is_ready());
    }

    #[test]
    fn there_is_no_room_until_the_reader_has_come() {
        let cost = cost(&message(0));
        let m = EventMailbox {
            state: Mutex::default(),
            buffer: Buffer { bytes: cost + cost / 2, overflow: OverflowPolicy::Block },
            backlog: Arc::default(),
        };
        assert_eq!(send(&m, 0..2), 1, "the second does not fit, though some bytes are free");
        let cx = Context::from_waker(Waker::noop());
        assert!(m.poll_room(&cx).is_pending(), "whoever was refused must not try again at once");
        assert_eq!(read(&m), "0");
        assert!(m.poll_room(&cx).is_ready());
    }

    #[test]
    fn one_message_is_always_accepted() {
        for overflow in [OverflowPolicy::Block, OverflowPolicy::DropNewest, OverflowPolicy::DropOldest] {
            let m = mailbox(0, overflow);
            m.signal(some_signal());
            send(&m, 0..1);
            assert_eq!(read(&m), "s 0", "{overflow:?}: signals take no room");
        }
        let m = mailbox(0, OverflowPolicy::Block);
        assert_eq!(send(&m, 0..2), 1);
        assert_eq!(read(&m), "0");
    }

    #[test]
    fn a_reader_who_is_behind_does_not_keep_the_read_buffers() {
        let m = mailbox(1000, OverflowPolicy::Block);
        let buffer = Bytes::from(vec![b'1'; 1 << 20]);
        for _ in 0..20 {
            let channel = buffer.slice(..1);
            let payload = buffer.slice(1..3);
            let now = std::time::Instant::now();
            m.deliver(&mut VecDeque::from([Message::new(
                SubscriptionKind::Channel,
                channel,
                None,
                payload,
                now,
            )]));
        }
        let place = buffer.slice(1..3).as_ptr();
        let kept = |event: &&Event| event.message().is_some_and(|m| m.payload.as_ptr() == place);
        let shared = m.lock().queue.iter().filter(kept).count();
        assert_eq!(shared, BEHIND);
        assert_eq!(read(&m), ["11"; 20].join(" "));
    }

    #[test]
    fn signals_that_nobody_reads_are_joined_in_the_end() {
        let m = mailbox(1000, OverflowPolicy::DropOldest);
        for n in 0..20_000 {
            let gap = Signal::Gap {
                reason: super::super::event::GapReason::NodeLost,
                since: std::time::Instant::now(),
                channels: [Bytes::from_static(b"c")].into(),
            };
            m.signal(gap);
            send(&m, n..n + 1);
            m.signal(Signal::Resumed {
                after: std::time::Duration::ZERO,
                channels: [Bytes::from_static(b"c")].into(),
            });
            assert!(m.len() <= 3 * MANY_SIGNALS, "{}", m.len());
        }
        let seen = read(&m);
        let (start, end) = seen.split_at(20);
        assert!(start.starts_with("s -") && end.ends_with("s 19999 s"), "{start}…{}", &end[end.len() - 20..]);
    }

    #[test]
    fn a_closed_mailbox_can_be_read_to_its_end() {
        let m = mailbox(3, OverflowPolicy::Block);
        send(&m, 0..2);
        m.close();
        assert_eq!(send(&m, 2..3), 0);
        assert_eq!((read(&m), read(&m)), ("0 1".into(), "closed".into()));
    }
}
